"""Each framework's names for the canonical series of the corpus, and the form of its rows."""

from __future__ import annotations

from typing import Any

import numpy as np

from corpus.latent import Series

COMMON_TRL = {
    "loss": "loss",
    "grad": "grad_norm",
    "lr": "learning_rate",
    "epoch": "epoch",
    "tokens_total": "num_tokens",
}
PREFERENCE_TRL = {
    **COMMON_TRL, "chosen": "rewards/chosen", "rejected": "rewards/rejected", "margin": "rewards/margins",
    "logp_chosen": "logps/chosen", "logp_rejected": "logps/rejected",
    "logits_chosen": "logits/chosen", "logits_rejected": "logits/rejected", "entropy": "entropy",
    "eval_loss": "eval_loss", "eval_margin": "eval_rewards/margins", "eval_chosen": "eval_rewards/chosen",
    "eval_rejected": "eval_rewards/rejected", "count_chosen": "count/chosen", "count_rejected": "count/rejected",
}  # fmt: skip

KEYS: dict[str, dict[str, str]] = {
    "trl/grpo": {
        **COMMON_TRL, "reward": "reward", "reward_std": "reward_std", "zero_std": "frac_reward_zero_std",
        "part_main": "rewards/correctness_reward/mean", "part_main_std": "rewards/correctness_reward/std",
        "part_format": "rewards/format_reward/mean", "part_format_std": "rewards/format_reward/std",
        "kl": "kl", "entropy": "entropy", "length": "completions/mean_length", "length_min": "completions/min_length",
        "length_max": "completions/max_length", "truncated": "completions/clipped_ratio",
        "ended": "completions/mean_terminated_length", "ended_min": "completions/min_terminated_length",
        "ended_max": "completions/max_terminated_length", "clip": "clip_ratio/region_mean",
        "clip_low": "clip_ratio/low_mean", "clip_high": "clip_ratio/high_mean", "seconds": "step_time",
        "tool_calls": "tools/call_frequency", "tool_failures": "tools/failure_frequency", "eval": "eval_reward",
        "logp_diff": "sampling/sampling_logp_difference/mean", "logp_diff_max": "sampling/sampling_logp_difference/max",
        "is_weight": "sampling/importance_sampling_ratio/mean",
    },
    "unsloth/grpo": {
        **COMMON_TRL, "reward": "reward", "reward_std": "reward_std", "part_main": "rewards/correctness_reward_func",
        "part_format": "rewards/soft_format_reward_func", "kl": "kl", "length": "completion_length",
    },
    "trl/rloo": {
        **COMMON_TRL, "reward": "reward", "reward_std": "reward_std", "zero_std": "frac_reward_zero_std", "kl": "kl",
        "entropy": "entropy", "length": "completions/mean_length", "truncated": "completions/clipped_ratio",
        "clip": "clip_ratio/region_mean", "seconds": "step_time",
    },
    "trl/ppo": {
        "reward": "objective/scores", "shaped": "objective/rlhf_reward", "kl_term": "objective/non_score_reward",
        "kl": "objective/kl", "sequence_entropy": "objective/entropy", "entropy": "policy/entropy_avg",
        "approx_kl": "policy/approxkl_avg", "clip": "policy/clipfrac_avg", "policy_loss": "loss/policy_avg",
        "value_loss": "loss/value_avg", "value_clip": "val/clipfrac_avg", "ratio": "val/ratio",
        "ratio_var": "val/ratio_var", "lr": "lr", "epoch": "epoch", "episode": "episode", "eval": "eval_gold_score",
    },
    "trl/dpo": {
        **PREFERENCE_TRL, "accuracy": "rewards/accuracies", "eval_accuracy": "eval_rewards/accuracies",
        "token_accuracy": "mean_token_accuracy",
    },
    "trl/kto": {**PREFERENCE_TRL, "kl": "kl"},
    "kto_guide/kto": {
        "loss": "loss", "chosen": "rewards/chosen", "rejected": "rewards/rejected", "margin": "rewards/margins",
        "grad": "grad_norm", "lr": "learning_rate", "kl": "kl",
    },
    "openrlhf/dpo": {
        "loss": "train/loss", "chosen": "train/chosen_reward", "rejected": "train/reject_reward",
        "accuracy": "train/acc", "lr": "train/lr", "grad": "train/grad_norm", "eval_loss": "eval/eval_loss",
    },
    "verl/grpo": {
        "reward": "critic/score/mean", "reward_max": "critic/score/max", "reward_min": "critic/score/min",
        "shaped": "critic/rewards/mean", "entropy": "actor/entropy", "kl": "actor/kl_loss", "grad": "actor/grad_norm",
        "policy_loss": "actor/pg_loss", "clip": "actor/pg_clipfrac", "ppo_kl": "actor/ppo_kl", "lr": "actor/lr",
        "length": "response_length/mean", "length_max": "response_length/max", "length_min": "response_length/min",
        "truncated": "response_length/clip_ratio", "turns": "num_turns/mean", "turns_max": "num_turns/max",
        "seconds": "timing_s/step", "seconds_gen": "timing_s/gen", "tokens_per_s": "perf/throughput",
        "memory": "perf/max_memory_allocated_gb", "memory_reserved": "perf/max_memory_reserved_gb",
        "mfu": "perf/mfu/actor", "epoch_whole": "training/epoch", "eval": "val-core/gsm8k/reward/mean@1",
        "value_loss": "critic/vf_loss", "explained_variance": "critic/vf_explained_var", "values": "critic/values/mean",
        "value_clip": "critic/vf_clipfrac", "returns": "critic/returns/mean", "critic_grad": "critic/grad_norm",
        "mismatch_kl": "rollout_corr/kl", "mismatch_k3": "rollout_corr/k3_kl",
        "is_weight": "rollout_corr/rollout_is_mean",
        "ess": "rollout_corr/rollout_is_eff_sample_size", "probs_diff": "training/rollout_probs_diff_mean",
        "staleness": "training/off_policy/trajectory_staleness/mean",
        "staleness_max": "training/off_policy/trajectory_staleness_worst/max",
        "tool_success": "rollout/tool_success_rate", "tool_calls": "tool_call_counts/mean",
        "part_main": "gdpo/accuracy/mean", "part_main_std": "gdpo/accuracy/std",
        "part_format": "gdpo/format/mean", "part_format_std": "gdpo/format/std",
    },
    "openrlhf/grpo": {
        "reward": "train/rollout/reward_mean", "batch_std": "train/rollout/reward_std",
        "reward_std": "train/group_reward_std", "length": "train/rollout/response_length_mean",
        "truncated": "train/rollout/truncated_rate", "policy_loss": "train/policy_loss", "kl": "train/kl",
        "ppo_kl": "train/ppo_kl", "clip": "train/ppo_clip_ratio", "grad": "train/actor_grad_norm",
        "lr": "train/actor_lr", "entropy": "train/entropy_loss", "seconds": "train/timing/step_total",
        "seconds_gen": "train/timing/generation", "value_loss": "train/critic_loss", "values": "train/values",
        "returns": "train/return", "mismatch_kl": "train/vllm_kl", "keep_rate": "train/dynamic_filtering_pass_rate",
        "eval": "eval/eval_math_pass1",
    },
    "roll/grpo": {
        "reward": "critic/score/mean", "reward_max": "critic/score/max", "reward_min": "critic/score/min",
        "shaped": "critic/rewards/mean", "kl": "critic/kl", "entropy": "critic/entropy/mean",
        "policy_loss": "actor/pg_loss", "loss": "actor/total_loss", "clip": "actor/ppo_ratio_clipfrac",
        "clip_high": "actor/ppo_ratio_high_clipfrac", "clip_low": "actor/ppo_ratio_low_clipfrac",
        "ratio": "actor/ratio_mean", "ratio_max": "actor/ratio_max", "ratio_min": "actor/ratio_min",
        "approx_kl": "actor/approxkl", "ppo_kl": "actor/policykl", "length": "tokens/response_length/mean",
        "length_max": "tokens/response_length/max", "length_min": "tokens/response_length/min", "lr": "actor/lr",
        "grad": "actor_train/grad_norm", "seconds_gen": "time/rollout", "tokens_per_s": "system/tps",
        "eval": "val/score/mean", "all_fail": "group/all_incorrect_groups_ratio",
        "all_pass": "group/all_correct_groups_ratio", "memory_frac": "memory/train_step/end/onload/max_reserved_frac/0",
        "value_loss": "critic/loss", "values": "critic/vpred",
    },
    "slime/grpo": {
        "reward": "rollout/raw_reward", "length": "rollout/response_len/mean", "length_max": "rollout/response_len/max",
        "length_min": "rollout/response_len/min", "truncated": "rollout/truncated_ratio", "loss": "train/loss",
        "policy_loss": "train/pg_loss", "entropy": "train/entropy_loss", "clip": "train/pg_clipfrac",
        "ppo_kl": "train/ppo_kl", "kl": "train/kl_loss", "grad": "train/grad_norm", "lr": "train/lr-pg_0",
        "seconds": "perf/step_time", "seconds_gen": "perf/rollout_time", "eval": "eval/aime",
        "repetition": "rollout/repetition_frac", "logp_diff": "train/train_rollout_logprob_abs_diff",
    },
    "areal/grpo": {
        "reward": "ppo_actor/task_reward/avg", "policy_loss": "ppo_actor/update/actor_loss/avg",
        "entropy": "ppo_actor/update/entropy/avg", "clip": "ppo_actor/update/clip_ratio/avg",
        "ratio": "ppo_actor/update/importance_weight/avg", "approx_kl": "ppo_actor/update/approx_kl/avg",
        "grad": "ppo_actor/update/grad_norm", "lr": "ppo_actor/update/lr", "length": "ppo_actor/seq_len/avg",
        "truncated": "ppo_actor/no_eos_ratios/avg", "eval": "eval-rollout/reward", "seconds_gen": "timeperf/rollout",
        "staleness": "ppo_actor/update/version_stats/sample_staleness_theta_avg",
        "staleness_max": "ppo_actor/update/version_stats/sample_staleness_theta_max",
    },
    "skyrl/grpo": {
        "reward": "reward/avg_raw_reward", "policy_loss": "policy/policy_loss", "loss": "policy/final_loss",
        "kl": "policy/policy_kl", "entropy": "policy/policy_entropy", "clip": "policy/loss_metrics/clip_ratio",
        "grad": "policy/grad_norm", "lr": "policy/policy_lr", "length": "generate/avg_num_tokens",
        "length_max": "generate/max_num_tokens", "length_min": "generate/min_num_tokens", "seconds": "timing/step",
        "seconds_gen": "timing/generate", "staleness": "async/staleness_mean", "staleness_max": "async/staleness_max",
        "keep_rate": "async/keep_rate", "gpu": "ray/gpu.util.avg", "eval": "eval/all/avg_score",
    },
    "nemo_rl/grpo": {
        "reward": "train/reward", "loss": "train/loss", "kl": "train/kl_penalty", "entropy": "train/approx_entropy",
        "ratio": "train/probs_ratio", "grad": "train/grad_norm", "lr": "train/lr",
        "length": "train/mean_gen_tokens_per_sample", "truncated": "train/truncation_rate",
        "mismatch_kl": "train/gen_kl_error", "prob_error": "train/token_mult_prob_error",
        "all_fail": "train/baseline_reward/pct_0", "all_pass": "train/baseline_reward/pct_1",
        "seconds": "timing/train/total_step_time", "eval": "validation/accuracy", "turns": "train/avg_turns_per_sample",
        "tool_failures": "train/invalid_tool_call_rate", "turn_limit": "train/max_turns_reached_rate",
        "gpu": "ray/node.0.gpu.0.util",
    },
    "prime_rl/grpo": {
        "reward": "train/math/all/solver/reward/mean", "loss": "loss/mean", "entropy": "entropy/all/mean",
        "grad": "optim/grad_norm", "lr": "optim/lr", "mismatch_kl": "mismatch_kl/all/mean",
        "staleness": "off_policy/mean", "staleness_max": "off_policy/max", "clip": "is_masked/mean",
        "length": "train/math/all/solver/num_output_tokens/mean",
        "truncated": "train/math/all/solver/is_truncated/mean",
        "seconds": "time/step", "tokens_per_s": "perf/throughput", "eval": "eval/aime/all/solver/avg@8",
    },
    "None/grpo": {
        "loss": "loss", "reward": "reward", "kl": "kl", "entropy": "entropy", "grad": "grad_norm", "lr": "lr",
        "length": "response_length/mean", "eval": "eval/accuracy", "ratio": "ratio", "clip": "clip_ratio",
    },
    "tinker/grpo": {
        "reward": "reward/mean", "part_main": "reward/correctness_f", "part_format": "reward/compilable_g",
        "entropy": "policy/entropy", "lr": "optim/lr", "eval": "eval/correctness",
    },
    "rlhf_tracker/ppo": {
        "loss": "loss", "reward": "reward", "kl": "kl_divergence", "entropy": "entropy", "lr": "learning_rate",
        "seconds": "epoch_time", "samples_per_s": "samples_per_second", "eval_loss": "eval_loss",
        "bleu": "bleu", "rouge": "rouge", "codebleu": "codebleu",
    },
    "rlaif/rlaif": {
        "loss": "Train/Loss", "policy_loss": "Train/PolicyLoss", "kl": "Train/KLPenalty", "reward": "Train/AvgReward",
        "batch_std": "Train/RewardStd", "reward_min": "Train/RewardMin", "reward_max": "Train/RewardMax",
        "generation_tps": "Performance/Generation_TokensPerSec", "backward_tps": "Performance/Backprop_TokensPerSec",
        "gpu": "System/GPU_Utilization", "gpu_memory": "System/GPU_Memory_Used_GB",
        "gpu_memory_total": "System/GPU_Memory_Total_GB", "gpu_memory_percent": "System/GPU_Memory_Percent",
        "cpu": "System/CPU_Percent", "host_memory": "System/Memory_Percent",
    },
    "grpo_agent/grpo": {
        "reward": "train/avg_reward", "loss": "train/loss", "grad": "train/grad_norm", "kept": "train/groups_kept",
        "filtered": "train/groups_filtered", "early_exit": "train/num_early_exit", "eval": "eval/accuracy",
        "repeated": "eval/total_repeated_searches", "unique": "eval/total_unique_searches",
        "searches": "eval/total_searches", "turns_correct": "eval/avg_turns_correct", "turns_idk": "eval/avg_turns_idk",
        "search_attempts": "eval/avg_search_attempts", "idk": "eval/num_idk", "eval_reward": "eval/avg_reward",
    },
}  # fmt: skip
KEYS["verl/ppo"] = KEYS["verl/grpo"]
KEYS["openrlhf/ppo"] = KEYS["openrlhf/grpo"]
KEYS["None/ppo"] = KEYS["None/grpo"]
KEYS["unsloth/dpo"] = KEYS["trl/dpo"]

