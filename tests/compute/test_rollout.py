"""Rollout statistics: lengths, truncation, scores, groups, pass@k, repetition."""

from __future__ import annotations

import itertools
import math
import statistics

import numpy as np
import pytest

from rlvitals import values
from rlvitals.compute import rollout
from rlvitals.compute.repetition import compression_ratio, longest_repeat, ngram_repetition
from rlvitals.errors import ConfigError


def numbers(**given):
    return {name: value.number for name, value in rollout.stats(**given).items()}


def test_lengths_by_count_or_by_mask():
    mask = [[1, 1, 1, 0], [0, 1, 0, 0], [0, 0, 0, 0]]
    by_mask = numbers(response_mask=mask, prompt_mask=[[1, 0], [1, 1], [1, 1]])
    assert by_mask == numbers(response_lengths=[3, 1, 0], prompt_lengths=[1, 2, 2])
    assert by_mask["length.response.mean"] == pytest.approx(4 / 3)
    assert (by_mask["length.response.max"], by_mask["length.response.min"]) == (3, 0)
    assert by_mask["length.response.std"] == pytest.approx(statistics.pstdev([3, 1, 0]))
    assert by_mask["length.prompt.mean"] == pytest.approx(5 / 3)
    assert (by_mask["length.prompt.max"], by_mask["length.prompt.min"]) == (2, 1)
    assert by_mask["length.total.mean"] == pytest.approx(3.0)
    assert by_mask["length.aborted_fraction"] == pytest.approx(1 / 3)


def test_lengths_of_responses_that_have_a_token():
    found = numbers(response_lengths=[3, 0, 1, 0])
    assert (found["length.non_empty.mean"], found["length.non_empty.max"], found["length.non_empty.min"]) == (2, 3, 1)
    assert (found["length.response.mean"], found["length.response.min"]) == (1, 0)
    assert numbers(response_lengths=[0, 0])["length.non_empty.mean"] is None


def test_the_mean_reward_of_groups_counts_every_group_once():
    found = numbers(scores=[1.0, 0.0, 0.0, 0.0, 1.0], group_ids=["a", "a", "a", "a", "b"])
    assert found["group.reward_mean.mean"] == pytest.approx((0.25 + 1.0) / 2)
    assert found["reward.total.mean"] == pytest.approx(2 / 5)


def test_truncation_is_known_by_the_finish_reason_and_not_by_the_length():
    found = numbers(response_lengths=[8, 8, 3], finish_reasons=["length", "stop", "stop"], max_response_length=8)
    assert found["length.truncated_fraction"] == pytest.approx(1 / 3)
    assert found["length.terminated.mean"] == 5.5
    assert numbers(response_lengths=[8, 8, 3], max_response_length=8)["length.truncated_fraction"] == pytest.approx(
        2 / 3
    )
    assert numbers(response_lengths=[8, 8], truncated=[True, True])["length.terminated.mean"] is None


def test_scores_and_the_share_outside_the_limits():
    scores = [-2.0, -1.0, 0.5, 1.0, 3.0]
    found = numbers(scores=scores, score_low=-1.0, score_high=1.0)
    assert found["reward.total.mean"] == pytest.approx(statistics.mean(scores))
    assert found["reward.total.std"] == pytest.approx(statistics.stdev(scores))
    assert found["reward.total.var"] == pytest.approx(statistics.pvariance(scores))
    assert (found["reward.total.min"], found["reward.total.max"]) == (-2.0, 3.0)
    assert found["reward.clip_fraction"] == pytest.approx(2 / 5)  # a reward on the limit is not clipped
    assert "reward.clip_fraction" not in numbers(scores=scores)
    assert rollout.clip_fraction(scores, high=0.0) == pytest.approx(3 / 5)


def test_a_single_score_has_no_sample_deviation():
    assert numbers(scores=[1.0])["reward.total.std"] is None


def test_an_evaluation_has_its_own_names():
    assert numbers(scores=[0.0, 1.0], stage="eval") == {
        "eval.score.mean": 0.5, "eval.score.max": 1.0, "eval.score.min": 0.0,
    }  # fmt: skip
    assert "val/score/mean" in numbers(scores=[0.0, 1.0], stage="eval", names="roll")


