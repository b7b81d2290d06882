"""Rows of training loops with their own print format: lines of names and numbers, blocks of such lines below a line
with the step, drawn tables.

Which lines are rows is decided from all lines together: a name must recur, and a step count must increase. Lines are
therefore collected first; `lines` and `tables` return the rows found so far.
"""

from __future__ import annotations

import itertools
import re
from collections import Counter
from collections.abc import Iterable
from functools import lru_cache
from typing import NamedTuple

from rlvitals.importers.base import Notes
from rlvitals.importers.cells import mean
from rlvitals.importers.grids import Grid, SpacedTable, cells_in, is_rule
from rlvitals.importers.pairs import (
    EPOCHS,
    TELLING,
    UNLABELLED,
    LineReading,
    PrintedCount,
    is_evaluation_name,
    rank_of,
    read_pairs,
    without_prefix,
)
from rlvitals.importers.steps import StepFinder
from rlvitals.records import Fields

RECURS = 3
"""How many lines a name must appear on before it counts."""
MAX_BLOCK = 500
"""The most names in one block."""
MOST_SAMPLES = 1024
"""The most numbers of one name within a step."""
MAX_HEADERS = 12
"""The most kinds of step lines remembered at once."""
GROWS = 0.9
"""The share of lines on which a step count must not decrease."""

OVERALL = ("global", "train", "total")
"""Words in the name of a count that continues across epochs."""

BAR = "a progress bar"

_SETTING = re.compile(r"(?:num|total|max)\b|(?:num|total|max)_", re.IGNORECASE)
_DIGITS = re.compile(r"\d+")

Counts = dict[tuple[str, str], PrintedCount]
"""Step counts, by the line that stated them (without its digits) and by their names. A row's own counts have no line.
"""


class Item(NamedTuple):
    """Numbers printed together."""

    numbers: Fields
    counts: Counts
    """Its own step, or the step stated by lines before it."""
    is_own: bool
    """Whether it states its own step."""
    is_block: bool
    is_strict: bool = True
    """Whether it contains only short names and numbers."""
    percents: int = 0
    averaged: int = 0
    """How many of its numbers were percentages, and how many are means."""


class LooseRows:
    """Collects lines; `lines` and `tables` return the rows found so far."""

    def __init__(self) -> None:
        self._lines: list[Item] = []
        self._tables: list[Item] = []
        self._known: dict[bool, tuple[int, LooseReading]] = {}
        self._headers: Counts = {}
        self._block: dict[str, list[int | float]] = {}
        self._grid: Grid | None = None
        self._columns = SpacedTable()
        self._percents = 0

    @property
    def has_line(self) -> bool:
        """Whether the newest line is certainly a row, because it states its own step."""
        return bool(self._lines) and self._lines[-1].is_own

    def lines(self) -> LooseReading:
        """The rows from lines and from blocks of lines."""
        return self._settled(self._lines)

    def tables(self) -> LooseReading:
        """The rows from drawn tables."""
        return self._settled(self._tables)

    def seen(self) -> str:
        """What the text contains instead of rows, for an error."""
        names = Counter(name for item in (*self._lines, *self._tables) for name in item.numbers)
        shown = ", ".join(name for name, _ in names.most_common(5))
        numbers = f"with numbers named {shown}, none of which a training logs" if shown else "without named numbers"
        return f"it is a text {numbers}: "

    def see_step(self, done: int, total: int) -> None:
        """Record a progress bar. Lines printed from now on belong to its step."""
        key = (f"{BAR} of {total}", "step")
        if self._headers.get(key) != (done, total):
            self._close_grid()
            self._close_block()
            self._remember({key: PrintedCount(done, total)})

    def _settled(self, items: list[Item]) -> LooseReading:
        """The rows among the candidates; cached until a candidate is added."""
        which = items is self._tables
        known, outcome = self._known.get(which, (-1, LooseReading([])))
        if known != len(items):
            outcome = _settle(items)
            self._known[which] = len(items), outcome
        return outcome._replace(rows=outcome.rows.copy())

    def finish(self) -> None:
        """Called when there are no more lines."""
        self._close_grid()
        self._close_block()

    def take(self, text: str) -> None:
        """Process one line."""
        if self._grid is not None and is_rule(text):
            return
        cells = cells_in(text)
        if cells is not None and (len(cells) > 1 or self._grid is not None):
            self._grid = self._grid or Grid()
            self._add_table(self._grid.take(cells))
            return
        self._close_grid()
        row = self._columns.take(text)
        if row is not None:
            self._add_table([row])
            return
        reading = read_pairs(text)
        if reading is None or not reading.is_clean:
            return
        if not reading.numbers:
            self._see_header(text, reading)
        elif reading.counts:
            self._close_block()
            counts = self._with_epoch({("", name): count for name, count in reading.counts.items()})
            is_strict = reading.words <= 1 and not any(" " in name for name in reading.numbers)
            self._lines.append(
                Item(
                    reading.numbers, counts, is_own=True, is_block=False, is_strict=is_strict, percents=reading.percents
                )
            )
            self._remember(counts)
        elif reading.is_explicit or any(map(TELLING.search, reading.numbers)):
            self._add_to_block(reading)

    def _with_epoch(self, counts: Counts) -> Counts:
        """A line's counts, with the epoch from an earlier line if it has none."""
        if any(_rank(key) == EPOCHS for key in counts):
            return counts
        epoch = next((count for key, count in self._headers.items() if key[0] and _rank(key) == EPOCHS), None)
        return counts if epoch is None else {**counts, ("", "epoch"): epoch}

    def _see_header(self, text: str, reading: LineReading) -> None:
        counts = {name: count for name, count in reading.counts.items() if name and not _SETTING.match(name)}
        if reading.words > 2 or not counts:
            return
        self._close_block()
        shape = _DIGITS.sub("#", without_prefix(text).strip())[:80]
        self._remember({(shape, name): count for name, count in counts.items()})

    def _remember(self, counts: Counts) -> None:
        older = ((key, count) for key, count in self._headers.items() if key not in counts)
        self._headers = dict(itertools.islice(itertools.chain(counts.items(), older), MAX_HEADERS))

    def _add_to_block(self, reading: LineReading) -> None:
        numbers = reading.numbers
        counts_steps = any(rank_of(name) != EPOCHS for _, name in self._headers)
        if self._block.keys() & numbers.keys() and not counts_steps:
            self._close_block()
        self._percents += reading.percents
        for name, number in numbers.items():
            if name in self._block or len(self._block) < MAX_BLOCK:
                self._block.setdefault(name, []).append(number)

    def _close_block(self) -> None:
        if self._block:
            times = max(map(len, self._block.values()))
            if times > MOST_SAMPLES:  # too many for one step: the remembered step does not apply
                rows = [{name: vs[at] for name, vs in self._block.items() if at < len(vs)} for at in range(times)]
                self._lines += [Item(row, {}, is_own=False, is_block=True, is_strict=False) for row in rows]
            else:
                averaged = sum(len(values) > 1 for values in self._block.values())
                numbers = {name: vs[0] if len(vs) == 1 else mean(vs) for name, vs in self._block.items()}
                self._lines.append(Item(numbers, self._headers, False, True, False, self._percents, averaged))
            self._block, self._percents = {}, 0

    def _close_grid(self) -> None:
        if self._grid is not None:
            self._add_table(self._grid.close())
            self._grid = None

    def _add_table(self, rows: Iterable[Fields]) -> None:
        for row in rows:
            counts = {
                ("", name): PrintedCount(number, None)
                for name, number in row.items()
                if isinstance(number, int) and number >= 0 and _rank(("", name)) is not None
            }
            self._tables.append(Item(row, counts or self._headers, is_own=bool(counts), is_block=True))


