"""Advantages, returns and values against loops written from the definitions."""

from __future__ import annotations

import math

import loops
import numpy as np
import pytest
from loops import mean

from rlvitals.compute import advantage
from rlvitals.compute.credit import turn_advantage
from rlvitals.errors import ConfigError


def discounted_sum_of_errors(rewards, values, mask, *, gamma, lam, ends, last):
    """GAE written out as a sum: A_t = sum_k (gamma lam)^k delta_{t+k}, over the tokens that count."""
    found = np.zeros_like(rewards)
    for i in range(len(rewards)):
        kept = [t for t in range(rewards.shape[1]) if mask[i, t]]
        for here in range(len(kept)):
            factor = 1.0
            for k in range(here, len(kept)):
                t = kept[k]
                following = values[i, kept[k + 1]] if k + 1 < len(kept) else last[i]
                following = 0.0 if ends[i, t] else following
                found[i, kept[here]] += factor * (rewards[i, t] + gamma * following - values[i, t])
                if ends[i, t]:
                    break
                factor *= gamma * lam
    return found


@pytest.mark.parametrize("seed", range(4))
@pytest.mark.parametrize(("gamma", "lam"), [(1.0, 1.0), (0.99, 0.95), (0.9, 0.0)])
def test_gae_is_the_discounted_sum_of_errors(seed, gamma, lam):
    rng = np.random.default_rng(seed)
    mask = loops.batch(seed)["mask"]
    rewards, values = rng.normal(size=mask.shape), rng.normal(size=mask.shape)
    ends = (rng.random(mask.shape) < 0.2) * 1.0
    last = rng.normal(size=len(mask))
    expected = discounted_sum_of_errors(rewards, values, mask, gamma=gamma, lam=lam, ends=ends, last=last)
    found = advantage.gae(rewards, values, mask, gamma=gamma, lam=lam, ends=ends, last_values=last)
    np.testing.assert_allclose(found.advantages, expected, rtol=1e-12, atol=1e-12)
    np.testing.assert_allclose(found.returns, (expected + values) * mask, rtol=1e-12, atol=1e-12)


def test_sequences_without_tokens_have_no_advantages():
    assert advantage.gae(np.zeros((2, 0)), np.zeros((2, 0))).advantages.shape == (2, 0)
    assert advantage.gae(np.ones((1, 2)), np.ones((1, 2)), np.zeros((1, 2))).advantages.tolist() == [[0.0, 0.0]]


def test_returns_are_the_reward_still_to_come():
    rewards = np.array([[1.0, 9.0, 2.0, 4.0]])
    mask = np.array([[1, 0, 1, 1]])
    assert advantage.discounted_returns(rewards, mask, gamma=0.5).tolist() == [[3.0, 0.0, 4.0, 4.0]]


REWARDS, GROUPS = [1.0, 0.0, 0.0, 1.0, 2.0, 2.0, 7.0], ["x", "x", "x", "y", "y", "y", "z"]


def test_group_relative_advantages_by_hand():
    x = [1.0, 0.0, 0.0]
    spread = math.sqrt(loops.variance(x))
    found = advantage.group_relative(REWARDS, GROUPS, epsilon=0.0 + 1e-8)
    assert found[:3] == pytest.approx([(r - mean(x)) / (spread + 1e-8) for r in x])
    assert found[6] == 0.0
    unbiased = advantage.group_relative(REWARDS, GROUPS, unbiased=True)
    assert unbiased[:3] == pytest.approx([(r - mean(x)) / (math.sqrt(loops.variance(x, 1)) + 1e-8) for r in x])
    assert math.isnan(unbiased[6])
    assert advantage.group_relative(REWARDS, GROUPS, scale="none")[3:6] == pytest.approx([-2 / 3, 1 / 3, 1 / 3])


def test_leave_one_out_subtracts_the_mean_of_the_others():
    found = advantage.leave_one_out(REWARDS, GROUPS)
    assert found[:6] == pytest.approx([1.0, -0.5, -0.5, 1 - 2, 2 - 1.5, 2 - 1.5])
    assert math.isnan(found[6])


def test_the_order_of_rows_does_not_matter_to_groups():
    order = [4, 0, 6, 2, 5, 1, 3]
    shuffled = advantage.group_relative([REWARDS[i] for i in order], [GROUPS[i] for i in order])
    assert shuffled == pytest.approx(advantage.group_relative(REWARDS, GROUPS)[order])


