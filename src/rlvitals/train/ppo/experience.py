"""One batch of experience: answers, their scores, what each token was worth, and what is logged of it."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, fields
from typing import Any

import torch
from torch import Tensor

from rlvitals import values
from rlvitals.compute import advantage, policy, rollout
from rlvitals.train.ppo.settings import PPOSettings
from rlvitals.train.sampling import Answered

Reward = Callable[[Answered, list[int]], Tensor]
"""The score of each row, NaN where there is none; the second argument says which prompts they answer."""


@dataclass(frozen=True, slots=True)
class Rollout:
    """All of it [rows, answer tokens], but for what says otherwise."""

    ids: Tensor
    """[rows, prompt and answer]; so are `ids_mask` and `positions`."""
    ids_mask: Tensor
    positions: Tensor
    mask: Tensor
    """1 on the answer's tokens; on none of an answer without a score, which has no part in anything."""
    sampled_logprobs: Tensor
    """As the sampler saw them."""
    old_logprobs: Tensor
    """As the training pass sees them before the update."""
    ref_logprobs: Tensor
    values: Tensor
    scores: Tensor
    """[rows], before clipping; NaN where there is none."""
    token_rewards: Tensor
    """The KL penalty of each token, and the clipped score on the last."""
    advantages: Tensor
    returns: Tensor
    weights: Tensor
    """[rows], what a row counts in the policy's loss."""
    finished: Tensor
    """[rows]: ended by itself."""

    @property
    def is_scored(self) -> Tensor:
        """[rows]: which answers have a score."""
        return ~self.scores.isnan()

    @property
    def width(self) -> int:
        return self.mask.shape[1]

    @property
    def rows(self) -> Answered:
        return Answered(self.ids, self.ids_mask, self.positions, self.width)

    def take(self, places: Tensor) -> Rollout:
        """Some of the rows."""
        return Rollout(*(getattr(self, field.name)[places] for field in fields(self)))

    def without_padding(self) -> Rollout:
        """The same without the columns that are padding in every row."""
        surplus = self.width - max(1, int(self.mask.sum(dim=1).max()))
        tensors = (getattr(self, field.name) for field in fields(self))
        return Rollout(*(each if each.dim() == 1 else each[:, : each.shape[1] - surplus] for each in tensors))


def token_rewards(settings: PPOSettings, scores: Tensor, finished: Tensor, penalties: Tensor, mask: Tensor) -> Tensor:
    """The KL penalty of each token taken off, and on the last one the score: clipped, and less a penalty where the
    answer was cut off.
    """
    rewards: Tensor = -penalties.float() * mask
    final = scores.clamp(-settings.reward_clip, settings.reward_clip) if settings.reward_clip else scores
    final = final - settings.missing_eos_penalty * (~finished).float()
    last = (mask.sum(dim=1) - 1).long().clamp(min=0)
    rewards[torch.arange(len(rewards), device=rewards.device), last] += final * (mask.sum(dim=1) > 0)
    return rewards


def whitened(accelerator: Any, advantages: Tensor, mask: Tensor) -> Tensor:
    """Mean 0 and deviation 1 over all ranks' tokens."""
    rows, columns = advantages.shape
    everyone = accelerator.gather(accelerator.pad_across_processes(advantages.contiguous(), dim=1))
    counted = accelerator.gather(accelerator.pad_across_processes(mask.contiguous(), dim=1))
    start = accelerator.process_index * rows
    found: Tensor = advantage.whiten(everyone, counted)[start : start + rows, :columns]
    return found


def kl_of_answers(batch: Rollout) -> Tensor:
    """How far each answer that counts is from the reference: the sum of k1 over its tokens."""
    found: Tensor = (policy.kl_k1(batch.old_logprobs, batch.ref_logprobs) * batch.mask).sum(dim=1)
    return found[batch.is_scored]


def stats(batch: Rollout, settings: PPOSettings) -> dict[str, Any]:
    """What was sampled, as mergeable values under ROLL's names; of answers without a score their share alone."""
    limit, kept = settings.reward_clip or None, batch.is_scored
    missing = {"reward.unscorable_fraction": values.mean((~kept).float().tolist())}
    if not kept.any():
        return missing
    return missing | rollout.stats(
        response_mask=batch.mask[kept],
        prompt_lengths=(batch.ids_mask.sum(dim=1) - batch.mask.sum(dim=1))[kept],
        truncated=~batch.finished[kept],
        scores=batch.scores[kept],
        score_low=None if limit is None else -limit,
        score_high=limit,
        names="roll",
    )
