"""Weights & Biases: the file of a run (`run-ID.wandb`), or what lies beside it where it cannot be read.

The file is seven bytes of header and a LevelDB log of protobuf records; wandb's own package knows the records.
"""

from __future__ import annotations

import contextlib
import os
import struct
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from rlvitals.errors import MissingDependency, NotALog
from rlvitals.guard import value_or
from rlvitals.importers.base import Fields, Importer, open_foreign, text_of
from rlvitals.importers.console import ConsoleImporter
from rlvitals.importers.jsonl import JsonlImporter, object_in, parse_lenient

HEADER, BLOCK, CHUNK = 7, 32768, struct.Struct("<IHB")
WHOLE, LAST = 1, 4


class WandbImporter(Importer):
    """A run that the wandb package wrote on this machine."""

    name = "wandb"
    description = "W&B offline runs"
    marks = ("*.wandb",)
    names = ("*run-*/*.wandb", "wandb/*run-*/*.wandb")
    beside = ("files/output.log", "files/wandb-summary.json")

    @classmethod
    def recognises(cls, head: bytes, path: Path) -> bool:
        return head.startswith(b":W&B")

    def rows(self, path: Path) -> list[Fields]:
        """The history of a W&B run; without the wandb package, what its console printed."""
        try:
            return self._history_of(path)
        except (MissingDependency, NotALog) as reason:
            output, summary = (path.parent / name for name in self.beside)
            rows = self._rows_beside(output, summary, str(reason).partition(". ")[0])
            if not rows:
                raise
            return rows

    def _history_of(self, path: Path) -> list[Fields]:
        reader = JsonlImporter()
        rows: list[Fields] = []
        config: dict[str, Any] = {}
        try:
            from wandb.proto.wandb_internal_pb2 import Record  # type: ignore[attr-defined,unused-ignore]
        except ImportError as error:
            raise MissingDependency("Reading a W&B run's file", "wandb") from error
        for data in _records(path):
            record = value_or(None, Record.FromString, data)  # protobuf raises its own, of several kinds
            kind = record.WhichOneof("record_type") if record is not None else ""
            if record is None:
                reader.notes.count("1 record is damaged and was skipped", "{} records are damaged and were skipped")
            elif kind == "history":
                row = reader.take(_history(record.history))
                rows += [row] if row else []
            elif kind in ("run", "config"):
                config.update(_items(record.run.config.update if kind == "run" else record.config.update))
        reader.finish()
        if not rows:
            raise NotALog(path, "the W&B run holds no history")
        config.pop("_wandb", None)
        self.config, self.notes = config, reader.notes
        return rows

    def _rows_beside(self, output: Path, summary: Path, why: str) -> list[Fields]:
        """Those of the console's output, or of the summary, with a note."""
        console = ConsoleImporter()
        with contextlib.suppress(NotALog, FileNotFoundError):
            rows = console.rows(output)
            console.notes.say(f"read from files/output.log: {why}")
            self.format, self.config, self.notes = console.format, console.config, console.notes
            return rows
        last = object_in(text_of(summary)) if os.path.exists(summary) else None
        row = JsonlImporter().take(last) if last else None
        if row:
            self.notes.say(f"only the last values, from files/wandb-summary.json: {why}")
        return [row] if row else []


def _records(path: Path) -> Iterator[bytes]:
    """Every whole record; one that the file's end cuts is not there yet."""
    begun = b""
    with open_foreign(path) as file:
        position = len(file.read(HEADER))
        while True:
            left = BLOCK - position % BLOCK
            if left < CHUNK.size:
                file.read(left)  # too small for a chunk: padding
                position += left
            head = file.read(CHUNK.size)
            if len(head) < CHUNK.size:
                return
            _, length, kind = CHUNK.unpack(head)
            data = file.read(length)
            position += CHUNK.size + length
            if len(data) < length or kind == 0:
                return
            begun = data if kind in (WHOLE, 2) else begun + data
            if kind in (WHOLE, LAST):
                yield begun
                begun = b""


def _history(history: Any) -> dict[str, Any]:
    found = _items(history.item)
    media = [name.removesuffix("_type") for name in found if name.endswith("/_type")]  # pictures, histograms
    for name in [name for name in found if name.startswith(tuple(media))]:
        del found[name]
    found.pop("_runtime", None)
    if history.HasField("step"):
        found.setdefault("_step", history.step.num)
    return {name: value for name, value in found.items() if not (isinstance(value, dict) and "_type" in value)}


def _items(items: Any) -> dict[str, Any]:
    found: dict[str, Any] = {}
    for item in items:
        try:
            found[item.key or "/".join(item.nested_key)] = parse_lenient(item.value_json)
        except ValueError:
            continue
    return found
