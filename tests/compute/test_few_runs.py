"""The statistics of few runs, each compared with scipy, an enumeration or a simulation."""

from __future__ import annotations

import itertools
import math

import numpy as np
import pytest

from rlvitals.compute.few_runs import hommel, moderated, prediction_error, quantile, ratio_tail, tail


@pytest.mark.parametrize("freedom", [0.7, 1.0, 2.0, 3.5, 6.0, 30.0, 400.0])
def test_students_t_is_scipys(freedom):
    stats = pytest.importorskip("scipy.stats")
    for t in (-40.0, -2.5, -0.1, 0.0, 0.3, 1.0, 2.0, 7.0, 60.0):
        assert tail(t, freedom) == pytest.approx(stats.t.sf(t, freedom), rel=1e-9, abs=1e-14)
    for share in (0.001, 0.05, 0.3, 0.5, 0.9, 0.975, 0.9995):
        assert quantile(share, freedom) == pytest.approx(stats.t.ppf(share, freedom), rel=1e-7, abs=1e-9)


@pytest.mark.parametrize(("one", "other"), [(1.0, 4.0), (2.0, 5.0), (9.0, 3.5)])
def test_the_ratio_of_mean_squares_is_scipys_f(one, other):
    stats = pytest.importorskip("scipy.stats")
    for ratio in (0.1, 1.0, 4.0, 50.0):
        assert ratio_tail(ratio * one, one, other, other) == pytest.approx(stats.f.sf(ratio, one, other), rel=1e-9)


def test_values_of_printed_tables():
    """Student's table from textbooks."""
    assert quantile(0.95, 2.0) == pytest.approx(2.920, abs=5e-4)
    assert quantile(0.99, 7.0) == pytest.approx(2.998, abs=5e-4)
    assert tail(math.inf, 3.0) == 0.0
    assert tail(-math.inf, 3.0) == 1.0


def closed_testing(chances: list[float]) -> list[float]:
    """Hommel's adjusted p by its definition: the largest Simes p of all sets of hypotheses that contain this one."""
    adjusted = [0.0] * len(chances)
    for size in range(1, len(chances) + 1):
        for chosen in itertools.combinations(range(len(chances)), size):
            ordered = sorted(chances[place] for place in chosen)
            simes = min(size * chance / rank for rank, chance in enumerate(ordered, 1))
            for place in chosen:
                adjusted[place] = max(adjusted[place], simes)
    return [min(1.0, chance) for chance in adjusted]


def test_hommel_is_closed_testing_with_simes():
    rng = np.random.default_rng(3)
    for _ in range(300):
        chances = (rng.random(int(rng.integers(1, 7))) ** rng.choice([1, 3])).tolist()
        assert hommel(chances) == pytest.approx(closed_testing(chances), abs=1e-12)
    assert hommel([]) == []


def test_the_spread_is_the_weighted_mean_of_both():
    # By hand: the squares around 11 are 2, with 2 degrees of freedom; 4 more predict a variance of 0.25.
    found = moderated([10.0, 11.0, 12.0], predicted=0.5, worth=4.0)
    assert found.deviation == pytest.approx(math.sqrt((2.0 + 4 * 0.25) / 6))
    assert found.freedom == 6.0
    assert prediction_error(found, 3) == pytest.approx(found.deviation * math.sqrt(4 / 3))


def test_one_run_alone_uses_the_predicted_spread():
    assert moderated([3.0], predicted=0.2, worth=5.0) == (0.2, 5.0)


def test_runs_far_apart_are_believed_over_what_is_predicted():
    found = moderated([0.0, 10.0, 20.0], predicted=0.1, worth=5.0)
    assert found.deviation == pytest.approx(10.0)
    assert found.freedom == 2.0


@pytest.mark.parametrize("runs", [1, 3, 8])
def test_a_run_of_the_same_kind_fails_as_often_as_it_says(runs):
    """The ratio of a kind of run's spread to the predicted spread is drawn from the prior."""
    rng = np.random.default_rng(runs)
    worth, alpha, count, hits = 5.0, 0.05, 6000, 0
    for _ in range(count):
        deviation = math.sqrt(worth / rng.chisquare(worth))
        values = rng.normal(0.0, deviation, runs)
        spread = moderated(values.tolist(), predicted=1.0, worth=worth)
        worse = rng.normal(0.0, deviation) - values.mean()
        hits += tail(worse / prediction_error(spread, runs), spread.freedom) <= alpha
    assert abs(hits / count - alpha) < 3 * math.sqrt(alpha * (1 - alpha) / count) + 0.004
