"""Aggregation of per-token numbers into one number."""

from __future__ import annotations

import math
import warnings

import loops
import numpy as np
import pytest

from rlvitals.compute import policy
from rlvitals.compute.aggregate import MODES, aggregate
from rlvitals.compute.mismatch import sequence_weights
from rlvitals.errors import ConfigError

SEEDS = range(4)


def data(seed):
    tensors = loops.batch(seed)
    return tensors["advantages"], tensors["mask"]


@pytest.mark.parametrize("seed", SEEDS)
def test_token_mean_is_the_mean_of_all_tokens(seed):
    x, mask = data(seed)
    assert aggregate(x, mask) == pytest.approx(
        loops.mean([number for (number,) in loops.token_list(mask, x)]), rel=1e-12
    )


@pytest.mark.parametrize("seed", SEEDS)
def test_sequence_means_count_each_sequence_once_and_empty_ones_never(seed):
    x, mask = data(seed)
    rows = loops.rows_of(x, mask)
    assert len(rows) < len(x)
    assert aggregate(x, mask, "seq-mean-token-mean") == pytest.approx(loops.mean([loops.mean(r) for r in rows]))
    assert aggregate(x, mask, "seq-mean-token-sum") == pytest.approx(loops.mean([sum(r) for r in rows]))


@pytest.mark.parametrize("seed", SEEDS)
def test_the_normed_sum_divides_by_a_horizon_that_is_the_padded_length_unless_given(seed):
    x, mask = data(seed)
    total = sum(sum(row) for row in loops.rows_of(x, mask))
    assert aggregate(x, mask, "seq-mean-token-sum-norm") == pytest.approx(total / x.shape[1])
    assert aggregate(x, mask, "seq-mean-token-sum-norm", horizon=100) == pytest.approx(total / 100)


def test_groups_count_the_same_however_many_tokens_they_have():
    x = [[1.0, 1.0, 1.0], [3.0, 3.0, 0.0], [10.0, 0.0, 0.0]]
    mask = [[1, 1, 1], [1, 1, 0], [1, 0, 0]]
    # group a: (3 + 6) / 5 tokens; group b: 10
    assert aggregate(x, mask, "group-mean-token-mean", group_ids=["a", "a", "b"]) == pytest.approx((9 / 5 + 10) / 2)


@pytest.mark.parametrize("seed", SEEDS)
def test_rolls_way_counts_sequences_without_tokens_as_zero(seed):
    x, mask = data(seed)
    rows = loops.rows_of(x, mask)
    assert len(rows) < len(x)
    means, sums = [loops.mean(row) for row in rows], [math.fsum(row) for row in rows]
    assert aggregate(x, mask, "roll-seq-mean-token-mean") == pytest.approx(math.fsum(means) / len(x))
    assert aggregate(x, mask, "roll-seq-mean-token-sum") == pytest.approx(math.fsum(sums) / len(x))


@pytest.mark.parametrize("seed", SEEDS)
def test_a_mean_over_groups_counts_each_group_once(seed):
    x, mask = data(seed)
    groups = ["a", "b", "a", "c", "d"]  # the sequence of d has no token
    members = {
        name: [loops.rows_of(x[i : i + 1], mask[i : i + 1]) for i, its in enumerate(groups) if its == name]
        for name in "abc"
    }
    tokens = [[t for found in rows for row in found for t in row] for rows in members.values()]
    assert aggregate(x, mask, "group-mean-token-mean", group_ids=groups) == pytest.approx(
        loops.mean([loops.mean(group) for group in tokens])
    )
    sequences = [[loops.mean(row) for found in rows for row in found] for rows in members.values()]
    assert aggregate(x, mask, "group-mean-seq-mean-token-mean", group_ids=groups) == pytest.approx(
        loops.mean([loops.mean(group) for group in sequences])
    )


@pytest.mark.parametrize("mode", MODES)
def test_an_empty_mask_is_undefined_but_for_those_who_count_it_as_zero(mode):
    found = aggregate([[1.0, 2.0]], [[0, 0]], mode, group_ids=[0])
    assert found == 0.0 if mode.startswith("roll-") else np.isnan(found)


@pytest.mark.parametrize("padding", [math.inf, -math.inf, math.nan])
@pytest.mark.parametrize("mode", MODES)
def test_what_lies_under_the_mask_is_not_calculated_with(mode, padding):
    mask = [[1, 1, 0], [1, 0, 0], [0, 0, 0]]
    clean = [[1.0, 2.0, 0.0], [5.0, 0.0, 0.0], [0.0, 0.0, 0.0]]
    filled = np.where(np.array(mask) > 0, clean, padding)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert aggregate(filled, mask, mode, group_ids=[0, 0, 1]) == aggregate(clean, mask, mode, group_ids=[0, 0, 1])


@pytest.mark.parametrize("of_sequences", [policy.sequence_ratio, sequence_weights])
def test_infinite_padding_on_both_sides_is_no_warning(of_sequences):
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        found = of_sequences([[-1.0, -math.inf]], [[-1.0, -math.inf]], [[1, 0]])
    assert found.tolist() == [1.0]


def test_an_unknown_mode_and_missing_groups_are_reported():
    with pytest.raises(ConfigError, match="Did you mean 'token-mean'"):
        aggregate([[1.0]], [[1]], "token_mean")
    with pytest.raises(ConfigError, match="needs group_ids"):
        aggregate([[1.0]], [[1]], "group-mean-token-mean")
