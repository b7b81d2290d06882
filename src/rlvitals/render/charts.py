"""A series as a small text chart: braille dots, or asterisks on a terminal with ASCII only."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

from rlvitals.render.numbers import number

BLOCKS = "▁▂▃▄▅▆▇█"
WIDTH = 60
HEIGHT = 4
_DOTS = ((0x01, 0x08), (0x02, 0x10), (0x04, 0x20), (0x40, 0x80))
"""The bit of each dot of a braille character, row by row."""


@dataclass(frozen=True, slots=True)
class ChartSeries:
    """The data of a chart: buckets with their row, their step, and their lowest and highest value."""

    rows: Sequence[int]
    steps: Sequence[int]
    low: Sequence[float | None]
    high: Sequence[float | None]

    @classmethod
    def from_dict(cls, facts: dict[str, Any]) -> ChartSeries:
        """From a report's plain data."""
        return cls(facts["rows"], facts["steps"], facts["low"], facts["high"])

    @property
    def range(self) -> tuple[float, float] | None:
        """Lowest and highest value; None without values."""
        lows = [value for value in self.low if value is not None]
        highs = [value for value in self.high if value is not None]
        return (min(lows), max(highs)) if lows and highs else None

    def logarithms(self) -> ChartSeries:
        """The base-10 logarithms of the series, without values of 0 or less."""

        def logged(values: Sequence[float | None]) -> list[float | None]:
            return [None if value is None or value <= 0 else math.log10(value) for value in values]

        highs = logged(self.high)
        lows = [high if low is None else low for low, high in zip(logged(self.low), highs, strict=True)]
        return ChartSeries(self.rows, self.steps, lows, highs)

    def place(self, position: int) -> float:
        """The position of a bucket between the first row (0) and the last row (1)."""
        first, last = self.rows[0], self.rows[-1]
        return (self.rows[position] - first) / (last - first) if last > first else 0.0

    def onset(self, onset_step: int, raised_at: int) -> float | None:
        """The position, from 0 to 1, at which a finding began; None if the series begins after row `raised_at`.

        Steps may restart within a log, so the search goes backwards from the row at which the finding was raised.
        """
        position = next((at for at in reversed(range(len(self.rows))) if self.rows[at] <= raised_at), None)
        if position is None:
            return None
        while position > 0 and onset_step < self.steps[position] and self.steps[position - 1] <= self.steps[position]:
            position -= 1
        return self.place(position)


def blocks(means: Iterable[float | None], low: float, high: float) -> str:
    """Values as block characters, whose height is the position between `low` and `high`. A missing value is a space.

    >>> blocks([0.0, 0.5, None, 1.0], 0.0, 1.0), blocks([2.0, 2.0], 2.0, 2.0)
    ('▁▅ █', '▄▄')
    """
    span = high - low
    return "".join(
        " " if mean is None else BLOCKS[min(7, int((mean - low) / span * 8)) if 0 < span < math.inf else 3]
        for mean in means
    )


def short(value: float) -> str:
    """A number in at most ten characters.

    >>> short(0.5), short(1234.5), short(1e300)
    ('0.5', '1,234.5', '1e+300')
    """
    text = number(value)
    return text if len(text) <= 10 else f"{value:.3g}"


