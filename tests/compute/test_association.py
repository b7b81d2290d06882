"""Marks and rewards, shares and steps, orders: compared with all permutations, scipy and cases by hand."""

from __future__ import annotations

import itertools
import math
import random

import pytest
from scipy import stats

from rlvitals.compute.association import Gain, Trend, rank_correlation, sign_test, two_sided


def permuted(strata):
    """Mean and deviation of the sum of marked rewards over all permutations of the marks within strata."""
    ways = []
    for rewards, marks in strata:
        count = sum(marks)
        ways.append([sum(chosen) for chosen in itertools.combinations(rewards, count)])
    sums = [sum(way) for way in itertools.product(*ways)]
    mean = sum(sums) / len(sums)
    return mean, math.sqrt(sum((one - mean) ** 2 for one in sums) / len(sums))


def test_the_gain_is_that_of_all_permutations():
    strata = [
        ([1.0, 0.5, 0.0, 0.25], [True, False, True, False]),
        ([3.0, 1.0, 2.0], [True, False, False]),
        ([0.0, 0.1, 5.0, 1.0, 1.0], [False, False, True, True, False]),
    ]
    gain = Gain()
    for rewards, marks in strata:
        gain.add(rewards, marks)
    seen = sum(reward for rewards, marks in strata for reward, mark in zip(rewards, marks, strict=True) if mark)
    mean, deviation = permuted(strata)
    assert gain.excess == pytest.approx(seen - mean)
    assert gain.z == pytest.approx((seen - mean) / deviation)
    assert gain.marked == 5


def test_easy_prompts_do_not_count_for_a_mark():
    gain = Gain()
    gain.add([1.0, 1.0, 1.0], [True, True, False])  # an easy prompt, where most are marked
    gain.add([0.0, 0.0, 0.0], [False, False, True])
    assert gain.difference == 0.0
    assert gain.z == 0.0


def test_strata_of_one_kind_say_nothing():
    gain = Gain()
    gain.add([1.0, 2.0], [True, True])
    gain.add([1.0, 2.0], [False, False])
    gain.add([], [])
    assert gain.difference is None
    assert gain.z == 0.0


def test_the_trend_is_that_of_a_correlation():
    """Cochran and Armitage's z is the correlation of mark and position times the square root of the count."""
    dice = random.Random(1)
    trend, places, marks = Trend(), [], []
    for step in (1000, 1010, 1013, 1040):
        of_step = [dice.random() < (step - 990) / 60 for _ in range(25)]
        trend.add(step, marked=sum(of_step), count=25)
        places += [step] * 25
        marks += of_step
    found = stats.pearsonr(places, [float(mark) for mark in marks]).statistic
    assert trend.z == pytest.approx(found * math.sqrt(len(marks)))
    assert trend.z > 2


@pytest.mark.parametrize("hits", [0, 10])
def test_a_share_without_variation_has_no_trend(hits):
    trend = Trend()
    assert trend.z == 0.0
    for step in range(3):
        trend.add(step, marked=hits, count=10)
    assert trend.z == 0.0


@pytest.mark.parametrize(("wins", "losses"), [(0, 0), (9, 1), (1, 9), (5, 5), (40, 20), (3, 0)])
def test_the_sign_test_is_scipys(wins, losses):
    expected = stats.binomtest(wins, wins + losses).pvalue if wins + losses else 1.0
    assert sign_test(wins, losses) == pytest.approx(expected)


def test_the_rank_correlation_is_scipys_with_ties():
    chance = random.Random(5)
    xs = [1, 2, 2, 5, 9, 9, 9, 0]
    for ys in ([3.0, 1.0, 4.0, 4.0, 8.0, 2.0, 8.0, 1.0], [chance.random() for _ in range(8)]):
        found, z = rank_correlation(xs, ys)
        assert found == pytest.approx(stats.spearmanr(xs, ys).statistic)
        assert z == pytest.approx(found * math.sqrt(7))
    assert rank_correlation([1, 1, 1], [1, 2, 3]) is None
    assert rank_correlation([1, 2], [1, 2]) is None


def test_the_tails_are_scipys():
    for z in (-3.1, 0.0, 0.4, 2.5):
        assert two_sided(z) == pytest.approx(2 * stats.norm.sf(abs(z)))
