"""E-mails and questions about them, and reading a user's own: mbox files, the Enron CSV, questions from JSONL.

Old mail is rarely well-formed. Fields that cannot be parsed are empty, and a message without an id gets a reproducible
one. No content of a message raises an exception.
"""

from __future__ import annotations

import csv
import hashlib
import mailbox
import os
from collections.abc import Iterator
from contextlib import closing
from dataclasses import dataclass
from datetime import UTC
from email import message_from_bytes, message_from_string
from email.header import decode_header, make_header
from email.message import Message
from email.utils import getaddresses, parsedate_to_datetime
from html.parser import HTMLParser
from typing import Any

from rlvitals.errors import ConfigError
from rlvitals.train.jsonl import JsonLine, read_rows

LARGEST_FIELD = 2**30
"""Limit for the characters of a CSV field. That of the standard library, 131,072, is too low for e-mails."""


@dataclass(frozen=True, slots=True)
class Email:
    """One message. Addresses are in lower case."""

    message_id: str
    subject: str
    sender: str
    date: str
    """`YYYY-MM-DD HH:MM:SS` in UTC; empty if unknown."""
    body: str
    to: tuple[str, ...] = ()
    cc: tuple[str, ...] = ()
    bcc: tuple[str, ...] = ()
    delivered: tuple[str, ...] = ()
    """Inboxes that received it through a mailing list or forwarding, without being recipients."""


@dataclass(frozen=True, slots=True)
class Question:
    """A question of the owner of an inbox."""

    id: str
    """Evaluations of one question are compared by it, so it must not change."""
    question: str
    answer: str
    message_ids: tuple[str, ...]
    """All messages the answer is based on, in the order of the look-ups."""
    inbox: str
    query_date: str = ""
    """The day on which it is asked, `YYYY-MM-DD`."""
    family: str = ""
    searches: tuple[tuple[str, ...], ...] = ()
    """Keywords that find each of the messages, for examples of a solution."""


def read_questions(path: str | os.PathLike[str]) -> list[Question]:
    """The questions of a JSONL file, one per line; see `question_of`."""
    return [question_of(row) for row in read_rows(os.fspath(path), ("id", "question", "answer", "message_ids"))]


def question_of(row: JsonLine) -> Question:
    """The question on a line, also with ART-E's names (`inbox_address`, a numeric `id`).

    >>> line = {"id": 7, "question": "When?", "answer": "Now", "message_ids": ["<a@b>"], "inbox_address": "X@y.z"}
    >>> found = question_of(JsonLine("mine.jsonl, line 1", line))
    >>> found.id, found.inbox
    ('7', 'x@y.z')
    """
    given = {"inbox": row.values.get("inbox_address"), **row.values}
    for name, kind, wanted in (("question", str, "a text"), ("answer", str, "a text"), ("message_ids", list, "a list")):
        if not isinstance(given[name], kind):
            found = type(given[name]).__name__
            raise ConfigError(f"{row.where}: a question's {name} must be {wanted}, not {found}")
    if given["inbox"] is None:
        raise ConfigError(f"{row.where}: a question needs the field 'inbox' or 'inbox_address'")
    try:
        return Question(
            id=str(given["id"]),
            question=given["question"],
            answer=given["answer"],
            message_ids=tuple(map(str, given["message_ids"])),
            inbox=str(given["inbox"]).strip().lower(),
            query_date=str(given.get("query_date") or ""),
            family=str(given.get("family") or ""),
            searches=tuple(tuple(map(str, words)) for words in given.get("searches") or ()),
        )
    except TypeError as error:
        raise ConfigError(f"{row.where}: a question has a field of the wrong kind: {error}") from None


def read_mbox(path: str | os.PathLike[str]) -> Iterator[Email]:
    """The messages of an mbox file, in order."""
    if not os.path.isfile(path):
        raise ConfigError(f"there is no mbox file {os.fspath(path)}")
    with closing(mailbox.mbox(path, create=False)) as box:
        for key in box.iterkeys():
            yield parse(box.get_bytes(key))


