"""Batched sampling from any causal language model of transformers, with the log-probs of the sampled tokens.

Prompts are padded on the left, so that new tokens of all rows are in the same column; keys and values are cached. The
log-probs are those of the distribution that was sampled from, including the temperature.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, fields, replace
from typing import TYPE_CHECKING, Any, NamedTuple, Self

import torch
from torch import Tensor

from rlvitals.compute import tokens
from rlvitals.compute.tokens import TokenStats
from rlvitals.train.decoding import Fixed, Growing, accepted, positions_of, reading

if TYPE_CHECKING:
    from transformers import PreTrainedModel


class Sampling(NamedTuple):
    """How texts are sampled."""

    max_new_tokens: int
    """Limit for one answer, or for one message of a conversation."""
    eos_id: int
    pad_id: int
    temperature: float = 1.0
    """0 takes the most likely token, with its log-prob at temperature 1."""


class Sampled(NamedTuple):
    """The answers to a batch of prompts, all [prompts, new tokens] but the last."""

    tokens: Tensor
    """The sampled tokens; padding after the end."""
    mask: Tensor
    """1 up to and including the end-of-sequence token."""
    logprobs: Tensor
    """Log-probs of the tokens under the distribution sampled from; 0 after the end."""
    finished: Tensor
    """[prompts]: whether the answer ended before the length limit."""


def left_padded(prompts: list[list[int]], pad_id: int, device: torch.device | str = "cpu") -> tuple[Tensor, Tensor]:
    """Token lists as ids and mask, [prompts, longest], padded on the left.

    >>> ids, mask = left_padded([[5], [6, 7]], pad_id=0)
    >>> ids.tolist(), mask.tolist()
    ([[0, 5], [6, 7]], [[0, 1], [1, 1]])
    """
    longest = max(len(prompt) for prompt in prompts)
    ids = [[pad_id] * (longest - len(prompt)) + list(prompt) for prompt in prompts]
    mask = [[0] * (longest - len(prompt)) + [1] * len(prompt) for prompt in prompts]
    return torch.tensor(ids, device=device), torch.tensor(mask, device=device)


@torch.no_grad()
def sample(
    model: PreTrainedModel, ids: Tensor, mask: Tensor, how: Sampling, generator: torch.Generator | None = None
) -> Sampled:
    """Answer left-padded prompts.

    `generator` is on the model's device. Sampling stops when every answer has ended, so ranks make different numbers of
    passes: a sharded model must be gathered first, see `sharded.whole`.
    """
    with evaluating(model), reading(model, len(ids), ids.shape[1] + how.max_new_tokens) as cache:
        return BatchSampler(cache, how, generator).write(ids, mask)


class BatchSampler:
    """Continues a batch of texts: an answer to each prompt, or the next message of each conversation. The cache keeps
    what was read before.
    """

    def __init__(self, cache: Growing | Fixed, how: Sampling, generator: torch.Generator | None = None) -> None:
        self._cache, self._how, self._generator = cache, how, generator
        self._mask: Tensor | None = None  # covers everything that was read or sampled
        self._unread: Tensor | None = None  # the last sampled column: in the mask, but not read yet

    def write(self, ids: Tensor, mask: Tensor) -> Sampled:
        """Read new left-padded tokens of each text, then sample until every row has ended."""
        max_new_tokens, eos_id, pad_id, temperature = self._how
        is_first = self._mask is None
        if self._mask is not None and self._unread is not None:
            ids, mask = torch.cat([self._unread, ids], dim=1), torch.cat([self._mask, mask], dim=1)
        rows, before = mask.shape
        taken = ids.new_full((rows, max_new_tokens), pad_id)
        logprobs = torch.zeros((rows, max_new_tokens), device=ids.device)
        mask = torch.cat([mask, mask.new_zeros((rows, max_new_tokens))], dim=1)
        running = torch.ones(rows, dtype=torch.bool, device=ids.device)
        for column in range(max_new_tokens):
            seen = mask[:, : before + column]
            read = self._read_equal_rows_once if is_first and not column else self._cache.read
            token, logprob = take_token(read(ids, seen), temperature, self._generator)
            taken[:, column] = torch.where(running, token, pad_id)
            logprobs[:, column] = torch.where(running, logprob, 0.0)
            mask[:, before + column] = running
            running = running & (token != eos_id)
            ids = taken[:, column : column + 1]
            if not running.any():
                break
        self._mask, self._unread = mask[:, : before + column + 1], ids
        return Sampled(taken[:, : column + 1], self._mask[:, before:], logprobs[:, : column + 1], ~running)

    def keep(self, rows: Tensor) -> None:
        """Continue only with these rows, in this order."""
        assert self._mask is not None
        assert self._unread is not None
        self._cache.select(rows)
        self._mask, self._unread = self._mask[rows], self._unread[rows]

    def _read_equal_rows_once(self, ids: Tensor, mask: Tensor) -> Tensor:
        """The rows of a group start with the same question."""
        both = torch.cat([ids, mask.to(ids.dtype)], dim=1)
        different, rows = torch.unique(both, dim=0, return_inverse=True)
        if len(different) == len(both):
            return self._cache.read(ids, mask)
        width = ids.shape[1]
        logits = self._cache.read(different[:, :width], different[:, width:].to(mask.dtype))
        self._cache.select(rows)
        return logits[rows]


class Answered(NamedTuple):
    """Prompts with their answers, one row each, for a forward pass."""

    ids: Tensor
    mask: Tensor
    positions: Tensor
    width: int
    """How many of the last columns are the answer."""

    def take(self, rows: slice | Tensor) -> Answered:
        """Some of the rows."""
        return Answered(self.ids[rows], self.mask[rows], self.positions[rows], self.width)

    def trimmed(self, prompt: int, answer: int) -> Answered:
        """Only the last columns of the prompts and the first columns of the answers."""
        begin = self.ids.shape[1] - self.width
        kept = slice(begin - prompt, begin + answer)
        return Answered(self.ids[:, kept], self.mask[:, kept], self.positions[:, kept], answer)


@dataclass(frozen=True, slots=True)
class AnsweredBatch:
    """Prompts with their answers, and what is known of the answers. The fields of a trainer's batch are tensors of
    [rows, answer tokens] unless stated otherwise.
    """

    rows: Answered

    def take(self, places: Tensor) -> Self:
        """Some of the rows."""
        return self._with(self.rows.take(places), lambda each: each[places])

    def trimmed(self, prompt: int, answer: int) -> Self:
        """The same with fewer columns; see `Answered.trimmed`."""
        return self._with(self.rows.trimmed(prompt, answer), lambda each: each if each.dim() == 1 else each[:, :answer])

    def without_padding(self) -> Self:
        """The same without columns that no row needs."""
        raise NotImplementedError

    def parts(self, size: int) -> list[Self]:
        """The batch in parts of at most this many rows, each without its padding."""
        places = torch.arange(len(self.rows.ids), device=self.rows.ids.device)
        return [self.take(part).without_padding() for part in torch.split(places, size)]

    def _with(self, rows: Answered, part_of: Callable[[Tensor], Tensor]) -> Self:
        parts = {field.name: getattr(self, field.name) for field in fields(self)[1:]}
        return replace(self, rows=rows, **{name: part_of(each) for name, each in parts.items() if each is not None})


def answered(prompt_ids: Tensor, prompt_mask: Tensor, answer_ids: Tensor, answer_mask: Tensor) -> Answered:
    """Join left-padded prompts with their right-padded answers."""
    mask = torch.cat([prompt_mask, answer_mask.to(prompt_mask.dtype)], dim=1)
    return Answered(torch.cat([prompt_ids, answer_ids], dim=1), mask, positions_of(mask), answer_ids.shape[1])


def answers_to(
    model: Any, prompts: list[list[int]], how: Sampling, generator: torch.Generator | None = None
) -> tuple[Answered, Sampled]:
    """Sample an answer to each prompt, as `sample` does."""
    ids, mask = left_padded(prompts, how.pad_id, next(model.parameters()).device)
    sampled = sample(model, ids, mask, how, generator)
    return answered(ids, mask, sampled.tokens, sampled.mask), sampled


def answer_stats(model: Any, rows: Answered, *, temperature: float = 1.0) -> TokenStats:
    """Log-probs and entropies of the answers' tokens under a model, [rows, answer tokens]; gradients if enabled."""
    logits = model(**model_inputs(model, rows, keep_logits=rows.width + 1)).logits
    return of_answers(logits, rows, temperature=temperature)


