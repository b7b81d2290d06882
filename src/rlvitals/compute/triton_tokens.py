# mypy: ignore-errors
# ruff: noqa: ANN001, ANN201, ANN202, N803, PLR0124, PLR0917 - a kernel's arguments are pointers, counts and constants
"""Triton kernels that compute token statistics from logits: each logit is read once, and once more for a gradient.

A program processes one row of the vocabulary in tiles. Each column of a tile belongs to one thread, so the running
maximum and sums stay in the thread until the end of the row: exchanging them for every tile would cost more than the
read.
Exponentials use base 2, which the device computes natively; `scale` is log2(e) / temperature.
"""

from __future__ import annotations

from typing import Any

from rlvitals.compute.tokens_plain import Rows, Saved, TokenOptions

try:
    import triton
    import triton.language as tl

    jit = triton.jit
except ImportError:  # the module can be imported without Triton; nothing in it is called then

    def jit(function):
        """Return the function unchanged."""
        return function


LOG2_E = 1.4426950408889634
TILE = (4, 1024, 4, 3)
PAIR_TILE = (8, 512, 2, 3)
GRADIENT_BLOCK = 4096


@jit
def _finite_floor(x):
    """Replace -inf by a very low finite number, because 0 * -inf is NaN. NaN stays NaN."""
    return tl.maximum(x, -1.0e30, propagate_nan=tl.PropagateNan.ALL)


@jit
def _rescaled(peak, weight, slope, new_peak):
    """The sums weight = sum 2^d and slope = sum 2^d d, with d relative to the new peak instead of the old one."""
    shift = peak - new_peak
    factor = tl.exp2(shift)
    return factor * weight, factor * (slope + weight * shift)


@jit
def _absorb(x, peak, weight, slope, scale):
    """Add a tile to the columns' running peak and sums. Peaks are scaled: d = x * scale - peak is one instruction."""
    x = _finite_floor(x)
    new_peak = tl.maximum(peak, tl.max(x, axis=0) * scale)
    weight, slope = _rescaled(peak, weight, slope, new_peak)
    below = x * scale - new_peak[None, :]
    power = tl.exp2(below)
    return new_peak, weight + tl.sum(power, axis=0), slope + tl.sum(power * below, axis=0)


@jit
def _row_sums(peak, weight, slope, scale):
    """The whole row's peak and sums. A row without any finite logit has no distribution: NaN."""
    top = tl.max(peak, axis=0)
    weight, slope = _rescaled(peak, weight, slope, top)
    total = tl.sum(weight, axis=0)
    return top, tl.where(top > -1.0e29 * scale, total, float("nan")), tl.sum(slope, axis=0)


@jit
def _log_prob(chosen, top, bits, scale):
    """The log-prob of a logit, from the row's scaled peak and log2 of its sum."""
    logp = (_finite_floor(chosen) * scale - top - bits) * 0.6931471805599453
    logp = tl.where(logp < -1.0e27 * scale, float("-inf"), logp)
    # log2 is approximate near 1, so the log-prob is forced to be at most 0.
    return tl.minimum(logp, 0.0, propagate_nan=tl.PropagateNan.ALL)


@jit
def _is_skipped(mask_ptr, row):
    skipped = False
    if mask_ptr is not None:
        skipped = tl.load(mask_ptr + row) == 0
    return skipped


@jit
def _put(pointer, row, number):
    if pointer is not None:
        tl.store(pointer + row, number)


@jit
def _put_row(logp_ptr, entropy_ptr, lse_ptr, top_ptr, match_ptr, norm_ptr, row, chosen, top, total, slope, scale):
    """Store the row's numbers, computed from its sums."""
    bits = tl.log2(total)
    ln2: tl.constexpr = 0.6931471805599453
    entropy = (bits - slope / total) * ln2
    _put(logp_ptr, row, _log_prob(chosen, top, bits, scale))
    _put(entropy_ptr, row, tl.maximum(entropy, 0.0, propagate_nan=tl.PropagateNan.ALL))
    _put(lse_ptr, row, (top + bits) * ln2)
    tl.store(norm_ptr + 2 * row, top)
    tl.store(norm_ptr + 2 * row + 1, bits)
    _put(top_ptr, row, 1.0 / total)
    _put(match_ptr, row, tl.where(total == total, (chosen * scale >= top).to(tl.float32), float("nan")))
    return bits


