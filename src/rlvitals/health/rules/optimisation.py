"""Rules for any trainer: non-finite numbers, gradients, losses, learning rate."""

from __future__ import annotations

import math
from itertools import pairwise

from rlvitals.health.alarm import Alarm, beyond_doubt, critical, in_company, info, since, warning
from rlvitals.health.case import Case
from rlvitals.health.statistics import NEAR_ZERO, WINDOW, Signal

CORE = ("loss", "policy_loss", "value_loss", "grad_norm", "kl", "reward", "entropy", "margin", "logp_chosen", "ratio")
_FATAL = frozenset({"loss", "policy_loss", "value_loss"})

EARLY = 3
"""Points whose median is the initial level. The baseline is longer, so it could contain the blow-up."""


def nonfinite_core(case: Case, *, again: float) -> Alarm | None:
    """A core series is not a finite number. For a loss this is critical at once, for other series when it repeats."""
    for name in CORE:
        signal = case.signals.get(name)
        if signal is not None and signal.nonfinite_recent >= 1.0 and signal.seen_at == case.points:
            if name in _FATAL or signal.nonfinite_recent >= again:
                return critical(signal, count=float(signal.nonfinite))
            return warning(signal, count=float(signal.nonfinite))
    return None


def earlier_attempt_failed(case: Case) -> Alarm | None:
    """The steps restarted after an attempt that had failed, and this attempt has not got further than that one yet."""
    failed = case.failed_attempt
    if failed is None or case.points > failed.points:
        return None
    found = warning(None, what=failed.title, ended=float(failed.step), rows=float(failed.points))
    found.kind = failed.kind
    return since(failed.onset_step, found)


def nonfinite_other(case: Case, *, count: float, share: float, count_times: float) -> Alarm | None:
    """A metric outside the core ones is repeatedly not a finite number; the other metrics may still be right."""
    if not case.nonfinite_others:
        return None
    core = {case.signals[name].key for name in CORE if name in case.signals}
    for key, times in case.nonfinite_others.items():
        if times >= count and key not in core:
            often = times >= share * case.points and times > count_times * count
            return (critical if often else warning)(None, metric=key, count=float(times))
    return None


def dead_gradient(grad_norm: Signal, *, streak: float, share: float, share_points: float) -> Alarm | None:
    """The gradient norm is exactly 0: nothing is trained."""
    if grad_norm.zero_streak >= streak:
        return since(grad_norm.zero_step, critical(grad_norm, streak=float(grad_norm.zero_streak)))
    if grad_norm.n >= share_points and grad_norm.zero_share > share:
        return warning(grad_norm, "often", share=grad_norm.zero_share)
    return None


def frozen_loss(
    loss: Signal, grad_norm: Signal | None, case: Case, *, streak: float, streak_gradient: float
) -> Alarm | None:
    """The loss repeats to the last digit. A policy-gradient loss of exactly 0 is normal."""
    if loss.equal_streak < streak or (case.family == "policy" and abs(loss.last) < NEAR_ZERO):
        return None
    dead = grad_norm is None or grad_norm.zero_streak >= streak_gradient or grad_norm.equal_streak >= streak_gradient
    return since(loss.equal_step, (critical if dead else warning)(loss, streak=float(loss.equal_streak)))


def gradient_explosion(
    grad_norm: Signal,
    reward: Signal | None,
    loss: Signal | None,
    case: Case,
    *,
    ratio: float,
    ratio_critical: float,
    floor: float,
    noises: float,
    base_least: float,
    points_loss: float,
    noises_loss: float,
    noise_least: float,
    hurt_times: float,
    doubtless: float,
) -> Alarm | None:
    """The gradient norm has grown to many times its initial value and stays there. It must exceed its noise, because a
    start with many zeros (groups without spread) has a low level that means nothing. Preference training starts at the
    reference, where gradients are small, so there only a loss that rises with them counts.
    """
    middle = grad_norm.median5
    times = middle / max(grad_norm.base, base_least)
    if not times >= ratio or middle < floor or middle - grad_norm.base < noises * grad_norm.noise_base:
        return None
    if times >= doubtless and middle >= doubtless:
        return beyond_doubt(critical(grad_norm, times=times, level=middle))
    hurt = reward is not None and reward.hurt
    worse = (
        loss is not None
        and loss.n > points_loss
        and loss.fast > loss.base + noises_loss * max(loss.noise_base, noise_least * abs(loss.base))
    )
    if case.family == "preference" and not worse and times < ratio_critical:
        return None
    if times >= ratio_critical or ((hurt or worse) and times >= hurt_times * ratio):
        return critical(grad_norm, times=times, level=middle)
    return warning(grad_norm, times=times, level=middle)


