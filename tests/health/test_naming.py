"""Which signal a name feeds if the catalogue does not know it: by the user's mapping, by its words, by its values."""

from __future__ import annotations

import math

import pytest

from rlvitals.errors import ConfigError
from rlvitals.health import rulebook
from rlvitals.health.case import Case
from rlvitals.health.monitor import Monitor

SOURCES = rulebook.load().sources


def fed(rows, **facts):
    case = Case(SOURCES, **facts)
    for step, row in enumerate(rows, 1):
        case.take({"step": step, **row})
    return case


def keys(case):
    return {name: signal.key for name, signal in case.signals.items()}


def test_a_loop_by_hand_in_three_languages_is_read():
    row = {"avg_return": 0.5, "KL散度": 0.01, "энтропия": 1.0, "tok/s": 120.0, "dpo_coef": 0.1, "pg_clip": 0.1}
    assert keys(fed([row] * 15)) == {
        "reward": "avg_return", "kl": "KL散度", "entropy": "энтропия", "tokens_per_s": "tok/s", "clip": "pg_clip",
    }  # fmt: skip


def test_a_sure_name_comes_before_a_guess_in_any_order():
    row = {"helpfulness_reward": 0.1, "mean_score": 0.5, "a/b/c/d/avg_reward": 0.7}
    for order in (row, dict(reversed(row.items()))):
        case = fed([order] * 6)
        assert keys(case) == {"reward": "mean_score"}
        assert case.signals["reward"].n >= 5


def test_a_guess_is_let_go_when_its_values_contradict_and_the_next_name_takes_its_place():
    rows = [{"my_score": float(n), "the_other_score": math.sin(n)} for n in range(1, 30)]
    assert keys(fed(rows[:5])) == {"reward": "my_score"}
    case = fed(rows)
    assert keys(case) == {"reward": "the_other_score"}
    assert case.signals["reward"].n == len(rows) - 12
    assert [taken.name for taken in case.taken] == ["the_other_score"]


def test_a_kl_that_is_a_log_probability_is_let_go():
    assert keys(fed([{"kl_estimate": -80.0 - n} for n in range(20)])) == {}
    rows = [{"kl_estimate": 0.0}] + [{"kl_estimate": -80.0 - n} for n in range(20)]
    assert keys(fed(rows[:6])) == {"kl": "kl_estimate"}
    assert keys(fed(rows)) == {}


def test_rules_that_were_bound_to_what_was_let_go_are_bound_again():
    monitor = Monitor()
    for n in range(1, 40):
        monitor.update({"step": n, "my_score": float(n), "the_other_score": 0.3 + 0.1 * math.sin(n)})
    assert not monitor.problems
    assert {one[0].rule.rule for one in monitor._bound if "reward" in {s.name for s in one[0].signals}}
    assert all(s in monitor.case.signals.values() for one in monitor._bound for s in one[0].signals)


def test_an_entropy_that_is_logged_negative_is_turned_round():
    case = fed([{"ent_loss": -1.5}] * 14)
    assert (case.signals["entropy"].key, case.signals["entropy"].last) == ("ent_loss", 1.5)


def test_what_is_kept_of_names_on_trial_is_bounded():
    rows = [{f"my_{n}_score": math.sin(n + m) for n in range(40)} for m in range(5)]
    case = fed(rows * 20)
    assert not case._trials
    sparse = fed([{"avg_return": 0.5, **({"val_acc": 0.5} if n % 20 == 0 else {})} for n in range(100)])
    assert len(sparse._trials) == 1
    assert len(sparse._trials["val_acc"]) == 5


def test_what_the_user_says_counts_and_is_the_only_source():
    rows = [{"reward": 0.1, "loss": 0.2, "thing": 0.9}] * 5
    case = fed(rows, mapping={"thing": "reward.total.mean"})
    assert keys(case) == {"reward": "thing", "loss": "loss"}
    assert case.sureness(case.signals["reward"]) == "given"
    late = fed([{"reward": 0.1}] * 10 + [{"reward": 0.1, "thing": 0.9}] * 5, mapping={"thing": "reward"})
    assert keys(late) == {"reward": "thing"}
    assert keys(fed(rows, mapping={"reward": "none"})) == {"loss": "loss"}


def test_a_concept_that_two_signals_read_leaves_the_better_name_of_the_other_alone():
    rows = [{"reward": 0.1, "thing": 0.9}] * 5
    assert keys(fed(rows, mapping={"thing": "reward.accuracy"})) == {"reward": "reward", "true_score": "thing"}


