"""How far the log-probs of the rollout engine and of the trainer differ on the sampled tokens.

With w = p_train / p_rollout on the sampled tokens: estimators of KL(rollout || train), the importance weights, the
effective sample size, the chi-square distance and the perplexities. Part of `policy.stats(rollout_logprobs=...)`.
"""

from __future__ import annotations

import math
from typing import NamedTuple

from rlvitals.compute.arrays import Array, gather, library, masked_mean, real, row_sum, share
from rlvitals.compute.packing import StatisticSheet
from rlvitals.values import Value


class WeightBounds(NamedTuple):
    """The bounds at which importance weights are truncated; None is no bound on that side."""

    low: float | None = None
    high: float | None = None


UNBOUNDED = WeightBounds()

EXTREME = math.log(2.0)
"""Log-probs further apart than this give a weight below 1/2 or above 2."""


def sequence_weights(logprobs: Array, rollout_logprobs: Array, mask: Array) -> Array:
    """Importance weight of each whole sequence, exp(sum_t (logp_train - logp_rollout)); NaN without tokens.

    It is the product of the tokens' weights, so it depends strongly on the length. GSPO's ratio is its T-th root.

    >>> import math
    >>> sequence_weights([[0.0, 0.0, 9.0]], [[-math.log(2), -math.log(2), 0.0]], [[1, 1, 0]]).round(9)
    array([4.])
    """
    train, rollout, kept = gather(logprobs, rollout_logprobs, mask)
    xp = library(train)
    zero = 0.0 * kept
    apart = xp.where(kept > 0, train, zero) - xp.where(kept > 0, rollout, zero)
    count = kept.sum(axis=-1)
    return xp.where(count > 0, xp.exp(row_sum(apart, kept)), xp.nan + 0.0 * count)


def truncated_weights(weights: Array, bounds: WeightBounds) -> Array:
    """Weights clipped to the bounds: min(max(w, low), high).

    >>> truncated_weights(real([0.1, 1.0, 7.0]), WeightBounds(high=2.0)).tolist()
    [0.1, 1.0, 2.0]
    """
    return library(weights).clip(weights, *bounds) if bounds != UNBOUNDED else weights


def effective_sample_size(weights: Value) -> float | None:
    """(sum w)^2 / (n sum w^2), from the moments of the weights: 1 if all are equal, 1/n if only one is not 0.

    >>> from rlvitals import values
    >>> effective_sample_size(values.mean([1.0, 1.0])), effective_sample_size(values.mean([2.0, 0.0]))
    (1.0, 0.5)
    """
    square = weights.mean * weights.mean
    mean_square = square + weights.m2 / weights.count
    return square / mean_square if mean_square else None


def pearson(x: Value, y: Value, sums: Value) -> float | None:
    """Correlation of x and y from the moments of x, y and x + y; None if x or y does not vary."""
    if x.m2 == 0 or y.m2 == 0:
        return None
    return (sums.m2 - x.m2 - y.m2) / (2.0 * math.sqrt(x.m2 * y.m2))


def add(sheet: StatisticSheet, train: Array, rollout: Array, mask: Array, bounds: WeightBounds = UNBOUNDED) -> None:
    """Add the statistics to a sheet; all arrays are [sequences, tokens]. With `bounds`, also add those of the truncated
    weights.
    """
    xp = library(train)
    # A masked position may hold any value, and exp() of it may overflow with a warning.
    difference = xp.where(mask > 0, train - rollout, 0.0 * mask)
    weight = xp.exp(difference)
    sheet.moments(
        xp.abs(difference), mask,
        mean="mismatch.logp_abs_diff.mean", max="mismatch.logp_abs_diff.max", std="mismatch.logp_abs_diff.std",
    )  # fmt: skip
    sheet.moments(-difference, mask, mean="mismatch.kl.k1")
    sheet.moments(0.5 * difference * difference, mask, mean="mismatch.kl.k2")
    sheet.moments(xp.expm1(difference) - difference, mask, mean="mismatch.kl.k3")
    row = sheet.moments(
        weight, mask,
        mean="mismatch.is_weight.mean", max="mismatch.is_weight.max", min="mismatch.is_weight.min",
        std="mismatch.is_weight.std",
    )  # fmt: skip
    sheet.derive("mismatch.effective_sample_size", effective_sample_size, row)
    sheet.moments(weight * weight - 1.0, mask, mean="mismatch.chi2.token")
    sheet.moments(share(xp.abs(difference) > EXTREME, difference), mask, mean="mismatch.extreme_ratio_fraction")
    error = xp.exp(xp.abs(difference))
    filled = real(mask.sum(axis=-1) > 0)
    sheet.moments(error, mask, mean="mismatch.token_mult_prob_error")
    sheet.moments(masked_mean(error, mask, axis=-1), filled, max="mismatch.seq_mult_prob_error.max")
    _add_perplexities(sheet, masked_mean(-difference, mask, axis=-1), -masked_mean(rollout, mask, axis=-1), filled)
    _add_sequences(sheet, sequence_weights(train, rollout, mask), filled)
    if bounds != UNBOUNDED:
        _add_truncated(sheet, weight, mask, filled, bounds)
    _add_probabilities(sheet, train, rollout, mask)


