"""Many conversations with tools at once: sampled turn by turn in one batch, with the cache kept between turns.

Each turn reads only what is new: the end of the model's last message and what the tools gave back. Conversations that
have ended drop out of the batch. In the columns of the cache there are holes where one message was shorter than
another; the attention mask leaves them out, and positions count real tokens only.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import Any, NamedTuple

import torch
from torch import Tensor

from rlvitals.records import Group
from rlvitals.train.agent_dialogue import Dialogue
from rlvitals.train.mailbox import transcript
from rlvitals.train.mailbox.episode import Episode, Observation
from rlvitals.train.sampling import evaluating, left_padded, read_step, take_token


class Sampling(NamedTuple):
    """How messages are drawn."""

    max_new_tokens: int
    """Of one message."""
    temperature: float
    max_context: int
    """Tokens of a whole conversation; who has no room for another message is cut off."""


@dataclass(slots=True)
class Said:
    """One message of the model and what followed."""

    start: int
    """Where it begins in the trajectory's tokens."""
    end: int
    """Behind its last token."""
    seconds: float
    message: str | dict[str, Any] = ""
    observations: list[Observation] = field(default_factory=list)
    after: int = 0
    """Tokens of the results, as far as they were read."""


@dataclass(slots=True)
class Trajectory:
    """One conversation as tokens."""

    episode: Episode
    ids: list[int]
    prompt: int
    """How many tokens it began with."""
    own: list[int]
    """1 on the tokens the model wrote."""
    logprobs: list[float]
    """Of these under the distribution sampled from; 0 elsewhere."""
    said: list[Said] = field(default_factory=list)
    was_cut: bool = False
    """Whether one of its messages reached the limit of tokens."""

    def read(self, ids: Sequence[int]) -> None:
        """Take in tokens that the model did not write."""
        self.ids += ids
        self.own += [0] * len(ids)
        self.logprobs += [0.0] * len(ids)

    def write(self, ids: Sequence[int], logprobs: Sequence[float], seconds: float) -> None:
        """Take in a message of the model."""
        self.said.append(Said(len(self.ids), len(self.ids) + len(ids), seconds))
        self.ids += ids
        self.own += [1] * len(ids)
        self.logprobs += logprobs


def converse(
    model: Any, dialogue: Dialogue, episodes: Sequence[Episode], how: Sampling, generator: torch.Generator | None = None
) -> list[Trajectory]:
    """Hold all these conversations to their end. `generator` lives on the model's device."""
    device = next(model.parameters()).device
    trajectories = []
    for episode in episodes:
        prompt = dialogue.begin(episode.messages())
        trajectories.append(Trajectory(episode, [], len(prompt), [], []))
        trajectories[-1].read(prompt)
    rows = [row for row in trajectories if _has_room(row, how)]
    news = [list(row.ids) for row in rows]
    batch = _Batch(model, dialogue, how, generator, device)
    with torch.no_grad(), evaluating(model):
        while rows:
            began = time.perf_counter()
            messages = batch.next_messages(news)
            seconds = (time.perf_counter() - began) / len(rows)
            news, going_on = [], []
            for place, (row, (ids, logprobs)) in enumerate(zip(rows, messages, strict=True)):
                row.write(ids, logprobs, seconds)
                new = _pass_on(row, dialogue, how)
                if new is not None:
                    news.append(new)
                    going_on.append(place)
            if len(going_on) < len(rows):
                batch.keep(going_on)
            rows = [rows[place] for place in going_on]
    return trajectories


class _Batch:
    """The cache of the conversations that are still going on."""

    def __init__(
        self, model: Any, dialogue: Dialogue, how: Sampling, generator: torch.Generator | None, device: Any
    ) -> None:
        self._model, self._dialogue, self._how, self._generator, self._device = model, dialogue, how, generator, device
        self._cache: Any = None
        self._mask: Tensor | None = None  # of everything that was read or written
        self._unread: Tensor | None = None  # the last column written: in the mask, and not in the cache

    def next_messages(self, news: list[list[int]]) -> list[tuple[list[int], list[float]]]:
        """Read what is new for each conversation and write its next message: tokens and their log-probs."""
        how, eos_id, pad_id = self._how, self._dialogue.eos_id, self._dialogue.pad_id
        inputs, new_mask = left_padded(news, pad_id, self._device)
        mask = new_mask if self._mask is None else torch.cat([self._mask, new_mask], dim=1)
        if self._unread is not None:
            inputs = torch.cat([self._unread, inputs], dim=1)
        running = torch.ones(len(news), dtype=torch.bool, device=self._device)
        tokens, logprobs, counted = [], [], []
        for _ in range(how.max_new_tokens):
            step = read_step(self._model, inputs, mask, self._cache)
            self._cache = step.past_key_values
            token, logprob = take_token(step.logits[:, -1], how.temperature, self._generator)
            token = torch.where(running, token, pad_id)
            tokens.append(token)
            logprobs.append(logprob)
            counted.append(running)
            mask = torch.cat([mask, running[:, None].to(mask.dtype)], dim=1)
            inputs = token[:, None]
            running = running & (token != eos_id)
            if not running.any():
                break
        self._mask, self._unread = mask, inputs
        lengths = torch.stack(counted, dim=1).sum(dim=1).tolist()
        found = zip(torch.stack(tokens, dim=1).tolist(), torch.stack(logprobs, dim=1).tolist(), lengths, strict=True)
        return [(ids[:length], numbers[:length]) for ids, numbers, length in found]

    def keep(self, places: list[int]) -> None:
        """Let the other conversations go."""
        if not places or self._mask is None or self._unread is None:
            return
        chosen = torch.tensor(places, device=self._device)
        self._cache.batch_select_indices(chosen)
        self._mask, self._unread = self._mask[chosen], self._unread[chosen]


def _pass_on(row: Trajectory, dialogue: Dialogue, how: Sampling) -> list[int] | None:
    """Give the last message to the episode; the tokens to be read next, or None where the conversation is over."""
    said = row.said[-1]
    ids = row.ids[said.start :]
    has_ended = ids[-1] == dialogue.eos_id
    row.was_cut |= not has_ended
    said.message = dialogue.message(ids)
    said.observations = row.episode.step(said.message, prompt_tokens=said.start, completion_tokens=len(ids))
    if row.episode.is_over:
        return None
    new = dialogue.go_on(said.observations, has_ended=has_ended)
    if len(row.ids) + len(new) + how.max_new_tokens > how.max_context:
        row.episode.cut_off(f"no room for another message within {how.max_context} tokens")
        return None
    row.read(new)
    said.after = len(new)
    return new


def _has_room(row: Trajectory, how: Sampling) -> bool:
    if row.prompt + how.max_new_tokens > how.max_context:
        row.episode.cut_off(f"the question alone leaves no room within {how.max_context} tokens")
    return not row.episode.is_over


def group_record(rows: Sequence[Trajectory], reward: str, *, seed: int, policy_version: int) -> Group:
    """Conversations about one question as a record, with their tokens and times; rewarded by the system named."""
    group = transcript.group([row.episode for row in rows], reward)
    rollouts = [
        replace(
            rollout,
            turns=tuple(
                replace(turn, tokens=said.end - said.start + said.after, seconds=said.seconds)
                for turn, said in zip(rollout.turns, row.said, strict=True)
            ),
            tokens=len(row.ids),
            trainable_tokens=sum(row.own),
            seconds=sum(said.seconds for said in row.said),
            seed=seed,
            policy_version=policy_version,
        )
        for rollout, row in zip(group.rollouts, rows, strict=True)
    ]
    return replace(group, rollouts=tuple(rollouts))
