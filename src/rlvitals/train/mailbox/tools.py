"""The three tools of the e-mail agent: their schemas, reading and writing calls of them, and executing them.

A call comes in an OpenAI-style message, as a `<tool_call>` in a text, or as short tags for models too small for JSON:

    <search>falcon budget</search>      search_emails(keywords=["falcon", "budget"])
    <read>m7</read>                     read_email(message_id="m7")
    <answer>blue | m7 m9</answer>       return_final_answer(answer="blue", source_message_ids=["m7", "m9"])

The inbox is not an argument: a toolbox has one inbox, and no call reaches another. A call that cannot be executed
raises a `BadCall`. If the mailbox fails, the result contains the error.
"""

from __future__ import annotations

import json
import re
import sqlite3
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import date
from typing import Any, Literal, NamedTuple

from rlvitals.train.mailbox.reward import Outcome
from rlvitals.train.mailbox.store import Mailbox

Style = Literal["chat", "tags"]
"""chat: a system prompt, calls and results as JSON; tags: the bare question, short tags and the shortest results."""

MAX_TEXT = 100_000
"""Limit for the characters of a message and of a call's arguments."""
MAX_BODY = 20_000
"""Limit for the characters of a body in a result."""
MAX_RESULTS = 10
MAX_WORD = 500
"""Limit for the characters of a keyword, an address or a message id."""
LIMITS = {"keywords": 20, "source_message_ids": 100, "answer": 10_000}
"""The arguments that have their own limits, for their entries or characters."""

_OPENING = re.compile(r"<([A-Za-z_]\w{0,40})>")


class UnreadableCall(ValueError):
    """A message contains no tool call, or one that cannot be parsed."""


class BadCall(ValueError):
    """A call that cannot be executed. It ends an episode with this outcome; the record of the call has the name."""

    outcome: Outcome
    name: str


class BadToolName(BadCall):
    """There is no such tool."""

    outcome, name = "bad_tool_name", "unknown_tool"


class BadArguments(BadCall):
    """The arguments do not match the tool's schema."""

    outcome, name = "bad_tool_args", "bad_arguments"


def _schema(name: str, description: str, properties: dict[str, Any], required: list[str]) -> dict[str, Any]:
    parameters = {"type": "object", "properties": properties, "required": required, "additionalProperties": False}
    return {"type": "function", "function": {"name": name, "description": description, "parameters": parameters}}


_WORDS = {"type": "array", "items": {"type": "string"}}

TOOLS: list[dict[str, Any]] = [
    _schema(
        "search_emails",
        "Search the user's e-mails. Gives the ids of the newest messages that hold every keyword, with a snippet.",
        {
            "keywords": _WORDS | {"minItems": 1, "description": "All of them must be in the subject or the body."},
            "from_addr": {"type": "string", "description": "Only messages from this address."},
            "to_addr": {"type": "string", "description": "Only messages to this address (to, cc or bcc)."},
            "sent_after": {"type": "string", "description": "Only messages of this day or later, YYYY-MM-DD."},
            "sent_before": {"type": "string", "description": "Only messages before this day, YYYY-MM-DD."},
            "max_results": {"type": "integer", "minimum": 1, "maximum": MAX_RESULTS, "default": MAX_RESULTS},
        },
        ["keywords"],
    ),
    _schema(
        "read_email",
        "Read one of the user's e-mails.",
        {"message_id": {"type": "string", "description": "An id that a search gave."}},
        ["message_id"],
    ),
    _schema(
        "return_final_answer",
        'End with an answer and the ids of the messages it rests on; "I don\'t know" if it cannot be found.',
        {"answer": {"type": "string"}, "source_message_ids": _WORDS | {"default": []}},
        ["answer"],
    ),
]
"""In OpenAI's format, for chat templates."""

_PARAMETERS = {tool["function"]["name"]: tool["function"]["parameters"] for tool in TOOLS}
NAMES = tuple(_PARAMETERS)


class RequestedCall(NamedTuple):
    """A call as the model wrote it, not checked yet."""

    name: str
    arguments: Any
    """A mapping or a JSON text, if the model did it right."""
    id: str = ""