def _add_perplexities(sheet: StatisticSheet, gap: Array, log_perplexity: Array, filled: Array) -> None:
    """For sequences with tokens: the trainer's perplexity relative to the engine's, and the engine's perplexity."""
    xp = library(gap)
    sheet.moments(xp.exp(gap), filled, mean="mismatch.ppl_ratio")
    sheet.moments(
        gap, filled,
        mean="mismatch.log_ppl_gap.mean", max="mismatch.log_ppl_gap.max", min="mismatch.log_ppl_gap.min",
    )  # fmt: skip
    sheet.moments(xp.abs(gap), filled, mean="mismatch.log_ppl_gap.abs_mean")
    sheet.moments(log_perplexity, filled, mean="policy.log_perplexity.rollout")
    sheet.moments(xp.exp(log_perplexity), filled, mean="policy.perplexity.rollout")


def _add_sequences(sheet: StatisticSheet, weights: Array, filled: Array) -> None:
    """Add the weights of whole sequences; sequences without tokens are ignored."""
    row = sheet.moments(
        weights, filled,
        mean="mismatch.is_weight_sequence.mean", max="mismatch.is_weight_sequence.max",
        min="mismatch.is_weight_sequence.min", std="mismatch.is_weight_sequence.std",
    )  # fmt: skip
    sheet.derive("mismatch.effective_sample_size.sequence", effective_sample_size, row)
    sheet.moments(weights * weights - 1.0, filled, mean="mismatch.chi2.sequence")


def _add_truncated(sheet: StatisticSheet, weight: Array, mask: Array, filled: Array, bounds: WeightBounds) -> None:
    low, high = bounds
    below = share(weight < (-math.inf if low is None else low), weight)
    above = share(weight > (math.inf if high is None else high), weight)
    sheet.moments(below + above, mask, mean="mismatch.is_truncated_fraction")
    if low is not None:
        sheet.moments(below, mask, mean="mismatch.is_truncated_fraction.lower")
    if high is not None:
        sheet.moments(above, mask, mean="mismatch.is_truncated_fraction.upper")
    touched = row_sum(below + above, mask)
    sheet.moments(share(touched > 0, touched), filled, mean="mismatch.is_truncated_fraction.sequence")
    row = sheet.moments(
        truncated_weights(weight, bounds), mask,
        mean="mismatch.is_weight_truncated.mean", std="mismatch.is_weight_truncated.std",
        max="mismatch.is_weight_truncated.max", min="mismatch.is_weight_truncated.min",
    )  # fmt: skip
    sheet.derive("mismatch.effective_sample_size.truncated", effective_sample_size, row)


def _add_probabilities(sheet: StatisticSheet, train: Array, rollout: Array, mask: Array) -> None:
    xp = library(train)
    p, q = (xp.exp(xp.where(mask > 0, logprobs, 0.0 * mask)) for logprobs in (train, rollout))
    sheet.moments(
        xp.abs(p - q), mask,
        mean="mismatch.prob_abs_diff.mean", max="mismatch.prob_abs_diff.max", std="mismatch.prob_abs_diff.std",
    )  # fmt: skip
    parts = [sheet.moments(x, mask) for x in (p, q, p + q)]
    sheet.derive("mismatch.prob_pearson", pearson, *parts)
