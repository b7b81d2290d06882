"""Token statistics by plain torch operations, a few rows at a time: for the CPU and for devices without Triton.

Calculates in float32, or in float64 for float64 logits: a softmax over a vocabulary in bf16 is wrong in its second
digit.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    from torch import Tensor

CHUNK_ELEMENTS = 1 << 24
"""The number of logits that are upcast at a time."""


class TokenOptions(NamedTuple):
    """How the numbers are computed."""

    temperature: float
    top1: bool
    overwrite_logits: bool
    use_kernels: bool


class Rows(NamedTuple):
    """The numbers of N rows, in float32."""

    logprobs: Tensor
    entropy: Tensor
    logsumexp: Tensor
    """Of the logits divided by the temperature."""
    top1_prob: Tensor | None = None
    top1_match: Tensor | None = None
    """1 where the chosen token is the most likely one."""
    kl: Tensor | None = None
    """KL(this || other), summed over the whole vocabulary."""
    other_logprobs: Tensor | None = None


class Saved(NamedTuple):
    """The inputs of a backward pass besides the logits; a gradient that is not needed is None."""

    ids: Tensor
    mask: Tensor | None
    entropy: Tensor
    norms: Tensor | None
    """The kernels' [N, 2]: each row's peak and the logarithm of its sum. Their sum, the logsumexp, is not stored alone:
    it has the rounding error of numbers as large as the logits, too large for the log-prob of a likely token."""
    logp_grad: Tensor | None
    entropy_grad: Tensor | None


def forward(logits: Tensor, ids: Tensor, mask: Tensor | None, other: Tensor | None, options: TokenOptions) -> Rows:
    """The numbers of logits [N, V]."""
    import torch

    step = max(1, CHUNK_ELEMENTS // max(logits.shape[1], 1))
    parts = []
    for start in range(0, max(len(logits), 1), step):
        some = slice(start, start + step)
        second = None if other is None else other[some]
        part = _chunk(logits[some], ids[some], second, options)
        parts.append(part if mask is None else _masked(part, mask[some]))
    return Rows(*(None if column[0] is None else torch.cat(column) for column in zip(*parts, strict=True)))  # type: ignore[arg-type]


def backward(logits: Tensor, saved: Saved, options: TokenOptions) -> Tensor:
    """The gradient of logits [N, V], in their type; in their memory if the options allow it."""
    import torch

    gradient = logits if options.overwrite_logits else torch.empty_like(logits)
    step = max(1, CHUNK_ELEMENTS // max(logits.shape[1], 1))
    for start in range(0, len(logits), step):
        some = slice(start, start + step)
        part = Saved(*(None if column is None else column[some] for column in saved))  # type: ignore[arg-type]
        gradient[some] = _chunk_gradient(logits[some], part, options).to(logits.dtype)
    return gradient


def _chunk(logits: Tensor, ids: Tensor, other: Tensor | None, options: TokenOptions) -> Rows:
    x = _wide(logits, options)
    peak, total, below, power = _softmax_parts(x)
    chosen = _chosen(x, ids)
    log_total = total.log()
    logprobs = chosen - peak - log_total
    # d is relative to the peak, so log s - sum(e d) / s does not cancel for a peaked distribution.
    entropy = (log_total - (power * below.clamp(min=-1e30)).sum(dim=1) / total).clamp(min=0)
    logsumexp = peak + log_total
    top1_prob = top1_match = kl = other_logprobs = None
    if options.top1:
        top1_prob = 1 / total
        top1_match = (chosen >= peak).to(x.dtype).where(~total.isnan(), float("nan"))
    if other is not None:
        z = _wide(other, options)
        z_peak, z_total, _, _ = _softmax_parts(z)
        z_logsumexp = z_peak + z_total.log()
        other_logprobs = _chosen(z, ids) - z_logsumexp
        gaps = (power * (x - z)).where(power > 0, power)  # tokens of weight 0 are ignored, because 0 * inf is NaN
        kl = (gaps.sum(dim=1) / total - (peak - z_peak) - (log_total - z_total.log())).clamp(min=0)
    found = (logprobs, entropy, logsumexp, top1_prob, top1_match, kl, other_logprobs)
    return Rows(*(None if row is None else row.float() for row in found))  # type: ignore[arg-type]


def _softmax_parts(x: Tensor) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Peak, sum of exponentials, logits minus the peak, and exponentials; NaN where there is no distribution."""
    peak = x.amax(dim=1)
    peak = peak.where(peak.isfinite(), float("nan"))
    below = x - peak.unsqueeze(1)
    power = below.exp()
    return peak, power.sum(dim=1), below, power


def _chosen(x: Tensor, ids: Tensor) -> Tensor:
    """The chosen token's logit; NaN for an id outside the vocabulary."""
    known = (ids >= 0) & (ids < x.shape[1])
    return x.gather(1, ids.where(known, 0).long().unsqueeze(1)).squeeze(1).where(known, float("nan"))


def _chunk_gradient(logits: Tensor, saved: Saved, options: TokenOptions) -> Tensor:
    import torch

    logp = _wide(logits, options).log_softmax(dim=1)
    p = logp.exp()
    gradient = torch.zeros_like(p)
    if saved.logp_grad is not None:
        gradient -= saved.logp_grad.unsqueeze(1) * p
        known = (saved.ids >= 0) & (saved.ids < logits.shape[1])
        gradient.scatter_add_(1, saved.ids.where(known, 0).long().unsqueeze(1), saved.logp_grad.to(p).unsqueeze(1))
    if saved.entropy_grad is not None:
        slope = (p * (logp + saved.entropy.unsqueeze(1))).where(p > 0, p)
        gradient -= saved.entropy_grad.unsqueeze(1) * slope
    if saved.mask is not None:
        gradient = gradient.where((saved.mask != 0).unsqueeze(1), 0)
    return gradient / options.temperature


def _masked(rows: Rows, mask: Tensor) -> Rows:
    return Rows(*(None if row is None else row.where(mask != 0, 0) for row in rows))  # type: ignore[arg-type]


def _wide(logits: Tensor, options: TokenOptions) -> Tensor:
    import torch

    return logits.detach().to(torch.promote_types(logits.dtype, torch.float32)) / options.temperature
