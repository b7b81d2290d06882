"""One slice of an outcome beside the others: an environment, a data source or an agent that collapses under a mean that
does not.

Twenty slices are twenty chances of a false alarm, so what a fall must exceed grows with their number m as the largest
of m normal variables does: z^2 + 2 ln m.
"""

from __future__ import annotations

import math
from itertools import pairwise

from rlvitals.health.alarm import Alarm, critical, since, warning
from rlvitals.health.case import Case
from rlvitals.health.course import median
from rlvitals.health.slices import Slice
from rlvitals.health.statistics import FAST_SHARE, HEAD, NEAR_ZERO, Signal

TO_SIGMA = 1.0483
"""The median change from one independent normal value to the next, to their standard deviation."""


def slice_collapse(
    one_slice: Slice,
    case: Case,
    *,
    noises: float,
    per_slice: float,
    lost: float,
    floor: float,
    together: float,
    together_points: float,
    most: float,
    evals: float,
    noises_few: float,
    lost_few: float,
) -> Alarm | None:
    """A slice has lost most of what it had, by more than its noise, and most of the others have not."""
    score = one_slice.signal
    if score.n <= HEAD:
        if score.n < evals:
            return None
        best, now, drift = _few(one_slice)
        needed, share = noises_few, lost_few
    else:
        now = score.fast if score.fast > score.median5 else score.median5
        best = score.top
        if best - now <= lost * best - lost * score.lowest:
            return None
        drift = max(score.wander, FAST_SHARE * max(score.noise_base, TO_SIGMA * score.usual_jump))
        needed, share = noises, lost
    lowest = min(score.lowest, 0.0)
    count = len(one_slice.division.slices)
    fall = (best - now) / max(best - lowest, NEAR_ZERO)
    if fall < share or best - lowest < floor * _range(one_slice):
        return None
    if not best - now > drift * math.sqrt(needed * needed + per_slice * math.log(count)):
        return None
    fallen = [other for other in one_slice.others if _fall(other) >= together * fall]
    at_once = [other for other in fallen if abs(other.top_at - score.top_at) <= together_points]
    if len(at_once) > together * (count - 1):
        return None  # the whole run falls: that is said of the run
    is_most = len(fallen) + 1 > most * count
    found = (critical if is_most else warning)(
        score, "most" if is_most else "", drop=best - now, best=best, slices=float(count)
    )
    return since(score.top_step, found) if score.top_at else found


def _few(one_slice: Slice) -> tuple[float, float, float]:
    """The best level before the last value, that value, and how far evaluations scatter. Few values tell little of
    their noise, so the other slices' has a say: they are measured alike.
    """
    values = one_slice.signal.head
    before = values[:-1]
    best = max(median(list(before[at : at + 3])) for at in range(len(before) - 2))
    noise = _scatter(before)
    usual = median([_scatter(other.head) for other in one_slice.others])
    return best, values[-1], max(noise, usual)


def _scatter(values: tuple[float, ...]) -> float:
    jumps = [abs(later - earlier) for earlier, later in pairwise(values)]
    return TO_SIGMA * median(jumps) if jumps else 0.0


def _fall(score: Signal) -> float:
    """The share of its best level that a slice has lost."""
    if not score.top_at:
        return 0.0
    return (score.top - score.fast) / max(score.top - min(score.lowest, 0.0), NEAR_ZERO)


def _range(one_slice: Slice) -> float:
    """The best value of any slice above the lowest: what a level is small against."""
    signals = [one_slice.signal, *one_slice.others]
    return max(signal.highest for signal in signals) - min(0.0, *(signal.lowest for signal in signals))
