"""TensorBoard event files: scalars of all tags, merged by step, and PyTorch's histograms. Numbers are float32, as
TensorBoard keeps them.

A run is a folder with event files. Those of its folders are parts of it: `train` and `validation`, or the folder that
`add_scalars` makes for each of its lines. A folder of runs of which each goes on where the one before ended is one run
too: a trainer that is resumed begins another folder.
"""

from __future__ import annotations

import itertools
import os
import re
import struct
from collections.abc import Iterator
from functools import lru_cache
from pathlib import Path
from typing import NamedTuple

from rlvitals.errors import NotALog
from rlvitals.importers.base import Fields, Importer, Notes, changed_at, open_foreign
from rlvitals.importers.points import Point, rows_of_points
from rlvitals.importers.wire import Message, double_of, doubles_at, inner, message, raw_of, text_at, whole_at
from rlvitals.records import MAX_STEP
from rlvitals.store.distributions import Logged, sketch_of_histogram
from rlvitals.store.lines import metric_key

PARTS = frozenset({"train", "training", "eval", "evaluation", "val", "valid", "validation", "test"})
"""Folders that hold a part of a run rather than a run."""

EVENTS = "*tfevents*"
MAX_EVENT = 2**30
MOST_RESUMED = 20
"""Folders that one run may have, each of a time that it was resumed."""

MOST_HISTOGRAMS = 20_000
"""Histograms of one log that are kept: those of every layer's gradients at every step would fill the memory."""

_LENGTH, _CHECKSUM = struct.Struct("<Q"), 4
_CONTENT = {1: "<f", 2: "<d", 3: "<i", 9: "<q", 10: "<?", 19: "<e"}
"""TensorFlow's numbers for types of tensors, as `struct` calls them."""


class TensorBoardImporter(Importer):
    """An event file, or the folder of a run."""

    name = "tensorboard"
    description = "TensorBoard event files"
    marks = (EVENTS,)
    last_row_grows = True  # each tag of a step is an event of its own

    @classmethod
    def recognises(cls, head: bytes, path: Path) -> bool:
        return b"brain.Event:" in head[:64]

    @classmethod
    def log_in(cls, folder: Path) -> Path | None:
        return folder if cls.is_one_log(folder) else None

    @classmethod
    def is_one_log(cls, folder: Path) -> bool:
        if super().is_one_log(folder):
            return True
        writers = {file.parent for file in folder.glob(f"*/{EVENTS}")}
        if writers and {writer.name.lower() for writer in writers} <= PARTS:
            return True
        return len(_resumed(folder)) > 1

    @classmethod
    def begun(cls, log: Path) -> float:
        files = [log] if os.path.isfile(log) else [*log.glob(EVENTS), *log.glob(f"*/{EVENTS}")]
        return max((_written(file)[0] for file in files), default=0) or changed_at(log)

    def rows(self, path: Path) -> list[Fields]:
        found = rows_of_points(
            (
                (point for file in files for point in _points(file, folder, self.notes, self.distributions))
                for folder, files in _writers(path)
            ),
            self.notes,
        )
        if not found:
            raise NotALog(path, "its event files hold no scalars")
        if len(self.distributions) >= MOST_HISTOGRAMS:
            self.notes.say(f"only the first {MOST_HISTOGRAMS:,} histograms were read")
        return found


def _writers(path: Path) -> list[tuple[str, list[Path]]]:
    """The event files of each folder, in the order they were begun, with the folder's name where there are several."""
    if os.path.isfile(path):
        return [("", [path])]
    resumed = _resumed(path)
    if resumed:
        return [("", [file for folder in resumed for file in sorted(folder.glob(EVENTS), key=_written)])]
    folders: dict[Path, list[Path]] = {}
    for file in path.rglob(EVENTS):
        if os.path.isfile(file):
            folders.setdefault(file.parent, []).append(file)
    return [
        (
            "" if folder == path or len(folders) == 1 else folder.relative_to(path).as_posix(),
            sorted(files, key=_written),
        )
        for folder, files in sorted(folders.items())
    ]


def _resumed(path: Path) -> list[Path]:
    """The folders of a run that was resumed, in order; nothing where those of a folder are runs of their own."""
    if any(path.glob(EVENTS)):
        return []
    folders = sorted({file.parent for file in path.glob(f"*/{EVENTS}")}, key=TensorBoardImporter.begun)
    if not 1 < len(folders) <= MOST_RESUMED:
        return []
    spans = [_span(max(folder.glob(EVENTS), key=_written)) for folder in folders]
    goes_on = all(
        before is not None and after is not None and after.goes_on_from(before)
        for before, after in itertools.pairwise(spans)
    )
    return folders if goes_on else []


