"""The whole course of a series in constant memory: up to 64 block means, and the gain, loss and noise they show.

A `Course` splits the run so far into up to ten stretches of equal length, and compares their means. A difference is
treated as real if it is larger than the scatter of the means.

How far a stretch's mean scatters depends on the memory (autocorrelation) of the series: a logged running mean of ten
points looks smooth while it drifts away and comes back. So the scatter is measured over several distances, up to a
seventh of the run. At each distance it is how far a block is from the middle of its two neighbours; for a straight rise
or fall that is 0. Where the scatter grows with the distance, the series has a memory, and the growth shows how long it
is. `benchmarks/course_noise.py` prints how often a series without any trend is called gained or lost.

>>> course = Course()
>>> for point in range(100):
...     course.add(0.01 * point + 0.05 * (-1) ** point)
>>> round(course.start, 2), round(course.now, 2), course.gain > 5, course.kept
(0.04, 0.95, True, 1.0)
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from itertools import pairwise

from rlvitals.values import median

MOST_BLOCKS = 64
STRETCHES = 10
BLOCKS_A_STRETCH = 4
"""The fewest blocks of a stretch; a short run therefore has fewer stretches."""

LEAST_POINTS = 3 * BLOCKS_A_STRETCH
"""Points needed before stretches can be compared."""

BEYOND_NOISE = 2.0
"""A difference between two stretches of at least this many standard errors is treated as real."""

MOST_KEPT = 0.5
"""The share of its best gain that a run must have kept to count as won."""

REACH = 0.15
"""The longest distance over which scatter is measured, as a share of the run: beyond it there are too few pairs."""

BY_CHANCE = 0.25
MOST_ALIKE = 0.98
FEW = 1.0
"""How much to widen an error estimated from few independent values: by one over their number, like Student's t."""

LEAPS = 0.25
"""The least noise, as a share of the scatter of the changes between stretches."""

ROUNDING = 1e-9

SIGMA_OF_MEDIAN = 1.4826
"""Median absolute deviation to standard deviation, for a normal distribution."""


