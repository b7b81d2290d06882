"""How far the engine that sampled the tokens and the trainer that learns from them disagree.

With w = p_train / p_rollout on the sampled tokens: KL(rollout || train) by its estimators, the importance weights, the
effective sample size and the chi-square distance. Part of `policy.stats(rollout_logprobs=...)`.
"""

from __future__ import annotations

import math

from rlvitals.compute.arrays import Array, library, masked_mean, real
from rlvitals.compute.packing import Sheet
from rlvitals.values import Value


def effective_sample_size(weights: Value) -> float | None:
    """(sum w)^2 / (n sum w^2), from the moments of the weights: 1 when all are equal, 1/n when one holds all.

    >>> from rlvitals import values
    >>> effective_sample_size(values.mean([1.0, 1.0])), effective_sample_size(values.mean([2.0, 0.0]))
    (1.0, 0.5)
    """
    square = weights.mean * weights.mean
    mean_square = square + weights.m2 / weights.count
    return square / mean_square if mean_square else None


def pearson(x: Value, y: Value, sums: Value) -> float | None:
    """Correlation of x and y from the moments of x, of y and of x + y; None where one of them does not vary."""
    if not (x.m2 > 0 and y.m2 > 0):
        return None
    return (sums.m2 - x.m2 - y.m2) / (2.0 * math.sqrt(x.m2 * y.m2))


def add(sheet: Sheet, train: Array, rollout: Array, mask: Array) -> None:
    """Add the statistics to a sheet; all arrays are [sequences, tokens]."""
    xp = library(train)
    # A masked position may hold anything, and exp() of anything may overflow with a warning.
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
    error = xp.exp(xp.abs(difference))
    filled = real(mask.sum(axis=-1) > 0)
    sheet.moments(error, mask, mean="mismatch.token_mult_prob_error")
    sheet.moments(masked_mean(error, mask, axis=-1), filled, max="mismatch.seq_mult_prob_error.max")
    sheet.moments(xp.exp(masked_mean(-difference, mask, axis=-1)), filled, mean="mismatch.ppl_ratio")
    _add_probabilities(sheet, train, rollout, mask)


def _add_probabilities(sheet: Sheet, train: Array, rollout: Array, mask: Array) -> None:
    xp = library(train)
    p, q = (xp.exp(xp.where(mask > 0, logprobs, 0.0 * mask)) for logprobs in (train, rollout))
    sheet.moments(
        xp.abs(p - q), mask,
        mean="mismatch.prob_abs_diff.mean", max="mismatch.prob_abs_diff.max", std="mismatch.prob_abs_diff.std",
    )  # fmt: skip
    parts = [sheet.moments(x, mask) for x in (p, q, p + q)]
    sheet.derive("mismatch.prob_pearson", pearson, *parts)