def test_a_name_can_be_mapped_to_a_part_of_the_reward():
    case = fed([{"reward": 0.1, "thing": 0.9}] * 5, mapping={"thing": "reward.component.mean"})
    assert {name: signal.key for name, signal in case.parts.items()} == {"thing": "thing"}


@pytest.mark.parametrize(
    ("target", "message"),
    [("reward.totl.mean", "'reward.total.mean'"), ("entropie", "'entropy'"), ("zzzz", "Signals: ")],
)
def test_a_concept_that_nobody_knows_is_refused_with_the_nearest(target, message):
    with pytest.raises(ConfigError, match=message):
        Monitor(mapping={"thing": target})


def collapse(name, mapping=None):
    monitor = Monitor(algorithm="grpo", mapping=mapping)
    for step in range(1, 60):
        monitor.update({"step": step, name: 1.0 + 0.01 * (step % 3) if step < 20 else 0.01})
    return next(finding for finding in monitor.findings if finding.kind == "entropy_collapse"), monitor.verdict


def test_a_finding_on_a_guess_says_so_and_is_less_sure_and_its_verdict_stands():
    known, verdict = collapse("entropy")
    guessed, same = collapse("answering_entropy")
    given, _ = collapse("answering_entropy", {"answering_entropy": "entropy.mean"})
    assert same == verdict != "healthy"
    assert guessed.severity == known.severity
    assert guessed.confidence == pytest.approx(0.7 * known.confidence)
    assert given.confidence == known.confidence
    assert "--map answering_entropy=" in guessed.evidence["a_guess"]
    assert "a_guess" not in known.evidence
    assert "a_guess" not in given.evidence


def test_a_known_name_whose_framework_is_not_is_turned_round_by_its_values_too():
    assert fed([{"train/entropy_loss": -1.5}] * 3).signals["entropy"].last == 1.5
    assert fed([{"train/entropy_loss": 1.5}] * 3).signals["entropy"].last == 1.5
    assert fed([{"train/entropy_loss": -1.5}] * 3, framework="openrlhf").signals["entropy"].last == -1.5


def test_what_the_framework_knows_by_a_pattern_is_not_guessed_at():
    row = {"time/actor_train/train_step/total": 9.0, "actor/pg_loss": 0.1}
    assert "step_time" not in fed([row] * 3, framework="roll").signals


def test_names_as_notebooks_and_exports_write_them_are_known():
    rows = [
        {"rewards / chosen": 0.1, "rewards / rejected": -0.1, "data/actor/grad_norm": 0.5, "Training Loss": 0.6}
    ] * 3
    assert keys(fed(rows)) == {
        "chosen": "rewards / chosen", "rejected": "rewards / rejected", "grad_norm": "data/actor/grad_norm",
        "loss": "Training Loss",
    }  # fmt: skip
    held_out = fed([{"Validation Loss": 0.6, "data/val-core/gsm8k/acc/mean@1": 0.4}] * 3)
    score = "data/val-core/gsm8k/acc/mean@1"
    assert keys(held_out) == {"eval_loss": "Validation Loss", "eval_score": score, "pass_one": score}
    parts = fed([{"rewards / check_answer / mean": 0.1, "rewards / xml_func": 0.1}] * 3).parts
    assert parts.keys() == {"check_answer", "xml_func"}


def test_verls_core_variable_is_the_evaluation_score_whatever_comes_first():
    core, other = "val-core/gsm8k/acc/mean@4", "val-aux/gsm8k/format/mean@4"
    for names in ((other, core), (core, other)):
        assert keys(fed([dict.fromkeys(names, 0.5)] * 3, framework="verl"))["eval_score"] == core


def test_a_text_in_place_of_a_name_takes_no_time_and_is_nothing():
    texts = ["x" * 500_000, "reward_" * 50_000, "奖励" * 50_000, "_" * 500_000 + "x", "rewards/" * 50_000]
    assert keys(fed([dict.fromkeys(texts, 0.5)] * 3)) == {}


def test_an_evaluation_s_reward_is_not_averaged_with_the_length_of_its_episodes():
    """Names of stable-baselines3 look like those of slime, where `eval/` and a word is the score on a data set."""
    row = {
        "rollout/ep_rew_mean": 10.0, "rollout/ep_len_mean": 90.0, "train/loss": 0.3, "train/entropy_loss": -0.5,
        "train/learning_rate": 3e-4, "train/value_loss": 2.0, "time/fps": 800.0, "eval/mean_reward": 12.0,
        "eval/mean_ep_length": 95.0,
    }  # fmt: skip
    for order in (row, dict(reversed(row.items()))):
        case = fed([order] * 15)
        assert case.framework is None
        assert case.signals["eval_score"].key == "eval/mean_reward"
        assert case.signals["eval_score"].last == 12.0