def read_calls(message: Any) -> list[RequestedCall]:
    """The calls in an assistant's message (a text, or a mapping with `content` and `tool_calls`). Raises UnreadableCall
    if there is none.
    """
    if isinstance(message, str):
        return read_text(message)
    if not isinstance(message, Mapping):
        raise UnreadableCall(f"a message is a text or a mapping, not {type(message).__name__}")
    if listed := message.get("tool_calls"):
        if not isinstance(listed, list | tuple):
            raise UnreadableCall("tool_calls is not a list")
        return [_openai_call(each) for each in listed]
    content = message.get("content")
    if not isinstance(content, str):
        raise UnreadableCall("the message has no tool call and no text")
    return read_text(content)


def read_text(text: str) -> list[RequestedCall]:
    """The calls in a text.

    >>> read_text("<search>falcon budget</search>")
    [RequestedCall(name='search_emails', arguments={'keywords': ['falcon', 'budget']}, id='')]
    >>> read_text('<tool_call>{"name": "read_email", "arguments": {"message_id": "m7"}}</tool_call>')
    [RequestedCall(name='read_email', arguments={'message_id': 'm7'}, id='')]
    """
    if len(text) > MAX_TEXT:
        raise UnreadableCall(f"the message has more than {MAX_TEXT} characters")
    calls = [_tagged(tag, inside) for tag, inside in _tags(text) if tag != "think"]
    if not calls:
        raise UnreadableCall("the message has no tool call")
    return calls


def write_call(name: str, arguments: Mapping[str, Any], style: Style = "tags") -> str:
    """A call as text that `read_text` can parse."""
    if style == "chat":
        written = json.dumps({"name": name, "arguments": arguments}, ensure_ascii=False)
        return f"<tool_call>\n{written}\n</tool_call>"
    if name == "search_emails":
        return f"<search>{' '.join(arguments['keywords'])}</search>"
    if name == "read_email":
        return f"<read>{arguments['message_id']}</read>"
    sources = " ".join(arguments.get("source_message_ids", ()))
    return f"<answer>{arguments['answer']}{f' | {sources}' if sources else ''}</answer>"


def _tags(text: str) -> Iterator[tuple[str, str]]:
    """The closed tags of a text with their contents, which are not searched for further tags.

    It takes one pass, even if many tags are never closed. A single regular expression would take hours for some texts.
    """
    place, never_closed = 0, set[str]()
    while opening := _OPENING.search(text, place):
        tag, place = opening[1], opening.end()
        if tag in never_closed:
            continue
        end = text.find(f"</{tag}>", place)
        if end < 0:
            never_closed.add(tag)
        else:
            yield tag, text[place:end]
            place = end + len(tag) + 3


def _tagged(tag: str, inside: str) -> RequestedCall:
    match tag:
        case "tool_call":
            try:
                given = json.loads(inside)
            except (ValueError, RecursionError) as error:
                raise UnreadableCall(f"a <tool_call> holds no JSON: {error}") from None
            return _openai_call(given)
        case "search":
            return RequestedCall("search_emails", {"keywords": inside.split()})
        case "read":
            return RequestedCall("read_email", {"message_id": inside.strip()})
        case "answer":
            answer, _, sources = inside.partition("|")
            return RequestedCall(
                "return_final_answer", {"answer": answer.strip(), "source_message_ids": sources.split()}
            )
    return RequestedCall(tag, {})


def _openai_call(given: Any) -> RequestedCall:
    function = given.get("function", given) if isinstance(given, Mapping) else None
    if not isinstance(function, Mapping) or not isinstance(function.get("name"), str):
        raise UnreadableCall("a tool call has no function with a name")
    number = given.get("id")
    return RequestedCall(function["name"], function.get("arguments"), number if isinstance(number, str) else "")


@dataclass(frozen=True, slots=True)
class ToolResult:
    """The result of a call."""

    arguments: dict[str, Any]
    """The parsed arguments, including defaults."""
    content: Any
    """The JSON value that the model sees."""
    message_ids: tuple[str, ...] = ()
    """The messages that were listed, read or cited."""
    failure: str = ""
    """Why the mailbox failed. This is not the model's fault."""


