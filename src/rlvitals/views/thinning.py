"""A long series in few buckets, each with its lowest and highest value: what is drawn hides no spike.

Every point takes part in a bucket, and a bucket's lowest and highest are values that were logged. A bucket without a
finite value has None: nothing is drawn where nothing was.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from rlvitals.contract import Curve
from rlvitals.render.curves import in_buckets

MOST_POINTS = 10_000
"""Buckets of one line, however many are asked for: more than any screen has columns."""


class Thinned(NamedTuple):
    """One line to draw. Without thinning every bucket holds one point, and low, high and y are that point."""

    total: int
    """Points there are."""
    shown: int
    """Buckets they are shown as."""
    nonfinite: int
    """Points that are NaN or infinite."""
    x: list[float]
    """Where each bucket begins."""
    low: list[float | None]
    high: list[float | None]
    y: list[float | None]
    """The mean of its finite values."""
    steps: list[int]
    """The step each bucket begins at."""

    @property
    def facts(self) -> Curve:
        return {
            "total": self.total, "shown": self.shown, "nonfinite": self.nonfinite, "x": self.x, "low": self.low,
            "high": self.high, "y": self.y, "steps": self.steps,
        }  # fmt: skip


def thin(x: NDArray[Any], values: NDArray[np.float64], steps: NDArray[Any], points: int) -> Thinned:
    """At most so many buckets of as many points each; the last may hold fewer.

    >>> line = thin(np.arange(6), np.array([0.0, 9.0, 1.0, 2.0, np.nan, np.nan]), np.arange(6), 3)
    >>> line.low, line.high, line.y
    ([0.0, 1.0, None], [9.0, 2.0, None], [4.5, 1.5, None])
    """
    total = len(values)
    points = min(max(points, 1), MOST_POINTS)
    nonfinite = total - int(np.isfinite(values).sum())
    if total <= points:
        line = plain_numbers(values)
        return Thinned(total, total, nonfinite, x.tolist(), line, line, line, _whole(steps))
    starts, low, high, mean = in_buckets(values, points)
    return Thinned(
        total,
        len(starts),
        nonfinite,
        x[starts].tolist(),
        plain_numbers(low),
        plain_numbers(high),
        plain_numbers(mean),
        _whole(steps[starts]),
    )


def plain_numbers(numbers: NDArray[Any]) -> list[float | None]:
    """Numbers as JSON can hold them: None for what is not finite."""
    listed: list[float | None] = numbers.tolist()
    if numbers.dtype.kind == "f" and not np.isfinite(numbers).all():
        return [number if number is not None and number - number == 0 else None for number in listed]
    return listed


def _whole(steps: NDArray[Any]) -> list[int]:
    whole: list[int] = steps.astype(np.int64).tolist()
    return whole
