"""Numbers that cannot be right in any run, and numbers that only look wrong."""

from __future__ import annotations

import math

from rlvitals.health.alarm import Alarm, info, warning
from rlvitals.health.case import Case
from rlvitals.health.statistics import NEAR_ZERO, Signal

SHARES = ("truncated", "clip", "zero_variance", "all_fail", "all_pass", "pair_accuracy", "tool_failures", "kept_share")
_WATCHED = ("reward", "loss", "margin", "kl", "entropy", "grad_norm")


def impossible_share(case: Case, *, slack: float) -> Alarm | None:
    """A fraction outside 0 to 1."""
    for name in SHARES:
        signal = case.signals.get(name)
        if signal is not None and signal.n and (signal.last < -slack or signal.last > 1 + slack):
            return warning(signal)
    return None


def impossible_mean(reward: Signal, reward_low: Signal, reward_high: Signal, *, slack: float) -> Alarm | None:
    """A mean outside its own minimum and maximum."""
    span = max(abs(reward_high.last - reward_low.last), abs(reward.last), NEAR_ZERO)
    if reward.seen_at != reward_low.seen_at or reward.seen_at != reward_high.seen_at:
        return None
    if reward.last < reward_low.last - slack * span or reward.last > reward_high.last + slack * span:
        return warning(reward, lowest=reward_low.last, highest=reward_high.last)
    return None


def impossible_entropy(entropy: Signal, case: Case, *, vocabulary: float, base_most: float) -> Alarm | None:
    """An entropy per token above the logarithm of the vocabulary."""
    most = math.log(case.number("vocab_size", "vocabulary_size") or vocabulary)
    return warning(entropy, most=most) if entropy.median5 > most and entropy.base < base_most else None


def impossible_kl(kl: Signal, case: Case, *, slack: float) -> Alarm | None:
    """The k3 estimator is never negative for any token, except for rounding in half precision."""
    return warning(kl) if case.kl_estimator == "kl_ref.k3" and kl.last < -slack else None


def metric_vanished(case: Case, *, points: float, points_before: float) -> Alarm | None:
    """A core series that was logged regularly is no longer logged."""
    for name in _WATCHED:
        signal = case.signals.get(name)
        if signal is None or signal.n < points_before:
            continue
        missed = case.points - signal.seen_at
        if not missed:
            continue
        usual = case.points / (signal.n + signal.nonfinite)
        if missed > points * max(usual, 1.0):
            return warning(signal, missed=float(missed))
    return None


def steps_repeated(case: Case, *, times: float, share: float) -> Alarm | None:
    """Steps are logged twice with the same series: two processes write one log. If most rows repeat their step, the log
    has a row for each sample or micro-batch.
    """
    if case.duplicates < times:
        return None
    if case.duplicates > share * case.points:
        return info(None, "several", times=float(case.duplicates))
    return warning(None, times=float(case.duplicates))


def steps_backwards(case: Case, *, times: float) -> Alarm | None:
    """The step number goes backwards repeatedly: two processes write one log, or a counter is broken."""
    return warning(None, times=float(case.backward_steps)) if case.backward_steps >= times else None


def reward_is_not_its_parts(case: Case, reward: Signal, *, slack: float, points: float) -> Alarm | None:
    """The logged parts, with the weights from the settings, have not added up to the reward for a while."""
    weights = case.config.get("reward_weights")
    parts = list(case.parts.values())
    if not isinstance(weights, list | tuple) or len(weights) != len(parts) or len(parts) < 2:
        return None
    if any(part.seen_at != reward.seen_at for part in parts) or reward.n < points:
        return None
    total = sum(float(weight) * part.fast for weight, part in zip(weights, parts, strict=True))
    size = max(
        abs(reward.fast), sum(abs(float(weight) * part.fast) for weight, part in zip(weights, parts, strict=True))
    )
    return warning(reward, total=total) if abs(reward.fast - total) > slack * max(size, NEAR_ZERO) else None


def loss_of_zero(loss: Signal, case: Case, *, share: float, points: float) -> Alarm | None:
    """Normal: with one update per batch the ratio is 1 and centred advantages cancel."""
    is_zero = loss.n >= points and loss.zero_share > share
    return info(loss, share=loss.zero_share) if is_zero and case.family == "policy" else None


def clip_of_zero(clip: Signal, *, points: float) -> Alarm | None:
    """Normal: with one update per batch nothing is ever clipped."""
    return info(clip) if clip.n >= points and clip.highest == 0.0 else None


def first_accuracy(pair_accuracy: Signal, margin: Signal) -> Alarm | None:
    """Normal: before the first update chosen and rejected tie, and ties count as wrong."""
    is_tie = pair_accuracy.n == 1 and pair_accuracy.last == 0.0 and margin.last == 0.0
    return info(pair_accuracy) if is_tie else None
