"""The update of a GRPO step: conversations as tensors, and the clipped loss with a KL on the tokens the model wrote."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import nullcontext
from dataclasses import dataclass, fields, replace
from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.nn.utils.rnn import pad_sequence

from rlvitals import values
from rlvitals.capture.run import Run
from rlvitals.compute import merge, optim, policy
from rlvitals.records import Group, Rollout
from rlvitals.train import losses, sharded
from rlvitals.train.grpo.conversation import Trajectory
from rlvitals.train.grpo.settings import GRPOSettings
from rlvitals.train.sampling import Answered, answer_stats, answered, left_padded
from rlvitals.train.seeds import seeded
from rlvitals.train.supervised import right_padded


class Played(NamedTuple):
    """The groups of a step, and the conversations of their rollouts in the same order."""

    groups: list[Group]
    trajectories: list[list[Trajectory]]

    def kept(self) -> list[tuple[Rollout, Trajectory]]:
        """The rollouts to train on: their records with advantages, and their tokens."""
        return [(self.groups[at].rollouts[number], self.trajectories[at][number]) for at, number in self.kept_places()]

    def kept_places(self) -> list[tuple[int, int]]:
        """The group of each rollout to train on, and its number in the group."""
        return [
            (at, number)
            for at, (group, rows) in enumerate(zip(self.groups, self.trajectories, strict=True))
            if group.kept
            for number, (rollout, trajectory) in enumerate(zip(group.rollouts, rows, strict=True))
            if rollout.advantage is not None and trajectory.turns
        ]


@dataclass(frozen=True, slots=True)
class UpdateBatch:
    """Conversations as tensors, [rows, tokens after the prompt] unless stated otherwise."""

    ids: Tensor
    """[rows, prompt and the tokens after it]; so are `ids_mask` and `positions`."""
    ids_mask: Tensor
    positions: Tensor
    own: Tensor
    """1 on the tokens that the model wrote. Only these are trained on."""
    sampled_logprobs: Tensor
    """As the sampler computed them."""
    old_logprobs: Tensor
    """As the training pass computes them before the update."""
    ref_logprobs: Tensor
    advantages: Tensor
    weights: Tensor
    """The weight of each token in the loss; see `token_weights`."""

    @property
    def rows(self) -> Answered:
        return Answered(self.ids, self.ids_mask, self.positions, self.own.shape[1])

    def take(self, places: Tensor) -> UpdateBatch:
        """Some of the rows, without the columns that are padding in all of them."""
        width = self.own.shape[1]
        mask, prompts = self.ids_mask[places], self.ids.shape[1] - width
        before, after = (int(part.sum(dim=1).max()) for part in (mask[:, :prompts], mask[:, prompts:]))
        whole, rest = slice(prompts - before, prompts + after), slice(after)
        columns = {field.name: getattr(self, field.name)[places] for field in fields(self)}
        return UpdateBatch(
            **{name: each[:, whole if each.shape[1] > width else rest] for name, each in columns.items()}
        )


class SeenTokens(NamedTuple):
    """What the last update computed for a batch, [rows, tokens after the prompt]. A field without a value is None."""

    own: Tensor
    old_logprobs: Tensor
    advantages: Tensor
    ref_logprobs: Tensor | None
    new_logprobs: Tensor | None
    """None if there were several epochs, because each has a different policy."""
    entropies: Tensor
    """From the first epoch."""


def batch_of(
    kept: Sequence[tuple[Rollout, Trajectory]], pad_id: int, device: Any, *, rows: int | None = None
) -> UpdateBatch:
    """Conversations as tensors. `rows` pads the batch to this number with rows that have no weight, so that every rank
    has the same number.
    """
    parts: list[Any] = [_columns(rollout, trajectory) for rollout, trajectory in kept]
    parts += [([pad_id], [pad_id], [0.0], [0.0], [0.0])] * ((rows or 0) - len(parts))
    prompts, rest, *numbers = map(list, zip(*parts, strict=True))
    whole = answered(*left_padded(prompts, pad_id, device), *right_padded(rest, pad_id, device))
    own, logprobs, advantages = (
        pad_sequence([torch.tensor(line) for line in lines], batch_first=True).to(device) for lines in numbers
    )
    nothing = torch.zeros_like(own)
    return UpdateBatch(whole.ids, whole.mask, whole.positions, own, logprobs, nothing, nothing, advantages, nothing)


def _columns(rollout: Rollout, row: Trajectory) -> tuple[list[int], list[int], list[float], list[float], list[float]]:
    """The prompt's tokens, and four columns for the tokens after it: ids, whether the model wrote the token, log-prob,
    and the advantage of its turn.
    """
    advantages = [0.0] * len(row.ids)
    for turn, sampled in zip(rollout.turns, row.turns, strict=True):
        advantages[sampled.start : sampled.end] = [turn.advantage or 0.0] * (sampled.end - sampled.start)
    rest = slice(row.prompt, None)
    return (
        row.ids[: row.prompt],
        row.ids[rest],
        [float(mark) for mark in row.own[rest]],
        row.logprobs[rest],
        advantages[rest],
    )


def token_weights(own: Tensor, mode: str, *, tokens: float, rows: float, horizon: float) -> Tensor:
    """The weight of each token, so that the weighted sum is the mean in this mode over all rows of an update. `tokens`
    is the number of tokens that the model wrote, and `rows` is the number of rows with at least one of them.

    >>> token_weights(torch.tensor([[1.0, 1.0], [1.0, 0.0]]), "seq-mean-token-mean", tokens=3, rows=2, horizon=8)
    tensor([[0.2500, 0.2500],
            [0.5000, 0.0000]])
    """
    if mode == "token-mean":
        return own / tokens
    if mode == "seq-mean-token-mean":
        return own / own.sum(dim=1, keepdim=True).clamp(min=1.0) / rows
    return own / (rows * horizon)


class Updates:
    """Trains a model on batches of conversations. Without a `reference` there is no KL term."""

    def __init__(
        self,
        settings: GRPOSettings,
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
        self.seen: SeenTokens | None = None
        """From the last step."""

    def improve(self, batch: UpdateBatch, step: int) -> dict[str, Any]:
        """Train on a batch for grpo_epochs epochs, with one update per minibatch. Returns the values to log.

        Every rank must have the same number of rows.
        """
        settings, rows = self._settings, len(batch.ids)
        size = settings.minibatch_size or rows
        has_old = settings.grpo_epochs > 1 or size < rows
        with self._run.phase("compute_log_probs"):
            # With a single update the old policy equals the current one and needs no separate pass.
            found = {"ref_logprobs": self._reference, "old_logprobs": self._model if has_old else None}
            batch = replace(
                batch, **{name: self._logprobs(model, batch) for name, model in found.items() if model is not None}
            )
        packs: list[Any] = []
        norms: list[Tensor] = []
        logprobs, entropies = torch.zeros_like(batch.own), torch.zeros_like(batch.own)
        # Sums over the horizon are added over all parts of the step, so each is divided by the rows of the whole step.
        trained = self._accelerator.reduce((batch.own.sum(dim=1) > 0).float().sum(), "sum")
        visits = max(float(trained), 1.0) * settings.grpo_epochs
        with self._run.phase("train_step") as phase:
            phase.tokens(int(batch.ids_mask.sum()) * settings.grpo_epochs)
            for epoch in range(settings.grpo_epochs):
                shuffled = seeded("cpu", settings.seed, step, self._accelerator.process_index, "minibatches", epoch)
                for places in torch.split(torch.randperm(rows, generator=shuffled), size):

                    def note(part: Tensor, now: Any, places: Tensor = places, is_first: bool = epoch == 0) -> None:
                        if is_first:
                            here = places[part].to(logprobs.device)
                            logprobs[here, : now.logprobs.shape[1]] = now.logprobs.detach().float()
                            entropies[here, : now.entropy.shape[1]] = now.entropy.detach().float()

                    norms.append(self._update(batch.take(places), packs, has_old=has_old, note=note, visits=visits))
        self.seen = SeenTokens(
            batch.own,
            batch.old_logprobs if has_old else logprobs,
            batch.advantages,
            None if self._reference is None else batch.ref_logprobs,
            logprobs if settings.grpo_epochs == 1 else None,
            entropies,
        )
        row = merge(pack.values() for pack in packs)
        norm = optim.stats(grad_norm=torch.stack(norms), names=settings.names)
        return {**row, **norm, "tokens_trained": values.total([float(batch.own.sum())])}

    def _update(
        self,
        batch: UpdateBatch,
        packs: list[Any],
        *,
        has_old: bool,
        note: Callable[[Tensor, Any], None] | None = None,
        visits: float | None = None,
    ) -> Tensor:
        """Take one optimizer step. Returns the norm of the gradient before clipping. `has_old`: the batch holds the
        log-probs from before the first update. `note` is called with the rows of each forward pass and its output.
        `visits` is the number of rows that all updates of the step train on.
        """
        settings, accelerator = self._settings, self._accelerator
        counts = torch.stack([batch.own.sum(), (batch.own.sum(dim=1) > 0).float().sum()])
        # Gradients are averaged over ranks: dividing by the mean count per rank weighs all tokens and rows equally.
        tokens, rows = (accelerator.reduce(counts, "sum") / accelerator.num_processes).clamp(min=1e-9).tolist()
        weights = token_weights(batch.own, settings.aggregation, tokens=tokens, rows=rows, horizon=self._horizon)
        batch = replace(batch, weights=weights)
        parts = torch.split(torch.arange(len(batch.ids)), settings.microbatch_size or len(batch.ids))
        for number, places in enumerate(parts, 1):
            with nullcontext() if number == len(parts) else accelerator.no_sync(self._model):
                loss, seen, now = self._loss(batch.take(places), has_old, visits or rows)
                accelerator.backward(loss)
            packs.append(seen)
            if note is not None:
                note(places, now)
        with self._run.phase("model_update"):
            (norm,) = sharded.update(self._optimizer, settings.max_grad_norm)
        return norm

    def _loss(self, batch: UpdateBatch, has_old: bool, visits: float) -> tuple[Tensor, Any, Any]:
        """GRPO's loss over some rows, the statistics of the update, and the output of the forward pass."""
        s, has_kl = self._settings, self._reference is not None
        now = answer_stats(self._model, batch.rows, temperature=s.temperature)
        old = batch.old_logprobs if has_old else now.logprobs.detach()
        of_tokens = losses.policy_losses(
            now.logprobs, old_logprobs=old, advantages=batch.advantages, clip_low=s.clip_low, clip_high=s.clip_high,
            dual_clip=s.dual_clip, ref_logprobs=batch.ref_logprobs, kl_coef=s.kl_coef if has_kl else 0.0,
            entropy=now.entropy, entropy_coef=s.entropy_coef,
        )  # fmt: skip
        seen = policy.pack(
            logprobs=now.logprobs.detach(), old_logprobs=old, ref_logprobs=batch.ref_logprobs if has_kl else None,
            rollout_logprobs=batch.sampled_logprobs, advantages=batch.advantages, mask=batch.own,
            entropy=now.entropy.detach(), clip_low=s.clip_low, clip_high=s.clip_high, dual_clip=s.dual_clip,
            aggregation=s.aggregation, horizon=self._horizon * visits,
            kl_coef=s.kl_coef if has_kl else None, entropy_coef=s.entropy_coef, names=s.names,
        )  # fmt: skip
        return losses.summed(of_tokens, batch.own, batch.weights), seen, now

    @torch.no_grad()
    def _logprobs(self, model: Any, batch: UpdateBatch) -> Tensor:
        """A model's log-probs of the tokens."""
        size = self._settings.microbatch_size or self._settings.minibatch_size or len(batch.ids)
        parts = []
        for places in torch.split(torch.arange(len(batch.ids)), size):
            with self._accelerator.autocast():
                read = answer_stats(model, batch.take(places).rows, temperature=self._settings.temperature).logprobs
            parts.append(torch.nn.functional.pad(read.float(), (0, batch.own.shape[1] - read.shape[1])))
        return torch.cat(parts)
