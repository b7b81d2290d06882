"""Loss of exploration: lost coverage, lost prompts, answers that become alike, ignored prompts."""

from __future__ import annotations

import random

import pytest

from corpus import answers, exploration
from rlvitals.health.monitor import Monitor


def judged(rows, **facts):
    monitor = Monitor("grpo", **facts)
    for row in rows:
        monitor.update(row)
    assert monitor.problems == {}
    return monitor


def findings_of(monitor, rule):
    return [finding for finding in monitor.findings if finding.rule == rule]


def evaluated(many, one, *, count=14, turn=7, every=5):
    """Rows with evaluations. After the turn, pass@32 changes by `many` and pass@1 by `one` per evaluation."""
    noise = random.Random(2)
    for step in range(1, count * every + 1):
        row = {"step": step, "reward": 0.4 + 0.001 * step + noise.gauss(0, 0.02), "loss": noise.gauss(0, 0.01)}
        if step % every == 0:
            after = max(step // every - turn, 0)
            row["eval/pass@32"] = 0.8 + many * after + noise.gauss(0, 0.008)
            row["eval/pass@1"] = 0.3 + one * after + noise.gauss(0, 0.005)
        yield row


def test_coverage_that_falls_while_one_attempt_rises_is_reported_within_four_evaluations():
    monitor = judged(evaluated(-0.03, 0.02))
    (found,) = findings_of(monitor, "coverage_lost")
    assert (found.kind, found.severity) == ("entropy_collapse", "warning")
    assert 7 * 5 < found.step <= (7 + 4) * 5
    assert found.metrics == ("eval/pass@32",)
    assert "eval/pass@1" in found.title


@pytest.mark.parametrize(("many", "one"), [(0.0, 0.02), (0.01, 0.02), (0.0, 0.0), (-0.05, -0.03)])
def test_coverage_that_holds_and_a_collapse_of_both_are_not(many, one):
    assert findings_of(judged(evaluated(many, one)), "coverage_lost") == []


def test_the_largest_k_is_read_and_the_ends_of_an_interval_are_not():
    row = {"eval.pass_at_k/1": 0.3, "eval.pass_at_k/8": 0.5, "eval.pass_at_k/64": 0.8, "eval.pass_at_k/64/low": 0.7,
           "eval.pass_at_k/16": 0.6}  # fmt: skip
    monitor = judged({"step": step, **row} for step in range(1, 6))
    assert monitor.case.signals["pass_many"].key == "eval.pass_at_k/64"
    assert monitor.case.signals["pass_one"].key == "eval.pass_at_k/1"


def test_generated_runs_of_every_framework():
    """benchmarks/doctor_depth.py measures the shares. Here the rule must work with the names of every framework."""
    late, loud = [], []
    for framework in exploration.SPELLINGS:
        for seed in (821, 822, 823):
            run = exploration.narrowing_run(seed, framework)
            found = findings_of(judged(run.rows), "coverage_lost")
            assert found, run.name
            by = run.evaluations[min(run.onset + 4, len(run.evaluations) - 1)] + 1
            late += [run.name] if found[0].step > by else []
            loud += findings_of(judged(exploration.learning_run(seed, framework).rows), "coverage_lost")
    assert len(late) <= 5, late
    assert len(loud) <= 1, loud


def lost_and_won(lost, won):
    for step in range(1, 61):
        row = {"step": step, "reward": 0.4 + 0.001 * (step % 7), "loss": 0.01 * (step % 3)}
        if step % 10 == 0:
            row |= {"eval.prompts_lost_fraction": lost, "eval.prompts_won_fraction": won}
        yield row


def test_more_prompts_lost_than_won_for_three_evaluations():
    (found,) = findings_of(judged(lost_and_won(0.10, 0.04)), "prompts_lost")
    assert found.step == 30
    assert found.evidence["net"] == pytest.approx(0.18)
    assert findings_of(judged(lost_and_won(0.10, 0.10)), "prompts_lost") == []
    assert findings_of(judged(lost_and_won(0.04, 0.10)), "prompts_lost") == []


def test_few_prompts_change_sides_by_chance():
    """More prompts are lost than won three times: 3 and 2 of 20 are chance, 30 and 21 of 200 are not."""
    assert findings_of(judged(lost_and_won(3 / 20, 2 / 20)), "prompts_lost") == []
    (found,) = findings_of(judged(lost_and_won(30 / 200, 21 / 200)), "prompts_lost")
    assert found.step == 30


def varied(name, start, end, reward=0.4):
    noise = random.Random(1)
    for step in range(1, 81):
        level = start if step <= 40 else end
        yield {"step": step, "reward": reward + noise.gauss(0, 0.01), "loss": noise.gauss(0, 0.01),
               name: level + noise.gauss(0, 0.01)}  # fmt: skip


@pytest.mark.parametrize(
    ("name", "start", "end"),
    [
        ("group.distinct_answers.mean", 0.8, 0.15),
        ("rollout/unique_answers_ratio", 0.7, 0.13),
        ("group.self_similarity.mean", 0.3, 0.95),
        ("train/self_bleu", 0.4, 0.97),
    ],
)
def test_answers_that_become_alike_are_reported_unless_the_task_is_solved(name, start, end):
    found = findings_of(judged(varied(name, start, end)), "answers_alike")
    assert [(one.kind, one.severity, one.metrics) for one in found] == [("entropy_collapse", "warning", (name,))]
    solved = findings_of(judged(varied(name, start, end, reward=0.95)), "answers_alike")
    assert {one.severity for one in solved} <= {"info"}
    assert findings_of(judged(varied(name, start, start)), "answers_alike") == []


@pytest.mark.parametrize(
    ("beside", "severity"),
    [
        ({"reward.accuracy": 0.97}, "info"),
        ({"reward.total.max": 1.5}, "info"),
        ({"reward.accuracy": 0.6, "reward.total.max": 1.5}, "warning"),
        ({"reward.total.max": 3.0}, "warning"),
        ({}, "warning"),
    ],
)
def test_answers_that_agree_because_they_are_right_are_no_trouble(beside, severity):
    """Rewards of up to 1.5 (1 for the answer, 0.5 for reading): only the share of right answers or the highest single
    reward shows that 1.45 is near the maximum.
    """
    rows = [
        row | {"reward": 1.45 + 0.02 * (step % 3), **beside}
        for step, row in enumerate(varied("group.distinct_answers.mean", 0.63, 0.15))
    ]
    assert {one.severity for one in findings_of(judged(rows), "answers_alike")} == {severity}


@pytest.mark.parametrize(("settings", "is_reported"), [
    ({"num_generations": 4}, True), ({"n_samples_per_prompt": 4}, True), ({"num_generations": 16}, False), ({}, False),
])  # fmt: skip
def test_a_group_of_four_in_full_agreement_is_at_a_quarter(settings, is_reported):
    """Distinct answers fall from 60 % to 28 %: about one answer in a group of four, but four in a group of sixteen."""
    rows = [
        row | {"reward": 0.3 + 0.004 * step + 0.01 * (step % 3)}
        for step, row in enumerate(varied("group.distinct_answers.mean", 0.6, 0.28))
    ]
    assert bool(findings_of(judged(rows, config=settings), "answers_alike")) is is_reported


@pytest.mark.parametrize("name", ["policy.prompt_dependence", "group.prompt_contrast.mean"])
def test_answers_that_no_longer_depend_on_their_prompts(name):
    (found,) = findings_of(judged(varied(name, 0.9, 0.1)), "prompt_ignored")
    assert found.kind == "entropy_collapse"
    assert findings_of(judged(varied(name, 0.9, 0.8)), "prompt_ignored") == []


@pytest.mark.parametrize(("rule", "make", "healthy"), [
    ("answers_alike", answers.settling_run, answers.learning_run),
    ("prompt_ignored", answers.ignoring_run, answers.learning_run),
    ("prompts_lost", answers.forgetting_run, answers.evaluated_run),
])  # fmt: skip
def test_generated_answers_and_evaluations(rule, make, healthy):
    """benchmarks/doctor_depth.py measures the shares. The texts here are really compared."""
    run = make(841)
    found = findings_of(judged(run.rows), rule)
    assert found, run.name
    assert found[0].severity == "warning"
    assert found[0].step > run.onset
    assert findings_of(judged(healthy(841).rows), rule) == []
