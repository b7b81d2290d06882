"""Calibration, prompts lost and won, dependence on prompts and need for reasoning, from their definitions."""

from __future__ import annotations

import numpy as np
import pytest
from loops import mean

from rlvitals.compute import evaluation, merge
from rlvitals.errors import ConfigError
from rlvitals.records import Group, Rollout


def numbers(found):
    return {name: value.number for name, value in found.items()}


def calibration_by_bins(stated, right, bins):
    found = 0.0
    for number in range(bins):
        inside = [i for i, c in enumerate(stated) if number == min(int(c * bins), bins - 1)]
        if inside:
            gap = mean([stated[i] for i in inside]) - mean([float(right[i]) for i in inside])
            found += len(inside) / len(stated) * abs(gap)
    return found


@pytest.mark.parametrize("bins", [1, 5, 10])
def test_calibration_is_the_gap_of_each_bin_weighted_by_its_answers(bins):
    draw = np.random.default_rng(bins)
    stated = [0.0, 1.0, *draw.random(60)]
    right = [bool(x) for x in draw.random(62) < 0.5]
    found = numbers(evaluation.calibration(stated, right, bins=bins))
    assert found["eval.calibration_error"] == pytest.approx(calibration_by_bins(stated, right, bins))
    wrong = [c for c, r in zip(stated, right, strict=True) if not r]
    assert found["eval.confidence_when_wrong"] == pytest.approx(mean(wrong))
    assert found["eval.overconfidence"] == pytest.approx(mean(stated) - mean([float(r) for r in right]))
    assert found["eval.confidence_when_right"] == pytest.approx(
        mean([c for c, r in zip(stated, right, strict=True) if r])
    )


def test_calibration_of_parts_merges_to_that_of_the_whole_and_torch_agrees():
    torch = pytest.importorskip("torch")
    draw = np.random.default_rng(1)
    stated, right = draw.random(40), draw.random(40) < 0.7
    whole = evaluation.calibration(stated, right)
    parts = [
        evaluation.calibration(torch.tensor(stated[at]), torch.tensor(right[at])) for at in (slice(9), slice(9, 40))
    ]
    assert numbers(merge(parts)) == pytest.approx(numbers(whole))
    with pytest.raises(ConfigError, match="2 confidences came with 1"):
        evaluation.calibration([0.5, 0.5], [True])


def test_a_policy_that_is_as_sure_as_it_is_right_has_no_error():
    found = numbers(evaluation.calibration([0.75] * 4, [True, True, True, False]))
    assert (found["eval.calibration_error"], found["eval.overconfidence"]) == (0.0, 0.0)


def test_prompts_lost_and_won_between_two_evaluations_of_groups():
    def group(name, *rewards):
        return Group(prompt=f"What is {name}?", id=name, rollouts=tuple(Rollout(reward=r) for r in rewards))

    before = [group("kept", 1, 1), group("lost", 1, 0), group("won", 0, 0), group("half", 1, 0), group("gone", 1)]
    now = [group("kept", 1, 0), group("lost", 0, 0), group("won", 1, 1), group("half", 1, 1), group("new", 1)]
    found = evaluation.turnover(evaluation.pass_rates(before), evaluation.pass_rates(now))
    assert (found.lost, found.won) == (("lost",), ("won",))
    assert numbers(found.stats) == {"eval.prompts_lost_fraction": 0.25, "eval.prompts_won_fraction": 0.25}
    assert found.stats["eval.prompts_won_fraction"].count == 4


def test_an_outcome_decides_before_the_reward_and_a_rollout_with_neither_takes_no_part():
    rollouts = (
        Rollout(reward=1.0, outcome="wrong"),
        Rollout(reward=0.2, outcome="correct"),
        Rollout(),
        Rollout(reward=1),
    )
    rates = evaluation.pass_rates([Group(prompt="p", rollouts=rollouts), Group(prompt="q", rollouts=(Rollout(),))])
    assert rates == {"p": 2 / 3}


def test_a_response_is_matched_where_its_own_prompt_is_strictly_the_likeliest():
    scores = [[-1.0, -2.0, -3.0], [-2.0, -2.0, -9.0], [-4.0, -5.0, -1.0], [-3.0, -1.0, -2.0]]
    found = evaluation.prompt_dependence(scores, own=[0, 1, 2, 0])
    assert found["policy.prompt_dependence"].number == 0.5  # the second is a tie, the fourth fits another prompt
    torch = pytest.importorskip("torch")
    assert evaluation.prompt_dependence(torch.tensor(scores[:3]))["policy.prompt_dependence"].number == pytest.approx(
        2 / 3
    )


@pytest.mark.parametrize(("logprobs", "own"), [([[-1.0]], [1]), ([[-1.0], [-2.0]], None), ([-1.0], None)])
def test_a_response_without_its_own_prompt_is_refused(logprobs, own):
    with pytest.raises(ConfigError):
        evaluation.prompt_dependence(logprobs, own)


def test_the_area_under_reward_by_truncation_is_that_of_its_trapezoids():
    kept, rewards = [0.0, 0.1, 0.4, 1.0], [0.2, 0.3, 0.8, 1.0]
    found = evaluation.truncation_area(kept, rewards)["eval.truncation_area"].number
    assert found == pytest.approx(float(np.trapezoid(rewards, kept)))
    # An answer that needs no reasoning gets the full reward from the start.
    assert evaluation.truncation_area([0, 1], [1, 1])["eval.truncation_area"].number == 1.0


@pytest.mark.parametrize("kept", [[0.0], [0.1, 1.0], [0.0, 0.9], [0.0, 0.5, 0.5, 1.0], [0.0, 0.5, 1.0]])
def test_shares_that_do_not_run_from_nothing_to_everything_are_refused(kept):
    with pytest.raises(ConfigError):
        evaluation.truncation_area(kept, [0.5] * (2 if len(kept) == 3 else len(kept)))
