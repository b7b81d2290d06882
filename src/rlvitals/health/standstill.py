"""Detects an engine that has kept its weights, from the gap to the trainer and the age of the samples alone."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from itertools import pairwise
from typing import NamedTuple

NO_GAP = 5e-4
"""Nats. Smaller gaps count as this: they are no gap, however small."""


class StandStill(NamedTuple):
    """How well the gaps fit an engine that has kept its weights since one point."""

    onset: int
    """The first point whose samples come from weights that are too old."""
    odds: float
    """How much better that fits than a healthy pair or old samples, as a logarithm."""
    over_jump: float
    """How much better it fits than a single jump, which has other causes."""
    times: float
    """The last gap divided by the one at the onset."""
    rising: float
    """The share of the points since then at which the gap grew."""


WINDOW = 10
"""Points in which a stand-still is searched for."""

LEAST_SINCE = 4
"""The fewest points for which the weights must have stood still."""

SETTLING = (1.5, 3.0, 6.0)
"""Numbers of points in which the age of the samples may build up; they are tried whatever age is logged."""

UNEVEN = 0.1
"""How far single gaps may be off a course, as a share; a closer fit is chance."""

UNSTEADY = 0.5
"""The random part of an update. After k updates the squared distance is k * k + UNSTEADY * k, in squares of one
straight update."""

OLDEST = 12
"""The mean age, in versions, up to which the ages of single samples are modelled; an older mean is used as it is."""

STEEPNESS = tuple(2.0 ** (power / 2) for power in range(-4, 14))
"""What an age of one version adds to a gap, in units of the gap of fresh samples."""

CLEARNESS = (0.1, 1.0, 4.0)
"""The KL of fresh samples divided by the noise of its estimate."""

WOBBLE = 0.2
"""How far a KL may be off a course beyond the noise of its estimate, as a share."""

LEAST_KL = 1e-7

GapPoints = Sequence[float]
"""The square of what age adds to a gap at each point, in units of one straight update."""


def stood_still(gaps: Sequence[float], ages: Sequence[float], first: int, *, squared: bool, signed: bool) -> StandStill:
    """Whether the last gaps are those of an engine that keeps its weights: after k updates the samples are k versions
    old, so the gap grows with k. In a healthy run it is level, or follows the age of the samples, which settles.

    `first` is the number of points before these. `squared` means that the gaps come from a mean of squares (a KL), in
    which ages of 0 and 2 count more than an age of 1. `signed` means that they come from a mean that keeps its sign
    (k1): while the gap is small, such a mean is noise around 0, and the noise grows with the gap.

    >>> dead = stood_still([0.01, 0.01, 0.02, 0.04, 0.06, 0.08], [], 0, squared=False, signed=False)
    >>> dead.onset, round(dead.times), dead.odds > 1.4, dead.over_jump > 1.4
    (2, 4, True, True)
    >>> stood_still([0.01, 0.05, 0.06, 0.06, 0.065, 0.06], [], 0, squared=False, signed=False).over_jump < 0
    True
    """
    n = len(gaps)
    if n <= LEAST_SINCE or math.isnan(sum(gaps)):
        return StandStill(0, -math.inf, -math.inf, 1.0, 0.0)
    fit = _of_signed(gaps) if signed else _of_sizes(gaps)
    is_logged = len(ages) == n and not math.isnan(sum(ages))
    before = [0.0] * n
    if is_logged:
        before = [_typical(age, first + at, squared=squared) for at, age in enumerate(ages)]
    quiet = [before, *([(1.0 - math.exp(-at / pace)) ** 2 for at in range(n)] for pace in SETTLING)]
    kept = [_distance(since) for since in range(1, n)]
    likelihood, onset = max((fit([*before[:at], *kept[: n - at]]), at) for at in range(1, n - LEAST_SINCE + 1))
    healthy = max(map(fit, quiet))
    jumped = max(fit([float(at >= jump) for at in range(n)]) for jump in range(1, n))
    steps = list(pairwise(gaps[onset - 1 :]))
    rising = sum(after > earlier for earlier, after in steps) / len(steps)
    return StandStill(onset, likelihood - healthy, likelihood - jumped, gaps[-1] / max(gaps[onset], NO_GAP), rising)


def _distance(versions: float) -> float:
    """The square of how far a policy moves in this many updates, most of it in one direction."""
    return versions * versions + UNSTEADY * versions


def _typical(age: float, most: int, *, squared: bool) -> float:
    """The square of what samples of this mean age add to a gap. Single samples have whole ages, which scatter around
    the mean (Poisson), and no weights are older than the first step.

    >>> _typical(2.0, 0, squared=True), _typical(0.0, 5, squared=True)
    (0.0, 0.0)
    >>> round(_typical(1.0, 9, squared=True), 2)  # 1 + 1 of the ages, and 0.5
    2.5
    >>> _typical(20.0, 99, squared=True)  # 20 * 20 and 0.5 * 20
    410.0
    """
    if age > OLDEST:
        return _distance(min(age, most))
    chance, left, total = math.exp(-age), 1.0, 0.0
    for versions in range(min(most, 3 * OLDEST)):
        total += chance * (_distance(versions) if squared else math.sqrt(_distance(versions)))
        left -= chance
        chance *= age / (versions + 1)
    last = _distance(most)
    total += max(left, 0.0) * (last if squared else math.sqrt(last))
    return total if squared else total * total


def _of_sizes(gaps: Sequence[float]) -> Callable[[GapPoints], float]:
    """How well a course fits gaps without a sign, as a logarithm: their noise is a share of them."""
    logs = [math.log(max(gap, NO_GAP)) for gap in gaps]
    n = len(logs)
    room = n * UNEVEN * UNEVEN

    def fit(course: GapPoints) -> float:
        # The part that age adds is independent of the gap of fresh samples, so the squares add up.
        left = min(
            squares_of([log - 0.5 * math.log1p(steep * steep * old) for log, old in zip(logs, course, strict=True)])
            for steep in STEEPNESS
        )
        return -0.5 * n * math.log(left + room)

    return fit


def _of_signed(gaps: Sequence[float]) -> Callable[[GapPoints], float]:
    """The same for gaps that come from k1. Its mean grows with the square of the gap and its noise with the gap itself.
    Which of the two is visible depends on the number of tokens in the mean, which no log has.
    """
    sizes = [0.5 * gap * gap + LEAST_KL for gap in gaps]

    def fit(course: GapPoints) -> float:
        return max(_folded(sizes, course, steep * steep, clear) for steep in STEEPNESS[::2] for clear in CLEARNESS)

    return fit


def _folded(sizes: Sequence[float], course: GapPoints, steep: float, clear: float) -> float:
    """The log-likelihood of absolute values of normal variables whose mean and noise follow a course, best scaled."""
    means, spreads, power = [], [], 0.0
    for size, old in zip(sizes, course, strict=True):
        grown = 1.0 + steep * old
        mean = clear * grown
        spread = grown + (WOBBLE * mean) ** 2
        means.append(mean)
        spreads.append(spread)
        power += size * size / (mean * mean + spread)
    scale = math.sqrt(power / len(sizes))
    total = -len(sizes) * math.log(scale)
    for size, mean, spread in zip(sizes, means, spreads, strict=True):
        value = size / scale
        total -= 0.5 * (value - mean) ** 2 / spread + 0.5 * math.log(spread)
        total += math.log1p(math.exp(-2.0 * value * mean / spread))
    return total


def squares_of(values: Sequence[float]) -> float:
    """The sum of the squared distances from the mean."""
    mean = sum(values) / len(values)
    return sum((value - mean) ** 2 for value in values)
