"""The updates of a GRPO step: PPO's clipped loss with a KL to the start, over the tokens that the model wrote."""

from __future__ import annotations

from contextlib import nullcontext
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from rlvitals import values
from rlvitals.compute import merge, optim, policy
from rlvitals.train import losses, sharded
from rlvitals.train.grpo_batch import Batch, token_weights
from rlvitals.train.sampling import answer_stats
from rlvitals.train.seeds import seeded

if TYPE_CHECKING:
    from rlvitals.capture.run import Run
    from rlvitals.train.grpo_settings import Settings


class Updates:
    """Trains a model on batches of conversations. `reference` None: there is no KL to the start."""

    def __init__(
        self,
        settings: Settings,
        run: Run,
        accelerator: Any,
        *,
        model: Any,
        reference: Any,
        optimizer: Any,
        horizon: int,
    ) -> None:
        self._settings, self._run, self._accelerator = settings, run, accelerator
        self._model, self._reference, self._optimizer = model, reference, optimizer
        self._horizon = horizon

    def improve(self, batch: Batch, step: int) -> dict[str, Any]:
        """Go through a batch grpo_epochs times, in minibatches, each of them an update; returns what is to be logged.

        Every rank has as many rows.
        """
        settings, rows = self._settings, len(batch.ids)
        size = settings.minibatch_size or rows
        has_old = settings.grpo_epochs > 1 or size < rows
        with self._run.phase("compute_log_probs"):
            batch = self._with_logprobs(batch, has_old=has_old)
        packs: list[Any] = []
        norms: list[Tensor] = []
        with self._run.phase("train_step") as phase:
            phase.tokens(int(batch.ids_mask.sum()) * settings.grpo_epochs)
            for epoch in range(settings.grpo_epochs):
                shuffled = seeded("cpu", settings.seed, step, self._accelerator.process_index, "minibatches", epoch)
                for places in torch.split(torch.randperm(rows, generator=shuffled), size):
                    norms.append(self._update(batch.take(places), packs, has_old=has_old))
        row = merge(pack.values() for pack in packs)
        norm = optim.stats(grad_norm=torch.stack(norms), names=settings.names)
        return {**row, **norm, "tokens_trained": values.total([float(batch.own.sum())])}

    def _update(self, batch: Batch, packs: list[Any], *, has_old: bool) -> Tensor:
        """One step of the optimizer; returns the norm of the gradient before it is clipped. `has_old`: the policy has
        moved since the batch was collected, and the batch holds what it said then.
        """
        settings, accelerator = self._settings, self._accelerator
        counts = torch.stack([batch.own.sum(), (batch.own.sum(dim=1) > 0).float().sum()])
        # Over the tokens and rows of all ranks, whose gradients are averaged: all of them count the same.
        tokens, rows = (accelerator.reduce(counts, "sum") / accelerator.num_processes).clamp(min=1e-9).tolist()
        weights = token_weights(batch.own, settings.aggregation, tokens=tokens, rows=rows, horizon=self._horizon)
        batch = replace(batch, weights=weights)
        parts = torch.split(torch.arange(len(batch.ids)), settings.microbatch_size or len(batch.ids))
        for number, places in enumerate(parts, 1):
            with nullcontext() if number == len(parts) else accelerator.no_sync(self._model):
                loss, seen = self._loss(batch.take(places), has_old)
                accelerator.backward(loss)
            packs.append(seen)
        with self._run.phase("model_update"):
            (norm,) = sharded.update(self._optimizer, settings.max_grad_norm)
        return norm

    def _loss(self, batch: Batch, has_old: bool) -> tuple[Tensor, Any]:
        """GRPO's loss over some rows, and the statistics of the update."""
        s = self._settings
        now = answer_stats(self._model, batch.rows, temperature=s.temperature)
        old = batch.old_logprobs if has_old else now.logprobs.detach()
        of_tokens = losses.policy_losses(
            now.logprobs, old_logprobs=old, advantages=batch.advantages, clip_low=s.clip_low, clip_high=s.clip_high,
            dual_clip=s.dual_clip, ref_logprobs=batch.ref_logprobs,
            kl_coef=0.0 if self._reference is None else s.kl_coef, entropy=now.entropy, entropy_coef=s.entropy_coef,
        )  # fmt: skip
        total = losses.summed(of_tokens, batch.own, batch.weights)
        seen = policy.pack(
            logprobs=now.logprobs.detach(), old_logprobs=old,
            ref_logprobs=None if self._reference is None else batch.ref_logprobs,
            rollout_logprobs=batch.sampled_logprobs, advantages=batch.advantages, mask=batch.own,
            entropy=now.entropy.detach(), clip_low=s.clip_low, clip_high=s.clip_high, dual_clip=s.dual_clip,
            aggregation=s.aggregation, horizon=self._horizon * len(batch.ids),
            kl_coef=None if self._reference is None else s.kl_coef, entropy_coef=s.entropy_coef, names=s.names,
        )  # fmt: skip
        return total, seen

    @torch.no_grad()
    def _with_logprobs(self, batch: Batch, *, has_old: bool) -> Batch:
        """What the reference and, where the policy will move between updates, the old policy say of the tokens. With
        one update the old policy is the one that is trained, and needs no pass of its own.
        """
        found: dict[str, Tensor] = {}
        size = self._settings.microbatch_size or self._settings.minibatch_size or len(batch.ids)
        for name, model in (("ref_logprobs", self._reference), ("old_logprobs", self._model if has_old else None)):
            if model is None:
                continue
            parts = []
            for places in torch.split(torch.arange(len(batch.ids)), size):
                part = batch.take(places)
                with self._accelerator.autocast():
                    read = answer_stats(model, part.rows, temperature=self._settings.temperature).logprobs.float()
                parts.append(torch.nn.functional.pad(read, (0, batch.own.shape[1] - read.shape[1])))
            found[name] = torch.cat(parts)
        return replace(batch, **found)
