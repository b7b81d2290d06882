"""Few buckets for many points, against a plain loop over the points."""

from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from rlvitals.views.thinning import MOST_POINTS, thin

NUMBERS = st.lists(st.floats(allow_nan=True, allow_infinity=True, width=64), max_size=300)


def by_hand(values, points):
    size = -(-len(values) // points) if len(values) > points else 1
    for start in range(0, len(values), size):
        finite = [value for value in values[start : start + size] if math.isfinite(value)]
        yield start, (min(finite), max(finite)) if finite else (None, None), finite


def check_by_hand(values, points):
    numbers, steps = np.array(values, dtype=float), np.arange(len(values))
    line = thin(steps * 2.0, numbers, steps, points)
    expected = list(by_hand(values, points))
    assert line["total"] == len(values)
    assert line["shown"] == len(line["x"]) == len(expected) <= points
    for place, (start, extremes, finite) in enumerate(expected):
        assert (line["x"][place], line["steps"][place]) == (start * 2.0, start)
        assert (line["low"][place], line["high"][place]) == extremes
        if finite and max(map(abs, finite)) < 1e300:
            assert line["y"][place] == pytest.approx(sum(finite) / len(finite), rel=1e-9, abs=1e-290)
    assert line["nonfinite"] == sum(not math.isfinite(value) for value in values)


@given(NUMBERS, st.integers(1, 120))
def test_every_bucket_has_the_lowest_and_highest_of_its_points_whatever_they_are(values, points):
    check_by_hand(values, points)


@pytest.mark.parametrize("points", [1, 2, 3, 7, 12, 50])
def test_every_bucket_has_the_lowest_and_highest_of_its_points_however_many_there_are(points):
    """Tests every length up to several points per bucket: random lists are nearly always shorter."""
    for total in range(5 * points + 3):
        check_by_hand([math.nan if place % 5 == 2 else place * 7919 % 1009 for place in range(total)], points)


@given(NUMBERS.filter(lambda values: any(map(math.isfinite, values))), st.integers(1, 20))
def test_no_extreme_of_the_series_is_hidden(values, points):
    finite = [value for value in values if math.isfinite(value)]
    line = thin(np.arange(len(values)), np.array(values), np.arange(len(values)), points)
    assert min(low for low in line["low"] if low is not None) == min(finite)
    assert max(high for high in line["high"] if high is not None) == max(finite)


def test_one_spike_among_a_hundred_thousand_points_is_there():
    values = np.zeros(100_000)
    values[77_777] = 1e9
    line = thin(np.arange(100_000), values, np.arange(100_000), 800)
    assert line["shown"] <= 800
    place = line["high"].index(1e9)
    assert line["steps"][place] <= 77_777 < line["steps"][place + 1]


def test_a_series_that_fits_is_left_alone():
    line = thin(np.array([3, 5]), np.array([1.5, np.inf]), np.array([3, 5]), 800)
    assert tuple(line.values()) == (2, 2, 1, [3, 5], [1.5, None], [1.5, None], [1.5, None], [3, 5])


def test_the_mean_of_numbers_near_the_largest_stays_between_them():
    line = thin(np.arange(4), np.full(4, 1.7e308), np.arange(4), 2)
    assert line["y"] == [1.7e308, 1.7e308]


def test_nobody_gets_more_points_than_a_screen_has():
    count = MOST_POINTS * 3
    assert thin(np.arange(count), np.zeros(count), np.arange(count), 10**12)["shown"] == MOST_POINTS
    assert thin(np.arange(9), np.zeros(9), np.arange(9), -4)["shown"] == 1
