"""Follows a log that still grows: each poll gives the rows that have come since the one before."""

from __future__ import annotations

import codecs
import hashlib
import os
import re
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, BinaryIO

from rlvitals.store.importers.base import Fields, ForeignLog, LineReader, NotALog
from rlvitals.store.importers.console import KIND, ConsoleReader
from rlvitals.store.importers.detect import encoding_of, find_log, open_foreign, sniff
from rlvitals.store.importers.reading import read_log, reader_for

READ_BYTES = 4 * 2**20
REMEMBERED_BYTES = 256
"""The end of what was read: when the file says something else there, it is another file."""

LINE_FORMATS = frozenset({"jsonl", "csv", "verl", "console"})

_LINE_END = re.compile("[\r\n]")  # progress bars end with the first: their lines must not wait for hours

_Signature = tuple[tuple[str, int, int, int], ...]


class LogTail:
    """New rows of a log, poll by poll. The log need not be there yet; a torn last line waits for its end."""

    def __init__(self, path: str | Path) -> None:
        self.path = Path(path)
        self._kept = self.path.absolute()
        self.format = ""
        """Empty until there is something to tell it by."""
        self._source: _Lines | _Snapshots | None = None
        self._has_rows = False

    @property
    def config(self) -> dict[str, Any]:
        return self._source.config if self._source else {}

    @property
    def notes(self) -> list[str]:
        return self._source.notes if self._source else []

    def poll(self) -> list[Fields]:
        """The rows since the last poll, in the order of the file."""
        if not self._has_rows:  # a first line alone may look like anything: judge anew until rows have come
            self._open()
        if self._source is None:
            return []
        try:
            rows = self._source.poll()
        except FileNotFoundError:  # between an old file and the one that takes its place
            return []
        self._has_rows = self._has_rows or bool(rows)
        return rows

    def _open(self) -> None:
        try:
            place = find_log(self._kept)
            if not os.path.isdir(place) and not _has_line(place):
                return
            self.format = sniff(place)
        except (NotALog, OSError):
            return
        is_lines = self.format in LINE_FORMATS
        self._source = _Lines(place, self.format) if is_lines else _Snapshots(self._kept, self.format)


def follow_log(
    path: str | Path, *, interval: float = 1.0, is_over: Callable[[], bool] = lambda: False
) -> Iterator[list[Fields]]:
    """What `LogTail.poll` gives every `interval` seconds, empty lists included, until `is_over` says so."""
    tail = LogTail(path)
    while True:
        ends = is_over()  # asked before the poll: what was written until then is still read
        yield tail.poll()
        if ends:
            return
        time.sleep(interval)


class _Lines:
    """A file that lines are added to."""

    def __init__(self, path: Path, kind: str) -> None:
        self._path = path
        self._kind = kind
        self._remarks: list[str] = []
        self._begin()

    @property
    def config(self) -> dict[str, Any]:
        return self._reader.config

    @property
    def notes(self) -> list[str]:
        return [*self._remarks, *self._reader.notes.texts()]

    def _begin(self) -> None:
        self._reader: LineReader = reader_for(self._path, self._kind, is_whole=False)
        self._decoder = codecs.getincrementaldecoder(encoding_of(self._path))("replace")
        self._position = 0
        self._inode = -1
        self._before = b""
        self._digest = hashlib.blake2b()  # of everything read
        self._torn: list[str] = []

    def poll(self) -> list[Fields]:
        rows: list[Fields] = []
        with open_foreign(self._path) as file:
            if self._is_another(file):
                self._remarks.append("the file was replaced or cut while it was followed: read from its beginning")
                self._begin()
            self._inode = _inode(self._path)
            file.seek(self._position)
            while data := file.read(READ_BYTES):
                self._position += len(data)
                self._before = (self._before + data)[-REMEMBERED_BYTES:]
                self._digest.update(data)
                first, *later = _LINE_END.split(self._decoder.decode(data))
                self._torn.append(first)
                if not later:
                    continue
                lines = ["".join(self._torn), *later[:-1]]
                self._torn = later[-1:]
                for line in lines:
                    rows += self._reader.feed(f"{line}\n")
        return self._chosen(rows)

    def _is_another(self, file: BinaryIO) -> bool:
        if self._position == 0:
            return False
        if _inode(self._path) != self._inode:
            return not self._goes_on_in(file)
        file.seek(self._position - len(self._before))
        return file.read(len(self._before)) != self._before

    def _goes_on_in(self, file: BinaryIO) -> bool:
        """Whether another file begins with all that was read: rsync and the like put a longer copy in place."""
        digest, left = hashlib.blake2b(), self._position
        file.seek(0)
        while left and (data := file.read(min(left, READ_BYTES))):
            digest.update(data)
            left -= len(data)
        return not left and digest.digest() == self._digest.digest()

    def _chosen(self, rows: list[Fields]) -> list[Fields]:
        if isinstance(self._reader, ConsoleReader):
            return [row for row in rows if row.pop(KIND) == self._reader.kind]
        return rows


class _Snapshots:
    """A log that is replaced as a whole, or whose rows are put together from several files."""

    def __init__(self, path: Path, kind: str) -> None:
        self._path = path
        self._merges = kind == "tensorboard"
        self._signature: _Signature = ()
        self._given: list[Fields] = []
        self._held: Fields | None = None
        self._log: ForeignLog | None = None

    @property
    def config(self) -> dict[str, Any]:
        return self._log.config if self._log else {}

    @property
    def notes(self) -> list[str]:
        return self._log.notes if self._log else []

    def poll(self) -> list[Fields]:
        signature = _signature(self._path)
        if signature == self._signature:
            return self._give_held()
        try:
            self._log = read_log(self._path)
        except (NotALog, OSError):  # half written
            return []
        self._signature = signature
        return self._new_rows(list(self._log.rows))

    def _new_rows(self, rows: list[Fields]) -> list[Fields]:
        self._held = rows.pop() if self._merges and rows else None  # more tags of its step may come
        found: list[Fields] = []
        for position, row in enumerate(rows):
            before = self._given[position] if position < len(self._given) else None
            if before is None:
                found.append(row)
            elif not _same(before, row):
                found.append(_added(before, row))
        self._given = rows
        return found

    def _give_held(self) -> list[Fields]:
        held, self._held = self._held, None
        if held is None:
            return []
        self._given.append(held)
        return [held]


def _added(before: Fields, row: Fields) -> Fields:
    """What is new in a row that was given already; the whole row where it is another one."""
    if before["step"] != row["step"] or any(name not in row or not _equal(row[name], before[name]) for name in before):
        return row
    return {"step": row["step"], **{name: value for name, value in row.items() if name not in before}}


def _same(one: Fields, other: Fields) -> bool:
    return one.keys() == other.keys() and all(_equal(one[name], other[name]) for name in one)


def _equal(one: Any, other: Any) -> bool:
    return bool(one == other) or repr(one) == repr(other) == "nan"


def _signature(path: Path) -> _Signature:
    found = []
    for file in sorted(path.rglob("*")) if os.path.isdir(path) else [path]:
        about = file.stat()
        found.append((str(file), about.st_size, about.st_mtime_ns, about.st_ino))
    return tuple(found)


def _inode(path: Path) -> int:
    return path.stat().st_ino


def _has_line(path: Path) -> bool:
    with open_foreign(path) as file:
        return b"\n" in file.read(1 << 16) or path.stat().st_size > 1 << 16
