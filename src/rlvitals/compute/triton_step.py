# mypy: ignore-errors
# ruff: noqa: ANN001, ANN201, ANN202, N803, PLR0124, PLR0915, PLR0917, SIM102 - a kernel's arguments are pointers, counts and constants
"""Triton kernels of the step's statistics: one pass over the per-token tensors, then one small kernel that merges.

In `gather_tokens` a program processes a stretch of one sequence. It reads every input once and skips masked tokens.
Each lane keeps its own running moments (Welford's update, which needs no second pass and does not cancel). The lanes
are merged once at the end. In `merge_channels` a program merges the stretches of one channel in float64. The first
kernel passes a float64 table to the second: the moments of all stretches, then their counts. `step_channels` defines
the channels and their order, `step_plain` their formulas.
"""

from __future__ import annotations

try:
    import triton
    import triton.language as tl

    jit = triton.jit
except ImportError:  # the module can be imported without Triton; nothing in it is called then

    def jit(function):
        """Return the function unchanged."""
        return function


STRETCH = 4096
"""Tokens of one program. Several programs share a long or packed row, so a single row still fills the device."""

TOKEN_FIELDS = 4
"""mean, M2, min, max; all token channels share the count, which is stored after the table."""


@jit
def _combine(n_a, mean_a, m2_a, low_a, high_a, n_b, mean_b, m2_b, low_b, high_b):
    """Merge the moments of two parts (Chan's update); an empty part has no effect."""
    n = n_a + n_b
    share = n_b / tl.maximum(n, 1.0)
    delta = mean_b - mean_a
    return (
        n,
        mean_a + delta * share,
        m2_a + m2_b + delta * delta * n_a * share,
        tl.minimum(low_a, low_b, propagate_nan=tl.PropagateNan.ALL),
        tl.maximum(high_a, high_b, propagate_nan=tl.PropagateNan.ALL),
    )


@jit
def _nothing(BLOCK: tl.constexpr, dtype: tl.constexpr):
    zero = tl.zeros((BLOCK,), dtype=dtype)
    inf = tl.full((BLOCK,), float("inf"), dtype=dtype)
    return zero, zero, inf, -inf


@jit
def _see(state, x, used, inverse):
    """Add one number to the moments of each lane that is used."""
    mean, m2, low, high = state
    step = tl.where(used, x - mean, 0.0)
    mean = mean + step * inverse
    m2 = m2 + step * (x - mean)
    low = tl.minimum(low, tl.where(used, x, float("inf")), propagate_nan=tl.PropagateNan.ALL)
    high = tl.maximum(high, tl.where(used, x, float("-inf")), propagate_nan=tl.PropagateNan.ALL)
    return mean, m2, low, high


@jit
def _put(table, channel: tl.constexpr, columns, column, n, state):
    """Merge the lanes of one channel and store its column."""
    mean, m2, low, high = state
    _, mean, m2, low, high = tl.reduce((n, mean, m2, low, high), 0, _combine)
    at = table + channel * 4 * columns + column
    tl.store(at, mean)
    tl.store(at + columns, m2)
    tl.store(at + 2 * columns, low)
    tl.store(at + 3 * columns, high)


@jit
def _put_share(table, channel: tl.constexpr, columns, column, count, ones):
    """Store a channel of zeros and ones; the number of ones determines all its moments. NaN stays NaN."""
    total = tl.sum(ones, axis=0)
    mean = total.to(tl.float64) / tl.maximum(count, 1.0).to(tl.float64)
    at = table + channel * 4 * columns + column
    tl.store(at, mean)
    tl.store(at + columns, total * (1.0 - mean))
    unknown = total - total
    tl.store(at + 2 * columns, tl.where(count > 0, tl.where(total == count, 1.0, 0.0) + unknown, float("inf")))
    tl.store(at + 3 * columns, tl.where(count > 0, tl.where(total > 0, 1.0, 0.0) + unknown, float("-inf")))


@jit
def _bound(x, limit):
    lower = tl.maximum(x, -limit, propagate_nan=tl.PropagateNan.ALL)
    return tl.minimum(lower, limit, propagate_nan=tl.PropagateNan.ALL)


