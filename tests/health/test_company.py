"""Alarms about internal metrics of a run whose reward has risen: info while the reward still rises, a warning once it
has stopped and a second metric agrees. Also the finding about a failed attempt before a restart.
"""

from __future__ import annotations

import random

import pytest

from rlvitals.health.monitor import Monitor


def severities(rows, algorithm="grpo"):
    """The highest severity of each rule for these rows, and the monitor."""
    monitor = Monitor(algorithm)
    highest = {}
    order = ("info", "warning", "critical")
    for step, row in enumerate(rows, 1):
        for found in monitor.update({"step": step, **row}):
            highest[found.rule] = max(highest.get(found.rule, "info"), found.severity, key=order.index)
    assert monitor.problems == {}
    return highest, monitor


def rise(step, until=60):
    """A reward that rises until step `until` and then stays. It is above 1, so it is not read as a solved share."""
    return 2.1 + 0.4 * min(step, until) / 60


def rows_of(change, *, steps=130, rises_on=False, seed=3):
    """A run whose reward rises to step 60 and then stays, or keeps rising. `change` gives the other series by step."""
    draw = random.Random(seed)
    rows = []
    for step in range(1, steps + 1):
        reward = rise(step, until=steps) if rises_on else rise(step)
        rows.append({"reward": reward + draw.gauss(0, 0.1), **change(step, draw)})
    return rows


def falling_entropy(left):
    def change(step, draw):
        fallen = left + (1 - left) * 0.85 ** max(step - 60, 0)
        return {"entropy": 0.5 * fallen * (1 + draw.gauss(0, 0.03))}

    return change


def falling_entropy_and_groups(step, draw):
    alike = 0.1 + 0.5 * min(max(step - 60, 0) / 20, 1)
    return falling_entropy(0.25)(step, draw) | {"frac_reward_zero_std": alike + draw.gauss(0, 0.02)}


@pytest.mark.parametrize(
    ("change", "is_reported"),
    [
        pytest.param(falling_entropy(0.05), True, id="hardly any is left"),
        pytest.param(falling_entropy_and_groups, True, id="a quarter is left and groups are alike"),
        pytest.param(falling_entropy(0.25), False, id="a quarter is left, and nothing else moved"),
    ],
)
def test_a_low_entropy_is_a_warning_once_the_reward_stands_still_and_another_sign_agrees(change, is_reported):
    assert (severities(rows_of(change))[0].get("entropy_collapse") == "warning") is is_reported
    assert severities(rows_of(change, rises_on=True))[0].get("entropy_collapse", "info") == "info"


def leaping_critic(step, draw):
    return {"critic/vf_loss": (0.1 if step < 80 else 0.6) * (1 + draw.gauss(0, 0.05))}


def growing_critic(step, draw):
    return {"critic/vf_loss": 0.1 * (1 + 5 * step / 130) * (1 + draw.gauss(0, 0.05))}


def test_a_value_loss_that_leaps_while_the_reward_stands_is_a_warning_and_one_that_grows_with_it_is_none():
    assert severities(rows_of(leaping_critic), "ppo")[0]["value_loss_growth"] == "warning"
    assert severities(rows_of(growing_critic, rises_on=True), "ppo")[0].get("value_loss_growth", "info") == "info"
    assert severities(rows_of(growing_critic), "ppo")[0].get("value_loss_growth", "info") == "info"


@pytest.mark.parametrize(("grown", "is_reported"), [(3.0, True), (1.0, False)])
def test_a_loss_that_leaves_its_level_is_a_warning_where_the_gradient_has_grown_with_it(grown, is_reported):
    def change(step, draw):
        late = min(max(step - 80, 0) / 10, 1)
        return {
            "loss": draw.gauss(0, 0.01) + 0.8 * late,
            "grad_norm": 0.5 * (1 + (grown - 1) * late) * (1 + draw.gauss(0, 0.05)),
        }

    assert (severities(rows_of(change))[0].get("loss_divergence") == "warning") is is_reported


@pytest.mark.parametrize(
    ("series", "is_reported"), [(("reward", "grad_norm", "kl"), True), (("grad_norm", "kl"), False)]
)
def test_jumps_that_grow_in_three_series_together_are_a_warning_though_the_reward_is_ahead(series, is_reported):
    draw = random.Random(11)
    rows = []
    for step in range(1, 221):
        size = 1 + 4 * min(max(step - 130, 0) / 50, 1)
        jumps = {name: size if name in series else 1.0 for name in ("reward", "grad_norm", "kl")}
        rows.append({
            "reward": rise(step) + draw.gauss(0, 0.08) * jumps["reward"],
            "grad_norm": 0.5 * 2 ** (draw.gauss(0, 0.2) * jumps["grad_norm"]),
            "kl": 0.1 * 2 ** (draw.gauss(0, 0.2) * jumps["kl"]),
        })  # fmt: skip
    assert (severities(rows)[0].get("instability") == "warning") is is_reported


