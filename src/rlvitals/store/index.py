"""The log as columns: packed float64 blocks under `index/`, made from the log and refreshed at reading.

Safe to delete and never needed: what is not in the index yet is parsed from the log. One file per 8,192 rows, named by
its log and number; each describes itself (its columns, its byte range in the log), so there is no catalogue of files
that could disagree with them. The last one is written anew as it fills.

A cell that was not logged is not a NaN: it holds one bit pattern that no computation produces.
"""

from __future__ import annotations

import contextlib
import os
import struct
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from rlvitals.codec import encode, parse_json
from rlvitals.records import Row
from rlvitals.store.cards import replace_file
from rlvitals.store.lines import BadLine, decode
from rlvitals.store.reader import Problems, read_blocks, read_tail

CHUNK_ROWS = 8192
SMALLEST_INDEXED = 256
"""Fewer rows than this beyond the index are parsed each time rather than written."""

FieldArray = NDArray[np.float64]

MISSING_BITS = np.uint64(0x7FF8_0000_0000_0D1E)
_MAGIC = b"RLVINDEX1\n"
_HEAD = struct.Struct("<Q")
_GUARD_BYTES = 64
_MOMENT_FIELDS = ("count", "mean", "m2", "min", "max")
STEP, TIMESTAMP, ATTEMPT = "step", "timestamp", "attempt"
_BASE = (STEP, TIMESTAMP, ATTEMPT)


def moment_name(metric: str, part: str) -> str:
    """The column of one moment of a metric. The separator cannot be typed by accident."""
    return f"{metric}\x1f{part}"


def is_present(column: FieldArray) -> NDArray[np.bool_]:
    """Which cells were logged."""
    present: NDArray[np.bool_] = column.view(np.uint64) != MISSING_BITS
    return present


@dataclass(slots=True)
class Chunk:
    """A run of rows as columns; from a file (columns read when asked for) or in memory."""

    rows: int
    start: int
    end: int
    lines: int
    """Lines of the log it covers, bad ones included."""
    columns: dict[str, FieldArray]
    texts: dict[str, dict[str, str]] = field(default_factory=dict)
    """Column -> row number (as text, for JSON) -> text."""
    kinds: dict[str, str] = field(default_factory=dict)
    """How mergeable values finish, where it is not as a mean."""
    bad_lines: int = 0
    examples: list[str] = field(default_factory=list)
    gap_rows: int = 0
    path: Path | None = None
    offsets: dict[str, int] = field(default_factory=dict)

    @property
    def names(self) -> Iterable[str]:
        return self.offsets if self.path is not None else self.columns

    def column(self, name: str) -> FieldArray:
        """One column; all missing where the chunk does not have it."""
        if name in self.columns:
            return self.columns[name]
        if self.path is None or name not in self.offsets:
            return missing_cells(self.rows)
        with open(self.path, "rb") as file:
            file.seek(self.offsets[name])
            data = np.fromfile(file, dtype="<f8", count=self.rows)
        self.columns[name] = data
        return data


class Columns:
    """One log file as columns, from the index as far as it goes and from the log beyond."""

    def __init__(self, chunks: list[Chunk], torn_bytes: int = 0) -> None:
        self._chunks = chunks
        self._torn_bytes = torn_bytes
        self._cache: dict[str, FieldArray] = {}

    def __len__(self) -> int:
        return sum(chunk.rows for chunk in self._chunks)

    @property
    def problems(self) -> Problems:
        """What had to be passed over."""
        found = Problems(torn_bytes=self._torn_bytes)
        before = 0
        for chunk in self._chunks:
            for example in chunk.examples:
                number, _, reason = example.partition(": ")
                found.add(before + int(number), reason)
            found.bad_lines += chunk.bad_lines - len(chunk.examples)
            found.gap_rows += chunk.gap_rows
            before += chunk.lines
        return found

    @property
    def names(self) -> list[str]:
        """The metrics of this log, in the order they first appeared."""
        seen = dict.fromkeys(name for chunk in self._chunks for name in chunk.names)
        return [name for name in seen if name not in _BASE and "\x1f" not in name]

    @property
    def text_names(self) -> list[str]:
        return list(dict.fromkeys(name for chunk in self._chunks for name in chunk.texts))

    def column(self, name: str) -> FieldArray:
        """One metric over all rows, in file order; use `is_present` to tell what was logged."""
        if name not in self._cache:
            parts = [chunk.column(name) for chunk in self._chunks]
            self._cache[name] = np.concatenate(parts) if parts else missing_cells(0)
        return self._cache[name]

    @property
    def steps(self) -> NDArray[np.int64]:
        return self.column(STEP).astype(np.int64)

    @property
    def attempts(self) -> NDArray[np.int64]:
        return self.column(ATTEMPT).astype(np.int64)

    @property
    def timestamps(self) -> FieldArray:
        return self.column(TIMESTAMP)

    def kind(self, name: str) -> str:
        """How the mergeable values of a metric finish."""
        return next((chunk.kinds[name] for chunk in self._chunks if name in chunk.kinds), "mean")

    def moments(self, name: str) -> dict[str, FieldArray] | None:
        """Count, mean, M2, min and max of a metric's mergeable values; None where it has none."""
        if not any(moment_name(name, "count") in chunk.names for chunk in self._chunks):
            return None
        return {part: self.column(moment_name(name, part)) for part in _MOMENT_FIELDS}

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
    """Read a log as columns, and bring its index up to date where that is worth it and possible."""
    chunks = list(_stored(log, index_dir))
    fresh = _parse(log, chunks)
    if write and sum(chunk.rows for chunk in fresh) >= SMALLEST_INDEXED:
        first = len(chunks) - (1 if chunks and chunks[-1].rows < CHUNK_ROWS else 0)
        fresh = _joined(chunks, fresh)
        chunks = chunks[:first]
        # A full disk or a folder of someone else's: reading goes on without an index.
        with contextlib.suppress(OSError):
            index_dir.mkdir(exist_ok=True)
            for number, chunk in enumerate(fresh, start=first):
                _store(chunk, _chunk_path(log, index_dir, number), log)
    end = fresh[-1].end if fresh else chunks[-1].end if chunks else 0
    tail = read_tail(log, end)
    torn = 0
    if tail:
        try:
            fresh = [*fresh, _from_rows([decode(tail)])]
        except BadLine:
            torn = len(tail)
    return Columns([*chunks, *fresh], torn)


