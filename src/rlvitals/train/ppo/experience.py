"""One batch of experience: answers, their scores, the reward of each token, and the logged statistics."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from rlvitals import values
from rlvitals.compute import advantage, policy, rollout
from rlvitals.train.ppo.settings import PPOSettings
from rlvitals.train.sampling import Answered, AnsweredBatch

Reward = Callable[[Answered, list[int]], Tensor]
"""Returns the score of each row, or NaN if there is none. The second argument lists the prompts that they answer."""


@dataclass(frozen=True, slots=True)
class Experience(AnsweredBatch):
    """A batch of answers as tensors."""

    mask: Tensor
    """1 on the answer's tokens. 0 on all tokens of an answer without a score, which is not trained on."""
    sampled_logprobs: Tensor
    """As the sampler computed them."""
    old_logprobs: Tensor
    """As the training pass computes them before the update."""
    ref_logprobs: Tensor
    values: Tensor
    scores: Tensor
    """[rows], before clipping; NaN if there is none."""
    token_rewards: Tensor
    """See `token_rewards` below."""
    advantages: Tensor
    returns: Tensor
    weights: Tensor
    """[rows], the weight of a row in the policy's loss."""
    finished: Tensor
    """[rows]: whether the answer ended by itself."""

    @property
    def is_scored(self) -> Tensor:
        """[rows]: which answers have a score."""
        return ~self.scores.isnan()

    def without_padding(self) -> Experience:
        """The same without the columns after the longest scored answer."""
        prompt = self.rows.ids.shape[1] - self.rows.width
        return self.trimmed(prompt, max(1, int(self.mask.sum(dim=1).max())))


def token_rewards(settings: PPOSettings, scores: Tensor, finished: Tensor, penalties: Tensor, mask: Tensor) -> Tensor:
    """The reward of each token: minus its KL penalty, and on the last token plus the score. The score is clipped, and
    reduced by a penalty if the answer was cut off.
    """
    rewards: Tensor = -penalties.float() * mask
    final = scores.clamp(-settings.reward_clip, settings.reward_clip) if settings.reward_clip else scores
    final = final - settings.missing_eos_penalty * (~finished).float()
    last = (mask.sum(dim=1) - 1).long().clamp(min=0)
    rewards[torch.arange(len(rewards), device=rewards.device), last] += final * (mask.sum(dim=1) > 0)
    return rewards


def whitened(accelerator: Any, advantages: Tensor, mask: Tensor) -> Tensor:
    """The advantages with mean 0 and standard deviation 1 over the tokens of all ranks."""
    rows, columns = advantages.shape
    everyone = accelerator.gather(accelerator.pad_across_processes(advantages.contiguous(), dim=1))
    counted = accelerator.gather(accelerator.pad_across_processes(mask.contiguous(), dim=1))
    start = accelerator.process_index * rows
    found: Tensor = advantage.whiten(everyone, counted)[start : start + rows, :columns]
    return found


def kl_of_answers(batch: Experience) -> Tensor:
    """The KL of each scored answer to the reference: the sum of k1 over its tokens."""
    found: Tensor = (policy.kl_k1(batch.old_logprobs, batch.ref_logprobs) * batch.mask).sum(dim=1)
    return found[batch.is_scored]


def stats(batch: Experience, settings: PPOSettings) -> dict[str, Any]:
    """Statistics of the scored answers, as mergeable values under ROLL's names, and the share without a score."""
    limit, kept = settings.reward_clip or None, batch.is_scored
    unscorable = {"reward.unscorable_fraction": values.mean((~kept).float().tolist())}
    return unscorable | rollout.stats(
        response_mask=batch.mask[kept],
        prompt_lengths=(batch.rows.mask.sum(dim=1) - batch.mask.sum(dim=1))[kept],
        truncated=~batch.finished[kept],
        scores=batch.scores[kept],
        score_low=None if limit is None else -limit,
        score_high=limit,
        names="roll",
    )
