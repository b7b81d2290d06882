"""Which logged name feeds which signal, in the spelling of every framework, and which values are accepted."""

from __future__ import annotations

import math
import random

import numpy as np
import pytest

from rlvitals import values
from rlvitals.health import rulebook
from rlvitals.health.case import Case
from rlvitals.health.monitor import Monitor

SOURCES = rulebook.load().sources

TRL = {"loss": "loss", "grad_norm": "grad_norm", "learning_rate": "lr", "epoch": "epoch", "num_tokens": None}
PAIRS = {
    "rewards/chosen": "chosen", "rewards/rejected": "rejected", "rewards/margins": "margin",
    "logps/chosen": "logp_chosen", "logps/rejected": "logp_rejected", "logits/chosen": None, "logits/rejected": None,
    "eval_loss": "eval_loss", "eval_rewards/chosen": None, "eval_rewards/rejected": None,
    "eval_rewards/margins": "eval_margin",
}  # fmt: skip
VERL = {
    "critic/score/mean": "reward", "critic/score/max": "reward_high", "critic/score/min": "reward_low",
    "critic/rewards/mean": None, "critic/rewards/max": None, "critic/advantages/mean": None,
    "critic/returns/mean": None, "critic/values/mean": None, "critic/vf_loss": "value_loss",
    "critic/vf_explained_var": "explained_variance", "critic/vf_clipfrac": None, "critic/grad_norm": None,
    "critic/lr": None, "actor/entropy": "entropy", "actor/kl_loss": "kl", "actor/kl_coef": None,
    "actor/pg_loss": "policy_loss", "actor/pg_clipfrac": "clip", "actor/pg_clipfrac_lower": None,
    "actor/ppo_kl": "update_kl", "actor/grad_norm": "grad_norm", "actor/lr": "lr",
    "response_length/mean": "length", "response_length/max": "length_max", "response_length/min": None,
    "response_length/clip_ratio": "truncated", "prompt_length/mean": None, "prompt_length/clip_ratio": None,
    "num_turns/mean": "turns", "num_turns/max": None, "timing_s/step": "step_time", "timing_s/gen": None,
    "timing_s/update_actor": None, "timing_per_token_ms/gen": None, "perf/throughput": "tokens_per_s",
    "perf/max_memory_allocated_gb": None, "perf/max_memory_reserved_gb": "gpu_memory",
    "perf/cpu_memory_used_gb": None, "perf/total_num_tokens": None,
    "perf/mfu/actor": None, "training/epoch": "epoch", "training/global_step": None,
    "val-core/gsm8k/reward/mean@1": "eval_score", "rollout_corr/k3_kl": "mismatch_kl",
    "rollout_corr/rollout_is_mean": "mismatch_weight", "training/rollout_probs_diff_mean": "mismatch_gap",
}  # fmt: skip

