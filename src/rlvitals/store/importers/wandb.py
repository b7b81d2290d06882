"""Weights & Biases: the file of a run (`run-ID.wandb`), or what lies beside it where it cannot be read.

The file is seven bytes of header and a LevelDB log of protobuf records; wandb's own package knows the records.
"""

from __future__ import annotations

import os
import struct
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

from rlvitals.errors import MissingDependency, RlvitalsError
from rlvitals.store.importers.base import Fields, ForeignLog, NotALog
from rlvitals.store.importers.detect import open_foreign, text_of
from rlvitals.store.importers.jsonl import JsonlReader, parse_lenient

HEADER, BLOCK, CHUNK = 7, 32768, struct.Struct("<IHB")
WHOLE, LAST = 1, 4


def read_wandb(path: Path) -> ForeignLog:
    """The history of a W&B run; without the wandb package, what its console printed."""
    try:
        return _read_file(path)
    except (MissingDependency, NotALog) as reason:
        beside = _read_beside(path, reason)
        if beside is None:
            raise
        return beside


def _read_file(path: Path) -> ForeignLog:
    reader = JsonlReader()
    rows: list[Fields] = []
    config: dict[str, Any] = {}
    damaged = 0
    record_type = _record_type()
    for data in _records(path):
        try:
            record = record_type.FromString(data)
        except Exception:  # noqa: BLE001 - protobuf's own, of several kinds
            damaged += 1
            continue
        kind = record.WhichOneof("record_type")
        if kind == "history":
            row = reader.take(_history(record.history))
            rows += [row] if row else []
        elif kind == "run":
            config.update(_items(record.run.config.update))
        elif kind == "config":
            config.update(_items(record.config.update))
    if damaged:
        reader.notes.count("1 record is damaged and was skipped", "{} records are damaged and were skipped", damaged)
    reader.finish()
    if not rows:
        raise NotALog(path, "the W&B run holds no history", ["wandb"])
    config.pop("_wandb", None)
    return ForeignLog(path, "wandb", rows, config, reader.notes.texts())


def _record_type() -> Any:
    try:
        from wandb.proto.wandb_internal_pb2 import Record  # type: ignore[attr-defined,unused-ignore]
    except ImportError as error:
        raise MissingDependency("Reading a W&B run's file", "wandb") from error
    return Record


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


def _read_beside(path: Path, reason: RlvitalsError) -> ForeignLog | None:
    """The console's output or the summary in `files/`, with a note."""
    from rlvitals.store.importers.reading import read_log

    files = path.parent / "files"
    output, summary = files / "output.log", files / "wandb-summary.json"
    why = str(reason).partition(". ")[0]
    if os.path.exists(output):
        try:
            log = read_log(output)
        except NotALog:
            pass
        else:
            return replace(log, notes=[*log.notes, f"read from files/output.log: {why}"])
    if os.path.exists(summary):
        row = JsonlReader().take(parse_lenient(text_of(summary)))
        if row:
            return ForeignLog(path, "wandb", [row], {}, [f"only the last values, from files/wandb-summary.json: {why}"])
    return None
