"""Recognition of unregistered names from their words and values, and how sure it is."""

from __future__ import annotations

import math
import zlib
from pathlib import Path

import pytest

from rlvitals import catalog
from rlvitals.errors import CatalogError
from rlvitals.health import rulebook

READ = {concept for source in rulebook.load().sources for concept in source.concepts}
"""The concepts that the rules read. Recognising a name as any other concept has no effect on the rules."""

TABLE = [
    line.rstrip("\n").split("\t")
    for line in (Path(__file__).parent / "names_of_many_loops.tsv").read_text(encoding="utf-8").splitlines()
    if not line.startswith("#")
]


def taken(name, values=(), **context):
    found = catalog.vocabulary().recognise(name, values, **context)
    return found.concept if found is not None and found.concept in READ else "-"


def set_aside(name):
    return zlib.crc32(name.encode()) % 2 == 1


def test_names_of_many_loops_are_understood():
    wrong = {name: taken(name) for name, _, concept in TABLE if not set_aside(name) and taken(name) != concept}
    assert not wrong
    assert sum(not set_aside(name) for name, _, _ in TABLE) > 150


def test_names_not_used_to_choose_the_words_are_understood_too():
    aside = [(taken(name), concept) for name, _, concept in TABLE if set_aside(name)]
    assert sum(found == concept for found, concept in aside) / len(aside) > 0.95
    assert len(aside) > 140


@pytest.mark.parametrize(
    "name",
    [
        "reward_weight", "reward_scale", "num_rewards", "reward_count", "reward_threshold", "best_reward",
        "reward_time_s",
        "kl_coef", "kl_beta", "target_kl", "kl_ctl_value", "loss_scale", "loss_weight", "score_time", "f1/score_time",
        "entropy_coef", "ent_coef", "clip_range", "clip_eps", "lr_warmup_steps", "lr_scheduler_step", "max_grad_norm",
        "max_new_tokens", "prompt_length", "vf_clip_range", "timing/reward", "memory/loss", "perf/reward",
        "reward_version",
        "kl_std", "entropy_threshold", "eval_batch_size", "num_eval_steps", "margin_scale", "accuracy_reward",
        "format_reward",
        "per_task/sorting/reward_mean", "global_step", "step", "epoch", "timestamp", "", "/", "_", "123", "🙂",
    ],
)  # fmt: skip
def test_a_false_friend_is_not_taken_for_the_metric(name):
    assert taken(name) == "-"


def test_a_word_that_nobody_knows_makes_it_a_guess_and_an_unknown_place_a_probability():
    sureness = {
        name: catalog.vocabulary().recognise(name).sureness
        for name in (
            "avg_reward",
            "math_env/avg_reward",
            "helpfulness_reward",
            "reward_ema",
            "mean_length",
            "helpfulness_reward/mean",
        )
    }
    assert sureness == {
        "avg_reward": "high", "math_env/avg_reward": "fair", "helpfulness_reward": "guess", "reward_ema": "fair",
        "mean_length": "fair", "helpfulness_reward/mean": "guess",
    }  # fmt: skip
    assert "helpfulness may mean anything" in catalog.vocabulary().recognise("helpfulness_reward").why


def test_a_guess_is_made_for_what_matters_most_alone():
    assert taken("decision_entropy") == "entropy.mean"
    assert taken("outcome_advantage_std") == "-"
    assert taken("reward/process_quality_mean") == "-", "what stands below rewards is an aspect, not the reward"


@pytest.mark.parametrize(
    ("name", "values", "concept"),
    [
        ("reward_value_mean", [0.1, 0.2], "-"),
        ("kl_estimate", [0.01, -0.002, 0.03], "kl_ref.k1"),
        ("kl_estimate", [-120.0, -80.0, -90.0], "-"),
        ("episode_score", [float(n) for n in range(1, 13)], "-"),
        ("episode_score", [1.0, 2.0, 2.0, 3.0, 1.0, 2.0, 4.0, 3.0, 2.0, 1.0, 5.0, 2.0], "reward.total.mean"),
        ("pg_clip", [0.1, 0.2], "policy.clip_fraction"),
        ("pg_clip", [-0.1, 0.2], "-"),
        ("pg_clip", [512.0], "-"),
        ("learningRate", [1e-6], "optim.lr"),
        ("learningRate", [30.0], "-"),
        ("ratios", [1.01] * 12, "policy.ratio.mean"),
        ("ratios", [40.0] * 12, "-"),
        ("gen_len", [0.4] * 12, "-"),
        ("gen_len", [140.0] * 12, "length.response.mean"),
        ("sec_per_step", [1.5, 1.4] * 6, "time.step"),
        ("time_per_iter", [10.5 * n for n in range(1, 13)], "-"),
        ("explained_var", [40.0], "-"),
        ("chosen_logps", [-12.0], "pref.logp.chosen"),
        ("chosen_logps", [12.0], "-"),
        ("reward_stddev", [-0.1], "-"),
        ("avg_return", [1.7e9], "-"),
        ("avg_return", [math.nan, math.inf], "reward.total.mean"),
    ],
)
def test_values_count_too(name, values, concept):
    assert taken(name, values) == concept


def test_an_entropy_logged_as_a_loss_is_turned_round_and_one_that_is_positive_is_not():
    recognise = catalog.vocabulary().recognise
    assert recognise("ent_loss", [-1.2, -1.1]).is_negated
    assert not recognise("ent_loss", [1.2, 1.1]).is_negated


def test_values_that_fit_make_it_surer():
    recognise = catalog.vocabulary().recognise
    assert recognise("prob_ratio").sureness == "fair"
    assert recognise("prob_ratio", [1.0, 1.01, 0.99] * 4).sureness == "high"


def test_accuracy_among_pairs_is_that_of_the_pairs():
    assert taken("acc") == "reward.accuracy"
    assert taken("acc", pairs=True) == "pref.accuracy"
    assert taken("reward_acc", pairs=True) == "pref.accuracy"


@pytest.mark.parametrize("name", ["x" * 5_000_000, "reward_" * 1_000_000, "奖" * 1_000_000, "/" * 5_000_000])
def test_a_text_is_no_name_and_takes_no_time(name):
    assert catalog.vocabulary().recognise(name) is None


def test_the_order_of_the_words_does_not_matter():
    assert {taken(name) for name in ("reward_mean", "mean_reward", "MeanReward", "mean reward", "mean-reward")} == {
        "reward.total.mean"
    }


def test_words_of_your_own_are_understood():
    assert taken("doob_mean") == "-"
    catalog.register({"words": {"reward": ["doob"]}})
    assert taken("doob_mean") == "reward.total.mean"


@pytest.mark.parametrize(
    ("document", "message"),
    [
        ({"words": ["reward"]}, "'words' must be a mapping"),
        ({"words": {"reward": "doob"}}, "must be a list of texts"),
        (
            {"forms": {"reward.totl.mean": {"said": ["reward"]}}},
            r"no concept is called 'reward.totl.mean'. Did you mean",
        ),
        ({"forms": {"reward.total.mean": {"said": ["rewrd"]}}}, r"no role is called 'rewrd'. Did you mean 'reward'"),
        ({"forms": {"reward.total.mean": {"said": ["reward"], "values": "odd"}}}, "'values' is 'odd'"),
        ({"forms": {"reward.total.mean": ["reward"]}}, "must be a mapping with 'said'"),
    ],
)
def test_a_wrong_word_or_form_is_an_error_that_names_it(document, message):
    with pytest.raises(CatalogError, match=message):
        catalog.register(document)
