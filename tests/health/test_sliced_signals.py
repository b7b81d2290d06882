"""The signal of a metric that is logged for each environment: the whole, or the mean over the slices."""

from __future__ import annotations

import math

import pytest

from rlvitals.health import rulebook
from rlvitals.health.case import Case
from rlvitals.health.monitor import Monitor

SOURCES = rulebook.load().sources
MATH, CODE, WEB = (f"reward/env={env}" for env in ("math", "code", "web"))


def taken(rows, **known):
    case = Case(SOURCES, **({"algorithm": "grpo", "framework": "trl_grpo"} | known))
    for step, row in enumerate(rows, 1):
        case.take({"step": step, **row})
    return case


@pytest.mark.parametrize("row", [{MATH: 0.2, "reward": 0.5, CODE: 0.9}, {"reward": 0.5, MATH: 0.2, CODE: 0.9}])
def test_a_slice_does_not_stand_for_the_whole(row):
    case = taken([row] * 5)
    assert (case.signals["reward"].key, case.signals["reward"].last, case.signals["reward"].n) == ("reward", 0.5, 5)
    assert [one.name for one in case.taken if one.signal == "reward"] == ["reward"]


def test_without_the_whole_the_mean_over_slices_is_read():
    case = taken([{MATH: 0.1 * step, CODE: 0.5, WEB: 0.9} for step in range(1, 6)])
    reward = case.signals["reward"]
    assert reward.n == 5
    assert reward.last == pytest.approx((0.5 + 0.5 + 0.9) / 3)
    assert case.names_of(reward) == (MATH, CODE, WEB)
    assert case.doubt(reward) == {"mean_of": "3 slices"}


def test_a_single_slice_is_the_whole():
    case = taken([{MATH: 0.3}] * 4)
    assert (case.signals["reward"].last, case.names_of(case.signals["reward"])) == (0.3, (MATH,))
    assert case.doubt(case.signals["reward"]) == {}


def test_slices_in_rows_of_their_own_are_one_value_when_all_have_come():
    rows = [{"eval/accuracy/source=a": 0.2}, {"eval/accuracy/source=b": 0.4}] * 4
    score = taken(rows).signals["eval_score"]
    assert score.last == pytest.approx(0.3)
    assert score.n == 4  # one per pair, not eight, of which half would be 0.2


def test_a_slice_that_is_missing_from_a_batch_keeps_its_last_value():
    rows = [{MATH: 0.2, CODE: 0.6}, {MATH: 0.3}, {MATH: 0.4}, {MATH: 0.5, CODE: 0.7}]
    reward = taken(rows).signals["reward"]
    # The second row waits for the other slice; with the third it is clear that it does not come.
    assert reward.n == 3
    assert reward.last == pytest.approx(0.6)


def test_slices_that_come_late_do_not_change_what_the_reward_is():
    case = taken([{MATH: 0.2}] * 6 + [{MATH: 0.2, CODE: 0.9}] * 3)
    assert case.signals["reward"].last == 0.2


def test_two_ways_of_dividing_are_not_mixed():
    case = taken([{MATH: 0.2, CODE: 0.4, "reward/agent=a": 0.9, "reward/agent=b": 0.7}] * 4)
    assert case.signals["reward"].last == pytest.approx(0.8)  # `reward/{agent}` is first in alphabetical order


def test_fewer_labels_are_nearer_to_the_whole():
    rows = [
        {"train/agg/all/a/reward/mean": 0.5, "train/x/all/a/reward/mean": 0.1, "train/y/all/a/reward/mean": 0.7}
    ] * 4
    case = taken(rows, framework="prime_rl")
    assert case.names_of(case.signals["reward"]) == ("train/agg/all/a/reward/mean",)


def test_a_slice_is_no_part_of_the_reward():
    rows = [{"reward": 0.1 * (step % 7) + 0.2, MATH: 0.1 * (step % 7), CODE: 0.2} for step in range(60)]
    assert taken(rows).parts == {}


@pytest.mark.parametrize(("value", "counted"), [(math.nan, {}), (math.inf, {MATH: 6})])
def test_a_slice_without_samples_is_no_number_and_no_alarm(value, counted):
    case = taken([{"reward": 0.5, MATH: value, CODE: 0.5}] * 6)
    assert case.nonfinite_others == counted
    only = taken([{MATH: 0.3, CODE: 0.5}] * 3 + [{MATH: math.nan, CODE: 0.7}] * 4)
    assert only.signals["reward"].nonfinite == 0
    assert only.signals["reward"].last == pytest.approx(0.5)


def test_a_restart_forgets_the_slices_values():
    case = taken([{MATH: 0.2, CODE: 0.6}] * 6)
    case.take({"step": 1, MATH: 0.4})
    case.take({"step": 2, MATH: 0.4})
    assert case.restarts == 1
    assert case.signals["reward"].last == 0.4


def test_words_and_patterns_are_read_without_the_label():
    case = taken([{"my_avg_return/env=maze": 0.2, "my_avg_return/env=sea": 0.4}] * 14, framework=None, algorithm=None)
    assert case.signals["reward"].last == pytest.approx(0.3)


def test_a_collapse_of_all_slices_is_found_under_their_names():
    monitor = Monitor(algorithm="grpo", framework="trl_grpo")
    for step in range(1, 161):
        level = 0.3 + 0.003 * step if step < 80 else max(0.02, 0.54 - 0.03 * (step - 80))
        noise = 0.01 * ((step * 7) % 5 - 2)
        monitor.update({"step": step, "loss": 0.2 + noise, MATH: level + noise, CODE: level - noise})
    found = [finding for finding in monitor.findings if finding.kind == "reward_collapse"]
    assert found
    assert found[0].metrics == (MATH, CODE)
    assert found[0].evidence["mean_of"] == "2 slices"
