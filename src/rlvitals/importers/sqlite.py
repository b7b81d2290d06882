"""Opens trackers' SQLite files read-only, also while a training writes them."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple
from urllib.parse import quote

from rlvitals.errors import NotALog
from rlvitals.importers.base import Importer, Notes, head_of, named
from rlvitals.records import Fields

if TYPE_CHECKING:
    import sqlite3

MAGIC = b"SQLite format 3\x00"
BUSY_SECONDS = 5.0
MOST_STEPS = 1_000_000
"""The most SQLite instructions of one read, in thousands. A crafted file may define an endless table."""

_WRITE_VERSION, _WAL = 18, 2


class RunInDatabase(NamedTuple):
    """One of the runs that a database holds."""

    id: str
    name: str
    started: float
    """Unix seconds; only used to sort."""
    width: int
    """How many metrics it has, or how long its rows are. Only compared with other runs of the same database."""
    points: int


class DatabaseImporter(Importer):
    """Any other SQLite database. Tried after the trackers' importers; its error lists the tables."""

    name = "sqlite"
    description = "SQLite databases of MLflow and Trackio"

    @classmethod
    def recognises(cls, head: bytes, path: Path) -> bool:
        return head.startswith(MAGIC)

    def rows(self, path: Path) -> list[Fields]:
        with opened(path) as database:
            tables = named(tables_of(database), most=8) or "none"
        raise NotALog(
            path,
            f"it is an SQLite database, but not one of MLflow or Trackio (its tables: {tables}). Export the table of "
            "metrics as CSV: sqlite3 -header -csv FILE 'SELECT * FROM TABLE' > metrics.csv",
        )


def columns_in(head: bytes, path: Path) -> dict[str, frozenset[str]]:
    """The columns of each table of an SQLite database; empty if the file is not one."""
    if not head.startswith(MAGIC):
        return {}
    try:
        with opened(path) as database:
            return tables_of(database)
    except NotALog:
        return {}


@contextlib.contextmanager
def opened(path: Path) -> Iterator[sqlite3.Connection]:
    """A read-only connection. SQLite's errors are raised as NotALog."""
    try:
        import sqlite3
    except ImportError as error:
        raise NotALog(path, "it is an SQLite database, and this Python was built without SQLite") from error
    database: sqlite3.Connection | None = None
    try:
        database = sqlite3.connect(_address(path), uri=True, timeout=BUSY_SECONDS)
        database.text_factory = _text
        left = iter(range(MOST_STEPS))
        database.set_progress_handler(lambda: next(left, None) is None, 1000)
        database.execute("PRAGMA query_only = ON")
        database.execute("PRAGMA trusted_schema = OFF")
        yield database
    except (sqlite3.Error, UnicodeDecodeError) as error:  # the latter if a message quotes a damaged schema
        raise NotALog(path, f"SQLite cannot read it ({error})") from error
    finally:
        if database is not None:
            database.close()


def _text(stored: bytes) -> str:
    return stored.decode("utf-8", "replace")


def _address(path: Path) -> str:
    """A read-only URI. If the database uses a write-ahead log that is not in use, it is opened as immutable, which
    creates no files next to it.
    """
    head = head_of(path)
    is_idle = head[_WRITE_VERSION : _WRITE_VERSION + 1] == bytes([_WAL]) and not os.path.exists(f"{path}-wal")
    return f"file:{quote(str(path.absolute()))}?mode=ro{'&immutable=1' if is_idle else ''}"


def tables_of(database: sqlite3.Connection) -> dict[str, frozenset[str]]:
    """The columns of each table, without views and virtual tables."""
    listed = database.execute("SELECT name, sql FROM sqlite_master WHERE type = 'table'").fetchall()
    names = [
        name
        for name, sql in listed
        if isinstance(name, str) and isinstance(sql, str) and not sql.upper().startswith("CREATE VIRTUAL")
    ]
    return {
        name: frozenset(column for (column,) in database.execute("SELECT name FROM pragma_table_info(?)", (name,)))
        for name in names
    }


def choose(runs: list[RunInDatabase], choice: str, path: Path, notes: Notes) -> RunInDatabase:
    """The run to read: the one that `choice` names, or the newest of those with at least half of the most metrics. A
    note names the others.
    """
    with_points = [run for run in runs if run.points]
    if choice:
        found = [run for run in runs if choice in (run.id, run.name)] or [
            run for run in runs if run.id.startswith(choice) or choice in run.name
        ]
        if not found:
            raise NotALog(path, f"it holds no run {choice!r}; it holds {_listed(runs)}")
        return max(found, key=lambda run: run.started)
    if not with_points:
        raise NotALog(path, f"its {len(runs)} runs hold no metrics" if runs else "it holds no runs")
    most = max(run.width for run in with_points)
    rich = [run for run in with_points if run.width * 2 >= most]
    chosen = max(rich, key=lambda run: run.started)
    others = [run for run in with_points if run is not chosen]
    if others:
        newest = max(others, key=lambda run: run.started)
        notes.say(
            f"it holds {len(with_points)} runs: read {(chosen.name or chosen.id)!r}, the newest run with at least half "
            f"as many metrics as any other. Others: {_listed(others)}. "
            f"To read one, name it: '{path.name}#{newest.name or newest.id}'"
        )
    return chosen


def _listed(runs: list[RunInDatabase], most: int = 6) -> str:
    newest = sorted(runs, key=lambda run: -run.started)
    shown = [f"{run.name} ({run.id[:8]}, {run.points} points)" for run in newest[:most]]
    return ", ".join(shown) + (f" and {len(runs) - most} more" if len(runs) > most else "")
