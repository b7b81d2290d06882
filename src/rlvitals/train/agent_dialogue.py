"""A conversation with tools as tokens: how it begins, what stands between two messages, what a message says.

What the model wrote stays as it was sampled, token by token; only what comes after it is put there by its chat
template. A message that was written down again from its parsed calls could be other tokens than those trained on.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from typing import Any

from rlvitals.errors import ConfigError
from rlvitals.train.mailbox.episode import Observation

_MARK = "the message ends here"

_TOLD_TOOLS = (
    "{system}\n\nYou may call these functions, described as JSON:\n<tools>\n{tools}\n</tools>\n\n"
    "A call is one JSON object with the function's name and arguments inside these tags:\n"
    '<tool_call>\n{{"name": "search_emails", "arguments": {{"keywords": ["budget"]}}}}\n</tool_call>'
)
"""Where a template knows nothing of tools: the form most models of this kind were shown."""


class Dialogue:
    """Puts conversations into a model's tokens. `tools` None: a model that was taught short tags."""

    def __init__(self, tokenizer: Any, tools: list[dict[str, Any]] | None) -> None:
        if not tokenizer.chat_template:
            raise ConfigError("the model's tokenizer has no chat template, and an agent's conversation needs one")
        self.tokenizer, self._tools = tokenizer, tools
        self.eos_id: int = tokenizer.eos_token_id
        self.pad_id: int = tokenizer.eos_token_id if tokenizer.pad_token_id is None else tokenizer.pad_token_id
        asked = [{"role": "user", "content": "?"}]
        self._is_told = tools is not None and self._text(asked) == self._text(asked, tools=tools)
        self._after: dict[tuple[tuple[str, str], ...], str] = {}

    def begin(self, messages: Sequence[Mapping[str, Any]]) -> list[int]:
        """The tokens up to the model's first message."""
        if self._tools is None:
            return self._ids(self._text(messages))
        if not self._is_told:
            return self._ids(self._text(messages, tools=self._tools))
        told = "\n".join(json.dumps(tool) for tool in self._tools)
        first, *rest = messages
        system = {"role": "system", "content": _TOLD_TOOLS.format(system=first["content"], tools=told)}
        return self._ids(self._text([system, *rest]))

    def go_on(self, observations: Sequence[Observation], *, has_ended: bool) -> list[int]:
        """The tokens between a message of the model and its next: the results of its calls. `has_ended`: the model
        ended its message itself; where it was cut off, the end is put there for it.
        """
        key = tuple((seen.tool, seen.content) for seen in observations)
        if key not in self._after:
            if len(self._after) > 10_000:
                self._after.clear()
            self._after[key] = self._text_after(observations)
        after, end = self._after[key], self.tokenizer.eos_token
        return self._ids(after.removeprefix(end)) if has_ended else self._ids(after)

    def message(self, ids: Sequence[int]) -> str | dict[str, Any]:
        """What the model wrote, as `Episode.step` takes it."""
        text: str = self.tokenizer.decode([token for token in ids if token not in (self.eos_id, self.pad_id)])
        if self._tools is None:
            return text
        return as_message(text, self.tokenizer)

    def _text_after(self, observations: Sequence[Observation]) -> str:
        if self._is_told:
            said = "\n".join(f"<tool_response>\n{seen.content}\n</tool_response>" for seen in observations)
            shown = [{"role": "user", "content": said}]
        else:
            shown = [seen.message() for seen in observations]
        messages = [{"role": "user", "content": "?"}, {"role": "assistant", "content": _MARK}, *shown]
        _, found, after = self._text(messages).rpartition(_MARK)
        if not found:
            raise ConfigError(
                "the model's chat template leaves assistant messages out; an agent cannot be trained on it"
            )
        return after

    def _text(self, messages: Sequence[Mapping[str, Any]], **more: Any) -> str:
        from jinja2 import TemplateError

        try:
            text: str = self.tokenizer.apply_chat_template(
                list(messages), tokenize=False, add_generation_prompt=True, **more
            )
        except TemplateError as error:
            raise ConfigError(f"the model's chat template cannot hold a conversation with tools: {error}") from error
        return text

    def _ids(self, text: str) -> list[int]:
        ids: list[int] = self.tokenizer(text, add_special_tokens=False)["input_ids"]
        return ids


def as_message(text: str, tokenizer: Any = None) -> str | dict[str, Any]:
    """A message with its tool calls, as the model's own tokenizer reads it, or from the usual forms: a bare JSON object
    with a name and `parameters`, and `[TOOL_CALLS]` with a list, are read here; `<tool_call>` is left to `read_calls`.

    >>> as_message('{"name": "read_email", "parameters": {"message_id": "m7"}}')["tool_calls"]
    [{'function': {'name': 'read_email', 'arguments': {'message_id': 'm7'}}}]
    """
    if getattr(tokenizer, "response_schema", None):
        try:
            read = tokenizer.parse_response(text)
            if isinstance(read, dict) and read.get("tool_calls"):
                return read
        except Exception:  # noqa: BLE001 - a schema of somebody else's; the usual forms remain
            pass
    bare = re.sub(r"<\|[^|>]{1,40}\|>|\[TOOL_CALLS\]", " ", text).strip()
    if "<tool_call>" in text or not bare.startswith(("{", "[")):
        return text
    try:
        given = json.loads(bare)
    except (ValueError, RecursionError):
        return text
    calls = given if isinstance(given, list) else [given]
    if not calls or not all(isinstance(call, dict) and isinstance(call.get("name"), str) for call in calls):
        return text
    functions = [{"name": call["name"], "arguments": call.get("arguments", call.get("parameters"))} for call in calls]
    return {"role": "assistant", "content": "", "tool_calls": [{"function": function} for function in functions]}