class Course:
    """Takes values one by one and keeps the levels of the run's stretches. Results are computed on demand and cached
    until the next block is full. In a long run a block is one part in 32 to 64.
    """

    __slots__ = ("_at", "_blocks", "_count", "_levels", "_noise", "_size", "_sum", "_won", "_won_at", "n")

    def __init__(self) -> None:
        self.n = 0
        self._blocks: list[float] = []
        self._size = 1
        self._sum = 0.0
        self._count = 0
        self._at = -1
        self._levels: list[float] = []
        self._noise = 0.0
        self._won = False
        self._won_at = -1

    def add(self, value: float) -> None:
        """Take the next value."""
        self.n += 1
        self._sum += value
        self._count += 1
        if self._count == self._size:
            blocks = self._blocks
            blocks.append(self._sum / self._size)
            self._sum, self._count = 0.0, 0
            if len(blocks) == MOST_BLOCKS:
                self._blocks = [0.5 * (blocks[at] + blocks[at + 1]) for at in range(0, MOST_BLOCKS, 2)]
                self._size *= 2

    @property
    def levels(self) -> list[float]:
        """The means of the run's stretches, in order; none while there are too few points."""
        if self._at != self.n - self._count:
            self._work_out()
        return self._levels

    @property
    def noise(self) -> float:
        """The standard error of a stretch's mean."""
        if self._at != self.n - self._count:
            self._work_out()
        return self._noise

    @property
    def start(self) -> float:
        """The level of the first stretch."""
        levels = self.levels
        return levels[0] if levels else math.nan

    @property
    def now(self) -> float:
        """The level of the last stretch."""
        levels = self.levels
        return levels[-1] if levels else math.nan

    @property
    def best(self) -> float:
        """The highest level."""
        return max(self.levels, default=math.nan)

    @property
    def gain(self) -> float:
        """How far the last stretch is above the first, in standard errors of that difference; negative after a loss."""
        return self.in_errors(self.now - self.start)

    @property
    def best_gain(self) -> float:
        """How far the best stretch is above the first, in standard errors."""
        return self.in_errors(self.best - self.start)

    @property
    def fall(self) -> float:
        """How far the last stretch is below the best, in standard errors."""
        return self.in_errors(self.best - self.now)

    @property
    def lately(self) -> float:
        """How far the last stretch is above the one a third of the run ago, in standard errors."""
        levels = self.levels
        return self.in_errors(levels[-1] - levels[-1 - (len(levels) + 2) // 3]) if levels else 0.0

    @property
    def kept(self) -> float:
        """The share of the best gain that is left; 1 where nothing was gained."""
        won = self.best - self.start
        return (self.now - self.start) / won if won > 0 else 1.0

    @property
    def won(self) -> bool:
        """Whether the last stretch is above the first, and most of the best gain is kept."""
        done = self.n - self._count
        if self._won_at != done:  # a dozen rules read it, and only a full block changes it
            self._won_at = done
            self._won = self.gain >= BEYOND_NOISE and self.kept >= MOST_KEPT
        return self._won

    @property
    def lost(self) -> bool:
        """Whether the last stretch is below the first, or most of a gain is gone."""
        if self.gain <= -BEYOND_NOISE:
            return True
        return self.best_gain >= BEYOND_NOISE and self.fall >= BEYOND_NOISE and self.kept < MOST_KEPT

    def fall_of_last(self, size: int) -> tuple[float, float, float]:
        """The best mean of `size` neighbouring values, how far the mean of the last `size` is below it, and the
        standard error of that difference. It is for series of few values, such as evaluations. The noise of a value is
        estimated from its distance to the middle of its neighbours.

        >>> course = Course()
        >>> for score in (0.3, 0.35, 0.41, 0.39, 0.44, 0.5, 0.46, 0.37, 0.3, 0.27):
        ...     course.add(score)
        >>> [round(value, 3) for value in course.fall_of_last(2)]
        [0.48, 0.195, 0.027]
        """
        blocks = self._blocks
        count = len(blocks)
        if count < max(2 * size, 3):
            return math.nan, 0.0, math.inf
        best = max(sum(blocks[at : at + size]) for at in range(count - 2 * size + 1)) / size
        return best, best - sum(blocks[-size:]) / size, scatter(blocks) * math.sqrt(2.0 / size)

    def in_errors(self, difference: float) -> float:
        """A difference between two stretches in its standard errors."""
        if not self.levels:
            return 0.0
        return difference / (math.sqrt(2.0) * self._noise) if self._noise > 0 else math.copysign(0.0, difference)

    def _work_out(self) -> None:
        self._at = self.n - self._count
        blocks = self._blocks
        count = len(blocks)
        if count < LEAST_POINTS:
            self._levels = []
            return
        stretches = min(STRETCHES, count // BLOCKS_A_STRETCH)
        levels = []
        for index in range(stretches):
            part = blocks[index * count // stretches : (index + 1) * count // stretches]
            levels.append(sum(part) / len(part))
        changes = [later - earlier for earlier, later in pairwise(levels)]
        mean = sum(changes) / len(changes)
        leaps = sum((change - mean) * (change - mean) for change in changes) / max(len(changes) - 1, 1) / 2.0
        # A series that only leaps shows no other noise; a straight line has only rounding errors.
        self._levels = levels
        self._noise = max(
            error_of_mean(blocks, count // stretches),
            LEAPS * math.sqrt(leaps),
            ROUNDING * max(map(abs, levels)),
        )


def by_chance(count: int) -> float:
    """An upper bound on how far the highest of `count` normal values is above their mean, on average, in standard
    deviations.

    >>> round(by_chance(5), 2), round(by_chance(30), 2)
    (1.79, 2.61)
    """
    return math.sqrt(2.0 * math.log(max(count, 1)))


def error_of_mean(values: list[float], size: int) -> float:
    """Return the standard error of the mean of `size` neighbouring values of a series that may be autocorrelated.

    >>> round(error_of_mean([0.0, 1.0, 0.4, -0.7, -0.1, 0.2, -0.9, 0.8, -0.3, 0.5, -0.6, 0.1], 4), 1)
    0.6
    >>> error_of_mean([0.3] * 12, 4)
    0.0
    """
    count = len(values)
    variances = _variances(values, max(int(REACH * count), 2))
    near, far = variances[0], max(variances)
    if far <= 0 or far == math.inf:
        return far
    # In a series without memory, the largest of a few estimates is above the first by chance.
    alike = min(max((1.0 - near / far - BY_CHANCE) / (1.0 - BY_CHANCE), 0.0), MOST_ALIKE)
    # The variance of a mean where each value is `alike` times the one before plus new noise (AR(1)).
    ahead, behind = 1.0 + alike, 1.0 - alike
    shared = ahead / behind - 2.0 * alike * (1.0 - alike**size) / (size * behind * behind)
    error = math.sqrt(far * min(shared / size, 1.0))
    independent = count * behind / ahead
    return error * (1.0 + FEW / max(independent - 1.0, 1.0))


def _variances(values: list[float], reach: int) -> list[float]:
    """The variance of a series measured over growing distances, and extrapolated to half as much again."""
    found: list[float] = []
    last = 0
    for distance in sorted({1, reach // 4 or 1, reach // 2, reach}):
        usual = scatter(values, distance)
        variance = usual * usual  # not a power, which raises an error if it is too large for a float
        # The variance of a random walk grows in proportion to the distance. A faster growth is a curve, not noise.
        found.append(min(variance, found[-1] * distance / last) if found else variance)
        last = distance
    if found[-1] == math.inf:
        return found
    growth = found[-1] / found[-2] if found[-2] > 0 else 1.0
    found.append(found[-1] * math.sqrt(min(max(growth, 1.0), 2.0)))
    return found


def scatter(values: Sequence[float], distance: int = 1) -> float:
    """The standard deviation of single values around a smooth curve, from the distance of each to the middle of the
    values at `distance` on both sides. For a straight rise or fall it is 0.

    >>> round(scatter([0.0, 1.1, 1.9, 3.1, 4.0]), 3)
    0.182
    """
    bends = [
        abs(values[at - distance] - 2.0 * values[at] + values[at + distance])
        for at in range(distance, len(values) - distance)
    ]
    return SIGMA_OF_MEDIAN * median(bends) / math.sqrt(6.0)  # noise of s bends by s * sqrt(1 + 4 + 1)