@jit
def _put_zeros(logp_ptr, entropy_ptr, lse_ptr, top_ptr, match_ptr, row):
    _put(logp_ptr, row, 0.0)
    _put(entropy_ptr, row, 0.0)
    _put(lse_ptr, row, 0.0)
    _put(top_ptr, row, 0.0)
    _put(match_ptr, row, 0.0)


@jit
def read_row(
    logits_ptr, id_ptr, mask_ptr, logp_ptr, entropy_ptr, lse_ptr, top_ptr, match_ptr, norm_ptr,
    vocabulary, stride, scale,
    ROWS: tl.constexpr, COLUMNS: tl.constexpr, STAGES: tl.constexpr,
):  # fmt: skip
    """Log-prob of the chosen token, entropy, logsumexp, top-1 probability, and whether the chosen token is top-1."""
    row = tl.program_id(0).to(tl.int64)
    if _is_skipped(mask_ptr, row):
        _put_zeros(logp_ptr, entropy_ptr, lse_ptr, top_ptr, match_ptr, row)
        return
    base = logits_ptr + row * stride
    chosen_id = tl.load(id_ptr + row)
    tile = tl.arange(0, ROWS)[:, None] * COLUMNS + tl.arange(0, COLUMNS)[None, :]
    size: tl.constexpr = ROWS * COLUMNS
    peak = tl.full((COLUMNS,), -1.0e30, dtype=tl.float32)
    weight = tl.zeros((COLUMNS,), dtype=tl.float32)
    slope = tl.zeros((COLUMNS,), dtype=tl.float32)
    whole = vocabulary // size
    for index in tl.range(0, whole, num_stages=STAGES):
        x = tl.load(base + index * size + tile, eviction_policy="evict_first").to(tl.float32)
        peak, weight, slope = _absorb(x, peak, weight, slope, scale)
    if whole * size < vocabulary:
        at = whole * size + tile
        x = tl.load(base + at, mask=at < vocabulary, other=float("-inf")).to(tl.float32)
        peak, weight, slope = _absorb(x, peak, weight, slope, scale)
    known = (chosen_id >= 0) & (chosen_id < vocabulary)
    chosen = tl.load(base + chosen_id, mask=known, other=float("nan")).to(tl.float32)
    top, total, slope_sum = _row_sums(peak, weight, slope, scale)
    _put_row(logp_ptr, entropy_ptr, lse_ptr, top_ptr, match_ptr, norm_ptr, row, chosen, top, total, slope_sum, scale)


@jit
def _absorb_pair(x, z, peak, weight, slope, gap, z_peak, z_weight, scale):
    """Like `_absorb`, with the second distribution's sum and gap = sum 2^d (d - d_second)."""
    x = _finite_floor(x)
    z = _finite_floor(z)
    new_peak = tl.maximum(peak, tl.max(x, axis=0) * scale)
    new_z_peak = tl.maximum(z_peak, tl.max(z, axis=0) * scale)
    gap = _rescaled_gap(gap, weight, peak, new_peak, z_peak, new_z_peak)
    weight, slope = _rescaled(peak, weight, slope, new_peak)
    below = x * scale - new_peak[None, :]
    z_below = z * scale - new_z_peak[None, :]
    power = tl.exp2(below)
    weight += tl.sum(power, axis=0)
    slope += tl.sum(power * below, axis=0)
    gap += tl.sum(power * (below - z_below), axis=0)
    z_weight = z_weight * tl.exp2(z_peak - new_z_peak) + tl.sum(tl.exp2(z_below), axis=0)
    return new_peak, weight, slope, gap, new_z_peak, z_weight


@jit
def _rescaled_gap(gap, weight, peak, new_peak, z_peak, new_z_peak):
    shift = peak - new_peak
    return tl.exp2(shift) * (gap + weight * (shift - (z_peak - new_z_peak)))


