"""Computes from logits what training and its metrics need for each token: log-prob, entropy, logsumexp, top-1 and exact
KL.

On CUDA one kernel reads every logit once and stores nothing of the vocabulary's size. Masked rows are not read. On
other devices plain torch operations compute the same numbers, a few rows at a time. Log-probs and entropies have
gradients if the logits do. The backward pass recomputes the softmax, so it is never stored.

    token = tokens.stats(logits, ids, mask=mask, temperature=0.7)      # logits [B, T, V], ids [B, T]
    token.logprobs, token.entropy                                      # [B, T], float32
    tokens.from_hidden(hidden, lm_head.weight, ids)                    # the logits are never kept

Numbers of masked rows are 0. A row with a NaN, with +inf or without any finite logit is NaN (see `TokenStats.broken`).
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from rlvitals.compute.step import has_triton
from rlvitals.compute.tokens_plain import Rows, TokenOptions

if TYPE_CHECKING:
    from torch import Tensor


class TokenStats(Rows):
    """The numbers of each token, in the shape of the ids."""

    __slots__ = ()

    def broken(self) -> Tensor:
        """True where the logits define no distribution: [B, T] booleans, still on the device."""
        return self.logsumexp.isnan()


def stats(
    logits: Tensor,
    ids: Tensor,
    *,
    mask: Tensor | None = None,
    temperature: float = 1.0,
    top1: bool = False,
    other_logits: Tensor | None = None,
    overwrite_logits: bool = False,
    use_kernels: bool = True,
) -> TokenStats:
    """The numbers of the chosen tokens `ids` [...] under `logits` [..., V], of any float type.

    `other_logits` adds the exact KL to a second distribution. With `overwrite_logits=True` the backward pass writes the
    gradient into the memory of the logits. This saves a tensor of their size, but the logits cannot be used afterwards.
    """
    from rlvitals.compute.tokens_autograd import from_logits

    _check(logits, ids, mask, other_logits, temperature)
    options = TokenOptions(temperature, top1, overwrite_logits, _has_kernels(logits, use_kernels))
    flat_ids, flat_mask = ids.reshape(-1), None if mask is None else mask.reshape(-1)
    flat = logits.reshape(-1, logits.shape[-1])
    other = None if other_logits is None else other_logits.detach().reshape(flat.shape)
    return _shaped(from_logits(flat, flat_ids, flat_mask, other, options), ids)


def from_hidden(
    hidden: Tensor,
    weight: Tensor,
    ids: Tensor,
    *,
    bias: Tensor | None = None,
    mask: Tensor | None = None,
    temperature: float = 1.0,
    top1: bool = False,
    chunk: int = 2048,
    use_kernels: bool = True,
) -> TokenStats:
    """The same from hidden states [..., H] and the head's weight [V, H], `chunk` tokens at a time.

    At most `chunk` rows of logits exist at a time. The backward pass recomputes them.
    """
    from rlvitals.compute.tokens_autograd import from_head

    if hidden.shape[-1] != weight.shape[-1]:
        raise ValueError(f"hidden states end in {hidden.shape[-1]}, the head's weight in {weight.shape[-1]}")
    if hidden.shape[:-1] != ids.shape or (mask is not None and mask.shape != ids.shape):
        raise ValueError(f"ids and mask must be of shape {list(hidden.shape[:-1])}, like the hidden states")
    if chunk < 1:
        raise ValueError(f"a chunk has at least one row, not {chunk}")
    options = TokenOptions(temperature, top1, True, _has_kernels(hidden, use_kernels))
    flat_mask = None if mask is None else mask.reshape(-1)
    flat = hidden.reshape(-1, hidden.shape[-1])
    return _shaped(from_head(flat, weight, bias, ids.reshape(-1), flat_mask, chunk, options), ids)


def _check(logits: Tensor, ids: Tensor, mask: Tensor | None, other: Tensor | None, temperature: float) -> None:
    if logits.shape[:-1] != ids.shape:
        raise ValueError(f"ids must be of shape {list(logits.shape[:-1])} like the logits, not {list(ids.shape)}")
    if mask is not None and mask.shape != ids.shape:
        raise ValueError(f"the mask must be of shape {list(ids.shape)} like the ids, not {list(mask.shape)}")
    if other is not None and other.shape != logits.shape:
        raise ValueError(f"the other logits must be of shape {list(logits.shape)}, not {list(other.shape)}")
    if not temperature > 0:
        raise ValueError(f"the temperature must be above 0, not {temperature}")


def _shaped(rows: Rows, ids: Tensor) -> TokenStats:
    return TokenStats(*(None if row is None else row.view(ids.shape) for row in rows))  # type: ignore[arg-type]


def _has_kernels(tensor: Tensor, wanted: bool) -> bool:
    return wanted and tensor.device.type == "cuda" and tensor.numel() > 0 and has_triton()
