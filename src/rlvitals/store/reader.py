"""Reads logs: whole lines in order. Bad lines are counted and skipped, and a torn last line is reported.

It reads row by row, for code that needs rows (resuming, showing the last rows, exporting). Columns are in `index`.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TypeVar

from rlvitals.records import Row
from rlvitals.store.archive import open_log
from rlvitals.store.files import lines_from_end
from rlvitals.store.lines import BadLine, decode

T = TypeVar("T")

BLOCK_BYTES = 4 * 2**20

MAX_EXAMPLES = 5


@dataclass(slots=True)
class Problems:
    """The lines that a reader skipped in one log."""

    bad_lines: int = 0
    examples: list[tuple[int, str]] = field(default_factory=list)
    """The first few: line number, reason."""
    torn_bytes: int = 0
    """Bytes of a half-written last line."""
    gap_rows: int = 0
    """Rows that the recorder reported as dropped."""

    def add(self, line_number: int, reason: str) -> None:
        self.bad_lines += 1
        if len(self.examples) < MAX_EXAMPLES:
            self.examples.append((line_number, reason))

    def followed_by(self, other: Problems, lines: int) -> Problems:
        """The combined problems of two parts of a log. `lines` is the number of lines of the first part."""
        shifted = [(number + lines, reason) for number, reason in other.examples]
        return Problems(
            bad_lines=self.bad_lines + other.bad_lines,
            examples=[*self.examples, *shifted][:MAX_EXAMPLES],
            torn_bytes=other.torn_bytes,
            gap_rows=self.gap_rows + other.gap_rows,
        )

    @property
    def sentences(self) -> list[str]:
        """The problems as sentences for users."""
        problems = []
        if self.bad_lines:
            plural = "s" if self.bad_lines > 1 else ""
            examples = "; ".join(f"line {number}: {reason}" for number, reason in self.examples)
            problems.append(f"{self.bad_lines} line{plural} skipped ({examples})")
        if self.torn_bytes:
            problems.append(f"the last line is torn ({self.torn_bytes} bytes of a row that was never acknowledged)")
        if self.gap_rows:
            problems.append(f"{self.gap_rows} rows are missing: they could not be written to disk")
        return problems


def read_blocks(path: Path, start: int = 0, end: int | None = None) -> Iterator[tuple[list[bytes], int]]:
    """Whole lines (without newlines) from a byte offset on, a block at a time, each with the offset after it.

    The text after the last newline is not included. Reading stops at the offset `end`.
    """
    try:
        file = open_log(path)
    except (FileNotFoundError, NotADirectoryError):
        return
    with file:
        file.seek(start)
        offset = start
        rest: list[bytes] = []  # parts of a line that ends in a later block
        left = None if end is None else end - start
        while block := file.read(BLOCK_BYTES if left is None else min(BLOCK_BYTES, left)):
            if left is not None:
                left -= len(block)
            whole, newline, tail = block.rpartition(b"\n")
            if not newline:
                rest.append(block)
                continue
            data = b"".join([*rest, whole])
            offset += len(data) + 1
            rest = [tail]
            yield data.split(b"\n"), offset


def read_batch(path: Path, start: int, limit: int) -> tuple[list[bytes], int]:
    """At most `limit` whole lines from a byte offset on, and the offset after them."""
    for lines, _ in read_blocks(path, start):
        taken = lines[:limit]
        return taken, start + sum(map(len, taken)) + len(taken)
    return [], start


def read_rows(path: Path, problems: Problems | None = None) -> Iterator[Row]:
    """Every valid row in file order. A last line without a newline counts if it is a complete row."""
    problems = problems if problems is not None else Problems()
    for row in read_records(path, decode, problems):
        problems.gap_rows += row.gap
        yield row


def read_records(path: Path, decode: Callable[[bytes], T], problems: Problems) -> Iterator[T]:
    """Every line that `decode` accepts, in file order, also a last one without a newline. The others are counted."""
    number = end = 0
    for lines, after in read_blocks(path):
        end = after
        for line in lines:
            number += 1
            try:
                yield decode(line)
            except BadLine as reason:
                problems.add(number, str(reason))
    tail = read_tail(path, end)
    if not tail:
        return
    try:
        yield decode(tail)
    except BadLine:
        problems.torn_bytes = len(tail)


def read_tail(path: Path, start: int) -> bytes:
    """The bytes after the last newline, which ends at `start`."""
    try:
        with open_log(path) as file:
            file.seek(start)
            return file.read().rpartition(b"\n")[2]
    except (FileNotFoundError, NotADirectoryError):
        return b""


def last_row(path: Path) -> Row | None:
    """The last good row, found from the end."""
    return next(iter(last_rows(path, 1)), None)


def rows_in(lines: list[bytes]) -> list[Row]:
    """The rows among some lines."""
    rows = []
    for line in lines:
        try:
            rows.append(decode(line))
        except BadLine:
            continue
    return rows


def first_rows(path: Path, count: int) -> list[Row]:
    """The rows of the first lines, without damaged ones."""
    try:
        with open_log(path) as file:
            lines = [file.readline() for _ in range(count)]
    except OSError:
        return []
    return rows_in(lines)


def last_rows(path: Path, count: int) -> list[Row]:
    """The last good rows, oldest first, found from the end."""
    try:
        file = open_log(path)
    except (FileNotFoundError, NotADirectoryError):
        return []
    found: list[Row] = []
    with file:
        for line in lines_from_end(file):
            if len(found) == count:
                break
            with contextlib.suppress(BadLine):
                found.append(decode(line))
    return found[::-1]


def read_samples(log: Path) -> Iterator[Row]:
    """Every machine sample, with its position in the log (from 0) as its step. This axis never decreases."""
    for place, row in enumerate(read_rows(log)):
        yield replace(row, step=place)
