"""The course of a run: what counts as gained or lost, and how rarely a series without a trend does."""

from __future__ import annotations

import math

import numpy as np
import pytest

from rlvitals.health.course import Course, error_of_mean

RUNS = 120


def course_of(values):
    course = Course()
    for value in values:
        course.add(float(value))
    return course


def running_mean(draw, points, memory):
    return np.convolve(draw.standard_normal(points + memory - 1), np.ones(memory) / memory, "valid")


def remembering(draw, points, share):
    values = [0.0]
    for new in draw.standard_normal(points + 100):
        values.append(share * values[-1] + new)
    return np.array(values[-points:])


TRENDLESS = {
    "white": (lambda draw, points: draw.standard_normal(points), 40, 0.08),
    "AR(1), 0.8": (lambda draw, points: remembering(draw, points, 0.8), 60, 0.2),
    "running mean of 5": (lambda draw, points: running_mean(draw, points, 5), 40, 0.15),
    "running mean of 10": (lambda draw, points: running_mean(draw, points, 10), 60, 0.2),
    "running mean of 10, long": (lambda draw, points: running_mean(draw, points, 10), 300, 0.1),
}
"""Series without a trend: the generator, the length, and the share that may count as gained or lost."""


@pytest.mark.parametrize("kind", TRENDLESS)
def test_a_series_that_goes_nowhere_is_seldom_called_gained_or_lost(kind):
    make, points, most = TRENDLESS[kind]
    draw = np.random.default_rng(11)
    courses = [course_of(make(draw, points)) for _ in range(RUNS)]
    assert sum(course.won or course.lost for course in courses) <= most * RUNS


@pytest.mark.parametrize("smoothed", [1, 5])
def test_what_rises_or_comes_back_by_four_times_its_noise_is_seen(smoothed):
    draw = np.random.default_rng(12)
    time = np.arange(300) / 300
    shapes = {"rise": 4 / (1 + np.exp(-12 * (time - 0.5))), "hump": 4 * np.clip(1 - 2.5 * abs(time - 0.4), 0, 1)}
    seen = dict.fromkeys(shapes, 0)
    for _ in range(20):
        for name, shape in shapes.items():
            course = course_of(shape + running_mean(draw, 300, smoothed))
            seen[name] += course.won if name == "rise" else course.lost
    assert seen["rise"] == 20
    assert seen["hump"] >= 18


def test_a_straight_line_is_a_gain_and_a_constant_is_none():
    assert course_of([0.1 * step for step in range(50)]).won
    still = course_of([0.7] * 50)
    assert not still.won
    assert not still.lost
    assert math.isclose(still.gain, 0.0)


def test_the_error_of_a_mean_of_independent_values_falls_with_the_root_of_their_number():
    values = list(np.random.default_rng(13).standard_normal(64))
    four, sixteen = error_of_mean(values, 4), error_of_mean(values, 16)
    assert four == pytest.approx(0.5, rel=0.3)
    assert sixteen == pytest.approx(four / 2, rel=0.25)
