"""The answers of the model: length, truncation, empty and looping answers."""

from __future__ import annotations

import math

from rlvitals.health.alarm import Alarm, critical, info, warning
from rlvitals.health.case import Case
from rlvitals.health.rules.reward import is_solved
from rlvitals.health.statistics import FAST_SHARE, Signal


def length_explosion(
    length: Signal,
    reward: Signal | None,
    truncated: Signal | None,
    *,
    times: float,
    times_stalled: float,
    times_critical: float,
    truncated_share: float,
    climbing_times: float,
    rising: float,
    noises: float,
) -> Alarm | None:
    """Answers grow to a multiple of their initial length. If the reward has stopped rising, a smaller growth counts."""
    now = length.median_ratio
    if math.isnan(now) or now < min(times, times_stalled):
        return None
    stalled = reward is not None and reward.stalled
    climbing = reward is not None and reward.climbing
    least = climbing_times * times if climbing else times_stalled if stalled and length.rising > rising else times
    if now < least:
        return None
    if length.median5 - length.base < noises * length.noise_base:
        return None
    hurt = reward is not None and reward.hurt
    cut = truncated is not None and truncated.fast > truncated_share
    if reward is not None and reward.won and not cut and reward.slow > now * reward.base > 0:
        return info(length, times=now, level=length.median5)  # the reward has grown by more, and few are cut
    if now > times and (hurt or (now > times_critical and not climbing) or (cut and not climbing)):
        return critical(length, times=now, level=length.median5)
    return warning(length, times=now, level=length.median5)


def length_collapse(
    length: Signal, reward: Signal | None, case: Case, *, ratio: float, ratio_critical: float, noises: float
) -> Alarm | None:
    """Answers shrink to almost nothing. With a rising reward they have become concise, which is a remark."""
    start = max(length.base, length.start)
    if not start > 0 or start - length.fast < noises * FAST_SHARE * length.noise_base:
        return None
    now = length.at_most / start
    if now > ratio:
        return None
    if reward is not None and not reward.dropped and (is_solved(case, reward) or reward.won or reward.climbing):
        return info(length, ratio=now, level=now * start, base=start)
    hurt = reward is not None and reward.hurt
    return (critical if now < ratio_critical and hurt else warning)(length, ratio=now, level=now * start, base=start)


def truncation(
    truncated: Signal,
    reward: Signal | None,
    *,
    share: float,
    share_critical: float,
    points_critical: float,
    points: float,
    down: float,
    points_total: float,
    share_total: float,
    trend_down: float,
    falling: float,
    reward_rising: float,
    filled_from: float,
    filled_to: float,
) -> Alarm | None:
    """Most answers are cut off at the length limit, so the rewards are for incomplete answers."""
    level = min(truncated.slow, truncated.fast)
    total = truncated.n >= points_total and truncated.lowest > share_total
    if not total and level <= min(share, share_critical):
        return None
    if truncated.fast < truncated.base - down and (truncated.trend < -trend_down or truncated.rising < -falling):
        return None  # well on its way down
    winning = reward is not None and reward.winning
    moving = reward is not None and reward.rising > reward_rising
    filled = (
        truncated.n >= points_critical
        and truncated.base < filled_from
        and truncated.fast > filled_to
        and level > share_critical
    )
    stuck = level > share_critical and truncated.n >= points_critical and not moving
    if stuck or filled or (total and not winning):
        return critical(truncated, share=level, level=level)
    if level > share and truncated.n >= points:
        return info(truncated, share=level, level=level) if winning else warning(truncated, share=level)
    return None


def length_at_cap(
    length: Signal,
    truncated: Signal | None,
    reward: Signal | None,
    case: Case,
    *,
    share: float,
    spread: float,
    points: float,
    points_critical: float,
) -> Alarm | None:
    """The mean length is at the limit, or does not vary at all, so nearly every answer is cut off. It applies to runs
    that do not log the share of answers that are cut off.
    """
    if truncated is not None or length.n < points:
        return None
    cap = case.number("max_completion_length", "max_response_length", "max_new_tokens", "response_length")
    level = min(length.slow, length.fast)
    pinned = length.lowest > (1 - spread) * length.highest
    if not (pinned if cap is None else level > share * cap):
        return None
    if reward is not None and reward.won:
        return info(length, cap=length.highest if cap is None else cap)
    # Many runs start at the limit and learn shorter answers.
    grave = cap is not None and length.n >= points_critical
    return (critical if grave else warning)(length, cap=length.highest if cap is None else cap)


def truncation_rising(
    truncated: Signal,
    reward: Signal | None,
    *,
    rise: float,
    rise_critical: float,
    noises: float,
    slow_share: float,
    most: float,
) -> Alarm | None:
    """The share of answers that are cut off has risen well above its initial level. While most are complete and the
    reward rises, it is a remark: longer answers are how the reward rises.
    """
    risen = truncated.at_least - truncated.base
    if (
        risen < rise
        or risen < noises * FAST_SHARE * max(truncated.noise_base, truncated.noise)
        or truncated.slow - truncated.base < slow_share * rise
    ):
        return None
    gained = reward is not None and reward.keeps_gain
    if risen > rise_critical and not gained:
        return critical(truncated, risen=risen)
    winning = reward is not None and reward.winning
    return (info if winning and truncated.fast < most else warning)(truncated, risen=risen)


def looping_text(repetition: Signal, *, share: float, share_critical: float, rise: float) -> Alarm | None:
    """Answers repeat themselves."""
    level = repetition.at_least
    if level < share or level - repetition.base < rise:
        return None
    return (
        critical(repetition, share=level, level=level) if level > share_critical else warning(repetition, share=level)
    )
