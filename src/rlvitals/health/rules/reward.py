"""The reward and what it is worth: collapse, floor, no learning, plateau, groups without signal, hacking."""

from __future__ import annotations

import math
import re

from rlvitals.health.alarm import Alarm, critical, info, warning
from rlvitals.health.case import Case
from rlvitals.health.statistics import FAST_SHARE, Signal

__all__ = [
    "eval_falls",
    "groups_without_spread",
    "held_out_gap",
    "no_reward_spread",
    "not_learning",
    "plateau",
    "proxy_gap",
    "reward_at_floor",
    "reward_collapse",
    "reward_constant",
    "reward_takeover",
    "shape_of_hacking",
]

_AUXILIARY = re.compile(
    r"format|length|len|xml|style|tag|soft|strict|penalty|bonus|int_|think|brevity|verbos|cheat", re.IGNORECASE
)


def is_solved(case: Case, reward: Signal) -> bool:
    """Whether the reward is at the top of its range, as far as the range is known."""
    highest = case.number("reward_max", "max_reward")
    lowest = case.number("reward_min", "min_reward")
    if highest is not None:
        span = highest - (lowest if lowest is not None else min(reward.lowest, 0.0))
        return span > 0 and reward.fast > highest - 0.07 * span
    if reward.lowest >= 0 and reward.highest <= 1.0:
        return reward.fast > 0.93
    return False


def _floor_of(case: Case, reward: Signal) -> float | None:
    lowest = case.number("reward_min", "min_reward")
    if lowest is not None:
        return lowest
    return 0.0 if reward.lowest >= 0 and reward.highest <= 1.0 else None


def reward_constant(
    reward: Signal, case: Case, reward_std: Signal | None, *, points: float, points_critical: float, relative: float
) -> Alarm | None:
    """The reward hardly moved since the first point: a verifier that always says the same, or answers it never likes.
    A reward that is constant at the top is a solved task.
    """
    spread = reward.highest - reward.lowest
    scale = max(abs(reward.slow), 1e-6)
    flat_always = spread <= relative * scale
    flat_now = reward.equal_streak >= points
    if not (flat_always or flat_now):
        return None
    if is_solved(case, reward) and (reward.gained or reward.n > 2 * points):
        return info(reward, "solved", spread=spread)
    if flat_now and not flat_always and reward.gained:
        return info(reward, "settled", spread=spread)
    alive = reward_std is not None and reward_std.slow > 0.1 * scale and reward_std.zero_share < 0.5
    if alive and not flat_now:
        return warning(reward, spread=spread)
    return critical(reward, spread=spread) if reward.n >= points_critical else warning(reward, spread=spread)


def reward_at_floor(reward: Signal, case: Case, *, share: float, points_critical: float) -> Alarm | None:
    """The mean reward sits at the lowest value there is: hardly any sample earns anything."""
    floor = _floor_of(case, reward)
    if floor is None:
        return None
    top = case.number("reward_max", "max_reward")
    span = (top if top is not None else 1.0) - floor
    if span <= 0 or reward.fast - floor > share * span or reward.slow - floor > share * span:
        return None
    if reward.rising > 3.0 or reward.trend > 4.0:
        return None  # small, and on its way up
    above = (reward.slow - floor) / span
    return critical(reward, above=above) if reward.n >= points_critical else warning(reward, above=above)


def reward_collapse(
    reward: Signal,
    kl: Signal | None,
    entropy: Signal | None,
    length: Signal | None,
    turns: Signal | None,
    case: Case,
    *,
    share: float,
    noises: float,
) -> Alarm | None:
    """The reward has given back what it had gained, or fallen below where it began."""
    if not reward.dropped:
        return None
    depth = reward.drop / (FAST_SHARE * max(reward.noise, 1e-12))
    fallen = reward.drop / max(reward.travelled, 1e-12)
    below = reward.lost and reward.slow < reward.base
    if depth < noises and not below:
        return None
    moved = [
        signal.key
        for signal, moved in (
            (kl, kl is not None and kl.median_ratio > 3 and kl.median5 > 0.05),
            (entropy, entropy is not None and not 0.4 < _or_one(entropy.ratio) < 1.8),
            (length, length is not None and not 0.5 < _or_one(length.ratio) < 2.0),
            (turns, turns is not None and not 0.7 < _or_one(turns.ratio) < 1.5),
        )
        if moved and signal is not None
    ]
    companions = ", ".join(moved) or "nothing else"
    travelled = reward.travelled > 6 * FAST_SHARE * max(reward.noise_base, reward.noise)
    deep = fallen > share and depth > noises and travelled
    alarm = (
        critical
        if (deep and reward.drop > 0.5 * (reward.top - reward.base)) or (below and moved and depth > noises)
        else warning
    )
    found = alarm(reward, drop=reward.drop, best=reward.top, fallen=fallen, companions=companions)
    found.onset_step = reward.top_step
    return found


