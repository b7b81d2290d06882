"""KTO, DPO and related algorithms: margins, rewards, log-probabilities, evaluation."""

from __future__ import annotations

import math
from itertools import pairwise

from rlvitals.health.alarm import Alarm, critical, info, since, warning
from rlvitals.health.case import Case
from rlvitals.health.rules.optimisation import is_climbing
from rlvitals.health.statistics import FAST_SHARE, NEAR_ZERO, SLOW_SHARE, TINY, Signal


def margin_inversion(
    margin: Signal,
    *,
    noises: float,
    noises_critical: float,
    points_critical: float,
    rising: float,
    trend: float,
    points_turning: float,
    share_turning: float,
    falling_turning: float,
) -> Alarm | None:
    """The rejected answers are preferred, beyond the noise and not recovering."""
    noise = max(margin.noise, margin.noise_base, NEAR_ZERO)
    level = margin.at_most
    depth = -level / (noise * FAST_SHARE)
    turning = (
        margin.n > points_turning
        and margin.top > 0
        and level < share_turning * margin.top
        and margin.dropped
        and margin.rising < -falling_turning
    )
    if level >= 0 or depth < noises:
        return warning(margin, "turning", best=margin.top) if turning else None
    if margin.rising > rising and margin.fast > margin.base:
        return None  # it is on its way up
    sinking = margin.rising < -rising or margin.trend < -trend
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
    moving: float,
    sigmoid_low: float,
    sigmoid_high: float,
    margin_idle: float,
    loss_idle: float,
    trend_idle: float,
    margin_nothing: float,
    loss_nothing: float,
    accuracy_more: float,
    noises_travelled: float,
) -> Alarm | None:
    """The margin is still within its noise after many points, when a model that learns would be beyond it."""
    if margin.zero_streak >= zeros:
        return since(margin.zero_step, critical(margin, "zero", streak=float(margin.zero_streak)))
    if lr is not None and is_climbing(lr):
        return None  # still in the warm-up: nothing can have been learned yet
    noise = max(margin.noise, TINY)
    distance = margin.slow / (noise * SLOW_SHARE)
    moved = (
        abs(distance) > noises
        or abs(margin.trend) > moving
        or abs(margin.rising) > moving
        or margin.travelled > noises_travelled * noise
    )
    # A sigmoid loss that has hardly fallen, with a tiny margin: it may exceed the noise, but it is no progress.
    idle = (
        loss is not None
        and sigmoid_low < loss.start < sigmoid_high
        and abs(margin.slow) < margin_idle
        and loss.slow > loss_idle * loss.start
        and margin.trend < trend_idle
    )
    if moved and not idle:
        return None
    nothing = idle and loss is not None and abs(margin.slow) < margin_nothing and loss.slow > loss_nothing * loss.start
    ranks_pairs = pair_accuracy is not None and pair_accuracy.slow > (accuracy + accuracy_more if idle else accuracy)
    if ranks_pairs and not nothing:
        return None
    found = critical if margin.n >= points_critical else warning
    return since(margin.first_step, found(margin, distance=distance))


def accuracy_below_chance(
    pair_accuracy: Signal,
    margin: Signal | None,
    *,
    warn: float,
    grave: float,
    points_critical: float,
    ties: float,
    rising: float,
    trend: float,
) -> Alarm | None:
    """Fewer than half of the pairs are distinguished. Ties count as wrong, so margins of 0 do not count."""
    if margin is not None and margin.zero_share > ties:
        return None
    level = pair_accuracy.slow
    if level >= warn or pair_accuracy.rising > rising or pair_accuracy.trend > trend:
        return None
    if level < grave and pair_accuracy.n >= points_critical:
        return critical(pair_accuracy, share=level, level=level)
    return warning(pair_accuracy, share=level, level=level)


def likelihood_displacement(
    chosen: Signal,
    margin: Signal | None,
    rejected: Signal | None,
    pair_accuracy: Signal | None,
    eval_loss: Signal | None,
    *,
    fall: float,
    share: float,
    level_share: float,
    noises: float,
    deep: float,
    held_out_rise: float,
    faster: float,
    momentum: float,
) -> Alarm | None:
    """The margin grows because the rejected answers fall faster, but the chosen ones also become less likely. While
    margin and accuracy keep their gains, also on held-out pairs, a little of this is normal in preference training,
    unless the chosen answers now lose more than the margin gains.
    """
    level = chosen.median5
    sunk = max(chosen.top, chosen.base, 0.0) - level
    sinking = margin is not None and chosen.momentum < -momentum and -chosen.speed > faster * margin.speed
    # A fast fall also raises the noise that it is compared with.
    if level > -level_share * fall or sunk < fall or (sunk < noises * chosen.noise and not sinking):
        return None
    if chosen.momentum > 0:
        return None
    if margin is not None:
        grown = margin.median5 - margin.base
    elif rejected is not None:
        grown = (chosen.fast - chosen.base) - (rejected.fast - rejected.base)
    else:
        return None
    if grown <= 0 or sunk < share * grown:
        return None
    learns = margin is not None and margin.ahead and sunk < deep * fall
    learns = learns and (pair_accuracy is None or not pair_accuracy.hurt)
    overfits = eval_loss is not None and eval_loss.n > 1 and eval_loss.last > (1 + held_out_rise) * eval_loss.lowest
    return (info if learns and not overfits and not sinking else warning)(chosen, fall=sunk, grown=grown)


