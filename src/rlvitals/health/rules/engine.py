"""The engine that samples: whether a weight sync reaches it, and whether it moves away from the trainer."""

from __future__ import annotations

import math
from itertools import pairwise

from rlvitals.health.alarm import Alarm, critical, since, warning
from rlvitals.health.case import Case
from rlvitals.health.growth import growth_of
from rlvitals.health.standstill import WINDOW, stood_still
from rlvitals.health.statistics import Signal


def sync_without_effect(
    sync_changed: Signal | None,
    sync_mismatch: Signal | None,
    staleness: Signal | None,
    lr: Signal | None,
    case: Case,
    *,
    zeros: float,
    lr_share: float,
    less: float,
    points: float,
    differing: float,
    lag_points: float,
    lag_room: float,
) -> Alarm | None:
    """A weight sync changes nothing or too little, or leaves weights that differ, or the engine's version is stuck."""
    if lr is not None and lr.n and not lr.last > lr_share * lr.highest:
        return None  # updates are too small to change a weight in bfloat16
    if sync_changed is not None and sync_changed.n:
        usual = max(sync_changed.head)
        if sync_changed.zero_streak >= zeros and (usual > 0 or sync_changed.n >= points):
            found = critical(sync_changed, "nothing", count=float(sync_changed.zero_streak))
            return since(sync_changed.zero_step, _of_the_sync(found))
        now, first = sync_changed.median5, sync_changed.start
        if sync_changed.n >= points and 0 < now < less * first and sync_changed.slow < first:
            return _of_the_sync(warning(sync_changed, "less", share=now, first=first))
    if sync_mismatch is not None and sync_mismatch.n and min(sync_mismatch.window[-2:]) > differing:
        return _of_the_sync(critical(sync_mismatch, "differs", share=sync_mismatch.last))
    if staleness is not None and staleness.n > lag_points:
        ages = staleness.window[-int(lag_points) - 1 :]
        if len(ages) > lag_points and all(abs(b - a - 1) < lag_room for a, b in pairwise(ages)):
            # A sample of the newest weights has age 0, so the age counts the syncs that failed.
            missed = round(min(staleness.last - staleness.lowest, staleness.last))
            return since(case.step - missed + 1, _of_the_sync(critical(staleness, "lags", count=float(missed))))
    return None


def _of_the_sync(alarm: Alarm) -> Alarm:
    alarm.cause = "weight_sync"
    return alarm


def engine_stands_still(
    mismatch_gap: Signal | None,
    mismatch_kl: Signal | None,
    mismatch_error: Signal | None,
    mismatch_chi2: Signal | None,
    case: Case,
    *,
    points: float,
    odds: float,
    odds_signed: float,
    over_jump_signed: float,
    odds_later: float,
    times: float,
    rising: float,
    level: float,
    level_signed: float,
    aging: float,
    grave: float,
) -> Alarm | None:
    """The gap between engine and trainer grows as if the engine had kept its weights since one step."""
    trail = case.trail
    signal = _shown_by(mismatch_gap, mismatch_kl, mismatch_error, mismatch_chi2)
    if signal is None or len(trail.gaps) < points:
        return None
    is_squared, is_signed = _is_squared(mismatch_gap, mismatch_kl), _is_signed(mismatch_gap, mismatch_kl, case)
    last = trail.gaps[-1]
    if not last > max(level_signed if is_signed else level, times * trail.gaps[-int(points)]):
        return None
    kept, ages = trail.gaps[-WINDOW:], trail.ages[-WINDOW:]
    first = len(trail.gaps) - len(kept)
    still = stood_still(kept, ages, first, squared=is_squared, signed=is_signed)
    # A long run has many windows, so chance alone can produce such a window.
    needed = odds_later if first else odds_signed if is_signed else odds
    if not still.odds > needed or not still.over_jump > (over_jump_signed if is_signed and not first else needed):
        return None
    count = float(len(kept) - still.onset - 1)
    is_aging = ages[-1] - ages[still.onset] > aging * count  # False where no age is logged (NaN)
    if is_aging or not still.times > times or still.rising < rising:
        return None
    found = (critical if last > grave else warning)(signal, times=still.times, count=count)
    return since(trail.steps[first + still.onset], _of_the_sync(found))


def gap_growing(
    mismatch_gap: Signal | None,
    mismatch_kl: Signal | None,
    mismatch_error: Signal | None,
    mismatch_chi2: Signal | None,
    case: Case,
    *,
    points: float,
    none: float,
    none_signed: float,
    level: float,
    least: float,
    times: float,
    one_jump: float,
    fading: float,
    age_times: float,
    age_least: float,
    noises: float,
    usual_points: float,
    usual_least: float,
    grave: float,
) -> Alarm | None:
    """The gap between engine and trainer grows with every step, and faster than the age of the samples."""
    trail = case.trail
    signal = _shown_by(mismatch_gap, mismatch_kl, mismatch_error, mismatch_chi2)
    if signal is None or len(trail.gaps) <= points:
        return None
    floor = none_signed if _is_signed(mismatch_gap, mismatch_kl, case) else none
    for end in (len(trail.gaps), len(trail.gaps) - 1):  # at two points in a row
        begin = max(end - int(points + usual_points), 0)
        gaps = [max(gap, floor) for gap in trail.gaps[begin:end]]
        grown = growth_of(gaps, trail.ages[begin:end], int(points), age_least)
        if grown is None or not grown.is_highest or not gaps[-1] > level:
            return None
        if not grown.times > times or grown.least < least:
            return None
        if grown.largest > one_jump or grown.later < fading or grown.times < age_times * grown.older:
            return None
        if grown.changes >= usual_least and math.log(grown.times) < noises * grown.usual:
            return None
    last, before = trail.gaps[-1], max(trail.gaps[-int(points)], floor)
    return (critical if last > grave else warning)(signal, times=last / before, count=points - 1)


def _shown_by(*signals: Signal | None) -> Signal | None:
    """The first of these that the run logs."""
    return next((one for one in signals if one is not None), None)


def _is_squared(gap: Signal | None, kl: Signal | None) -> bool:
    """Whether the trail reads a mean of squares."""
    return gap is None and kl is not None


def _is_signed(gap: Signal | None, kl: Signal | None, case: Case) -> bool:
    """Whether the trail reads k1, which keeps the sign: for a small gap it is noise around 0."""
    return _is_squared(gap, kl) and "mismatch_k3" not in case.signals
