"""Tests of one run against a few others: a prediction interval that also uses the noise within the runs, and Hommel's
correction for several measures.

Three runs determine the spread between them within a factor of two at best, and a plain t interval is so wide that it
finds nothing. The noise within each run adds information. `moderated` combines both, as limma does for genes with few
samples (Smyth 2004). The combined variance is a weighted mean of two variances: the one between the runs, with one
degree of freedom less than there are runs, and the one predicted from the noise within them, with a number of degrees
of freedom that was estimated on other runs.

>>> spread = moderated([1.0, 1.2, 1.1], predicted=0.1, worth=4.0)
>>> round(spread.deviation, 3), spread.freedom
(0.1, 6.0)
>>> round(tail(2.0, 6.0), 4), round(quantile(0.975, 6.0), 3)
(0.0462, 2.447)
>>> hommel([0.01, 0.02, 0.03])
[0.03, 0.03, 0.03]
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import NamedTuple

UNLIKELY = 0.01
"""The probability below which the predicted spread is ignored, because it does not match the observed one."""

_MOST_TERMS = 300
_TINY = 1e-300


class Spread(NamedTuple):
    """The spread between runs of the same kind."""

    deviation: float
    """The standard deviation of single runs."""
    freedom: float
    """The degrees of freedom of this estimate."""


def moderated(values: Sequence[float], predicted: float, worth: float) -> Spread:
    """The standard deviation between runs: the spread of `values`, combined with the standard deviation `predicted`
    from the noise within the runs, which counts as `worth` degrees of freedom. If the runs differ by far more than
    predicted, the noise within them is not informative, and only the observed spread counts.
    """
    own = len(values) - 1
    mean = sum(values) / len(values)
    squares = sum((value - mean) ** 2 for value in values)
    freedom = own + worth
    if freedom <= 0:
        return Spread(math.inf, 0.0)
    if own > 0 and worth > 0 and ratio_tail(squares, own, worth * predicted * predicted, worth) < UNLIKELY:
        return Spread(math.sqrt(squares / own), float(own))
    return Spread(math.sqrt((squares + worth * predicted * predicted) / freedom), freedom)


def ratio_tail(squares: float, freedom: float, others: float, other_freedom: float) -> float:
    """The probability that the ratio F of two mean squares exceeds the observed one, from the sums of squares and their
    degrees of freedom.

    >>> round(ratio_tail(2.0 * 19.0, 2.0, 2.0, 2.0), 3), ratio_tail(0.0, 2.0, 1.0, 3.0)
    (0.05, 1.0)
    """
    if squares <= 0:
        return 1.0
    return _incomplete_beta(0.5 * other_freedom, 0.5 * freedom, others / (others + squares))


def prediction_error(spread: Spread, runs: int) -> float:
    """The standard error of the distance between a further run and the mean of `runs` runs.

    >>> prediction_error(Spread(3.0, 5.0), 4) == 3.0 * math.sqrt(1.25)
    True
    """
    return spread.deviation * math.sqrt(1.0 + 1.0 / runs)


def tail(t: float, freedom: float) -> float:
    """The probability that Student's t with `freedom` degrees of freedom is above `t`.

    >>> tail(0.0, 3.0), round(tail(1.0, 1.0), 12)
    (0.5, 0.25)
    """
    if math.isinf(t):
        return 0.0 if t > 0 else 1.0
    beyond = 0.5 * _incomplete_beta(0.5 * freedom, 0.5, freedom / (freedom + t * t))
    return beyond if t >= 0 else 1.0 - beyond


def quantile(share: float, freedom: float) -> float:
    """The value that Student's t stays below with probability `share`. Bisection is fast enough for a few calls."""
    if share < 0.5:
        return -quantile(1.0 - share, freedom)
    low, high = 0.0, 1.0
    while tail(high, freedom) > 1.0 - share:
        low, high = high, 2.0 * high
        if high > 1e12:
            return math.inf
    for _ in range(80):
        middle = 0.5 * (low + high)
        if tail(middle, freedom) > 1.0 - share:
            low = middle
        else:
            high = middle
    return high


def hommel(chances: Sequence[float]) -> list[float]:
    """Adjusted p-values by Hommel (1988). If every one at or below alpha is called significant, the probability of any
    false call is at most alpha. This holds for independent and for positively dependent tests, such as those of one
    curve.

    >>> hommel([0.04, 0.04]), hommel([0.01, 0.5])
    ([0.04, 0.04], [0.02, 0.5])
    """
    count = len(chances)
    order = sorted(range(count), key=chances.__getitem__)
    ordered = [chances[place] for place in order]
    adjusted = list(ordered)
    if count > 1:
        least = min(count * chance / rank for rank, chance in enumerate(ordered, 1))
        best = [least] * count
        adjusted = list(best)
        for size in range(count - 1, 1, -1):
            first = count - size + 1
            upper = range(first, count)
            smallest = min(size * ordered[place] / (2 + place - first) for place in upper)
            for place in range(first):
                best[place] = min(size * ordered[place], smallest)
            for place in upper:
                best[place] = best[first - 1]
            adjusted = [max(one, other) for one, other in zip(adjusted, best, strict=True)]
        adjusted = [min(1.0, max(one, chance)) for one, chance in zip(adjusted, ordered, strict=True)]
    found = [0.0] * count
    for place, chance in zip(order, adjusted, strict=True):
        found[place] = chance
    return found


def _incomplete_beta(a: float, b: float, x: float) -> float:
    """The regularised incomplete beta function, by Lentz's continued fraction."""
    if x <= 0.0 or x >= 1.0:
        return 0.0 if x <= 0.0 else 1.0
    front = math.exp(math.lgamma(a + b) - math.lgamma(a) - math.lgamma(b) + a * math.log(x) + b * math.log1p(-x))
    if x < (a + 1.0) / (a + b + 2.0):
        return front * _fraction(a, b, x) / a
    return 1.0 - front * _fraction(b, a, 1.0 - x) / b


def _fraction(a: float, b: float, x: float) -> float:
    c, d = 1.0, 1.0 - (a + b) * x / (a + 1.0)
    d = 1.0 / (d if abs(d) > _TINY else _TINY)
    result = d
    for m in range(1, _MOST_TERMS):
        even = m * (b - m) * x / ((a + 2 * m - 1.0) * (a + 2 * m))
        odd = -(a + m) * (a + b + m) * x / ((a + 2 * m) * (a + 2 * m + 1.0))
        for term in (even, odd):
            d = 1.0 + term * d
            d = 1.0 / (d if abs(d) > _TINY else _TINY)
            c = 1.0 + term / c
            c = c if abs(c) > _TINY else _TINY
            result *= c * d
        if abs(c * d - 1.0) < 1e-15:
            break
    return result
