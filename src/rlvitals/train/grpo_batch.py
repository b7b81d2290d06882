"""A step's conversations as tensors: what is read, which tokens are the model's own, what each of them is worth."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, fields, replace
from typing import Any, NamedTuple

import torch
from torch import Tensor

from rlvitals.records import Group, Rollout
from rlvitals.train.agent_rollouts import Trajectory
from rlvitals.train.sampling import Answered, answered, left_padded
from rlvitals.train.supervised import right_padded


class Played(NamedTuple):
    """The groups of a step, and the conversations of their rollouts in the same order."""

    groups: list[Group]
    trajectories: list[list[Trajectory]]

    def kept(self) -> list[tuple[int, Rollout, Trajectory]]:
        """What is trained on: the number of its group, the record with its advantages, the tokens."""
        return [
            (number, rollout, trajectory)
            for number, (group, rows) in enumerate(zip(self.groups, self.trajectories, strict=True))
            if group.kept
            for rollout, trajectory in zip(group.rollouts, rows, strict=True)
            if rollout.advantage is not None and trajectory.said
        ]


@dataclass(frozen=True, slots=True)
class Batch:
    """All of it [rows, tokens after the prompt], but for what says otherwise."""

    ids: Tensor
    """[rows, prompt and what came after it]"""
    ids_mask: Tensor
    positions: Tensor
    own: Tensor
    """1 on the tokens that the model wrote: these are trained on, and the tools' are not."""
    sampled_logprobs: Tensor
    """As the sampler saw them."""
    old_logprobs: Tensor
    """As the training pass sees them before the update."""
    ref_logprobs: Tensor
    advantages: Tensor
    weights: Tensor
    """What each token counts in the loss; they sum to 1 over an update of all ranks."""

    @property
    def rows(self) -> Answered:
        return Answered(self.ids, self.ids_mask, self.positions, self.own.shape[1])

    def take(self, places: Tensor) -> Batch:
        """Some of the rows, without the columns that are padding in all of them."""
        some = Batch(*(getattr(self, field.name)[places] for field in fields(self)))
        width = some.own.shape[1]
        after = int(some.ids_mask[:, -width:].sum(dim=1).max())
        before = int(some.ids_mask[:, :-width].sum(dim=1).max())
        first, last = some.ids.shape[1] - width - before, some.ids.shape[1] - width + after
        per_token = ("own", "sampled_logprobs", "old_logprobs", "ref_logprobs", "advantages", "weights")
        return replace(
            some,
            **{name: getattr(some, name)[:, first:last] for name in ("ids", "ids_mask", "positions")},
            **{name: getattr(some, name)[:, :after] for name in per_token},
        )


def batch_of(
    kept: Sequence[tuple[int, Rollout, Trajectory]], pad_id: int, device: Any, *, rows: int | None = None
) -> Batch:
    """Conversations as tensors. With `rows` there are that many: what is missing is filled with rows that count for
    nothing, so that every rank has as many.
    """
    trajectories = [trajectory for _, _, trajectory in kept]
    prompts = [row.ids[: row.prompt] for row in trajectories]
    rest = [row.ids[row.prompt :] for row in trajectories]
    own: list[list[float]] = [[float(mark) for mark in row.own[row.prompt :]] for row in trajectories]
    logprobs = [row.logprobs[row.prompt :] for row in trajectories]
    credited = [_advantages(rollout, trajectory) for _, rollout, trajectory in kept]
    for _ in range((rows or 0) - len(trajectories)):
        prompts.append([pad_id])
        rest.append([pad_id])
        own, logprobs, credited = [*own, [0.0]], [*logprobs, [0.0]], [*credited, [0.0]]
    prompt_ids, prompt_mask = left_padded(prompts, pad_id, device)
    rest_ids, rest_mask = right_padded(rest, pad_id, device)
    whole = answered(prompt_ids, prompt_mask, rest_ids, rest_mask)
    numbers = [_padded(lines, rest_ids.shape[1], device) for lines in (own, logprobs, credited)]
    nothing = torch.zeros_like(numbers[0])
    return Batch(whole.ids, whole.mask, whole.positions, numbers[0], numbers[1], nothing, nothing, numbers[2], nothing)


def _advantages(rollout: Rollout, trajectory: Trajectory) -> list[float]:
    """Each turn's advantage on its tokens."""
    found = [0.0] * (len(trajectory.ids) - trajectory.prompt)
    for turn, said in zip(rollout.turns, trajectory.said, strict=True):
        start, end = said.start - trajectory.prompt, said.end - trajectory.prompt
        found[start:end] = [turn.advantage or 0.0] * (end - start)
    return found


def _padded(lines: Sequence[Sequence[float]], width: int, device: Any) -> Tensor:
    return torch.tensor([[*line, *([0.0] * (width - len(line)))] for line in lines], device=device)


def token_weights(own: Tensor, mode: str, *, tokens: float, rows: float, horizon: float) -> Tensor:
    """What each token counts, so that the weighted sum is the mean in this mode over all rows of an update, of which
    there are `tokens` of the model's own and `rows` with at least one.

    >>> token_weights(torch.tensor([[1.0, 1.0], [1.0, 0.0]]), "seq-mean-token-mean", tokens=3, rows=2, horizon=8)
    tensor([[0.2500, 0.2500],
            [0.5000, 0.0000]])
    """
    if mode == "token-mean":
        return own / tokens
    if mode == "seq-mean-token-mean":
        return own / own.sum(dim=1, keepdim=True).clamp(min=1.0) / rows
    return own / (rows * horizon)