@jit
def read_row_pair(
    logits_ptr, other_ptr, id_ptr, mask_ptr, logp_ptr, entropy_ptr, lse_ptr, top_ptr, match_ptr, kl_ptr, other_logp_ptr,
    norm_ptr, vocabulary, stride, other_stride, scale,
    ROWS: tl.constexpr, COLUMNS: tl.constexpr, STAGES: tl.constexpr,
):  # fmt: skip
    """Like `read_row`, and also the exact KL to a second distribution and its log-prob of the chosen token."""
    row = tl.program_id(0).to(tl.int64)
    if _is_skipped(mask_ptr, row):
        _put_zeros(logp_ptr, entropy_ptr, lse_ptr, top_ptr, match_ptr, row)
        _put(kl_ptr, row, 0.0)
        _put(other_logp_ptr, row, 0.0)
        return
    base = logits_ptr + row * stride
    other = other_ptr + row * other_stride
    chosen_id = tl.load(id_ptr + row)
    tile = tl.arange(0, ROWS)[:, None] * COLUMNS + tl.arange(0, COLUMNS)[None, :]
    size: tl.constexpr = ROWS * COLUMNS
    peak = tl.full((COLUMNS,), -1.0e30, dtype=tl.float32)
    z_peak = tl.full((COLUMNS,), -1.0e30, dtype=tl.float32)
    weight = tl.zeros((COLUMNS,), dtype=tl.float32)
    slope = tl.zeros((COLUMNS,), dtype=tl.float32)
    gap = tl.zeros((COLUMNS,), dtype=tl.float32)
    z_weight = tl.zeros((COLUMNS,), dtype=tl.float32)
    whole = vocabulary // size
    for index in tl.range(0, whole, num_stages=STAGES):
        x = tl.load(base + index * size + tile, eviction_policy="evict_first").to(tl.float32)
        z = tl.load(other + index * size + tile, eviction_policy="evict_first").to(tl.float32)
        peak, weight, slope, gap, z_peak, z_weight = _absorb_pair(
            x, z, peak, weight, slope, gap, z_peak, z_weight, scale
        )
    if whole * size < vocabulary:
        at = whole * size + tile
        x = tl.load(base + at, mask=at < vocabulary, other=float("-inf")).to(tl.float32)
        z = tl.load(other + at, mask=at < vocabulary, other=float("-inf")).to(tl.float32)
        peak, weight, slope, gap, z_peak, z_weight = _absorb_pair(
            x, z, peak, weight, slope, gap, z_peak, z_weight, scale
        )
    known = (chosen_id >= 0) & (chosen_id < vocabulary)
    chosen = tl.load(base + chosen_id, mask=known, other=float("nan")).to(tl.float32)
    z_chosen = tl.load(other + chosen_id, mask=known, other=float("nan")).to(tl.float32)
    top, total, slope_sum = _row_sums(peak, weight, slope, scale)
    z_top, z_total, _ = _row_sums(z_peak, z_weight, tl.zeros_like(z_weight), scale)
    gap_sum = tl.sum(_rescaled_gap(gap, weight, peak, top, z_peak, z_top), axis=0)
    bits = _put_row(
        logp_ptr, entropy_ptr, lse_ptr, top_ptr, match_ptr, norm_ptr, row, chosen, top, total, slope_sum, scale
    )
    z_bits = tl.log2(z_total)
    # sum p (log p - log q): the mean gap of the exponents minus the gap of the two normalisers.
    kl = (gap_sum / total - (bits - z_bits)) * 0.6931471805599453
    kl = tl.where(kl > 1.0e18, float("inf"), kl)
    tl.store(kl_ptr + row, tl.maximum(kl, 0.0, propagate_nan=tl.PropagateNan.ALL))
    tl.store(other_logp_ptr + row, _log_prob(z_chosen, z_top, z_bits, scale))


