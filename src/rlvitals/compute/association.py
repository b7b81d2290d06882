"""Tests of association: a mark and the reward within strata, a share over the steps, the ranks of two series.

`Gain` and `Trend` keep running sums, so a run of any length takes constant memory. The functions are small tests.

>>> gain = Gain()
>>> gain.add([1.0, 1.0, 0.0, 0.0], [True, True, False, False])
>>> gain.difference, round(gain.z, 3)
(1.0, 1.732)
>>> trend = Trend()
>>> for step in range(10):
...     trend.add(step, marked=step, count=10)
>>> round(trend.z, 2)
5.77
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass


@dataclass(slots=True)
class Gain:
    """How much more reward marked items earn than unmarked ones of their stratum (a prompt's group, a step).

    Only strata with both kinds count, so easy prompts do not favour the mark. `z` compares the sum of the marked items'
    rewards with its mean if the marks of each stratum were assigned at random, in standard deviations (the stratified
    permutation test).
    """

    excess: float = 0.0
    variance: float = 0.0
    weight: float = 0.0
    marked: int = 0
    """Marked items in strata that have both kinds."""

    def add(self, rewards: Sequence[float], marks: Sequence[bool]) -> None:
        """Add one stratum."""
        n, hits = len(rewards), sum(marks)
        if not 0 < hits < n:
            return
        mean = math.fsum(rewards) / n
        self.excess += math.fsum(reward - mean for reward, mark in zip(rewards, marks, strict=True) if mark)
        share = hits * (n - hits) / n
        self.variance += share / (n - 1) * math.fsum((reward - mean) ** 2 for reward in rewards)
        self.weight += share
        self.marked += hits

    @property
    def difference(self) -> float | None:
        """Mean reward of marked minus unmarked items, over strata; None if no stratum has both kinds."""
        return self.excess / self.weight if self.weight else None

    @property
    def z(self) -> float:
        """The test statistic; 0 if no stratum has both kinds and different rewards."""
        return self.excess / math.sqrt(self.variance) if self.variance > 0 else 0.0


@dataclass(slots=True)
class Trend:
    """Whether a share rises or falls along a scale: the Cochran-Armitage test, from sums."""

    count: float = 0.0
    marked: float = 0.0
    at: float = 0.0
    at_marked: float = 0.0
    at_squared: float = 0.0
    origin: float | None = None

    def add(self, place: float, *, marked: int, count: int) -> None:
        """Add `count` items at this place of the scale (a step), of which `marked` are marked."""
        if self.origin is None:
            self.origin = place  # sums of squares of large step numbers would lose digits
        t = place - self.origin
        self.count += count
        self.marked += marked
        self.at += t * count
        self.at_marked += t * marked
        self.at_squared += t * t * count

    @property
    def z(self) -> float:
        """The test statistic: above 0 if the share rises, 0 if the data shows no variation."""
        if not self.count:
            return 0.0
        share = self.marked / self.count
        spread = share * (1 - share) * (self.at_squared - self.at * self.at / self.count)
        return (self.at_marked - share * self.at) / math.sqrt(spread) if spread > 0 else 0.0


def two_sided(z: float) -> float:
    """The probability that a standard normal variable is at least as far from 0 as `z`.

    >>> round(two_sided(1.959963984540054), 6)
    0.05
    """
    return math.erfc(abs(z) / math.sqrt(2))


def sign_test(wins: int, losses: int) -> float:
    """Two-sided exact probability of a split at least this uneven if both sides are equally likely (binomial, 1/2).

    >>> round(sign_test(9, 1), 4)
    0.0215
    """
    n, k = wins + losses, min(wins, losses)
    if not n:
        return 1.0
    tail = sum(math.comb(n, i) for i in range(k + 1)) / math.pow(2, n)
    return min(1.0, 2 * tail)


def rank_correlation(xs: Sequence[float], ys: Sequence[float]) -> tuple[float, float] | None:
    """Spearman's correlation of two series, with mean ranks for ties, and its z = r sqrt(n - 1). None if a series is
    constant, the lengths differ or there are fewer than 3 pairs.

    >>> [round(number, 4) for number in rank_correlation([1, 2, 3, 4], [10, 20, 40, 30])]
    [0.8, 1.3856]
    """
    if len(xs) != len(ys) or len(xs) < 3:
        return None
    one, other = ranks(xs), ranks(ys)
    middle = (len(xs) + 1) / 2
    both = math.fsum((a - middle) * (b - middle) for a, b in zip(one, other, strict=True))
    size = math.sqrt(math.fsum((a - middle) ** 2 for a in one) * math.fsum((b - middle) ** 2 for b in other))
    if not size:
        return None
    found = both / size
    return found, found * math.sqrt(len(xs) - 1)


def ranks(numbers: Sequence[float]) -> list[float]:
    """Ranks from 1. Equal numbers get the mean of their ranks.

    >>> ranks([10.0, 30.0, 20.0, 20.0])
    [1.0, 4.0, 2.5, 2.5]
    """
    order = sorted(range(len(numbers)), key=numbers.__getitem__)
    found = [0.0] * len(numbers)
    start = 0
    while start < len(order):
        end = start
        while end + 1 < len(order) and numbers[order[end + 1]] == numbers[order[start]]:
            end += 1
        for place in order[start : end + 1]:
            found[place] = (start + end) / 2 + 1
        start = end + 1
    return found
