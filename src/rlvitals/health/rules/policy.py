"""The effect of the updates on the policy: KL, entropy, clipping, ratios, mismatch with the rollouts, the critic."""

from __future__ import annotations

import math

from rlvitals.health.alarm import Alarm, critical, in_company, info, warning
from rlvitals.health.case import Case
from rlvitals.health.rules.reward import is_solved, kl_unit
from rlvitals.health.statistics import FAST_SHARE, NEAR_ZERO, TINY, Signal

LEVELS_APART = 36.0
"""The difference of the mean ages of the slow and the fast level, in points: half-lives of 30 and 5 over ln 2."""


def kl_explosion(
    kl: Signal,
    reward: Signal | None,
    length: Signal | None,
    case: Case,
    *,
    level: float,
    times: float,
    level_critical: float,
    base_least: float,
    settled_share: float,
    hurt_share: float,
    length_low: float,
    length_high: float,
    winning_times: float,
    winning_critical: float,
    fast_times: float,
) -> Alarm | None:
    """The policy leaves its reference: the KL is a multiple of its initial value, and large enough to matter."""
    unit = kl_unit(case)
    middle = min(kl.median5, fast_times * kl.fast)
    base = max(kl.base, base_least * unit)
    if middle < times * base:
        return None
    hurt = reward is not None and reward.hurt
    settled = min(kl.slow, middle) > settled_share * level * unit  # not a short swing
    if middle < (hurt_share if hurt else 1.0) * level * unit and not settled:
        return None
    changed = (
        length is not None and not length_low < (length.ratio if not math.isnan(length.ratio) else 1.0) < length_high
    )
    winning = reward is not None and reward.winning
    if middle > level_critical * unit and (not winning or middle > winning_critical * level_critical * unit):
        return critical(kl, times=middle / base, level=middle, base=base)
    if middle > level * unit and (hurt or (changed and not winning)):
        return critical(kl, times=middle / base, level=middle, base=base)
    if winning and middle < winning_times * level * unit and not settled:
        return None
    return warning(kl, times=middle / base, level=middle, base=base)


def kl_negative(kl: Signal, case: Case, *, level: float, deep: float, sum_times: float, noises: float) -> Alarm | None:
    """An average KL cannot be negative; a sampled one dips below 0 a little and returns."""
    unit = kl_unit(case)
    middle = kl.median5
    if middle < -deep * (sum_times if case.kl_is_sum else 1.0):
        return critical(kl)
    if middle < -level * unit and kl.fast < -level * unit and kl.fast < -noises * FAST_SHARE * kl.noise:
        return warning(kl)
    return None


def entropy_collapse(
    entropy: Signal,
    reward: Signal | None,
    zero_variance: Signal | None,
    reward_std: Signal | None,
    case: Case,
    *,
    ratio: float,
    ratio_critical: float,
    noises: float,
    errors: float,
    rising: float,
    groups_risen: float,
    spread_left: float,
) -> Alarm | None:
    """The policy has almost stopped exploring. While the reward rises, this is normal for a while. It is a collapse if
    the reward has stopped rising and hardly any entropy is left or groups have lost their spread.
    """
    base = entropy.base
    if base <= 0 or entropy.ratio > ratio or entropy.median_ratio > ratio:
        return None
    if base - entropy.fast < noises * FAST_SHARE * entropy.noise_base:
        return None
    if reward is not None and is_solved(case, reward):
        return info(entropy, ratio=entropy.ratio)
    alike = (zero_variance is not None and zero_variance.median5 > zero_variance.base + groups_risen) or (
        reward_std is not None and reward_std.ratio < spread_left and reward_std.median_ratio < spread_left
    )
    if reward is not None and reward.stalled and reward.won and (alike or entropy.median_ratio < ratio_critical):
        return in_company(warning(entropy, ratio=entropy.ratio))
    climbing = reward is not None and (
        (reward.won and reward.course.lately > errors) or (reward.keeps_gain and reward.rising > rising)
    )
    if climbing:
        return info(entropy, ratio=entropy.ratio)
    held = reward is None or reward.ahead
    if entropy.median_ratio < ratio_critical and not held:
        return critical(entropy, ratio=entropy.ratio)
    return warning(entropy, ratio=entropy.ratio)


def entropy_running_out(
    entropy: Signal,
    reward: Signal | None,
    case: Case,
    *,
    ratio: float,
    floor: float,
    points: float,
    falling: float,
    trend: float,
    reward_rising: float,
) -> Alarm | None:
    """The entropy falls steadily and will soon reach a tenth of its initial value."""
    base = entropy.base
    if base <= 0 or not entropy.ratio < ratio or entropy.rising > -falling or entropy.trend > -trend:
        return None
    if reward is not None and (reward.rising > reward_rising or is_solved(case, reward)):
        return None
    speed = math.log(max(entropy.slow, NEAR_ZERO) / max(entropy.fast, NEAR_ZERO)) / LEVELS_APART
    left = math.log(max(entropy.fast, NEAR_ZERO) / (floor * base)) / max(speed, NEAR_ZERO)
    return warning(entropy, arrival=left, ratio=entropy.ratio) if 0 < left < points else None


