"""What an importer is: a class that recognises one format of log by its first bytes, and reads it.

`Importer` reads a log as a whole; `LineImporter` takes it line by line, so that a log can be followed while it grows.
`registry` lists them. Opening and decoding the files of others is here too.
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

from rlvitals.errors import NotALog, RlvitalsError
from rlvitals.store.distributions import Logged
from rlvitals.store.files import open_regular, read_whole
from rlvitals.store.images import Image
from rlvitals.yaml_reader import parse_yaml

Fields = dict[str, Any]
"""One row: "step", perhaps "timestamp", and numbers by the names they were logged with."""

HEAD_BYTES = 1 << 16
"""As much of a file as importers recognise it by."""

_BEGUN = re.compile(r"run-(\d{8}_\d{6})-")


@dataclass(frozen=True, slots=True)
class ForeignLog:
    """A log that another tool wrote, as rows in the order of the file."""

    path: Path
    format: str
    rows: list[Fields]
    config: dict[str, Any] = field(default_factory=dict)
    """What the file itself says of the training's settings."""
    notes: list[str] = field(default_factory=list)
    """What was skipped or repaired, a sentence each."""
    algorithm: str | None = None
    framework: str | None = None
    """Where the file itself says them."""
    distributions: list[Logged] = field(default_factory=list)
    images: list[Image] = field(default_factory=list)

    @property
    def changed(self) -> float:
        """When it was last written to; now, where it is not on this machine."""
        return changed_at(self.path) or time.time()


class Importer(ABC):
    """One format. An instance reads one log, once."""

    name: ClassVar[str]
    description: ClassVar[str] = ""
    """For messages that say what can be read."""
    marks: ClassVar[tuple[str, ...]] = ()
    """Patterns of files that make the folder they are in one log, whatever else is there."""
    names: ClassVar[tuple[str, ...]] = ()
    """Patterns of files that may be a folder's log, beside the endings that `folders` knows."""
    beside: ClassVar[tuple[str, ...]] = ()
    """Other files it may read, from the log's folder."""
    takes_choice: ClassVar[bool] = False
    """Whether one file of it may hold several runs, so that `FILE#RUN` names one of them."""
    last_row_grows: ClassVar[bool] = False
    """Whether the newest row may still get more values while the log grows."""

    def __init__(self) -> None:
        self.format = self.name
        """What to call it; more exact than the name where reading tells more."""
        self.config: dict[str, Any] = {}
        self.algorithm: str | None = None
        self.framework: str | None = None
        self.notes = Notes()
        self.distributions: list[Logged] = []
        self.images: list[Image] = []
        self.choice = ""
        """Which run to read, where a file holds several. If empty, the importer picks one and names it in the notes."""

    @classmethod
    @abstractmethod
    def recognises(cls, head: bytes, path: Path) -> bool:
        """Whether a file that begins with these bytes is of this format. `text_in(head)` decodes them."""

    @classmethod
    def log_in(cls, folder: Path) -> Path | None:
        """The log of this format that a folder is: of several marked files the one with the highest number."""
        for pattern in cls.marks:
            if found := sorted(folder.glob(pattern), key=number_of_checkpoint):
                return found[-1]
        return None

    @classmethod
    def is_one_log(cls, folder: Path) -> bool:
        """Whether a folder is one log of this format rather than a folder of logs."""
        return any(any(folder.glob(mark)) for mark in cls.marks)

    @classmethod
    def begun(cls, log: Path) -> float:
        """When the run of a log began, as far as it is known without reading it: the newest run of a folder is read."""
        return changed_at(log)

    @classmethod
    def width(cls, log: Path) -> int:
        """How many metrics a log has, where that is known without reading it: of a folder's runs those with fewer
        than half as many as another come last.
        """
        return 1

    @abstractmethod
    def rows(self, path: Path) -> list[Fields]:
        """All rows of a log. Raises NotALog where it has none."""


class LineImporter(Importer):
    """A format that is read line by line."""

    @abstractmethod
    def feed(self, line: str) -> list[Fields]:
        """The rows that one more line completes. It ends with a newline, unless it is the file's last and torn."""

    def finish(self) -> list[Fields]:
        """The rows that were waiting for a line that does not come."""
        return []

    def settled(self, rows: list[Fields]) -> list[Fields]:
        """What all rows so far are when they are judged together. What changes is a new row in a new list."""
        return rows

    def rows(self, path: Path) -> list[Fields]:
        rows = [row for line in lines_of(path) for row in self.feed(line)]
        rows += self.finish()
        rows = self.settled(rows)
        if not rows:
            raise NotALog(path, f"{self.seen()}no line holds a training step's numbers")
        return rows

    def seen(self) -> str:
        """What there was instead of rows, for the error: a clause that ends with a colon, or nothing."""
        return ""