def log_probability_crash(
    logp_chosen: Signal,
    margin: Signal | None,
    *,
    times: float,
    times_critical: float,
    noises: float,
    points: float,
    learning_times: float,
) -> Alarm | None:
    """The log-probability of the chosen answers has fallen to a multiple of its initial value: the updates destroy the
    model, even if the loss falls. If the margin still grows, it may recover.
    """
    base = logp_chosen.base
    if not base < 0:
        return None
    level = logp_chosen.at_most if logp_chosen.n >= points else logp_chosen.median5
    ratio = level / base
    if ratio < times or base - level < noises * logp_chosen.noise_base:
        return None
    learning = margin is not None and margin.n >= points and margin.keeps_gain
    grave = ratio >= times_critical and not learning
    return (critical if grave or ratio >= learning_times * times_critical else warning)(
        logp_chosen, times=ratio, level=level
    )


def eval_margin_inversion(eval_margin: Signal, margin: Signal | None, *, evals: float, points: float) -> Alarm | None:
    """On held-out pairs the rejected answers are preferred, more and more. Critical if the training margin grows at the
    same time, because the two sets then contradict each other. A few held-out pairs are below 0 by chance.
    """
    window = eval_margin.window
    if eval_margin.n < evals or len(window) < 2 or max(window[-2:]) >= 0 or window[-1] > window[0]:
        return None
    rising = margin is not None and margin.n > points and margin.gained
    return (critical if rising else warning)(eval_margin)


def eval_overfit(
    eval_loss: Signal,
    *,
    rise: float,
    rise_critical: float,
    evals: float,
    before_share: float,
    steady_share: float,
    once_times: float,
) -> Alarm | None:
    """The held-out loss is above its best, either twice in a row without coming back or once by a lot."""
    best = eval_loss.lowest
    window = eval_loss.window
    if eval_loss.n < evals or best <= 0:
        return None
    before, now = window[-2], window[-1]
    if now > (1 + rise_critical) * best and before > (1 + rise) * best:
        return critical(eval_loss, rise=now / best - 1, best=best)
    if now > (1 + once_times * rise) * best or (
        now > (1 + rise) * best and before > (1 + before_share * rise) * best and now > before * steady_share
    ):
        return warning(eval_loss, rise=now / best - 1, best=best)
    return None


def preference_saturated(
    loss: Signal, pair_accuracy: Signal | None, margin: Signal | None, *, accuracy: float, level: float, far: float
) -> Alarm | None:
    """Every pair is ranked correctly and the loss is close to 0: further steps only push log-probabilities down. If no
    accuracy is logged (KTO), a very large margin is used instead.
    """
    if loss.at_most > level:
        return None
    measured_accuracy = math.nan
    if pair_accuracy is not None:
        measured_accuracy = pair_accuracy.at_least
        if measured_accuracy < accuracy:
            return None
    elif margin is None or margin.at_least < far:
        return None
    return warning(loss, accuracy=measured_accuracy)


def kto_kl_explosion(
    kto_kl: Signal,
    *,
    times: float,
    level: float,
    level_critical: float,
    base_least: float,
    doubling_points: float,
    doubling_least: float,
    doubling_times: float,
) -> Alarm | None:
    """KTO's reference point keeps growing: the policy leaves the reference on all answers, not only on good ones."""
    middle = kto_kl.median5
    if middle < level or middle < times * max(kto_kl.base, base_least):
        recent = kto_kl.window[-int(doubling_points) :]
        doubling = (
            len(recent) >= doubling_points
            and recent[0] > doubling_least
            and all(later > doubling_times * earlier for earlier, later in pairwise(recent))
        )
        return warning(kto_kl, "doubling") if doubling and kto_kl.last > level else None
    return critical(kto_kl, level_now=middle) if middle > level_critical else warning(kto_kl, level_now=middle)


def kto_kl_at_zero(kto_kl: Signal, *, share: float, points: float) -> Alarm | None:
    """Normal: TRL's estimator is cut off at 0."""
    return info(kto_kl, share=kto_kl.zero_share) if kto_kl.n >= points and kto_kl.zero_share > share else None


def class_imbalance(
    case: Case,
    desirable_count: Signal | None,
    undesirable_count: Signal | None,
    *,
    low: float,
    high: float,
    points: float,
) -> Alarm | None:
    """The ratio of weight times count, desirable to undesirable examples, is outside the range that KTO's authors
    advise.
    """
    good = case.number("n_desirable", "num_desirable", "desirable_count")
    bad = case.number("n_undesirable", "num_undesirable", "undesirable_count")
    source = None
    if good is None and desirable_count is not None and undesirable_count is not None and desirable_count.n >= points:
        good, bad, source = desirable_count.slow, undesirable_count.slow, desirable_count
    if good is None or bad is None:
        return None
    heavy = good * (case.number("desirable_weight") or 1.0)
    light = bad * (case.number("undesirable_weight") or 1.0)
    if light <= 0 or heavy <= 0:
        return warning(source, "single", desirable=good, undesirable=bad)
    balance = heavy / light
    return None if low <= balance <= high else warning(source, balance=balance, desirable=good, undesirable=bad)