def entropy_explosion(
    entropy: Signal,
    reward: Signal | None,
    length: Signal | None,
    *,
    ratio: float,
    ratio_critical: float,
    rise: float,
    longer: float,
) -> Alarm | None:
    """Answers become random: the entropy is a multiple of its initial value without a higher reward, or the reward has
    stopped rising and answers also grow.
    """
    if not entropy.base > 0 or entropy.fast - entropy.base < rise:
        return None
    if entropy.ratio < ratio or entropy.median_ratio < ratio:
        return None
    hurt = reward is not None and reward.hurt
    if hurt and entropy.ratio > ratio_critical:
        return critical(entropy, ratio=entropy.ratio)
    if reward is not None and reward.keeps_gain:
        rambles = reward.stalled and length is not None and length.median_ratio > longer
        return in_company(warning(entropy, ratio=entropy.ratio)) if rambles else None
    return warning(entropy, ratio=entropy.ratio)


def clip_saturation(clip: Signal, *, warn: float, grave: float) -> Alarm | None:
    """So many ratios are clipped that most of the update is discarded."""
    level = clip.median5
    if level > grave:
        return critical(clip, share=level, level=level)
    return warning(clip, share=level, level=level) if level > warn else None


def importance_ratio_off(ratio: Signal, *, warn: float, grave: float) -> Alarm | None:
    """The mean ratio is not 1: stale samples, a batch used too often, or wrong old log-probabilities."""
    middle = ratio.median5
    if middle <= NEAR_ZERO:
        return critical(ratio)
    away = min(abs(math.log(middle)), abs(math.log(max(ratio.fast, TINY))))
    if away > math.log(grave):
        return critical(ratio)
    return warning(ratio) if away > math.log(warn) else None


def rollout_mismatch(
    mismatch_kl: Signal | None,
    mismatch_gap: Signal | None,
    mismatch_weight: Signal | None,
    mismatch_weight_std: Signal | None,
    effective_samples: Signal | None,
    mismatch_error: Signal | None,
    mismatch_chi2: Signal | None,
    *,
    kl: float,
    kl_critical: float,
    gap: float,
    gap_critical: float,
    weight: float,
    weight_std: float,
    effective: float,
    error: float,
    error_critical: float,
    chi2: float,
    points: float,
    grave_times: float,
    grown_times: float,
    shrunk_ratio: float,
    effective_times: float,
) -> Alarm | None:
    """The engine that wrote the samples and the trainer that learns from them disagree about their probability."""
    found: Alarm | None = None
    for signal, grave, mild in (
        (mismatch_kl, kl_critical, kl),
        (mismatch_gap, gap_critical, gap),
        (mismatch_error, error_critical, error),
        (mismatch_chi2, chi2, chi2 / grave_times),
        (mismatch_weight_std, grave_times * weight_std, weight_std),
    ):
        if signal is None or signal.n < points or signal.fast <= min(grave, mild):
            continue
        level = signal.at_least
        if level > grave:
            return critical(signal, limit=grave)
        if (level > mild and signal.fast > grown_times * signal.base) or level > grave_times * mild:
            found = found or warning(signal, limit=mild)
    if mismatch_weight is not None and mismatch_weight.n >= points and not 1 / weight <= mismatch_weight.fast <= weight:
        return critical(mismatch_weight, limit=weight)
    if effective_samples is not None and effective_samples.n >= points and 0 <= effective_samples.highest <= 1.0:
        if effective_samples.fast < effective:
            return critical(effective_samples, limit=effective)
        if effective_samples.fast < effective_times * effective and effective_samples.ratio < shrunk_ratio:
            found = found or warning(effective_samples, limit=effective_times * effective)
    return found


def stale_samples(
    staleness: Signal,
    case: Case,
    *,
    steps: float,
    steps_critical: float,
    times: float,
    points: float,
    base_least: float,
    steps_least: float,
    allowed_times: float,
) -> Alarm | None:
    """Samples are many policy versions old when they are trained on."""
    allowed = case.number("max_off_policy_steps", "max_staleness") or steps
    level = staleness.at_least
    if level > max(steps_critical, allowed_times * allowed):
        return critical(staleness, allowed=allowed)
    if level > allowed:
        return warning(staleness, allowed=allowed)
    if staleness.n >= points and level > times * max(staleness.base, base_least) and level > steps_least:
        return warning(staleness, "grown", allowed=allowed)
    return None


def critic_useless(explained_variance: Signal, *, level: float, points: float, deep: float) -> Alarm | None:
    """The value function explains nothing of the returns."""
    now = explained_variance.at_most
    if now < deep:
        return critical(explained_variance)
    if now < 0.0 or (explained_variance.n >= points and now < level and explained_variance.slow < level):
        return warning(explained_variance)
    return None


def value_loss_growth(
    value_loss: Signal,
    reward: Signal | None,
    *,
    times: float,
    times_critical: float,
    points: float,
    base_share: float,
    base_times: float,
    noises: float,
    momentum: float,
    sudden: float,
    rising: float,
) -> Alarm | None:
    """The critic's loss has grown to a multiple of its initial value. This is normal if the returns have grown, because
    errors grow with the scale. A sudden growth while the reward hardly moves is not explained by that.
    """
    base = value_loss.base
    least = min(base, max(value_loss.bottom, base_share * base)) if value_loss.n > points else base
    now = value_loss.median5
    if least <= 0 or now < times * least or now < base_times * base:
        return None
    if now - base < noises * value_loss.noise_base:
        return None
    if reward is not None and reward.ahead:
        leapt = min(now, value_loss.fast) > sudden * value_loss.slow and reward.rising < rising
        found = in_company(warning(value_loss)) if leapt else info(value_loss)
        found.evidence |= {"times": now / least, "level": now, "base": least}
        return found
    winning = reward is not None and reward.gained and reward.momentum > momentum
    if now > times_critical * base and not winning:
        return critical(value_loss, times=now / least, level=now, base=least)
    return (info if winning and now < times_critical * base else warning)(
        value_loss, times=now / least, level=now, base=least
    )
