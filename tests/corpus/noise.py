"""The noise of real series: heavy tails, little memory, rare spikes, quantised and missing values.

Measured on public logs: without its trend, a metric is nearly independent from row to row (lag-1 correlation within
+-0.2), has a kurtosis of 3 to 20, and has spikes of a single row.
"""

from __future__ import annotations

import zlib
from typing import Any

import numpy as np
from numpy.typing import NDArray

Array = NDArray[np.float64]


def generator(seed: int, name: str) -> np.random.Generator:
    """The random numbers of one run. They depend only on the seed and the name, not on other runs."""
    return np.random.default_rng([seed, zlib.crc32(name.encode())])


def sigmoid(x: Array) -> Array:
    return 1.0 / (1.0 + np.exp(-np.clip(x, -60, 60)))


def logit(p: float) -> float:
    return float(np.log(p / (1 - p)))


def ar1(rng: np.random.Generator, n: int, rho: float = 0.1, df: float = 5.0) -> Array:
    """Student-t noise of unit variance that remembers a share rho of its last value."""
    shocks = rng.standard_t(df, n) / np.sqrt(df / (df - 2))
    out = np.empty(n)
    last = 0.0
    for i, shock in enumerate(shocks):
        last = rho * last + np.sqrt(1 - rho * rho) * shock
        out[i] = last
    return out


def wobble(rng: np.random.Generator, n: int, sigma: float, rho: float = 0.1, df: float = 5.0) -> Array:
    """Multiplicative noise around 1."""
    return np.exp(np.clip(sigma * ar1(rng, n, rho, df), -3, 3))


def spikes(rng: np.random.Generator, n: int, rate: float, low: float, high: float) -> Array:
    """Factors that are 1 except at rare single points, which get a factor from low to high; never at the first rows."""
    factors = np.ones(n)
    hit = rng.random(n) < rate
    hit[:3] = False
    hit[1:] &= ~hit[:-1]  # a spike lasts a single point
    factors[hit] = np.exp(rng.uniform(np.log(low), np.log(high), int(hit.sum())))
    return factors


def drop_some(rng: np.random.Generator, rows: list[dict[str, Any]], keys: tuple[str, ...], share: float) -> None:
    """Remove keys from a share of the rows, as in cut console lines and skipped statistics."""
    for row in rows[1:]:
        if rng.random() < share:
            for key in keys:
                row.pop(key, None)


def punch_holes(rng: np.random.Generator, rows: list[dict[str, Any]], share: float) -> None:
    """Remove single keys from rows at random."""
    for row in rows[1:]:
        for key in list(row):
            if key not in ("step", "timestamp") and rng.random() < share:
                del row[key]


def null_some(rng: np.random.Generator, rows: list[dict[str, Any]], key: str, share: float) -> None:
    """Replace values by None, as loggers do when they cannot compute a value."""
    for row in rows[1:]:
        if key in row and rng.random() < share:
            row[key] = None
