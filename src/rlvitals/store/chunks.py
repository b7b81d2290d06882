"""Consecutive rows as columns, in memory and as one file of the index.

A missing cell is not an ordinary NaN: it holds one bit pattern that no computation produces. A file describes itself
(its columns, its byte range in the log) and has checksums. If a file is damaged, replaced or deleted while its chunk is
in use, the log is parsed again.
"""

from __future__ import annotations

import os
import struct
import zlib
from array import array
from collections.abc import Collection
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from rlvitals.codec import encode, parse_json, parse_shallow
from rlvitals.errors import RunUnreadable
from rlvitals.records import MAX_ATTEMPT, MAX_STEP, MAX_TIME, Count, Row
from rlvitals.store.archive import open_log
from rlvitals.store.fields import record_of
from rlvitals.store.files import open_regular, replace_file
from rlvitals.store.lines import MOMENTS, BadLine, decode
from rlvitals.store.reader import MAX_EXAMPLES, Problems, read_blocks

FieldArray = NDArray[np.float64]
Key = str | tuple[str, str]
"""A column: a metric's name, or a metric's name and one of its moments."""

STEP, TIMESTAMP, ATTEMPT = "step", "timestamp", "attempt"
BASE = (STEP, TIMESTAMP, ATTEMPT)
MOMENT_PARTS = ("count", "mean", "m2", "min", "max", "order")

MISSING_BITS = np.uint64(0x7FF8_0000_0000_0D1E)
MOST_CELLS = 2**27
"""Cells of one chunk (1 GiB of memory). A log in which every row has new names would exhaust the memory."""

_MAGIC = b"RLVINDEX1\n"
_PREFIX = struct.Struct("<10sQI")
"""Magic, size of the header, checksum of the header."""
_GUARD_BYTES = 4096


def missing_cells(count: int) -> FieldArray:
    """A column in which nothing was logged."""
    return np.full(count, MISSING_BITS, dtype=np.uint64).view(np.float64)


def is_present(column: FieldArray) -> NDArray[np.bool_]:
    """Which cells were logged."""
    present: NDArray[np.bool_] = column.view(np.uint64) != MISSING_BITS
    return present


def with_nan(column: NDArray[Any]) -> NDArray[Any]:
    """The column with missing cells as ordinary NaN. They can then not be distinguished from logged NaN."""
    return np.where(is_present(column), column, np.nan) if column.dtype == np.float64 else column


@dataclass(slots=True)
class StoredColumns:
    """Where a chunk's columns are in its file."""

    path: Path
    log: Path
    checksum: int
    """Checksum of the header. It shows whether the file was replaced after it was opened."""
    places: dict[Key, tuple[int, int]]
    """Column -> offset, checksum."""