LOGGED = {
    "trl_grpo": {
        **TRL, "reward": "reward", "reward_std": "reward_std", "frac_reward_zero_std": "zero_variance", "kl": "kl",
        "rewards/correctness_reward/mean": "part", "rewards/correctness_reward/std": None,
        "rewards/format_reward/mean": "part", "entropy": "entropy", "completions/mean_length": "length",
        "completions/min_length": None, "completions/max_length": "length_max",
        "completions/clipped_ratio": "truncated", "completions/mean_terminated_length": None,
        "clip_ratio/region_mean": "clip", "clip_ratio/low_mean": "clip_low", "clip_ratio/high_mean": "clip_high",
        "clip_ratio/low_min": None, "clip_ratio/high_max": None, "step_time": "step_time",
        "tools/call_frequency": "tool_calls", "tools/failure_frequency": "tool_failures", "eval_reward": "eval_score",
        "sampling/sampling_logp_difference/mean": "mismatch_gap", "sampling/sampling_logp_difference/max": "gap_max",
        "sampling/importance_sampling_ratio/mean": "mismatch_weight",
    },
    "trl_dpo": {**TRL, **PAIRS, "rewards/accuracies": "pair_accuracy", "eval_rewards/accuracies": None},
    "trl_kto": {
        **TRL, **PAIRS, "kl": "kto_kl", "count/chosen": "desirable_count", "count/rejected": "undesirable_count",
    },
    "trl_ppo": {
        "objective/scores": "reward", "objective/rlhf_reward": None, "objective/non_score_reward": None,
        "objective/kl": "kl", "objective/entropy": None, "policy/entropy_avg": "entropy",
        "policy/approxkl_avg": "update_kl", "policy/clipfrac_avg": "clip", "loss/policy_avg": "policy_loss",
        "loss/value_avg": "value_loss", "val/clipfrac_avg": None, "val/ratio": "ratio", "val/ratio_var": None,
        "val/num_eos_tokens": None, "lr": "lr", "episode": None, "eps": "tokens_per_s", "epoch": "epoch",
    },
    "verl": VERL,
    "openrlhf": {
        "train/rollout/reward_mean": "reward", "train/rollout/reward_std": None,
        "train/group_reward_std": "reward_std", "train/rollout/response_length_mean": "length",
        "train/rollout/truncated_rate": "truncated", "train/policy_loss": "policy_loss", "train/kl": "kl",
        "train/ppo_kl": "update_kl", "train/ppo_clip_ratio": "clip", "train/actor_grad_norm": "grad_norm",
        "train/actor_lr": "lr", "train/entropy_loss": "entropy", "train/timing/step_total": "step_time",
        "train/timing/generation": None, "train/critic_loss": "value_loss", "train/values": None,
        "train/vllm_kl": "mismatch_kl", "train/dynamic_filtering_pass_rate": "kept_share",
    },
    "roll": {
        "critic/score/mean": "reward", "critic/rewards/mean": None, "critic/kl": "kl", "critic/entropy/mean": "entropy",
        "critic/lr": None, "critic/loss": "value_loss", "critic/clipfrac": None, "actor/pg_loss": "policy_loss",
        "actor/total_loss": "loss", "actor/ppo_ratio_clipfrac": "clip", "actor/ratio_mean": "ratio",
        "actor/ratio_max": None, "actor/approxkl": "update_kl", "tokens/response_length/mean": "length",
        "tokens/prompt_length/mean": None, "actor/lr": "lr", "time/rollout": None, "time/adv": None,
        "system/tps": "tokens_per_s", "system/samples": None, "val/score/mean": "eval_score",
        "memory/train_step/end/onload/max_reserved_frac/0": "gpu_memory_share", "actor/sft_loss": None,
    },
    "slime": {
        "rollout/raw_reward": "reward", "rollout/response_len/mean": "length", "rollout/truncated_ratio": "truncated",
        "train/loss": "loss", "train/pg_loss": "policy_loss", "train/entropy_loss": "entropy",
        "train/pg_clipfrac": "clip", "train/ppo_kl": "update_kl", "train/kl_loss": "kl",
        "train/grad_norm": "grad_norm", "train/lr-pg_0": "lr", "perf/step_time": "step_time",
        "perf/rollout_time": None, "eval/aime": "eval_score", "rollout/repetition_frac": "repetition",
        "train/train_rollout_logprob_abs_diff": "mismatch_gap",
    },
    "openrlhf dpo": {
        "train/loss": "loss", "train/chosen_reward": "chosen", "train/reject_reward": "rejected",
        "train/acc": "pair_accuracy", "train/lr": "lr", "train/grad_norm": "grad_norm", "eval/eval_loss": "eval_loss",
    },
    "by hand": {
        "loss": "loss", "reward_mean": "reward", "kl_div": "kl", "policy_entropy": "entropy",
        "gradient_norm": "grad_norm", "lr": "lr", "response_length": "length", "clip_frac": "clip",
        "mean_ratio": "ratio", "eval/accuracy": "eval_score", "val_loss": "eval_loss",
        "tokens_per_second": "tokens_per_s", "time/reward": None, "timing/policy_loss": None, "kl_coef": None,
        "lr_scheduler_step": None,
        "num_samples": None,
    },
    "the RLHF document": {
        "loss": "loss", "reward": "reward", "kl_divergence": "kl", "entropy": "entropy", "learning_rate": "lr",
        "epoch_time": None, "samples_per_second": "tokens_per_s", "bleu": None, "rouge": None, "codebleu": None,
    },
    "the RLAIF document": {
        "Train/Loss": "loss", "Train/PolicyLoss": "policy_loss", "Train/KLPenalty": None, "Train/AvgReward": "reward",
        "Train/RewardStd": "reward_std", "Train/RewardMin": "reward_low", "Train/RewardMax": "reward_high",
        "Train/RewardVariance": None, "Performance/Generation_TokensPerSec": "tokens_per_s",
        "System/GPU_Utilization": "gpu_utilisation", "System/GPU_Memory_Used_GB": "gpu_memory",
        "System/GPU_Memory_Total_GB": "gpu_memory_total", "System/GPU_Memory_Percent": "gpu_memory_share",
        "System/CPU_Percent": None, "System/Memory_Percent": "host_memory_share",
    },
    "the KTO document": {
        "loss": "loss", "rewards/chosen": "chosen", "rewards/rejected": "rejected", "rewards/margins": "margin",
        "grad_norm": "grad_norm", "learning_rate": "lr", "kl": "kto_kl",
    },
    "the agent document": {
        "train/avg_reward": "reward", "train/loss": "loss", "train/grad_norm": "grad_norm",
        "train/groups_kept": "groups_kept", "train/groups_filtered": "groups_dropped",
        "train/num_early_exit": "early_exit", "eval/accuracy": "eval_score",
        "eval/total_repeated_searches": "repeated_actions",
        "eval/total_unique_searches": None, "eval/avg_search_attempts": "tool_calls",
        "eval/num_idk": "abstained", "eval/avg_turns_correct": None,
    },
}  # fmt: skip
FAMILIES = {
    "trl_dpo": "preference",
    "trl_kto": "preference",
    "openrlhf dpo": "preference",
    "the KTO document": "preference",
}


