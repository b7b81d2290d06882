"""Follows a growing log: returns the complete lines that were added since the last read.

The terminal, the page, the clock and `check --follow` all read a run through it. If the log was archived meanwhile,
reading continues in the archive. If the log has become shorter, it belongs to another run and is read from the start.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

from rlvitals.records import Row
from rlvitals.store.reader import read_blocks, rows_in


class RowTail:
    """One log from a byte offset on. The next read begins at `offset`."""

    def __init__(self, path: Path, offset: int = 0) -> None:
        self.path = path
        self.offset = offset

    @property
    def has_shrunk(self) -> bool:
        """Whether the log is shorter than the part already read, because it was overwritten."""
        size = file_size(self.path)
        return size is not None and size < self.offset

    def lines(self, most_bytes: int | None = None) -> list[bytes]:
        """The complete lines that are new; an incomplete last line is returned later. If there are more than
        `most_bytes`, only the newest are returned, and the first of them may be incomplete. Raises OSError or
        RunUnreadable if the log cannot be read.
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
        """The rows that are new. Lines that are not rows are skipped."""
        return rows_in(self.lines())


def rows_between(path: Path, start: int, end: int) -> Iterator[Row]:
    """The rows between two offsets, in file order."""
    return (row for lines, _ in read_blocks(path, start, end) for row in rows_in(lines))


def file_size(path: Path) -> int | None:
    """The size of a file; None if it does not exist (yet) or was archived."""
    try:
        return path.stat().st_size
    except OSError:
        return None
