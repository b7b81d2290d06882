"""What a PPO run reports besides its rows: text scores of held-out answers, and one line per epoch."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any

from rlvitals import textscore
from rlvitals.terminal import logger
from rlvitals.textscore.evaluate import ScoreOptions, why_missing
from rlvitals.train.judge_guard import JudgeGuard
from rlvitals.train.ppo.settings import TEXT_SCORES

if TYPE_CHECKING:
    from rlvitals.capture.epochs import MetricsTracker

EPOCH = {"reward": "critic/score/mean", "kl_divergence": "critic/kl", "entropy": "critic/entropy/mean"}
"""The source of each epoch column."""


def text_scores(names: Sequence[str], answers: Sequence[str], references: Sequence[str]) -> dict[str, float]:
    """The similarity of answers and references by each of these scores. A score that fails is omitted."""
    guard = JudgeGuard("a text score")

    def score(name: str) -> float:
        return float(getattr(textscore, TEXT_SCORES[name])(answers, references))

    computed = {name: guard.judge_one(partial(score, name), missing=lambda _: math.nan) for name in names}
    return {name: number for name, number in computed.items() if not math.isnan(number)}


def computable(wanted: Sequence[str]) -> list[str]:
    """The text scores whose packages are installed. A warning names the others before training."""
    missing = {name: why for name in wanted if (why := why_missing(name, ScoreOptions()))}
    for why in missing.values():
        logger.warning("not scored: %s", why)
    return [name for name in wanted if name not in missing]


class EpochSums:
    """Sums over the current epoch. Means are over tokens and samples, never over means."""

    def __init__(self, sums: Mapping[str, Sequence[float]] | None = None) -> None:
        self.sums: dict[str, list[float]] = {name: list(pair) for name, pair in (sums or {}).items()}
        """name -> [weighted sum, weight]; plain numbers, so that a checkpoint can keep them."""

    def add(self, row: Mapping[str, Any], value_coef: float, *, seconds: float, learning_rate: float) -> None:
        """Count a step. The loss is the policy's (with entropy and KL) and the weighted value loss."""
        if "actor/total_loss" in row and "critic/loss" in row:
            loss = row["actor/total_loss"]
            self._count("loss", loss.mean + value_coef * row["critic/loss"].mean, loss.count)
        for column, name in EPOCH.items():
            if name in row:
                self._count(column, row[name].mean, row[name].count)
        self._count("learning_rate", learning_rate, 1.0)
        self._count("seconds", seconds, 1.0)

    def report(self, tracker: MetricsTracker, epoch: int, scores: Mapping[str, float]) -> None:
        """Log the epoch and reset the sums."""
        means = {name: total / weight for name, (total, weight) in self.sums.items() if weight}
        seconds, samples = self.sums["seconds"][0], self.sums.get("reward", [0.0, 0.0])[1]
        tracker.log_epoch(
            epoch,
            **{name: means.get(name) for name in ("loss", *EPOCH, "learning_rate")},
            epoch_time=seconds,
            samples_per_second=samples / seconds if seconds else None,
            **scores,
        )
        self.sums.clear()

    def _count(self, name: str, number: float, weight: float) -> None:
        total = self.sums.setdefault(name, [0.0, 0.0])
        total[0] += number * weight
        total[1] += weight
