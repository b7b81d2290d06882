"""One slice of an outcome compared with the others: an environment, a data source or an agent that collapses while the
mean does not.

Twenty slices are twenty chances of a false alarm, so the limit that a fall must exceed grows with their number m, like
the largest of m normal variables: z^2 + 2 ln m.
"""

from __future__ import annotations

import math

from rlvitals.health.alarm import Alarm, critical, since, warning
from rlvitals.health.case import Case
from rlvitals.health.slices import Slice
from rlvitals.health.statistics import FAST_SHARE, HEAD, NEAR_ZERO, Signal
from rlvitals.values import median

WIDTH = 3
"""The number of evaluations whose median is a level."""


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
    sparse: float,
    noises_few: float,
    lost_few: float,
    flat: float,
) -> Alarm | None:
    """A slice has lost most of its best level, by more than its noise, and most of the others have not."""
    score = one_slice.signal
    is_few = score.n <= HEAD or sparse * score.n < case.points
    if is_few:
        if score.n < evals:
            return None
        best, now, drift = _of_evaluations(one_slice)
        needed, share = noises_few, lost_few
    else:
        best, now = score.top, score.median5
        if best - now <= lost * (best if score.lowest >= 0 else best - score.lowest):  # most rows end here
            return None
        drift = max(score.wander, FAST_SHARE * max(score.noise_base, score.jump_noise))
        needed, share = noises, lost
    lowest, highest = _range(one_slice)
    count = len(one_slice.division.slices)
    fall = (best - now) / max(best - lowest, NEAR_ZERO)
    if fall < share or best - lowest < floor * (highest - lowest):
        return None
    # The median reacts fast and gives the size of the fall. The level, over more points, shows if it exceeds the noise.
    level = now if is_few else score.fast
    if not best - level > drift * math.sqrt(needed * needed + per_slice * math.log(count)):
        return None
    fallen = [other for other in one_slice.others if _fall(other, lowest) >= together * fall]
    at_once = [other for other in fallen if abs(other.top_at - score.top_at) <= together_points]
    if len(at_once) > together * (count - 1):
        return None  # the whole run falls: that is reported for the run
    is_most = len(fallen) + 1 > most * count
    found = (critical if is_most else warning)(
        score, "most" if is_most else "", drop=best - now, best=best, slices=float(count)
    )
    if not score.top_at:
        return found
    # The best step of a flat slice is arbitrary. If it left its starting band later, the fall began there.
    is_flat = score.is_out and best - score.base < flat * (best - now)
    return since(max(score.top_step, score.onset_step) if is_flat else score.top_step, found)


def _of_evaluations(one_slice: Slice) -> tuple[float, float, float]:
    """The best level before the last value, that value, and the scatter of evaluations. A few values give a poor
    estimate of their noise, so the noise of the other slices is used as well.
    """
    score = one_slice.signal
    before = list(score.head[: score.n - 1])
    best = max(median(before[at : at + WIDTH]) for at in range(len(before) - WIDTH + 1))
    usual = median([other.jump_noise for other in one_slice.others])
    return max(best, score.top), score.last, max(score.jump_noise, usual)


def _fall(score: Signal, lowest: float) -> float:
    """The share of its best level that a slice has lost."""
    return (score.top - score.fast) / max(score.top - lowest, NEAR_ZERO) if score.top_at else 0.0


def _range(one_slice: Slice) -> tuple[float, float]:
    """The lowest value of any slice, at most 0, and the highest: the scale for levels and falls."""
    signals = [one_slice.signal, *one_slice.others]
    return min(0.0, *(signal.lowest for signal in signals)), max(signal.highest for signal in signals)
