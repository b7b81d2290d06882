"""The names under which statistics are returned."""

from __future__ import annotations

import loops
import numpy as np
import pytest

from rlvitals import catalog
from rlvitals.compute import advantage, policy, preference, rollout


def everything(names):
    """Each family's statistics with every argument given."""
    tensors = loops.batch(0)
    rng = np.random.default_rng(0)
    shape = tensors["mask"].shape
    yield policy.stats(
        **tensors, exact_kl_ref=np.ones(shape), exact_kl_old=np.ones(shape), scores=[1, 0, 1, 0, 1],
        sample_weights=np.ones(5), kl_coef=0.1, entropy_coef=0.01, dual_clip=3.0, names=names,
    )  # fmt: skip
    yield advantage.stats(
        advantages=tensors["advantages"], raw_advantages=tensors["advantages"], advantage_clip=1.0,
        returns=rng.normal(size=shape), values=rng.normal(size=shape), old_values=rng.normal(size=shape),
        token_rewards=rng.normal(size=shape), mask=tensors["mask"], value_clip=0.2, names=names,
    )  # fmt: skip
    yield rollout.stats(
        response_lengths=[1, 2, 3, 4], prompt_lengths=[4, 4, 5, 5], finish_reasons=["stop", "length", "stop", "stop"],
        scores=[0.0, 1.0, 1.0, 1.0], success=[0, 1, 1, 1], score_low=-0.5, score_high=0.5, group_ids=[0, 0, 1, 1],
        min_group_std=0.05, tokens=[[1, 2, 3, 4]] * 4, texts=["a"] * 4, names=names,
    )  # fmt: skip
    yield rollout.stats(scores=[0.0, 1.0], stage="eval", names=names)


def pairs(names):
    return preference.stats(
        chosen_logprobs=[-1.0, -2.0], ref_chosen_logprobs=[-1.5, -2.0], rejected_logprobs=[-3.0, -2.5],
        ref_rejected_logprobs=[-2.0, -2.5], names=names,
    )  # fmt: skip


def completions(names):
    return preference.stats(
        logprobs=[-1.0, -2.0], ref_logprobs=[-1.5, -2.0], desirable=[True, False], kl_logprobs=[-1.0],
        ref_kl_logprobs=[-2.0], names=names,
    )  # fmt: skip


def test_canonical_names_are_ids_of_the_catalogue():
    ids = {metric.id for metric in catalog.metrics()}
    found = {name for stats in everything("canonical") for name in stats} | set(pairs("canonical"))
    assert found | set(completions("canonical")) <= ids


@pytest.mark.parametrize("framework", ["roll", "verl", "rlaif", "openrlhf", "slime"])
def test_a_frameworks_names_are_names_it_knows_and_no_two_metrics_share_one(framework):
    canonical = [list(stats) for stats in everything("canonical")]
    named = [list(stats) for stats in everything(framework)]
    own = 0
    for ids, names in zip(canonical, named, strict=True):
        assert len(names) >= len(ids)  # a duplicate name would give fewer entries
        for name in set(names) - set(ids):
            own += 1
            assert any(match.alias.framework == framework for match in catalog.find(name, framework))
    assert own > 4


def test_the_documents_policy_names_come_out_exactly():
    names = set().union(*everything("roll"))
    assert {
        "val/score/mean", "val/score/max", "val/score/min", "critic/loss", "critic/value", "critic/vpred",
        "critic/clipfrac", "critic/error", "critic/score/mean", "critic/score/max", "critic/score/min",
        "critic/rewards/mean", "critic/rewards/max", "critic/rewards/min", "critic/advantages/mean",
        "critic/advantages/max", "critic/advantages/min", "critic/returns/mean", "critic/returns/max",
        "critic/returns/min", "critic/values/mean", "critic/values/max", "critic/values/min",
        "tokens/response_length/mean", "tokens/response_length/max", "tokens/response_length/min",
        "tokens/prompt_length/mean", "tokens/prompt_length/max", "tokens/prompt_length/min",
        "actor/ppo_ratio_high_clipfrac", "actor/ppo_ratio_low_clipfrac", "actor/ppo_ratio_clipfrac",
        "actor/ratio_mean", "actor/ratio_max", "actor/ratio_min", "actor/clipfrac", "actor/kl_loss",
        "actor/total_loss", "actor/approxkl", "actor/policykl", "critic/ref_log_prob/mean",
        "critic/old_log_prob/mean", "critic/entropy/mean", "critic/reward_clip_frac", "actor/pg_loss",
        "actor/weighted_pg_loss", "actor/valid_samples", "actor/total_samples", "actor/valid_sample_ratio",
        "actor/sample_weights_mean", "actor/sample_weights_min", "actor/sample_weights_max", "actor/sft_loss",
        "actor/positive_sft_loss", "actor/negative_sft_loss",
    } <= names  # fmt: skip


def test_the_teacher_and_student_documents_names_come_out_exactly():
    names = set().union(*everything("rlaif"))
    assert {
        "Train/Loss", "Train/PolicyLoss", "Train/KLPenalty", "Train/AvgReward", "Train/RewardStd", "Train/RewardMin",
        "Train/RewardMax", "Train/RewardVariance",
    } <= names  # fmt: skip


def test_trl_names_are_those_of_the_trainer_the_family_belongs_to():
    assert {"loss", "rewards/chosen", "rewards/rejected", "rewards/margins", "logps/chosen", "kl"} <= set(
        completions("trl")
    )
    assert {"loss", "rewards/accuracies", "rewards/margins", "logps/rejected"} <= set(pairs("trl"))
    policy_names, _, rollout_names, _ = map(set, everything("trl"))
    assert {"kl", "entropy", "clip_ratio/region_mean", "clip_ratio/high_mean", "clip_ratio/low_mean"} <= policy_names
    assert {"completions/mean_length", "completions/clipped_ratio", "reward", "reward_std"} <= rollout_names


def test_a_name_with_the_opposite_sign_gets_the_opposite_number():
    given = {"logprobs": [[-1.0, -2.0]], "old_logprobs": [[-1.5, -1.9]]}
    ours = policy.stats(**given)["policy.kl_old.k1"]
    rolls = policy.stats(**given, names="roll")["actor/policykl"]
    assert rolls.number == -ours.number == pytest.approx(0.2)
    assert (rolls.min, rolls.max, rolls.m2) == (-ours.max, -ours.min, ours.m2)
    assert policy.stats(**given, names="verl")["actor/ppo_kl"] == ours


def test_what_a_framework_has_no_name_for_keeps_its_id():
    assert "policy.kl_old.k3" in policy.stats(logprobs=[[-1.0]], old_logprobs=[[-1.5]], names="roll")


def test_an_heir_uses_the_names_it_inherits():
    assert "rewards/chosen" in completions("kto_guide")
