"""Judges that give the reward: at chance level, inconsistent, unreadable. Good judges raise no finding."""

from __future__ import annotations

import random

import pytest

from rlvitals.health.monitor import Monitor

GOOD = {"separation": 0.9, "agreement": 0.98, "unread": 0.02}


def found(seed, steps=97, spread=0.2, **changes):
    """The judge rules raised in a run with an evaluation every 16 steps."""
    judge, rng, monitor = GOOD | changes, random.Random(seed), Monitor("rlaif")
    findings = []
    for step in range(steps):
        if step % 16 == 0:
            findings += monitor.update(
                {"step": step, "eval/judge.gold_separation": rng.gauss(judge["separation"], 0.05)}
            )
        row = {"step": step, "Train/AvgReward": rng.gauss(0.5 + step / 400, 0.02), "Train/RewardStd": spread,
               "judge.parse_failure_fraction": max(0.0, rng.gauss(judge["unread"], 0.02))}  # fmt: skip
        if step % 16 == 0:
            row["Teacher/SelfAgreement"] = min(1.0, rng.gauss(judge["agreement"], 0.01))
        findings += monitor.update(row)
    assert monitor.problems == {}
    return {(one.rule, one.severity) for one in findings if one.rule.startswith("judge_")}


@pytest.mark.parametrize("seed", range(5))
def test_of_a_good_judge_and_of_a_fair_one_nothing_is_reported(seed):
    assert found(seed) == set()
    assert found(seed, separation=0.78, agreement=0.9, unread=0.1) == set()


@pytest.mark.parametrize("seed", range(5))
def test_a_judge_that_ranks_like_a_coin_is_to_be_acted_on(seed):
    assert ("judge_at_chance", "critical") in found(seed, separation=0.5)
    assert found(seed, steps=32, separation=0.5) == set()  # two evaluations are too few


def test_a_judge_that_gives_everybody_the_same_reward_has_no_share_of_noise():
    assert found(0, spread=0.0, agreement=0.9) == set()
    assert found(0, spread=0.1, agreement=0.9) == {("judge_noise", "warning")}
    assert ("judge_noise", "critical") in found(0, spread=0.1, agreement=0.8)


def test_the_share_of_variance_that_is_noise_is_that_of_two_draws():
    """Normal noise of 0.17 and true differences of 0.1: 74 % of the variance within a group is noise of the judge."""
    rng = random.Random(1)
    apart = sum(abs(rng.gauss(0, 0.17) - rng.gauss(0, 0.17)) for _ in range(20_000)) / 20_000
    spread, monitor, findings = (0.17**2 + 0.1**2) ** 0.5, Monitor("rlaif"), []
    for step in range(40):
        findings += monitor.update({"step": step, "Train/AvgReward": 0.5, "Train/RewardStd": spread,
                                    "Teacher/SelfAgreement": 1 - apart})  # fmt: skip
    (noisy,) = (one for one in findings if one.rule == "judge_noise")
    assert noisy.severity == "warning"
    assert noisy.evidence["share"] == pytest.approx(0.17**2 / spread**2, rel=0.03)


def test_a_judge_without_verdicts_is_reported():
    assert found(0, unread=0.3) == {("judge_unreadable", "warning")}
    assert ("judge_unreadable", "critical") in found(0, unread=0.8)