def loss_divergence(
    loss: Signal | None,
    policy_loss: Signal | None,
    case: Case,
    reward: Signal | None,
    grad_norm: Signal | None,
    value_loss: Signal | None,
    *,
    rise: float,
    rise_critical: float,
    noises: float,
    points: float,
    noise_share: float,
    noise_least: float,
    policy_times: float,
    policy_critical: float,
    points_risen: float,
    critical_times: float,
    doubtless: float,
    grown: float,
    rising: float,
) -> Alarm | None:
    """The loss has risen above its initial level and stays there. In policy-gradient training its level means little,
    so only a change far beyond its own noise counts. While the reward keeps its gain, it is a remark.
    """
    for signal in (loss, policy_loss):
        if signal is None or signal.n < points or signal.seen_at != case.points:
            continue
        base = signal.base
        if abs(signal.median5) >= doubtless * max(abs(base), 1.0):
            return beyond_doubt(critical(signal, level=signal.median5))
        if case.family != "policy" and not any(signal.head):
            continue  # a buffer was being filled and nothing was trained, so there is no start to compare with
        # A loss that is 0 except for the KL term moves by less than a hundredth and means nothing.
        noise = max(signal.noise_base, noise_share * abs(base), noise_least)
        if case.family == "policy":
            away = min(abs(signal.median5 - base), abs(signal.fast - base)) / noise
            if away > policy_times * noises and abs(signal.median5) > policy_times * abs(base):
                hurt = reward is not None and reward.hurt
                ahead = reward is not None and reward.ahead
                grave = hurt or away > policy_critical * noises
                others = any(one is not None and one.median_ratio > grown for one in (grad_norm, value_loss))
                if others and reward is not None and reward.rising < rising and (ahead or not grave):
                    return in_company(warning(signal, away=away))
                if ahead:
                    return info(signal, away=away)
                return (critical if grave else warning)(signal, away=away)
            continue
        up = signal.at_least - base
        if up < noises * noise or up < rise * abs(base) or signal.bottom_age < points_risen:
            continue
        if reward is not None and reward.ahead:
            return info(signal, rise=up / max(abs(base), NEAR_ZERO), level=base + up)  # larger returns, larger errors
        grave = up > rise_critical * abs(base) and up > critical_times * noises * noise
        return (critical if grave else warning)(signal, rise=up / max(abs(base), NEAR_ZERO), level=base + up)
    return None


def early_blow_up(
    case: Case,
    loss: Signal | None,
    grad_norm: Signal | None,
    kl: Signal | None,
    entropy: Signal | None,
    logp_chosen: Signal | None,
    *,
    points: float,
    loss_times: float,
    grad_times: float,
    kl_level: float,
    entropy_share: float,
    points_least: float,
    loss_least: float,
    grad_least: float,
    grad_level: float,
    sum_times: float,
    kl_early: float,
    entropy_times: float,
    entropy_least: float,
    logp_times: float,
    zeros: float,
    signs_critical: float,
) -> Alarm | None:
    """Several series blow up within the first points: the learning rate is too high from the start."""
    if case.points > points:
        return None
    loss, grad_norm, kl, entropy = (
        signal if signal and signal.n >= points_least else None for signal in (loss, grad_norm, kl, entropy)
    )
    signs: dict[str, float] = {}
    worst: Signal | None = None
    if loss is not None and case.family != "policy" and loss.median5 > loss_times * max(abs(loss.head[0]), loss_least):
        signs["loss"], worst = loss.median5, loss
    if (
        grad_norm is not None
        and grad_norm.median5 > grad_times * max(_early(grad_norm), grad_least)
        and grad_norm.median5 > grad_level
    ):
        signs["grad_norm"], worst = grad_norm.median5, worst or grad_norm
    if (
        kl is not None
        and kl.median5 > kl_level * (sum_times if case.kl_is_sum else 1.0)
        and _early(kl) < kl_early * kl.median5
    ):
        signs["kl"], worst = kl.median5, worst or kl
    if entropy is not None and entropy.head[0] > 0 and entropy.fast < entropy_share * entropy.head[0]:
        signs["entropy"], worst = entropy.fast, worst or entropy
    if (
        entropy is not None
        and entropy.head[0] > 0
        and entropy.median5 > entropy_times * max(entropy.head[0], entropy_least)
    ):
        signs["entropy"], worst = entropy.fast, worst or entropy
    if (
        logp_chosen is not None
        and logp_chosen.n >= points_least
        and logp_chosen.median5 < logp_times * _early(logp_chosen, 2) < 0
    ):
        signs["logps/chosen"], worst = logp_chosen.median5, logp_chosen
    if grad_norm is not None and grad_norm.zero_streak >= zeros and not _early(grad_norm) < NEAR_ZERO:
        signs["grad_norm"], worst = 0.0, worst or grad_norm
    if not signs:
        return None
    alarm = critical if len(signs) >= signs_critical else warning
    return alarm(worst, signs=", ".join(f"{name} {value:.3g}" for name, value in signs.items()))