def _or_one(value: float) -> float:
    return 1.0 if math.isnan(value) else value


def not_learning(
    reward: Signal,
    eval_score: Signal | None,
    case: Case,
    *,
    t: float,
    points_critical: float,
    t_critical: float,
) -> Alarm | None:
    """No line through the whole run rises, and the level never left its start."""
    if is_solved(case, reward) or reward.improving:
        return None
    if eval_score is not None and eval_score.n >= 4 and (eval_score.trend > 2.0 or eval_score.gained):
        return None
    slope = reward.trend
    if slope >= t:
        return None
    if reward.n >= points_critical and slope < t_critical:
        return critical(reward, t=slope)
    return warning(reward, t=slope)


def plateau(
    reward: Signal, eval_score: Signal | None, case: Case, *, age: float, share: float, share_warning: float
) -> Alarm | None:
    """The best level lies far back, and nothing has risen since: take that checkpoint."""
    if reward.top_age < max(age, share * reward.n) or not reward.gained or reward.rising > 1.5:
        return None
    if eval_score is not None and eval_score.n >= 4 and eval_score.rising > 1.5:
        return None
    solved = is_solved(case, reward)
    long = reward.top_age >= share_warning * reward.n and reward.top_age >= 2 * age
    if long and not solved:
        return warning(reward, age=float(reward.top_age), best=reward.top, best_step=float(reward.top_step))
    return info(
        reward, "solved" if solved else "", age=float(reward.top_age), best=reward.top, best_step=float(reward.top_step)
    )


def groups_without_spread(
    zero_variance: Signal,
    reward: Signal | None,
    all_pass: Signal | None,
    all_fail: Signal | None,
    truncated: Signal | None,
    case: Case,
    *,
    share: float,
    share_critical: float,
    excess: float,
) -> Alarm | None:
    """Groups whose samples all earn the same teach nothing. A binary reward gives p^G + (1-p)^G of them by chance."""
    level = zero_variance.slow if zero_variance.n >= 30 else zero_variance.fast
    if min(level, zero_variance.fast) < share:
        return None
    size = case.number("num_generations", "group_size", "n", "rollout_n", "n_samples_per_prompt")
    binary = reward is not None and reward.lowest >= 0 and reward.highest <= 1
    chance = math.nan
    p = reward.slow if reward is not None else math.nan
    if binary and size:
        chance = p**size + (1 - p) ** size
        if level - chance < excess and not (p <= 0.05 or p >= 0.95) and level < 0.9:
            return None
    variant = ""
    if (all_pass is not None and all_pass.fast > 0.5) or (binary and p >= 0.85):
        variant = "too_easy"
    elif (all_fail is not None and all_fail.fast > 0.5) or (binary and p <= 0.15):
        variant = "too_hard"
    solved = reward is not None and (is_solved(case, reward) or (variant == "too_easy" and reward.gained))
    gained = reward is not None and reward.gained and not reward.dropped
    cut = truncated is not None and truncated.fast > 0.8
    if solved:
        return info(zero_variance, "solved", share=level, chance=chance)
    if level > share_critical and (not gained or cut):
        return critical(zero_variance, variant, share=level, chance=chance)
    return warning(zero_variance, variant, share=level, chance=chance)