class LooseReading(NamedTuple):
    """The rows found among the candidates."""

    rows: list[Fields]
    total: int | None = None
    """The planned steps, if all rows state the same number."""
    remarks: tuple[str, ...] = ()


def _settle(items: list[Item]) -> LooseReading:
    kept = _telling(items)
    notes = Notes()
    all_counts = [item.counts for item in kept]
    steps = {
        is_own: _Steps([item.counts for item in kept if item.is_own == is_own], all_counts) for is_own in (True, False)
    }
    finder = StepFinder(notes)
    rows: list[Fields] = []
    totals: set[int | None] = set()
    for item in kept:
        chosen = steps[item.is_own].chosen(item.counts)
        row: Fields = {}
        if chosen is not None:
            row["step"], total = steps[item.is_own].over_epochs(item.counts, chosen)
            totals.add(total)
        for key, count in item.counts.items() if item.is_own else ():
            if _rank(key) == EPOCHS:
                row["epoch"] = count.number
            elif key != chosen and key[1].lower() not in (UNLABELLED, "step"):
                row[key[1]] = count.number
        row |= {name: number for name, number in item.numbers.items() if name.lower() not in ("step", "epoch")}
        rows.append(finder.place(row))
    percents, averaged = sum(item.percents for item in kept), sum(item.averaged for item in kept)
    notes.count("1 number in percent is now a share", "{} numbers in percent are now shares", percents)
    notes.count(
        "1 number is the mean of several within a step", "{} numbers are the mean of several within a step", averaged
    )
    return LooseReading(rows, totals.pop() if len(totals) == 1 else None, tuple(notes.texts()))


