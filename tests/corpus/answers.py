"""Groups of answers, and repeated evaluations of the same prompts, from a policy that learns, settles on one answer per
prompt, forgets, or ignores its prompts.

Every prompt has its own probabilities for a few answers, and its own words that an answer may use. Texts are sampled
from these probabilities. `rlvitals.compute` computes the logged numbers from the texts, as in a trainer.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from corpus.noise import Array, generator, sigmoid
from rlvitals.compute import diversity
from rlvitals.compute.evaluation import turnover
from rlvitals.compute.names import naming
from rlvitals.compute.packing import StatisticSheet
from rlvitals.records import Group, Rollout, Turn

ANSWERS, SENTENCES, WORDINGS = 12, 3, 6
FORMAT = "let me think about this step by step and then give the final answer in the form that was asked for"
TEMPLATE = "this is a good question and here is a clear complete helpful answer that follows all instructions"


@dataclass(frozen=True)
class AnsweredRun:
    """The rows of a run. `onset` is the row at which its answers go wrong, or the last good evaluation before that. It
    is None for a healthy run.
    """

    name: str
    rows: list[dict[str, Any]]
    onset: int | None
    last: int | None = None
    """The row of the fourth evaluation after the onset, for runs that only evaluations show to be wrong."""
    config: dict[str, Any] | None = None


def learning_run(seed: int) -> AnsweredRun:
    """The right answer gets more likely for prompts that can be learnt; the other prompts keep their variety."""
    return _grouped(seed, "learning")


def settling_run(seed: int) -> AnsweredRun:
    """From the onset on, every prompt settles on its most likely answer, right or wrong."""
    return _grouped(seed, "settling")


def ignoring_run(seed: int) -> AnsweredRun:
    """A growing share of the answers is the same text for all prompts, and right only by chance."""
    return _grouped(seed, "ignoring")


def _grouped(seed: int, how: str) -> AnsweredRun:
    rng = generator(seed, f"answers-{how}")
    points, prompts, size = int(rng.integers(60, 110)), int(rng.choice([6, 8])), int(rng.choice([4, 6, 8]))
    onset = None if how == "learning" else int(rng.uniform(0.35, 0.6) * points)
    pool = 40
    logits = rng.normal(0, rng.uniform(0.6, 1.4), (pool, ANSWERS))
    logits[:, 0] += rng.uniform(-1.0, 1.5)
    can_learn = rng.random(pool) < rng.uniform(0.3, 0.95)
    gain = float(rng.uniform(2.0, 6.0))
    wording = rng.normal(0, rng.uniform(0.5, 1.2), (pool, SENTENCES, WORDINGS))
    form_from, form_to = float(rng.uniform(0.1, 0.6)), float(rng.uniform(0.7, 1.0))
    pace, sharpness = float(rng.uniform(8, 25)), float(rng.uniform(5, 9))
    rows = []
    for step in range(points):
        done = 1 - np.exp(-3 * step / points)
        since = 0.0 if onset is None else min(max(step - onset, 0) / pace, 1.0)
        now = logits.copy()
        now[:, 0] += gain * done * can_learn
        heat = 1 + sharpness * since if how == "settling" else 1.0
        ignoring = since * 0.95 if how == "ignoring" else 0.0
        groups, right = [], []
        for prompt in rng.choice(pool, prompts, replace=False):
            chosen = _draw(rng, heat * now[prompt], size)
            worded = [_draw(rng, heat * (1 + done) * wording[prompt, at], size) for at in range(SENTENCES)]
            formed = rng.random(size) < form_from + (form_to - form_from) * done
            ignored = rng.random(size) < ignoring
            said = []
            for each in range(size):
                text = " ".join(f"s{at} w{worded[at][each]} of p{prompt} goes on" for at in range(SENTENCES))
                text = TEMPLATE if ignored[each] else f"{FORMAT} {text}" if formed[each] else text
                answer = int(rng.integers(ANSWERS)) if ignored[each] else int(chosen[each])
                said.append(Rollout(turns=(Turn(f"{text} {answer}"),), meta={"answer": str(answer)}))
                right.append(answer == 0)
            groups.append(Group(id=str(prompt), step=step + 1, rollouts=tuple(said)))
        sheet = StatisticSheet(naming("canonical", "policy"))
        diversity.add(sheet, groups)
        logged = {name: value.number for name, value in sheet.pack().values().items()}
        rows.append({"step": step + 1, "reward": float(np.mean(right)), "loss": 0.01 * float(rng.normal()), **logged})
    return AnsweredRun(f"{how}-{seed}", rows, onset, config={"num_generations": size})


def _draw(rng: np.random.Generator, logits: Array, size: int) -> Array:
    """`size` samples from one softmax."""
    return np.asarray((logits + rng.gumbel(size=(size, len(logits)))).argmax(-1))


def evaluated_run(seed: int) -> AnsweredRun:
    """Evaluations of 40 to 300 prompts: the chances rise and then stay, and every evaluation samples new answers."""
    return _evaluated(seed, "evaluated")


def forgetting_run(seed: int) -> AnsweredRun:
    """After some evaluation, many of the prompts are forgotten while the others continue to improve."""
    return _evaluated(seed, "forgetting")


def _evaluated(seed: int, how: str) -> AnsweredRun:
    rng = generator(seed, f"answers-{how}")
    count, prompts, every = int(rng.integers(12, 26)), int(rng.integers(40, 301)), int(rng.integers(4, 11))
    attempts = int(rng.choice([1, 1, 2, 4, 8]))
    onset = None if how == "evaluated" else int(rng.integers(5, count - 5))
    skill = rng.normal(rng.uniform(-0.8, 0.8), 1.6, prompts)
    gain, rest = float(rng.uniform(0.0, 1.5)), float(rng.uniform(0.2, 1.0))
    forgotten, fall = rng.random(prompts) < rng.uniform(0.4, 0.7), float(rng.uniform(0.4, 1.0))
    rows: list[dict[str, Any]] = []
    before: dict[str, float] = {}
    for number in range(count):
        since = 0 if onset is None else max(number - onset, 0)
        now = skill + gain * min(number / (rest * count), 1.0) - fall * since * forgotten
        for _ in range(every):
            level = float(sigmoid(now).mean() + 0.03 * rng.normal())
            rows.append({"step": len(rows) + 1, "reward": level, "loss": 0.01 * float(rng.normal())})
        solved = rng.binomial(attempts, sigmoid(now)) / attempts
        rates = {str(prompt): float(rate) for prompt, rate in enumerate(solved)}
        rows[-1]["eval.score.mean"] = float(solved.mean())
        if before:
            rows[-1] |= {name: value.number for name, value in turnover(before, rates).stats.items()}
        before = rates
    if onset is None:
        return AnsweredRun(f"{how}-{seed}", rows, None)
    shown = every * (onset + 1) - 1  # the last good evaluation
    return AnsweredRun(f"{how}-{seed}", rows, shown, min(shown + 4 * every, len(rows) - 1))
