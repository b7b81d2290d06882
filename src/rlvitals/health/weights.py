"""What the statistics are made of: windows, weights of the exponential levels, what noise leaves in them, formulas."""

from __future__ import annotations

import math

HEAD = 12
"""Points until the baseline is frozen; the first two are left out of it (KL 0, ties, warm-up)."""

SKIPPED = 2
WINDOW = 5
WINSOR = 5.0
"""A value further than this many noises from the fast level moves the levels only so far: one spike cannot poison
them."""

TINY = 1e-12
"""What is smaller is zero: a gradient of 1e-15 moves nothing."""

FAST = 1.0 - 0.5 ** (1 / 5)
MID = 1.0 - 0.5 ** (1 / 15)
SLOW = 1.0 - 0.5 ** (1 / 30)
WANDER = 1.0 - 0.5 ** (1 / 60)
NOISE = 1.0 - 0.5 ** (1 / 12)
JUMP = 1.0 - 0.5 ** (1 / 10)
JUMP_SLOW = 1.0 - 0.5 ** (1 / 60)
ROUNDING = 1e-9
"""The noise of a constant, relative to it: a level differs from a constant series by a rounding error."""
TO_SIGMA = 1.2533
"""Mean absolute deviation to standard deviation, for a normal law."""

# How much of one value's noise is left in the fast and the slow level when values are independent.
FAST_SHARE = math.sqrt(FAST / (2 - FAST))
SLOW_SHARE = math.sqrt(SLOW / (2 - SLOW))
HALF_SLOW_SHARE = 0.5 * SLOW_SHARE

WANDER_FROM = HEAD + int(1.0 / WANDER)
"""Points until which a plain mean forgets faster than the weight does."""

SETTLED = 1700
"""Points after which a level has forgotten that it began at 0: the tables below are 1 from there on."""


def _warm(weight: float) -> list[float]:
    """By the number of points: the share of a level that is values, the rest being the 0 it began at."""
    begun, shares = 1.0, [0.0]
    for _ in range(SETTLED):
        begun *= 1.0 - weight
        shares.append(1.0 - begun)
    return shares


FAST_WARM, MID_WARM, SLOW_WARM = _warm(FAST), _warm(MID), _warm(SLOW)


def median(values: list[float]) -> float:
    """Return the middle value (the stdlib's own costs an import that the training process need not pay)."""
    ordered = sorted(values)
    middle = len(ordered) // 2
    return ordered[middle] if len(ordered) % 2 else 0.5 * (ordered[middle - 1] + ordered[middle])


def line_t(n: int, t: float, tt: float, x: float, xx: float, tx: float) -> float:  # noqa: PLR0917
    """Return the t value of the slope of a straight line, from the sums of t, t*t, x, x*x and t*x.

    >>> round(line_t(8, 36, 204, 37, 197, 198), 2)  # x = 2, 3, 3, 5, 4, 6, 7, 7
    7.94
    """
    if n < 8 or xx == math.inf:
        return 0.0
    spread_t, spread_x = tt - t * t / n, xx - x * x / n
    together = tx - t * x / n
    left = spread_x - together * together / spread_t
    # Sums of squares of nearly equal numbers keep rounding errors of this size.
    if left <= 1e-12 * max(xx, 1e-300):
        flat = abs(together) <= 1e-9 * math.sqrt(spread_t * max(xx, 1e-300))
        return 0.0 if flat else math.copysign(math.inf, together)
    return together / spread_t / math.sqrt(left / (n - 2) / spread_t)
