"""The engine that samples: whether a weight sync reaches it, and whether it moves away from the trainer."""

from __future__ import annotations

import math
from itertools import pairwise

from rlvitals.health.alarm import Alarm, critical, since, warning
from rlvitals.health.case import Case
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
    still_odds: float,
    still_odds_signed: float,
    still_odds_later: float,
    still_times: float,
    still_rising: float,
    still_level: float,
    still_level_signed: float,
    still_aging: float,
    grave: float,
) -> Alarm | None:
    """The gap between engine and trainer grows with every step, and faster than the age of the samples."""
    trail = case.trail
    signal = next((one for one in (mismatch_gap, mismatch_kl, mismatch_error, mismatch_chi2) if one is not None), None)
    if signal is None or len(trail.gaps) < rising:
        return None
    # k1 keeps the sign: of a small gap it is noise around 0.
    is_signed = mismatch_gap is None and mismatch_kl is not None and "mismatch_k3" not in case.signals
    last = trail.gaps[-1]
    if last > (still_level_signed if is_signed else still_level) and last > still_times * trail.gaps[-int(rising)]:
        kept, ages = trail.gaps[-WINDOW:], trail.ages[-WINDOW:]
        first = len(trail.gaps) - len(kept)
        is_squared = mismatch_gap is None and mismatch_kl is not None
        still = stood_still(kept, ages, first, squared=is_squared, signed=is_signed)
        odds = still_odds_signed if is_signed else still_odds
        if first:  # a long run has many windows in which chance can look like it
            odds = still_odds_later
        count = float(len(kept) - still.onset - 1)
        is_aging = ages[-1] - ages[still.onset] > still_aging * count  # NaN where no age is logged: then it is not
        if still.odds > odds and still.times > still_times and still.rising >= still_rising and not is_aging:
            found = (critical if last > grave else warning)(signal, times=still.times, count=count)
            return since(trail.steps[first + still.onset], _of_the_sync(found))
    floor = none_signed if is_signed else none
    numbers = {"level": level, "least": least, "times": times, "one_jump": one_jump,
               "fading": fading, "age_times": age_times, "age_least": age_least, "noises": noises,
               "usual_least": usual_least}  # fmt: skip
    for end in (len(trail.gaps), len(trail.gaps) - 1):  # at two points in a row
        begin = max(end - int(rising + usual_points), 0)
        gaps = [max(gap, floor) for gap in trail.gaps[begin:end]]
        if not _has_grown(gaps, trail.ages[begin:end], rising=int(rising), **numbers):
            return None
    before = max(trail.gaps[-int(rising)], floor)
    return (critical if last > grave else warning)(signal, times=last / before, count=rising - 1)


def _has_grown(
    gaps: list[float],
    ages: list[float],
    *,
    rising: int,
    level: float,
    least: float,
    times: float,
    one_jump: float,
    fading: float,
    age_times: float,
    age_least: float,
    noises: float,
    usual_least: float,
) -> bool:
    """Whether the gap has grown at each of the last points, by more than usual, without settling, and faster than the
    age of the samples.
    """
    recent = gaps[-rising:]
    if len(recent) < rising or math.isnan(sum(recent)) or not recent[-1] > max(level, times * recent[0]):
        return False
    ratios = [math.log(after / before) for before, after in pairwise(recent)]
    if min(ratios) < least or max(ratios) > one_jump * sum(ratios):
        return False
    changes = sorted(abs(math.log(after / before)) for before, after in pairwise(gaps[: -rising + 1]))
    if len(changes) >= usual_least and sum(ratios) < noises * changes[len(changes) // 2]:
        return False
    added = [after - before for before, after in pairwise(recent)]
    if sum(added[-2:]) < fading * sum(added[:2]):
        return False  # it settles, as the age of samples does in the first steps of asynchronous training
    youngest, oldest = ages[-rising], ages[-1]
    if math.isnan(youngest + oldest):
        return True
    older = max(oldest, age_least) / max(youngest, age_least)
    return older <= 1 or recent[-1] >= age_times * older * recent[0]
