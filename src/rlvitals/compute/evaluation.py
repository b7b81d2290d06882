"""Statistics for evaluations: calibration of confidence, prompts lost and won, how far answers depend on their prompts,
and how far they depend on their reasoning.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from itertools import pairwise
from typing import NamedTuple

from rlvitals.compute.arrays import Array, gather, library, real
from rlvitals.compute.names import naming
from rlvitals.compute.packing import StatisticSheet
from rlvitals.errors import ConfigError
from rlvitals.records import Group, Rollout
from rlvitals.values import Derived, Value, mean

SOLVED = 0.5
"""The share of a prompt's samples that must be correct for it to count as solved."""


def calibration(confidence: Array, correct: Array, *, bins: int = 10) -> dict[str, Value | Derived]:
    """How far stated confidence (0 to 1) differs from accuracy, as mergeable values; bins have equal width.

    >>> seen = calibration([0.9, 0.9, 0.6, 0.4], [True, False, True, False])
    >>> round(seen["eval.calibration_error"].number, 6), seen["eval.confidence_when_wrong"].number
    (0.4, 0.65)
    """
    stated, right = gather(confidence, correct)
    if stated.shape != right.shape:
        raise ConfigError(f"{len(stated)} confidences came with {len(right)} answers; give one for each")
    xp = library(stated)
    right = real(right > 0)
    sheet = StatisticSheet(naming("canonical", "policy"))
    sheet.moments(stated - right, mean="eval.overconfidence")
    sheet.moments(stated, right, mean="eval.confidence_when_right")
    sheet.moments(stated, 1.0 - right, mean="eval.confidence_when_wrong")
    place = xp.clip(xp.floor(stated * bins), 0, bins - 1)
    # Each mean is over all answers, with 0 outside the bin: it is the bin's gap times its share, and 0 for empty bins.
    rows = [sheet.moments((stated - right) * (place == number)) for number in range(bins)]
    sheet.derive("eval.calibration_error", _sum_of_sizes, *rows)
    return sheet.pack().values()


class Turnover(NamedTuple):
    """The prompts that changed between two evaluations, and their shares as mergeable values to log."""

    lost: tuple[str, ...]
    won: tuple[str, ...]
    stats: dict[str, Value]


def turnover(before: Mapping[str, float], now: Mapping[str, float], *, solved: float = SOLVED) -> Turnover:
    """Prompts of both evaluations that were solved before and not now, and the reverse. Both arguments are pass rates
    by prompt.

    >>> turnover({"p": 1.0, "q": 0.0, "r": 1.0}, {"p": 0.25, "q": 0.0, "r": 0.75}).lost
    ('p',)
    """
    both = [prompt for prompt in now if prompt in before]
    lost = tuple(prompt for prompt in both if before[prompt] >= solved > now[prompt])
    won = tuple(prompt for prompt in both if now[prompt] >= solved > before[prompt])
    return Turnover(
        lost,
        won,
        {
            "eval.prompts_lost_fraction": mean([float(prompt in set(lost)) for prompt in both]),
            "eval.prompts_won_fraction": mean([float(prompt in set(won)) for prompt in both]),
        },
    )


def pass_rates(groups: Iterable[Group], *, right: float = 1.0) -> dict[str, float]:
    """The share of correct rollouts of each prompt, by its id or text, for `turnover`.

    A rollout is correct if its outcome is `correct`. Without an outcome it is correct if its reward is at least
    `right`. Rollouts with neither are ignored.

    >>> pass_rates([Group(id="p", rollouts=(Rollout(reward=1.0), Rollout(reward=0.0), Rollout(outcome="correct")))])
    {'p': 0.6666666666666666}
    """
    judged: dict[str, list[bool]] = {}
    for group in groups:
        known = [
            _is_right(rollout, right) for rollout in group.rollouts if rollout.outcome or rollout.reward is not None
        ]
        judged.setdefault(group.id or group.prompt, []).extend(known)
    return {prompt: sum(known) / len(known) for prompt, known in judged.items() if known}


def prompt_dependence(logprobs: Array, own: Array = None) -> dict[str, Value | Derived]:
    """How often a response is most likely after its own prompt, as a mergeable value.

    `logprobs` are [responses, prompts], the log-prob of each whole response after each prompt. `own` is the column of
    each response's own prompt; without it response i belongs to prompt i. A tie does not count as a match.

    >>> prompt_dependence([[-1.0, -5.0], [-3.0, -4.0]])["policy.prompt_dependence"].number
    0.5
    """
    scores = gather(logprobs)[0]
    if scores.ndim != 2:
        raise ConfigError(f"logprobs must be [responses, prompts], not of shape {tuple(scores.shape)}")
    xp = library(scores)
    places = gather(range(len(scores)) if own is None else own, scores)[0]
    columns = gather(range(scores.shape[1]), scores)[0]
    is_own = columns[None, :] == places[:, None]
    if not bool(is_own.any(-1).all()):
        raise ConfigError(f"every response needs its own prompt among the {scores.shape[1]} columns")
    nobody = xp.zeros_like(scores) - xp.inf
    mine, rivals = xp.amax(xp.where(is_own, scores, nobody), -1), xp.amax(xp.where(is_own, nobody, scores), -1)
    sheet = StatisticSheet(naming("canonical", "policy"))
    sheet.moments(real(mine > rivals), mean="policy.prompt_dependence")
    return sheet.pack().values()


def truncation_area(kept: Iterable[float], rewards: Iterable[float]) -> dict[str, Value]:
    """Area under the mean reward as a function of the share of the reasoning that was kept, by trapezoids.

    `kept` are the shares in rising order from 0 to 1; `rewards` are the mean rewards of answers forced after each one.

    >>> truncation_area([0.0, 0.5, 1.0], [0.0, 0.5, 1.0])["eval.truncation_area"].number
    0.5
    """
    shares, levels = [float(one) for one in kept], [float(one) for one in rewards]
    if len(shares) != len(levels) or len(shares) < 2 or shares[0] != 0.0 or shares[-1] != 1.0:
        raise ConfigError("kept must run from 0 to 1, with one reward for each share")
    steps = [right - left for left, right in pairwise(shares)]
    if min(steps) <= 0:
        raise ConfigError("kept must be in rising order, each share once")
    area = sum(width * (low + high) / 2 for width, (low, high) in zip(steps, pairwise(levels), strict=True))
    return {"eval.truncation_area": mean([area])}


def _sum_of_sizes(*gaps: Value) -> float:
    return sum(abs(gap.mean) for gap in gaps)


def _is_right(rollout: Rollout, right: float) -> bool:
    if rollout.outcome:
        return rollout.outcome == "correct"
    return rollout.reward is not None and rollout.reward >= right
