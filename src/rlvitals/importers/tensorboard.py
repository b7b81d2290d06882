"""TensorBoard event files: scalars of all tags, merged by step. Numbers are float32, as TensorBoard keeps them."""

from __future__ import annotations

import os
import re
import struct
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

from rlvitals.errors import MissingDependency, NotALog
from rlvitals.guard import value_or
from rlvitals.importers.base import Fields, Importer, Notes, open_foreign

PARTS = frozenset({"train", "training", "eval", "evaluation", "val", "valid", "validation", "test"})
"""Folders that hold a part of a run rather than a run."""

_TIME = ""
_LENGTH, _CHECKSUM = struct.Struct("<Q"), 4
MAX_EVENT = 2**30


class _Scalar(NamedTuple):
    step: int
    time: float
    tag: str
    value: float


class TensorBoardImporter(Importer):
    """An event file, or a folder of them."""

    name = "tensorboard"
    description = "TensorBoard event files"
    marks = ("*tfevents*",)
    last_row_grows = True  # each tag of a step is an event of its own

    @classmethod
    def recognises(cls, head: bytes, path: Path) -> bool:
        return b"brain.Event:" in head[:64]

    @classmethod
    def log_in(cls, folder: Path) -> Path | None:
        return folder if any(folder.rglob("*tfevents*")) else None

    @classmethod
    def is_one_log(cls, folder: Path) -> bool:
        writers = {file.parent.name for file in folder.glob("*/*tfevents*")}
        return super().is_one_log(folder) or bool(writers and writers <= PARTS)

    def rows(self, path: Path) -> list[Fields]:
        merged: dict[tuple[int, int], Fields] = {}
        for prefix, files in _parts(path):
            for number, segment in enumerate(_segments(files, self.notes)):
                for step, row in segment.items():
                    target = merged.setdefault((number, step), {"step": step})
                    target.setdefault("timestamp", row.pop(_TIME))
                    for tag, value in row.items():
                        name = f"{prefix}{tag}"
                        target[f"metric/{name}" if name in ("step", "timestamp") else name] = value
        if not merged:
            raise NotALog(path, "its event files hold no scalars")
        return [merged[key] for key in sorted(merged)]


def _parts(path: Path) -> list[tuple[str, list[Path]]]:
    """The event files by folder, each with the prefix its tags get."""
    if os.path.isfile(path):
        return [("", [path])]
    folders: dict[Path, list[Path]] = {}
    for file in path.rglob("*tfevents*"):
        if os.path.isfile(file):
            folders.setdefault(file.parent, []).append(file)
    ordered = {folder: sorted(files, key=_written) for folder, files in sorted(folders.items())}
    if len(ordered) == 1:
        return [("", files) for files in ordered.values()]
    if path not in ordered and not {folder.name.lower() for folder in ordered} <= PARTS:
        roots = [folder for folder in ordered if not any(parent in ordered for parent in folder.parents)]
        if len(roots) > 1:
            names = ", ".join(str(folder.relative_to(path)) for folder in roots[:4])
            raise NotALog(path, f"the folder holds {len(roots)} runs, name one of them: {names}")
        path = roots[0]
    return [("" if folder == path else f"{folder.name}/", files) for folder, files in ordered.items()]


def _segments(files: list[Path], notes: Notes) -> Iterator[dict[int, Fields]]:
    """Rows by step, in order; another segment begins where a tag's steps go back, or come again."""
    segment: dict[int, Fields] = {}
    newest: dict[str, int] = {}
    for file in files:
        for scalar in _scalars(file, notes):
            if newest.get(scalar.tag, scalar.step - 1) >= scalar.step:
                yield segment
                segment, newest = {}, {}
            newest[scalar.tag] = scalar.step
            segment.setdefault(scalar.step, {_TIME: scalar.time})[scalar.tag] = scalar.value
    yield segment


def _scalars(file: Path, notes: Notes) -> Iterator[_Scalar]:
    try:
        from tensorboard.compat.proto.event_pb2 import Event  # type: ignore[import-untyped,unused-ignore]
    except ImportError as error:
        raise MissingDependency("Reading TensorBoard event files", "tensorboard") from error
    for data in _records(file, notes):
        event = value_or(None, Event.FromString, data)  # protobuf raises its own, of several kinds
        if event is None:
            notes.count("1 event is damaged and was skipped", "{} events are damaged and were skipped")
            continue
        for value in event.summary.value:
            number = _number(value)
            if number is not None:
                yield _Scalar(event.step, event.wall_time, value.tag, number)


def _records(file: Path, notes: Notes) -> Iterator[bytes]:
    """Length, checksum, data, checksum; a record that is not whole ends the file."""
    with open_foreign(file) as source:
        while head := source.read(_LENGTH.size + _CHECKSUM):
            length = _LENGTH.unpack_from(head)[0] if len(head) == _LENGTH.size + _CHECKSUM else MAX_EVENT + 1
            data = source.read(length + _CHECKSUM) if length <= MAX_EVENT else b""
            if len(data) < length + _CHECKSUM:
                notes.count("1 event file ends in the middle of an event", "{} event files end in the middle of one")
                return
            yield data[:length]


def _number(value: Any) -> float | None:
    kind = value.WhichOneof("value")
    if kind == "simple_value":
        return float(value.simple_value)
    plugin = value.metadata.plugin_data.plugin_name
    if kind != "tensor" or plugin not in ("", "scalars") or value.tensor.tensor_shape.dim:
        return None
    from tensorboard.util.tensor_util import make_ndarray  # type: ignore[import-untyped,unused-ignore]

    try:
        return float(make_ndarray(value.tensor))
    except (TypeError, ValueError):
        return None


def _written(file: Path) -> tuple[int, str]:
    """When an event file was begun: its name says it."""
    match = re.search(r"tfevents\.(\d+)", file.name)
    return (int(match[1]) if match else 0, file.name)
