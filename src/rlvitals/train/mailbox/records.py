"""An e-mail and a question about e-mails."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any

from rlvitals.errors import ConfigError


@dataclass(frozen=True, slots=True)
class Email:
    """One message. Addresses are in small letters."""

    message_id: str
    subject: str
    sender: str
    date: str
    """`YYYY-MM-DD HH:MM:SS` in UTC; empty where it is not known."""
    body: str
    to: tuple[str, ...] = ()
    cc: tuple[str, ...] = ()
    bcc: tuple[str, ...] = ()
    delivered: tuple[str, ...] = ()
    """Inboxes it lies in although they are not among its recipients: mailing lists, forwarding."""


@dataclass(frozen=True, slots=True)
class Question:
    """Something the owner of an inbox wants to know."""

    id: str
    """Stable: evaluations of one question are compared by it, and it is a text in every file."""
    question: str
    answer: str
    message_ids: tuple[str, ...]
    """All messages the answer rests on, in the order of the look-ups."""
    inbox: str
    query_date: str = ""
    """The day it is asked on, `YYYY-MM-DD`."""
    family: str = ""
    searches: tuple[tuple[str, ...], ...] = ()
    """Keywords that find each of the messages; for those who show a model how it is done."""

    def to_dict(self) -> dict[str, Any]:
        """As a line of a JSONL file."""
        return asdict(self)

    @staticmethod
    def from_dict(given: Mapping[str, Any]) -> Question:
        """From a line of a JSONL file: ours, or one with ART-E's names (`inbox_address`, a numeric `id`).

        >>> line = {"id": 7, "question": "When?", "answer": "Now", "message_ids": ["<a@b>"], "inbox_address": "X@y.z"}
        >>> Question.from_dict(line).id, Question.from_dict(line).inbox
        ('7', 'x@y.z')
        """
        try:
            return Question(
                id=str(given["id"]),
                question=_text(given, "question"),
                answer=_text(given, "answer"),
                message_ids=tuple(str(each) for each in given["message_ids"]),
                inbox=str(given["inbox"] if "inbox" in given else given["inbox_address"]).strip().lower(),
                query_date=str(given.get("query_date") or ""),
                family=str(given.get("family") or ""),
                searches=tuple(tuple(map(str, words)) for words in given.get("searches") or ()),
            )
        except KeyError as error:
            raise ConfigError(f"a question needs the field {error.args[0]!r}") from None
        except TypeError as error:
            raise ConfigError(f"a question has a field of the wrong kind: {error}") from None


def _text(given: Mapping[str, Any], name: str) -> str:
    if not isinstance(given[name], str):
        raise ConfigError(f"a question's {name} must be a text, not {type(given[name]).__name__}")
    return str(given[name])
