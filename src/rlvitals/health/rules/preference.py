"""KTO, DPO and their kin: margins, rewards, log-probabilities, evaluation."""

from __future__ import annotations

import math

from rlvitals.health.alarm import Alarm, critical, info, since, warning
from rlvitals.health.case import Case
from rlvitals.health.rules.optimisation import is_climbing
from rlvitals.health.statistics import FAST_SHARE, SLOW_SHARE, Signal

LN2 = math.log(2)


def margin_inversion(
    margin: Signal, lr: Signal | None, *, noises: float, noises_critical: float, points_critical: float
) -> Alarm | None:
    """The rejected answers are preferred, beyond the noise and not recovering."""
    noise = max(margin.noise, margin.noise_base, 1e-9)
    level = max(margin.fast, margin.median5)
    depth = -level / (noise * FAST_SHARE)
    turning = margin.n > 20 and margin.top > 0 and level < 0.4 * margin.top and margin.dropped and margin.rising < -3
    if level >= 0 or depth < noises:
        return warning(margin, "turning", best=margin.top) if turning else None
    if margin.rising > 1.0 and margin.fast > margin.base:
        return None  # it is on its way up
    sinking = margin.rising < -1.0 or margin.trend < -2.0
    if depth > noises_critical and sinking and margin.n >= points_critical:
        return critical(margin, depth=depth)
    return warning(margin, depth=depth)


def margin_is_noise(
    margin: Signal,
    pair_accuracy: Signal | None,
    loss: Signal | None,
    lr: Signal | None,
    *,
    noises: float,
    points_critical: float,
    accuracy: float,
    zeros: float,
) -> Alarm | None:
    """After this many points a margin that learns is out of its own noise."""
    if margin.zero_streak >= zeros:
        return since(margin.zero_step, critical(margin, "zero", streak=float(margin.zero_streak)))
    if lr is not None and is_climbing(lr):
        return None  # still warming up: nothing can have been learned yet
    noise = max(margin.noise, 1e-12)
    distance = margin.slow / (noise * SLOW_SHARE)
    moved = (
        abs(distance) > noises or abs(margin.trend) > 3.0 or abs(margin.rising) > 3.0 or margin.travelled > 2 * noise
    )
    # A sigmoid loss that has hardly fallen, over a margin that hardly exists: beyond the noise perhaps, but nothing.
    idle = (
        loss is not None
        and 0.45 < loss.start < 0.75
        and abs(margin.slow) < 0.02
        and loss.slow > 0.98 * loss.start
        and margin.trend < 6.0
    )
    if moved and not idle:
        return None
    nothing = idle and loss is not None and abs(margin.slow) < 0.001 and loss.slow > 0.999 * loss.start
    told_apart = pair_accuracy is not None and pair_accuracy.slow > (accuracy + 0.05 if idle else accuracy)
    if told_apart and not nothing:
        return None
    if margin.n >= points_critical:
        return critical(margin, distance=distance)
    return warning(margin, distance=distance)


def accuracy_below_chance(
    pair_accuracy: Signal, margin: Signal | None, *, warn: float, grave: float, points_critical: float
) -> Alarm | None:
    """Fewer than half of the pairs are told apart. Ties count as wrong, so margins of 0 do not count."""
    if margin is not None and margin.zero_share > 0.5:
        return None
    level = pair_accuracy.slow
    if level >= warn or pair_accuracy.rising > 1.5 or pair_accuracy.trend > 2.5:
        return None
    if level < grave and pair_accuracy.n >= points_critical:
        return critical(pair_accuracy, share=level)
    return warning(pair_accuracy, share=level)


def likelihood_displacement(
    chosen: Signal, margin: Signal | None, rejected: Signal | None, *, fall: float, share: float
) -> Alarm | None:
    """The margin grows because the rejected answers fall faster: the chosen ones become less likely too."""
    level = chosen.median5
    sunk = max(chosen.top, chosen.base, 0.0) - level
    if level > -0.5 * fall or sunk < fall or sunk < 2.5 * chosen.noise or chosen.momentum > 0:
        return None
    if margin is not None:
        grown = margin.median5 - margin.base
    elif rejected is not None:
        grown = (chosen.fast - chosen.base) - (rejected.fast - rejected.base)
    else:
        return None
    if grown <= 0 or sunk < share * grown:
        return None
    return warning(chosen, fall=sunk, grown=grown)