def _early(signal: Signal, points: int = EARLY) -> float:
    """The level of the first points."""
    head = sorted(signal.head[:points])
    return head[len(head) // 2]


def learning_rate_too_low(
    lr: Signal,
    case: Case,
    reward: Signal | None,
    margin: Signal | None,
    *,
    absolute: float,
    share: float,
    margin_moved: float,
    points: float,
) -> Alarm | None:
    """No step so far had a learning rate that could change the model. If the metrics move, the rate is not 0: consoles
    print 1e-6 as 0.000.
    """
    asked = case.number("learning_rate", "lr")
    ceiling = max(absolute, share * asked if asked else 0.0)
    if lr.highest >= ceiling:
        return None
    moved = (reward is not None and reward.gained) or (
        margin is not None and margin.gained and margin.fast > margin_moved
    )
    if moved:
        return None
    progress = reward or margin
    if not is_climbing(lr) and progress is not None and progress.n >= points:
        return since(lr.first_step, critical(lr, highest=lr.highest, ceiling=ceiling))
    return since(lr.first_step, warning(lr, highest=lr.highest, ceiling=ceiling)) if lr.highest > 0 else None


def is_climbing(lr: Signal) -> bool:
    """Whether the learning rate is at its highest and still rising: a warm-up."""
    window = lr.window
    return lr.last >= lr.highest and len(window) > 1 and window[-1] > window[0]


def warm_up_without_end(lr: Signal, case: Case, *, share: float, share_warning: float, points: float) -> Alarm | None:
    """The learning rate is still climbing when a good part of the run is over: a remark, or a warning close to the end.
    A second data set may start its own warm-up.
    """
    window = lr.window
    if len(window) < WINDOW or lr.last < lr.highest or not all(a < b for a, b in pairwise(window)):
        return None
    progress = case.progress
    late = progress >= share if progress is not None else lr.n >= points
    if not late:
        return None
    if progress is None:
        return info(lr, progress=math.nan)
    return (warning if progress >= share_warning else info)(lr, progress=progress)


def instability(
    case: Case,
    loss: Signal | None,
    reward: Signal | None,
    grad_norm: Signal | None,
    kl: Signal | None,
    *,
    times: float,
    times_alone: float,
    points: float,
    points_loss: float,
    jump_least: float,
    signs_least: float,
    times_together: float,
    signs_together: float,
    rising: float,
    kept: float,
) -> Alarm | None:
    """Step-to-step jumps keep growing, usually before the level changes. This often precedes a collapse. If three
    series do so together and the reward has stopped rising, a smaller growth is enough.
    """
    worst: Signal | None = None
    signs = together = 0
    for signal in (reward, grad_norm, kl, loss):
        if signal is None or signal.n < points or signal.seen_at != case.points:
            continue
        if not signal.jump_ratio > times_together:
            continue
        if (signal is loss or signal is kl) and signal.n < points_loss:
            continue  # both start without movement, and their jumps grow normally
        if signal is loss and case.family == "policy" and signal.jump < jump_least:
            continue  # a loss that is 0 except for the KL term
        if signal is loss and case.family == "policy" and worst is kl:
            continue  # such a loss is the KL term: one sign, not two
        together += 1
        if signal.jump_ratio > times:
            signs += 1
        if worst is None or signal.jump_ratio > worst.jump_ratio:
            worst = signal
    if worst is None:
        return None
    has_moved = not abs(worst.fast - worst.base) <= kept * worst.noise_base
    variant = "moved" if has_moved else ""
    if together >= signs_together and reward is not None and reward.rising < rising:
        return in_company(warning(worst, variant, jumps=worst.jump_ratio, signs=float(together)))
    if worst.jump_ratio < times or (
        signs < signs_least and (worst.jump_ratio < times_alone or worst is loss or worst is kl)
    ):
        return None
    return warning(worst, variant, jumps=worst.jump_ratio, signs=float(signs))
