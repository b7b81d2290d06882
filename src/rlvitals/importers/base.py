"""The interface of an importer: a class that recognises one log format by its first bytes and reads it.

`Importer` reads a log as a whole. `LineImporter` reads it line by line, so that a log can be followed while it grows.
`registry` lists both kinds. This module also opens and decodes files written by other programs.
"""

from __future__ import annotations

import codecs
import contextlib
import io
import os
import re
import time
from abc import ABC, abstractmethod
from collections import Counter
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from datetime import datetime
from functools import lru_cache
from pathlib import Path
from typing import Any, BinaryIO, ClassVar

from rlvitals.errors import NotALog, RlvitalsError, needs
from rlvitals.records import Fields
from rlvitals.store.distributions import Logged
from rlvitals.store.files import changed_at, open_regular, read_whole
from rlvitals.store.images import Image
from rlvitals.yaml_reader import parse_yaml

HEAD_BYTES = 1 << 16
"""How many bytes of a file importers see to recognise its format."""

_STARTED = re.compile(r"run-(\d{8}_\d{6})-")


@dataclass(frozen=True, slots=True)
class ForeignLog:
    """A log written by another tool, as rows in the order of the file."""

    path: Path
    format: str
    rows: list[Fields]
    config: dict[str, Any] = field(default_factory=dict)
    """The training's settings that the file itself states."""
    notes: list[str] = field(default_factory=list)
    """What was skipped or repaired, one sentence each."""
    algorithm: str | None = None
    framework: str | None = None
    """Set if the file itself states them."""
    distributions: list[Logged] = field(default_factory=list)
    images: list[Image] = field(default_factory=list)

    @property
    def changed(self) -> float:
        """The time of the last write to one of its files; the current time for a log that is not on this machine."""
        return last_write(self.path) or time.time()


class Importer(ABC):
    """One format. An instance reads one log and is used once."""

    name: ClassVar[str]
    description: ClassVar[str] = ""
    """Used in messages that list the readable formats."""
    marks: ClassVar[tuple[str, ...]] = ()
    """File patterns. A folder with a matching file is one log, whatever other files it contains."""
    names: ClassVar[tuple[str, ...]] = ()
    """Patterns of files that may be a folder's log, in addition to the file endings in `folders`."""
    beside: ClassVar[tuple[str, ...]] = ()
    """Other files that it may read, relative to the log's folder."""
    takes_choice: ClassVar[bool] = False
    """Whether one file of this format may hold several runs. `FILE#RUN` then selects one of them."""
    last_row_grows: ClassVar[bool] = False
    """Whether the newest row may still get more values while the log grows."""

    def __init__(self) -> None:
        self.format = self.name
        """The format's display name; more specific than `name` if reading the file reveals more."""
        self.config: dict[str, Any] = {}
        self.algorithm: str | None = None
        self.framework: str | None = None
        self.notes = Notes()
        self.distributions: list[Logged] = []
        self.images: list[Image] = []
        self.choice = ""
        """Which run to read, if a file holds several. If empty, the importer picks one and names it in the notes."""

    @classmethod
    @abstractmethod
    def recognises(cls, head: bytes, path: Path) -> bool:
        """Whether a file that begins with these bytes is of this format. `text_in(head)` decodes them."""

    @classmethod
    def log_in(cls, folder: Path) -> Path | None:
        """The log of a folder that is one log of this format. If several files match a pattern, it is the one with the
        highest checkpoint number.
        """
        for pattern in cls.marks:
            if found := sorted(folder.glob(pattern), key=number_of_checkpoint):
                return found[-1]
        return None

    @classmethod
    def is_one_log(cls, folder: Path) -> bool:
        """Whether a folder is one log of this format rather than a folder of logs."""
        return any(any(folder.glob(mark)) for mark in cls.marks)

    @classmethod
    def started_at(cls, log: Path) -> float:
        """When the run of a log began, as far as that is known without reading it. If a folder holds several runs, the
        newest is read.
        """
        return changed_at(log)

    @classmethod
    def width(cls, log: Path) -> int:
        """How many metrics a log has, if that is known without reading it. If a folder holds several runs, those with
        less than half the metrics of another come last.
        """
        return 1

    @abstractmethod
    def rows(self, path: Path) -> list[Fields]:
        """All rows of a log. Raises NotALog if it has none."""


class LineImporter(Importer):
    """A format that is read line by line."""

    @abstractmethod
    def feed(self, line: str) -> list[Fields]:
        """The rows that this line completes. It ends with a newline, unless it is the last and incomplete."""

    def finish(self) -> list[Fields]:
        """Rows that were still waiting for another line, returned at the end of the file."""
        return []

    def settled(self, rows: list[Fields]) -> list[Fields]:
        """The final rows, decided from all rows read so far. Changes are made in new rows and a new list."""
        return rows

    def rows(self, path: Path) -> list[Fields]:
        rows = [row for line in lines_of(path) for row in self.feed(line)]
        rows += self.finish()
        rows = self.settled(rows)
        if not rows:
            raise NotALog(path, f"{self.seen()}no line holds a training step's numbers")
        return rows

    def seen(self) -> str:
        """What the file contains instead of rows, for the error: a clause that ends with a colon, or an empty text."""
        return ""


