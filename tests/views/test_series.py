"""The best and the last value of a series: which direction is better, and which series have a best value."""

from __future__ import annotations

import math

import numpy as np
import pytest

import rlvitals
from rlvitals.views.series import Series, find_best


def best_of(path, framework, name, values):
    with rlvitals.start(path, framework=framework, monitor=False, hardware=False, display="none") as run:
        for step, value in enumerate(values, 11):
            run.log({name: value}, step=step)
    return rlvitals.open_run(path).best(name)


@pytest.mark.parametrize(
    ("framework", "name", "expected"),
    [
        ("trl_grpo", "reward", (0.9, 14)),  # more is better
        ("verl", "response_length/clip_ratio", (0.2, 13)),  # less is better
        ("verl", "rollout/tool_success_rate", (0.9, 14)),  # logs the share of successes; the concept counts failures
        ("verl", "actor/token_kl/mean", (0.9, 14)),  # logged with the opposite sign
        ("trl_async_grpo", "scoring_time_ms", (0.2, 13)),  # another unit does not change the direction
        ("trl_grpo", "entropy", (None, None)),  # neither direction is better
        (None, "mine", (None, None)),
    ],
)
def test_the_best_value_is_the_finite_one_that_the_metric_s_meaning_makes_best(tmp_path, framework, name, expected):
    best = best_of(tmp_path, framework, name, [math.nan, 0.4, 0.2, 0.9, math.inf, -math.inf, 0.5])
    assert (best.best, best.best_step) == expected
    assert (best.last, best.last_step, best.points) == (0.5, 17, 7)


@pytest.mark.parametrize("name", ["reward", "completions/clipped_ratio"])
def test_where_nothing_is_finite_nothing_is_best(tmp_path, name):
    best = best_of(tmp_path, "trl_grpo", name, [math.nan, math.inf])
    assert (best.best, best.best_step, best.last, best.points) == (None, None, math.inf, 2)


def test_of_equal_values_the_first_is_the_best(tmp_path):
    assert best_of(tmp_path / "up", "trl_grpo", "reward", [0.1, 0.7, 0.7]).best_step == 12
    assert best_of(tmp_path / "down", "trl_grpo", "completions/clipped_ratio", [0.7, 0.1, 0.1]).best_step == 12


def test_a_series_without_a_point_has_no_best():
    assert find_best("mine", Series(np.zeros(0, dtype=np.int64), np.zeros(0)), None) is None
