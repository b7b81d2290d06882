"""Measures how a series has grown over its last points; a rule compares the measurements with its numbers."""

from __future__ import annotations

import math
from collections.abc import Sequence
from itertools import pairwise
from typing import NamedTuple


class GapGrowth(NamedTuple):
    """The last points of a positive series, compared with those before them and with the age of the samples."""

    times: float
    """The last value divided by the first."""
    least: float
    """The smallest change from one point to the next, as a logarithm."""
    largest: float
    """The share of the largest change in the growth, in logarithms."""
    later: float
    """The sum of the last two changes divided by that of the first two: below 1 the growth slows down."""
    usual: float
    """The median size of a change before these points, as a logarithm."""
    changes: int
    """The number of changes before these points."""
    is_highest: bool
    """Whether the last value is above all before these points."""
    older: float
    """How many times older the samples have become; 0 where they have not, or where no age is logged."""


def growth_of(values: Sequence[float], ages: Sequence[float], points: int, youngest: float) -> GapGrowth | None:
    """The growth over the last `points` values; None where there are too few, or where the series has not grown. Ages
    below `youngest` count as `youngest`.

    >>> grown = growth_of([1.0, 1.0, 1.0, 2.0, 3.0, 4.0], [math.nan] * 6, 4, 0.1)
    >>> grown.times, round(grown.largest, 2), grown.later, grown.changes, grown.older
    (4.0, 0.5, 1.0, 2, 0.0)
    >>> growth_of([4.0, 3.0, 2.0, 1.0], [0.0] * 4, 4, 0.1) is None
    True
    """
    recent = values[-points:]
    if len(recent) < points or not recent[-1] > recent[0]:
        return None
    ratios = [math.log(after / before) for before, after in pairwise(recent)]
    added = [after - before for before, after in pairwise(recent)]
    if math.isnan(sum(ratios)) or not sum(added[:2]) > 0:
        return None
    usual = sorted(abs(math.log(after / before)) for before, after in pairwise(values[: -points + 1]))
    older = max(ages[-1], youngest) / max(ages[-points], youngest)  # NaN where one of them is not logged
    return GapGrowth(
        times=recent[-1] / recent[0],
        least=min(ratios),
        largest=max(ratios) / sum(ratios),
        later=sum(added[-2:]) / sum(added[:2]),
        usual=usual[len(usual) // 2] if usual else 0.0,
        changes=len(usual),
        is_highest=recent[-1] > max(values[:-points], default=0.0),
        older=older if older > 1 else 0.0,
    )
