# ruff: noqa: PLR0917 - autograd functions take what they differentiate by position
"""Token statistics with gradients: for logits, and for hidden states and the head's weight.

Neither stores a softmax: the backward pass recomputes it from the logits. For hidden states it also recomputes the
logits, chunk by chunk.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from rlvitals.compute import tokens_plain
from rlvitals.compute.tokens_plain import Rows, Saved, TokenOptions


def from_logits(logits: Tensor, ids: Tensor, mask: Tensor | None, other: Tensor | None, options: TokenOptions) -> Rows:
    """The rows of logits [N, V]; log-probs and entropies have gradients if the logits do."""
    if not (logits.requires_grad and torch.is_grad_enabled()):
        return _forward(logits, ids, mask, other, options)[0]
    return Rows(*_FromLogits.apply(logits, ids, mask, other, options))  # type: ignore[no-untyped-call]


def from_head(
    hidden: Tensor,
    weight: Tensor,
    bias: Tensor | None,
    ids: Tensor,
    mask: Tensor | None,
    chunk: int,
    options: TokenOptions,
) -> Rows:
    """The rows of hidden states [N, H] under a head [V, H]."""
    return Rows(*_FromHead.apply(hidden, weight, bias, ids, mask, chunk, options))  # type: ignore[no-untyped-call]


class _FromLogits(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any, logits: Tensor, ids: Tensor, mask: Tensor | None, other: Tensor | None, options: TokenOptions
    ) -> tuple[Tensor | None, ...]:
        rows, norms = _forward(logits, ids, mask, other, options)
        ctx.options = options
        ctx.save_for_backward(logits, ids, mask, rows.entropy, norms)
        return _with_gradients_for_two(ctx, rows)

    @staticmethod
    def backward(ctx: Any, *grads: Tensor | None) -> tuple[Tensor | None, ...]:
        logits, ids, mask, entropy, norms = ctx.saved_tensors
        gradient = _backward(logits, Saved(ids, mask, entropy, norms, grads[0], grads[1]), ctx.options)
        return gradient, None, None, None, None


class _FromHead(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any,
        hidden: Tensor,
        weight: Tensor,
        bias: Tensor | None,
        ids: Tensor,
        mask: Tensor | None,
        chunk: int,
        options: TokenOptions,
    ) -> tuple[Tensor | None, ...]:
        parts = [
            _forward(
                _logits(hidden[some], weight, bias), ids[some], None if mask is None else mask[some], None, options
            )
            for some in _slices(len(hidden), chunk)
        ]
        columns = zip(*(rows for rows, _ in parts), strict=True)
        norms = None if parts[0][1] is None else torch.cat([norms for _, norms in parts if norms is not None])
        rows = Rows(*(None if column[0] is None else torch.cat(column) for column in columns))  # type: ignore[arg-type]
        ctx.chunk, ctx.options = chunk, options
        ctx.save_for_backward(hidden, weight, bias, ids, mask, rows.entropy, norms)
        return _with_gradients_for_two(ctx, rows)

    @staticmethod
    def backward(ctx: Any, *grads: Tensor | None) -> tuple[Tensor | None, ...]:
        hidden, weight, bias, ids, mask, entropy, norms = ctx.saved_tensors
        saved = Saved(ids, mask, entropy, norms, grads[0], grads[1])
        wants_hidden, wants_weight, wants_bias, *_ = ctx.needs_input_grad
        hidden_grad = torch.empty_like(hidden) if wants_hidden else None
        # A sum in bf16 over many chunks would lose small gradients.
        weight_grad = torch.zeros(weight.shape, dtype=torch.float32, device=weight.device) if wants_weight else None
        bias_grad = torch.zeros(bias.shape, dtype=torch.float32, device=bias.device) if wants_bias else None
        for some in _slices(len(hidden), ctx.chunk):
            part = Saved(*(None if column is None else column[some] for column in saved))  # type: ignore[arg-type]
            gradient = _backward(_logits(hidden[some], weight, bias), part, ctx.options)
            if hidden_grad is not None:
                torch.mm(gradient, weight, out=hidden_grad[some])
            if weight_grad is not None:
                weight_grad += gradient.T @ hidden[some]
            if bias_grad is not None:
                bias_grad += gradient.sum(dim=0, dtype=torch.float32)
        return hidden_grad, _as(weight_grad, weight), _as(bias_grad, bias), None, None, None, None


def _with_gradients_for_two(ctx: Any, rows: Rows) -> tuple[Tensor | None, ...]:
    ctx.mark_non_differentiable(*(row for row in rows[2:] if row is not None))
    ctx.set_materialize_grads(False)
    return tuple(rows)


def _logits(hidden: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
    return torch.nn.functional.linear(hidden.detach(), weight.detach(), None if bias is None else bias.detach())


def _slices(count: int, chunk: int) -> list[slice]:
    return [slice(start, start + chunk) for start in range(0, max(count, 1), chunk)]


def _as(gradient: Tensor | None, like: Tensor | None) -> Tensor | None:
    return None if gradient is None or like is None else gradient.to(like.dtype)


def _forward(
    logits: Tensor, ids: Tensor, mask: Tensor | None, other: Tensor | None, options: TokenOptions
) -> tuple[Rows, Tensor | None]:
    """The rows, and the norms that the kernels need for a gradient."""
    if not options.use_kernels:
        return tokens_plain.forward(logits, ids, mask, other, options), None
    from rlvitals.compute import triton_tokens

    return triton_tokens.forward(logits.detach(), ids, mask, other, options)


def _backward(logits: Tensor, saved: Saved, options: TokenOptions) -> Tensor:
    if not options.use_kernels:
        return tokens_plain.backward(logits.detach(), saved, options)
    from rlvitals.compute import triton_tokens

    gradient: Tensor = triton_tokens.backward(logits.detach(), saved, options)
    return gradient