def chart(
    series: ChartSeries,
    mark: float | None,
    mark_text: str,
    *,
    width: int = WIDTH,
    height: int = HEIGHT,
    log: bool = False,
    ascii_only: bool,
) -> list[str]:
    """The chart's lines: values with their range at the left, then the axis with the mark, then steps below it. A
    logarithmic chart leaves out values of 0 or less.

    >>> rising = ChartSeries([1, 2, 3, 4], [10, 20, 30, 40], [0.0, 1.0, 2.0, 3.0], [0.0, 1.0, 2.0, 3.0])
    >>> for line in chart(rising, 0.5, "since 20", width=20, ascii_only=True): print(line)
    3 |              ***
      |        ******
      |   *****
    0 |***
      +--------^--------
       10      since 20
    """
    series = series.logarithms() if log else series
    limits = series.range
    if limits is None or not series.rows:
        return []
    top, bottom = (short(10**edge if log else edge) for edge in (limits[1], limits[0]))
    if top == bottom:  # constant, or differences that no label can show
        limits = (limits[1], limits[1])
    margin = max(len(top), len(bottom))
    inner = max(width - margin - 2, 10)
    cells = _cells(series, limits, (inner, height), ascii_only)
    wall, corner, floor, arrow = ("|", "+", "-", "^") if ascii_only else ("│", "└", "─", "▲")
    lines = []
    for place, cell in enumerate(cells):
        label = top if place == 0 else bottom if place == len(cells) - 1 else ""
        if top == bottom:  # a constant series runs through the middle
            label = top if place == len(cells) // 2 - 1 else ""
        lines.append(f"{label:>{margin}} {wall}{cell}".rstrip())
    axis = [floor] * inner
    at = None if mark is None else round(mark * (inner - 1))
    if at is not None:
        axis[at] = arrow
    lines.append(f"{'':>{margin}} {corner}{''.join(axis)}")
    lines.append(f"{'':>{margin}}  {_below(series, at, mark_text, inner)}".rstrip())
    return lines


def _below(series: ChartSeries, at: int | None, text: str, width: int) -> str:
    """First step, the mark's text and last step in one line. A step is left out where there is no room for it."""
    letters = [" "] * width

    def put(words: str, start: int) -> bool:
        start = max(0, min(start, width - len(words)))
        around = letters[max(start - 1, 0) : start + len(words) + 1]
        if len(words) > width or any(letter != " " for letter in around):
            return False
        letters[start : start + len(words)] = words
        return True

    if at is not None:
        put(text, at)
    put(str(series.steps[0]), 0)
    put(str(series.steps[-1]), width)
    return "".join(letters)


def _cells(series: ChartSeries, limits: tuple[float, float], size: tuple[int, int], ascii_only: bool) -> list[str]:
    width, height = size
    across, down = (1, 1) if ascii_only else (2, 4)
    columns = _columns(series, limits, width * across, height * down)
    grid = [[0] * width for _ in range(height)]
    for x, column in enumerate(columns):
        if column is None:
            continue
        for y in range(column[0], column[1] + 1):
            row = height * down - 1 - y
            grid[row // down][x // across] |= 1 if ascii_only else _DOTS[row % 4][x % 2]
    if ascii_only:
        return ["".join("*" if cell else " " for cell in row) for row in grid]
    return ["".join(chr(0x2800 + cell) if cell else " " for cell in row) for row in grid]


def _columns(series: ChartSeries, limits: tuple[float, float], width: int, height: int) -> list[tuple[int, int] | None]:
    """The lowest and highest dot of each column. Columns between two points are interpolated; a gap is None."""
    low, high = limits
    span = high - low

    def level(value: float) -> int:
        if not 0 < span < float("inf"):
            return height // 2
        return round((value - low) / span * (height - 1))

    columns: list[tuple[int, int] | None] = [None] * width
    before: tuple[int, float] | None = None
    for position, (lowest, highest) in enumerate(zip(series.low, series.high, strict=True)):
        if lowest is None or highest is None:
            before = None
            continue
        x = round(series.place(position) * (width - 1))
        bottom, top = level(lowest), level(highest)
        middle = (bottom + top) / 2
        if before is not None:
            start, from_middle = before
            for between in range(start + 1, x):
                y = round(from_middle + (middle - from_middle) * (between - start) / (x - start))
                columns[between] = (y, y)
            near = round(from_middle + (middle - from_middle) * max(x - 1 - start, 0) / max(x - start, 1))
            bottom, top = min(bottom, near), max(top, near)
        present = columns[x]
        columns[x] = (bottom, top) if present is None else (min(present[0], bottom), max(present[1], top))
        before = (x, middle)
    return columns