class Notes:
    """Remarks on what was skipped or repaired: each kind once, with a count."""

    def __init__(self) -> None:
        self._counts: Counter[tuple[str, str]] = Counter()
        self._said: dict[str, None] = {}

    def count(self, one: str, many: str, by: int = 1) -> None:
        """Count more of a kind; `many` holds a {} for the number."""
        self._counts[one, many] += by

    def recount(self, one: str, many: str, number: int) -> None:
        """Say how many of a kind there are by now."""
        self._counts[one, many] = number

    def say(self, remark: str) -> None:
        self._said[remark] = None

    def take_back(self, remark: str) -> None:
        self._said.pop(remark, None)

    def texts(self) -> list[str]:
        counted = [
            one if number == 1 else many.format(number) for (one, many), number in self._counts.items() if number
        ]
        return [*self._said, *counted]


def named(names: Iterable[str], most: int = 5) -> str:
    """A few of many names, for a remark."""
    ordered = sorted(names)
    return ", ".join(ordered[:most]) + (f" and {len(ordered) - most} more" if len(ordered) > most else "")


def open_foreign(path: Path) -> BinaryIO:
    """A log's bytes. Raises FileNotFoundError, and NotALog for what is there and cannot be read: a FIFO is none."""
    try:
        return open_regular(path)
    except FileNotFoundError:
        raise
    except OSError as error:
        raise NotALog(path, f"it cannot be read ({error.strerror or error})") from error


def head_of(path: Path) -> bytes:
    """What a file is recognised by."""
    with open_foreign(path) as file:
        return file.read(HEAD_BYTES)


def changed_at(path: Path) -> float:
    """When a file or folder was last changed; 0 where nothing is there."""
    try:
        return os.stat(path).st_mtime
    except OSError:
        return 0.0


def begun_by_name(log: Path) -> float:
    """When a run began whose folder is called `run-20260101_120000-ID`; 0 where none of the folders above is."""
    for folder in (log, *log.parents[:2]):
        match = _BEGUN.search(folder.name)
        if match:
            with contextlib.suppress(ValueError):
                return datetime.strptime(match[1], "%Y%m%d_%H%M%S").timestamp()
    return 0.0


def settings_beside(*paths: Path) -> dict[str, Any]:
    """The settings of a run in the first `config.yaml` there is, as W&B and SwanLab write it: each with its value."""
    for path in paths:
        if found := yaml_of(path):
            return {
                name: entry["value"]
                for name, entry in found.items()
                if isinstance(entry, dict) and "value" in entry and not name.startswith("_")
            }
    return {}


def yaml_of(path: Path) -> dict[str, Any]:
    """The mapping that a tracker's small YAML file is; empty where it is not there or something else."""
    with contextlib.suppress(OSError, RlvitalsError):
        found = parse_yaml(read_whole(path).decode("utf-8", "replace"))
        if isinstance(found, dict):
            return {str(name): value for name, value in found.items()}
    return {}


def encoding_in(head: bytes) -> str:
    """UTF-8, or what the mark at the beginning says (a redirect in PowerShell writes UTF-16)."""
    return "utf-16" if head.startswith((codecs.BOM_UTF16_LE, codecs.BOM_UTF16_BE)) else "utf-8-sig"


@lru_cache(maxsize=1)
def text_in(head: bytes) -> str:
    """The text that a file's first bytes are, without leading space; nothing where they are binary."""
    encoding = encoding_in(head)
    return "" if encoding != "utf-16" and b"\x00" in head[:4096] else head.decode(encoding, "replace").lstrip()


def text_of(path: Path) -> str:
    """The whole of a text file, in whatever way it is encoded."""
    with open_foreign(path) as file, _decoded(file) as text:
        return text.read()


def lines_of(path: Path) -> Iterator[str]:
    """A text file's lines, one in memory at a time. A carriage return ends one too: progress bars continue for
    hours.
    """
    with open_foreign(path) as file, _decoded(file) as lines:
        yield from lines


def _decoded(file: BinaryIO) -> io.TextIOWrapper:
    encoding = encoding_in(file.read(4))
    file.seek(0)
    return io.TextIOWrapper(file, encoding, errors="replace", newline=None)


def number_of_checkpoint(file: Path) -> int:
    """The number of the checkpoint a file is in; -1 where its folder has none."""
    match = re.search(r"(\d+)$", file.parent.name)
    return int(match[1]) if match else -1
