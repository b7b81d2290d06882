"""The course of a run, the state of its outcome, and the weight of an alarm."""

from __future__ import annotations

import math
import random
import statistics
from typing import get_args

import pytest

from rlvitals.health import alarm_weights, rulebook
from rlvitals.health.alarm_weights import Chances, Scales
from rlvitals.health.course import BEYOND_NOISE, MOST_BLOCKS, Course
from rlvitals.health.monitor import Monitor
from rlvitals.health.outcome import OutcomeState, state_of

STATES = get_args(OutcomeState)


def course_of(values):
    course = Course()
    for value in values:
        course.add(value)
    return course


def noise(count, seed, keep=0.0):
    """White noise, or with `keep` a running mean of it."""
    draw, level = random.Random(seed), 0.0
    for _ in range(count):
        level = keep * level + (1 - keep) * draw.gauss(0, 1)
        yield level


@pytest.mark.parametrize("count", [12, 40, 63, 64, 200, 5000])
def test_the_levels_are_the_means_of_stretches_of_the_run(count):
    values = [float(n * n % 97) for n in range(count)]
    course = course_of(values)
    size = next(2**k for k in range(20) if count // 2**k < MOST_BLOCKS)
    blocks = [statistics.fmean(values[at : at + size]) for at in range(0, count - size + 1, size)]
    parts = min(10, len(blocks) // 4)
    expected = [
        statistics.fmean(blocks[n * len(blocks) // parts : (n + 1) * len(blocks) // parts]) for n in range(parts)
    ]
    assert course.levels == pytest.approx(expected)
    assert (course.start, course.now, course.best) == pytest.approx((expected[0], expected[-1], max(expected)))


def test_eleven_points_are_too_few_for_levels():
    course = course_of(range(11))
    assert (course.levels, course.gain, course.won, course.lost) == ([], 0.0, False, False)


@pytest.mark.parametrize("keep", [0.0, 0.9])
def test_noise_wins_and_loses_little_even_where_it_is_a_running_mean(keep):
    """White noise exceeds two standard errors in one case of twenty, a running mean of it in about one of ten."""
    courses = [course_of(noise(300, seed, keep)) for seed in range(200)]
    assert sum(abs(course.gain) >= BEYOND_NOISE for course in courses) < 0.15 * len(courses)


def test_a_gain_is_won_and_lost_again():
    climb = [0.01 * n for n in range(100)]
    assert course_of(climb).won
    assert course_of(climb + [1.0] * 100).won
    fallen = course_of(climb + climb[::-1])
    assert fallen.lost
    assert not fallen.won
    assert course_of(climb[::-1]).lost


@pytest.mark.parametrize(
    ("state", "algorithm", "name", "value"),
    [
        ("up", "grpo", "reward", lambda n: 0.2 + 0.005 * n),
        ("down", "grpo", "reward", lambda n: 0.8 - 0.005 * n),
        ("flat", "grpo", "reward", lambda _: 0.5),
        ("up", "grpo", "eval_score", lambda n: 0.2 + 0.005 * n),
        ("early", "grpo", "grad_norm", lambda n: 0.2 + 0.005 * n),
        ("up", "dpo", "rewards/margins", lambda n: 0.005 * n),
        ("flat", "dpo", "rewards/margins", lambda n: 0.005 * n - 0.6),  # the rejected answer is still the likelier
    ],
)
def test_the_state_of_the_outcome_is_that_of_its_series(state, algorithm, name, value):
    draw = random.Random(1)
    monitor = Monitor(algorithm)
    for n in range(100):
        if n == 11:
            assert state_of(monitor.case) == "early"
        monitor.update({"step": n, "reward": math.nan, name: value(n) + draw.gauss(0, 0.02)})
    assert state_of(monitor.case) == state


@pytest.mark.parametrize(
    ("rewards", "state"), [([0.2, 0.3, 0.6], "early"), ([0.2, 0.3, 0.6, 0.8], "up"), ([0.2, 0.6, 0.3, 0.8], "early")]
)
def test_four_points_that_only_rise_are_up(rewards, state):
    monitor = Monitor("ppo")
    for step, reward in enumerate(rewards, 1):
        monitor.update({"step": step, "reward": reward})
    assert state_of(monitor.case) == state


def scales(failed, sick):
    names = [name for name, rule in rulebook.shipped().rules.items() if alarm_weights.is_weighed(rule)]
    table = {f"{rule} {proposed} {state}": Chances(failed, sick)
             for rule in names for proposed in ("warning", "critical") for state in STATES}  # fmt: skip
    return Scales(table, act=0.6, watch=0.5)


def dead_gradients(monitor):
    for step in range(1, 30):
        monitor.update({"step": step, "loss": 0.1, "grad_norm": 0.0, "reward": 0.3 + 0.01 * (step % 3)})
    return [(found.severity, found.confidence) for found in monitor.findings if found.rule == "dead_gradient"]


def test_an_alarm_is_as_severe_as_such_alarms_turned_out():
    assert dead_gradients(Monitor("grpo", scales=scales(0.9, 0.95))) == [("critical", 0.9)]
    assert dead_gradients(Monitor("grpo", scales=scales(0.3, 0.8))) == [("warning", 0.8)]
    assert dead_gradients(Monitor("grpo", scales=scales(0.1, 0.2))) == [("info", 0.2)]


def test_the_insides_are_not_critical_while_the_outcome_is_up_unless_nothing_is_trained():
    table = {f"{rule} critical {state}": Chances(0.9, 0.95) for rule in ("clipped", "dead") for state in STATES}
    weigh = Scales(table, act=0.75, watch=0.5).weigh
    assert weigh("clipped", "critical", "up", "clip_saturation") == ("warning", 0.95)
    assert weigh("clipped", "critical", "flat", "clip_saturation") == ("critical", 0.9)
    assert weigh("dead", "critical", "up", "dead_gradient") == ("critical", 0.9)
    assert weigh("dead", "critical", "up", "reward_floor") == ("critical", 0.9)


def test_a_rule_that_a_user_changed_is_not_weighed():
    changed = [{"rule": "dead_gradient", "numbers": {"streak": 9}}]
    book = rulebook.load(changed)
    assert dead_gradients(Monitor("grpo", rules=changed, scales=scales(0.0, 0.0))) == [
        ("critical", book.rules["dead_gradient"].confidence)
    ]


def test_a_rule_that_the_table_does_not_know_keeps_its_severity_and_its_own_confidence():
    nothing = Scales({}, act=0.6, watch=0.5)
    entry = rulebook.shipped().rules["dead_gradient"]
    assert dead_gradients(Monitor("grpo", scales=nothing)) == [("critical", entry.confidence)]


def test_the_shipped_table_knows_only_rules_that_are_weighed():
    rules = {name for name, rule in rulebook.shipped().rules.items() if alarm_weights.is_weighed(rule)}
    known = {key.split()[0] for key in alarm_weights.shipped()._table}
    assert known <= rules
    assert len(known) > 50
    assert {"throughput", "stall", "memory_creep"}.isdisjoint(rules)
    for chances in alarm_weights.shipped()._table.values():
        assert 0 <= chances.failed <= chances.sick <= 1


# Rules that use the course and the outcome


def raised(rows, **facts):
    monitor = Monitor("grpo", **facts)
    for step, row in enumerate(rows, 1):
        monitor.update({"step": step, **row})
    return {found.rule: found.severity for found in monitor.findings if found.severity != "info"}


def wobble(n):
    return 0.02 * (n * 7 % 5 - 2)


def test_a_reward_that_sinks_slowly_below_its_start_is_found():
    sinking = raised({"reward": 0.6 - 0.003 * n + wobble(n)} for n in range(120))
    assert {"reward_below_start", "reward_collapse"} & sinking.keys()
    assert raised({"reward": 0.3 + 0.003 * n + wobble(n)} for n in range(120)) == {}


def test_a_task_that_no_sample_solves_is_reported_however_the_format_is_learnt():
    def rows(solved):
        return (
            {"reward": 0.005 * n + solved * 0.01 * n + wobble(n), "rewards/format": 0.005 * n + wobble(n),
             "rewards/correctness": solved * 0.01 * n}
            for n in range(140)
        )  # fmt: skip

    assert raised(rows(0))["task_part_dead"] == "critical"
    assert "task_part_dead" not in raised(rows(1))


def test_answers_at_their_limit_are_reported_unless_the_run_learns():
    def rows(gain):
        return ({"reward": 0.1 + gain * n + wobble(n), "completion_length": 197.0 + n % 3} for n in range(160))

    assert raised(rows(0.0), config={"max_completion_length": 200})["length_at_cap"] == "critical"
    assert "length_at_cap" not in raised(rows(0.01), config={"max_completion_length": 200})
    assert "length_at_cap" not in raised(rows(0.0), config={"max_completion_length": 400})


def test_a_held_out_score_that_falls_below_its_first_value_is_found():
    def rows(scores):
        return (
            {"loss": 0.5 + wobble(n)} | ({"eval_reward": scores[n // 10]} if n % 10 == 0 else {}) for n in range(120)
        )

    assert "eval_collapse" in raised(rows([0.1, 0.2, 0.4, 0.5, 0.6, 0.7, 0.3, 0.0, -0.5, -0.6, -0.7, -0.6]))
    assert "eval_collapse" not in raised(rows([0.1, 0.2, 0.4, 0.5, 0.6, 0.7, 0.7, 0.6, 0.7, 0.6, 0.7, 0.6]))


def test_a_reward_held_while_the_tasks_become_harder_is_a_remark():
    def held(level):
        return raised({"reward": 0.5 + 5 * wobble(n), "curriculum_level": level(n)} for n in range(200))

    assert "not_learning" in held(lambda _: 1)
    assert "not_learning" not in held(lambda n: 1 + n // 50)


def preference_run(fall, accuracy):
    """The severities for a margin that grows to 1 while the reward of chosen answers falls by `fall`."""
    monitor = Monitor("dpo")
    for n in range(120):
        grown = min(n / 80, 1.0)
        monitor.update({
            "step": n + 1, "rewards/margins": grown + wobble(n), "rewards/chosen": -fall * grown + wobble(n),
            "rewards/rejected": -(fall + 1) * grown, "rewards/accuracies": accuracy(grown) + wobble(n),
            "loss": 0.69 - 0.3 * grown,
        })  # fmt: skip
    return {found.rule: found.severity for found in monitor.findings}


def test_chosen_answers_that_lose_a_little_while_the_margin_grows_are_a_remark():
    assert preference_run(1.0, lambda grown: 0.5 + 0.3 * grown)["likelihood_displacement"] == "info"
    assert preference_run(3.0, lambda grown: 0.5 + 0.3 * grown)["likelihood_displacement"] == "warning"
    assert preference_run(1.0, lambda grown: 0.8 - 0.25 * grown)["likelihood_displacement"] == "warning"


def test_answers_cut_off_more_often_are_a_remark_while_the_reward_rises():
    def cut(slope):
        return raised(
            {"reward": 0.4 + slope * n + wobble(n), "completions/clipped_ratio": 0.003 * n} for n in range(100)
        )

    assert "truncation_rising" not in cut(0.004)
    assert "truncation_rising" in cut(-0.002)


def falling_run(entropy):
    """The findings for a reward that falls slowly, with scales on which no single alarm is critical."""
    rules = rulebook.shipped().rules
    keys = (f"{rule} {proposed} {state}" for rule in rules for proposed in ("warning", "critical") for state in STATES)
    scales = Scales(dict.fromkeys(keys, Chances(0.5, 0.6)), act=0.9, watch=0.5)
    monitor = Monitor("grpo", scales=scales)
    for n in range(120):
        monitor.update({"step": n + 1, "reward": 0.8 - 0.004 * n + wobble(n), "entropy": entropy(n) + wobble(n) / 50})
    return monitor.findings


def test_two_kinds_of_warnings_while_the_outcome_is_lost_are_critical_together():
    alone = falling_run(lambda _: 0.5)
    assert {found.kind for found in alone} == {"reward_collapse"}
    assert {found.severity for found in alone} == {"warning"}
    both = falling_run(lambda n: max(0.5 - 0.006 * n, 0.01))
    joined = [found for found in both if found.severity == "critical"]
    assert joined
    assert {"reward_collapse", "entropy_collapse"} <= {found.kind for found in both}
    # Correct unless both are wrong.
    assert joined[0].confidence == pytest.approx(1 - (1 - 0.6) ** 2)


def answering(accuracy):
    monitor = Monitor("grpo")
    for n in range(24):
        monitor.update({"step": n + 1, "reward": 0.1 + 20 * wobble(n), "accuracy": accuracy[min(n, len(accuracy) - 1)]})
    return {found.rule: found for found in monitor.findings}


def test_right_answers_that_fell_to_one_share_for_good_are_those_of_one_answer_to_everything():
    found = answering([0.99, 0.72, 0.68, 0.58, 0.6])["reward_below_start"]
    assert (found.severity, found.evidence["now"]) == ("critical", 0.6)
    assert "reward_below_start" not in answering([0.6, 0.62, 0.6])
    assert "reward_below_start" not in answering([0.5, 0.72, 0.8, 0.9])
