"""RLAIF's metrics: the tags of the RLAIF document, from numbers that merge over batches, ranks and restarts.

`Train/` is by optimiser step. `Epoch/` and `Scoring/` are by epoch (counted from 0). They are in the row of the epoch's
last step, together with `epoch`, and TensorBoard draws them over epochs. A mean is over samples or tokens, never over
means. Answers without a judgement do not count in the means of rewards and scores.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from rlvitals import values
from rlvitals.compute import judging, rollout
from rlvitals.train.loop import MergedRow
from rlvitals.train.teachers.base import WEIGHTS, Judgement

TAGS = {
    "correctness": "Correctness",
    "quality": "CodeQuality",
    "efficiency": "Efficiency",
    "documentation": "Documentation",
}
"""The document's names of the criteria."""

GOLD_NAMES = (
    "judge.gold_agreement", "judge.false_positive_fraction", "judge.false_negative_fraction", "judge.gold_separation",
)  # fmt: skip
"""What an evaluation with `gold_tests` reports about the teacher, under the catalogue's names."""

EVAL_NAMES = {
    "Train/AvgReward": "reward", "Train/RewardStd": "reward_std", "solved": "accuracy",
    "rewards/Correctness/mean": "correctness", "rewards/CodeQuality/mean": "code_quality",
    "rewards/Efficiency/mean": "efficiency", "rewards/Documentation/mean": "documentation",
    "Teacher/FailureRate": "teacher_failure_rate", "length.truncated_fraction": "truncated_fraction",
    "length.response.mean": "response_length",
    **{name: name for name in (*GOLD_NAMES, "true_score", "judge.parse_failure_fraction")},
}  # fmt: skip
"""Maps names to the names that an evaluation uses."""

SCORES = {f"rewards/{tag}/mean": f"Scoring/{tag}_Score" for tag in TAGS.values()}
"""Maps a step's criterion scores to their names over an epoch."""

SUMMED = {"Train/AvgReward", "Train/RewardVariance", "Train/Loss", "Teacher/Tokens", *SCORES}
"""What is summed over an epoch."""

Stats = dict[str, Any]


def judged_stats(judgements: Sequence[Judgement], groups: Sequence[int], mask: Any, truncated: Any) -> Stats:
    """Rewards, criterion scores, groups and lengths of one batch."""
    scored = [(judgement, group) for judgement, group in zip(judgements, groups, strict=True) if judgement.scores]
    found: Stats = dict(rollout.stats(response_mask=mask, truncated=truncated, names="rlaif"))
    found["Teacher/FailureRate"] = values.mean([float(judgement.scores is None) for judgement in judgements])
    found["Teacher/CacheHitRate"] = values.mean([float(judgement.is_cached) for judgement in judgements])
    # Only new replies of a model count: a teacher that runs tests has none, and a cached judgement is not new.
    replies = [judgement for judgement in judgements if judgement.completion_tokens or judgement.is_unread]
    if replies:
        found |= judging.stats(verdicts=[None if reply.is_unread else True for reply in replies])
    rewards = [judgement.reward for judgement, _ in scored]
    found |= rollout.stats(scores=rewards, group_ids=[group for _, group in scored], names="rlaif")
    for name, tag in TAGS.items():
        found[f"rewards/{tag}/mean"] = values.mean(judgement.scores[name] for judgement, _ in scored)  # type: ignore[index]
    return found


def cost_stats(judgements: Sequence[Judgement], seconds: float) -> Stats:
    """The cost of a step's judgements: prompt and completion tokens, and seconds."""
    prompts = sum(judgement.prompt_tokens for judgement in judgements)
    completions = sum(judgement.completion_tokens for judgement in judgements)
    return {
        "Teacher/Tokens": values.total([prompts + completions]),
        "Teacher/PromptTokens": values.total([prompts]),
        "Teacher/CompletionTokens": values.total([completions]),
        "Teacher/Seconds": values.total([seconds]),
    }