@dataclass(slots=True)
class Chunk:
    """Some rows in file order. Columns of a stored chunk are read on request."""

    rows: int
    start: int = 0
    end: int = 0
    """Its byte range in the log."""
    lines: int = 0
    """Lines of the log it covers, bad ones included."""
    columns: dict[Key, FieldArray] = field(default_factory=dict)
    texts: dict[str, dict[str, str]] = field(default_factory=dict)
    """Metric -> row number (as text, for JSON) -> text."""
    kinds: dict[str, str] = field(default_factory=dict)
    """How mergeable values finish, where it is not as a mean."""
    problems: Problems = field(default_factory=Problems)
    """What was skipped; line numbers count from the chunk's first line."""
    stored: StoredColumns | None = None
    log_state: tuple[int, int, int] = (0, 0, 0)
    """Inode, size and modification time of the log when the file was made."""

    @property
    def keys(self) -> Collection[Key]:
        """The columns, in order of first appearance. A membership test takes constant time."""
        return (self.columns if self.stored is None else self.stored.places).keys()

    def column(self, key: Key) -> FieldArray:
        """One column; all cells are missing if the chunk lacks it. A stored column is read each time and not cached."""
        stored = self.stored
        if stored is not None and key in stored.places:
            try:
                return self._read(stored, key)
            except (OSError, ValueError, struct.error):
                self._parse_again(stored)
        held = self.columns.get(key)
        return missing_cells(self.rows) if held is None else held

    def _read(self, stored: StoredColumns, key: Key) -> FieldArray:
        offset, checksum = stored.places[key]
        with open_regular(stored.path) as file:
            if _PREFIX.unpack(file.read(_PREFIX.size))[2] != stored.checksum:
                raise ValueError("another reader has written the file again")
            file.seek(offset)
            data = file.read(8 * self.rows)
        if len(data) != 8 * self.rows or zlib.crc32(data) != checksum:
            raise ValueError("damaged")
        return np.frombuffer(data, dtype="<f8")

    def _parse_again(self, stored: StoredColumns) -> None:
        lines: list[bytes] = []
        for block, after in read_blocks(stored.log, self.start, self.end):
            lines += block
            if after >= self.end:
                break
        fresh = from_lines(lines[: self.lines], self.start)
        if (fresh.rows, fresh.end) != (self.rows, self.end):
            raise RunUnreadable(f"{stored.log} was changed while it was being read; open the run again")
        self.columns, self.stored = fresh.columns, None


def from_lines(lines: list[bytes], start: int) -> Chunk:
    """Parse lines to columns. Rows of the same shape are collected together; only unusual rows are read by cell."""
    chunk = Chunk(rows=0, start=start, end=start + sum(map(len, lines)) + len(lines), lines=len(lines))
    blocks: dict[_Shape, _Block] = {}
    odd: list[tuple[int, Row]] = []
    names: dict[Key, None] = dict.fromkeys(BASE)
    for number, line in enumerate(lines, start=1):
        try:
            raw = parse_json(line)
        except ValueError:
            chunk.problems.add(number, "not JSON")
            continue
        moments = raw.pop(MOMENTS, None) if type(raw) is dict else None
        moment_numbers = [] if moments is None else _moments_of_means(moments)
        if moment_numbers is not None and (metrics := _plain_shape(raw)) is not None:
            shape = (metrics, tuple(moments or ()))
            block = blocks.get(shape)
            if block is None:
                block = blocks[shape] = _Block()
                names.update(dict.fromkeys(_keys(shape)))
            block.places.append(chunk.rows)
            block.numbers.extend(raw.values())
            block.numbers.extend(moment_numbers)
        else:
            try:
                row = decode(line)
            except BadLine as reason:
                chunk.problems.add(number, str(reason))
                continue
            odd.append((chunk.rows, row))
            names.update(dict.fromkeys(row.numbers))
        chunk.rows += 1
    if chunk.rows * len(names) > MOST_CELLS:
        raise RunUnreadable(
            f"{len(names):,} different names in {chunk.rows:,} rows: that many columns do not fit into memory. "
            f"Do not put a step or an id into a metric name: log one name, with one value per step"
        )
    chunk.columns = {name: missing_cells(chunk.rows) for name in names}
    for shape, block in blocks.items():
        keys = _keys(shape)
        table = np.frombuffer(block.numbers, dtype=np.float64).reshape(-1, len(keys))
        where = slice(None) if len(table) == chunk.rows else np.array(block.places)
        for position, key in enumerate(keys):
            chunk.columns[key][where] = table[:, position]
    _put_rows(chunk, odd)
    return chunk


def from_rows(rows: list[Row], start: int, end: int) -> Chunk:
    """Rows to columns, cell by cell."""
    chunk = Chunk(rows=len(rows), start=start, end=end, lines=len(rows))
    chunk.columns = {name: missing_cells(len(rows)) for name in BASE}
    _put_rows(chunk, list(enumerate(rows)))
    return chunk