@jit
def write_gradient(
    logits_ptr, id_ptr, mask_ptr, entropy_ptr, norm_ptr, logp_grad_ptr, entropy_grad_ptr, grad_ptr,
    vocabulary, stride, grad_stride, scale, inverse_temperature, BLOCK: tl.constexpr,
):  # fmt: skip
    """The gradient of a block of a row of logits: (g_logp (1[chosen] - p) - g_entropy p (log p + H)) / temperature."""
    row = tl.program_id(0).to(tl.int64)
    at = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    inside = at < vocabulary
    target = grad_ptr + row * grad_stride + at
    if _is_skipped(mask_ptr, row):
        tl.store(target, tl.zeros((BLOCK,), dtype=grad_ptr.dtype.element_ty), mask=inside)
        return
    x = tl.load(logits_ptr + row * stride + at, mask=inside, other=float("-inf")).to(tl.float32)
    # Relative to the peak: the rounding error of a logsumexp as large as the logits would be too large for a log-prob.
    bits = _finite_floor(x) * scale - tl.load(norm_ptr + 2 * row) - tl.load(norm_ptr + 2 * row + 1)
    p = tl.exp2(bits)
    logp = bits * 0.6931471805599453
    grad = tl.zeros((BLOCK,), dtype=tl.float32)
    if logp_grad_ptr is not None:
        chosen_id = tl.load(id_ptr + row)
        grad += tl.load(logp_grad_ptr + row) * (tl.where(at == chosen_id, 1.0, 0.0) - p)
    if entropy_grad_ptr is not None:
        slope = tl.where(p > 0.0, p * (logp + tl.load(entropy_ptr + row)), p)
        grad -= tl.load(entropy_grad_ptr + row) * slope
    tl.store(target, (grad * inverse_temperature).to(grad_ptr.dtype.element_ty), mask=inside)


def tile_for(vocabulary, *, pair=False):
    """Rows and columns of a tile, warps and stages: the fastest measured on an H200, smaller for small vocabularies."""
    rows, columns, warps, stages = PAIR_TILE if pair else TILE
    while columns > 64 and columns >= 2 * vocabulary:
        columns, warps = columns // 2, max(warps // 2, 1)
    return {"ROWS": rows, "COLUMNS": columns, "STAGES": stages, "num_warps": warps}


def forward(logits: Any, ids: Any, mask: Any, other: Any, options: TokenOptions) -> tuple[Rows, Any]:
    """The numbers of logits [N, V] on the device, like `tokens_plain.forward`, and the norms for `backward`."""
    import torch

    logits, ids, mask = _readable(logits), ids.contiguous(), None if mask is None else mask.contiguous()
    count, vocabulary = logits.shape
    wanted = 3 + 2 * options.top1 + 2 * (other is not None)
    columns = list(torch.empty(wanted, count, dtype=torch.float32, device=logits.device))
    norms = torch.empty(count, 2, dtype=torch.float32, device=logits.device)
    top, match = (columns[3], columns[4]) if options.top1 else (None, None)
    scale = LOG2_E / options.temperature
    with torch.cuda.device(logits.device):
        if other is None:
            read_row[(count,)](
                logits, ids, mask, *columns[:3], top, match, norms,
                vocabulary, logits.stride(0), scale, **tile_for(vocabulary),
            )  # fmt: skip
            return Rows(*columns[:3], top, match), norms
        other = _readable(other)
        read_row_pair[(count,)](
            logits, other, ids, mask, *columns[:3], top, match, *columns[-2:], norms,
            vocabulary, logits.stride(0), other.stride(0), scale, **tile_for(vocabulary, pair=True),
        )  # fmt: skip
    return Rows(*columns[:3], top, match, *columns[-2:]), norms


def backward(logits: Any, saved: Saved, options: TokenOptions) -> Any:
    """The gradient of logits [N, V] on the device, like `tokens_plain.backward`."""
    import torch

    logits = _readable(logits)
    gradient = logits if options.overwrite_logits else torch.empty_like(logits)
    ids, mask, entropy, norms, logp_grad, entropy_grad = (
        None if column is None else column.contiguous() for column in saved
    )
    count, vocabulary = logits.shape
    with torch.cuda.device(logits.device):
        write_gradient[(count, triton.cdiv(vocabulary, GRADIENT_BLOCK))](
            logits, ids, mask, entropy, norms, logp_grad, entropy_grad, gradient,
            vocabulary, logits.stride(0), gradient.stride(0), LOG2_E / options.temperature, 1.0 / options.temperature,
            BLOCK=GRADIENT_BLOCK, num_warps=8,
        )  # fmt: skip
    return gradient


def _readable(logits):
    return logits if logits.stride(-1) == 1 else logits.contiguous()
