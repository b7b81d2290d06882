"""The whole course of a series in constant memory: up to 64 block means, and what they say of gain, loss and noise.

A reader of curves looks at the means of a run's tenths and asks whether they differ by more than they scatter. So does
a `Course`: it splits the run so far into up to ten stretches of equal length. The noise of a stretch's mean is
estimated from the blocks within the stretches and from the changes between neighbouring stretches. A logged running
mean still looks less noisy than it is: one with a memory of ten points and no trend is called gained or lost in a third
of runs of 40 points, a quarter of 60, a tenth of 300.

>>> course = Course()
>>> for point in range(100):
...     course.add(0.01 * point + 0.05 * (-1) ** point)
>>> round(course.start, 2), round(course.now, 2), course.gain > 10, course.kept
(0.04, 0.95, True, 1.0)
"""

from __future__ import annotations

import math
from itertools import pairwise

MOST_BLOCKS = 64
STRETCHES = 10
BLOCKS_A_STRETCH = 4
"""Blocks a stretch has at the least, so that a short run has fewer stretches."""

LEAST_POINTS = 3 * BLOCKS_A_STRETCH
"""Points until there is anything to compare."""

BEYOND_NOISE = 2.0
"""Standard errors of a difference between two stretches beyond which it is taken for real."""

MOST_KEPT = 0.5
"""The share of its best gain that a run must still have to have won."""

_SIGMA_OF_MEDIAN = 1.4826
"""Median absolute deviation to standard deviation, for a normal law."""


class Course:
    """Values in, one by one; the levels of the run's stretches out. Answers are worked out when they are asked for,
    and kept until the next block is full: of a long run a block is one part in 32 to 64.
    """

    __slots__ = ("_at", "_blocks", "_count", "_levels", "_noise", "_size", "_sum", "n")

    def __init__(self) -> None:
        self.n = 0
        self._blocks: list[float] = []
        self._size = 1
        self._sum = 0.0
        self._count = 0
        self._at = -1
        self._levels: list[float] = []
        self._noise = 0.0

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
        self._work_out()
        return self._levels

    @property
    def noise(self) -> float:
        """The standard error of a stretch's mean."""
        self._work_out()
        return self._noise

    @property
    def start(self) -> float:
        """The level of the first stretch."""
        return self.levels[0] if self.levels else math.nan

    @property
    def now(self) -> float:
        """The level of the last stretch."""
        return self.levels[-1] if self.levels else math.nan

    @property
    def best(self) -> float:
        """The highest level."""
        return max(self.levels, default=math.nan)

    @property
    def gain(self) -> float:
        """How far the last stretch is above the first, in standard errors of that difference; below 0: it lost."""
        return self._in_errors(self.now - self.start)

    @property
    def best_gain(self) -> float:
        """How far the best stretch is above the first, in standard errors."""
        return self._in_errors(self.best - self.start)

    @property
    def fall(self) -> float:
        """How far the last stretch is below the best, in standard errors."""
        return self._in_errors(self.best - self.now)

    @property
    def lately(self) -> float:
        """How far the last stretch is above the one a third of the run ago, in standard errors."""
        levels = self.levels
        return self._in_errors(levels[-1] - levels[-1 - (len(levels) + 2) // 3]) if levels else 0.0

    @property
    def kept(self) -> float:
        """The share of its best gain that is left; 1 where nothing was gained."""
        won = self.best - self.start
        return (self.now - self.start) / won if won > 0 else 1.0

    @property
    def won(self) -> bool:
        """Whether the last stretch is above the first, and most of the best gain is kept."""
        return self.gain >= BEYOND_NOISE and self.kept >= MOST_KEPT

    @property
    def lost(self) -> bool:
        """Whether the last stretch is below the first, or most of a gain is gone."""
        return self.gain <= -BEYOND_NOISE or (self.best_gain >= BEYOND_NOISE and self.kept < MOST_KEPT)

    def _in_errors(self, difference: float) -> float:
        if not self.levels:
            return 0.0
        return difference / (math.sqrt(2.0) * self._noise) if self._noise > 0 else math.copysign(0.0, difference)

    def _work_out(self) -> None:
        done = self.n - self._count
        if self._at == done:
            return
        self._at = done
        blocks = self._blocks
        count = len(blocks)
        if count < LEAST_POINTS:
            self._levels = []
            return
        stretches = min(STRETCHES, count // BLOCKS_A_STRETCH)
        levels, apart, residuals = [], [], []
        for index in range(stretches):
            part = blocks[index * count // stretches : (index + 1) * count // stretches]
            level = sum(part) / len(part)
            levels.append(level)
            away = [value - level for value in part]
            residuals += away
            apart.append(math.sqrt(sum(value * value for value in away) / (len(part) - 1)))
        squares = sum(value * value for value in residuals)
        together = sum(earlier * later for earlier, later in pairwise(residuals))
        alike = min(max(together / squares, 0.0), 0.95) if squares > 0 else 0.0
        within = median(apart) * math.sqrt((1 + alike) / (1 - alike) * stretches / count)
        changes = [later - earlier for earlier, later in pairwise(levels)]
        usual = median(changes)
        between = _SIGMA_OF_MEDIAN * median([abs(change - usual) for change in changes]) / math.sqrt(2.0)
        mean = sum(changes) / len(changes)
        spread = math.sqrt(
            sum((change - mean) * (change - mean) for change in changes) / max(len(changes) - 1, 1) / 2.0
        )
        # A quarter of what the changes scatter with all their leaps: a series that only ever leaps has no other noise.
        self._levels, self._noise = levels, max(within, between, 0.25 * spread)


def median(values: list[float]) -> float:
    """Return the middle value (the stdlib's own costs an import that the training process need not pay)."""
    ordered = sorted(values)
    middle = len(ordered) // 2
    return ordered[middle] if len(ordered) % 2 else 0.5 * (ordered[middle - 1] + ordered[middle])