def join(left: Chunk, right: Chunk) -> Chunk:
    """One chunk of two that follow each other in the log."""
    texts = {name: dict(cells) for name, cells in left.texts.items()}
    for name, cells in right.texts.items():
        texts.setdefault(name, {}).update({str(int(row) + left.rows): text for row, text in cells.items()})
    keys = dict.fromkeys([*left.keys, *right.keys])
    return Chunk(
        rows=left.rows + right.rows,
        start=left.start,
        end=right.end,
        lines=left.lines + right.lines,
        columns={key: np.concatenate([left.column(key), right.column(key)]) for key in keys},
        texts=texts,
        kinds=left.kinds | right.kinds,
        problems=left.problems.followed_by(right.problems, left.lines),
    )


_Shape = tuple[tuple[str, ...], tuple[str, ...]]
"""The metrics of a row, and those of them that have moments."""


@dataclass(slots=True)
class _Block:
    """All rows of one shape, consecutive or not. A run that logs more metrics every tenth step has two shapes."""

    places: list[int] = field(default_factory=list)
    numbers: array[float] = field(default_factory=lambda: array("d"))
    """All rows in one buffer, because the garbage collector would traverse lists of floats."""


def _keys(shape: _Shape) -> list[Key]:
    return [*shape[0], *((metric, part) for metric in shape[1] for part in MOMENT_PARTS)]


def _moments_of_means(moments: Any) -> list[float] | None:
    """The moments of a row's mergeable means, concatenated; None if the row must be read by cell."""
    if type(moments) is not dict:
        return None
    numbers: list[float] = []
    for stored in moments.values():
        if type(stored) is not list or len(stored) != 5 or not _NUMBER_TYPES.issuperset(map(type, stored)):
            return None
        if stored[0] < 0:
            return None
        numbers += stored
        numbers.append(0.0)  # the order, which only values of kind `last` have
    return numbers


_NUMBER_TYPES = frozenset({int, float})
_vetted_shapes: dict[tuple[str, ...], bool] = {}


def _plain_shape(raw: Any) -> tuple[str, ...] | None:
    """The names of an ordinary row of numbers; None if the row must be read by cell."""
    if type(raw) is not dict or not _NUMBER_TYPES.issuperset(map(type, raw.values())):
        return None
    shape = tuple(raw)
    is_plain = _vetted_shapes.get(shape)
    if is_plain is None:
        if len(_vetted_shapes) > 10_000:
            _vetted_shapes.clear()
        is_plain = shape[:3] == BASE and not any(name.startswith("_") for name in shape)
        _vetted_shapes[shape] = is_plain
    if not is_plain:
        return None
    step, attempt = raw[STEP], raw[ATTEMPT]
    is_row = type(step) is int and type(attempt) is int and -MAX_STEP <= step <= MAX_STEP and 0 < attempt <= MAX_ATTEMPT
    return shape if is_row and -MAX_TIME <= raw[TIMESTAMP] <= MAX_TIME else None


def _put_rows(chunk: Chunk, rows: list[tuple[int, Row]]) -> None:
    def put(key: Key, at: int, number: float) -> None:
        if key not in chunk.columns:
            chunk.columns[key] = missing_cells(chunk.rows)
        chunk.columns[key][at] = number

    for at, row in rows:
        for name, number in zip(BASE, (row.step, row.timestamp, row.attempt), strict=True):
            put(name, at, number)
        for name, number in row.numbers.items():
            put(name, at, number)
        for name, text in row.texts.items():
            chunk.texts.setdefault(name, {})[str(at)] = text
        for name, value in row.values.items():
            for part in MOMENT_PARTS:
                put((name, part), at, getattr(value, part))
            if value.kind != "mean":
                chunk.kinds[name] = value.kind
        chunk.problems.gap_rows += row.gap