@jit
def _k3(log_ratio, exponential):
    """exp(d) - 1 - d; near 0, where the difference would cancel, computed by its series."""
    d = _bound(log_ratio, 20.0)
    tail = 1.0 / 120 + d * (1.0 / 720 + d * (1.0 / 5040 + d * (1.0 / 40320)))
    near = d * d * (0.5 + d * (1.0 / 6 + d * (1.0 / 24 + d * tail)))
    return tl.where(tl.abs(d) < 0.5, near, exponential - 1.0 - d)


@jit
def _share(condition, decided_by, used):
    ones = tl.where(decided_by == decided_by, condition.to(tl.float32), float("nan"))
    return tl.where(used, ones, 0.0)


@jit
def _broken(x):
    return ((x - x) != 0.0).to(tl.int1)


@jit
def gather_tokens(
    logp_ptr, old_ptr, ref_ptr, rollout_ptr, advantage_ptr, return_ptr, value_ptr, old_value_ptr, entropy_ptr, mask_ptr,
    table_ptr, length, columns, stretches, clip_low, clip_high, dual, value_bound,
    ADVANTAGE_PER_ROW: tl.constexpr, VALUE_CLIP: tl.constexpr, STRETCH: tl.constexpr, counts, BLOCK: tl.constexpr,
):  # fmt: skip
    """Compute the token channels of one stretch of one sequence. Channels of absent inputs (None) are not written."""
    column = tl.program_id(0)
    counts_ptr = table_ptr + counts
    row = column // stretches
    first = (column % stretches) * STRETCH
    offset = row.to(tl.int64) * length
    last = tl.minimum(first + STRETCH, length)

    n = tl.zeros((BLOCK,), dtype=tl.float32)
    logp_s = _nothing(BLOCK, tl.float32)
    old_s = _nothing(BLOCK, tl.float32)
    ref_s = _nothing(BLOCK, tl.float32)
    rollout_s = _nothing(BLOCK, tl.float32)
    log_ratio_s = _nothing(BLOCK, tl.float32)
    ratio_s = _nothing(BLOCK, tl.float32)
    old_k2_s = _nothing(BLOCK, tl.float32)
    old_k3_s = _nothing(BLOCK, tl.float32)
    loss_s = _nothing(BLOCK, tl.float32)
    ref_k1_s = _nothing(BLOCK, tl.float32)
    ref_k2_s = _nothing(BLOCK, tl.float32)
    ref_k3_s = _nothing(BLOCK, tl.float32)
    gap_s = _nothing(BLOCK, tl.float32)
    gap_k3_s = _nothing(BLOCK, tl.float32)
    weight_s = _nothing(BLOCK, tl.float32)
    gap_abs_s = _nothing(BLOCK, tl.float32)
    prob_s = _nothing(BLOCK, tl.float32)
    factor_s = _nothing(BLOCK, tl.float32)
    advantage_s = _nothing(BLOCK, tl.float32)
    return_s = _nothing(BLOCK, tl.float32)
    value_s = _nothing(BLOCK, tl.float32)
    residual_s = _nothing(BLOCK, tl.float32)
    error_s = _nothing(BLOCK, tl.float32)
    value_loss_s = _nothing(BLOCK, tl.float32)
    predicted_s = _nothing(BLOCK, tl.float32)
    entropy_s = _nothing(BLOCK, tl.float32)
    upper = tl.zeros((BLOCK,), dtype=tl.float32)
    lower = tl.zeros((BLOCK,), dtype=tl.float32)
    dually = tl.zeros((BLOCK,), dtype=tl.float32)
    value_clip = tl.zeros((BLOCK,), dtype=tl.float32)
    nonfinite = tl.zeros((BLOCK,), dtype=tl.float32)
    extreme = tl.zeros((BLOCK,), dtype=tl.float32)

    for start in range(first, last, BLOCK):
        at = start + tl.arange(0, BLOCK)
        used = at < last
        if mask_ptr is not None:
            used = tl.load(mask_ptr + offset + at, mask=used, other=0) != 0
        n += used.to(tl.float32)
        inverse = 1.0 / tl.maximum(n, 1.0)
        logp = tl.load(logp_ptr + offset + at, mask=used, other=0.0).to(tl.float32)
        logp_s = _see(logp_s, logp, used, inverse)
        broken = _broken(logp)
        trained = logp
        if advantage_ptr is not None:
            if ADVANTAGE_PER_ROW:
                advantage = tl.load(advantage_ptr + row).to(tl.float32) + tl.zeros((BLOCK,), dtype=tl.float32)
                advantage = tl.where(used, advantage, 0.0)
            else:
                advantage = tl.load(advantage_ptr + offset + at, mask=used, other=0.0).to(tl.float32)
            advantage_s = _see(advantage_s, advantage, used, inverse)
            broken = broken | _broken(advantage)
        if old_ptr is not None:
            old = tl.load(old_ptr + offset + at, mask=used, other=0.0).to(tl.float32)
            broken = broken | _broken(old)
            trained = old
            log_ratio = logp - old
            ratio = tl.exp(_bound(log_ratio, 20.0))
            old_s = _see(old_s, old, used, inverse)
            log_ratio_s = _see(log_ratio_s, log_ratio, used, inverse)
            ratio_s = _see(ratio_s, ratio, used, inverse)
            old_k2_s = _see(old_k2_s, 0.5 * log_ratio * log_ratio, used, inverse)
            old_k3_s = _see(old_k3_s, _k3(log_ratio, ratio), used, inverse)
            if advantage_ptr is not None:
                plain = ratio * advantage
                clipped = tl.minimum(tl.maximum(ratio, 1.0 - clip_low), 1.0 + clip_high) * advantage
                gain = tl.minimum(plain, clipped, propagate_nan=tl.PropagateNan.ALL)
                # Without a dual clip `dual` is infinite, and minus infinity is never the maximum.
                capped = tl.maximum(gain, dual * advantage, propagate_nan=tl.PropagateNan.ALL)
                loss_s = _see(loss_s, -tl.where(advantage < 0, capped, gain), used, inverse)
                upper += _share((ratio > 1.0 + clip_high) & (advantage > 0), plain, used)
                lower += _share((ratio < 1.0 - clip_low) & (advantage < 0), plain, used)
                dually += _share((ratio > dual) & (advantage < 0), plain, used)
        if ref_ptr is not None:
            ref = tl.load(ref_ptr + offset + at, mask=used, other=0.0).to(tl.float32)
            broken = broken | _broken(ref)
            drift = logp - ref
            ref_s = _see(ref_s, ref, used, inverse)
            ref_k1_s = _see(ref_k1_s, drift, used, inverse)
            ref_k2_s = _see(ref_k2_s, 0.5 * drift * drift, used, inverse)
            ref_k3_s = _see(ref_k3_s, _k3(-drift, tl.exp(_bound(-drift, 20.0))), used, inverse)
        if rollout_ptr is not None:
            rollout = tl.load(rollout_ptr + offset + at, mask=used, other=0.0).to(tl.float32)
            broken = broken | _broken(rollout)
            gap = trained - rollout
            weight = tl.exp(_bound(gap, 20.0))
            rollout_s = _see(rollout_s, rollout, used, inverse)
            gap_s = _see(gap_s, gap, used, inverse)
            gap_k3_s = _see(gap_k3_s, _k3(gap, weight), used, inverse)
            weight_s = _see(weight_s, weight, used, inverse)
            gap_abs_s = _see(gap_abs_s, tl.abs(gap), used, inverse)
            extreme += _share(tl.abs(gap) > 0.6931471805599453, gap, used)
            prob_s = _see(prob_s, tl.abs(tl.exp(trained) - tl.exp(rollout)), used, inverse)
            factor_s = _see(
                factor_s, tl.maximum(weight, 1.0 / weight, propagate_nan=tl.PropagateNan.ALL), used, inverse
            )
        if return_ptr is not None:
            returned = tl.load(return_ptr + offset + at, mask=used, other=0.0).to(tl.float32)
            broken = broken | _broken(returned)
            return_s = _see(return_s, returned, used, inverse)
        if old_value_ptr is not None:
            old_value = tl.load(old_value_ptr + offset + at, mask=used, other=0.0).to(tl.float32)
            broken = broken | _broken(old_value)
            value_s = _see(value_s, old_value, used, inverse)
            if return_ptr is not None:
                residual_s = _see(residual_s, returned - old_value, used, inverse)
        if value_ptr is not None:
            value = tl.load(value_ptr + offset + at, mask=used, other=0.0).to(tl.float32)
            broken = broken | _broken(value)
            predicted_s = _see(predicted_s, value, used, inverse)
            if old_value_ptr is None:
                value_s = _see(value_s, value, used, inverse)
                if return_ptr is not None:
                    residual_s = _see(residual_s, returned - value, used, inverse)
            if return_ptr is not None:
                gap_to_return = returned - value
                error = gap_to_return * gap_to_return
                worst = error
                if VALUE_CLIP:
                    change = value - old_value
                    # Within the bound both errors are equal; rounding must not make one larger.
                    is_far = tl.abs(change) > value_bound
                    is_near = tl.abs(change) <= value_bound  # not the opposite of `is_far`: both are false for NaN
                    moved = tl.where(is_near, value, old_value + _bound(change, value_bound)) - returned
                    worst = tl.maximum(error, moved * moved, propagate_nan=tl.PropagateNan.ALL)
                    value_clip += _share(is_far & (moved * moved > error), moved + gap_to_return + change, used)
                error_s = _see(error_s, error, used, inverse)
                value_loss_s = _see(value_loss_s, 0.5 * worst, used, inverse)
        if entropy_ptr is not None:
            entropy = tl.load(entropy_ptr + offset + at, mask=used, other=0.0).to(tl.float32)
            broken = broken | _broken(entropy)
            entropy_s = _see(entropy_s, entropy, used, inverse)
        nonfinite += tl.where(used & broken, 1.0, 0.0)

    count = tl.sum(n, axis=0)
    tl.store(counts_ptr + column, count)
    _put(table_ptr, 0, columns, column, n, logp_s)
    if old_ptr is not None:
        _put(table_ptr, 1, columns, column, n, old_s)
        _put(table_ptr, 4, columns, column, n, log_ratio_s)
        _put(table_ptr, 5, columns, column, n, ratio_s)
        _put(table_ptr, 6, columns, column, n, old_k2_s)
        _put(table_ptr, 7, columns, column, n, old_k3_s)
        if advantage_ptr is not None:
            _put(table_ptr, 8, columns, column, n, loss_s)
            _put_share(table_ptr, 9, columns, column, count, upper)
            _put_share(table_ptr, 10, columns, column, count, lower)
            _put_share(table_ptr, 11, columns, column, count, dually)
    if ref_ptr is not None:
        _put(table_ptr, 2, columns, column, n, ref_s)
        _put(table_ptr, 12, columns, column, n, ref_k1_s)
        _put(table_ptr, 13, columns, column, n, ref_k2_s)
        _put(table_ptr, 14, columns, column, n, ref_k3_s)
    if rollout_ptr is not None:
        _put(table_ptr, 3, columns, column, n, rollout_s)
        _put(table_ptr, 15, columns, column, n, gap_s)
        _put(table_ptr, 16, columns, column, n, gap_k3_s)
        _put(table_ptr, 17, columns, column, n, weight_s)
        _put(table_ptr, 18, columns, column, n, gap_abs_s)
        _put(table_ptr, 19, columns, column, n, prob_s)
        _put(table_ptr, 20, columns, column, n, factor_s)
        _put_share(table_ptr, 31, columns, column, count, extreme)
    if advantage_ptr is not None:
        _put(table_ptr, 21, columns, column, n, advantage_s)
    if return_ptr is not None:
        _put(table_ptr, 22, columns, column, n, return_s)
    if old_value_ptr is not None:
        _put(table_ptr, 23, columns, column, n, value_s)
        if return_ptr is not None:
            _put(table_ptr, 24, columns, column, n, residual_s)
    if value_ptr is not None:
        if old_value_ptr is None:
            _put(table_ptr, 23, columns, column, n, value_s)
            if return_ptr is not None:
                _put(table_ptr, 24, columns, column, n, residual_s)
        _put(table_ptr, 30, columns, column, n, predicted_s)
        if return_ptr is not None:
            _put(table_ptr, 25, columns, column, n, error_s)
            _put(table_ptr, 26, columns, column, n, value_loss_s)
            if VALUE_CLIP:
                _put_share(table_ptr, 27, columns, column, count, value_clip)
    if entropy_ptr is not None:
        _put(table_ptr, 28, columns, column, n, entropy_s)
    _put_share(table_ptr, 29, columns, column, count, nonfinite)


