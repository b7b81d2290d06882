"""Evaluations with many attempts per prompt: the policy narrows to fewer solutions, or gets better at all of them.

Every prompt has its own chance of being solved. In a healthy run all chances rise, so pass@1 rises and pass@k stays or
rises. When coverage is lost, the chances of the easier prompts (45 % of them) rise towards 1 and the others fall to 0.
The logged numbers come from 32 sampled attempts per prompt.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from corpus.noise import Array, ar1, generator, sigmoid

K = 32
A_POINT = 0.01

SPELLINGS: dict[str, tuple[str, str, dict[str, str]]] = {
    "rlvitals": ("eval.pass_at_k/32", "eval.pass_at_k/1", {"reward": "reward", "entropy": "entropy"}),
    "verl": ("val-core/aime/acc/best@32/mean", "val-core/aime/acc/mean@32",
             {"reward": "critic/score/mean", "entropy": "actor/entropy"}),
    "skyrl": ("eval/all/pass_at_32", "eval/all/avg_score",
              {"reward": "reward/avg_raw_reward", "entropy": "policy/policy_entropy"}),
    "slime": ("eval/aime-pass@32", "eval/aime", {"reward": "rollout/raw_reward", "entropy": "train/entropy_loss"}),
    "prime_rl": ("eval/aime/effective/solver/pass@32", "eval/aime/effective/solver/avg@32",
                 {"reward": "train/agg/all/solver/reward/mean", "entropy": "entropy/all/mean"}),
    "openrlhf": ("eval/eval_math_pass32", "eval/eval_math_pass1",
                 {"reward": "train/rollout/reward_mean", "entropy": "train/entropy_loss"}),
    "open_instruct": ("eval/pass_at_32_unbiased", "eval/pass_at_1",
                      {"reward": "objective/verifiable_reward", "entropy": "policy/entropy_avg"}),
}  # fmt: skip
"""By framework: its names of pass@32, of pass@1, and of the other metrics of a row."""


@dataclass(frozen=True)
class EvaluatedRun:
    """The rows of a run that is evaluated with many attempts."""

    name: str
    framework: str
    rows: list[dict[str, Any]]
    evaluations: list[int]
    """The rows that hold an evaluation."""
    onset: int | None
    """The last evaluation whose expected pass@32 is within 0.01 of its best so far; None for a learning run."""


def narrowing_run(seed: int, framework: str) -> EvaluatedRun:
    """pass@32 falls while pass@1 rises."""
    return _run(seed, framework, "narrowing")


def learning_run(seed: int, framework: str) -> EvaluatedRun:
    """Both rise, or pass@32 stays where it is."""
    return _run(seed, framework, "learning")


def collapsing_run(seed: int, framework: str) -> EvaluatedRun:
    """Both fall: a collapse, not only a loss of coverage."""
    return _run(seed, framework, "collapsing")


def _run(seed: int, framework: str, how: str) -> EvaluatedRun:
    many, one, beside = SPELLINGS[framework]
    rng = generator(seed, f"exploration-{framework}-{how}")
    count, prompts, every = int(rng.integers(14, 30)), int(rng.integers(60, 400)), int(rng.integers(4, 11))
    onset = int(rng.integers(5, count - 6)) if how != "learning" else None
    skill = rng.normal(rng.uniform(-2.2, -0.8), 1.8, prompts)
    order = np.argsort(-(skill + rng.normal(0, 0.6, prompts)))
    favoured = np.zeros(prompts, bool)
    favoured[order[: int(0.45 * prompts)]] = True
    speed = float(rng.uniform(0.03, 0.08))
    narrow, fall = float(rng.uniform(0.2, 0.7)), float(rng.uniform(0.5, 0.9))
    rows: list[dict[str, Any]] = []
    evaluations: list[int] = []
    noise: Array = ar1(rng, count * every)
    expected: list[float] = []
    for number in range(count):
        since = 0 if onset is None else max(number - onset, 0)
        now = skill + speed * number
        if how == "narrowing":
            now = now + np.where(favoured, 0.35, -narrow) * since
        elif how == "collapsing":
            now = now - fall * since
        chance = sigmoid(now)
        expected.append(float(np.mean(1 - (1 - chance) ** K)))
        for at in range(every):
            place = number * every + at
            level = float(chance.mean()) + 0.03 * float(noise[place])
            row = {"step": place + 1, beside["reward"]: level, beside["entropy"]: 0.5 - 0.004 * place / every}
            rows.append(row)
        right = rng.binomial(K, chance)
        held = {one: float(right.mean() / K), many: float(np.mean(right > 0))}
        evaluations.append(len(rows) - 1)
        rows[-1] |= held
    if onset is not None:
        best = np.maximum.accumulate(expected)
        onset = int(np.flatnonzero(best - np.array(expected) <= A_POINT)[-1])
    return EvaluatedRun(f"{framework}-{how}-{seed}", framework, rows, evaluations, onset)
