"""Where two curves diverge: the first step from which they keep differing by more than their own noise.

The noise of a curve is estimated from its jumps from point to point. Runs that differ from the first step diverge
there. A difference that does not last does not count.
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np
from numpy.typing import NDArray

from rlvitals.health.course import SIGMA_OF_MEDIAN

FEWEST_POINTS = 8
SMALLEST_WINDOW, LARGEST_WINDOW = 3, 50
BEYOND = 4.0
"""Standard errors that the mean difference in a window must exceed. It is high because a curve has many windows."""

LASTING = 0.8
"""Share of the following windows in which the difference must persist with the same sign."""


def parting_step(steps: NDArray[Any], one: NDArray[Any], other: NDArray[Any]) -> int | None:
    """The first step from which two curves over the same steps differ by more than their noise. None if they do not, or
    if there are too few points.

    >>> steps = np.arange(100)
    >>> wave = np.sin(np.arange(100) * 2.0) * 0.1
    >>> parting_step(steps, wave, -wave), parting_step(steps, wave, -wave + np.where(steps < 50, 0.0, 1.0))
    (None, 50)
    """
    finite = np.isfinite(one) & np.isfinite(other)
    steps, one, other = steps[finite], one[finite], other[finite]
    if len(steps) < FEWEST_POINTS:
        return None
    noise = math.hypot(_noise(one), _noise(other))
    width = _width(steps)
    means = _windows(one - other, width)
    limit = max(BEYOND * noise / math.sqrt(width), _tiny(one, other))
    window = _first_lasting(means, np.full(len(means), limit))
    if window is None:
        return None
    return int(steps[_onset(one - other, window, width, math.copysign(limit, means[window]))])


def bands_part(steps: NDArray[Any], one: NDArray[Any], other: NDArray[Any]) -> int | None:
    """The first step from which two bands over the same steps no longer overlap. A band is the mean of several runs
    (one row per run) plus and minus one standard deviation. None if they do not stay apart in most later windows, or if
    there are too few points or runs.

    >>> steps = np.arange(100)
    >>> low = np.array([np.zeros(100), np.full(100, 0.1)])
    >>> bands_part(steps, low, low + 0.05), bands_part(steps, low, low + np.where(steps < 50, 0.0, 1.0))
    (None, 50)
    """
    finite = np.isfinite(one).all(axis=0) & np.isfinite(other).all(axis=0)
    steps, one, other = steps[finite], one[:, finite], other[:, finite]
    if len(steps) < FEWEST_POINTS or min(len(one), len(other)) < 2:
        return None
    width = _width(steps)
    means = _windows(one.mean(axis=0) - other.mean(axis=0), width)
    spread = _windows(one.std(axis=0, ddof=1) + other.std(axis=0, ddof=1), width)
    window = _first_lasting(means, np.maximum(spread, _tiny(one, other)))
    return None if window is None else int(steps[window + width - 1])


def _width(steps: NDArray[Any]) -> int:
    return min(max(len(steps) // 20, SMALLEST_WINDOW), LARGEST_WINDOW)


def _windows(values: NDArray[Any], width: int) -> NDArray[Any]:
    """The mean of every window of `width` points."""
    sums = np.concatenate([[0.0], np.cumsum(values)])
    means: NDArray[Any] = (sums[width:] - sums[:-width]) / width
    return means


def _tiny(one: NDArray[Any], other: NDArray[Any]) -> float:
    """The rounding error of numbers of this size."""
    return 1e-9 * max(float(np.abs(one).max()), float(np.abs(other).max()))


def _first_lasting(means: NDArray[Any], limits: NDArray[Any]) -> int | None:
    """The first window beyond its limit, if most of the following windows are beyond it on the same side."""
    sides = np.where(np.abs(means) > limits, np.sign(means), 0.0)
    for side in (1.0, -1.0):
        stands = sides == side
        share = np.cumsum(stands[::-1])[::-1] / np.arange(len(stands), 0, -1)  # from each window on
        found = np.flatnonzero(stands & (share >= LASTING))
        if len(found):
            return int(found[0])
    return None


def _onset(difference: NDArray[Any], window: int, width: int, limit: float) -> int:
    """The point of a window at which the difference begins: after it, the difference stays beyond the limit."""
    inside = difference[window : window + width]
    within = np.flatnonzero(inside <= limit) if limit > 0 else np.flatnonzero(inside >= limit)
    after = int(within[-1]) + 1 if len(within) else 0
    return window + min(after, width - 1)


def _noise(values: NDArray[Any]) -> float:
    """The scatter of a curve around its trend. It uses the median jump, so that neither trend nor spikes count."""
    return SIGMA_OF_MEDIAN * float(np.median(np.abs(np.diff(values)))) / math.sqrt(2)