def no_reward_spread(
    reward_std: Signal, reward: Signal, zero_variance: Signal | None, case: Case, *, share: float, relative: float
) -> Alarm | None:
    """The spread of rewards has gone: no sample is better than another."""
    if zero_variance is not None:
        return None  # says the same, better
    gone = reward_std.zero_share > share and reward_std.n >= 25
    shrunk = reward_std.n >= 25 and reward_std.ratio < relative and reward_std.median_ratio < relative
    if not (gone or shrunk):
        return None
    if is_solved(case, reward) or reward.gained:
        return info(reward_std, "solved", share=reward_std.zero_share)
    return (
        critical(reward_std, share=reward_std.zero_share) if gone else warning(reward_std, share=reward_std.zero_share)
    )


def proxy_gap(case: Case, reward: Signal, *, gain: float, times: float) -> Alarm | None:
    """The reward rises and a score logged beside it, which is no part of it, does not: the reward is being gamed."""
    if len(case.parts) < 2 or not 0 <= reward.lowest <= reward.highest <= 1.5:
        return None
    proxies = [part for part in case.parts.values() if part.n == reward.n and abs(part.slow - reward.slow) < 1e-9]
    if not proxies:
        return None
    won = reward.fast - reward.base
    if won < gain or not reward.gained:
        return None
    for name, part in case.parts.items():
        if part in proxies or part.n < reward.n - 2 or "minus" in name or not 0 <= part.lowest <= part.highest <= 1.5:
            continue
        if _AUXILIARY.search(name):
            continue
        real = part.fast - part.base
        if real * times < won:
            found = critical(reward, gain=won, true_gain=real, true_metric=part.key)
            found.onset_step = reward.onset_step
            return found
    return None


def held_out_gap(reward: Signal, true_score: Signal, case: Case, *, gain: float, times: float) -> Alarm | None:
    """The reward rises and the score that was meant does not."""
    if true_score.key == reward.key or true_score.n < 12:
        return None
    won = (reward.fast - reward.base) / max(abs(reward.base), reward.travelled, 1e-9)
    if not reward.gained or won < gain:
        return None
    real = (true_score.fast - true_score.base) / max(abs(true_score.base), 0.05)
    fell = true_score.lost or true_score.dropped
    if fell:
        return critical(reward, gain=won, true_gain=real, true_metric=true_score.key)
    if real * times < won and not true_score.gained:
        return warning(reward, gain=won, true_gain=real, true_metric=true_score.key)
    return None


def eval_falls(reward: Signal, eval_score: Signal, *, noises: float, evals: float) -> Alarm | None:
    """The held-out score falls while the training reward rises: over-optimised, or hacked."""
    if eval_score.n < evals or not reward.gained or reward.dropped:
        return None
    window = eval_score.window
    best = eval_score.highest
    recent = sorted(window[-3:])[-1]
    noise = max(eval_score.noise, 0.01 * abs(best))
    if best - recent < noises * noise or (eval_score.trend > -0.5 and eval_score.n >= 6):
        return None
    return critical(reward, eval_metric=eval_score.key, eval_best=best, eval_now=window[-1])


def reward_takeover(case: Case, reward: Signal, *, share: float) -> Alarm | None:
    """One part of the reward makes the gain while another loses."""
    if len(case.parts) < 2 or not reward.gained:
        return None
    gains = {name: part.slow - part.base for name, part in case.parts.items() if part.n >= reward.n - 2}
    won = sum(gain for gain in gains.values() if gain > 0)
    if won <= 0 or len(gains) < 2:
        return None
    best = max(gains, key=lambda name: gains[name])
    losers = [name for name in gains if case.parts[name].lost and gains[name] < -0.1 * won]
    if gains[best] > share * won and losers:
        part = case.parts[best]
        return warning(part, part=best, share=gains[best] / won, loser=losers[0])
    return None


def shape_of_hacking(
    reward: Signal,
    length: Signal | None,
    kl: Signal | None,
    entropy: Signal | None,
    eval_score: Signal | None,
    *,
    of_three: float,
) -> Alarm | None:
    """Reward, length and KL up, entropy down, all at once, and nothing held out to tell: worth a look, no more."""
    if eval_score is not None or not reward.gained or reward.trend < 4:
        return None
    signs = [
        length is not None and length.ratio > 1.5 and length.rising > 1,
        kl is not None and kl.median_ratio > 5 and kl.rising > 0,
        entropy is not None and entropy.ratio < 0.6,
    ]
    return info(reward) if sum(signs) >= of_three else None