def test_reward_components_leave_out_samples_they_do_not_apply_to():
    found = numbers(components={"format": [1.0, math.nan, 0.0]})
    assert found["rewards/format/mean"] == 0.5
    assert found["rewards/format/std"] == pytest.approx(statistics.stdev([1.0, 0.0]))


def test_the_score_is_the_weighted_sum_of_the_components_where_none_is_given():
    parts = {"Correctness": [1.0, 0.5], "CodeQuality": [0.0, math.nan]}
    weights = {"Correctness": 0.3, "CodeQuality": 0.7}
    found = numbers(components=parts, component_weights=weights, names="rlaif")
    assert found["Train/AvgReward"] == pytest.approx((0.3 + 0.15) / 2)
    assert (found["Scoring/Correctness"], found["Scoring/CodeQuality"]) == (0.3, 0.7)
    with pytest.raises(ConfigError, match="CodeQuality"):
        rollout.weighted_reward(parts, {"Correctness": 0.3})


def test_groups_solved_failed_and_mixed():
    found = numbers(
        scores=[1.0, 1.0, 0.0, 0.0, 0.1, 0.9, 0.7], success=[1, 1, 0, 0, 0, 1, 1], group_ids=list("aabbccd"),
        min_group_std=0.05,
    )  # fmt: skip
    assert found["group.zero_std_fraction"] == pytest.approx(2 / 3)  # d has only one sample, so it has no variance
    assert found["group.all_pass_fraction"] == pytest.approx(2 / 4)
    assert found["group.all_fail_fraction"] == pytest.approx(1 / 4)
    assert found["group.mixed_fraction"] == pytest.approx(1 / 4)
    assert found["group.reward_std.mean"] == pytest.approx(0.4 / 3)
    assert (found["group.total_count"], found["group.kept_count"], found["group.dropped_count"]) == (4, 1, 3)
    assert found["group.correct_ratio.std"] == pytest.approx(statistics.pstdev([1.0, 0.0, 0.5, 1.0]))
    assert found["reward.accuracy"] == pytest.approx(4 / 7)


def test_equal_rewards_have_no_variance_even_where_their_mean_is_rounded():
    assert sum([0.1] * 3) / 3 != 0.1
    assert numbers(scores=[0.1] * 3, group_ids=[5, 5, 5])["group.zero_std_fraction"] == 1.0


def chance_by_counting(n, c, k, wanted):
    draws = list(itertools.combinations([1] * c + [0] * (n - c), k))
    return sum(wanted(draw) for draw in draws) / len(draws)


@pytest.mark.parametrize(("n", "k"), [(1, 1), (4, 1), (4, 2), (5, 3), (6, 6)])
def test_pass_at_k_counts_every_draw(n, k):
    for c in range(n + 1):
        assert rollout.pass_at_k([n], [c], k)[0] == pytest.approx(chance_by_counting(n, c, k, any))
        assert rollout.pass_hat_k([n], [c], k)[0] == pytest.approx(chance_by_counting(n, c, k, all))


def test_pass_at_k_leaves_out_prompts_with_too_few_samples():
    found = numbers(success=[1, 0, 0, 0, 1], group_ids=[0, 0, 1, 1, 2], pass_k=(1, 2, 4))
    assert found["eval.pass_at_k/1"] == pytest.approx((0.5 + 0.0 + 1.0) / 3)
    assert found["eval.pass_at_k/2"] == pytest.approx((1.0 + 0.0) / 2)
    assert found["eval.pass_hat_k/2"] == 0.0
    assert found["eval.pass_at_k/4"] is None
    assert found["eval.pass_at_k/4/low"] is None


def test_the_gap_of_pass_at_k_is_that_of_the_prompts_that_have_k_samples():
    found = numbers(success=[1, 0, 0, 0, 1], group_ids=[0, 0, 1, 1, 2], pass_k=(1, 2))
    assert found["eval.pass_gap_at_k/2"] == pytest.approx(((1.0 - 0.5) + 0.0) / 2)
    assert "eval.pass_gap_at_k/1" not in found


