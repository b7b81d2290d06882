"""Judges: whether their scores follow the gold labels, are repeatable, and can be read."""

from __future__ import annotations

import math

from rlvitals.health.alarm import Alarm, critical, warning
from rlvitals.health.statistics import NEAR_ZERO, Signal

DEVIATION = math.sqrt(math.pi) / 2
"""The standard deviation of normal noise divided by the mean distance between two draws."""


def judge_at_chance(judge_separation: Signal, *, evals: float, chance: float, chance_critical: float) -> Alarm | None:
    """In its last evaluations the judge hardly scores right answers above wrong ones."""
    if judge_separation.n < evals:
        return None
    recent = judge_separation.window[-int(evals) :]
    share = math.fsum(recent) / len(recent)
    if share >= chance:
        return None
    # A moving average would lag behind, because there are few evaluations.
    return (critical if share < chance_critical else warning)(judge_separation, share=share, level=share)


def judge_noise(
    self_agreement: Signal, reward_std: Signal, *, repeats: float, share: float, share_critical: float
) -> Alarm | None:
    """Much of the variance of the rewards in a group, from which the advantages are computed, is noise of the judge.
    The noise is estimated from the difference between two rewards of the same answer.
    """
    spread = reward_std.median5
    if self_agreement.n < repeats or not spread > NEAR_ZERO:
        return None
    recent = self_agreement.window[-int(repeats) :]
    apart = 1.0 - math.fsum(recent) / len(recent)
    noise = min(1.0, (DEVIATION * apart / spread) ** 2)
    if noise < share:
        return None
    return (critical if noise >= share_critical else warning)(self_agreement, share=noise, apart=apart)


def judge_unreadable(unread_verdicts: Signal, *, share: float, share_critical: float) -> Alarm | None:
    """Too many of the judge's replies contain no verdict."""
    level = unread_verdicts.at_least
    if level < share:
        return None
    return (critical if level >= share_critical else warning)(unread_verdicts, share=level)
