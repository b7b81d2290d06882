"""Judges: whether their scores follow the gold labels, repeat themselves, and can be read."""

from __future__ import annotations

import math

from rlvitals.health.alarm import Alarm, critical, warning
from rlvitals.health.statistics import NEAR_ZERO, Signal

DEVIATION = math.sqrt(math.pi) / 2
"""The standard deviation of normal noise over the mean distance of two draws of it."""


def judge_at_chance(judge_separation: Signal, *, evals: float, chance: float, chance_critical: float) -> Alarm | None:
    """Over its last evaluations the judge hardly scores right answers above wrong ones."""
    if judge_separation.n < evals:
        return None
    recent = judge_separation.window[-int(evals) :]
    share = math.fsum(recent) / len(recent)
    if share >= chance:
        return None
    # Few evaluations: the moving average lags behind them.
    return (critical if share < chance_critical else warning)(judge_separation, share=share, level=share)


def judge_noise(
    self_agreement: Signal, reward_std: Signal, *, repeats: float, share: float, share_critical: float
) -> Alarm | None:
    """What a judge's two rewards of one answer differ by, against what the rewards of a group differ by: of the
    variance that the advantages are made of, the part that is the judge's own.
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
    """A share of the judge's replies holds no verdict."""
    level = min(unread_verdicts.fast, unread_verdicts.median5)
    if level < share:
        return None
    return (critical if level >= share_critical else warning)(unread_verdicts, share=level)
