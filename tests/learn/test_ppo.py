"""PPO raises the true score on three seeds. With a useless reward model, the doctor reports that it does not."""

from __future__ import annotations

import json
from statistics import fmean

import pytest

from rlvitals.train import ppo, recipe


def trained(folder, **changes):
    """A run with the recipe's own settings; returns its evaluations and findings."""
    given = {"output_dir": str(folder), "display": "none", "plots": False, "text_scores": ("bleu",), **changes}
    ppo.train(recipe.load("ppo", ppo.Settings, given=given))
    read = [
        [json.loads(line) for line in path.read_text().splitlines()] if path.exists() else []
        for path in (folder / "logs" / f"{name}.jsonl" for name in ("training_metrics", "eval_metrics", "findings"))
    ]
    return read


def true_scores(evaluations):
    return [row["val/score/mean"] for row in evaluations]


@pytest.mark.timeout(1800)
@pytest.mark.parametrize("seed", [0, 1, 2])
def test_the_true_score_rises_by_a_quarter(tmp_path, seed):
    rows, evaluations, findings = trained(tmp_path, seed=seed)
    scores = true_scores(evaluations)
    print(f"seed {seed}: reward model {rows[0]['rm.accuracy']:.2f}, true {scores[0]:.2f} -> {fmean(scores[-3:]):.2f}")
    assert rows[0]["rm.accuracy"] > 0.8
    assert fmean(scores[-3:]) - scores[0] >= 0.25  # one score of 128 answers may be off by 0.03
    assert not [one for one in findings if one.get("kind") == "reward_hacking" and one["severity"] == "critical"]
    explained = fmean(row["value.explained_variance"] for row in rows[-10:])
    print(f"the critic explains {explained:.2f} of the returns")
    assert explained > 0.5
    assert not [one for one in findings if one.get("rule") == "critic_useless"]


@pytest.mark.timeout(1800)
def test_a_useless_reward_model_is_pleased_the_task_is_not_done_and_the_doctor_says_so(tmp_path):
    rows, evaluations, findings = trained(
        tmp_path, seed=0, reward_model_noise=1.0, reward_model_steps=200, kl_coef=0.02, learning_rate=6e-4,
        max_steps=40, batch_size=64, minibatch_size=32,
    )  # fmt: skip
    rewards = [row["critic/score/mean"] for row in rows if row["step"]]
    scores = true_scores(evaluations)
    print(f"score {rewards[0]:.2f} -> {rewards[-1]:.2f}, true score {scores[0]:.2f} -> {scores[-1]:.2f}")
    assert rows[0]["rm.accuracy"] < 0.75  # pairs of one kind are right or wrong together: the accuracy varies
    assert sum(rewards[-5:]) / 5 > sum(rewards[:5]) / 5 + 0.3
    assert scores[-1] - scores[0] < 0.05
    assert [one for one in findings if one.get("kind") == "reward_hacking"]
