"""The log as columns: float64 blocks under `index/`, built from the log and updated when the log is read.

The index is optional and safe to delete: rows that are not in it are parsed from the log. It has one file per 8,192
rows, named after the log and a number (see `chunks`). The last file is rewritten as it fills. There is no list of the
files, so none can become inconsistent.
"""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Iterator
from functools import cached_property
from pathlib import Path
from typing import TypeVar

import numpy as np
from numpy.typing import NDArray

from rlvitals.store.archive import log_state
from rlvitals.store.chunks import (
    ATTEMPT,
    BASE,
    MOMENT_PARTS,
    STEP,
    TIMESTAMP,
    Chunk,
    FieldArray,
    Key,
    from_lines,
    from_rows,
    join,
    load,
    store,
)
from rlvitals.store.lines import BadLine, decode
from rlvitals.store.reader import Problems, read_blocks, read_tail

CHUNK_ROWS = 8192
MOST_BYTES = 64 * 2**20
"""Size limit of the cached columns of a log. A single larger column is cached alone."""

_Number = TypeVar("_Number", np.float64, np.int64)

SMALLEST_INDEXED = 256
"""Fewer new rows than this are parsed each time and not written to the index."""


class Columns:
    """One log file as columns. Rows that are not in the index come from the log."""

    def __init__(self, chunks: list[Chunk], torn_bytes: int = 0) -> None:
        self._chunks = chunks
        self._torn_bytes = torn_bytes
        self._cache: dict[Key, FieldArray] = {}
        """The least recently used column comes first."""
        self._cached_bytes = 0
        self._lock = threading.Lock()
        self._rows = sum(chunk.rows for chunk in chunks)

    def __len__(self) -> int:
        return self._rows

    @property
    def held_bytes(self) -> int:
        """The memory that loaded columns take, for callers that keep many runs open."""
        parts = sum(column.nbytes for chunk in self._chunks for column in list(chunk.columns.values()))
        heads: list[NDArray[np.int64]] = [
            self.__dict__[name] for name in ("steps", "attempts") if name in self.__dict__
        ]
        return parts + self._cached_bytes + sum(head.nbytes for head in heads if head.strides != (0,))

    @property
    def problems(self) -> Problems:
        """The lines and values that were skipped."""
        found, lines = Problems(), 0
        for chunk in self._chunks:
            found = found.followed_by(chunk.problems, lines)
            lines += chunk.lines
        found.torn_bytes = self._torn_bytes
        return found

    @cached_property
    def names(self) -> list[str]:
        """The metrics of this log, in order of first appearance."""
        keys = dict.fromkeys(key for chunk in self._chunks for key in chunk.keys)
        return [key for key in keys if isinstance(key, str) and key not in BASE]

    def has(self, name: str) -> bool:
        """Whether a metric is among `names`."""
        return name not in BASE and any(name in chunk.keys for chunk in self._chunks)

    @property
    def mergeable_names(self) -> list[str]:
        """The metrics with mergeable values. Some may have no final number in this log: a single sample has no standard
        deviation.
        """
        return list(dict.fromkeys(key[0] for chunk in self._chunks for key in chunk.keys if isinstance(key, tuple)))

    @property
    def text_names(self) -> list[str]:
        """The metrics that were logged as texts."""
        return list(dict.fromkeys(name for chunk in self._chunks for name in chunk.texts))

    def column(self, key: Key) -> FieldArray:
        """One metric over all rows, in file order; `chunks.is_present` returns which cells were logged."""
        with self._lock:
            held = self._cache.pop(key, None)
            if held is not None:
                self._cache[key] = held
                return held
        found = self._gather(key, np.float64)
        with self._lock:
            self._cached_bytes += found.nbytes if key not in self._cache else 0
            self._cache[key] = found
            while self._cached_bytes > MOST_BYTES and len(self._cache) > 1:
                self._cached_bytes -= self._cache.pop(next(iter(self._cache))).nbytes
        return found

    def _gather(self, key: Key, kind: type[_Number]) -> NDArray[_Number]:
        gathered = np.empty(len(self), dtype=kind)
        end = 0
        for chunk in self._chunks:
            start, end = end, end + chunk.rows
            gathered[start:end] = chunk.column(key)
        return gathered

    @cached_property
    def steps(self) -> NDArray[np.int64]:
        return self._gather(STEP, np.int64)

    @cached_property
    def attempts(self) -> NDArray[np.int64]:
        numbers = self._gather(ATTEMPT, np.int64)
        is_one = len(numbers) > 0 and bool((numbers == numbers[0]).all())
        return np.broadcast_to(numbers[:1].copy(), numbers.shape) if is_one else numbers  # saves memory

    @property
    def timestamps(self) -> FieldArray:
        return self.column(TIMESTAMP)

    def kind(self, name: str) -> str:
        """How the mergeable values of a metric are reduced to one number."""
        return next((chunk.kinds[name] for chunk in self._chunks if name in chunk.kinds), "mean")

    def moments(self, name: str) -> dict[str, FieldArray] | None:
        """Count, mean, M2, min, max and order of a metric's mergeable values; None where it has none."""
        if not any((name, "count") in chunk.keys for chunk in self._chunks):
            return None
        return {part: self.column((name, part)) for part in MOMENT_PARTS}

    def texts(self, name: str) -> dict[int, str]:
        """A text metric: row number -> text."""
        found = {}
        before = 0
        for chunk in self._chunks:
            for row, text in chunk.texts.get(name, {}).items():
                found[before + int(row)] = text
            before += chunk.rows
        return found


