"""A judge's quality, counted by hand."""

from __future__ import annotations

import random

import pytest
import scipy.stats

from rlvitals.compute import judging, merge
from rlvitals.errors import ConfigError


def numbers(**given):
    return {name: value.number for name, value in judging.stats(**given).items()}


def test_verdicts_against_gold_leave_out_what_could_not_be_read():
    verdicts = [True, True, True, False, False, None]
    gold = [True, False, False, False, True, True]
    assert numbers(verdicts=verdicts, gold=gold) == pytest.approx(
        {
            "judge.parse_failure_fraction": 1 / 6,
            "judge.gold_agreement": 2 / 5,
            "judge.false_positive_fraction": 2 / 3,
            "judge.false_negative_fraction": 1 / 2,
        }
    )
    assert numbers(verdicts=verdicts, scores=[0.5] * 6, gold=gold)["judge.gold_agreement"] == 2 / 5


def test_right_answers_are_ranked_above_wrong_ones_as_the_area_under_the_curve_counts():
    rng = random.Random(3)
    gold = [rng.random() < 0.4 for _ in range(60)]
    scores = [round(rng.gauss(0.3 if right else 0.0, 0.5), 1) for right in gold]  # with ties
    found = numbers(scores=[*scores, None], gold=[*gold, True])
    expected = scipy.stats.mannwhitneyu(
        *([s for s, right in zip(scores, gold, strict=True) if right is wanted] for wanted in (True, False))
    ).statistic / (sum(gold) * (len(gold) - sum(gold)))
    assert found == {"judge.gold_separation": pytest.approx(float(expected))}
    assert numbers(scores=[0.1] * 5, gold=[True, True, False, False, True])["judge.gold_separation"] == 0.5
    assert numbers(scores=[0.1], gold=[True])["judge.gold_separation"] is None


def test_without_a_wrong_answer_there_is_no_share_of_accepted_wrong_ones():
    assert numbers(verdicts=[True], gold=[True])["judge.false_positive_fraction"] is None


def test_a_judge_that_always_takes_the_first_answer_flips_every_time():
    found = numbers(preferred=["a", "a", "a"], preferred_swapped=["b", "b", "b"])
    assert found == {"judge.order_flip_fraction": 1.0, "judge.first_position_share": 1.0}


def test_ties_flip_against_a_preference_and_have_no_position():
    found = numbers(preferred=["a", "tie", "b", None, "b", "a"], preferred_swapped=["a", "a", "tie", "a", "b", None])
    assert found["judge.order_flip_fraction"] == 2 / 4
    # Of the read pairs: a first and taken; a second and taken twice; b second and taken; b second and first.
    assert found["judge.first_position_share"] == 2 / 6


def test_appeals_count_only_what_was_checked_again_and_merge():
    one, other = judging.stats(appeals=[True, False, None]), judging.stats(appeals=[False, False])
    assert merge([one, other])["verifier.false_negative_fraction"].number == 1 / 4


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({"gold": [True]}, "1 gold labels need as many verdicts"),
        ({"verdicts": [True], "gold": [True, False]}, "2 gold labels"),
        ({"scores": [0.5]}, "1 scores need as many gold labels"),
        ({"scores": [0.5], "gold": [True, False]}, "1 scores need"),
        ({"preferred": ["a"]}, "the same pairs"),
        ({"preferred": ["first"], "preferred_swapped": ["a"]}, "not 'first'"),
    ],
)
def test_what_does_not_fit_is_reported(given, message):
    with pytest.raises(ConfigError, match=message):
        judging.stats(**given)
