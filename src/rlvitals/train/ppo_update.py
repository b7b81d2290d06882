"""The updates of a PPO step: the clipped loss of the policy and the critic's, over the tokens of the answers."""

from __future__ import annotations

from contextlib import nullcontext
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from rlvitals.compute import advantage, merge, optim, policy
from rlvitals.train import losses, sharded
from rlvitals.train.ppo_rollout import Rollout, seeded, without_padding

if TYPE_CHECKING:
    from rlvitals.capture.run import Run
    from rlvitals.train.ppo_settings import Settings


class Updates:
    """Trains a model (`ActorCritic`, wrapped) on batches of experience."""

    def __init__(self, settings: Settings, run: Run, accelerator: Any, *, model: Any, optimizer: Any) -> None:
        self._settings, self._run, self._accelerator = settings, run, accelerator
        self._model, self._optimizer = model, optimizer

    def improve(self, batch: Rollout, step: int) -> dict[str, Any]:
        """Go through a batch ppo_epochs times, in minibatches, each of them an update; returns what is to be logged."""
        settings, accelerator = self._settings, self._accelerator
        packs: list[Any] = []
        norms: list[list[Tensor]] = []
        for epoch in range(settings.ppo_epochs):
            shuffled = seeded("cpu", settings.seed, step, accelerator.process_index, "minibatches", epoch)
            for minibatch in torch.split(torch.randperm(len(batch.ids), generator=shuffled), settings.minibatch_size):
                # Over the tokens of all ranks, whose gradients are averaged: every token counts the same.
                tokens = accelerator.reduce(batch.mask[minibatch].sum(), "sum") / accelerator.num_processes
                parts = torch.split(minibatch, settings.microbatch_size or settings.minibatch_size)
                for number, places in enumerate(parts, 1):
                    is_last = number == len(parts)
                    with nullcontext() if is_last else accelerator.no_sync(self._model):
                        loss, seen = self._loss(without_padding(batch.take(places)), tokens)
                        accelerator.backward(loss)
                    packs += seen
                with self._run.phase("model_update"):
                    norms.append(sharded.update(self._optimizer, settings.max_grad_norm))
        of_policy, of_values = torch.stack([torch.stack(pair) for pair in norms]).unbind(dim=1)
        groups = self._optimizer.param_groups
        rates = optim.stats(
            optimizer=self._optimizer, grad_norm=of_policy, names="roll",
            critic_optimizer=SimpleNamespace(param_groups=groups[1:]), critic_grad_norm=of_values,
        )  # fmt: skip
        return {**merge(pack.values() for pack in packs), **rates}

    def _loss(self, batch: Rollout, tokens: Tensor) -> tuple[Tensor, list[Any]]:
        """PPO's loss over some rows, and the statistics of the update."""
        s = self._settings
        low, high, value_clip = s.clip_range, s.clip_range_high or s.clip_range, s.value_clip or None
        read = self._model("read", *batch.read, s.temperature)
        of_policy = losses.policy_losses(
            read.logprobs, old_logprobs=batch.old_logprobs, advantages=batch.advantages, clip_low=low, clip_high=high,
            dual_clip=s.dual_clip, row_weights=batch.weights, ref_logprobs=batch.ref_logprobs, kl_coef=s.kl_loss_coef,
            entropy=read.entropy, entropy_coef=s.entropy_coef,
        )  # fmt: skip
        of_values = losses.value_losses(
            read.values, returns=batch.returns, old_values=batch.values, value_clip=value_clip
        )
        total = losses.summed(of_policy + s.value_coef * of_values, batch.mask) / tokens
        seen = [
            policy.pack(
                logprobs=read.logprobs, old_logprobs=batch.old_logprobs, ref_logprobs=batch.ref_logprobs,
                rollout_logprobs=batch.sampled_logprobs, advantages=batch.advantages, mask=batch.mask,
                entropy=read.entropy, scores=batch.scores, sample_weights=batch.weights, clip_low=low, clip_high=high,
                dual_clip=s.dual_clip, kl_coef=s.kl_loss_coef, entropy_coef=s.entropy_coef, names="roll",
            ),
            advantage.pack(
                advantages=batch.advantages, returns=batch.returns, values=read.values, old_values=batch.values,
                token_rewards=batch.token_rewards, mask=batch.mask, value_clip=value_clip, names="roll",
            ),
        ]  # fmt: skip
        return total, seen
