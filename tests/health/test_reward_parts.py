"""The parts of a reward: a part that takes over is reported, small parts that come and go are not."""

from __future__ import annotations

import random

import pytest

from rlvitals.health.monitor import Monitor


def rules_reported(task, *parts, steps=100, seed=0, is_sum=True):
    """The rules raised for a reward of several parts. Each part has a value at the start and at the end. The reward is
    their sum, or noise that has nothing to do with them.
    """
    draw = random.Random(seed)
    monitor = Monitor(algorithm="grpo", framework="trl_grpo")
    reported = []
    for step in range(1, steps + 1):
        way = min(1.0, max(0.0, (step - 20) / 50))
        row = {
            f"rewards/{name}/mean": begin + (end - begin) * way + draw.gauss(0, 0.05 * max(begin, end))
            for name, begin, end in (("task", *task), *parts)
        }
        reward = sum(row.values()) if is_sum else draw.gauss(0.5, 0.02)
        found = monitor.update({"step": step, "reward": reward, "loss": draw.gauss(0, 0.01), **row})
        reported += [finding.rule for finding in found]
    return reported


@pytest.mark.parametrize("seed", range(3))
def test_partial_credit_that_goes_when_whole_answers_are_right_is_no_finding(seed):
    reported = rules_reported((0.3, 1.4), ("found", 0.03, 0.005), ("sources", 0.02, 0.08), seed=seed)
    assert "reward_takeover" not in reported


@pytest.mark.parametrize("seed", range(3))
def test_a_weighty_part_that_grows_while_another_falls_is_one(seed):
    reported = rules_reported((0.5, 0.5), ("found", 0.5, 0.1), ("sources", 0.2, 0.8), seed=seed)
    assert "reward_takeover" in reported


def grown(seed, *, called=None, steps=120):
    """The rules raised when partial credit falls and complete answers rise: the part `perfect` replaces `right`. If
    `called` gives the part another name, the share of right answers is logged as well.
    """
    draw = random.Random(seed)
    monitor = Monitor(algorithm="grpo", framework="trl_grpo")
    reported = []
    for step in range(1, steps + 1):
        way = min(1.0, max(0.0, (step - 20) / 60))
        whole, half = 0.1 + 0.7 * way, 0.6 - 0.4 * way
        noise = draw.gauss(0, 0.03)
        parts = {f"rewards/{called or 'perfect'}/mean": 2.0 * (whole + noise), "rewards/right/mean": half - noise}
        beside = {} if called is None else {"success_rate": whole + 0.5 * half + draw.gauss(0, 0.02)}
        found = monitor.update({"step": step, "reward": sum(parts.values()), "loss": 0.0, **parts, **beside})
        reported += [finding.rule for finding in found]
    return reported


@pytest.mark.parametrize("seed", range(3))
def test_success_itself_may_become_most_of_the_reward(seed):
    """Success is recognised by its name, or because the share of right answers rises with it."""
    assert "reward_takeover" not in grown(seed)
    assert "reward_takeover" not in grown(seed, called="whole")


@pytest.mark.parametrize("seed", range(3))
def test_the_same_growth_of_a_part_that_nothing_supports_is_reported(seed):
    reported = rules_reported((0.6, 0.2), ("style_bonus", 0.2, 1.6), steps=120, seed=seed)
    assert "reward_takeover" in reported
    unrelated = rules_reported((0.6, 0.2), ("style_bonus", 0.2, 1.6), steps=120, seed=seed, is_sum=False)
    assert "reward_takeover" not in unrelated
    steady = rules_reported((0.6, 0.6), ("style_bonus", 0.6, 0.6), steps=120, seed=seed)
    assert "reward_takeover" not in steady
