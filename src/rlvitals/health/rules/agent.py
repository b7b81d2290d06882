"""Agents over several turns: tools, turns, loops, exits, filtered groups."""

from __future__ import annotations

from rlvitals.health.alarm import Alarm, critical, info, warning
from rlvitals.health.case import Case
from rlvitals.health.rules.reward import is_share
from rlvitals.health.statistics import FAST_SHARE, NEAR_ZERO, Signal
from rlvitals.values import median

RECENT = 3
"""Values whose median is the level of a count that comes with evaluations; a smoothed level would lag far behind."""


def tool_abandonment(
    turns: Signal | None,
    tool_calls: Signal | None,
    reward: Signal | None,
    case: Case,
    *,
    ratio: float,
    ratio_critical: float,
    points: float,
    noises: float,
) -> Alarm | None:
    """There are fewer turns or tool calls than at the start. This is often the first sign of a collapse, a dozen points
    before the reward reacts.
    """
    for signal in (tool_calls, turns):
        if signal is None or signal.n < points or signal.seen_at != case.points:
            continue
        start = signal.opening  # a collapse can begin within a longer baseline
        level = signal.median5
        if start <= 0 or start - level < noises * signal.noise_base:
            continue
        share = level / start
        gaining = reward is not None and (reward.won or reward.climbing)
        if share < ratio_critical:
            return (warning if gaining else critical)(signal, share=share, level=level, base=start)
        if share < ratio:
            return (info if gaining else warning)(signal, share=share, level=level, base=start)
    return None


def turn_runaway(
    turns: Signal,
    turn_limit: Signal | None,
    reward: Signal | None,
    case: Case,
    *,
    limit_share: float,
    times: float,
    limit_times: float,
    limit_least: float,
    stuck_share: float,
    stuck_rise: float,
    noises: float,
) -> Alarm | None:
    """Episodes reach the turn limit, or take many more turns than at the start, without a higher reward."""
    most = case.number("max_turns", "max_steps_per_episode", "max_assistant_turns")
    level = turns.median5
    at_limit = (
        most is not None and most > limit_least and level > limit_share * most and level > limit_times * turns.base
    )
    stuck = turn_limit is not None and turn_limit.fast > stuck_share and turn_limit.fast > turn_limit.base + stuck_rise
    grown = turns.base > 0 and level > times * turns.base and level - turns.base > noises * turns.noise_base
    if not (at_limit or grown or stuck):
        return None
    if reward is not None and reward.climbing:
        return info(turns, times=level / max(turns.base, NEAR_ZERO), level=level)
    hurt = reward is not None and reward.hurt
    return (critical if hurt else warning)(turns, times=level / max(turns.base, NEAR_ZERO), level=level)


def tool_errors(
    tool_failures: Signal,
    case: Case,
    *,
    share: float,
    share_critical: float,
    rise: float,
    noises: float,
    critical_times: float,
    risen_share: float,
    share_times: float,
) -> Alarm | None:
    """Many tool calls fail: the sandbox is down, or the model no longer writes correct calls."""
    level = tool_failures.at_least
    risen = level - tool_failures.base > max(rise, noises * FAST_SHARE * tool_failures.noise_base)
    if level > share_critical and (risen or level > critical_times * share_critical):
        found = critical(tool_failures, share=level, level=level)
    elif (risen and level > risen_share * share) or level > share_times * share:
        found = warning(tool_failures, share=level, level=level)
    else:
        return None
    found.cause = case.origins.cause_of(tool_failures.key)
    return found


def repeated_actions(
    repeated_actions: Signal,
    tool_calls: Signal | None,
    searches_total: Signal | None,
    *,
    share: float,
    share_critical: float,
    times: float,
    whole_times: float,
    count_least: float,
    far_times: float,
    base_times: float,
) -> Alarm | None:
    """The same search or call is repeated many times."""
    level = median(list(repeated_actions.window[-RECENT:]))
    whole = 1.0
    if repeated_actions.highest > 1.0:
        of = searches_total if searches_total is not None and searches_total.n else tool_calls
        if of is None or not of.fast > 0 or repeated_actions.highest > whole_times * of.highest:
            grown = level > times * max(repeated_actions.base, 1.0) and level - repeated_actions.base > count_least
            far = level > far_times * times * max(repeated_actions.base, 1.0)
            return (critical if far else warning)(repeated_actions, share=level, level=level) if grown else None
        whole = of.fast
    if level < share * whole or level < base_times * repeated_actions.base:
        return None
    return (critical if level > share_critical * whole else warning)(repeated_actions, share=level / whole)


def early_exits(
    early_exit: Signal | None,
    abstained: Signal | None,
    reward: Signal | None,
    case: Case,
    *,
    change: float,
    noises: float,
    points: float,
    count_least: float,
    noises_share: float,
    change_times: float,
) -> Alarm | None:
    """More episodes end early than at the start, and stay so: giving up is rewarded, or a tool crashes."""
    for signal in (early_exit, abstained):
        if signal is None or signal.n < points or signal.seen_at != case.points:
            continue
        scale = 1.0 if signal.highest <= 1.0 else max(signal.highest, count_least)
        moved = signal.median5 - signal.base
        if moved < change * scale or moved < noises_share * noises * signal.noise_base:
            continue
        if scale > 1.0 and moved < signal.base:
            continue  # a count whose total is not known
        gaining = reward is not None and reward.climbing
        if gaining and moved < change_times * change * scale:
            return info(signal, change=moved / scale)
        hurt = reward is not None and reward.hurt
        return (critical if hurt and moved > change_times * change * scale else warning)(signal, change=moved / scale)
    return None


def groups_filtered(
    kept_share: Signal | None,
    groups_kept: Signal | None,
    groups_dropped: Signal | None,
    all_pass: Signal | None,
    true_score: Signal | None,
    *,
    share: float,
    share_critical: float,
    points: float,
    percent_below: float,
    solved: float,
) -> Alarm | None:
    """Most groups are discarded before training, so the batch is much smaller than configured. Groups that every sample
    solves do not count: solving them is the goal, and `groups_without_spread` reports them as a remark. If their share
    is not logged, it is bounded by the share of right answers: the share of groups without a right answer cannot exceed
    the share of wrong answers.
    """
    signal = kept_share
    if kept_share is not None:
        # A percentage is distinguished from a share by its size, because names can be wrong.
        unit = 100.0 if kept_share.highest <= percent_below else 1.0
        level = unit * kept_share.at_most
    elif groups_kept is not None and groups_dropped is not None:
        signal = groups_kept
        total = groups_kept.median5 + groups_dropped.median5
        if total <= 0 or groups_kept.n < points:
            return None
        level = groups_kept.median5 / total
    else:
        return None
    if signal is None or signal.n < points:
        return None
    passing = None if all_pass is None else all_pass.median5
    if passing is None and true_score is not None and is_share(true_score):
        passing = 1.0 - level - (1.0 - true_score.median5)
    if passing is not None and passing >= solved * (1.0 - level):
        return None
    if level < share_critical:
        return critical(signal, kept=level)
    return warning(signal, kept=level) if level < share else None
