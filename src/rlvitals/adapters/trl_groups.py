"""Builds groups of rollouts from one batch of TRL's trainers.

Everything here runs on a separate thread, while training continues. This is where tensors are copied from their device
and texts are decoded. Uses only the methods of tensors and imports neither torch nor TRL.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from rlvitals import values
from rlvitals.adapters.framework import listed
from rlvitals.records import Group, Rollout, Stream, TokenTrace, Turn
from rlvitals.store.messages import are_messages, conversation, text_of
from rlvitals.store.rollout_forms import prompt_text

DIGITS = 7
"""Significant digits of a 32-bit number. Further digits only come from the conversion."""

DECIMALS = 6
"""Decimals of a token's log-probability; finer than the resolution of 32 bits."""

ANSWERS = ("answer", "solution", "ground_truth", "target")
"""Columns of a data set that may hold the reference answer. The first one with a value is used."""

Decode = Callable[[int], str]


@dataclass(slots=True)
class ScoredBatch:
    """Completions that were scored together. Holds references; creating it copies nothing.

    Rows are numbered as in `completions`. Tensors have one row for each of `own`; completions that other processes
    sampled have only texts, rewards and advantages.
    """

    step: int
    """The step whose row they belong to."""
    version: int
    """The step of the weights that generated them."""
    stream: Stream
    groups: Sequence[Sequence[int]]
    """The rows of each prompt."""
    prompts: Sequence[Any]
    completions: Sequence[Any]
    reward_names: Sequence[str]
    weights: Any
    rewards: Any
    """One row per completion, one column per reward function; NaN or None where a function returned no score."""
    totals: Any = None
    """The trainer's own total rewards, if they differ from the weighted sum."""
    advantages: Any = None
    own: range = range(0)
    ids: Sequence[Sequence[int]] = ()
    """The tokens of each of `own`."""
    lengths: Any = None
    """How many of these tokens are not padding; None means all."""
    ends: frozenset[int] = frozenset()
    """The tokens that end a completion. One without such a token reached the length limit."""
    prompt_mask: Any = None
    masks: Sequence[Any] = ()
    """A token is trained on if all masks are 1."""
    columns: Mapping[str, Any] = field(default_factory=dict)
    """Fields of a `TokenTrace`, with one row of tokens for each of `own`."""
    traced: dict[int, dict[str, Any]] = field(default_factory=dict)
    """The rows whose tokens are recorded, with the fields that became known after the batch."""
    tool_mask: Any = None
    """1 for the model's own tokens, 0 for tool output."""
    facts: Sequence[Mapping[str, Any]] = ()
    """The data set's columns for each of `own`."""
    extra: Mapping[str, Sequence[Any]] = field(default_factory=dict)
    """Columns that reward functions logged."""
    max_turns: int | None = None
    are_pairs: bool = False
    """Whether the groups are pairs, of which the better one is chosen."""


def groups_of(batch: ScoredBatch, decode: Decode | None) -> list[Group]:
    """The groups of a batch, with the tokens of the rollouts in `traced`."""
    return _Reading(batch, decode).groups()


