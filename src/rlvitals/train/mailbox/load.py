"""One's own mail: mbox files, and the CSV the Enron corpus comes as (`file`, `message`: raw RFC 822 texts).

Old mail is seldom well-formed: what cannot be read of a message is left empty, and a message without an id gets one
that is always the same. Nothing here raises because of what a message holds.
"""

from __future__ import annotations

import csv
import hashlib
import json
import mailbox
import os
from collections.abc import Iterator
from datetime import UTC
from email import message_from_bytes, message_from_string
from email.header import decode_header, make_header
from email.message import Message
from email.utils import getaddresses, parsedate_to_datetime
from html.parser import HTMLParser
from typing import Any

from rlvitals.errors import ConfigError
from rlvitals.train.mailbox.records import Email, Question

LARGEST_FIELD = 2**30
"""Characters of one CSV field; the standard library stops at 131,072, and e-mails are longer."""


class _Text(HTMLParser):
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


def read_mbox(path: str | os.PathLike[str]) -> Iterator[Email]:
    """The messages of an mbox file, in its order."""
    if not os.path.isfile(path):
        raise ConfigError(f"there is no mbox file {os.fspath(path)}")
    box = mailbox.mbox(path, create=False)
    try:
        for key in box.iterkeys():
            yield parse(box.get_bytes(key))
    finally:
        box.close()


def read_enron_csv(path: str | os.PathLike[str]) -> Iterator[Email]:
    """The messages of a CSV file with the columns `file` and `message`."""
    try:
        with open(path, encoding="utf-8", errors="replace", newline="") as file:
            limit = csv.field_size_limit(LARGEST_FIELD)
            try:
                rows = csv.DictReader(line.replace("\0", " ") for line in file)
                if "message" not in (rows.fieldnames or ()):
                    raise ConfigError(
                        f"{os.fspath(path)} has no column 'message'; it has {rows.fieldnames or 'nothing'}"
                    )
                for row in rows:
                    yield parse(row["message"] or "")
            finally:
                csv.field_size_limit(limit)
    except OSError as error:
        raise ConfigError(f"cannot read {os.fspath(path)}: {error.strerror or error}") from error
    except csv.Error as error:
        raise ConfigError(f"{os.fspath(path)} is no CSV file: {error}") from error


def read_questions(path: str | os.PathLike[str]) -> list[Question]:
    """Questions from a JSONL file: `id`, `question`, `answer`, `message_ids`, `inbox` (or `inbox_address`),
    `query_date`.
    """
    found = []
    try:
        with open(path, encoding="utf-8") as file:
            for number, line in enumerate(file, start=1):
                if line.strip():
                    found.append(_question(line, f"{os.fspath(path)}, line {number}"))
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigError(f"cannot read {os.fspath(path)}: {error}") from error
    return found


def _question(line: str, where: str) -> Question:
    try:
        given = json.loads(line)
        if not isinstance(given, dict):
            raise ConfigError("a question is a JSON object")
        return Question.from_dict(given)
    except (ValueError, RecursionError) as error:
        raise ConfigError(f"{where}: no JSON ({error})") from None
    except ConfigError as error:
        raise ConfigError(f"{where}: {error}") from None


def parse(raw: str | bytes) -> Email:
    """One message as an e-mail, whatever state it is in."""
    message = message_from_string(raw) if isinstance(raw, str) else message_from_bytes(raw)
    digest = hashlib.sha256(raw.encode("utf-8", "replace") if isinstance(raw, str) else raw).hexdigest()[:24]
    senders = _addresses(message, "from", "sender", "return-path")
    return Email(
        message_id=" ".join(_header(message, "message-id").split()) or f"<{digest}@no-id>",
        subject=_header(message, "subject"),
        sender=senders[0] if senders else "",
        date=_date(_header(message, "date")),
        body=_body(message),
        to=_addresses(message, "to"),
        cc=_addresses(message, "cc"),
        bcc=_addresses(message, "bcc"),
        delivered=_addresses(message, "delivered-to", "x-original-to", "envelope-to"),
    )


def _header(message: Message, name: str) -> str:
    """A header as text, its encoded words read."""
    value = message.get(name)
    if value is None:
        return ""
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


def _body(message: Message) -> str:
    """The plain text; where there is only HTML, its text."""
    texts: dict[str, list[str]] = {"plain": [], "html": []}
    for part in message.walk():
        if part.get_content_maintype() == "text" and part.get_content_disposition() != "attachment":
            texts["html" if part.get_content_subtype() == "html" else "plain"].append(_decoded(part))
    if any(text.strip() for text in texts["plain"]):
        return "\n".join(texts["plain"]).strip()
    return " ".join(_Text("\n".join(texts["html"])).pieces).strip()


def _decoded(part: Message) -> str:
    payload: Any = part.get_payload(decode=True)
    if not isinstance(payload, bytes):
        return str(payload or "")
    try:
        return payload.decode(part.get_content_charset("utf-8"), "replace")
    except (LookupError, ValueError):
        return payload.decode("utf-8", "replace")