class Toolbox:
    """The tools for one inbox of a mailbox."""

    def __init__(self, mailbox: Mailbox, inbox: str) -> None:
        self._mailbox, self._inbox = mailbox, inbox

    def call(self, name: str, arguments: Any) -> ToolResult:
        """Execute one call; `arguments` is a mapping or a JSON text."""
        if name not in NAMES:
            raise BadToolName(f"there is no tool {str(name)[:60]!r}; there are {', '.join(NAMES)}")
        checked = check_arguments(name, arguments)
        try:
            if name == "search_emails":
                return self._search(checked)
            if name == "read_email":
                return self._read(checked)
            return ToolResult(checked, {"ok": True}, tuple(checked["source_message_ids"]))
        except sqlite3.Error as error:
            why = f"the mailbox cannot answer: {error}"
            return ToolResult(checked, {"error": why}, failure=why)

    def _search(self, given: dict[str, Any]) -> ToolResult:
        hits = self._mailbox.search(
            self._inbox, given["keywords"], sender=given["from_addr"], recipient=given["to_addr"],
            sent_after=given["sent_after"], sent_before=given["sent_before"], limit=given["max_results"],
        )  # fmt: skip
        return ToolResult(given, [hit._asdict() for hit in hits], tuple(hit.message_id for hit in hits))

    def _read(self, given: dict[str, Any]) -> ToolResult:
        email = self._mailbox.read(self._inbox, given["message_id"])
        if email is None:
            return ToolResult(given, {"error": "Email not found"})
        left_out = len(email.body) - MAX_BODY
        body = email.body[:MAX_BODY] + (f"\n[{left_out} more characters]" if left_out > 0 else "")
        shown = {
            "message_id": email.message_id, "date": email.date, "subject": email.subject, "from": email.sender,
            "to": list(email.to), "cc": list(email.cc), "bcc": list(email.bcc), "body": body,
        }  # fmt: skip
        return ToolResult(given, shown, (email.message_id,))


def check_arguments(name: str, arguments: Any) -> dict[str, Any]:
    """A tool's arguments checked by its schema, including defaults. Raises BadArguments with the reason.

    >>> check_arguments("read_email", '{"message_id": "m7"}')
    {'message_id': 'm7'}
    """
    if isinstance(arguments, str):
        if len(arguments) > MAX_TEXT:
            raise BadArguments(f"the arguments have more than {MAX_TEXT} characters")
        try:
            arguments = json.loads(arguments)
        except (ValueError, RecursionError) as error:
            raise BadArguments(f"the arguments are not JSON: {error}") from None
    if not isinstance(arguments, Mapping):
        raise BadArguments(f"the arguments of {name} are {type(arguments).__name__}, not an object")
    properties, required = _PARAMETERS[name]["properties"], _PARAMETERS[name]["required"]
    if unknown := [str(key)[:60] for key in arguments if key not in properties]:
        raise BadArguments(f"{name} takes no {', '.join(unknown[:5])}; it takes {', '.join(properties)}")
    checked = {}
    for key, schema in properties.items():
        value = schema.get("default") if arguments.get(key) is None else arguments[key]
        if value is None and key in required:
            raise BadArguments(f"{name} needs {key}")
        checked[key] = value if value is None else _checked(key, value, schema)
    return checked


def _checked(key: str, value: Any, schema: Mapping[str, Any]) -> Any:
    if schema["type"] == "integer":
        least, most = schema["minimum"], schema["maximum"]
        if type(value) is not int or not least <= value <= most:
            raise BadArguments(f"{key} must be a whole number from {least} to {most}")
        return value
    if schema["type"] == "array":
        if isinstance(value, str) or not isinstance(value, Sequence):
            raise BadArguments(f"{key} is {type(value).__name__}, not a list of texts")
        least, most = schema.get("minItems", 0), LIMITS[key]
        if not least <= len(value) <= most:
            raise BadArguments(f"{key} has {len(value)} entries, not {least} to {most}")
        return [_text(key, each, MAX_WORD) for each in value]
    if not key.startswith("sent_"):
        return _text(key, value, LIMITS.get(key, MAX_WORD))
    try:
        return date.fromisoformat(_text(key, value, MAX_WORD).strip()).isoformat()
    except ValueError:
        raise BadArguments(f"{key} is not a day of the form YYYY-MM-DD") from None


def _text(key: str, value: Any, limit: int) -> str:
    if not isinstance(value, str):
        raise BadArguments(f"{key} is {type(value).__name__}, not a text")
    if len(value) > limit:
        raise BadArguments(f"{key} has more than {limit} characters")
    return value
