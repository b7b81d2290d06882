"""Whether a policy still explores: what it can solve in many attempts, which prompts it loses, how different its
answers are, and whether they depend on the prompt.
"""

from __future__ import annotations

import math

from rlvitals.health.alarm import Alarm, info, warning
from rlvitals.health.case import Case
from rlvitals.health.rules.reward import SOLVED_LEVEL, SOLVED_REST, is_share, is_solved
from rlvitals.health.statistics import FAST_SHARE, HEAD, NEAR_ZERO, Signal
from rlvitals.values import median

WIDTH = 3
"""The number of evaluations whose mean is a level."""

MOST_PROMPTS = 2000
"""The largest number of prompts that is inferred from shares of them."""

WHOLE = 0.01
"""How near to a whole number a count must be that was computed from a rounded share."""


def coverage_lost(
    pass_many: Signal,
    pass_one: Signal,
    *,
    evals: float,
    noises: float,
    least: float,
    one_noises: float,
) -> Alarm | None:
    """Fewer prompts are solved in many attempts, while a single attempt solves as many as before or more: the policy
    concentrates on fewer solutions.
    """
    if pass_many.n < evals or pass_one.n < evals or pass_many.key == pass_one.key:
        return None
    now, one_now = _lately(pass_many), _lately(pass_one)
    if pass_many.n <= HEAD:
        best, at = _best(pass_many.head[:-1])
        one_then = _level(pass_one.head, at)
    else:
        best, one_then = pass_many.top, pass_one.slow
    drop = best - now
    if drop <= max(least, noises * pass_many.jump_noise):
        return None
    gain = one_now - one_then
    if gain < -one_noises * pass_one.jump_noise or gain < -drop / WIDTH:
        return None  # both fall: that is a collapse, and reported as one
    return warning(pass_many, drop=drop, best=best, now=now, one=pass_one.key, gain=gain, one_now=one_now)


def _lately(signal: Signal) -> float:
    """The mean of the last two values."""
    values = signal.window[-2:]
    return sum(values) / len(values)


def _best(values: tuple[float, ...]) -> tuple[float, int]:
    """The best level of a few values, and its position."""
    return max((_level(values, at), at) for at in range(max(len(values) - WIDTH + 1, 1)))


def _level(values: tuple[float, ...], at: int) -> float:
    some = values[at : at + WIDTH]
    return sum(some) / len(some) if some else 0.0


def prompts_lost(
    prompts_lost: Signal,
    prompts_won: Signal,
    *,
    evals: float,
    share: float,
    least: float,
    noises: float,
    prompts: float,
) -> Alarm | None:
    """Over a few evaluations, more solved prompts are lost than new ones are won, by more than chance. In none of these
    evaluations are clearly fewer lost than won.
    """
    if prompts_lost.n < evals or prompts_won.n < evals:
        return None
    lost, won = prompts_lost.window[-int(evals) :], prompts_won.window[-int(evals) :]
    net = sum(lost) - sum(won)
    if net <= share or any(one - other <= least for one, other in zip(lost, won, strict=True)):
        return None
    # Prompts that are sometimes solved are won and lost by chance; with few prompts that is a large share.
    number = _number_of_prompts([*prompts_lost.window, *prompts_won.window]) or prompts
    if net < noises * math.sqrt((sum(lost) + sum(won)) / number):
        return None
    return warning(prompts_lost, lost=sum(lost), won=sum(won), net=net)


def _number_of_prompts(shares: list[float]) -> int | None:
    """The smallest number of prompts that gives all these shares; None if there is none, as after coarse rounding.

    >>> _number_of_prompts([0.25, 0.1, 0.0]), _number_of_prompts([0.3333, 0.1429])
    (20, 21)
    """
    return next(
        (
            number
            for number in range(1, MOST_PROMPTS + 1)
            if all(abs(share * number - round(share * number)) < WHOLE for share in shares)
        ),
        None,
    )


def answers_alike(
    reward: Signal,
    case: Case,
    distinct_answers: Signal | None,
    self_similarity: Signal | None,
    true_score: Signal | None,
    reward_high: Signal | None,
    *,
    ratio: float,
    ratio_won: float,
    ratio_others: float,
    share: float,
    alike: float,
    rest: float,
    points: float,
    noises: float,
) -> Alarm | None:
    """The answers of a group have become the same, and the task is not solved."""
    for signal in (distinct_answers, self_similarity):
        if signal is None or signal.n < points or signal.seen_at != case.points:
            continue
        level = signal.median5
        if signal is distinct_answers:
            right = next((score for score in (true_score, reward) if score is not None and is_share(score)), None)
            size = case.group_size
            if size and size > 1 and right is not None:
                # A group has at least one distinct answer: a group of 4 in full agreement is at 25 %. Right answers
                # agree, so the expected number of other answers is in proportion to the share of wrong ones.
                one = 1.0 / size
                others, others_base = (level - one) / (1.0 - one), (signal.base - one) / (1.0 - one)
                wrong = min((1.0 - right.fast) / max(1.0 - right.base, NEAR_ZERO), 1.0)
                is_gone = others < share and others < ratio_others * wrong * others_base
            else:
                # If the reward has risen, prompts that are now solved explain a part of the fall.
                is_gone = level < share and level < (ratio_won if reward.won else ratio) * signal.base
        else:
            is_gone = level > alike and 1.0 - level < rest * (1.0 - signal.base)
        if not is_gone or abs(signal.base - level) < noises * signal.noise_base:
            continue
        variant = "" if signal is distinct_answers else "texts"
        if _is_right(case, reward, true_score, reward_high):
            return info(signal, "solved", level=level)
        return warning(signal, variant, level=level)
    return None


def _is_right(case: Case, reward: Signal, true_score: Signal | None, reward_high: Signal | None) -> bool:
    """Whether answers agree because they are right: the share of right answers is close to 1, or the mean reward is
    close to the best single one. A logged share of right answers decides, because an exploited reward is also at its
    best.
    """
    if true_score is not None and true_score.n and true_score is not reward and true_score.highest <= 1.0:
        return true_score.fast > SOLVED_LEVEL
    if is_solved(case, reward):
        return True
    if reward_high is None or not reward_high.n:
        return False
    span = reward_high.highest - min(reward.lowest, 0.0)
    return span > 0 and reward.fast > reward_high.highest - SOLVED_REST * span


def prompt_ignored(
    prompt_dependence: Signal, reward: Signal | None, *, ratio: float, fall: float, noises: float, points: float
) -> Alarm | None:
    """Answers depend less and less on the prompt."""
    if prompt_dependence.n < points:
        return None
    start = max(prompt_dependence.base, prompt_dependence.start)
    level = max(prompt_dependence.fast, median(list(prompt_dependence.window)))
    if start <= NEAR_ZERO or level > ratio * start:
        return None
    # A level of several points is more precise than one point.
    if start - level < max(fall, noises * FAST_SHARE * prompt_dependence.noise_base):
        return None
    if reward is not None and reward.ahead:
        return info(prompt_dependence, level=level, start=start)
    return warning(prompt_dependence, level=level, start=start)