def store(chunk: Chunk, path: Path, log: Path, log_state: tuple[int, int, int]) -> None:
    """Write a chunk as one file, replacing an older one."""
    keys = list(chunk.keys)
    data = [np.ascontiguousarray(chunk.column(key), dtype="<f8").tobytes() for key in keys]
    header = {
        "rows": chunk.rows,
        "start": chunk.start,
        "end": chunk.end,
        "lines": chunk.lines,
        "columns": [[*key] if isinstance(key, tuple) else key for key in keys],
        "checksums": [zlib.crc32(column) for column in data],
        "texts": chunk.texts,
        "kinds": chunk.kinds,
        "bad_lines": chunk.problems.bad_lines,
        "examples": [[*example] for example in chunk.problems.examples],
        "gap_rows": chunk.problems.gap_rows,
        "log": [*log_state],
        "guard": _guard(log, chunk.end),
    }
    text = encode(header)
    text += b" " * (-(_PREFIX.size + len(text)) % 8)
    replace_file(path, [_PREFIX.pack(_MAGIC, len(text), zlib.crc32(text)), text, *data], is_derived=True)


def load(path: Path, log: Path) -> Chunk:
    """Read a chunk's header. Raises OSError or ValueError if the file is not a valid chunk."""
    with open_regular(path) as file:
        total = os.fstat(file.fileno()).st_size
        prefix = file.read(_PREFIX.size)
        if len(prefix) < _PREFIX.size:
            raise ValueError("cut short")
        magic, size, checksum = _PREFIX.unpack(prefix)
        text = file.read(size) if magic == _MAGIC and size <= total else b""
    if zlib.crc32(text) != checksum or not text:
        raise ValueError("not an index file, or damaged")
    wrong: list[str] = []
    header = record_of(_Header, parse_shallow(text), wrong=wrong)
    keys = [key for column in header.columns if (key := _key(column)) is not None]
    is_whole = not wrong and len(keys) == len(header.columns) and [*map(type, header.log)] == [int, int, int]
    if not is_whole or not all(map(_are_texts, header.texts.values())):
        raise ValueError("not an index file, or damaged")
    first = _PREFIX.size + size
    if total != first + 8 * header.rows * len(keys) or len(header.checksums) != len(keys):
        raise ValueError("cut short")
    if header.guard != _guard(log, header.end):
        raise ValueError("made from another log")
    places = {
        key: (first + 8 * header.rows * place, checksum)
        for place, (key, checksum) in enumerate(zip(keys, header.checksums, strict=True))
    }
    examples = [(line[0], line[1]) for line in header.examples if [*map(type, line)] == [int, str]]
    return Chunk(
        rows=header.rows,
        start=header.start,
        end=header.end,
        lines=header.lines,
        texts=header.texts,
        kinds=header.kinds,
        problems=Problems(header.bad_lines, examples[:MAX_EXAMPLES], 0, header.gap_rows),
        stored=StoredColumns(path, log, checksum, places),
        log_state=(header.log[0], header.log[1], header.log[2]),
    )


@dataclass(frozen=True, slots=True)
class _Header:
    """The header of an index file, as `store` writes it."""

    rows: Count
    start: Count
    end: Count
    lines: Count
    columns: list[Any]
    checksums: list[Count]
    texts: dict[str, dict[str, Any]]
    kinds: dict[str, str]
    bad_lines: Count
    examples: list[list[Any]]
    gap_rows: Count
    log: list[Any]
    guard: Count


def _are_texts(cells: dict[str, Any]) -> bool:
    """Whether this maps row numbers to texts."""
    return all(row.isdecimal() and isinstance(text, str) for row, text in cells.items())


def _key(column: Any) -> Key | None:
    if isinstance(column, str):
        return column
    is_pair = isinstance(column, list) and len(column) == 2 and all(isinstance(part, str) for part in column)
    return (column[0], column[1]) if is_pair else None


def _guard(log: Path, end: int) -> int:
    """A checksum of the last bytes of the log before a chunk's end. It changes if earlier bytes were moved."""
    start = max(0, end - _GUARD_BYTES)
    with open_log(log) as file:
        file.seek(start)
        return zlib.crc32(file.read(end - start))
