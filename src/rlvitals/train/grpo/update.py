"""What a GRPO step trains on: the groups with their conversations, the same as tensors, and each token's weight in the
loss.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.nn.utils.rnn import pad_sequence

from rlvitals.records import Group, Rollout
from rlvitals.train.grpo.conversation import Trajectory
from rlvitals.train.sampling import AnsweredBatch, answered, left_padded
from rlvitals.train.supervised import right_padded


class Played(NamedTuple):
    """The groups of a step, and the conversations of their rollouts in the same order."""

    groups: list[Group]
    trajectories: list[list[Trajectory]]

    def kept(self) -> list[tuple[Rollout, Trajectory]]:
        """The rollouts to train on: their records with advantages, and their tokens."""
        return [
            (rollout, row)
            for group, rows in zip(self.groups, self.trajectories, strict=True)
            for rollout, row in zip(group.rollouts, rows, strict=True)
            if group.kept and rollout.advantage is not None and row.turns
        ]


@dataclass(frozen=True, slots=True)
class UpdateBatch(AnsweredBatch):
    """Conversations as tensors. All tokens after the first prompt are the answer, including the results of tools."""

    own: Tensor
    """1 on the tokens that the model wrote. Only these are trained on."""
    sampled_logprobs: Tensor
    """As the sampler computed them."""
    advantages: Tensor
    """Of each token's turn."""
    old_logprobs: Tensor | None = None
    """As the training pass computes them before the first of several updates; None if there is only one."""
    ref_logprobs: Tensor | None = None
    """Of the initial model; None if the loss has no KL."""

    def without_padding(self) -> UpdateBatch:
        """The same without the columns that are padding in every row."""
        width = self.rows.width
        return self.trimmed(*(int(part.sum(dim=1).max()) for part in self.rows.mask.tensor_split((-width,), dim=1)))


def batch_of(
    kept: Sequence[tuple[Rollout, Trajectory]], pad_id: int, device: Any, *, rows: int | None = None
) -> UpdateBatch:
    """Conversations as tensors. `rows` pads the batch to this number with rows that have no weight, so that every rank
    has the same number.
    """
    columns: list[Any] = []
    for rollout, row in kept:
        advantages = [0.0] * len(row.ids)
        for turn, sampled in zip(rollout.turns, row.turns, strict=True):
            advantages[sampled.start : sampled.end] = [turn.advantage or 0.0] * (sampled.end - sampled.start)
        rest = slice(row.prompt, None)
        columns.append((row.ids[: row.prompt], row.ids[rest], row.own[rest], row.logprobs[rest], advantages[rest]))
    columns += [([pad_id], [pad_id], [0], [0.0], [0.0])] * ((rows or 0) - len(columns))
    prompts, answers, *numbers = map(list, zip(*columns, strict=True))
    whole = answered(*left_padded(prompts, pad_id, device), *right_padded(answers, pad_id, device))
    of_tokens = (
        pad_sequence([torch.tensor(line, dtype=torch.float32) for line in lines], batch_first=True).to(device)
        for lines in numbers
    )
    return UpdateBatch(whole, *of_tokens)


def stacked(parts: Sequence[Tensor], width: int) -> Tensor:
    """Numbers of tokens from passes over parts of a batch, [rows, width]. Columns that a part does not have are 0."""
    return torch.cat([torch.nn.functional.pad(part.float(), (0, width - part.shape[1])) for part in parts])


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
