"""Follows a log that still grows: each poll returns the rows added since the previous poll.

The rows returned so far, plus those on an incomplete last line, always equal the rows of the whole file. If later lines
change earlier rows, or the file is replaced, the tail returns the corrected rows.
"""

from __future__ import annotations

import codecs
import hashlib
import io
import os
import re
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any, BinaryIO

from rlvitals.errors import NotALog
from rlvitals.importers.base import HEAD_BYTES, Importer, LineImporter, encoding_in, head_of, open_foreign
from rlvitals.importers.padding import is_nan
from rlvitals.importers.registry import choose_run, failures_named, importer_for, locate, split_choice
from rlvitals.records import Fields

READ_BYTES = 4 * 2**20
REMEMBERED_BYTES = 256
"""How many of the last bytes read are remembered. If the file has other bytes there, it was replaced."""

REPLACED = "the file was replaced or cut while it was followed: read from its beginning"

LONG_LOOK_SECONDS, RARELY = 0.2, 30
"""A folder that takes longer than this to search is not searched at every poll; searching then takes at most 1/30 of
the time.
"""

_URL = re.compile(r"[a-z][a-z0-9+.-]+:/", re.IGNORECASE)
"""Also matches a URL that was converted to a path, which drops a slash."""

_Signature = tuple[tuple[str, int, int, int], ...]


@dataclass(frozen=True, slots=True)
class Growth:
    """The result of one poll."""

    rows: list[Fields]
    before: list[Fields] | None = None
    """Set if the rows returned so far are no longer valid: the rows that replace them, before the new ones."""


class LogTail:
    """Returns the new rows of a log at each poll. The log need not exist yet; an incomplete last line is read once it
    ends.
    """

    def __init__(self, path: str | Path) -> None:
        if _URL.match(str(path)):
            raise NotALog(path, "what a URL names cannot be followed, only read. Follow the file where it is written")
        self._named, self._choice = split_choice(Path(path).absolute())
        self._place = self._named
        self._look_again = 0.0
        self._found: tuple[str, ...] = ()
        """Notes on how the log was chosen among others of its folder."""
        self._importer: Importer | None = None
        self._lines: _Lines | None = None
        self._judged: _Signature = ()
        """The log's signature when its format was last recognised, or when it was last read completely."""
        self._rows: list[Fields] = []
        """The rows as read; `settled` turns them into the rows that are returned."""
        self._given: list[Fields] = []
        self._replaces_all = False
        """Whether the next rows replace all that were returned."""
        self._is_over = False
        self._remarks: list[str] = []

    @property
    def format(self) -> str:
        """The format's name; empty until it is recognised."""
        return self._importer.format if self._importer else ""

    @property
    def config(self) -> dict[str, Any]:
        return self._importer.config if self._importer else {}

    @property
    def notes(self) -> list[str]:
        return [*self._found, *self._remarks, *(self._importer.notes.texts() if self._importer else [])]

    @property
    def changed(self) -> float:
        """The time of the last write that a poll has seen; 0 before the log is recognised."""
        return max((changed for _, _, changed, _ in self._judged), default=0) / 1e9

    def poll(self) -> Growth:
        """The rows since the last poll, in the order of the file."""
        try:
            return self._poll()
        except (NotALog, OSError):  # the file does not exist yet, is half written, or is being replaced
            return Growth([])

    def finish(self) -> Growth:
        """The remaining rows once the writer is done: those of an incomplete last line, and those that waited for
        another line. No poll follows.
        """
        self._is_over = True
        return self.poll()

    def _poll(self) -> Growth:
        self._look()
        if self._lines is not None and self._lines.are_of_another(self._place):
            self._remarks = [REPLACED]
            self._restart()
        kind = self._kind()
        if kind is None:
            return Growth([])
        if self._importer is not None and kind is not type(self._importer):
            self._restart()
        if issubclass(kind, LineImporter):
            return self._grown_by_lines(kind)
        return self._grown_as_a_whole(kind)

    def _look(self) -> None:
        """Find the log to follow again. Folders that take long to search are searched rarely."""
        start = time.monotonic()
        if start < self._look_again and self._importer is not None:
            return
        try:
            found = locate(self._named)
            self._place, self._found = found.place, found.notes
        except NotALog:  # the folder now holds several logs: keep following the same one
            if self._importer is None:
                raise
        finally:
            took = time.monotonic() - start
            self._look_again = start + (took * RARELY if took > LONG_LOOK_SECONDS else 0)

    def _kind(self) -> type[Importer] | None:
        """The importer for the log; None while it is only part of a line, whose format cannot be recognised yet."""
        if self._importer is not None:
            is_known = self._lines is not None and self._lines.position >= HEAD_BYTES
            if is_known or _signature(self._place, self._importer.beside) == self._judged:
                return type(self._importer)
        kind = importer_for(self._place)
        is_half = issubclass(kind, LineImporter) and not self._is_over and b"\n" not in head_of(self._place)
        return None if is_half else kind

    def _restart(self) -> None:
        self._importer, self._lines, self._judged, self._rows = None, None, (), []
        self._replaces_all = True

    def _grown_by_lines(self, kind: type[LineImporter]) -> Growth:
        importer = self._importer if isinstance(self._importer, LineImporter) else kind()
        self._lines = self._lines or _Lines(self._place)
        self._importer, self._judged = importer, _signature(self._place)
        with failures_named(importer, self._place):
            self._rows += [row for line in self._lines.new(is_last=self._is_over) for row in importer.feed(line)]
            if self._is_over:
                self._rows += importer.finish()
            return self._growth(importer.settled(self._rows))

    def _grown_as_a_whole(self, kind: type[Importer]) -> Growth:
        signature = _signature(self._place, kind.beside)
        is_quiet = signature == self._judged
        if not is_quiet:
            importer = kind()
            choose_run(importer, self._choice, self._place)
            with failures_named(importer, self._place):
                self._rows = importer.rows(self._place)
            self._importer, self._judged = importer, signature
        is_whole = is_quiet or self._is_over or not kind.last_row_grows
        return self._growth(self._rows if is_whole else self._rows[:-1])

    def _growth(self, rows: list[Fields]) -> Growth:
        """Compares all rows of now with those returned before."""
        given, self._given = self._given, rows.copy()
        known = 0 if self._replaces_all else min(len(given), len(rows))
        self._replaces_all = False
        earlier = rows[:known]
        is_as_given = known == len(given) and (given == earlier or all(map(_same, given, earlier)))
        return Growth(rows[known:], None if is_as_given else earlier)