class _Reading:
    """A batch with its numbers copied to lists."""

    def __init__(self, batch: ScoredBatch, decode: Decode | None) -> None:
        self._batch, self._decode = batch, decode
        self._weights = listed(batch.weights) or [1.0] * len(batch.reward_names)
        self._rewards = listed(batch.rewards)
        self._totals = listed(batch.totals)
        self._advantages = listed(batch.advantages)
        self._lengths = listed(batch.lengths)
        prompt_mask, trained = batch.prompt_mask, _product(batch.masks)
        self._prompt_lengths = [] if prompt_mask is None else prompt_mask.sum(1).tolist()
        self._trained = [] if trained is None else trained.sum(1).tolist()
        self._trained_tokens = trained

    def groups(self) -> list[Group]:
        batch = self._batch
        made = []
        for rows in batch.groups:
            rollouts = [self._rollout(row) for row in rows]
            if batch.are_pairs:
                rollouts = _chosen_and_rejected(rollouts)
            rewards = values.mean(rollout.reward for rollout in rollouts if rollout.reward is not None)
            facts = self._facts(rows[0])
            answer = next((facts[name] for name in ANSWERS if facts.get(name) is not None), None)
            weights = dict(zip(_distinct(batch.reward_names), map(_short, self._weights), strict=False))
            made.append(
                Group(
                    prompt_text(batch.prompts[rows[0]]),
                    tuple(rollouts),
                    answer="" if answer is None else text_of(answer),
                    max_turns=batch.max_turns,
                    mean=rewards.number,
                    std=rewards.showing("std").number,
                    kept=True if batch.stream == "train" else None,
                    meta={"reward_weights": weights} if set(weights.values()) - {1.0} else {},
                )
            )
        return made

    def _rollout(self, row: int) -> Rollout:
        batch, place = self._batch, row - self._batch.own.start
        is_own = row in batch.own
        scores = dict(zip(_distinct(batch.reward_names), self._rewards[row], strict=False))
        parts = {name: _short(score) for name, score in scores.items() if _is_scored(score)}
        ids = batch.ids[place][: self._length(place)] if is_own else ()
        prompt = self._prompt_lengths[place] if is_own and self._prompt_lengths else None
        advantage = self._advantages[row] if self._advantages else None
        return Rollout(
            turns=turns_of(batch.completions[row]),
            reward=self._total(row),
            reward_parts=parts,
            advantage=_short(advantage) if isinstance(advantage, float) else None,
            stop=("stop" if ids[-1] in batch.ends else "length") if ids and batch.ends else "",
            tokens=prompt + len(ids) if prompt is not None else None,
            trainable_tokens=int(self._trained[place]) if is_own and self._trained else None,
            policy_version=batch.version,
            trace=self._trace(row, ids) if row in batch.traced else None,
            meta={name: values[row] for name, values in batch.extra.items() if values[row] is not None},
        )

    def _length(self, place: int) -> int | None:
        return int(self._lengths[place]) if self._lengths else None

    def _total(self, row: int) -> float | None:
        """The trainer's total, or the weighted sum of the scores; None if no function returned a score."""
        if self._totals:
            return _short(self._totals[row])
        weighed = [
            weight * score for weight, score in zip(self._weights, self._rewards[row], strict=True) if _is_scored(score)
        ]
        return _short(math.fsum(weighed)) if weighed else None

    def _facts(self, row: int) -> Mapping[str, Any]:
        batch = self._batch
        return batch.facts[row - batch.own.start] if batch.facts and row in batch.own else {}

    def _trace(self, row: int, ids: Sequence[int]) -> TokenTrace:
        batch, place, size = self._batch, row - self._batch.own.start, len(ids)
        given = {name: values[place] for name, values in batch.columns.items()} | batch.traced[row]
        # If the trainer did not compute them before the update, the first pass of the update provides them.
        given.setdefault("logprobs", given.get("new_logprobs"))
        columns: dict[str, Any] = {name: _rounded(values, size) for name, values in given.items() if values is not None}
        advantage = self._advantages[row] if self._advantages else None
        if isinstance(advantage, float):
            columns["advantages"] = (_short(advantage),) * size
        elif advantage:
            columns["advantages"] = tuple(map(_short, advantage[:size]))
        if self._trained_tokens is not None:
            columns["trained"] = tuple(map(bool, self._trained_tokens[place][:size].tolist()))
        if batch.tool_mask is not None:
            columns["turns"] = _turn_numbers(batch.tool_mask[place][:size].tolist())
        texts = tuple(map(self._decode, ids)) if self._decode is not None else ()
        return TokenTrace(ids=tuple(ids), texts=texts, **columns)


def turns_of(completion: Any) -> tuple[Turn, ...]:
    """A completion (a text or messages) as turns.

    >>> [turn.text for turn in turns_of("4")], turns_of([{"role": "assistant", "content": "4"}])[0].text
    (['4'], '4')
    """
    return tuple(conversation(completion)[1]) if are_messages(completion) else (Turn(text=text_of(completion)),)


def _turn_numbers(mask: Sequence[int]) -> tuple[int, ...]:
    """The turn of each token. A turn begins where the model's own tokens follow tool output.

    >>> _turn_numbers([1, 1, 0, 0, 1, 0, 1])
    (0, 0, 0, 0, 1, 1, 2)
    """
    numbers, turn, before = [], 0, 1
    for own in mask:
        turn += own > before
        numbers.append(turn)
        before = own
    return tuple(numbers)


def _chosen_and_rejected(pair: list[Rollout]) -> list[Rollout]:
    """Mark the first as chosen if its reward is at least as high, as TRL does."""
    if len(pair) != 2 or pair[0].reward is None or pair[1].reward is None:
        return pair
    first, second = ("chosen", "rejected") if pair[0].reward >= pair[1].reward else ("rejected", "chosen")
    return [replace(pair[0], outcome=first), replace(pair[1], outcome=second)]


def _product(masks: Sequence[Any]) -> Any:
    whole = None
    for mask in masks:
        whole = mask if whole is None else whole * mask
    return whole


def _distinct(names: Sequence[str]) -> list[str]:
    """Number the reward functions that have the same name.

    >>> _distinct(["format", "exact", "format"])
    ['format', 'exact', 'format 2']
    """
    seen: Counter[str] = Counter()
    distinct = []
    for name in names:
        seen[name] += 1
        distinct.append(name if seen[name] == 1 else f"{name} {seen[name]}")
    return distinct


def _is_scored(score: Any) -> bool:
    return score is not None and not math.isnan(score)


def _short(number: float) -> float:
    """The number without the digits that 32 bits do not hold.

    >>> _short(0.30000001192092896)
    0.3
    """
    return float(f"{number:.{DIGITS}g}")


def _rounded(values: Any, size: int) -> tuple[float, ...]:
    return tuple(values[:size].double().round(decimals=DECIMALS).tolist())