def read_enron_csv(path: str | os.PathLike[str]) -> Iterator[Email]:
    """The messages of a CSV file with the columns `file` and `message` (raw RFC 822 texts)."""
    limit = csv.field_size_limit(LARGEST_FIELD)
    try:
        with open(path, encoding="utf-8", errors="replace", newline="") as file:
            rows = csv.DictReader(line.replace("\0", " ") for line in file)
            if "message" not in (rows.fieldnames or ()):
                raise ConfigError(f"{os.fspath(path)} has no column 'message'; it has {rows.fieldnames or 'nothing'}")
            for row in rows:
                yield parse(row["message"] or "")
    except OSError as error:
        raise ConfigError(f"cannot read {os.fspath(path)}: {error.strerror or error}") from error
    except csv.Error as error:
        raise ConfigError(f"{os.fspath(path)} is not a CSV file: {error}") from error
    finally:
        csv.field_size_limit(limit)


def parse(raw: str | bytes) -> Email:
    """One message, even if it is malformed."""
    message = message_from_string(raw) if isinstance(raw, str) else message_from_bytes(raw)
    digest = hashlib.sha256(raw.encode("utf-8", "replace") if isinstance(raw, str) else raw).hexdigest()[:24]
    senders = _addresses(message, "from", "sender", "return-path")
    return Email(
        message_id=_header(message, "message-id") or f"<{digest}@no-id>",
        subject=_header(message, "subject"),
        sender=senders[0] if senders else "",
        date=_date(_header(message, "date")),
        body=_body(message, is_decoded=isinstance(raw, str)),
        to=_addresses(message, "to"),
        cc=_addresses(message, "cc"),
        bcc=_addresses(message, "bcc"),
        delivered=_addresses(message, "delivered-to", "x-original-to", "envelope-to"),
    )


def _header(message: Message, name: str) -> str:
    """A header as text, with encoded words decoded."""
    value = message.get(name, "")
    try:
        text = str(make_header(decode_header(str(value))))
    except (ValueError, LookupError):
        text = str(value)
    return " ".join(text.split())


def _addresses(message: Message, *names: str) -> tuple[str, ...]:
    fields = [str(value).replace("\n", " ") for name in names for value in message.get_all(name, [])]
    try:
        found = getaddresses(fields)
    except (ValueError, IndexError):
        return ()
    return tuple(dict.fromkeys(address.strip().lower() for _, address in found if "@" in address))


def _date(text: str) -> str:
    try:
        when = parsedate_to_datetime(text)
        when = when.replace(tzinfo=UTC) if when.tzinfo is None else when.astimezone(UTC)
        return f"{when.year:04d}-{when:%m-%d %H:%M:%S}"
    except (ValueError, TypeError, IndexError, OverflowError):
        return ""


def _body(message: Message, *, is_decoded: bool) -> str:
    """The plain text, or the text of the HTML if there is no plain text."""
    texts: dict[bool, list[str]] = {False: [], True: []}  # plain and HTML
    for part in message.walk():
        if part.get_content_maintype() == "text" and part.get_content_disposition() != "attachment":
            text = part.get_payload()
            if not is_decoded or not isinstance(text, str) or text.isascii():
                text = _decoded(part)
            texts[part.get_content_subtype() == "html"].append(text)
    if any(text.strip() for text in texts[False]):
        return "\n".join(texts[False]).strip()
    return " ".join(_Page("\n".join(texts[True])).pieces).strip()


def _decoded(part: Message) -> str:
    payload: Any = part.get_payload(decode=True)
    if not isinstance(payload, bytes):
        return str(payload or "")
    try:
        return payload.decode(part.get_content_charset("utf-8"), "replace")
    except (LookupError, ValueError):
        return payload.decode("utf-8", "replace")


class _Page(HTMLParser):
    """The text of a page, without its scripts and styles."""

    def __init__(self, page: str) -> None:
        super().__init__()
        self.pieces: list[str] = []
        self._hidden = 0
        self.feed(page)
        self.close()

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self._hidden += tag in ("script", "style")

    def handle_endtag(self, tag: str) -> None:
        self._hidden -= tag in ("script", "style") and self._hidden > 0

    def handle_data(self, data: str) -> None:
        if not self._hidden:
            self.pieces.append(data)
