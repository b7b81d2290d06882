"""The mailbox: e-mails in SQLite with a full-text index (FTS5) over subjects and bodies.

One file may contain the mail of many people. Every search and every read is for one inbox, and finds only messages that
its address sent, received (to, cc or bcc) or had delivered. A model's text is bound as a parameter or quoted as a
phrase, so it never becomes SQL or query syntax.
"""

from __future__ import annotations

import contextlib
import os
import sqlite3
import threading
import weakref
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from rlvitals.errors import ConfigError
from rlvitals.store.files import sync_file
from rlvitals.train.mailbox.mail import Email

SNIPPET_WORDS = 15

_SCHEMA = """
CREATE TABLE emails (
    id INTEGER PRIMARY KEY, message_id TEXT NOT NULL UNIQUE, subject TEXT, sender TEXT, date TEXT, body TEXT
);
CREATE TABLE people (email_id INTEGER NOT NULL REFERENCES emails(id), kind TEXT NOT NULL, address TEXT NOT NULL);
CREATE TABLE facts (name TEXT PRIMARY KEY, value TEXT);
CREATE VIRTUAL TABLE emails_fts USING fts5(subject, body, content='emails', content_rowid='id');
"""
_INDEXES = """
CREATE INDEX IF NOT EXISTS people_by_email ON people (email_id, address, kind);
CREATE INDEX IF NOT EXISTS people_by_address ON people (address, email_id);
"""
_KINDS = ("to", "cc", "bcc", "delivered")
_SEEN_BY = "EXISTS (SELECT 1 FROM people p WHERE p.email_id = e.id AND p.address = ?)"
_IS_RECIPIENT = _SEEN_BY.replace(")", " AND p.kind IN ('to', 'cc', 'bcc'))")


class FoundMessage(NamedTuple):
    """One result of a search."""

    message_id: str
    snippet: str


