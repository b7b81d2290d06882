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
from rlvitals.train.grpo.update import Played

MOST_TOKENS = 200_000
"""Limit for one step on one rank: about 15 MB on disk."""


def chosen(played: Played, count: int, seed: int, *, is_training: bool) -> list[tuple[int, int]]:
    """Group and number of the rollouts whose tokens are recorded. They are drawn at random, so that they represent the
    step: from the trained rollouts, or from all rollouts if nothing is trained.
    """
    every = [
        (at, number) for at, rows in enumerate(played.trajectories) for number, row in enumerate(rows) if row.turns
    ]
    places = played.kept_places() if is_training else every
    found, tokens = [], 0
    for drawn in torch.randperm(len(places), generator=torch.Generator().manual_seed(seed)).tolist()[:count]:
        at, number = places[drawn]
        row = played.trajectories[at][number]
        tokens += len(row.ids) - row.prompt
        if tokens <= MOST_TOKENS:
            found.append((at, number))
    return sorted(found)


def with_traces(
    played: Played, places: Sequence[tuple[int, int]], tokenizer: Any, *, seen: Mapping[str, Tensor], trained: int = 0
) -> list[Group]:
    """The groups of a step, with token traces for the rollouts at `places`. `seen` holds what the update computed for
    the trained rollouts, in their order, by the fields of a trace. `trained` is their number on all ranks.
    """
    lines = {place: line for line, place in enumerate(played.kept_places())}
    rollouts = [list(group.rollouts) for group in played.groups]
    for at, number in places:
        row = played.trajectories[at][number]
        ids, rest = row.ids[row.prompt :], slice(row.prompt, None)
        line = lines.get((at, number))
        of_update = {} if line is None else {name: tuple(seen[name][line, : len(ids)].tolist()) for name in seen}
        trace = TokenTrace(
            ids=tuple(ids),
            texts=tuple(token_texts(tokenizer, ids)),
            turns=tuple(turn for turn, length in enumerate(row.turn_lengths()) for _ in range(length)),
            trained=tuple(map(bool, row.own[rest])),
            engine_logprobs=tuple(row.logprobs[rest]),
            **of_update,
        )
        rollouts[at][number] = replace(rollouts[at][number], trace=trace)
    extra = {TRAINED_ROLLOUTS: trained} if trained else {}
    return [
        replace(group, rollouts=tuple(of_one), meta={**group.meta, **extra})
        for group, of_one in zip(played.groups, rollouts, strict=True)
    ]


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