def test_whitening_uses_the_unbiased_variance_of_what_counts():
    x, mask = [[1.0, 2.0, 50.0], [4.0, 60.0, 70.0]], [[1, 1, 0], [1, 0, 0]]
    kept = [1.0, 2.0, 4.0]
    scale = math.sqrt(loops.variance(kept, 1) + 1e-8)
    found = advantage.whiten(x, mask)
    assert found.tolist() == [
        [pytest.approx((1 - mean(kept)) / scale), pytest.approx((2 - mean(kept)) / scale), 0.0],
        [pytest.approx((4 - mean(kept)) / scale), 0.0, 0.0],
    ]
    assert advantage.whiten(x, mask, shift_mean=False)[0, 0] == pytest.approx((1 - mean(kept)) / scale + mean(kept))


def test_one_token_cannot_be_whitened_and_stays():
    assert advantage.whiten([[3.0, 9.0]], [[1, 0]]).tolist() == [[3.0, 0.0]]


@pytest.fixture
def values():
    rng = np.random.default_rng(5)
    mask = loops.batch(5)["mask"]
    return {name: rng.normal(size=mask.shape) for name in ("returns", "values", "old_values")} | {"mask": mask}


def test_value_statistics_token_by_token(values):
    found = {name: value.number for name, value in advantage.stats(**values, value_clip=0.3).items()}
    tokens = loops.token_list(values["mask"], values["values"], values["returns"], values["old_values"])
    losses, clipped = [], []
    for v, target, old in tokens:
        near = min(max(v, old - 0.3), old + 0.3)
        losses.append(0.5 * max((v - target) ** 2, (near - target) ** 2))
        clipped.append((near - target) ** 2 > (v - target) ** 2)
    residuals = [target - old for _, target, old in tokens]
    targets = [target for _, target, _ in tokens]
    assert found["value.loss"] == pytest.approx(mean(losses))
    assert found["value.clip_fraction"] == pytest.approx(mean(clipped))
    assert found["value.error"] == pytest.approx(mean([(v - target) ** 2 for v, target, _ in tokens]))
    assert found["value.predicted.mean"] == pytest.approx(mean([v for v, _, _ in tokens]))
    assert found["value.mean"] == pytest.approx(mean([old for _, _, old in tokens]))
    assert found["value.max"] == max(old for _, _, old in tokens)
    assert found["value.min"] == min(old for _, _, old in tokens)
    assert found["value.explained_variance"] == pytest.approx(1 - loops.variance(residuals) / loops.variance(targets))
    assert found["return.mean"] == pytest.approx(mean(targets))
    assert (found["return.max"], found["return.min"]) == (max(targets), min(targets))


def test_without_a_clip_there_is_no_clip_fraction(values):
    found = advantage.stats(**values)
    assert "value.clip_fraction" not in found
    assert "critic/clipfrac" not in advantage.stats(**values, names="roll")
    assert found["value.loss"].number == pytest.approx(found["value.error"].number / 2)


def test_rolls_value_loss_is_a_mean_over_sequences(values):
    found = advantage.stats(**values, aggregation="seq-mean-token-mean", names="roll")
    errors = loops.rows_of((values["values"] - values["returns"]) ** 2, values["mask"])
    assert found["critic/error"].number == pytest.approx(mean([mean(row) for row in errors]))
    assert found["critic/loss"].number == pytest.approx(mean([mean(row) for row in errors]) / 2)
    olds = loops.rows_of(values["old_values"], values["mask"])
    assert found["critic/value"].number == pytest.approx(mean([mean(row) for row in olds]))
    assert found["critic/values/mean"].number == pytest.approx(mean([x for row in olds for x in row]))


def test_explained_variance_of_returns_that_do_not_vary_is_undefined():
    found = advantage.stats(returns=[[1.0, 1.0]], values=[[0.0, 2.0]])
    assert found["value.explained_variance"].number is None


def test_advantage_statistics_token_by_token():
    tensors = loops.batch(3)
    found = advantage.stats(advantages=tensors["advantages"], mask=tensors["mask"])
    kept = [a for (a,) in loops.token_list(tensors["mask"], tensors["advantages"])]
    assert found["advantage.mean"].number == pytest.approx(mean(kept))
    assert found["advantage.abs_mean"].number == pytest.approx(mean([abs(a) for a in kept]))
    assert found["advantage.std"].number == pytest.approx(math.sqrt(loops.variance(kept, 1)))
    assert (found["advantage.max"].number, found["advantage.min"].number) == (max(kept), min(kept))


