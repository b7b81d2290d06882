"""The earlier rows of a run that a resumed attempt continues from, log by log.

Abandoned rows (ghosts, see `lineage`) are left out, and so is the middle of a very long log. The amount that is read
does not grow with the log: positions are found by binary search, because one process at a time writes the log and
attempt numbers only increase.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import BinaryIO, NamedTuple

from rlvitals.records import MAX_ATTEMPT, HealthEvent, Row
from rlvitals.store.archive import open_log
from rlvitals.store.cards import read_attempts
from rlvitals.store.findings import read_events
from rlvitals.store.layout import Forwarded, RunDir, Stream
from rlvitals.store.lineage import Lineage, lineage_of
from rlvitals.store.lines import BadLine, decode
from rlvitals.store.reader import read_rows
from rlvitals.store.tail import rows_between

FIRST_ROWS = 500
"""Rows read from the start of a long log: enough for every baseline."""

LAST_ROWS = 9_500
"""Rows read from the end of a long log: the rules need about two seconds for them."""

SCAN_BYTES = 64 * 2**10
"""Ranges up to this size are read line by line instead of searched by halving."""

LATE_BYTES = 2**20
"""How many bytes after the resume point are still searched for late rows of earlier steps."""

_BLOCK_BYTES = 2**20


class Stretch(NamedTuple):
    """A byte range of a log that holds whole lines."""

    start: int
    end: int


@dataclass(frozen=True, slots=True)
class Past:
    """The rows before an attempt's first row."""

    lineage: Lineage
    has_gap: bool
    """Whether rows in the middle are left out."""
    _attempt: int
    _logs: dict[Forwarded, tuple[Path, list[Stretch]]]

    def rows(self, log: Forwarded) -> Iterator[Row]:
        """The rows of one log, in file order."""
        path, stretches = self._logs[log]
        for stretch in stretches:
            for row in rows_between(path, stretch.start, stretch.end):
                if row.attempt < self._attempt and not self.lineage.is_abandoned(row.attempt, row.step):
                    yield row


def past_before(run_dir: RunDir, attempt: int, stream: Stream, step: int) -> Past:
    """The past of an attempt whose first row is at `step` of `stream`."""
    streams: tuple[Forwarded, ...] = ("train", "eval", "system")
    pieces = {name: _pieces(run_dir.log(name), attempt) for name in streams}
    first = {name: {piece.attempt: piece.first_step for piece in reversed(pieces[name])} for name in streams}
    first[stream][attempt] = step
    lineage = lineage_of(read_attempts(run_dir), first["train"], first["eval"])
    logs: dict[Forwarded, tuple[Path, list[Stretch]]] = {}
    has_gap = False
    for name in streams:
        log = run_dir.log(name)
        whole = [_living(log, piece, lineage) for piece in pieces[name]]
        ends = _both_ends(log, whole)
        logs[name] = (log, ends)
        has_gap = has_gap or _size(ends) < _size(whole)
    return Past(lineage, has_gap, attempt, logs)


@dataclass(frozen=True, slots=True)
class LivingLine:
    """What of a run was not abandoned, found without reading its logs whole."""

    lineage: Lineage
    attempts: frozenset[int]
    """The attempts that have training rows on it."""
    _run_dir: RunDir

    def steps(self) -> Iterator[int]:
        """The steps of its training rows, in file order."""
        return (row.step for row in self.rows("train"))

    def rows(self, stream: Stream) -> Iterator[Row]:
        """Its rows, in file order. This reads the log."""
        rows = read_rows(self._run_dir.log(stream))
        return (row for row in rows if not self.lineage.is_abandoned(row.attempt, row.step))

    def events(self) -> list[HealthEvent]:
        """The recorded events of its health."""
        events = read_events(self._run_dir)
        return [event for event in events if not self.lineage.is_abandoned(event.attempt, event.step)]


def living_line(run_dir: RunDir) -> LivingLine:
    """The current line of a run."""
    train = _pieces(run_dir.train_log, MAX_ATTEMPT + 1)
    evals = _pieces(run_dir.eval_log, MAX_ATTEMPT + 1)
    first = [{piece.attempt: piece.first_step for piece in reversed(pieces)} for pieces in (train, evals)]
    lineage = lineage_of(read_attempts(run_dir), *first)
    living = (piece.attempt for piece in train if not lineage.is_abandoned(piece.attempt, piece.first_step))
    return LivingLine(lineage, frozenset(living), run_dir)


class _Piece(NamedTuple):
    """The rows that one attempt wrote to a log."""

    attempt: int
    first_step: int
    start: int
    end: int