@pytest.mark.parametrize(("factor", "title"), [(1.0, "keeps its level but jumps"), (1.3, "its level went from 0.")])
def test_a_series_that_explodes_is_not_described_as_keeping_its_level(factor, title):
    """With a factor of 1.3 per step, the series ends at 1e9 times its start."""
    draw = random.Random(5)
    monitor = Monitor("grpo")
    found = []
    for step in range(1, 181):
        wild = 1 + 4 * min(max(step - 90, 0) / 40, 1)
        row = {"step": step, "reward": 0.4 + draw.gauss(0, 0.03)}
        row |= {
            name: 0.1 * factor ** max(step - 100, 0) * 2 ** (draw.gauss(0, 0.2) * wild) for name in ("kl", "grad_norm")
        }
        found += [one.title for one in monitor.update(row) if one.rule == "instability"]
    assert found
    assert all(title in one for one in found)


def evaluated(score, steps=140):
    """A reward that climbs slowly, and steeply from step 90 on, with an evaluation every ten steps."""
    draw = random.Random(2)
    rows = []
    for step in range(1, steps + 1):
        climb = 0.002 * step + 0.012 * max(step - 90, 0)
        row = {"reward": -0.5 + climb + draw.gauss(0, 0.03)}
        if step % 10 == 0:
            row["eval/accuracy"] = score(climb, step) + draw.gauss(0, 0.01)
        rows.append(row)
    return rows


def test_a_held_out_score_that_no_longer_follows_the_reward_is_reported():
    followed = severities(evaluated(lambda climb, step: 0.3 + 0.6 * climb))[0]
    parted = severities(evaluated(lambda climb, step: 0.3 + 0.6 * min(climb, 0.18)))[0]
    assert followed.get("eval_falls", "info") == "info"
    assert parted["eval_falls"] == "warning"


@pytest.mark.parametrize(("cut", "is_reported"), [(0.5, True), (0.1, False)])
def test_a_reward_that_stands_is_reported_after_fewer_rows_where_half_the_answers_are_cut_off(cut, is_reported):
    draw = random.Random(4)
    rows = [
        {"reward": -20 + draw.gauss(0, 1.5), "completions/clipped_ratio": cut + draw.gauss(0, 0.04)} for _ in range(60)
    ]
    assert (severities(rows)[0].get("not_learning") == "warning") is is_reported


def test_chosen_answers_that_lose_more_than_the_margin_gains_are_reported_though_the_margin_is_ahead():
    def severity_of(fall):
        draw, rows = random.Random(6), []
        for step in range(1, 101):
            late = max(step - 70, 0)
            chosen = 0.2 - fall * late
            margin = 2.0 * min(step / 60, 1) + 0.02 * late
            rows.append({
                "rewards/chosen": chosen + draw.gauss(0, 0.1), "rewards/margins": margin + draw.gauss(0, 0.1),
                "rewards/rejected": chosen - margin + draw.gauss(0, 0.1), "loss": 0.3, "rewards/accuracies": 0.8,
            })  # fmt: skip
        return severities(rows, "dpo")[0].get("likelihood_displacement", "info")

    assert severity_of(0.05) == "warning"
    assert severity_of(0.004) == "info"


def attempts(*lengths, broken=()):
    """The rows of several attempts in one log, each from step 1. The gradient of `broken` attempts is always NaN."""
    draw = random.Random(1)
    return [
        {"step": step, "reward": 0.3 + draw.gauss(0, 0.02), "kl": 0.01 + draw.gauss(0, 0.001),
         "grad_norm": float("nan") if attempt in broken else 0.5 + draw.gauss(0, 0.05)}
        for attempt, length in enumerate(lengths) for step in range(1, length + 1)
    ]  # fmt: skip


@pytest.mark.parametrize(
    ("rows", "verdict"),
    [
        pytest.param(attempts(20, 25, broken=[0]), "watch", id="the second has hardly got further"),
        pytest.param(attempts(20, 10, 25, broken=[0]), "watch", id="nor has the third"),
        pytest.param(attempts(20, 60, broken=[0]), "healthy", id="the second has outlived it"),
        pytest.param(attempts(20, 60, 25, broken=[0]), "healthy", id="and what comes after it owes nothing"),
        pytest.param(attempts(20, 25), "healthy", id="the first did not fail"),
    ],
)
def test_a_restart_is_no_cure_until_the_run_has_got_further_than_the_attempt_that_failed(rows, verdict):
    monitor = Monitor("grpo")
    for row in rows:
        monitor.update(row)
    assert monitor.problems == {}
    assert monitor.verdict == verdict
    reported = [found for found in monitor.findings if found.rule == "earlier_attempt_failed"]
    assert bool(reported) == any(row["grad_norm"] != row["grad_norm"] for row in rows)
    for found in reported:
        assert (found.kind, found.severity) == ("nonfinite", "warning")
        assert "step 20" in found.title