class Notes:
    """Remarks on what was skipped or repaired. Each kind appears once, with a count."""

    def __init__(self) -> None:
        self._counts: Counter[tuple[str, str]] = Counter()
        self._remarks: dict[str, None] = {}

    def count(self, one: str, many: str, by: int = 1) -> None:
        """Add to the count of a kind. `many` contains a {} for the number."""
        self._counts[one, many] += by

    def recount(self, one: str, many: str, number: int) -> None:
        """Set the count of a kind."""
        self._counts[one, many] = number

    def say(self, remark: str) -> None:
        self._remarks[remark] = None

    def take_back(self, remark: str) -> None:
        self._remarks.pop(remark, None)

    def texts(self) -> list[str]:
        counted = [
            one if number == 1 else many.format(number) for (one, many), number in self._counts.items() if number
        ]
        return [*self._remarks, *counted]


MOST_HISTOGRAMS = 20_000
"""The most histograms kept per log. Those of every layer's gradients at every step would fill the memory."""


def add_histograms(kept: list[Logged], found: Iterable[Logged], notes: Notes) -> None:
    """Keep histograms up to the limit, with a note when it is reached."""
    if len(kept) < MOST_HISTOGRAMS:
        kept += found
    if len(kept) >= MOST_HISTOGRAMS:
        notes.say(f"only the first {MOST_HISTOGRAMS:,} histograms were read")


def named(names: Iterable[str], most: int = 5) -> str:
    """A few of many names, for a remark."""
    ordered = sorted(names)
    return ", ".join(ordered[:most]) + (f" and {len(ordered) - most} more" if len(ordered) > most else "")


def open_foreign(path: Path) -> BinaryIO:
    """Open a log for reading bytes. Raises FileNotFoundError, or NotALog if the path exists but is unreadable or a
    FIFO.
    """
    try:
        return open_regular(path)
    except FileNotFoundError:
        raise
    except OSError as error:
        raise NotALog(path, f"it cannot be read ({error.strerror or error})") from error


@contextlib.contextmanager
def open_parquet(path: Path) -> Iterator[Any]:
    """A Parquet table, as pyarrow's `ParquetFile`. Other errors than those of `open_foreign` are pyarrow's."""
    with needs("Reading Parquet files", "parquet"):
        from pyarrow import parquet  # type: ignore[import-untyped,unused-ignore]
    with open_foreign(path) as file:
        yield parquet.ParquetFile(file)


def head_of(path: Path) -> bytes:
    """The first bytes of a file, from which its format is recognised."""
    with open_foreign(path) as file:
        return file.read(HEAD_BYTES)


def last_write(log: Path) -> float:
    """When a log, or a file in its folder, was last written; 0 if there is none."""
    files = log.rglob("*") if os.path.isdir(log) else (log,)
    return max(map(changed_at, files), default=0.0)


def start_in_name(log: Path) -> float:
    """When a run began, from a folder name such as `run-20260101_120000-ID`; 0 if no parent folder has such a name."""
    for folder in (log, *log.parents[:2]):
        match = _STARTED.search(folder.name)
        if match:
            with contextlib.suppress(ValueError):
                return datetime.strptime(match[1], "%Y%m%d_%H%M%S").timestamp()
    return 0.0


def settings_beside(*paths: Path) -> dict[str, Any]:
    """A run's settings from the first existing `config.yaml`, in the form that W&B and SwanLab write."""
    for path in paths:
        if found := yaml_of(path):
            return {
                name: entry["value"]
                for name, entry in found.items()
                if isinstance(entry, dict) and "value" in entry and not name.startswith("_")
            }
    return {}


def yaml_of(path: Path) -> dict[str, Any]:
    """The mapping in a tracker's small YAML file; empty if the file is missing or holds something else."""
    with contextlib.suppress(OSError, RlvitalsError):
        found = parse_yaml(read_whole(path).decode("utf-8", "replace"))
        if isinstance(found, dict):
            return {str(name): value for name, value in found.items()}
    return {}


def encoding_in(head: bytes) -> str:
    """The encoding that the byte order mark indicates (PowerShell redirects write UTF-16), otherwise UTF-8."""
    return "utf-16" if head.startswith((codecs.BOM_UTF16_LE, codecs.BOM_UTF16_BE)) else "utf-8-sig"


@lru_cache(maxsize=1)
def text_in(head: bytes) -> str:
    """A file's first bytes as text, without leading space; empty if they are binary. The first line decides: a log that
    was read while it grew stays a log when zero bytes follow, as a crash of the machine leaves them.
    """
    encoding = encoding_in(head)
    return "" if encoding != "utf-16" and _is_binary(head) else head.decode(encoding, "replace").lstrip()


def _is_binary(head: bytes) -> bool:
    """Whether a file is binary: it has zero bytes, and its first line has one too or is not UTF-8."""
    if b"\x00" not in head[:4096]:
        return False
    first = head.lstrip().replace(b"\r", b"\n").partition(b"\n")[0]
    try:
        return "\x00" in first.decode("utf-8")
    except UnicodeDecodeError:
        return True


def text_of(path: Path) -> str:
    """The whole content of a text file in any supported encoding."""
    with open_foreign(path) as file, _decoded(file) as text:
        return text.read()


def lines_of(path: Path) -> Iterator[str]:
    """A text file's lines, one in memory at a time. A carriage return also ends a line, because a progress bar may run
    for hours without a newline.
    """
    with open_foreign(path) as file, _decoded(file) as lines:
        yield from lines


def _decoded(file: BinaryIO) -> io.TextIOWrapper:
    encoding = encoding_in(file.read(4))
    file.seek(0)
    return io.TextIOWrapper(file, encoding, errors="replace", newline=None)


def number_of_checkpoint(file: Path) -> int:
    """The number of the checkpoint folder that contains a file; -1 if the folder has no number."""
    match = re.search(r"(\d+)$", file.parent.name)
    return int(match[1]) if match else -1