def _joined(stored: list[Chunk], fresh: list[Chunk]) -> list[Chunk]:
    """Let fresh rows fill up the last stored chunk, and split what is too long."""
    if stored and stored[-1].rows < CHUNK_ROWS:
        fresh = [stored[-1], *fresh]
    out: list[Chunk] = []
    for chunk in fresh:
        if out and out[-1].rows + chunk.rows <= CHUNK_ROWS:
            out[-1] = _append(out[-1], chunk)
        else:
            out.append(chunk)
    return out


def _append(left: Chunk, right: Chunk) -> Chunk:
    names = dict.fromkeys([*left.names, *right.names])
    texts = {name: dict(cells) for name, cells in left.texts.items()}
    for name, cells in right.texts.items():
        texts.setdefault(name, {}).update({str(int(row) + left.rows): text for row, text in cells.items()})
    return Chunk(
        rows=left.rows + right.rows,
        start=left.start,
        end=right.end,
        lines=left.lines + right.lines,
        columns={name: np.concatenate([left.column(name), right.column(name)]) for name in names},
        texts=texts,
        kinds=left.kinds | right.kinds,
        bad_lines=left.bad_lines + right.bad_lines,
        examples=[*left.examples, *(_shifted(example, left.lines) for example in right.examples)][:5],
        gap_rows=left.gap_rows + right.gap_rows,
    )


def _shifted(example: str, lines: int) -> str:
    number, _, reason = example.partition(": ")
    return f"{int(number) + lines}: {reason}"


def _parse(log: Path, chunks: list[Chunk]) -> list[Chunk]:
    """The part of the log the index does not cover, as chunks of at most CHUNK_ROWS rows."""
    offset = chunks[-1].end if chunks else 0
    room = CHUNK_ROWS - chunks[-1].rows if chunks and chunks[-1].rows < CHUNK_ROWS else CHUNK_ROWS
    fresh: list[Chunk] = []
    pending: list[bytes] = []
    for lines, _ in read_blocks(log, offset):
        pending.extend(lines)
        while len(pending) >= room:
            fresh.append(_from_lines(pending[:room], offset))
            offset = fresh[-1].end
            pending = pending[room:]
            room = CHUNK_ROWS
    if pending:
        fresh.append(_from_lines(pending, offset))
    return fresh


def _from_lines(lines: list[bytes], start: int) -> Chunk:
    """Parse lines to columns. Rows of one shape are gathered whole; only odd ones are looked at cell by cell."""
    problems = Problems()
    plain: list[tuple[tuple[str, ...], list[list[float]]]] = []
    odd: list[tuple[int, Row]] = []
    order: list[tuple[int, int]] = []  # for each shape: first row, number of rows
    row_count = 0
    for number, line in enumerate(lines, start=1):
        values = _plain_values(line)
        if values is not None:
            shape, numbers = values
            if plain and plain[-1][0] == shape and sum(order[-1]) == row_count:
                plain[-1][1].append(numbers)
                order[-1] = (order[-1][0], order[-1][1] + 1)
            else:
                plain.append((shape, [numbers]))
                order.append((row_count, 1))
        else:
            try:
                odd.append((row_count, decode(line)))
            except BadLine as reason:
                problems.add(number, str(reason))
                continue
        row_count += 1
    chunk = _from_rows([row for _, row in odd], row_count, [at for at, _ in odd])
    for (names, rows), (first, count) in zip(plain, order, strict=True):
        block = np.array(rows, dtype=np.float64)
        for position, name in enumerate(names):
            if name not in chunk.columns:
                chunk.columns[name] = missing_cells(row_count)
            chunk.columns[name][first : first + count] = block[:, position]
    chunk.start = start
    chunk.end = start + sum(map(len, lines)) + len(lines)
    chunk.lines = len(lines)
    chunk.bad_lines = problems.bad_lines
    chunk.examples = [example.removeprefix("line ") for example in problems.examples]
    return chunk