class _Place(NamedTuple):
    """One row and its bytes in the log."""

    start: int
    end: int
    row: Row


def _pieces(log: Path, before: int) -> list[_Piece]:
    """The pieces of the attempts before one, in file order."""
    found: list[_Piece] = []
    try:
        file = open_log(log)
    except (FileNotFoundError, NotADirectoryError):
        return found
    with file:
        size = file.seek(0, os.SEEK_END)
        start = 0
        while (place := _next_row(file, start, size)) is not None:
            attempt = place.row.attempt
            end = _first_beyond(file, place.end, size, lambda row, own=attempt: row.attempt > own)  # type: ignore[misc]
            if attempt < before:
                found.append(_Piece(attempt, place.row.step, start, end))
            start = end
    return found


def _living(log: Path, piece: _Piece, lineage: Lineage) -> Stretch:
    """The range of a piece that holds its current rows. A few abandoned rows may be at its end."""
    cut = min((cut for number, cut in lineage.cuts.items() if number > piece.attempt), default=None)
    if cut is None:
        return Stretch(piece.start, piece.end)
    with open_log(log) as file:
        end = _first_beyond(file, piece.start, piece.end, lambda row: row.step >= cut)
        if end + LATE_BYTES >= piece.end:
            return Stretch(piece.start, piece.end)
        file.seek(end + LATE_BYTES)
        return Stretch(piece.start, end + LATE_BYTES + len(file.readline()))


def _both_ends(log: Path, stretches: list[Stretch]) -> list[Stretch]:
    """The first and the last rows of a log's ranges; all rows if there are few."""
    if not stretches:
        return []
    with open_log(log) as file:
        last: list[Stretch] = []
        missing = LAST_ROWS
        while stretches and missing > 0:
            *stretches, stretch = stretches
            place, lines = _where_last_begin(file, stretch, missing)
            missing -= lines
            last.insert(0, Stretch(place, stretch.end))
            if place > stretch.start:
                stretches.append(Stretch(stretch.start, place))
        first: list[Stretch] = []
        missing = FIRST_ROWS
        for stretch in stretches:
            if missing > 0:
                place, lines = _where_first_end(file, stretch, missing)
                missing -= lines
                first.append(Stretch(stretch.start, place))
    return [*first, *last]


def _where_last_begin(file: BinaryIO, stretch: Stretch, count: int) -> tuple[int, int]:
    """The offset at which the last `count` lines of a stretch begin, and how many lines were found (up to `count`)."""
    lines, position = 0, stretch.end
    while position > stretch.start:
        begin = max(stretch.start, position - _BLOCK_BYTES)
        file.seek(begin)
        block = file.read(position - begin)
        newlines = block.count(b"\n")
        if lines + newlines > count:
            where = len(block)
            for _ in range(count + 1 - lines):  # find the newline before the first of these lines
                where = block.rfind(b"\n", 0, where)
            return begin + where + 1, count
        lines += newlines
        position = begin
    return stretch.start, lines


def _where_first_end(file: BinaryIO, stretch: Stretch, count: int) -> tuple[int, int]:
    """The offset at which the first `count` lines of a stretch end, and how many lines were found (at most `count`)."""
    file.seek(stretch.start)
    place = stretch.start
    for lines in range(count):
        if place >= stretch.end:
            return stretch.end, lines
        place += len(file.readline())
    return place, count


def _first_beyond(file: BinaryIO, low: int, high: int, is_beyond: Callable[[Row], bool]) -> int:
    """The offset of the first row for which `is_beyond` holds (it then holds for all later rows); `high` if there is
    none.
    """
    answer = high
    while high - low > SCAN_BYTES:
        middle = (low + high) // 2
        place = _next_row(file, middle, high)
        if place is None:
            high = middle
        elif is_beyond(place.row):
            answer = high = place.start
        else:
            low = place.end
    while (place := _next_row(file, low, high)) is not None:
        if is_beyond(place.row):
            return place.start
        low = place.end
    return answer


def _next_row(file: BinaryIO, place: int, end: int) -> _Place | None:
    """The first row whose line begins at `place` or later, and before `end`."""
    start = place
    if place > 0:
        file.seek(place - 1)
        start += len(file.readline()) - 1
    else:
        file.seek(0)
    while start < end and (line := file.readline()).endswith(b"\n"):
        try:
            return _Place(start, start + len(line), decode(line))
        except BadLine:
            start += len(line)
    return None


def _size(stretches: list[Stretch]) -> int:
    return sum(stretch.end - stretch.start for stretch in stretches)
