"""Failures that the policy did not cause: a fall of the reward that a broken tool, sandbox or verifier explains.

A failed rollout scored as 0 costs as much reward as a wrong answer. Order and size distinguish them: the share of
failures rises before the reward falls or with it, and the reward lost is about that share of the level before.
"""

from __future__ import annotations

import math

from rlvitals.health import origins
from rlvitals.health.alarm import Alarm, critical, since, warning
from rlvitals.health.case import Case
from rlvitals.health.origins import JUMP, LONG, WRITTEN, Rise
from rlvitals.health.rules.reward import lowest_reward
from rlvitals.health.statistics import FAST_SHARE, NEAR_ZERO, Signal

SETTLED = 8
"""Values after which most of the fast level comes from new values."""

MEDIAN_SHARE = 0.54
"""The noise of the median of five values, as a share of one value's noise."""


def lost_to_failures(
    reward: Signal,
    case: Case,
    failed_sandbox: Signal | None,
    failed_verifier: Signal | None,
    failed_time_out: Signal | None,
    failed_context: Signal | None,
    failed_tool: Signal | None,
    failed_call: Signal | None,
    failed_parsing: Signal | None,
    failed_any: Signal | None,
    truncated: Signal | None,
    tool_calls: Signal | None,
    *,
    explained: float,
    least: float,
    noises: float,
    before: float,
    within: float,
    moved: float,
    grown: float,
    share: float,
    calls: float,
    calls_most: float,
    critical_share: float,
) -> Alarm | None:
    """Failures began before the reward fell, or at the same time, and explain most of the loss."""
    if not case.origins.is_watching or not (risen := case.origins.risen):
        return None
    lowest = lowest_reward(case, reward)
    for rise in risen:
        if rise.is_proven or rise.is_over:
            continue
        if rise.points > within or not _can_be(rise, moved, grown):
            rise.is_over = rise.points > JUMP
            continue
        fall, error = _fall(rise, reward)
        if fall <= max(noises * error * reward.noise_base, least * _height(rise, lowest)):
            continue
        if not _came_first(rise, reward, before):
            rise.is_over = True
        elif (rise.name in WRITTEN and rise.points <= JUMP) or rise.now - rise.level < share:
            continue
        elif rise.is_count or _explains(rise, lowest, tool_calls, calls, calls_most) >= explained * fall:
            rise.is_proven = True
    proven = case.origins.proven
    if proven is None or proven.before is None:
        return None
    fall, _ = _fall(proven, reward)
    height = max(_height(proven, lowest), NEAR_ZERO)
    if fall < least * height:
        return None
    proven.is_grave = proven.is_grave or fall > critical_share * height
    found = (critical if proven.is_grave else warning)(
        reward, proven.cause or "unknown", failing=origins.failing_text(proven), failures=proven.signal.key,
        before=proven.before.reward, now=proven.before.reward - fall, lost=fall,
    )  # fmt: skip
    if not proven.is_count:
        found.evidence |= {"share": proven.now, "expected": _explains(proven, lowest, tool_calls, calls, calls_most)}
    found.cause, found.kind = proven.cause, origins.KINDS[proven.cause]
    return since(proven.step, found)


def _height(rise: Rise, lowest: float) -> float:
    """The reward above the lowest before the failures began: the most that could be lost."""
    return max(rise.before.reward - lowest, 0.0) if rise.before is not None else 0.0


def _fall(rise: Rise, reward: Signal) -> tuple[float, float]:
    """How much the reward has fallen since the failures began, and the error of that number, in units of one value's
    noise. The median of five reacts fast; the fast level is more precise once enough values have come.
    """
    if rise.before is None:
        return math.nan, 1.0
    if rise.points <= SETTLED:
        return rise.before.reward - reward.median5, math.hypot(FAST_SHARE, MEDIAN_SHARE)
    return rise.before.reward - reward.fast, math.hypot(FAST_SHARE, FAST_SHARE)


def _came_first(rise: Rise, reward: Signal, share: float) -> bool:
    """Whether most of the fall came after the failures began."""
    if rise.before is None or not math.isfinite(rise.before.best):
        return True
    return rise.before.best - rise.before.reward < share * (rise.before.best - reward.median5)


def _can_be(rise: Rise, moved: float, grown: float) -> bool:
    """Whether something other than the policy can have caused the failures: the policy did not change before, its
    answers had not grown (for failures of long answers), and failures of its own output came as a jump.
    """
    before = rise.before
    if before is None or (rise.name in WRITTEN and rise.points > JUMP and not rise.is_jump):
        return False
    if rise.name in LONG and before.grown > grown:
        return False
    # Entropy falls while a policy learns, and faster than lengths change, so it has a wider band.
    return 1.0 / (moved * moved) < before.entropy < moved and all(
        1.0 / moved < move < moved for move in (before.length, before.turns)
    )


def _explains(rise: Rise, lowest: float, tool_calls: Signal | None, calls: float, calls_most: float) -> float:
    """The reward that this share of failures costs if each is scored with the lowest reward. One failed call of many
    can spoil a whole rollout.
    """
    share = min(max(rise.now - rise.level, 0.0) / max(1.0 - rise.level, NEAR_ZERO), 1.0)
    if rise.name == "failed_call":
        of_one = tool_calls.fast if tool_calls is not None and tool_calls.n else calls
        share = 1.0 - (1.0 - share) ** min(max(of_one, 1.0), calls_most)
    return share * _height(rise, lowest)