@jit
def _load(pointer, at, inside, other):
    return tl.load(pointer + at, mask=inside, other=other).to(tl.float64)


@jit
def merge_channels(
    table_ptr, moments_ptr, plan_ptr, reward_ptr, prompt_ptr, rows, columns, stretches, counts, BLOCK: tl.constexpr,
):  # fmt: skip
    """Compute a channel's moments from its stretches, or from one number of each sequence, as `plan` [kind, source]
    specifies.

    Kinds: -1 is the channel itself; other kinds are indices in ROW_KINDS.
    """
    channel = tl.program_id(0)
    counts_ptr = table_ptr + counts
    kind = tl.load(plan_ptr + 2 * channel)
    source = tl.load(plan_ptr + 2 * channel + 1)
    at_source = table_ptr + source * 4 * columns
    n = tl.zeros((BLOCK,), dtype=tl.float64)
    mean, m2, low, high = _nothing(BLOCK, tl.float64)
    if kind < 0:
        for start in range(0, columns, BLOCK):
            at = start + tl.arange(0, BLOCK)
            inside = at < columns
            n, mean, m2, low, high = _combine(
                n, mean, m2, low, high,
                _load(counts_ptr, at, inside, 0.0), _load(at_source, at, inside, 0.0),
                _load(at_source + columns, at, inside, 0.0), _load(at_source + 2 * columns, at, inside, float("inf")),
                _load(at_source + 3 * columns, at, inside, float("-inf")),
            )  # fmt: skip
    else:
        for start in range(0, rows, BLOCK):
            row = start + tl.arange(0, BLOCK)
            inside = row < rows
            length = tl.zeros((BLOCK,), dtype=tl.float64)
            total = tl.zeros((BLOCK,), dtype=tl.float64)
            for stretch in range(0, stretches):
                at = row * stretches + stretch
                part = _load(counts_ptr, at, inside, 0.0)
                length += part
                if (kind >= 1) & (kind <= 4):
                    total += part * _load(at_source, at, inside, 0.0)
            average = total / tl.maximum(length, 1.0)
            number = length
            counted = inside
            if (kind >= 1) & (kind <= 4):
                counted = inside & (length > 0)
                number = average
                if kind == 2:
                    number = tl.exp(average)
                if kind == 3:
                    number = tl.exp(-average)
                if kind == 4:
                    number = total
            if kind == 5:
                number = tl.where(length > 0, 1.0, 0.0).to(tl.float64)
            if kind == 6:
                if reward_ptr is not None:
                    number = _load(reward_ptr, row, inside, 0.0)
            if kind == 7:
                if prompt_ptr is not None:
                    number = _load(prompt_ptr, row, inside, 0.0)
            number = tl.where(counted, number, 0.0)
            n, mean, m2, low, high = _combine(
                n, mean, m2, low, high, counted.to(tl.float64), number, number * 0.0,
                tl.where(counted, number, float("inf")), tl.where(counted, number, float("-inf")),
            )  # fmt: skip
    n, mean, m2, low, high = tl.reduce((n, mean, m2, low, high), 0, _combine)
    at = moments_ptr + channel * 5
    tl.store(at, n)
    tl.store(at + 1, mean)
    tl.store(at + 2, m2)
    tl.store(at + 3, low)
    tl.store(at + 4, high)
