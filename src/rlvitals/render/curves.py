"""Prepare a curve for drawing: downsampling that keeps every extreme, smoothing, and the choice of the axis scale."""

from __future__ import annotations

from typing import Literal, NamedTuple

import numpy as np
from numpy.typing import NDArray

Array = NDArray[np.float64]

BUCKETS = 400


class Buckets(NamedTuple):
    """A series in buckets of equal size: where each begins, and its lowest, highest and mean finite value. A bucket
    without finite values has NaN.
    """

    starts: NDArray[np.intp]
    low: Array
    high: Array
    mean: Array


def in_buckets(values: Array, most: int) -> Buckets:
    """Downsample a series to at most `most` buckets without hiding a spike. The last bucket may hold fewer points.

    >>> in_buckets(np.array([1.0, 9.0, 2.0, np.nan]), 2).high.tolist()
    [9.0, 2.0]
    """
    starts = np.arange(0, len(values), max(1, -(-len(values) // most)))
    numbers = np.where(np.isfinite(values), values, np.nan)
    known = ~np.isnan(numbers)
    counts = np.add.reduceat(known, starts, dtype=np.int64)
    low, high = np.fmin.reduceat(numbers, starts), np.fmax.reduceat(numbers, starts)
    numbers[~known] = 0.0  # in place: `numbers` is a copy already, and a series may be long
    with np.errstate(invalid="ignore", over="ignore"):
        mean = np.add.reduceat(numbers, starts) / np.where(counts, counts, np.nan)
    return Buckets(
        starts, low, high, np.clip(mean, low, high)
    )  # clipped: a sum of values near the largest float overflows


class Envelope(NamedTuple):
    """A series in buckets, each with the x of its middle point."""

    x: Array
    low: Array
    high: Array
    mean: Array


def envelope(x: Array, y: Array, buckets: int = BUCKETS) -> Envelope:
    """A series as a band of its extremes with the mean inside."""
    starts, low, high, mean = in_buckets(y, buckets)
    middles = (starts + np.append(starts[1:], len(y)) - 1) // 2
    return Envelope(x[middles], low, high, mean)


def rolling_mean(y: Array, window: int) -> Array:
    """The mean of the finite points around each point. Gaps stay gaps; at both ends the window has fewer points.

    >>> rolling_mean(np.array([1.0, 2.0, 3.0, np.nan]), 3).tolist()
    [1.5, 2.0, 2.5, nan]
    """
    finite = np.isfinite(y)
    totals, counts = np.zeros(len(y)), np.zeros(len(y))
    half = min(window // 2, max(len(y) - 1, 0))
    # Summed shift by shift: in one cumulative sum, a single huge spike would destroy the precision of later values.
    for shift in range(-half, half + 1):
        here, there = slice(max(0, -shift), len(y) - max(0, shift)), slice(max(0, shift), len(y) - max(0, -shift))
        totals[here] += np.where(finite[there], y[there], 0.0)
        counts[here] += finite[there]
    return np.where(finite, totals / np.maximum(counts, 1), np.nan)


def is_smooth(y: Array) -> bool:
    """Whether a series needs no smoothing: its bends are small compared with its range (a learning rate schedule)."""
    known = y[np.isfinite(y)]
    if len(known) < 3:
        return True
    bends = np.abs(np.diff(known, n=2))
    return bool(np.percentile(bends, 90) <= 0.02 * (known.max() - known.min()))


def axis_scale(values: Array) -> Literal["linear", "log", "symlog"]:
    """The axis scale on which both the usual values and the extremes are readable."""
    if len(values) < 5:
        return "linear"
    low, high = (float(edge) for edge in np.percentile(values, [5, 95]))
    least, most = float(values.min()), float(values.max())
    reach = max(most - high, low - least)
    if reach > 30 * (high - low) > 0 and reach > 10 * max(abs(low), abs(high)):  # a few extreme values
        return "log" if least > 0 and low < 100 * least else "symlog"
    return "log" if least > 0 and most > 1000 * least and high > 100 * low else "linear"
