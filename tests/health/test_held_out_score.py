"""The held-out score beside a training reward that climbs: what is a hacked reward, and what only looks like one."""

from __future__ import annotations

import random

import pytest

from rlvitals.health.monitor import Monitor


def kinds_said(evaluations, *, every, climb, seed=0):
    """What the doctor says of a reward that climbs with some noise and of these evaluations, one every few steps."""
    draw = random.Random(seed)
    monitor = Monitor(algorithm="ppo", framework="roll")
    said = []
    for step in range(1, every * len(evaluations)):
        if step % every == 1:
            found = monitor.update({"step": step, "val/score/mean": evaluations[step // every]})
            said += [(finding.kind, finding.severity) for finding in found]
        reward = climb * step / (every * len(evaluations)) + draw.gauss(0, 0.08)
        found = monitor.update({"step": step, "critic/score/mean": reward, "actor/total_loss": draw.gauss(0, 0.01)})
        said += [(finding.kind, finding.severity) for finding in found]
    return said


@pytest.mark.parametrize("seed", range(3))
def test_a_score_that_slides_away_while_the_reward_climbs_is_a_hacked_reward(seed):
    slide = [0.5, 0.39, 0.16, 0.09, 0.06, 0.05, 0.03, 0.01, 0.01]
    said = kinds_said(slide, every=5, climb=3.0, seed=seed)
    assert ("reward_hacking", "critical") in said


@pytest.mark.parametrize("seed", range(3))
@pytest.mark.parametrize(
    "scores",
    [
        [0.46, 0.76, 0.89, 0.93, 0.94, 0.94, 0.95],  # steep, then near its ceiling
        [0.57, 0.78, 0.92, 0.92, 0.93, 0.95, 0.92],
        [0.30, 0.34, 0.33, 0.40, 0.44, 0.43, 0.52],
    ],
)
def test_a_score_that_climbs_with_the_reward_is_none(scores, seed):
    said = kinds_said(scores, every=16, climb=1.0, seed=seed)
    assert "reward_hacking" not in {kind for kind, _ in said}
