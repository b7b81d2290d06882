"""TensorBoard event files: the scalars of all tags, merged by step; histograms; and PNG images. Numbers are float32, as
TensorBoard stores them. PyTorch writes histograms and images in separate fields, TensorFlow 2 in tensors.

A run is a folder with event files. Event files in its subfolders belong to it: `train` and `validation`, or the folders
that `add_scalars` creates, one per line. A folder of runs is also one run if each run continues where the previous one
ended, because a resumed trainer starts a new folder.
"""

from __future__ import annotations

import itertools
import os
import re
import struct
from collections.abc import Iterator
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import NamedTuple

from rlvitals.errors import NotALog
from rlvitals.importers.base import Importer, Notes, add_histograms, open_foreign
from rlvitals.importers.points import Point, PointTable
from rlvitals.importers.wire import WireMessage, double_of, doubles_at, inner, message, raw_of, text_at, whole_at
from rlvitals.records import MAX_STEP, Fields
from rlvitals.splits import HELD_OUT_WORDS
from rlvitals.store.distributions import Logged, Sketch, sketch_of_buckets, sketch_of_histogram
from rlvitals.store.files import changed_at
from rlvitals.store.images import Image, checked_png
from rlvitals.store.lines import metric_key

PARTS = HELD_OUT_WORDS | {"train", "training"}
"""Folders that hold a part of a run rather than a run."""

EVENTS = "*tfevents*"
MAX_EVENT = 2**30
MOST_RESUMED = 20
"""The most folders of one resumed run."""

MOST_IMAGES, MOST_IMAGE_BYTES = 100, 16 * 2**20
"""The most images kept per log, and their total size."""

_LENGTH, _CHECKSUM = struct.Struct("<Q"), 4
_CONTENT = {1: "<f", 2: "<d", 3: "<i", 9: "<q", 10: "<?", 19: "<e"}
"""The `struct` formats of TensorFlow's tensor types, by number."""


class TensorBoardImporter(Importer):
    """An event file, or the folder of a run."""

    name = "tensorboard"
    description = "TensorBoard event files"
    marks = (EVENTS,)
    last_row_grows = True  # each tag of a step is its own event

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
    def started_at(cls, log: Path) -> float:
        files = [log] if os.path.isfile(log) else [*log.glob(EVENTS), *log.glob(f"*/{EVENTS}")]
        return max((_written(file)[0] for file in files), default=0) or changed_at(log)

    def rows(self, path: Path) -> list[Fields]:
        kept = _Kept(self.distributions, self.images, self.notes)
        table = PointTable(self.notes)
        for folder, files in _writers(path):
            table.add_written(point for file in files for point in _points(file, folder, self.notes, kept))
        found = table.fields()
        if not found:
            raise NotALog(path, "its event files hold no scalars")
        if kept.other_images:
            self.notes.say(f"{kept.other_images} images were not read: they are not PNGs, or too many or too large")
        return found


def _writers(path: Path) -> list[tuple[str, list[Path]]]:
    """The event files of each folder, oldest first, with the folder's name. The name is empty for the run's folder
    itself and for an only folder.
    """
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
    """The folders of a resumed run, in order; empty if the subfolders are separate runs."""
    if any(path.glob(EVENTS)):
        return []
    folders = sorted({file.parent for file in path.glob(f"*/{EVENTS}")}, key=TensorBoardImporter.started_at)
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
        """Whether this file continues the training of the other: it starts more than one stride after the other's first
        step, and at most one stride after its last. A new training starts at the same first step.
        """
        stride = self.second - self.first
        return stride > 0 and other.first < self.first - stride and self.first <= other.last + stride


def _span(file: Path) -> _Span | None:
    """The steps of a file at its current size. Cached, because the whole file is read."""
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


@dataclass(slots=True)
class _Kept:
    """The histograms and images read along with the scalars."""

    distributions: list[Logged]
    images: list[Image]
    notes: Notes
    image_bytes: int = 0
    other_images: int = 0
    """How many images are not kept."""

    def add(self, values: list[WireMessage], step: int, folder: str) -> None:
        """Add the histograms and images of one event. Raises ValueError if they are damaged."""
        if abs(step) > MAX_STEP:
            return
        for value in values:
            name = metric_key(_named(text_at(value, 1), folder))
            add_histograms(self.distributions, (Logged(step, 1, name, one) for one in _histograms(value)), self.notes)
            pictures = _pictures(value)
            for place, picture in enumerate(pictures):
                self._keep(picture, step, name if len(pictures) == 1 else f"{name}/{place}")

    def _keep(self, picture: bytes, step: int, name: str) -> None:
        try:
            if len(self.images) >= MOST_IMAGES or self.image_bytes + len(picture) > MOST_IMAGE_BYTES:
                raise ValueError("no room")
            self.images.append(Image(step, 1, name, checked_png(picture)))
            self.image_bytes += len(picture)
        except ValueError:
            self.other_images += 1