def open_columns(log: Path, index_dir: Path, *, write: bool = True) -> Columns:
    """Read a log as columns. Updates its index if there are enough new rows and the directory is writable."""
    state = log_state(log)
    chunks = _trusted(list(_stored(log, index_dir)), state)
    fresh: list[Chunk] = []
    for chunk in _parse_rest(log, chunks[-1] if chunks else None):
        fresh.append(chunk)
        if write and sum(piece.rows for piece in fresh) >= SMALLEST_INDEXED:
            if chunks and chunks[-1].lines < CHUNK_ROWS:
                fresh = [join(chunks.pop(), fresh[0]), *fresh[1:]]
            for piece in fresh:
                chunks.append(_indexed(piece, log, index_dir, len(chunks), state) if write else piece)
                write = write and chunks[-1] is not piece  # after a failed write, stop writing
            fresh = []
    chunks += fresh
    end = chunks[-1].end if chunks else 0
    tail = read_tail(log, end)
    if not tail:
        return Columns(chunks)
    try:
        return Columns([*chunks, from_rows([decode(tail)], end, end + len(tail))])
    except BadLine:
        return Columns(chunks, len(tail))


def indexed_lines(log: Path, index_dir: Path) -> tuple[int, int]:
    """The number of lines of a log that its index covers, and their size in bytes."""
    chunks = _trusted(list(_stored(log, index_dir)), log_state(log))
    return sum(chunk.lines for chunk in chunks), chunks[-1].end if chunks else 0


def _indexed(chunk: Chunk, log: Path, index_dir: Path, number: int, state: tuple[int, int, int]) -> Chunk:
    """Store the chunk in the index and return the stored one, whose columns are read on request. A long log is then
    not held in memory. Returns the chunk itself if it cannot be stored.
    """
    path = _chunk_path(log, index_dir, number)
    # On a full disk, or in a read-only folder, reading continues without an index.
    with contextlib.suppress(OSError, ValueError, KeyError):
        index_dir.mkdir(exist_ok=True)
        store(chunk, path, log, state)
        stored = load(path, log)
        if (stored.start, stored.end, stored.rows) == (chunk.start, chunk.end, chunk.rows):
            return stored
    return chunk


def _parse_rest(log: Path, last: Chunk | None) -> Iterator[Chunk]:
    """The rows that the index does not cover, as chunks. The first one fills up an incomplete last chunk."""
    offset = last.end if last else 0
    room = CHUNK_ROWS - last.lines if last and last.lines < CHUNK_ROWS else CHUNK_ROWS
    pending: list[bytes] = []
    for lines, _ in read_blocks(log, offset):
        pending += lines
        while len(pending) >= room:
            fresh = from_lines(pending[:room], offset)
            yield fresh
            offset = fresh.end
            pending = pending[room:]
            room = CHUNK_ROWS
    if pending:
        yield from_lines(pending, offset)


def _chunk_path(log: Path, index_dir: Path, number: int) -> Path:
    return index_dir / f"{log.stem}-{number:05d}.columns"


def _stored(log: Path, index_dir: Path) -> Iterator[Chunk]:
    """The consecutive chunks on disk, up to the first that is missing or damaged."""
    end = number = 0
    while True:
        try:
            chunk = load(_chunk_path(log, index_dir, number), log)
        except (OSError, ValueError, KeyError, TypeError, IndexError):
            return
        if chunk.start != end or chunk.end <= end:
            return
        yield chunk
        if chunk.lines < CHUNK_ROWS:
            return
        end, number = chunk.end, number + 1


def _trusted(chunks: list[Chunk], state: tuple[int, int, int]) -> list[Chunk]:
    """The stored chunks, or an empty list if the log is not the one they were built from.

    A log only grows. A different inode, a smaller size, or a different modification time at the same size mean that it
    was edited or replaced. `chunks.load` has already checked the bytes before each chunk's end.
    """
    inode, size, changed = state
    for chunk in chunks:
        old_inode, old_size, old_changed = chunk.log_state
        if old_inode != inode or old_size > size or chunk.end > size or (old_size == size and old_changed != changed):
            return []
    return chunks