def test_discarded_rollouts_against_trained_ones():
    found = numbers(response_lengths=[2, 4, 12], seconds=[1.0, 3.0, 20.0], trained=[True, True, False])
    assert found["discard.fraction"] == pytest.approx(1 / 3)
    assert (found["discard.length.trained.mean"], found["discard.length.discarded.mean"]) == (3.0, 12.0)
    assert found["discard.length_ratio"] == pytest.approx(3 / 6)
    assert found["discard.time_ratio"] == pytest.approx(2 / 8)
    nothing = numbers(response_lengths=[2, 4], trained=[False, False])
    assert (nothing["discard.length_ratio"], nothing["discard.length.trained.mean"]) == (None, None)


def test_the_interval_is_wilsons():
    # Wilson's interval solves (p - x)^2 = z^2 x (1 - x) / n for x.
    share = values.mean([1.0] * 7 + [0.0] * 3)
    for end in rollout.interval(share):
        assert (0.7 - end) ** 2 == pytest.approx(rollout.Z_95**2 * end * (1 - end) / 10)
    low, high = rollout.interval(values.mean([1.0] * 10))
    assert (round(low, 4), high) == (0.7225, pytest.approx(1.0))
    found = numbers(success=[1] * 7 + [0] * 3, group_ids=list(range(10)), pass_k=[1])
    assert (found["eval.pass_at_k/1/low"], found["eval.pass_at_k/1/high"]) == pytest.approx(rollout.interval(share))


@pytest.mark.slow
def test_the_interval_covers_the_truth_at_least_as_often_as_it_says():
    rng = np.random.default_rng(0)
    covered = 0
    for _ in range(2000):
        skill = rng.beta(0.6, 0.9, 40)  # each prompt's success probability; the true mean is 0.6 / 1.5
        found = rollout.interval(values.mean((rng.random((40, 8)) < skill[:, None]).mean(axis=1)))
        covered += found[0] <= 0.6 / 1.5 <= found[1]
    assert covered / 2000 >= 0.95


def test_lengths_of_right_and_wrong_responses():
    found = numbers(response_lengths=[2, 4, 9], success=[True, True, False])
    assert (found["length.correct.mean"], found["length.incorrect.mean"]) == (3.0, 9.0)


def test_repetition_of_tokens():
    tokens = [1, 2, 3, 4, 1, 2, 3, 4, 1, 2, 3, 4]
    # nine 4-grams: 1234 2341 3412 4123, repeated; four are distinct
    assert ngram_repetition(tokens) == pytest.approx(1 - 4 / 9)
    assert longest_repeat(tokens) == 12
    assert longest_repeat([9, 5, 5, 5, 9]) == 3
    assert longest_repeat(list(range(40))) == 0
    found = numbers(tokens=[tokens, np.arange(12), [1]], texts=["la " * 2000, "A short, plain sentence.", ""])
    assert found["text.ngram_repetition.mean"] == pytest.approx((5 / 9) / 2)  # one token has no 4-gram
    assert found["text.longest_repeat.max"] == 12
    assert found["text.repetition_fraction"] == 0.5
    assert compression_ratio("") is None


def test_longest_repeat_agrees_with_trying_everything():
    rng = np.random.default_rng(2)
    for _ in range(50):
        tokens = rng.integers(0, 3, 14).tolist()
        best = 0
        for start, stop in itertools.combinations(range(15), 2):
            piece = tokens[start:stop]
            for period in range(1, len(piece) // 2 + 1):
                if all(piece[i] == piece[i - period] for i in range(period, len(piece))):
                    best = max(best, len(piece))
        assert longest_repeat(tokens) == best


def test_nothing_is_undefined():
    assert numbers() == {}
    assert set(numbers(response_lengths=[], scores=[]).values()) == {None}


def test_what_does_not_fit_is_reported():
    with pytest.raises(ConfigError, match="needs success and group_ids"):
        rollout.stats(success=[1], pass_k=[1])
    with pytest.raises(ConfigError, match="needs success"):
        rollout.stats(scores=[1.0], group_ids=[0], pass_k=[1])
    with pytest.raises(ConfigError, match="1 or more"):
        rollout.pass_at_k([1], [1], 0)