def of_answers(logits: Tensor, rows: Answered, *, temperature: float = 1.0) -> TokenStats:
    """The same from logits of the whole rows, or of their last columns."""
    before = logits[:, -(rows.width + 1) : -1]  # a token's logits are one column before it
    return tokens.stats(before, rows.ids[:, -rows.width :], mask=rows.mask[:, -rows.width :], temperature=temperature)


def model_inputs(model: Any, rows: Answered, *, keep_logits: int | None = None) -> dict[str, Any]:
    """The arguments of a forward pass that this model accepts."""
    optional = accepted(model, position_ids=rows.positions, use_cache=False, logits_to_keep=keep_logits)
    return {"input_ids": rows.ids, "attention_mask": rows.mask, **optional}


def take_token(logits: Tensor, temperature: float, generator: torch.Generator | None) -> tuple[Tensor, Tensor]:
    """Sample a token for each row; returns the tokens and their log-probs."""
    logprobs = torch.log_softmax(logits.float() / (temperature or 1.0), dim=-1)
    if temperature:
        token = torch.multinomial(logprobs.exp(), 1, generator=generator)
    else:
        token = logprobs.argmax(dim=-1, keepdim=True)
    return token[:, 0], logprobs.gather(1, token)[:, 0]


@contextmanager
def evaluating(model: PreTrainedModel) -> Iterator[None]:
    """Switch to evaluation mode and back: no dropout, and no gradient checkpointing, which disables the cache."""
    was_training = model.training
    model.train(False)
    try:
        yield
    finally:
        model.train(was_training)