SEPARATE_EVALS = ("trl/", "unsloth/")
"""Hugging Face trainers write a separate row for an evaluation."""


def family(framework: str | None, algorithm: str | None) -> str:
    return f"{framework}/{algorithm}"


def rows_of(
    series: Series, framework: str | None, algorithm: str | None, every: int = 1, only: frozenset[str] | None = None
) -> tuple[list[dict[str, Any]], list[int]]:  # fmt: skip
    """The rows of a log, and for every point the index of its row; `only` limits the canonical series."""
    where = family(framework, algorithm)
    keys = {name: key for name, key in KEYS[where].items() if name in series and (only is None or name in only)}
    apart = where.startswith(SEPARATE_EVALS)
    points = len(next(iter(series.values())))
    rows: list[dict[str, Any]] = []
    index: list[int] = []
    for i in range(points):
        step = (i + 1) * every
        row: dict[str, Any] = {"step": step}
        evaluation: dict[str, Any] = {}
        for name, key in keys.items():
            value = series[name][i]
            if value is np.ma.masked:
                continue
            (evaluation if apart and name.startswith("eval") else row)[key] = plain(value, name, apart)
        index.append(len(rows))
        rows.append(row)
        if evaluation:
            rows.append({"step": step, **evaluation})
    return rows, index


def plain(value: Any, name: str, rounded: bool) -> float:
    """A Python number as the framework's logger would print it."""
    number = float(value)
    if rounded and name == "loss" and np.isfinite(number):
        return round(number, 4)
    return float(f"{number:.7g}")
