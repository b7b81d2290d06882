"""Conversations in OpenAI's form: a list of messages with roles, read as a prompt and turns.

Everything before the model's first message is the prompt. A tool's message belongs to the call whose id it names, or
to the first call of the turn that has no result yet.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from rlvitals.codec import parse_json
from rlvitals.records import ToolCall, Turn

MODEL = frozenset({"assistant", "model", "gpt"})
TOOL = frozenset({"tool", "function", "ipython", "tool_response"})


def are_messages(value: Any) -> bool:
    """Whether this is a conversation: a list of mappings, each with a role."""
    if isinstance(value, str | bytes) or not isinstance(value, Sequence) or not value:
        return False
    return all(isinstance(message, Mapping) and "role" in message for message in value)


def text_of(content: Any) -> str:
    """A message's content as text. Parts are joined; a part that is not text is replaced by its type, such as
    `[image_url]`.
    """
    if content is None:
        return ""
    if isinstance(content, str):
        return content
    if isinstance(content, Mapping):
        return str(content["text"]) if isinstance(content.get("text"), str) else f"[{content.get('type', 'data')}]"
    if hasattr(content, "tolist"):
        return text_of(content.tolist())
    if isinstance(content, Sequence) and not isinstance(content, bytes):
        return "\n".join(text_of(part) for part in content)
    return str(content)


def parsed_arguments(arguments: Any) -> Any:
    """The parsed arguments of a call; the text itself if it is not a JSON object.

    >>> parsed_arguments('{"q": "x"}'), parsed_arguments('{"q": ')
    ({'q': 'x'}, '{"q": ')
    """
    if isinstance(arguments, str):
        try:
            parsed = parse_json(arguments.encode("utf-8", "replace"))
        except ValueError:
            return arguments
        return parsed if isinstance(parsed, dict) else arguments
    if isinstance(arguments, Mapping):  # a table fills the arguments of other tools with None
        return {str(key): value for key, value in arguments.items() if value is not None}
    return arguments


@dataclass(slots=True)
class _Open:
    """A turn that may still receive tool results."""

    text: str
    calls: list[ToolCall]
    ids: list[Any]
    observations: list[str] = field(default_factory=list)

    def answer(self, message: Mapping[str, Any]) -> None:
        result, wanted = text_of(message.get("content")), message.get("tool_call_id")
        place = self.ids.index(wanted) if wanted is not None and wanted in self.ids else self._first_open()
        if place is None:
            self.observations.append(result)
        else:
            self.calls[place] = replace(self.calls[place], result=result)

    def _first_open(self) -> int | None:
        return next((place for place, call in enumerate(self.calls) if call.result is None), None)

    def close(self) -> Turn:
        return Turn(text=self.text, calls=tuple(self.calls), observation="\n".join(self.observations))


def conversation(messages: Sequence[Mapping[str, Any]]) -> tuple[str, list[Turn]]:
    """The prompt as text, and the turns.

    >>> prompt, turns = conversation([
    ...     {"role": "user", "content": "Who wrote?"},
    ...     {"role": "assistant", "tool_calls": [{"id": "a", "function": {"name": "find", "arguments": "{}"}}]},
    ...     {"role": "tool", "tool_call_id": "a", "content": "Ann"},
    ...     {"role": "assistant", "content": "Ann."},
    ... ])
    >>> prompt, [(turn.text, turn.calls) for turn in turns]
    ('Who wrote?', [('', (ToolCall(name='find', arguments={}, result='Ann', error=''),)), ('Ann.', ())])
    """
    prompt_messages: list[Mapping[str, Any]] = []
    opened: list[_Open] = []
    for message in messages:
        role = str(message.get("role"))
        if role in MODEL:
            calls, ids = _calls(message)
            opened.append(_Open(text_of(message.get("content")), calls, ids))
        elif not opened:
            prompt_messages.append(message)
        elif role in TOOL:
            opened[-1].answer(message)
        else:
            opened[-1].observations.append(text_of(message.get("content")))
    return _joined(prompt_messages), [turn.close() for turn in opened]


def _calls(message: Mapping[str, Any]) -> tuple[list[ToolCall], list[Any]]:
    given = message.get("tool_calls")
    listed = list(given) if isinstance(given, Sequence) and not isinstance(given, str | bytes) else []
    if isinstance(message.get("function_call"), Mapping):
        listed.append(message["function_call"])
    calls, ids = [], []
    for item in listed:
        if not isinstance(item, Mapping):
            continue
        inner = item.get("function")
        function = inner if isinstance(inner, Mapping) else item
        calls.append(ToolCall(str(function.get("name", "")), parsed_arguments(function.get("arguments"))))
        ids.append(item.get("id"))
    return calls, ids


def _joined(messages: Sequence[Mapping[str, Any]]) -> str:
    """A single message as it is; several messages with their roles."""
    if len(messages) == 1:
        return text_of(messages[0].get("content"))
    return "\n\n".join(f"{message.get('role')}: {text_of(message.get('content'))}" for message in messages)