class Mailbox:
    """E-mails of one or many people, from `Mailbox.build` or `Mailbox.open`. Several threads may use it."""

    def __init__(self, connection: sqlite3.Connection, snippet_words: int) -> None:
        self._connection = connection
        weakref.finalize(self, connection.close)  # a training creates thousands of mini mailboxes and closes few
        self._lock = threading.Lock()
        self.snippet_words = snippet_words
        """Number of words of a body that a search shows; 0: the subject instead."""

    @classmethod
    def build(
        cls, emails: Iterable[Email], path: str | os.PathLike[str] | None = None, *, snippet_words: int = SNIPPET_WORDS
    ) -> Mailbox:
        """A new mailbox with these e-mails, in memory or in a file. The file is written atomically. If an id occurs
        twice, only the first message is kept.
        """
        if path is None:
            mailbox = cls(_connect(":memory:"), snippet_words)
            mailbox._fill(emails)
            return mailbox
        target = Path(path)
        draft = target.with_name(f".{target.name}.{os.getpid()}.tmp")
        try:
            target.parent.mkdir(parents=True, exist_ok=True)
            draft.unlink(missing_ok=True)
            with contextlib.closing(cls(_connect(str(draft)), snippet_words)) as mailbox:
                mailbox._fill(emails)
            sync_file(draft)
            os.replace(draft, target)
        except (OSError, sqlite3.Error) as error:
            raise ConfigError(f"cannot write the mailbox {target}: {error}") from error
        finally:
            draft.unlink(missing_ok=True)
        return cls.open(target)

    @classmethod
    def open(cls, path: str | os.PathLike[str]) -> Mailbox:
        """A mailbox that `build` wrote to a file."""
        if not Path(path).is_file():
            raise ConfigError(f"there is no mailbox {path}")
        try:
            connection = _connect(f"{Path(path).absolute().as_uri()}?mode=ro")
            words = connection.execute("SELECT value FROM facts WHERE name = 'snippet_words'").fetchone()
            connection.execute("SELECT count(*) FROM people, emails_fts WHERE 0")
            return cls(connection, int(words[0]))
        except (sqlite3.Error, TypeError, ValueError) as error:
            raise ConfigError(f"{path} is not a mailbox of rlvitals: {error}") from error

    def search(
        self, inbox: str, keywords: Sequence[str], *, sender: str | None = None, recipient: str | None = None,
        sent_after: str | None = None, sent_before: str | None = None, limit: int = 10,
    ) -> list[FoundMessage]:  # fmt: skip
        """Messages of an inbox that contain every keyword in subject or body, newest first.

        A keyword of several words is a phrase; case and accents are ignored. `sent_after` includes the given day,
        `sent_before` excludes it. `recipient` may be in to, cc or bcc.
        """
        phrases = " AND ".join(f'"{phrase}"' for word in keywords if (phrase := _phrase(word)))
        if not phrases:
            return []
        asked = {
            "emails_fts MATCH ?": phrases,
            _SEEN_BY: _address(inbox),
            "e.sender = ?": None if sender is None else _address(sender),
            _IS_RECIPIENT: None if recipient is None else _address(recipient),
            "e.date >= ?": sent_after,
            "e.date < ? AND e.date <> ''": sent_before,
        }
        given = {condition: value for condition, value in asked.items() if value is not None}
        shown = "snippet(emails_fts, -1, '', '', '...', ?)" if self.snippet_words else "? || e.subject"
        query = (
            f"SELECT e.message_id, {shown} FROM emails_fts JOIN emails e ON e.id = emails_fts.rowid "
            f"WHERE {' AND '.join(given)} ORDER BY e.date DESC, e.id LIMIT ?"
        )
        rows = self._rows(query, [self.snippet_words or "", *given.values(), limit])
        return [FoundMessage(message_id, " ".join(snippet.split())) for message_id, snippet in rows]

    def read(self, inbox: str, message_id: str) -> Email | None:
        """One whole message, or None if this inbox does not have it."""
        query = f"SELECT id, message_id, subject, sender, date, body FROM emails e WHERE message_id = ? AND {_SEEN_BY}"
        found = self._rows(query, [_clean(message_id), _address(inbox)])
        if not found:
            return None
        number, *fields = found[0]
        people = self._rows("SELECT kind, address FROM people WHERE email_id = ? ORDER BY rowid", [number])
        recipients = (tuple(address for kind, address in people if kind == one) for one in ("to", "cc", "bcc"))
        return Email(*fields, *recipients)

    def __len__(self) -> int:
        return int(self._rows("SELECT count(*) FROM emails", [])[0][0])

    def close(self) -> None:
        with self._lock:
            self._connection.close()

    def _rows(self, query: str, values: Sequence[Any]) -> list[Any]:
        with self._lock:
            return self._connection.execute(query, values).fetchall()

    def _fill(self, emails: Iterable[Email]) -> None:
        connection = self._connection
        try:
            connection.executescript(_SCHEMA)
        except sqlite3.OperationalError as error:
            raise ConfigError(f"this Python's SQLite cannot search texts (FTS5 is missing): {error}") from error
        connection.execute("INSERT INTO facts VALUES ('snippet_words', ?)", [self.snippet_words])
        number = 1
        for email in emails:
            texts = email.message_id, email.subject, _address(email.sender), email.date, email.body
            fields = [number, *map(_clean, texts)]
            if connection.execute("INSERT OR IGNORE INTO emails VALUES (?, ?, ?, ?, ?, ?)", fields).rowcount:
                people = [("from", email.sender), *((kind, each) for kind in _KINDS for each in getattr(email, kind))]
                rows = dict.fromkeys((number, kind, _address(each)) for kind, each in people)
                connection.executemany("INSERT INTO people VALUES (?, ?, ?)", rows)
                number += 1
        connection.execute("INSERT INTO emails_fts(emails_fts) VALUES ('rebuild')")
        connection.executescript(_INDEXES)
        connection.commit()
        connection.execute("PRAGMA query_only = ON")


def _connect(where: str) -> sqlite3.Connection:
    connection = sqlite3.connect(where, check_same_thread=False, uri=where.startswith("file:"))
    connection.execute("PRAGMA synchronous = OFF")  # an unfinished mailbox is discarded
    connection.execute("PRAGMA journal_mode = OFF")
    return connection


def _address(text: str) -> str:
    return _clean(text).strip().lower()


def _clean(text: str) -> str:
    """A text that SQLite can store: without unpaired surrogates and NUL."""
    return text.encode("utf-8", "replace").decode().replace("\0", " ")


def _phrase(keyword: str) -> str:
    """A keyword as the content of an FTS5 string; empty if it has no letter or digit to search for."""
    text = _clean(keyword)
    return text.replace('"', '""') if any(map(str.isalnum, text)) else ""