def fed(case, rows, start=1):
    for step, row in enumerate(rows, start):
        case.take({"step": step, **row})
    return case


def new(**facts):
    return Case(SOURCES, **facts)


def sources(case):
    """Key -> the signal that it feeds."""
    found = {signal.key: name for name, signal in case.signals.items()}
    return found | {signal.key: "part" for signal in case.parts.values()}


@pytest.mark.parametrize("framework", LOGGED)
def test_every_name_feeds_the_signal_it_means_and_no_other(framework):
    expected = LOGGED[framework]
    case = fed(new(), [dict.fromkeys(expected, 0.5)] * 4)
    found = sources(case)
    assert {key: found.get(key) for key in expected} == expected
    assert case.family == FAMILIES.get(framework, "policy")


@pytest.mark.parametrize("framework", LOGGED)
def test_the_order_of_the_keys_does_not_matter(framework):
    keys = list(LOGGED[framework])
    expected = sources(fed(new(), [dict.fromkeys(keys, 0.5)] * 6))
    for seed in range(8):
        random.Random(seed).shuffle(keys)
        case = fed(new(), [dict.fromkeys(keys, 0.5)] * 6)
        assert sources(case) == expected
        assert all(signal.n >= 5 for signal in case.signals.values())


def test_of_two_names_for_one_thing_the_same_is_taken_in_any_order():
    keys = ["timing_s/step", "perf/time_per_step", "critic/score/mean", "actor/entropy"]
    taken = {fed(new(), [dict.fromkeys(order, 1.0)] * 5).signals["step_time"].key for order in (keys, keys[::-1])}
    assert len(taken) == 1


