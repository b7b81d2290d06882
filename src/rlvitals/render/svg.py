"""Parts of a chart as SVG: a frame that positions points, lines that stop at gaps, filled ranges. Pages set colours."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from html import escape
from itertools import groupby
from typing import Literal, NamedTuple

from rlvitals.terminal import visible

AxisScale = Literal["linear", "log", "symlog"]


class Spot(NamedTuple):
    """One position on the x axis: the lowest and highest value, and the value of the line."""

    x: float
    low: float
    high: float
    middle: float


@dataclass(frozen=True, slots=True)
class Frame:
    """The rectangle a chart is drawn in, and the ranges of x and y it shows."""

    width: int
    height: int
    left: int
    x_range: tuple[float, float]
    y_range: tuple[float, float]
    top: int = 18
    scale: AxisScale = "linear"
    threshold: float = 1.0
    """On a symlog axis: values far below it are scaled almost linearly."""

    @property
    def right(self) -> int:
        return self.width - 8

    @property
    def floor(self) -> int:
        return self.height - 22

    def x(self, value: float) -> float:
        """The horizontal position of an x value, in the picture's units."""
        first, last = self.x_range
        share = (value - first) / (last - first) if 0 < last - first < math.inf else 0.5
        return round(self.left + share * (self.right - self.left), 1)

    def y(self, value: float) -> float:
        """The vertical position of a y value; the middle if the range is empty or infinite."""
        low, high = (self._scaled(edge) for edge in self.y_range)
        span = high - low
        share = (self._scaled(value) - low) / span if 0 < span < math.inf else 0.5
        return round(self.floor - share * (self.floor - self.top), 1)

    def _scaled(self, value: float) -> float:
        if self.scale == "log":
            return math.log10(value) if value > 0 else -324.0
        if self.scale == "symlog":
            return math.copysign(math.log1p(abs(value) / self.threshold), value)
        return value

    def axis(self) -> str:
        """The horizontal axis line."""
        return f'<line class="axis" x1="{self.left}" y1="{self.floor}" x2="{self.right}" y2="{self.floor}"/>'

    def curve(self, spots: Sequence[Spot], style: str = "") -> Iterator[str]:
        """One part of a series without gaps: its filled range, if it has one, and its line."""
        if any(spot.low < spot.high for spot in spots):
            tops = [f"{self.x(spot.x)},{self.y(spot.high)}" for spot in spots]
            bottoms = [f"{self.x(spot.x)},{self.y(spot.low)}" for spot in reversed(spots)]
            yield f'<polygon class="range{style}" points="{" ".join(tops + bottoms)}"/>'
        yield self.line(((spot.x, spot.middle) for spot in spots), f"middle{style}")

    def line(self, points: Iterable[tuple[float, float]], style: str) -> str:
        """A line through points. A single point becomes a dot."""
        placed = [f"{self.x(x)},{self.y(y)}" for x, y in points]
        return f'<polyline class="{style}" points="{" ".join(placed if len(placed) > 1 else placed * 2)}"/>'


def stretches(spots: Iterable[Spot | None]) -> Iterator[list[Spot]]:
    """The parts of a series between missing values."""
    for is_missing, part in groupby(spots, key=lambda spot: spot is None):
        if not is_missing:
            yield [spot for spot in part if spot is not None]


def escaped(text: str) -> str:
    """A text of a run for HTML or SVG, on one line, with control characters made visible."""
    return escape(visible(text))