def test_advantages_of_whole_sequences_need_no_mask():
    found = advantage.stats(advantages=[1.0, -1.0, 3.0])
    assert found["advantage.mean"].number == 1.0
    assert advantage.stats(advantages=[2.0])["advantage.std"].number is None


def test_rewards_are_summed_for_each_sequence_and_clipped_advantages_counted():
    found = advantage.stats(
        token_rewards=[[0.1, 1.0], [0.2, 9.0]], mask=[[1, 1], [1, 0]], raw_advantages=[3.0, 0.5], advantage_clip=1.0
    )
    assert found["reward.shaped.mean"].number == pytest.approx((1.1 + 0.2) / 2)
    assert found["reward.shaped.max"].number == pytest.approx(1.1)
    assert found["reward.shaped.min"].number == pytest.approx(0.2)
    assert found["advantage.clip_fraction"].number == pytest.approx(2 / 3)
    assert found["advantage.raw.mean"].number == pytest.approx((3 + 3 + 0.5) / 3)


def test_a_sequence_without_tokens_has_no_shaped_reward():
    given = {"token_rewards": [[-0.5, -1.0], [7.0, 7.0], [-2.0, 7.0]], "mask": [[1, 1], [0, 0], [1, 0]]}
    found = advantage.stats(**given)
    assert found["reward.shaped.mean"].number == pytest.approx((-1.5 - 2.0) / 2)
    assert (found["reward.shaped.max"].number, found["reward.shaped.min"].number) == (-1.5, -2.0)
    nothing = advantage.stats(token_rewards=[[1.0]], mask=[[0]])
    assert nothing["reward.shaped.mean"].number is None


def test_values_outside_the_clip_range_are_counted_whichever_error_is_larger():
    # Moves of 0.2, 0.6, -0.6. The second moves towards its return and the clip binds; the third moves away from it.
    given = {"values": [[1.2, 1.6, 0.4]], "old_values": [[1.0, 1.0, 1.0]], "returns": [[1.0, 2.0, 2.0]]}
    found = advantage.stats(**given, value_clip=0.5)
    assert found["value.outside_fraction"].number == pytest.approx(2 / 3)
    assert found["value.clip_fraction"].number == pytest.approx(1 / 3)
    assert "value.outside_fraction" not in advantage.stats(**given)


def test_a_share_that_a_nan_decides_is_nan():
    given = {"values": [[math.nan, 1.0]], "old_values": [[1.0, 1.0]], "returns": [[1.0, 2.0]]}
    found = advantage.stats(**given, value_clip=0.5, raw_advantages=[[math.nan, 1.0]], advantage_clip=0.5)
    for name in ("value.clip_fraction", "value.outside_fraction", "advantage.clip_fraction"):
        assert math.isnan(found[name].number), name
    broken = advantage.stats(returns=[[math.nan, 1.0]], values=[[1.0, 2.0]])
    assert math.isnan(broken["value.explained_variance"].number)


@pytest.mark.parametrize(
    ("outcome", "of_good", "of_bad"),
    [
        ("no_tool", 1.0, -1.0), ("unjudged", 1.0, -1.0), ("bad_arguments", -2.0, -2.5), ("unknown_tool", -1.5, -2.2),
        ("search_hit", 1.8, 0.3), ("search_miss", 0.8, -1.2), ("search_empty", 0.85, -1.15), ("read_hit", 1.8, 0.3),
        ("read_miss", 0.75, -1.25), ("answer_correct", 2.5, 1.0), ("answer_wrong", -0.8, -2.5),
    ],
)  # fmt: skip
def test_turn_credit_follows_the_documents_table(outcome, of_good, of_bad):
    assert turn_advantage(1.0, outcome) == pytest.approx(of_good)
    assert turn_advantage(-1.0, outcome) == pytest.approx(of_bad)


def test_what_does_not_fit_is_reported():
    with pytest.raises(ConfigError, match="nothing to measure"):
        advantage.stats()
    with pytest.raises(ConfigError, match="needs old_values"):
        advantage.stats(values=[[1.0]], returns=[[1.0]], value_clip=0.1)
    with pytest.raises(ConfigError, match="Did you mean 'search_hit'"):
        turn_advantage(0.0, "searchhit")
    with pytest.raises(ConfigError, match="scale must be"):
        advantage.group_relative([1.0], [0], scale="batch")


def test_equal_rewards_have_no_advantage_whatever_their_sum_rounds_to():
    assert advantage.group_relative([-1.9] * 8, [0] * 8).tolist() == [0.0] * 8
    assert advantage.leave_one_out([0.1] * 3, [0] * 3).tolist() == [0.0] * 3
