"""Advantages, returns and the value function: how they are computed, and their statistics.

>>> group_relative([1.0, 0.0, 5.0, 5.0], ["a", "a", "b", "b"]).round(4).tolist()
[1.0, -1.0, 0.0, 0.0]
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from rlvitals.compute.aggregate import terms
from rlvitals.compute.arrays import (
    Array,
    from_one_of_group,
    gather,
    group_slots,
    group_sum,
    library,
    masked_mean,
    real,
    row_sum,
    share,
)
from rlvitals.compute.names import naming
from rlvitals.compute.packing import Packed, StatisticSheet, reading
from rlvitals.compute.shapes import per_sequence, per_token, token_rows
from rlvitals.errors import ConfigError
from rlvitals.values import Value


class Estimate(NamedTuple):
    """Advantages and the returns they imply (advantage + value), both [sequences, tokens]."""

    advantages: Array
    returns: Array


def gae(
    rewards: Array, values: Array, mask: Array = None, *, gamma: float = 1.0, lam: float = 0.95,
    ends: Array = None, last_values: Array = None,
) -> Estimate:  # fmt: skip
    """Generalised advantage estimation: A_t = d_t + gamma lam A_{t+1}, d_t = r_t + gamma V_{t+1} - V_t.

    Positions outside the mask (padding, tool output) are skipped: the token before them uses the next token inside the
    mask. `ends` is 1 on the last token of an episode; tokens after it do not affect tokens before it. `last_values` are
    the values after the last token of a truncated sequence, and 0 for a sequence that ended.

    >>> gae([[0.0, 1.0]], [[0.5, 0.5]], gamma=1.0, lam=1.0).advantages.tolist()
    [[0.5, 0.5]]
    """
    r, v, stop, m = token_rows(rewards, values, ends, mask=mask)
    xp = library(r)
    following = xp.zeros_like(r.sum(axis=-1)) if last_values is None else per_sequence(last_values, r)
    running = xp.zeros_like(following)
    found = []
    for t in reversed(range(r.shape[1])):
        on = 1.0 if stop is None else 1.0 - real(stop[:, t] != 0)
        error = r[:, t] + gamma * following * on - v[:, t]
        here = error + gamma * lam * on * running
        running = xp.where(m[:, t] > 0, here, running)
        following = xp.where(m[:, t] > 0, v[:, t], following)
        found.append(running * m[:, t])
    advantages = xp.stack(found[::-1], 1) if found else r
    return Estimate(advantages, (advantages + v) * m)


def discounted_returns(rewards: Array, mask: Array = None, *, gamma: float = 1.0) -> Array:
    """Discounted future reward: G_t = r_t + gamma G_{t+1} over the tokens inside the mask.

    >>> discounted_returns([[1.0, 2.0, 4.0]], gamma=0.5).tolist()
    [[3.0, 4.0, 4.0]]
    """
    zeros = 0.0 * token_rows(rewards, mask=mask)[0]
    return gae(rewards, zeros, mask, gamma=gamma, lam=1.0).returns


def group_relative(
    rewards: Array, group_ids: Array, *, scale: str = "std", unbiased: bool = False, epsilon: float = 1e-8
) -> Array:
    """Reward minus the mean of its group, divided by the group's standard deviation + epsilon (GRPO).

    `scale="none"` skips the division (Dr. GRPO). The standard deviation is the population's, or the sample's if
    `unbiased` is true. The sample's is undefined (NaN) for a group of one. A group of equal rewards gives 0.
    """
    r = gather(rewards)[0].reshape(-1)
    slots = group_slots(group_ids, r)
    xp = library(r)
    count = group_sum(xp.ones_like(r), slots)[slots]
    apart, _ = from_one_of_group(r, slots)
    centred = apart - group_sum(apart, slots)[slots] / count
    if scale == "none":
        return centred
    if scale != "std":
        raise ConfigError(f"scale must be 'std' or 'none', not {scale!r}")
    divisor = count - 1.0 if unbiased else count
    defined = xp.where(divisor > 0, divisor, xp.nan + 0.0 * divisor)
    spread = xp.sqrt(group_sum(centred * centred, slots)[slots] / defined)
    return centred / (spread + epsilon)


def leave_one_out(rewards: Array, group_ids: Array) -> Array:
    """Reward minus the mean of the other rewards of its group (RLOO); NaN in a group of one.

    >>> leave_one_out([3.0, 1.0, 2.0], [0, 0, 0]).tolist()
    [1.5, -1.5, 0.0]
    """
    r = gather(rewards)[0].reshape(-1)
    slots = group_slots(group_ids, r)
    xp = library(r)
    others = group_sum(xp.ones_like(r), slots)[slots] - 1.0
    apart, _ = from_one_of_group(r, slots)
    return apart - (group_sum(apart, slots)[slots] - apart) / xp.where(others > 0, others, xp.nan + 0.0 * others)


def whiten(x: Array, mask: Array = None, *, shift_mean: bool = True, epsilon: float = 1e-8) -> Array:
    """(x - mean) / sqrt(var + epsilon) over the tokens inside the mask, with the unbiased variance; 0 elsewhere.

    With fewer than two tokens there is no variance, and `x` is returned unchanged. `shift_mean=False` adds the mean
    back.
    """
    x, m = token_rows(x, mask=mask)
    xp = library(x)
    count = m.sum()
    mean = masked_mean(x, m)
    off = (x - mean) * m
    variance = (off * off).sum() / xp.where(count > 1, count - 1.0, xp.ones_like(count))
    scaled = off / xp.sqrt(variance + epsilon)
    return xp.where(count > 1, scaled if shift_mean else (scaled + mean) * m, x)


def value_losses(
    values: Array, returns: Array, old_values: Array = None, value_clip: float | None = None
) -> tuple[Array, Array]:
    """PPO's value loss of each token, 0.5 max((v - R)^2, (clip(v, v_old +- c) - R)^2), and 1 where the clipped branch
    is the larger one (NaN where one is NaN). Without `value_clip` the second result is None: no clip fraction exists.

    >>> value_losses([2.0], [0.0], [1.0], value_clip=0.5)
    (array([2.]), array([0.]))
    """
    v, target = real(values), real(returns, values)
    plain = (v - target) ** 2
    if value_clip is None:
        return 0.5 * plain, None
    if old_values is None:
        raise ConfigError("value_clip needs old_values: the prediction is clipped around the earlier one")
    xp = library(v)
    old = real(old_values, v)
    clipped = (xp.clip(v, old - value_clip, old + value_clip) - target) ** 2
    return 0.5 * xp.maximum(plain, clipped), share(clipped > plain, clipped, plain)


def values_outside(values: Array, old_values: Array, value_clip: float) -> Array:
    """1 for each prediction outside the clip range, |v - v_old| > c, whichever branch the loss uses.

    >>> values_outside([1.2, 2.0], [1.0, 1.0], value_clip=0.5)
    array([0., 1.])
    """
    change = real(values) - real(old_values, values)
    return share(library(change).abs(change) > value_clip, change)


def explained_variance(returns: Value, residuals: Value) -> float | None:
    """1 - Var(R - V) / Var(R), from the moments of the returns and of R - V; None where the returns do not vary.

    >>> from rlvitals import values
    >>> explained_variance(values.mean([0.0, 2.0]), values.mean([0.0, 1.0]))
    0.75
    """
    return None if returns.m2 == 0 or returns.count <= 1 else 1.0 - residuals.m2 / returns.m2


@np.errstate(over="ignore", invalid="ignore")
def pack(
    *,
    advantages: Array = None,
    returns: Array = None,
    values: Array = None,
    old_values: Array = None,
    raw_advantages: Array = None,
    token_rewards: Array = None,
    mask: Array = None,
    value_clip: float | None = None,
    advantage_clip: float | None = None,
    aggregation: str = "token-mean",
    group_ids: Array = None,
    names: str = "canonical",
) -> Packed:
    """Compute the statistics of advantages, returns and values over the tokens inside the mask. Per-token arguments are
    [sequences, tokens]; statistics of missing arguments are not computed. `stats` returns them as mergeable values.

    `values` are the critic's predictions in this update, `old_values` those made when the rollouts were collected.
    `token_rewards` are summed for each sequence that has tokens. `aggregation` applies to the value loss, its error,
    the clip fraction and the mean prediction.
    """
    target, v, old, shaped, m = _rows((returns, values, old_values, token_rewards), (advantages, raw_advantages), mask)
    sheet = StatisticSheet(naming(names, "advantage"))

    def show(x: Array, metric: str) -> int:
        numbers, shares, kind = terms(x, m, aggregation, group_ids=group_ids)
        return sheet.moments(numbers, shares, **{kind: metric})

    if advantages is not None:
        _show_advantages(sheet, per_token(advantages, m, m), m)
    if raw_advantages is not None:
        raw = per_token(raw_advantages, m, m)
        sheet.moments(raw, m, mean="advantage.raw.mean")
        if advantage_clip is not None:
            sheet.moments(share(library(raw).abs(raw) > advantage_clip, raw), m, mean="advantage.clip_fraction")
    if target is not None:
        sheet.moments(target, m, mean="return.mean", max="return.max", min="return.min")
    collected = v if old is None else old
    if collected is not None:
        sheet.moments(collected, m, mean="value.mean", max="value.max", min="value.min")
        numbers, shares, kind = terms(collected, m, aggregation, group_ids=group_ids)
        sheet.show(sheet.moments(numbers, shares), kind, "value.collected.mean", only_if_named=True)
    if v is not None:
        show(v, "value.predicted.mean")
        if old is not None and value_clip is not None:
            sheet.moments(values_outside(v, old, value_clip), m, mean="value.outside_fraction")
        if target is not None:
            losses, is_clipped = value_losses(v, target, old, value_clip)
            show(losses, "value.loss")
            show((v - target) ** 2, "value.error")
            if is_clipped is not None:
                show(is_clipped, "value.clip_fraction")
    if collected is not None and target is not None:
        sheet.derive(
            "value.explained_variance",
            explained_variance,
            sheet.moments(target, m),
            sheet.moments(target - collected, m),
        )
    if shaped is not None:
        # A row without tokens has no reward, which is not a reward of 0.
        sheet.moments(
            row_sum(shaped, m), real(m.sum(axis=-1) > 0),
            mean="reward.shaped.mean", max="reward.shaped.max", min="reward.shaped.min",
        )  # fmt: skip
    return sheet.pack()


stats = reading(pack)
"""The statistics as mergeable values; the arguments are those of `pack`."""


def _rows(per_token_arrays: tuple[Array, ...], advantages: tuple[Array, ...], mask: Array) -> list[Array]:
    """The arrays that are always per token, and the mask. Advantages may be one per sequence, so they determine the
    shape of the mask only if no other array does.
    """
    given = [array for array in (*per_token_arrays, mask) if array is not None]
    if given:
        *found, _, kept = token_rows(*per_token_arrays, 0.0 * gather(given[-1])[0], mask=mask)
        return [*found, kept]
    shape = next((gather(array)[0] for array in advantages if array is not None), None)
    if shape is None:
        raise ConfigError("nothing to measure: give advantages, returns, values or token_rewards")
    return [None] * len(per_token_arrays) + [library(shape).ones_like(shape if shape.ndim == 2 else shape[:, None])]


def _show_advantages(sheet: StatisticSheet, a: Array, mask: Array) -> None:
    sheet.moments(a, mask, mean="advantage.mean", max="advantage.max", min="advantage.min", sample_std="advantage.std")
    sheet.moments(library(a).abs(a), mask, mean="advantage.abs_mean")
