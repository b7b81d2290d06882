"""The parts a reward is made of: one that takes over is named, small change that comes and goes is not."""

from __future__ import annotations

import random

import pytest

from rlvitals.health.monitor import Monitor


def said_of(task, *parts, steps=100, seed=0):
    """The kinds said of a reward of several parts; each is given by its value at the start and at the end."""
    draw = random.Random(seed)
    monitor = Monitor(algorithm="grpo", framework="trl_grpo")
    said = []
    for step in range(1, steps + 1):
        way = min(1.0, max(0.0, (step - 20) / 50))
        row = {
            f"rewards/{name}/mean": begin + (end - begin) * way + draw.gauss(0, 0.05 * max(begin, end))
            for name, begin, end in (("task", *task), *parts)
        }
        found = monitor.update({"step": step, "reward": sum(row.values()), "loss": draw.gauss(0, 0.01), **row})
        said += [finding.rule for finding in found]
    return said


@pytest.mark.parametrize("seed", range(3))
def test_partial_credit_that_goes_when_whole_answers_are_right_is_no_finding(seed):
    said = said_of((0.3, 1.4), ("found", 0.03, 0.005), ("sources", 0.02, 0.08), seed=seed)
    assert "reward_takeover" not in said


@pytest.mark.parametrize("seed", range(3))
def test_a_weighty_part_that_grows_while_another_falls_is_one(seed):
    said = said_of((0.5, 0.5), ("found", 0.5, 0.1), ("sources", 0.2, 0.8), seed=seed)
    assert "reward_takeover" in said