def test_an_average_reward_of_training_is_no_held_out_score():
    case = fed(new(), [{"train/avg_reward": 0.5}] * 3)
    assert {name: signal.key for name, signal in case.signals.items()} == {"reward": "train/avg_reward"}


def test_the_shaped_reward_counts_where_no_plain_score_is_logged():
    assert fed(new(), [{"critic/rewards/mean": 0.2, "actor/pg_loss": 0.1, "actor/entropy": 0.3}]).signals[
        "reward"
    ].key == ("critic/rewards/mean")


@pytest.mark.parametrize("key", ["actor/kl_coef", "kl_coef", "train/kl_coef", "objective/kl_coef", "kl_ctl/value"])
def test_a_coefficient_of_kl_is_never_kl(key):
    assert "kl" not in fed(new(), [{key: 0.1}] * 3).signals
    assert "kl" not in fed(new(framework="verl"), [{key: 0.1}] * 3).signals


@pytest.mark.parametrize(
    "key",
    [
        "timing_s/reward", "timing_s/entropy", "time/reward", "timing/policy_loss", "perf/reward", "timing_s/adv",
        "timing_raw/kl", "train/time/reward", "latency/tool_calls", "timing_s/num_turns", "memory/loss",
    ],
)  # fmt: skip
def test_a_time_is_never_the_quantity_it_was_spent_on(key):
    assert set(fed(new(), [{key: 1.0}] * 3).signals) <= {"step_time"}


@pytest.mark.parametrize("key", ["eval_rewards/margins", "eval/kl", "val/entropy", "eval_grad_norm", "test/loss"])
def test_a_held_out_name_never_feeds_a_training_signal(key):
    training = {name for name in fed(new(), [{key: 0.5}] * 3).signals if not name.startswith("eval_")}
    assert not training


@pytest.mark.parametrize(
    ("value", "number"),
    [
        (0.5, 0.5),
        (1, 1.0),
        (True, 1.0),
        (np.float32(0.5), 0.5),
        (np.float64(0.25), 0.25),
        (np.int64(3), 3.0),
        (np.array(0.5), 0.5),
        (values.mean([1.0, 2.0]), 1.5),
        (values.total([1, 2]), 3.0),
    ],
)
def test_what_trainers_log_as_a_number_is_one(value, number):
    assert fed(new(), [{"reward": value}]).signals["reward"].last == number


class Tensor:
    """The part of a torch tensor that a logger uses."""

    def __init__(self, value, size=1):
        self._value, self._size = value, size

    def __float__(self):
        if self._size != 1:
            raise RuntimeError(f"a Tensor with {self._size} elements cannot be converted to Scalar")
        return self._value

    def __sub__(self, other):
        raise AssertionError("no arithmetic on a tensor: it would wait for the device")


def test_a_tensor_of_one_number_is_a_number_and_a_longer_one_is_nothing():
    case = fed(new(), [{"reward": Tensor(0.5), "loss": Tensor(0.0, size=4)}])
    assert case.signals["reward"].last == 0.5
    assert "loss" not in case.signals


@pytest.mark.parametrize("value", [None, "0.5", "n/a", b"1", [0.5], (1.0,), {"mean": 0.5}, values.mean([]), object()])
def test_what_is_no_number_is_left_out_and_may_become_one_later(value):
    case = fed(new(), [{"reward": value}] * 3)
    assert "reward" not in case.signals or not case.signals["reward"].n
    fed(case, [{"reward": 0.5}], start=4)
    assert case.signals["reward"].last == 0.5


def test_an_integer_too_large_for_a_float_is_an_infinity():
    case = fed(new(), [{"loss": 0.5}, {"loss": 10**400}, {"loss": -(10**400)}])
    assert (case.signals["loss"].n, case.signals["loss"].nonfinite) == (1, 2)


