"""How per-token numbers become one."""

from __future__ import annotations

import loops
import numpy as np
import pytest

from rlvitals.compute.aggregate import MODES, aggregate
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


@pytest.mark.parametrize("mode", MODES)
def test_an_empty_mask_is_undefined(mode):
    assert np.isnan(aggregate([[1.0, 2.0]], [[0, 0]], mode, group_ids=[0]))


def test_an_unknown_mode_and_missing_groups_are_said():
    with pytest.raises(ConfigError, match="Did you mean 'token-mean'"):
        aggregate([[1.0]], [[1]], "token_mean")
    with pytest.raises(ConfigError, match="needs group_ids"):
        aggregate([[1.0]], [[1]], "group-mean-token-mean")
