"""What a PPO run tells besides its rows: held-out evaluations, text scores, and one line an epoch."""

from __future__ import annotations

import importlib
import logging
import math
from collections.abc import Mapping, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any, NamedTuple

import torch

from rlvitals import values
from rlvitals.adapters.torch_distributed import reduce
from rlvitals.compute import rollout
from rlvitals.textscore.evaluate import Options, why_missing
from rlvitals.train import sharded
from rlvitals.train.judge_guard import JudgeGuard
from rlvitals.train.ppo_rollout import seeded
from rlvitals.train.ppo_settings import TEXT_SCORES
from rlvitals.train.sampling import left_padded
from rlvitals.values import Derived, Value

if TYPE_CHECKING:
    from rlvitals.capture.epochs import MetricsTracker
    from rlvitals.train.ppo import Trainer
    from rlvitals.train.ppo_data import Grader

logger = logging.getLogger("rlvitals")

UNSCORABLE = "reward.unscorable_fraction"

EPOCH = {
    "loss": ("actor/total_loss", "critic/loss"),
    "reward": ("critic/score/mean",),
    "kl_divergence": ("kl_ref.k1", "critic/kl"),
    "entropy": ("critic/entropy/mean",),
}
"""What the epoch's columns are made of. The loss is the policy's (with entropy and KL) and the weighted value loss."""


class Evaluation(NamedTuple):
    """What the policy does on held-out prompts."""

    score: float
    """Mean true score; NaN where nothing could be graded."""
    answers: list[str]
    references: list[str]


class Epochs:
    """The sums of the epoch under way: means over tokens and samples, never means of means."""

    def __init__(self, sums: Mapping[str, Sequence[float]] | None = None) -> None:
        self.sums: dict[str, list[float]] = {name: list(pair) for name, pair in (sums or {}).items()}
        """name -> [weighted sum, weight]; plain numbers, so that a checkpoint can keep them."""

    def add(self, row: Mapping[str, Any], value_coef: float, *, seconds: float, learning_rate: float) -> None:
        """Count a step."""
        loss, of_values = row.get("actor/total_loss"), row.get("critic/loss")
        if isinstance(loss, Value) and isinstance(of_values, Value):
            self._count("loss", loss.mean + value_coef * of_values.mean, loss.count)
        for column, names in EPOCH.items():
            found = next((row[name] for name in names if isinstance(row.get(name), Value)), None)
            if column != "loss" and found is not None:
                self._count(column, found.mean, found.count)
                if column == "reward":
                    self._count("samples", found.count, 1.0)
        self._count("learning_rate", learning_rate, 1.0)
        self._count("seconds", seconds, 1.0)

    def tell(self, tracker: MetricsTracker, epoch: int, scores: Mapping[str, float]) -> None:
        """Log the epoch, and begin another."""
        means = {name: total / weight for name, (total, weight) in self.sums.items() if weight}
        seconds, samples = (self.sums.get(name, [0.0])[0] for name in ("seconds", "samples"))
        tracker.log_epoch(
            epoch,
            **{name: means.get(name) for name in (*EPOCH, "learning_rate")},
            epoch_time=seconds,
            samples_per_second=samples / seconds if seconds else None,
            **scores,
        )
        self.sums.clear()

    def _count(self, name: str, number: float, weight: float) -> None:
        total = self.sums.setdefault(name, [0.0, 0.0])
        total[0] += number * weight
        total[1] += weight


@torch.no_grad()
def evaluate(trainer: Trainer, grader: Grader, step: int, *, with_texts: bool) -> tuple[Evaluation, dict[str, float]]:
    """Answer the held-out prompts and log how good the answers really are. Each rank takes its share of the prompts.

    `with_texts` adds the scores that compare answers with references.
    """
    settings, accelerator = trainer.settings, trainer.accelerator
    examples = trainer.data.held_out[accelerator.process_index :: accelerator.num_processes]
    places = range(accelerator.process_index, len(trainer.data.held_out), accelerator.num_processes)
    generator = seeded(accelerator.device, settings.seed, "evaluation", accelerator.process_index)
    answers: list[str] = []
    grades: list[float | None] = []
    chunks = [range(start, min(start + settings.batch_size, len(examples)))
              for start in range(0, len(examples), settings.batch_size)]  # fmt: skip
    with (
        sharded.whole(trainer.model, accelerator),
        trainer.run.progress(chunks, evaluating=True, disable=trainer.is_quiet) as bar,
    ):
        for chunk in bar:
            prompts = [trainer.held_out_prompts[places[place]] for place in chunk]
            ids, mask = left_padded(prompts, trainer.pad_id, accelerator.device)
            sampled = trainer.model("sample", ids, mask, generator=generator, **trainer.sampling)
            texts = trainer.tokenizer.batch_decode(sampled.tokens, skip_special_tokens=True)
            new = [grader.grade(examples[place], text) for place, text in zip(chunk, texts, strict=True)]
            bar.score([grade for grade in new if grade is not None])
            answers += texts
            grades += new
    known = [grade for grade in grades if grade is not None]
    seen = reduce(
        {
            **(rollout.stats(scores=known, stage="eval", names="roll") if known else {}),
            **({"eval/right": values.mean([grade == 1.0 for grade in known])} if known else {}),
            UNSCORABLE: values.mean([float(grade is None) for grade in grades]),
        }
    )
    texts_of_all = _from_all_ranks(accelerator, list(zip(answers, (e.reference for e in examples), strict=True)))
    found = Evaluation(_number(seen.get("val/score/mean")), [a for a, _ in texts_of_all], [r for _, r in texts_of_all])
    scores = text_scores(found, trainer.text_scores) if with_texts and accelerator.is_main_process else {}
    if accelerator.is_main_process:
        named = {name: value for name, value in seen.items() if name.startswith(("val/", "eval/", UNSCORABLE))}
        trainer.run.log_eval({**named, **scores, "examples": _shown(found)}, step=step)
    return found, scores


def computable(wanted: Sequence[str]) -> list[str]:
    """Those of the text scores whose packages are here. The others are named now, not after hours of training."""
    missing = {name: why for name in wanted if (why := why_missing(name, Options()))}
    for why in missing.values():
        logger.warning("not scored: %s", why)
    return [name for name in wanted if name not in missing]


def text_scores(found: Evaluation, names: Sequence[str]) -> dict[str, float]:
    """How alike answers and references are, by each of these scores; one that fails is left out."""
    scores, door = importlib.import_module("rlvitals.textscore"), JudgeGuard("a text score")

    def score(name: str) -> float:
        return float(getattr(scores, TEXT_SCORES[name])(found.answers, found.references))

    told = {name: door.judge_one(partial(score, name), missing=lambda _: math.nan) for name in names}
    return {name: number for name, number in told.items() if not math.isnan(number)}


def _number(value: Any) -> float:
    number = value.number if isinstance(value, Value | Derived) else value
    return float("nan") if number is None else float(number)


def _shown(found: Evaluation, count: int = 8) -> list[dict[str, str]]:
    """A few answers for people to read, in the evaluation's own file."""
    pairs = list(zip(found.answers, found.references, strict=True))[:count]
    return [{"answer": answer, "reference": reference} for answer, reference in pairs]


def _from_all_ranks(accelerator: Any, pairs: list[tuple[str, str]]) -> list[tuple[str, str]]:
    if accelerator.num_processes == 1:
        return pairs
    from accelerate.utils import gather_object

    gathered: list[tuple[str, str]] = gather_object(pairs)
    return gathered