@pytest.mark.parametrize("value", [math.nan, math.inf, -math.inf, np.float32("nan")])
def test_a_value_that_is_not_finite_is_counted_and_never_enters_a_level(value):
    case = fed(new(), [{"loss": 0.5}, {"loss": value}, {"loss": 0.7}])
    loss = case.signals["loss"]
    assert (loss.n, loss.nonfinite, loss.lowest, loss.highest) == (2, 1, 0.5, 0.7)
    assert case.nonfinite_others == {"loss": 1}


def test_a_marked_value_that_is_not_finite_reaches_its_signal():
    case = fed(new(), [{"loss": 0.5, "reward": 1.0}, {"reward": 1.0, "_nonfinite": "loss=nan train/my key=inf"}])
    assert case.signals["loss"].nonfinite == 1
    assert case.signals["loss"].seen_at == 2
    assert case.nonfinite_others["loss"] == 1


def test_a_series_that_starts_with_nan_is_known_by_its_name():
    case = fed(new(), [{"loss": math.nan}] * 2)
    assert case.signals["loss"].nonfinite == 2


def test_a_better_name_that_comes_with_the_second_row_takes_over_and_the_first_is_let_go():
    case = fed(
        new(framework="verl"), [{"critic/rewards/mean": 0.1}, {"critic/rewards/mean": 0.2, "critic/score/mean": 0.9}]
    )
    fed(case, [{"critic/rewards/mean": 0.3, "critic/score/mean": 0.8}], start=3)
    reward = case.signals["reward"]
    assert (reward.key, reward.n, reward.highest, reward.lowest) == ("critic/score/mean", 2, 0.9, 0.8)


def test_a_better_name_that_comes_late_does_not_disturb_what_is_known():
    case = fed(new(framework="verl"), [{"critic/rewards/mean": 0.1}] * 20)
    fed(case, [{"critic/rewards/mean": 0.1, "critic/score/mean": 0.9}] * 5, start=21)
    reward = case.signals["reward"]
    assert (reward.key, reward.n, reward.highest) == ("critic/rewards/mean", 25, 0.1)


def test_a_log_that_begins_again_begins_again():
    case = fed(new(), [{"reward": 0.1 * n} for n in range(10)])
    fed(case, [{"reward": 0.7}])
    assert (case.restarts, case.points, case.first_step, case.signals["reward"].n) == (1, 1, 1, 1)
    assert case.signals["reward"].base == 0.7


def test_one_step_backwards_is_no_restart():
    case = fed(new(), [{"reward": 0.5}] * 10)
    case.take({"step": 8, "reward": 0.5})
    assert (case.restarts, case.backward_steps, case.points) == (0, 1, 11)


@pytest.mark.parametrize("step", [None, "7", [1], {}, math.nan, math.inf])
def test_a_step_that_is_no_number_counts_on(step):
    case = fed(new(), [{"reward": 0.5}] * 3)
    case.take({"step": step, "reward": 0.5})
    assert case.step == 4
    assert case.signals["reward"].n == 4


def test_a_row_without_a_step_counts_on():
    case = new()
    for _ in range(5):
        case.take({"reward": 0.5})
    assert (case.step, case.points) == (5, 5)


@pytest.mark.parametrize(
    ("key", "values_", "share"),
    [("System/GPU_Memory_Percent", [50.0, 97.0], 0.97), ("gpu_mem_fraction", [0.5, 0.97], 0.97)],
)
def test_a_percentage_and_a_share_of_memory_read_the_same(key, values_, share):
    from rlvitals.health.rules.system import _shares

    case = fed(new(), [{key: values_[0]}] * 2 + [{key: values_[1]}] * 30)
    [(signal, read)] = _shares(case, None, case.signals["gpu_memory_share"], None, None)
    assert read == pytest.approx(share, abs=0.02)
    assert signal.key == key


def test_a_success_rate_feeds_failures_as_its_complement():
    case = fed(new(framework="verl"), [{"rollout/tool_success_rate": 0.9}] * 3)
    assert case.signals["tool_failures"].last == pytest.approx(0.1)