_NUMBER_TYPES = frozenset({int, float})


def _plain_values(line: bytes) -> tuple[tuple[str, ...], list[float]] | None:
    """The names and numbers of an ordinary row; None for anything that needs a closer look."""
    try:
        raw = parse_json(line)
    except ValueError:
        return None
    if type(raw) is not dict or not _NUMBER_TYPES.issuperset(map(type, raw.values())):
        return None
    shape = tuple(raw)
    step, attempt = raw.get(STEP), raw.get(ATTEMPT)
    if shape[:3] != _BASE or type(step) is not int or type(attempt) is not int:
        return None
    if not -(2**53) <= step <= 2**53 or not 0 < attempt < 2**31:
        return None
    return shape, list(raw.values())


def _from_rows(rows: list[Row], total: int | None = None, places: list[int] | None = None) -> Chunk:
    """Rows to columns, cell by cell."""
    count = len(rows) if total is None else total
    chunk = Chunk(rows=count, start=0, end=0, lines=count, columns={name: missing_cells(count) for name in _BASE})

    def put(name: str, at: int, number: float) -> None:
        if name not in chunk.columns:
            chunk.columns[name] = missing_cells(count)
        chunk.columns[name][at] = number

    for at, row in zip(places if places is not None else range(count), rows, strict=True):
        for name, number in zip(_BASE, (row.step, row.timestamp, row.attempt), strict=True):
            chunk.columns[name][at] = number
        for name, number in row.numbers.items():
            put(name, at, number)
        for name, text in row.texts.items():
            chunk.texts.setdefault(name, {})[str(at)] = text
        for name, value in row.values.items():
            for part in _MOMENT_FIELDS:
                put(moment_name(name, part), at, getattr(value, part))
            if value.kind != "mean":
                chunk.kinds[name] = value.kind
        chunk.gap_rows += row.gap
    return chunk


def missing_cells(count: int) -> FieldArray:
    """A column in which nothing was logged."""
    return np.full(count, MISSING_BITS, dtype=np.uint64).view(np.float64)


def _chunk_path(log: Path, index_dir: Path, number: int) -> Path:
    return index_dir / f"{log.stem}-{number:05d}.columns"


def _stored(log: Path, index_dir: Path) -> Iterator[Chunk]:
    """The chunks on disk that fit the log, in order; the first that does not ends them."""
    end = 0
    for number in range(10**5):
        try:
            chunk = _load(_chunk_path(log, index_dir, number), log)
        except (OSError, ValueError, KeyError, TypeError, struct.error):
            return
        if chunk.start != end or chunk.rows == 0:
            return
        end = chunk.end
        yield chunk
        if chunk.rows + chunk.bad_lines < CHUNK_ROWS:
            return


def _store(chunk: Chunk, path: Path, log: Path) -> None:
    names = [*_BASE, *(name for name in chunk.names if name not in _BASE)]
    header = {
        "rows": chunk.rows,
        "start": chunk.start,
        "end": chunk.end,
        "lines": chunk.lines,
        "columns": names,
        "texts": chunk.texts,
        "kinds": chunk.kinds,
        "bad_lines": chunk.bad_lines,
        "examples": chunk.examples,
        "gap_rows": chunk.gap_rows,
        "guard": _guard(log, chunk.end),
    }
    text = encode(header)
    text += b" " * (-(len(_MAGIC) + _HEAD.size + len(text)) % 8)
    data = [chunk.column(name).astype("<f8", copy=False).tobytes() for name in names]
    replace_file(path, b"".join([_MAGIC, _HEAD.pack(len(text)), text, *data]))


def _load(path: Path, log: Path) -> Chunk:
    with open(path, "rb") as file:
        if file.read(len(_MAGIC)) != _MAGIC:
            raise ValueError("not an index file")
        (size,) = _HEAD.unpack(file.read(_HEAD.size))
        total = os.fstat(file.fileno()).st_size
        first = len(_MAGIC) + _HEAD.size + size
        if first > total:
            raise ValueError("cut short")
        header: dict[str, Any] = parse_json(file.read(size))
    names, rows = header["columns"], int(header["rows"])
    if total != first + 8 * rows * len(names) or header["guard"] != _guard(log, header["end"]):
        raise ValueError("made from another log")
    return Chunk(
        rows=rows,
        start=header["start"],
        end=header["end"],
        lines=header["lines"],
        columns={},
        texts=header["texts"],
        kinds=header["kinds"],
        bad_lines=header["bad_lines"],
        examples=header["examples"],
        gap_rows=header["gap_rows"],
        path=path,
        offsets={name: first + 8 * rows * position for position, name in enumerate(names)},
    )


def _guard(log: Path, end: int) -> str:
    """The bytes right before a chunk's end: they change when the log is edited or replaced."""
    with open(log, "rb") as file:
        file.seek(max(0, end - _GUARD_BYTES))
        return file.read(min(end, _GUARD_BYTES)).hex()