def log_probability_crash(
    logp_chosen: Signal, margin: Signal | None, *, times: float, times_critical: float, noises: float
) -> Alarm | None:
    """The log-probability of the chosen answers has fallen to a multiple of its start: the model is being destroyed,
    even while the loss falls. A margin that still grows says that it may recover.
    """
    base = logp_chosen.base
    if not base < 0:
        return None
    level = max(logp_chosen.median5, logp_chosen.fast) if logp_chosen.n >= 12 else logp_chosen.median5
    ratio = level / base
    if ratio < times or base - level < noises * logp_chosen.noise_base:
        return None
    learning = margin is not None and margin.n >= 12 and margin.gained and not margin.dropped
    grave = ratio >= times_critical and not learning
    return (critical if grave or ratio >= 1.5 * times_critical else warning)(logp_chosen, times=ratio)


def eval_margin_inversion(eval_margin: Signal, margin: Signal | None, *, evals: float) -> Alarm | None:
    """On held-out pairs the rejected answers are preferred, more and more: the training labels say the opposite."""
    window = eval_margin.window
    if eval_margin.n < evals or len(window) < 2 or max(window[-2:]) >= 0 or window[-1] > window[0]:
        return None
    rising = margin is not None and margin.n > 12 and margin.gained
    return (critical if eval_margin.n > evals or rising else warning)(eval_margin)


def eval_overfit(eval_loss: Signal, *, rise: float, rise_critical: float) -> Alarm | None:
    """The held-out loss is above its best twice in a row, and further the second time."""
    best = eval_loss.lowest
    window = eval_loss.window
    if eval_loss.n < 3 or best <= 0:
        return None
    before, now = window[-2], window[-1]
    if now > (1 + rise_critical) * best and before > (1 + rise) * best:
        return critical(eval_loss, rise=now / best - 1, best=best)
    if now > (1 + 2 * rise) * best or (
        now > (1 + rise) * best and before > (1 + 0.3 * rise) * best and now > before * 0.98
    ):
        return warning(eval_loss, rise=now / best - 1, best=best)
    return None


def preference_saturated(
    loss: Signal, pair_accuracy: Signal | None, margin: Signal | None, *, accuracy: float, level: float, far: float
) -> Alarm | None:
    """Everything is told apart and the loss is used up: the remaining steps only push log-probabilities down. Where no
    accuracy is logged (KTO), a margin this far out stands for it.
    """
    if max(loss.median5, loss.fast) > level:
        return None
    told_apart = math.nan
    if pair_accuracy is not None:
        told_apart = min(pair_accuracy.fast, pair_accuracy.median5)
        if told_apart < accuracy:
            return None
    elif margin is None or min(margin.fast, margin.median5) < far:
        return None
    return warning(loss, accuracy=told_apart)


def kto_kl_explosion(kto_kl: Signal, *, times: float, level: float, level_critical: float) -> Alarm | None:
    """KTO's reference point runs away: the policy leaves the reference as a whole, not only on good answers."""
    middle = kto_kl.median5
    if middle < level or middle < times * max(kto_kl.base, 1e-3):
        window = kto_kl.window
        doubling = (
            len(window) >= 4
            and window[-4] > 0.03
            and all(later > 1.8 * earlier for earlier, later in zip(window[-4:], window[-3:], strict=False))
        )
        return warning(kto_kl, "doubling") if doubling and kto_kl.last > level else None
    return critical(kto_kl, level_now=middle) if middle > level_critical else warning(kto_kl, level_now=middle)


def kto_kl_at_zero(kto_kl: Signal, *, share: float) -> Alarm | None:
    """Normal: TRL's estimator is cut off at 0."""
    return info(kto_kl, share=kto_kl.zero_share) if kto_kl.n >= 20 and kto_kl.zero_share > share else None


def class_imbalance(
    case: Case, desirable_count: Signal | None, undesirable_count: Signal | None, *, low: float, high: float
) -> Alarm | None:
    """Weight times count of desirable against undesirable examples, outside what KTO's authors advise."""
    good = case.number("n_desirable", "num_desirable", "desirable_count")
    bad = case.number("n_undesirable", "num_undesirable", "undesirable_count")
    source = None
    if good is None and desirable_count is not None and undesirable_count is not None and desirable_count.n >= 10:
        good, bad, source = desirable_count.slow, undesirable_count.slow, desirable_count
    if good is None or bad is None:
        return None
    heavy = good * (case.number("desirable_weight") or 1.0)
    light = bad * (case.number("undesirable_weight") or 1.0)
    if light <= 0 or heavy <= 0:
        return warning(source, "single", desirable=good, undesirable=bad)
    balance = heavy / light
    return None if low <= balance <= high else warning(source, balance=balance, desirable=good, undesirable=bad)