def test_the_kl_of_a_sequence_is_known_to_be_a_sum():
    assert fed(new(), [{"objective/kl": 5.0, "objective/scores": 0.1, "policy/clipfrac_avg": 0.1}] * 3).kl_is_sum
    assert not fed(new(), [{"kl": 0.1, "reward": 0.1, "frac_reward_zero_std": 0.1}] * 3).kl_is_sum


def test_parts_of_the_reward_are_kept_by_name_and_not_without_end():
    case = fed(new(), [{f"rewards/part_{n}/mean": 0.5 for n in range(60)}] * 2)
    assert 10 < len(case.parts) <= 24
    assert case.parts["part_0"].n == 2


def test_given_facts_win_over_recognised_ones():
    case = fed(new(algorithm="PPO", framework="verl"), [dict.fromkeys(LOGGED["trl_grpo"], 0.5)] * 3)
    assert (case.algorithm, case.framework) == ("ppo", "verl")


def test_what_a_case_keeps_does_not_grow_with_the_rows():
    case = fed(new(), [{"reward": 0.5, "loss": math.nan, "unknown": "text"}] * 50)
    kept = (len(case.signals), len(case.parts), len(case._readings), len(case.nonfinite_others))
    fed(case, [{"reward": 0.5, "loss": math.nan, "unknown": "text"}] * 2000, start=51)
    assert (len(case.signals), len(case.parts), len(case._readings), len(case.nonfinite_others)) == kept


def phase_memory(**shares):
    return {f"memory/{phase}/end/onload/max_reserved_frac/0": share for phase, share in shares.items()}


def test_of_all_phases_the_one_that_fills_the_card_most_counts():
    rows = [phase_memory(compute_values=0.3, train_step=0.9, generate=0.5)] * 4
    case = fed(new(), [*rows, phase_memory(compute_values=0.3, train_step=0.6, generate=0.7)])
    signal = case.signals["gpu_memory_share"]
    assert (signal.n, signal.last, signal.highest) == (5, 0.7, 0.9)
    assert signal.key == "memory/generate/end/onload/max_reserved_frac/0"


def test_of_all_cards_the_fullest_counts():
    names = [f"memory/train_step/end/onload/max_reserved_frac/{card}" for card in range(3)]
    case = fed(new(), [dict(zip(names, (0.5, 0.8, 0.4), strict=True))] * 2)
    assert (case.signals["gpu_memory_share"].last, case.signals["gpu_memory_share"].n) == (0.8, 2)


def test_a_phase_that_comes_late_counts_too_and_reserved_memory_before_allocated():
    allocated = {"memory/generate/end/onload/max_allocated_frac/0": 0.99}
    case = fed(new(), [allocated, allocated | phase_memory(generate=0.5)])
    assert case.signals["gpu_memory_share"].last == 0.5
    fed(case, [allocated | phase_memory(generate=0.5)] * 30)
    fed(case, [allocated | phase_memory(generate=0.5, do_checkpoint=0.95)])
    assert case.signals["gpu_memory_share"].last == 0.95


def test_the_memory_rule_names_the_phase_that_is_nearly_full():
    monitor = Monitor(algorithm="ppo")
    found = []
    for step in range(1, 40):
        full = 0.90 + 0.002 * min(step, 35)
        found += monitor.update({"step": step, "loss": 0.1, **phase_memory(adv=0.2, train_step=full, zero=0.1)})
    memory = [finding for finding in found if finding.rule == "memory_full"]
    assert [finding.metrics for finding in memory] == [("memory/train_step/end/onload/max_reserved_frac/0",)]


def test_a_name_with_spaces_is_read_from_the_marks_of_non_finite_numbers():
    case = new()
    case.take({"step": 1, "policy loss": 0.5})
    case.take({"step": 2, "_nonfinite": "policy%20loss=-inf"})
    assert (case.signals["policy_loss"].nonfinite, case.nonfinite_others) == (1, {"policy loss": 1})
