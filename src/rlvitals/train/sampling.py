"""Sampling from any causal language model of transformers, a batch at a time, with the log-probs of what was taken.

Prompts are padded on the left, so that every new token stands in the same column; the keys and values of what was read
are kept. The log-probs are those of the distribution that was sampled from: the temperature is in them.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, NamedTuple

import torch
from torch import Tensor

from rlvitals.compute import tokens
from rlvitals.compute.tokens import TokenStats
from rlvitals.train.decoding import Reading, parameters_of, positions_of, reading

if TYPE_CHECKING:
    from transformers import PreTrainedModel


class Sampled(NamedTuple):
    """The answers to a batch of prompts, all [prompts, new tokens] but the last."""

    tokens: Tensor
    """What was taken; padding after the end."""
    mask: Tensor
    """1 up to the end-of-sequence token and on it."""
    logprobs: Tensor
    """Of the taken tokens under the distribution sampled from; 0 after the end."""
    finished: Tensor
    """[prompts]: whether it ended by itself, and not at the limit."""


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
    model: PreTrainedModel,
    prompt_ids: Tensor,
    prompt_mask: Tensor,
    *,
    max_new_tokens: int,
    temperature: float = 1.0,
    eos_id: int,
    pad_id: int,
    generator: torch.Generator | None = None,
) -> Sampled:
    """Answer left-padded prompts. Temperature 0 takes the likeliest token, with its log-prob at temperature 1.

    `generator` lives on the model's device. It stops where every answer has ended: of a model whose weights are spread
    over ranks each needs the whole, see `sharded.whole`.
    """
    columns = prompt_ids.shape[1] + max_new_tokens
    with evaluating(model), reading(model, len(prompt_ids), columns) as read:
        return write_on(
            read, prompt_ids, prompt_mask, max_new_tokens=max_new_tokens, temperature=temperature, eos_id=eos_id,
            pad_id=pad_id, generator=generator, is_first=True,
        )  # fmt: skip


def write_on(
    read: Reading,
    ids: Tensor,
    mask: Tensor,
    *,
    max_new_tokens: int,
    temperature: float,
    eos_id: int,
    pad_id: int,
    generator: torch.Generator | None,
    is_first: bool,
) -> Sampled:
    """Read what is new, and write until every row has ended. `mask` covers everything so far. `is_first`: nothing was
    read before, so that equal rows are read once. What is written last has not been read yet.
    """
    rows, before = mask.shape
    taken = ids.new_full((rows, max_new_tokens), pad_id)
    logprobs = torch.zeros((rows, max_new_tokens), device=ids.device)
    mask = torch.cat([mask, mask.new_zeros((rows, max_new_tokens))], dim=1)
    running = torch.ones(rows, dtype=torch.bool, device=ids.device)
    for column in range(max_new_tokens):
        seen = mask[:, : before + column]
        logits = _read_equal_rows_once(read, ids, seen) if is_first and not column else read.read(ids, seen)
        token, logprob = take_token(logits, temperature, generator)
        taken[:, column] = torch.where(running, token, pad_id)
        logprobs[:, column] = torch.where(running, logprob, 0.0)
        mask[:, before + column] = running
        running = running & (token != eos_id)
        if not running.any():
            break
        ids = taken[:, column : column + 1]
    width = column + 1
    return Sampled(taken[:, :width], mask[:, before : before + width], logprobs[:, :width], ~running)


def _read_equal_rows_once(read: Reading, ids: Tensor, mask: Tensor) -> Tensor:
    """The rows of a group begin with the same question."""
    both = torch.cat([ids, mask.to(ids.dtype)], dim=1)
    different, rows = torch.unique(both, dim=0, return_inverse=True)
    if len(different) == len(both):
        return read.read(ids, mask)
    width = ids.shape[1]
    logits = read.read(different[:, :width], different[:, width:].to(mask.dtype))
    read.select(rows)
    return logits[rows]


class Answered(NamedTuple):
    """Prompts and their answers in one row each, for a forward pass."""

    ids: Tensor
    mask: Tensor
    positions: Tensor
    width: int
    """How many of the last columns are the answer."""

    def take(self, rows: slice) -> Answered:
        """Some of the rows."""
        return Answered(self.ids[rows], self.mask[rows], self.positions[rows], self.width)


def answered(prompt_ids: Tensor, prompt_mask: Tensor, answer_ids: Tensor, answer_mask: Tensor) -> Answered:
    """Left-padded prompts with their right-padded answers behind them."""
    mask = torch.cat([prompt_mask, answer_mask.to(prompt_mask.dtype)], dim=1)
    return Answered(torch.cat([prompt_ids, answer_ids], dim=1), mask, positions_of(mask), answer_ids.shape[1])


def answer_stats(model: Any, rows: Answered, *, temperature: float = 1.0) -> TokenStats:
    """Log-probs and entropies of the answers' tokens under a model, [rows, answer tokens], with gradients where they
    are on.
    """
    logits = model(**model_inputs(model, rows, keep_logits=rows.width + 1)).logits
    return of_answers(logits, rows, temperature=temperature)


def of_answers(logits: Tensor, rows: Answered, *, temperature: float = 1.0) -> TokenStats:
    """The same from logits of the whole rows, or of their last columns."""
    before = logits[:, -(rows.width + 1) : -1]  # a token's logits stand one column before it
    return tokens.stats(before, rows.ids[:, -rows.width :], mask=rows.mask[:, -rows.width :], temperature=temperature)


def model_inputs(model: Any, rows: Answered, *, keep_logits: int | None = None) -> dict[str, Any]:
    """The arguments of a forward pass, as far as this model takes them."""
    known = parameters_of(model)
    inputs: dict[str, Any] = {"input_ids": rows.ids, "attention_mask": rows.mask}
    if "position_ids" in known:
        inputs["position_ids"] = rows.positions
    if "use_cache" in known:
        inputs["use_cache"] = False
    if keep_logits is not None and "logits_to_keep" in known:
        inputs["logits_to_keep"] = keep_logits
    return inputs


def take_token(logits: Tensor, temperature: float, generator: torch.Generator | None) -> tuple[Tensor, Tensor]:
    """A token of each row and its log-prob."""
    logprobs = torch.log_softmax(logits.float() / (temperature or 1.0), dim=-1)
    if temperature:
        token = torch.multinomial(logprobs.exp(), 1, generator=generator)
    else:
        token = logprobs.argmax(dim=-1, keepdim=True)
    return token[:, 0], logprobs.gather(1, token)[:, 0]


@contextmanager
def evaluating(model: PreTrainedModel) -> Iterator[None]:
    """Without dropout, and with the cache that gradient checkpointing switches off; as it was afterwards."""
    was_training = model.training
    model.train(False)
    try:
        yield
    finally:
        model.train(was_training)
