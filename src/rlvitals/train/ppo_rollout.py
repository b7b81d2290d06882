"""One batch of experience: answers sampled, scored, held against the reference, and what each token was worth."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Sequence
from dataclasses import dataclass, fields, replace
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from rlvitals import values
from rlvitals.compute import advantage, policy, rollout
from rlvitals.train import sharded
from rlvitals.train.sampling import Answered, answer_stats, answered, left_padded

if TYPE_CHECKING:
    from rlvitals.train.ppo import Trainer
    from rlvitals.train.ppo_settings import Settings

Reward = Callable[[Answered, list[int]], Tensor]
"""The score of each row, NaN where there is none; the second argument says which prompts they answer."""


@dataclass(frozen=True, slots=True)
class Rollout:
    """All of it [rows, answer tokens], but for what says otherwise."""

    ids: Tensor
    """[rows, prompt and answer]"""
    ids_mask: Tensor
    positions: Tensor
    mask: Tensor
    """1 on the answer's tokens; on none of an answer without a score, which has no part in anything."""
    sampled_logprobs: Tensor
    """As the sampler saw them."""
    old_logprobs: Tensor
    """As the training pass sees them before the update."""
    ref_logprobs: Tensor
    entropy: Tensor
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
    def read(self) -> tuple[Tensor, Tensor, Tensor, int]:
        """What `ActorCritic.read` takes."""
        return self.ids, self.ids_mask, self.positions, self.width

    def take(self, places: Tensor) -> Rollout:
        """Some of the rows."""
        return Rollout(*(getattr(self, field.name)[places] for field in fields(self)))


def seeded(device: Any, *what: object) -> torch.Generator:
    """A generator that depends on nothing but what is named (seed, step, rank, purpose): a resumed training draws what
    an unbroken one would.
    """
    digest = hashlib.blake2b(repr(what).encode(), digest_size=7).digest()
    return torch.Generator(device).manual_seed(int.from_bytes(digest, "big"))


def batch_places(step: int, batch: int, count: int, *seed: object) -> list[int]:
    """Which prompts a step (from 1) takes: one shuffled deck of all prompts after the other.

    >>> sorted(batch_places(1, 2, 4, 0) + batch_places(2, 2, 4, 0))
    [0, 1, 2, 3]
    """
    decks: dict[int, list[int]] = {}
    places = []
    for index in range((step - 1) * batch, step * batch):
        deck = index // count
        if deck not in decks:
            decks[deck] = torch.randperm(count, generator=seeded("cpu", *seed, "deck", deck)).tolist()
        places.append(decks[deck][index % count])
    return places


def collect(trainer: Trainer, prompts: Sequence[list[int]], places: list[int], step: int) -> Rollout:
    """Sample an answer to each prompt and find out what it is worth."""
    run, settings, model, accelerator = trainer.run, trainer.settings, trainer.model, trainer.accelerator
    device, temperature = accelerator.device, settings.temperature
    ids, ids_mask = left_padded([prompts[place] for place in places], trainer.pad_id, device)
    with torch.no_grad():
        with run.timer("rollout"), run.phase("generate") as phase:
            generator = seeded(device, settings.seed, step, accelerator.process_index, "sample")
            with sharded.whole(model, accelerator):
                sampled = model("sample", ids, ids_mask, generator=generator, **trainer.sampling)
            phase.tokens(int(sampled.mask.sum()))
        rows = answered(ids, ids_mask, sampled.tokens, sampled.mask)
        mask = sampled.mask.float()
        with run.timer("ref_log_probs_values_reward"):
            with run.phase("compute_log_probs"), accelerator.autocast():
                reference = answer_stats(trainer.reference, rows, temperature=temperature).logprobs
            with run.phase("compute_rewards"), accelerator.autocast():
                scores = trainer.reward(rows, places).float()
        mask = mask * (~scores.isnan())[:, None]
        with run.timer("old_log_probs_values"):
            with run.phase("compute_log_probs"):
                old, entropy, hidden = model("read_policy", *rows, temperature)
            with run.phase("compute_values"):
                predicted = model("read_values", *rows, hidden) * mask
        with run.timer("adv"):
            rewards = token_rewards(
                settings, scores.nan_to_num(), sampled.finished, trainer.kl_coef * policy.kl_k1(old, reference), mask
            )
            estimate = advantage.gae(rewards, predicted, mask, gamma=settings.gamma, lam=settings.gae_lambda)
            advantages = _whitened(accelerator, estimate.advantages, mask) if settings.whiten else estimate.advantages
    weights = torch.where(sampled.finished, 1.0, settings.truncated_weight)
    return Rollout(
        ids=rows.ids,
        ids_mask=rows.mask,
        positions=rows.positions,
        mask=mask,
        sampled_logprobs=sampled.logprobs,
        old_logprobs=old.float(),
        ref_logprobs=reference.float(),
        entropy=entropy,
        values=predicted,
        scores=scores,
        token_rewards=rewards,
        advantages=advantages.float(),
        returns=estimate.returns.float(),
        weights=weights,
        finished=sampled.finished,
    )


def token_rewards(settings: Settings, scores: Tensor, finished: Tensor, penalties: Tensor, mask: Tensor) -> Tensor:
    """The KL penalty of each token taken off, and on the last one the score: clipped, and less a penalty where the
    answer was cut off.
    """
    rewards: Tensor = -penalties.float() * mask
    final = scores.clamp(-settings.reward_clip, settings.reward_clip) if settings.reward_clip else scores
    final = final - settings.missing_eos_penalty * (~finished).float()
    last = (mask.sum(dim=1) - 1).long().clamp(min=0)
    rewards[torch.arange(len(rewards), device=rewards.device), last] += final * (mask.sum(dim=1) > 0)
    return rewards


def kl_of_answers(batch: Rollout) -> Tensor:
    """How far each answer that counts is from the reference: the sum of k1 over its tokens."""
    found: Tensor = (policy.kl_k1(batch.old_logprobs, batch.ref_logprobs) * batch.mask).sum(dim=1)
    return found[batch.is_scored]


def stats(batch: Rollout, settings: Settings) -> dict[str, Any]:
    """What was sampled, as mergeable values under ROLL's names; of answers without a score their share alone."""
    limit = settings.reward_clip or None
    kept = batch.is_scored
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


def _whitened(accelerator: Any, advantages: Tensor, mask: Tensor) -> Tensor:
    """Mean 0 and deviation 1 over all ranks' tokens."""
    rows, columns = advantages.shape
    everyone = accelerator.gather(accelerator.pad_across_processes(advantages.contiguous(), dim=1))
    counted = accelerator.gather(accelerator.pad_across_processes(mask.contiguous(), dim=1))
    start = accelerator.process_index * rows
    whitened: Tensor = advantage.whiten(everyone, counted)[start : start + rows, :columns]
    return whitened


def without_padding(batch: Rollout) -> Rollout:
    """The same with the padding of the longest answer cut off, for a part of the batch."""
    longest = max(1, int(batch.mask.sum(dim=1).max()))
    cut = batch.width - longest
    if not cut:
        return batch
    kept = batch.ids.shape[1] - cut
    per_token = ("mask", "sampled_logprobs", "old_logprobs", "ref_logprobs", "entropy", "values", "token_rewards",
                 "advantages", "returns")  # fmt: skip
    return replace(
        batch,
        ids=batch.ids[:, :kept],
        ids_mask=batch.ids_mask[:, :kept],
        positions=batch.positions[:, :kept],
        **{name: getattr(batch, name)[:, :longest] for name in per_token},
    )