def agreement_stats(first: Sequence[Judgement], second: Sequence[Judgement]) -> Stats:
    """Agreement of a teacher with itself on the answers that were judged twice, the first ones of a batch: 1 minus the
    absolute difference of the two rewards.
    """
    pairs = [(a.reward, b.reward) for a, b in zip(first, second, strict=False)]
    agreements = [1.0 - abs(a - b) for a, b in pairs if a is not None and b is not None]
    return {"Teacher/SelfAgreement": values.mean(agreements)} if agreements else {}


def gold_stats(judgements: Sequence[Judgement], gold: Sequence[Judgement]) -> Stats:
    """The test results of the answers, and how well the teacher's verdicts agree with them (`GOLD_NAMES`). Answers
    whose tests could not be run are left out.
    """
    pairs = [(judged, tested) for judged, tested in zip(judgements, gold, strict=True) if tested.scores is not None]
    stats: Stats = judging.stats(
        verdicts=[_is_right(judged) for judged, _ in pairs],
        scores=[None if judged.scores is None else judged.scores["correctness"] for judged, _ in pairs],
        gold=[bool(_is_right(tested)) for _, tested in pairs],
    )
    stats = {name: stats[name] for name in GOLD_NAMES}
    rewards = [tested.reward for _, tested in pairs if tested.reward is not None]
    return stats | solved_stats(gold) | {"true_score": values.mean(rewards)}


def solved_stats(tested: Sequence[Judgement]) -> Stats:
    """The share of answers that pass all tests. The judgements must come from tests."""
    return {"solved": values.mean(float(right) for one in tested if (right := _is_right(one)) is not None)}


def _is_right(judgement: Judgement) -> bool | None:
    return None if judgement.scores is None else judgement.scores["correctness"] == 1.0


class EpochTags:
    """Sums since the start of the epoch, and the reward and loss of the previous epoch."""

    def __init__(self, state: Mapping[str, Any] | None = None) -> None:
        """Continue from `state()`, or start empty."""
        state = state or {}
        self._sums = MergedRow({"row": state.get("epoch", {})})
        self._before: dict[str, float] = dict(state.get("before", {}))
        self.rewards: list[float] = list(state.get("epoch_rewards", ()))
        """Epoch/AvgReward of each epoch so far, for the verdict at the end."""

    def add(self, row: Mapping[str, Any]) -> None:
        """Add the row of a step, merged over all ranks."""
        self._sums.add({name: row[name] for name in SUMMED & row.keys()})

    def close(self) -> Stats:
        """Return the epoch's tags, and reset its sums. An epoch without a judgement has no reward."""
        seen = self._sums.take()
        found: Stats = {f"Scoring/{tag}": WEIGHTS[name] for name, tag in TAGS.items()}
        if tokens := seen.get("Teacher/Tokens"):
            found["Epoch/APITokens"] = tokens.number
        rewards = seen.get("Train/AvgReward")
        if rewards is None:
            return found
        found |= {tag: seen[name].number for name, tag in SCORES.items()}
        found["Epoch/AvgReward"], found["Epoch/NumSamples"] = rewards.number, rewards.count
        found["Epoch/RewardVariance"] = seen["Train/RewardVariance"].number
        found["Epoch/AvgLoss"] = seen["Train/Loss"].number
        if self._before:
            found["Epoch/RewardTrend"] = found["Epoch/AvgReward"] - self._before["reward"]
            found["Epoch/LossTrend"] = self._before["loss"] - found["Epoch/AvgLoss"]  # positive: the loss falls
        self._before = {"reward": found["Epoch/AvgReward"], "loss": found["Epoch/AvgLoss"]}
        self.rewards.append(found["Epoch/AvgReward"])
        return found

    def state(self) -> dict[str, Any]:
        """The state for a checkpoint."""
        return {"epoch": self._sums.state()["row"], "before": dict(self._before), "epoch_rewards": list(self.rewards)}
