"""Trackio: the SQLite file of a project, in which each row is JSON."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

from rlvitals.errors import NotALog
from rlvitals.importers.base import Importer
from rlvitals.importers.cells import time_of
from rlvitals.importers.jsonl import JsonlImporter, object_in
from rlvitals.importers.sqlite import RunInDatabase, choose, columns_in, opened, tables_of
from rlvitals.records import Fields

if TYPE_CHECKING:
    import sqlite3


class TrackioImporter(Importer):
    """A project's database."""

    name = "trackio"
    description = "Trackio projects (PROJECT.db)"
    takes_choice = True

    @classmethod
    def recognises(cls, head: bytes, path: Path) -> bool:
        return {"run_name", "step", "metrics"} <= columns_in(head, path).get("metrics", set())

    def rows(self, path: Path) -> list[Fields]:
        reader = JsonlImporter(self.notes)
        rows: list[Fields] = []
        with opened(path) as database:
            tables = tables_of(database)
            key = "run_id" if "run_id" in tables["metrics"] else "run_name"  # older files have only names
            chosen = choose(_runs(database, key), self.choice, path, self.notes)
            found = database.execute(
                f"SELECT step, timestamp, metrics FROM metrics WHERE {key} = ? ORDER BY id", (chosen.id,)
            )
            for step, time, metrics in found:
                logged = object_in(_text(metrics))
                if logged is None:
                    self.notes.count("1 row is damaged and was skipped", "{} rows are damaged and were skipped")
                    continue
                row = reader.take({**logged, "_step": step, "_timestamp": time})
                rows += [row] if row else []
            if {key, "config"} <= tables.get("configs", frozenset()):
                settings = database.execute(f"SELECT config FROM configs WHERE {key} = ?", (chosen.id,)).fetchone()
                self.config = _settings(settings[0]) if settings else {}
        reader.finish()
        if not rows:
            raise NotALog(path, "the Trackio run holds no numbers")
        return rows


def _runs(database: sqlite3.Connection, key: str) -> list[RunInDatabase]:
    listed = database.execute(
        f"SELECT {key}, MAX(run_name), MIN(timestamp), COUNT(*), MAX(LENGTH(metrics)) FROM metrics GROUP BY {key}"
    )
    return [
        RunInDatabase(str(run), str(name or ""), time_of(start) or 0.0, length or 0, count)
        for run, name, start, count, length in listed
    ]


def _settings(stored: object) -> dict[str, Any]:
    """A run's settings, without the entries that Trackio adds."""
    found = object_in(_text(stored)) or {}
    return {name: value for name, value in found.items() if not name.startswith("_")}


def _text(stored: object) -> str:
    return stored.decode("utf-8", "replace") if isinstance(stored, bytes) else str(stored)
