"""Aggregates per-token numbers into one, over tokens, sequences or groups. Modes have the names that frameworks use.

| mode | result |
|---|---|
| `token-mean` | sum of all tokens / number of tokens |
| `seq-mean-token-mean` | mean over sequences of each sequence's token mean |
| `seq-mean-token-sum` | mean over sequences of each sequence's token sum |
| `seq-mean-token-sum-norm` | sum over sequences of token sum / horizon (the padded length unless given) |
| `group-mean-token-mean` | mean over groups of the mean of all tokens of a group |
| `group-mean-seq-mean-token-mean` | mean over groups of the mean of its sequences' token means |
| `roll-seq-mean-token-mean` | sum of the sequences' token means / number of sequences, empty ones included |
| `roll-seq-mean-token-sum` | sum of the sequences' token sums / number of sequences, empty ones included |

Sequences without tokens are ignored, except in the two modes named after ROLL, which counts them as 0. Each mode is a
set of numbers with weights, so its result can be merged.
"""

from __future__ import annotations

from typing import Any, NamedTuple

from rlvitals.compute.arrays import Array, gather, group_slots, group_sum, library, real, row_sum
from rlvitals.errors import ConfigError, did_you_mean
from rlvitals.values import Kind

MODES = (
    "token-mean",
    "seq-mean-token-mean",
    "seq-mean-token-sum",
    "seq-mean-token-sum-norm",
    "group-mean-token-mean",
    "group-mean-seq-mean-token-mean",
    "roll-seq-mean-token-mean",
    "roll-seq-mean-token-sum",
)


class Terms(NamedTuple):
    """Numbers, the weight of each, and whether their mean or their sum is the result."""

    numbers: Any
    weights: Any
    kind: Kind = "mean"


def terms(
    x: Array,
    mask: Array,
    mode: str = "token-mean",
    *,
    group_ids: Array = None,
    horizon: float | None = None,
) -> Terms:
    """The numbers and weights that a mode averages or sums."""
    if mode not in MODES:
        raise ConfigError(f"unknown aggregation {mode!r}.{did_you_mean(mode, MODES)} Known: {', '.join(MODES)}")
    if mode == "token-mean":
        return Terms(x, mask)
    xp = library(x)
    lengths = mask.sum(axis=-1)
    filled = real(lengths > 0)
    sums = row_sum(x, mask)
    means = sums / xp.where(lengths > 0, lengths, 1.0 + 0.0 * lengths)
    match mode:
        case "seq-mean-token-mean":
            return Terms(means, filled)
        case "seq-mean-token-sum":
            return Terms(sums, filled)
        case "seq-mean-token-sum-norm":
            return Terms(sums / (horizon or x.shape[-1]), filled, "sum")
        case "roll-seq-mean-token-mean":
            return Terms(means, xp.ones_like(means))
        case "roll-seq-mean-token-sum":
            return Terms(sums, xp.ones_like(sums))
    if group_ids is None:
        raise ConfigError(f"the aggregation {mode!r} needs group_ids: one id for each sequence")
    slots = group_slots(group_ids, x)
    numbers, counts = (sums, lengths) if mode == "group-mean-token-mean" else (means, filled)
    count = group_sum(counts, slots)
    return Terms(group_sum(numbers, slots) / xp.where(count > 0, count, 1.0 + 0.0 * count), real(count > 0))


def aggregate(x: Array, mask: Array, mode: str = "token-mean", **options: Any) -> Array:
    """One number in the given mode, as a 0-d array; NaN if no position is inside the mask.

    >>> x, mask = [[1.0, 1.0, 1.0], [5.0, 0.0, 0.0]], [[1, 1, 1], [1, 0, 0]]
    >>> [float(aggregate(x, mask, mode)) for mode in ("token-mean", "seq-mean-token-mean", "seq-mean-token-sum")]
    [2.0, 3.0, 4.0]
    >>> float(aggregate(x, mask, "seq-mean-token-sum-norm", horizon=4))
    2.0
    """
    x, mask = gather(x, mask)
    numbers, weights, kind = terms(x, mask, mode, **options)
    xp = library(numbers)
    count = weights.sum()
    # `where` comes before the product: infinity times a weight of 0 would raise a warning.
    result = (xp.where(weights > 0, numbers, 0.0 * weights) * weights).sum()
    divisor = xp.where(count > 0, count if kind == "mean" else 1.0 + 0.0 * count, xp.nan + 0.0 * count)
    return result / divisor
