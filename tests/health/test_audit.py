"""Impossible numbers are reported, and numbers that only look wrong are reported as normal."""

from __future__ import annotations

import random

import pytest

from rlvitals.health.monitor import Monitor


def reported(rows, **facts):
    """Rule and severity of every finding."""
    monitor = Monitor(**facts)
    found = [finding for row in rows for finding in monitor.update(row)]
    assert monitor.problems == {}
    return {(finding.rule, finding.severity) for finding in found}


def healthy(step: int, generator: random.Random) -> dict:
    return {
        "step": step,
        "loss": generator.gauss(0.01, 0.005),
        "reward": 0.3 + 0.002 * step + generator.gauss(0, 0.03),
        "kl": abs(generator.gauss(0.02, 0.004)),
        "entropy": generator.gauss(0.5, 0.02),
        "grad_norm": abs(generator.gauss(0.5, 0.05)),
        "completions/clipped_ratio": abs(generator.gauss(0.05, 0.01)),
    }


def rows_with(points: int = 40, **changes):
    """Healthy rows of TRL's GRPO with some columns replaced by a function of the step."""
    generator = random.Random(7)
    for step in range(1, points + 1):
        row = healthy(step, generator)
        for name, change in changes.items():
            row[name.replace("__", "/")] = change(step)
        yield row


def test_a_healthy_run_passes_the_audit():
    assert not {
        rule for rule, severity in reported(rows_with(), algorithm="grpo", framework="trl") if severity != "info"
    }


@pytest.mark.parametrize(
    ("rule", "changes"),
    [
        ("impossible_share", {"completions__clipped_ratio": lambda step: 1.4}),
        ("impossible_share", {"completions__clipped_ratio": lambda step: -0.2}),
        ("impossible_kl", {"kl": lambda step: -0.002}),
        ("impossible_entropy", {"entropy": lambda step: 14.0}),
    ],
)
def test_a_number_that_cannot_be_is_named(rule, changes):
    assert (rule, "warning") in reported(rows_with(**changes), algorithm="grpo", framework="trl")


def test_the_entropy_of_a_small_vocabulary_has_a_smaller_limit():
    rows = list(rows_with(entropy=lambda step: 6.0))
    assert ("impossible_entropy", "warning") not in reported(rows, algorithm="grpo", framework="trl")
    assert ("impossible_entropy", "warning") in reported(
        rows, algorithm="grpo", framework="trl", config={"vocab_size": 300}
    )


def test_a_mean_outside_its_own_extremes_is_named():
    rows = [
        {"step": step, "critic/score/mean": 0.9, "critic/score/max": 0.7, "critic/score/min": 0.1} for step in range(6)
    ]
    assert ("impossible_mean", "warning") in reported(rows, algorithm="grpo", framework="verl")


def parts(correct: float, shape: float, total: float):
    return [
        {"step": step, "reward": total, "rewards/correct/mean": correct, "rewards/format/mean": shape}
        for step in range(1, 20)
    ]


def test_a_reward_that_is_not_the_weighted_sum_of_its_parts_is_named():
    facts = {"algorithm": "grpo", "framework": "trl", "config": {"reward_weights": [1.0, 0.5]}}
    assert ("reward_is_not_its_parts", "warning") in reported(parts(0.4, 0.2, 0.6), **facts)
    assert ("reward_is_not_its_parts", "warning") not in reported(parts(0.4, 0.2, 0.5), **facts)


def test_a_metric_that_stops_coming_is_named_and_one_that_comes_seldom_is_not():
    rows = list(rows_with(80))
    for row in rows[40:]:
        del row["entropy"]
    assert ("metric_vanished", "warning") in reported(rows, algorithm="grpo", framework="trl")
    seldom = list(rows_with(400))
    for row in seldom:
        if row["step"] % 10:
            del row["entropy"]
    assert ("metric_vanished", "warning") not in reported(seldom, algorithm="grpo", framework="trl")


def test_steps_that_run_backwards_or_come_twice_are_named():
    rows = list(rows_with(60))
    for row in rows[20:]:
        row["step"] += 5 * (-1) ** row["step"]
    assert ("steps_backwards", "warning") in reported(rows, algorithm="grpo", framework="trl")
    twice = [row for row in rows_with(40) for _ in range(2)]
    assert ("steps_repeated", "warning") in reported(twice, algorithm="grpo", framework="trl")


def test_evaluation_rows_that_share_a_step_with_training_are_no_repetition():
    rows = []
    for row in rows_with(60):
        rows += [row, {"step": row["step"], "eval_reward": 0.4}]
    assert ("steps_repeated", "warning") not in reported(rows, algorithm="grpo", framework="trl")


def test_what_only_looks_wrong_is_reported_as_normal():
    still = rows_with(60, loss=lambda step: 0.0, clip_ratio__region_mean=lambda step: 0.0)
    found = reported(still, algorithm="grpo", framework="trl")
    assert {("loss_of_zero", "info"), ("clip_of_zero", "info")} <= found
    assert not [rule for rule, severity in found if severity != "info"]


def test_ktos_kl_at_zero_and_a_first_accuracy_of_zero_are_normal():
    rows = [
        {"step": step, "loss": 0.5 - 0.002 * step, "rewards/margins": 0.02 * step, "kl": 0.0} for step in range(1, 40)
    ]
    found = reported(rows, algorithm="kto", framework="trl")
    assert ("kto_kl_at_zero", "info") in found
    assert not [rule for rule, severity in found if severity != "info"]
    first = {"step": 1, "loss": 0.6931, "rewards/margins": 0.0, "rewards/accuracies": 0.0}
    assert ("first_accuracy", "info") in reported([first], algorithm="dpo", framework="trl")


def test_a_log_with_several_rows_a_step_is_no_log_of_two_processes():
    severities = {}
    for rows_a_step in (2, 4):
        monitor = Monitor("grpo", "trl_grpo")
        rows = ({"step": n // rows_a_step, "reward": 0.4 + 0.01 * (n % 7), "loss": 0.01 * (n % 5)} for n in range(120))
        found = [finding for row in rows for finding in monitor.update(row)]
        severities[rows_a_step] = {finding.severity for finding in found if finding.rule == "steps_repeated"}
    assert severities == {2: {"warning"}, 4: {"info"}}


@pytest.mark.parametrize(("kl", "is_reported"), [(-6e-6, False), (-2e-3, True)])
def test_a_kl_that_is_negative_by_rounding_is_not_impossible(kl, is_reported):
    monitor = Monitor("grpo", "trl_grpo")
    found = [one for step in range(40) for one in monitor.update({"step": step, "reward": 0.1 * (step % 7), "kl": kl})]
    assert ("impossible_kl" in {one.rule for one in found}) == is_reported