class _Span(NamedTuple):
    """The steps of an event file."""

    first: int
    second: int
    last: int

    def goes_on_from(self, other: _Span) -> bool:
        """Whether a training that wrote the other was resumed: what begins anew has its first step after one stride."""
        stride = self.second - self.first
        return stride > 0 and other.first < self.first - stride and self.first <= other.last + stride


def _span(file: Path) -> _Span | None:
    """As the file is now; files are read whole for this once."""
    try:
        return _span_of(file, os.stat(file).st_size)
    except (OSError, NotALog):
        return None


@lru_cache(maxsize=256)
def _span_of(file: Path, size: int) -> _Span | None:
    steps = sorted({point.step for point in _points(file, "", Notes())})
    return _Span(steps[0], steps[1], steps[-1]) if len(steps) > 1 else None


def _named(tag: str, folder: str) -> str:
    """The name of a tag in one of several folders. PyTorch's `add_scalars("loss", {"eval": 1})` writes `loss` in the
    folder `loss_eval`.

    >>> _named("loss", "loss_eval"), _named("loss", "train"), _named("loss", "")
    ('loss/eval', 'train/loss', 'loss')
    """
    line = f"{tag.replace('/', '_')}_"
    if folder.startswith(line):
        return f"{tag}/{folder.removeprefix(line)}"
    return f"{folder}/{tag}" if folder else tag


def _points(file: Path, folder: str, notes: Notes, distributions: list[Logged] | None = None) -> Iterator[Point]:
    """Every scalar; histograms are added to the distributions, where these are wanted."""
    for data in _records(file, notes):
        try:
            event = message(data)
            time, step = double_of(event[1][-1]) if 1 in event else 0.0, whole_at(event, 2)
            values = [value for summary in inner(event, 5) for value in inner(summary, 1)]
            scalars = [(text_at(value, 1), number) for value in values if (number := _number(value)) is not None]
            if distributions is not None and len(distributions) < MOST_HISTOGRAMS:
                distributions += _histograms(values, step, folder)
        except (ValueError, struct.error):
            notes.count("1 event is damaged and was skipped", "{} events are damaged and were skipped")
            continue
        for tag, number in scalars:
            yield Point(step, time, _named(tag, folder), number)


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


def _number(value: Message) -> float | None:
    if 2 in value:
        return double_of(value[2][-1])
    plugins = [text_at(plugin, 1) for metadata in inner(value, 9) for plugin in inner(metadata, 1)]
    if 8 not in value or any(plugin not in ("", "scalars") for plugin in plugins):
        return None
    return _scalar(inner(value, 8)[-1])


def _histograms(values: list[Message], step: int, folder: str) -> Iterator[Logged]:
    """What PyTorch's `add_histogram` writes: the upper bounds of buckets and how many values each holds."""
    for value in values:
        for told in inner(value, 5):
            least, most, total, added = ((doubles_at(told, field) or [0.0])[-1] for field in (1, 2, 3, 4))
            limits, counts = doubles_at(told, 6), doubles_at(told, 7)
            if not total or len(limits) != len(counts) or abs(step) > MAX_STEP:
                continue
            buckets = zip([least, *limits], limits, counts, strict=False)
            sketch = sketch_of_histogram(least, most, added / total, buckets)
            yield Logged(step, 1, metric_key(_named(text_at(value, 1), folder)), sketch)


def _scalar(tensor: Message) -> float | None:
    """The number that a tensor without dimensions holds."""
    if any(2 in shape for shape in inner(tensor, 2)):
        return None
    kind = whole_at(tensor, 1)
    if 4 in tensor and kind in _CONTENT:
        return float(struct.unpack(_CONTENT[kind], raw_of(tensor[4][-1]))[0])
    for field in (5, 6):  # float_val, double_val
        if field in tensor:
            return double_of(tensor[field][0])
    for field in (7, 10, 11):  # int_val, int64_val, bool_val: one alone, or packed as bytes
        if field in tensor:
            packed = tensor[field][0]
            numbers: Message = message(b"\x08" + packed) if isinstance(packed, bytes) else {1: [packed]}
            return float(whole_at(numbers, 1))
    return None


def _written(file: Path) -> tuple[int, str]:
    """When an event file was begun: its name says it."""
    match = re.search(r"tfevents\.(\d+)", file.name)
    return (int(match[1]) if match else 0, file.name)
