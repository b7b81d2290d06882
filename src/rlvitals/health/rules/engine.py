"""The engine that samples: whether a weight sync reaches it, and whether it moves away from the trainer."""

from __future__ import annotations

import math
from itertools import pairwise

from rlvitals.health.alarm import Alarm, critical, since, warning
from rlvitals.health.case import Case
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
    """A weight sync changes nothing or too little, leaves weights that differ, or the engine's version stands still."""
    if lr is not None and lr.n and not lr.last > lr_share * lr.highest:
        return None  # steps too small to change a weight in bfloat16
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
            # A sample that the newest weights wrote has age 0: the age counts the syncs that failed.
            missed = round(min(staleness.last - staleness.lowest, staleness.last))
            return since(case.step - missed + 1, _of_the_sync(critical(staleness, "lags", count=float(missed))))
    return None


def _of_the_sync(alarm: Alarm) -> Alarm:
    alarm.cause = "weight_sync"
    return alarm


def gap_growing(
    mismatch_gap: Signal | None,
    mismatch_kl: Signal | None,
    mismatch_error: Signal | None,
    mismatch_chi2: Signal | None,
    case: Case,
    *,
    rising: float,
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
    # k1 keeps the sign: of a small gap it is noise around 0.
    is_signed = mismatch_gap is None and mismatch_kl is not None and "mismatch_k3" not in case.signals
    none = none_signed if is_signed else none
    if not trail.gaps or not max(trail.gaps[-1], none) > level:
        return None
    gaps = [max(gap, none) for gap in trail.gaps[-int(rising) :]]
    signal = next((one for one in (mismatch_gap, mismatch_kl, mismatch_error, mismatch_chi2) if one is not None), None)
    if signal is None or len(gaps) < rising or math.isnan(sum(gaps)):
        return None
    if not gaps[-1] > max(level, times * gaps[0]):
        return None
    ratios = [math.log(after / before) for before, after in pairwise(gaps)]
    if min(ratios) < least or max(ratios) > one_jump * sum(ratios):
        return None
    before = [max(gap, none) for gap in trail.gaps[-int(rising) - int(usual_points) : -int(rising) + 1]]
    changes = sorted(abs(math.log(b / a)) for a, b in pairwise(before))
    if len(changes) >= usual_least and sum(ratios) < noises * changes[len(changes) // 2]:
        return None
    added = [after - before for before, after in pairwise(gaps)]
    if sum(added[-2:]) < fading * sum(added[:2]):
        return None  # it settles, as the age of samples does in the first steps of asynchronous training
    ages = trail.ages[-int(rising) :]
    if not math.isnan(ages[0] + ages[-1]):
        older = max(ages[-1], age_least) / max(ages[0], age_least)
        if older > 1 and gaps[-1] < age_times * older * gaps[0]:
            return None
    return (critical if gaps[-1] > grave else warning)(signal, times=gaps[-1] / gaps[0], count=float(len(added)))
