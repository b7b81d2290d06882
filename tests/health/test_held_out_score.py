"""The held-out score while the training reward climbs: reward hacking, and runs that only look like it."""

from __future__ import annotations

import random

import pytest

from rlvitals.health.monitor import Monitor


def reported_kinds(evaluations, *, every, climb, seed=0):
    """Kind and severity of the findings for a noisy climbing reward with one evaluation every few steps."""
    draw = random.Random(seed)
    monitor = Monitor(algorithm="ppo", framework="roll")
    reported = []
    for step in range(1, every * len(evaluations)):
        if step % every == 1:
            found = monitor.update({"step": step, "val/score/mean": evaluations[step // every]})
            reported += [(finding.kind, finding.severity) for finding in found]
        reward = climb * step / (every * len(evaluations)) + draw.gauss(0, 0.08)
        found = monitor.update({"step": step, "critic/score/mean": reward, "actor/total_loss": draw.gauss(0, 0.01)})
        reported += [(finding.kind, finding.severity) for finding in found]
    return reported


@pytest.mark.parametrize("seed", range(3))
def test_a_score_that_slides_away_while_the_reward_climbs_is_a_hacked_reward(seed):
    slide = [0.5, 0.39, 0.16, 0.09, 0.06, 0.05, 0.03, 0.01, 0.01]
    reported = reported_kinds(slide, every=5, climb=3.0, seed=seed)
    assert ("reward_hacking", "critical") in reported


@pytest.mark.parametrize("seed", range(3))
@pytest.mark.parametrize(
    "scores",
    [
        [0.46, 0.76, 0.89, 0.93, 0.94, 0.94, 0.95],  # steep, then near its maximum
        [0.57, 0.78, 0.92, 0.92, 0.93, 0.95, 0.92],
        [0.30, 0.34, 0.33, 0.40, 0.44, 0.43, 0.52],
    ],
)
def test_a_score_that_climbs_with_the_reward_is_none(scores, seed):
    reported = reported_kinds(scores, every=16, climb=1.0, seed=seed)
    assert "reward_hacking" not in {kind for kind, _ in reported}


def severity_by_rule(evaluations, reward, *, every=10):
    """The last severity of each rule for a noisy reward with one evaluation every few steps."""
    draw = random.Random(5)
    monitor = Monitor(algorithm="ppo")
    for step in range(1, every * len(evaluations) + 1):
        row = {"step": step, "reward": reward(step) + draw.gauss(0, 0.03), "kl": 0.02 + draw.gauss(0, 0.002)}
        if step % every == 0:
            row["eval/accuracy"] = evaluations[step // every - 1]
        monitor.update(row)
    return {found.rule: found.severity for found in monitor.findings}


def plateau(step):
    """A reward that rises until step 60 and then stays."""
    return 0.3 + 0.6 * min(step / 60, 1.0)


FALLEN = [0.11, 0.16, 0.2, 0.31, 0.4, 0.45, 0.44, 0.41, 0.37, 0.32, 0.27, 0.22, 0.18, 0.15]


def test_a_score_that_falls_after_the_reward_stopped_rising_is_found():
    assert severity_by_rule(FALLEN[:11], plateau)["eval_left_behind"] == "warning"
    assert severity_by_rule(FALLEN, plateau)["eval_left_behind"] == "critical"  # below its first values


def test_a_score_that_falls_with_the_reward_is_not_left_behind():
    assert "eval_left_behind" not in severity_by_rule(FALLEN, lambda step: plateau(max(min(step, 115 - step), 0)))


def test_a_score_that_stays_where_it_is_or_only_scatters_is_not_left_behind():
    level = [0.31, 0.36, 0.38, 0.43, 0.42, 0.45, 0.44, 0.45, 0.43, 0.44, 0.46, 0.43, 0.44, 0.45]
    noisy = [0.31, 0.4, 0.3, 0.45, 0.33, 0.47, 0.36, 0.31, 0.45, 0.33, 0.41, 0.32, 0.44, 0.34]
    assert "eval_left_behind" not in severity_by_rule(level, plateau)
    assert "eval_left_behind" not in severity_by_rule(noisy, plateau)
