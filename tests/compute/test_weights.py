"""The weights changed by a sync, and the gap on tokens of the newest weights, compared with single numbers."""

from __future__ import annotations

import math

import numpy as np
import pytest

from rlvitals.compute import merge, weights
from rlvitals.errors import ConfigError


def test_changed_weights_are_counted_one_by_one_over_tensors_of_any_size():
    before = {"a": np.array([[1.0, 2.0], [3.0, 4.0]]), "b": np.array([math.nan, 5.0, 6.0]), "empty": np.zeros(0)}
    after = {"a": np.array([[1.0, 2.5], [3.0, 4.0]]), "b": np.array([math.nan, 5.0, math.nan]), "empty": np.zeros(0)}
    found = weights.stats(before=before, after=after)["sync.changed_fraction"]
    assert found.number == pytest.approx(2 / 7)  # one of four in `a`, and the 6 in `b` that became NaN
    assert found.count == 7


def test_a_sync_that_delivers_nothing_is_exactly_zero_and_ranks_add_up():
    torch = pytest.importorskip("torch")
    held = {"w": torch.arange(6, dtype=torch.bfloat16)}
    assert weights.stats(before=held) == weights.stats(after=held) == {}
    dead = weights.stats(before=held, after={"w": held["w"].clone()})
    assert dead["sync.changed_fraction"].number == 0.0
    moved = weights.stats(before=held, after={"w": held["w"] + 1})
    assert merge([dead, moved])["sync.changed_fraction"].number == 0.5
    # An update that bfloat16 rounds away does not change the engine's weights.
    lost = weights.stats(before={"w": torch.ones(3).bfloat16()}, after={"w": (torch.ones(3) + 1e-4).bfloat16()})
    assert lost["sync.changed_fraction"].number == 0.0


@pytest.mark.parametrize("ages", [[[0, 0, 2], [0, 3, 0]], [0, 0]])
def test_the_gap_right_after_a_sync_is_that_of_tokens_of_age_zero(ages):
    train = np.array([[-1.0, -2.0, -3.0], [-1.0, -4.0, math.nan]])
    engine = np.array([[-1.1, -2.5, -9.0], [-0.7, -9.0, math.nan]])
    mask = np.array([[1, 1, 1], [1, 1, 0]])
    found = weights.stats(logprobs=train, rollout_logprobs=engine, ages=np.array(ages), mask=mask)
    gaps = [0.1, 0.5, 0.3] + ([6.0, 5.0] if np.ndim(ages) == 1 else [])
    assert found["sync.gap.mean"].number == pytest.approx(sum(gaps) / len(gaps))


def test_without_a_fresh_token_the_gap_is_undefined():
    found = weights.stats(logprobs=[[-1.0]], rollout_logprobs=[[-2.0]], ages=[[1]])
    assert found["sync.gap.mean"].number is None


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({"before": {"a": np.zeros(2)}, "after": {"b": np.zeros(2)}}, "only one has 'a'"),
        ({"before": {"a": np.zeros(2)}, "after": {"a": np.zeros(3)}}, r"a had the shape \(2,\) and now has \(3,\)"),
        ({"ages": [[0]], "logprobs": [[0.0]]}, "needs logprobs, rollout_logprobs and ages"),
    ],
)
def test_what_does_not_fit_is_reported(given, message):
    with pytest.raises(ConfigError, match=message):
        weights.stats(**given)
