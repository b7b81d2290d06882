"""The three tools of the e-mail agent: their schemas, the check of their arguments, what they give back.

The inbox is not an argument: a toolbox is made for one, and no call reaches another. A call that cannot be carried out
raises BadToolName or BadArguments; anything else that goes wrong inside is an error in the result.
"""

from __future__ import annotations

import json
import sqlite3
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from datetime import date
from typing import Any

from rlvitals.train.mailbox.store import Mailbox

MAX_RESULTS = 10
MAX_KEYWORDS = 20
MAX_WORD = 500
"""Characters of a keyword, an address or a message id."""
MAX_ANSWER = 10_000
MAX_SOURCES = 100
MAX_JSON = 100_000
MAX_BODY = 20_000
"""Characters of a body that are shown."""


class BadToolName(ValueError):
    """There is no such tool."""


class BadArguments(ValueError):
    """A tool does not take these arguments."""


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
"""In OpenAI's form, as chat templates take them."""

NAMES = tuple(tool["function"]["name"] for tool in TOOLS)


@dataclass(frozen=True, slots=True)
class ToolResult:
    """What came of a call."""

    tool: str
    arguments: dict[str, Any]
    """As they were understood, defaults filled in."""
    content: Any
    """What the model is shown, as JSON holds it."""
    message_ids: tuple[str, ...] = ()
    """The messages a search listed, or the one that was read."""


class Toolbox:
    """The tools for one inbox of a mailbox."""

    def __init__(self, mailbox: Mailbox, inbox: str) -> None:
        self._mailbox = mailbox
        self._inbox = inbox

    def call(self, name: str, arguments: Any) -> ToolResult:
        """Carry out one call; `arguments` is a mapping or a JSON text."""
        if name not in NAMES:
            raise BadToolName(f"there is no tool {str(name)[:60]!r}; there are {', '.join(NAMES)}")
        taken = check_arguments(name, arguments)
        try:
            return self._carry_out(name, taken)
        except sqlite3.Error as error:
            return ToolResult(name, taken, {"error": f"the mailbox cannot answer: {error}"})

    def _carry_out(self, name: str, taken: dict[str, Any]) -> ToolResult:
        if name == "return_final_answer":
            return ToolResult(name, taken, {"ok": True}, tuple(taken["source_message_ids"]))
        if name == "read_email":
            email = self._mailbox.read(self._inbox, taken["message_id"])
            if email is None:
                return ToolResult(name, taken, {"error": "Email not found"})
            shown = {
                "message_id": email.message_id,
                "date": email.date,
                "subject": email.subject,
                "from": email.sender,
                "to": list(email.to),
                "cc": list(email.cc),
                "bcc": list(email.bcc),
                "body": _shortened(email.body),
            }
            return ToolResult(name, taken, shown, (email.message_id,))
        hits = self._mailbox.search(
            self._inbox,
            taken["keywords"],
            sender=taken["from_addr"],
            recipient=taken["to_addr"],
            sent_after=taken["sent_after"],
            sent_before=taken["sent_before"],
            limit=taken["max_results"],
        )
        return ToolResult(name, taken, [hit._asdict() for hit in hits], tuple(hit.message_id for hit in hits))


def _shortened(body: str) -> str:
    left_out = len(body) - MAX_BODY
    return f"{body[:MAX_BODY]}\n[{left_out} more characters]" if left_out > 0 else body


def check_arguments(name: str, arguments: Any) -> dict[str, Any]:
    """A tool's arguments with defaults filled in; raises BadArguments with what is wrong.

    >>> check_arguments("read_email", '{"message_id": "m7"}')
    {'message_id': 'm7'}
    """
    given = _read_json(arguments) if isinstance(arguments, str) else arguments
    if not isinstance(given, Mapping):
        raise BadArguments(f"the arguments of {name} are {type(given).__name__}, not an object")
    checks = _CHECKS[name]
    if unknown := [str(key)[:60] for key in given if key not in checks]:
        raise BadArguments(f"{name} takes no {', '.join(unknown[:5])}; it takes {', '.join(checks)}")
    taken = {}
    for key, (check, default) in checks.items():
        value = given.get(key)
        if value is None:
            if default is ...:
                raise BadArguments(f"{name} needs {key}")
            value = default
        taken[key] = value if value is None else check(key, value)
    return taken


def _read_json(text: str) -> Any:
    if len(text) > MAX_JSON:
        raise BadArguments(f"the arguments have more than {MAX_JSON} characters")
    try:
        return json.loads(text)
    except (ValueError, RecursionError) as error:
        raise BadArguments(f"the arguments are no JSON: {error}") from None


def _text(limit: int) -> Callable[[str, Any], str]:
    def check(key: str, value: Any) -> str:
        if not isinstance(value, str):
            raise BadArguments(f"{key} is {type(value).__name__}, not a text")
        if len(value) > limit:
            raise BadArguments(f"{key} has more than {limit} characters")
        return value

    return check


def _texts(least: int, most: int) -> Callable[[str, Any], list[str]]:
    one = _text(MAX_WORD)

    def check(key: str, value: Any) -> list[str]:
        if isinstance(value, str) or not isinstance(value, Sequence):
            raise BadArguments(f"{key} is {type(value).__name__}, not a list of texts")
        if not least <= len(value) <= most:
            raise BadArguments(f"{key} has {len(value)} entries, not {least} to {most}")
        return [one(key, each) for each in value]

    return check


def _day(key: str, value: Any) -> str:
    try:
        return date.fromisoformat(_text(MAX_WORD)(key, value).strip()).isoformat()
    except ValueError:
        raise BadArguments(f"{key} is no day of the form YYYY-MM-DD") from None


def _count(key: str, value: Any) -> int:
    if isinstance(value, bool) or not isinstance(value, int) or not 1 <= value <= MAX_RESULTS:
        raise BadArguments(f"{key} must be a whole number from 1 to {MAX_RESULTS}")
    return value


_CHECKS: dict[str, dict[str, tuple[Callable[[str, Any], Any], Any]]] = {
    "search_emails": {
        "keywords": (_texts(1, MAX_KEYWORDS), ...),
        "from_addr": (_text(MAX_WORD), None),
        "to_addr": (_text(MAX_WORD), None),
        "sent_after": (_day, None),
        "sent_before": (_day, None),
        "max_results": (_count, MAX_RESULTS),
    },
    "read_email": {"message_id": (_text(MAX_WORD), ...)},
    "return_final_answer": {"answer": (_text(MAX_ANSWER), ...), "source_message_ids": (_texts(0, MAX_SOURCES), [])},
}
