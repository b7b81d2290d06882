"""A long series in few buckets, each with its lowest and highest value, so that spikes stay visible.

Every point belongs to a bucket, and a bucket's lowest and highest values are logged values. A bucket without a finite
value has None, and nothing is drawn there.
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np
from numpy.typing import NDArray

from rlvitals.contract import Curve
from rlvitals.render.curves import in_buckets

MOST_POINTS = 10_000
"""Maximum buckets of one line: more than any screen has columns."""


def thin(x: NDArray[Any], values: NDArray[np.float64], steps: NDArray[Any], points: int) -> Curve:
    """At most `points` buckets with the same number of points; the last one may have fewer.

    >>> line = thin(np.arange(6), np.array([0.0, 9.0, 1.0, 2.0, np.nan, np.nan]), np.arange(6), 3)
    >>> line["low"], line["high"], line["y"]
    ([0.0, 1.0, None], [9.0, 2.0, None], [4.5, 1.5, None])
    """
    total = len(values)
    points = min(max(points, 1), MOST_POINTS)
    nonfinite = total - int(np.isfinite(values).sum())
    if total <= points:
        low = high = mean = plain_numbers(values)
    else:
        starts, *found = in_buckets(values, points)
        low, high, mean = map(plain_numbers, found)
        x, steps = x[starts], steps[starts]
    return {
        "total": total,
        "shown": len(x),
        "nonfinite": nonfinite,
        "x": x.tolist(),
        "low": low,
        "high": high,
        "y": mean,
        "steps": steps.astype(np.int64).tolist(),
    }


def plain_number(number: float | None) -> float | None:
    """A number as a JSON value: None if not finite."""
    return number if number is not None and math.isfinite(number) else None


def plain_numbers(numbers: NDArray[Any]) -> list[float | None]:
    """Numbers as JSON values: None if not finite."""
    listed: list[float | None] = numbers.tolist()
    if numbers.dtype.kind == "f" and not np.isfinite(numbers).all():
        return [number if number is not None and number - number == 0 else None for number in listed]
    return listed