def _points(file: Path, folder: str, notes: Notes, kept: _Kept | None = None) -> Iterator[Point]:
    """Every scalar of a file. Histograms and images are added to `kept`, if given."""
    for data in _records(file, notes):
        try:
            event = message(data)
            time, step = double_of(event[1][-1]) if 1 in event else 0.0, whole_at(event, 2)
            values = [value for summary in inner(event, 5) for value in inner(summary, 1)]
            scalars = [(text_at(value, 1), number) for value in values if (number := _number(value)) is not None]
            if kept is not None:
                kept.add(values, step, folder)
        except (ValueError, struct.error):
            notes.count("1 event is damaged and was skipped", "{} events are damaged and were skipped")
            continue
        for tag, number in scalars:
            yield Point(step, time, _named(tag, folder), number)


def _records(file: Path, notes: Notes) -> Iterator[bytes]:
    """The records of a file: length, checksum, data, checksum. Reading stops at an incomplete record."""
    with open_foreign(file) as source:
        while head := source.read(_LENGTH.size + _CHECKSUM):
            length = _LENGTH.unpack_from(head)[0] if len(head) == _LENGTH.size + _CHECKSUM else MAX_EVENT + 1
            data = source.read(length + _CHECKSUM) if length <= MAX_EVENT else b""
            if len(data) < length + _CHECKSUM:
                notes.count("1 event file ends in the middle of an event", "{} event files end in the middle of one")
                return
            yield data[:length]


def _number(value: WireMessage) -> float | None:
    if 2 in value:
        return double_of(value[2][-1])
    if 8 not in value or _plugin(value) not in ("", "scalars"):
        return None
    return _scalar(inner(value, 8)[-1])


def _plugin(value: WireMessage) -> str:
    """The TensorBoard plugin that a summary is for; empty if it names none."""
    plugins = [text_at(plugin, 1) for metadata in inner(value, 9) for plugin in inner(metadata, 1)]
    return plugins[-1] if plugins else ""


def _histograms(value: WireMessage) -> Iterator[Sketch]:
    """The histograms of a summary: from PyTorch's `add_histogram`, with upper bounds and counts of buckets, or from a
    TensorFlow 2 tensor.
    """
    for histogram in inner(value, 5):
        least, most, total, added = ((doubles_at(histogram, field) or [0.0])[-1] for field in (1, 2, 3, 4))
        limits, counts = doubles_at(histogram, 6), doubles_at(histogram, 7)
        if total and len(limits) == len(counts):
            yield sketch_of_histogram(least, most, added / total, zip([least, *limits], limits, counts, strict=False))
    if 8 in value and 5 not in value and _plugin(value) == "histograms":
        buckets = _buckets(inner(value, 8)[-1])
        if any(count > 0 for _, _, count in buckets):
            yield sketch_of_buckets(buckets)


def _buckets(tensor: WireMessage) -> list[tuple[float, float, float]]:
    """The buckets in a tensor of n x 3 numbers: start, end and count of each."""
    sizes = [whole_at(size, 1) for shape in inner(tensor, 2) for size in inner(shape, 2)]
    numbers = _doubles(tensor)
    if sizes[1:] != [3] or len(numbers) != 3 * sizes[0]:
        return []  # an empty histogram has no rows
    return [(low, high, count) for low, high, count in zip(numbers[::3], numbers[1::3], numbers[2::3], strict=True)]


def _doubles(tensor: WireMessage) -> list[float]:
    """The numbers of a float or double tensor, in any of its encodings."""
    kind = {1: "f", 2: "d"}.get(whole_at(tensor, 1))
    if kind is None:
        return []
    field = 4 if 4 in tensor else 5 if kind == "f" else 6  # tensor_content, float_val, double_val
    raw = b"".join(raw_of(part) for part in tensor.get(field, ()))
    if len(raw) % struct.calcsize(f"<{kind}"):
        raise ValueError("numbers were expected")
    return [float(number) for (number,) in struct.iter_unpack(f"<{kind}", raw)]


def _pictures(value: WireMessage) -> list[bytes]:
    """The encoded images of a summary: PyTorch's image, or those of TensorFlow 2, which follow their width and
    height.
    """
    if 4 in value:
        return [raw_of(encoded) for image in inner(value, 4) for encoded in image.get(4, ())]
    if 8 not in value or _plugin(value) != "images":
        return []
    return [raw_of(text) for tensor in inner(value, 8) for text in tensor.get(8, ())[2:]]


def _scalar(tensor: WireMessage) -> float | None:
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
            numbers: WireMessage = message(b"\x08" + packed) if isinstance(packed, bytes) else {1: [packed]}
            return float(whole_at(numbers, 1))
    return None


def _written(file: Path) -> tuple[int, str]:
    """A sort key: when an event file was started, from its name."""
    match = re.search(r"tfevents\.(\d+)", file.name)
    return (int(match[1]) if match else 0, file.name)
