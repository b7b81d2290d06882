"""Token traces for the record: which rollouts of a step keep their tokens, and what the sampler and the update computed
for each token.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import partial
from typing import Any

import torch
from torch import Tensor

from rlvitals.records import TRAINED_ROLLOUTS, Group, TokenTrace
from rlvitals.train.grpo.conversation import Trajectory
from rlvitals.train.grpo.update import Played

MOST_TOKENS = 200_000
"""Limit for one step on one rank: about 15 MB on disk."""


def chosen(rows: Sequence[Trajectory], count: int, seed: int) -> list[Trajectory]:
    """The conversations whose tokens are recorded, drawn at random so that they represent the step."""
    found, tokens = [], 0
    for place in torch.randperm(len(rows), generator=torch.Generator().manual_seed(seed)).tolist()[:count]:
        tokens += len(rows[place].ids) - rows[place].prompt
        if tokens <= MOST_TOKENS:
            found.append(rows[place])
    return found


def with_traces(
    played: Played, rows: Sequence[Trajectory], tokenizer: Any, *, seen: Mapping[str, Tensor], trained: int = 0
) -> list[Group]:
    """The groups of a step, with token traces for these conversations. `seen` holds what the update computed for the
    trained rollouts, in their order, by the fields of a trace. `trained` is their number on all ranks.
    """
    lines = {row: line for line, (_, row) in enumerate(played.kept())}
    traces = {row: _trace(row, tokenizer, seen, lines.get(row)) for row in rows}
    extra = {TRAINED_ROLLOUTS: trained} if trained else {}
    groups = []
    for group, of_one in zip(played.groups, played.trajectories, strict=True):
        found = zip(group.rollouts, of_one, strict=True)
        rollouts = tuple(replace(rollout, trace=traces.get(row)) for rollout, row in found)
        groups.append(replace(group, rollouts=rollouts, meta={**group.meta, **extra}))
    return groups


def _trace(row: Trajectory, tokenizer: Any, seen: Mapping[str, Tensor], line: int | None) -> TokenTrace:
    ids, rest = row.ids[row.prompt :], slice(row.prompt, None)
    of_update = {} if line is None else {name: tuple(seen[name][line, : len(ids)].tolist()) for name in seen}
    return TokenTrace(
        ids=tuple(ids),
        texts=tuple(token_texts(tokenizer, ids)),
        turns=tuple(turn for turn, length in enumerate(row.turn_lengths()) for _ in range(length)),
        trained=tuple(map(bool, row.own[rest])),
        engine_logprobs=tuple(row.logprobs[rest]),
        **of_update,
    )


def token_texts(tokenizer: Any, ids: Sequence[int]) -> list[str]:
    """The text of each token. A character that consists of several tokens is assigned to the last of them, so that the
    joined texts are the whole text.
    """
    decode = partial(tokenizer.decode, skip_special_tokens=False, clean_up_tokenization_spaces=False)
    texts: list[str] = []
    start = read = 0
    for place in range(len(ids)):
        before, whole = decode(ids[start:read]), decode(ids[start : place + 1])
        is_last = place == len(ids) - 1
        if len(whole) > len(before) and (is_last or not whole.endswith("\ufffd")):
            texts.append(whole[len(before) :])
            start, read = read, place + 1
        else:
            texts.append("")
    return texts
