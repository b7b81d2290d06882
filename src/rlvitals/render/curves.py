"""What a curve needs before it is drawn: thinning that keeps every extreme, smoothing, the axis that shows it best."""

from __future__ import annotations

from typing import Literal, NamedTuple

import numpy as np
from numpy.typing import NDArray

Array = NDArray[np.float64]

BUCKETS = 400


class Envelope(NamedTuple):
    """A series in buckets: where each is, its lowest, highest and mean finite value; NaN where it has none."""

    x: Array
    low: Array
    high: Array
    mean: Array


def envelope(x: Array, y: Array, buckets: int = BUCKETS) -> Envelope:
    """Thin a series without hiding a spike.

    >>> envelope(np.arange(4.0), np.array([1.0, 9.0, 2.0, np.nan]), buckets=2).high.tolist()
    [9.0, 2.0]
    """
    starts = np.unique(np.linspace(0, len(y), min(buckets, len(y)), endpoint=False).astype(np.intp))
    finite = np.isfinite(y)
    counts = np.add.reduceat(finite.astype(np.float64), starts)
    low = np.minimum.reduceat(np.where(finite, y, np.inf), starts)
    high = np.maximum.reduceat(np.where(finite, y, -np.inf), starts)
    with np.errstate(invalid="ignore", divide="ignore", over="ignore"):
        mean = np.add.reduceat(np.where(finite, y, 0.0), starts) / counts
    empty = counts == 0
    low[empty] = high[empty] = mean[empty] = np.nan
    middles = (starts + np.append(starts[1:], len(y)) - 1) // 2
    return Envelope(x[middles], low, high, mean)


def rolling_mean(y: Array, window: int) -> Array:
    """The mean of the finite points around each one; a gap stays a gap. At the ends fewer points take part.

    >>> rolling_mean(np.array([1.0, 2.0, 3.0, np.nan]), 3).tolist()
    [1.5, 2.0, 2.5, nan]
    """
    finite = np.isfinite(y)
    totals, counts = np.zeros(len(y)), np.zeros(len(y))
    half = min(window // 2, max(len(y) - 1, 0))
    # Added up shift by shift: differences of one long running sum would drown in a single huge spike.
    for shift in range(-half, half + 1):
        here, there = slice(max(0, -shift), len(y) - max(0, shift)), slice(max(0, shift), len(y) - max(0, -shift))
        totals[here] += np.where(finite[there], y[there], 0.0)
        counts[here] += finite[there]
    return np.where(finite, totals / np.maximum(counts, 1), np.nan)


def is_smooth(y: Array) -> bool:
    """Whether a series needs no smoothing: its bends are small beside its range (a learning rate's schedule)."""
    known = y[np.isfinite(y)]
    if len(known) < 3:
        return True
    bends = np.abs(np.diff(known, n=2))
    return bool(np.percentile(bends, 90) <= 0.02 * (known.max() - known.min()))


def axis_scale(values: Array) -> Literal["linear", "log", "symlog"]:
    """The axis on which both the usual values and the extremes can be read."""
    if len(values) < 5:
        return "linear"
    low, high = (float(edge) for edge in np.percentile(values, [5, 95]))
    least, most = float(values.min()), float(values.max())
    reach = max(most - high, low - least)
    if reach > 30 * (high - low) > 0 and reach > 10 * max(abs(low), abs(high)):  # a few values dwarf all others
        return "log" if least > 0 and low < 100 * least else "symlog"
    return "log" if least > 0 and most > 1000 * least and high > 100 * low else "linear"