class _Lines:
    """Returns each line of a growing file once, and detects whether the file was replaced."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.position = 0
        decoder = codecs.getincrementaldecoder(encoding_in(head_of(path)))("replace")
        self._decoder = io.IncrementalNewlineDecoder(decoder, translate=True)
        self._inode = -1
        self._before = b""
        self._digest = hashlib.blake2b()  # of everything read
        self._torn: list[str] = []

    def new(self, *, is_last: bool) -> list[str]:
        """The lines completed since the last call. With `is_last`, an incomplete last line is included."""
        found: list[str] = []
        with open_foreign(self.path) as file:
            self._inode = os.fstat(file.fileno()).st_ino
            file.seek(self.position)
            while data := file.read(READ_BYTES):
                self.position += len(data)
                self._before = (self._before + data)[-REMEMBERED_BYTES:]
                self._digest.update(data)
                found += self._split(self._decoder.decode(data))
        if is_last:
            found += self._split(self._decoder.decode(b"", final=True))
            found += ["".join(self._torn)] if any(self._torn) else []
        return found

    def _split(self, text: str) -> list[str]:
        first, *later = text.split("\n")
        self._torn.append(first)
        if not later:
            return []
        lines = ["".join(self._torn), *later[:-1]]
        self._torn = later[-1:]
        return [f"{line}\n" for line in lines]

    def are_of_another(self, path: Path) -> bool:
        """Whether this file does not begin with the bytes read so far."""
        if path != self.path:
            return True
        with open_foreign(path) as file:
            if os.fstat(file.fileno()).st_ino != self._inode:
                return not self._goes_on_in(file)
            file.seek(self.position - len(self._before))
            return file.read(len(self._before)) != self._before

    def _goes_on_in(self, file: BinaryIO) -> bool:
        """Whether another file begins with all bytes read so far. Tools such as rsync replace a file by a longer
        copy.
        """
        digest, left = hashlib.blake2b(), self.position
        file.seek(0)
        while left and (data := file.read(min(left, READ_BYTES))):
            digest.update(data)
            left -= len(data)
        return not left and digest.digest() == self._digest.digest()


def _same(one: Fields, other: Fields) -> bool:
    """Whether two rows are equal; nan equals nan."""
    return one.keys() == other.keys() and all(
        value == other[name] or (is_nan(value) and is_nan(other[name])) for name, value in one.items()
    )


def _signature(path: Path, beside: tuple[str, ...] = ()) -> _Signature:
    """The names, sizes, times and inodes of a log's files, to detect changes."""
    if os.path.isdir(path):
        files = sorted(path.rglob("*"))
    else:  # a database has its newest rows in a write-ahead log
        files = [path, path.with_name(f"{path.name}-wal"), *(path.parent / name for name in beside)]
    stats = [(str(file), file.stat()) for file in files if file == path or os.path.exists(file)]
    return tuple((name, stat.st_size, stat.st_mtime_ns, stat.st_ino) for name, stat in stats)
