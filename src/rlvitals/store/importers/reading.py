"""Reads a whole foreign log: finds the format, feeds its reader, says what was repaired."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

from rlvitals.store.importers.base import Fields, ForeignLog, LineReader, NotALog
from rlvitals.store.importers.console import ConsoleReader, choose
from rlvitals.store.importers.detect import find_log, is_notebook_log, lines_of, sniff, text_of
from rlvitals.store.importers.documents import read_document
from rlvitals.store.importers.jsonl import JsonlReader
from rlvitals.store.importers.notebook import NotebookReader
from rlvitals.store.importers.steps import restarts
from rlvitals.store.importers.table import TableReader


def read_log(path: str | Path) -> ForeignLog:
    """The rows of a log file, or of a folder that holds one. Raises NotALog where there are no numbers."""
    place = find_log(Path(path))
    kind = sniff(place)
    log = _read(place, kind)
    notes = [*log.notes, *_restart_notes(log.rows)]
    return replace(log, notes=notes)


def reader_for(path: Path, kind: str, *, is_whole: bool = True) -> LineReader:
    """The reader that takes this file line by line; a whole one is judged by all of its rows."""
    if kind == "jsonl":
        return JsonlReader()
    if kind == "csv":
        return TableReader(is_whole=is_whole)
    return NotebookReader() if is_notebook_log(path) else ConsoleReader()


def _read(path: Path, kind: str) -> ForeignLog:
    if kind in ("trainer_state", "json"):
        return read_document(path, text_of(path))
    if kind == "tensorboard":
        from rlvitals.store.importers.tensorboard import read_events

        return read_events(path)
    if kind == "wandb":
        from rlvitals.store.importers.wandb import read_wandb

        return read_wandb(path)
    reader = reader_for(path, kind)
    rows = [row for line in lines_of(path) for row in reader.feed(line)]
    rows += reader.finish()
    if isinstance(reader, ConsoleReader):
        rows = choose(reader, rows)
        kind = "verl" if reader.kind == "verl" else "console"
    if isinstance(reader, TableReader):
        reader.settle(rows)
    if not rows:
        raise NotALog(path, "no line holds a training step's numbers", [kind])
    return ForeignLog(path, kind, rows, reader.config, reader.notes.texts())


def _restart_notes(rows: list[Fields]) -> list[str]:
    found = restarts(rows)
    if len(found) > 3:
        shown = ", ".join(str(position + 1) for position in found[:5])
        return [
            f"steps start again at rows {shown}{', …' if len(found) > 5 else ''}: {len(found)} restarts inside the file"
        ]
    return [f"steps start again at row {position + 1}: a restart inside the file" for position in found]
