"""Sampling from any causal language model of transformers, a batch at a time, with the log-probs of what was taken.

Prompts are padded on the left, so that every new token stands in the same column; the keys and values of what was read
are kept. The log-probs are those of the distribution that was sampled from: the temperature is in them.
"""

from __future__ import annotations

import inspect
from collections.abc import Iterator
from contextlib import contextmanager
from functools import cache
from typing import TYPE_CHECKING, Any, NamedTuple

import torch
from torch import Tensor

from rlvitals.compute import tokens
from rlvitals.compute.tokens import TokenStats

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
    with evaluating(model):
        rows, columns = len(prompt_ids), max_new_tokens
        taken = prompt_ids.new_full((rows, columns), pad_id)
        logprobs = torch.zeros((rows, columns), device=prompt_ids.device)
        counted = prompt_mask.new_zeros((rows, columns))
        running = torch.ones(rows, dtype=torch.bool, device=prompt_ids.device)
        mask = torch.cat([prompt_mask, prompt_mask.new_ones((rows, columns))], dim=1)
        inputs, seen, cache = prompt_ids, prompt_ids.shape[1], None
        for column in range(columns):
            step = read_step(model, inputs, mask[:, :seen], cache)
            token, logprob = take_token(step.logits[:, -1], temperature, generator)
            taken[:, column] = torch.where(running, token, taken[:, column])
            logprobs[:, column] = torch.where(running, logprob, logprobs[:, column])
            counted[:, column] = running.to(counted.dtype)
            running = running & (token != eos_id)
            if not running.any():
                break
            inputs, seen, cache = taken[:, column : column + 1], seen + 1, step.past_key_values
        width = column + 1
        return Sampled(taken[:, :width], counted[:, :width], logprobs[:, :width], ~running)


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
    known = _parameters(model)
    inputs: dict[str, Any] = {"input_ids": rows.ids, "attention_mask": rows.mask}
    if "position_ids" in known:
        inputs["position_ids"] = rows.positions
    if "use_cache" in known:
        inputs["use_cache"] = False
    if keep_logits is not None and "logits_to_keep" in known:
        inputs["logits_to_keep"] = keep_logits
    return inputs


def read_step(model: PreTrainedModel, ids: Tensor, mask: Tensor, cache: Any) -> Any:
    """One step: `ids` are what the cache has not seen, `mask` covers everything so far."""
    known = _parameters(model)
    inputs: dict[str, Any] = {"input_ids": ids, "attention_mask": mask, "past_key_values": cache, "use_cache": True}
    if "position_ids" in known:
        inputs["position_ids"] = positions_of(mask)[:, -ids.shape[1] :]
    if "logits_to_keep" in known:
        inputs["logits_to_keep"] = 1
    return model(**inputs)


def take_token(logits: Tensor, temperature: float, generator: torch.Generator | None) -> tuple[Tensor, Tensor]:
    """A token of each row and its log-prob."""
    logprobs = torch.log_softmax(logits.float() / (temperature or 1.0), dim=-1)
    if temperature:
        token = torch.multinomial(logprobs.exp(), 1, generator=generator)
    else:
        token = logprobs.argmax(dim=-1, keepdim=True)
    return token[:, 0], logprobs.gather(1, token)[:, 0]


def positions_of(mask: Tensor) -> Tensor:
    """Where each token stands in its own text; padding has no place and is put at 0."""
    return (mask.long().cumsum(dim=1) - 1).clamp(min=0)


def _parameters(model: Any) -> frozenset[str]:
    inner = getattr(model, "module", model)  # the model itself behind a wrapper that hands everything on
    if hasattr(inner, "get_base_model"):
        inner = inner.get_base_model()
    kind: type = type(inner)
    return _forward_parameters(kind)


@cache
def _forward_parameters(kind: type) -> frozenset[str]:
    return frozenset(inspect.signature(kind.forward).parameters)  # type: ignore[attr-defined]


@contextmanager
def evaluating(model: PreTrainedModel) -> Iterator[None]:
    """Without dropout, and with the cache that gradient checkpointing switches off; as it was afterwards."""
    was_training = model.training
    model.train(False)
    try:
        yield
    finally:
        model.train(was_training)
