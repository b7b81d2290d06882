"""Reads on in a growing log: whole lines since the last look, however long ago that was.

Everybody who follows a run (the terminal, the page, the clock, `check --follow`) reads through it. A log that was
archived meanwhile is read on in its archive; one that has become shorter is another run's, and is read from its start.
"""

from __future__ import annotations

from pathlib import Path

from rlvitals.records import Row
from rlvitals.store.lines import BadLine, decode
from rlvitals.store.reader import read_blocks


class RowTail:
    """One log from a byte offset on. `offset` is where the next look begins."""

    def __init__(self, path: Path, offset: int = 0) -> None:
        self.path = path
        self.offset = offset

    @property
    def has_shrunk(self) -> bool:
        """Whether it is shorter than what was read: overwritten."""
        size = file_size(self.path)
        return size is not None and size < self.offset

    def lines(self, most_bytes: int | None = None) -> list[bytes]:
        """The whole lines that are new; a torn last one waits. Of more than `most_bytes` the newest, of which the first
        line may be a piece. Raises OSError or RunUnreadable where the log cannot be read.
        """
        size = file_size(self.path)
        if size is not None and size < self.offset:
            self.offset = 0
        if size is not None and size == self.offset:
            return []
        if size is not None and most_bytes is not None and size - self.offset > most_bytes:
            self.offset = size - most_bytes
        found: list[bytes] = []
        for lines, after in read_blocks(self.path, self.offset, size):
            found += lines
            self.offset = after
        return found

    def rows(self) -> list[Row]:
        """The rows that are new; what is none is passed over."""
        return rows_in(self.lines())


def rows_in(lines: list[bytes]) -> list[Row]:
    """The rows among lines."""
    rows = []
    for line in lines:
        try:
            rows.append(decode(line))
        except BadLine:
            continue
    return rows


def rows_between(path: Path, start: int, end: int) -> list[Row]:
    """The rows between two offsets."""
    return [row for lines, _ in read_blocks(path, start, end) for row in rows_in(lines)]


def file_size(path: Path) -> int | None:
    """None where there is no such file (yet), or it was archived."""
    try:
        return path.stat().st_size
    except OSError:
        return None
