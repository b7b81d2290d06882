"""The constants of the statistics: windows, weights of the exponential levels, and what noise leaves in them."""

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


def median(values: list[float]) -> float:
    """Return the middle value (the stdlib's own costs an import that the training process need not pay)."""
    ordered = sorted(values)
    middle = len(ordered) // 2
    return ordered[middle] if len(ordered) % 2 else 0.5 * (ordered[middle - 1] + ordered[middle])