class _Steps:
    """Decides which count is the step: one that increases and counts in small units."""

    def __init__(self, alike: list[Counts], all_counts: list[Counts]) -> None:
        series = _series(alike)
        doubts: dict[tuple[str, str], tuple[bool, int, int]] = {}
        for key, values in series.items():
            grows = _grows(values)
            if grows or key[1] != UNLABELLED:
                doubts[key] = not grows, _rank(key) or 0, -len(set(values))
        self._order = sorted(doubts, key=doubts.__getitem__)
        self._restarting = {
            key
            for key, values in _series(all_counts).items()
            if any(later[0] > before[0] and later[1] < before[1] for before, later in itertools.pairwise(values))
        }
        epochs = [count.number for counts in all_counts for key, count in counts.items() if _rank(key) == EPOCHS]
        self._first_epoch = min(epochs, default=0)
        fine = sum(any(_rank(key) != EPOCHS for key in counts if key in doubts) for counts in alike)
        self._is_fine = fine * 2 > len(alike)
        """Whether most lines count something finer than epochs. The other lines then belong to the step before them."""

    def chosen(self, counts: Counts) -> tuple[str, str] | None:
        key = next((key for key in self._order if key in counts), None)
        return None if key is not None and self._is_fine and _rank(key) == EPOCHS else key

    def over_epochs(self, counts: Counts, chosen: tuple[str, str]) -> tuple[int, int | None]:
        """The step and the total steps, both across all epochs if the count restarts in each epoch."""
        number, total = counts[chosen]
        epoch = next((count for key, count in counts.items() if _rank(key) == EPOCHS), None)
        if _rank(chosen) == EPOCHS:
            return number, None
        if epoch is None or total is None or any(word in chosen[1].lower() for word in OVERALL):
            return number, total
        if chosen in self._restarting:
            number += (epoch.number - self._first_epoch) * total
        return number, None if epoch.total is None else total * epoch.total


def _telling(items: list[Item]) -> list[Item]:
    """The candidates that are rows, reduced to the names that count."""
    items = _counting(items)
    frequency = Counter(name for item in items for name in item.numbers)
    telling = {name for name in frequency if TELLING.search(name)}
    again = {name for name, times in frequency.items() if times >= RECURS}
    lines = [item for item in items if not item.is_block and telling & item.numbers.keys()]
    is_short = len(items) < RECURS
    in_lines = {name for item in lines for name in item.numbers} if len(lines) >= RECURS else set()
    kept = []
    for item in items:
        names = {
            name
            for name in item.numbers
            if name in again or (item.counts and item.is_strict and (is_short or name in telling))
        }
        if item.is_block and in_lines:  # names that occur about as often as the lines with a step, or evaluations
            names = {name for name in names - in_lines if frequency[name] * 2 >= len(lines) or is_evaluation_name(name)}
        is_row = bool(names & telling) if telling else bool(item.counts and names & again)
        if is_row and (item.counts or names & again & telling):
            kept.append(item._replace(numbers={name: item.numbers[name] for name in item.numbers if name in names}))
    if not telling and not any(len(set(values)) >= RECURS for values in _series(item.counts for item in kept).values()):
        return []  # without a known metric name, numbers count only if they come with increasing steps
    return kept


def _counting(items: list[Item]) -> list[Item]:
    """Drops lines whose steps do not increase, such as "step 1" in many printed solutions."""
    kinds: dict[tuple[frozenset[str], frozenset[str]], list[Item]] = {}
    for item in items:
        if item.is_own and not item.is_block:
            kinds.setdefault(_kind(item), []).append(item)
    recurring = {name for kind, alike in kinds.items() if len(alike) >= RECURS for name in kind[1]}
    dropped = {kind for kind, alike in kinds.items() if not _are_rows(kind[1], alike, recurring)}
    return [item for item in items if not item.is_own or item.is_block or _kind(item) not in dropped]


def _are_rows(names: frozenset[str], alike: list[Item], recurring: set[str]) -> bool:
    """Whether lines of one kind are rows: their step increases, or they are few and resemble lines whose step does."""
    if len(alike) >= RECURS:
        return any(map(_rises, _series(item.counts for item in alike).values()))
    is_like_others = not recurring or names & recurring or any(map(is_evaluation_name, names))
    return alike[0].is_strict and bool(is_like_others)


def _kind(item: Item) -> tuple[frozenset[str], frozenset[str]]:
    return frozenset(key[1] for key in item.counts if _rank(key) != EPOCHS), frozenset(item.numbers)


def _series(all_counts: Iterable[Counts]) -> dict[tuple[str, str], list[tuple[int, int]]]:
    """Each count's values in line order, each with its epoch."""
    series: dict[tuple[str, str], list[tuple[int, int]]] = {}
    for counts in all_counts:
        epoch = next((count.number for key, count in counts.items() if _rank(key) == EPOCHS), 0)
        for key, count in counts.items():
            series.setdefault(key, []).append((0 if _rank(key) == EPOCHS else epoch, count.number))
    return series


def _rises(values: list[tuple[int, int]]) -> bool:
    """Whether a count increases more often than not. In a file with many short runs it falls between them."""
    steps = list(itertools.pairwise(values))
    return sum(after > before for before, after in steps) * 2 > len(steps) or _grows(values)


def _grows(values: list[tuple[int, int]]) -> bool:
    falls = sum(after < before for before, after in itertools.pairwise(values))
    return falls <= (1 - GROWS) * len(values) and (len(set(values)) > 1 or len(values) < RECURS)


@lru_cache(maxsize=4096)
def _rank(key: tuple[str, str]) -> int | None:
    return rank_of(key[1].rpartition("/")[2])
