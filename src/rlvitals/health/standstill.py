"""Whether an engine has kept its weights, from the gap to the trainer and the age of the samples alone."""

from __future__ import annotations

import math
from collections.abc import Sequence
from itertools import pairwise
from typing import NamedTuple

NO_GAP = 5e-4
"""Nats: what is less than this is no gap, and how many times less does not matter."""


class StandStill(NamedTuple):
    """How well a gap goes with weights that the engine has kept since one point."""

    onset: int
    """The first point whose samples come from weights that are too old."""
    odds: float
    """How much better that fits than what a healthy pair, a jump or old samples do, as a logarithm."""
    times: float
    """The last gap beside the one at the onset."""
    rising: float
    """The share of the points since then at which the gap grew."""


WINDOW = 10
"""Points at which a stand-still is looked for."""

LEAST_SINCE = 4
"""Points that weights must have stood still for."""

SETTLING = (1.5, 3.0, 6.0)
"""In how many points the age of the samples may build up where nothing tells it."""

UNEVEN = 0.1
"""How far single gaps may be off a course, as a share: what fits better than this fits by chance."""

STEEPNESS = tuple(2.0 ** (power / 2) for power in range(-4, 14))
"""What one version's age adds to a gap, in units of the gap that fresh samples have."""


def stood_still(gaps: Sequence[float], ages: Sequence[float], first: int, *, squared: bool, signed: bool) -> StandStill:
    """Whether the last gaps are those of an engine that keeps its weights: after k updates the samples are k versions
    old, so the gap grows in proportion to k. In health it is level, or goes with the age of the samples, which settles.

    `first` is the number of points before these. `squared` says that the gaps come from a mean of squares (a KL), in
    which ages of 0 and 2 count more than an age of 1. `signed` that they come from a mean which keeps its sign, whose
    noise does not grow with the gap.

    >>> dead = stood_still([0.01, 0.01, 0.02, 0.04, 0.06, 0.08], [], 0, squared=False, signed=False)
    >>> dead.onset, round(dead.times), dead.odds > 1.4
    (2, 4, True)
    >>> stood_still([0.01, 0.05, 0.06, 0.06, 0.065, 0.06], [], 0, squared=False, signed=False).odds < 0
    True
    """
    n = len(gaps)
    if n <= LEAST_SINCE or math.isnan(sum(gaps)):
        return StandStill(0, -math.inf, 1.0, 0.0)
    residue = _even_squares if signed else _log_squares
    points = [gap / max(gaps) for gap in gaps] if signed else [math.log(max(gap, NO_GAP)) for gap in gaps]
    is_told = len(ages) == n and not math.isnan(sum(ages))
    before = [0.0] * n
    if is_told:  # weights of before the first step there are none
        typical = [math.sqrt(max(age, age * age)) if squared else age for age in ages]
        before = [min(age, float(first + at)) for at, age in enumerate(typical)]
    other = [before, *([1.0 - math.exp(-at / pace) for at in range(n)] for pace in SETTLING)]
    other += [[float(at >= jump) for at in range(n)] for jump in range(1, n)]
    squares, onset = min(
        (residue(points, [*before[:at], *(float(since) for since in range(1, n - at + 1))]), at)
        for at in range(1, n - LEAST_SINCE + 1)
    )
    room = n * UNEVEN * UNEVEN
    odds = 0.5 * n * math.log((min(residue(points, each) for each in other) + room) / (squares + room))
    steps = list(pairwise(gaps[onset - 1 :]))
    times = gaps[-1] / max(gaps[onset], NO_GAP)
    return StandStill(onset, odds, times, sum(after > earlier for earlier, after in steps) / len(steps))


def _log_squares(logs: Sequence[float], ages: Sequence[float]) -> float:
    """What the best course by these ages leaves of the logarithms of gaps. What age adds is independent of what was
    there before, so the squares add up.
    """
    return min(
        squares_of([log - 0.5 * math.log1p((steep * age) ** 2) for log, age in zip(logs, ages, strict=True)])
        for steep in STEEPNESS
    )


def _even_squares(points: Sequence[float], ages: Sequence[float]) -> float:
    """The same of gaps themselves."""
    return min(_left_of(points, [math.sqrt(1.0 + (steep * age) ** 2) for age in ages]) for steep in STEEPNESS)


def _left_of(points: Sequence[float], shape: Sequence[float]) -> float:
    along = sum(a * b for a, b in zip(points, shape, strict=True))
    return sum(point * point for point in points) - along * along / sum(part * part for part in shape)


def squares_of(values: Sequence[float]) -> float:
    """The sum of the squared distances from the mean."""
    mean = sum(values) / len(values)
    return sum((value - mean) ** 2 for value in values)
