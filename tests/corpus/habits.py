"""The usual settings of runs in each framework. A pair is a range from which a value is drawn."""

from __future__ import annotations

from typing import Any

HABITS: dict[str, dict[str, Any]] = {
    "trl/grpo": {
        "entropy_drop": (0.15, 0.5), "points": (100, 240), "prompts": (6, 16), "group": 8, "kl": (0.03, 0.4),
        "entropy": (0.25, 0.9), "grad_noise": (0.2, 0.4), "format_weight": 0.5, "reward_high": 2.0, "lr": 2e-6,
        "seconds": (4.0, 12.0), "seconds_per_token": 0.02,
    },
    "unsloth/grpo": {
        "points": (150, 260), "prompts": (2, 4), "group": (4, 6), "kl": (0.02, 0.2), "kl_noise": 0.4,
        "grad_noise": 0.45, "format_weight": 0.5, "reward_high": 2.0, "length": 160, "max_length": 400, "lr": 5e-6,
        "spike_rate": 0.008,
    },
    "trl/rloo": {"points": (100, 200), "prompts": (8, 16), "group": 4, "kl": (0.05, 0.3), "lr": 1e-6},
    "trl/ppo": {
        "points": (90, 160), "prompts": 16, "group": 4, "kl": (4.0, 8.0), "kl_noise": 0.35, "score_noise": 0.4,
        "reward_low": -0.5, "reward_high": 1.5, "clip": 0.02, "length": 53, "max_length": 128, "lr": 3e-6,
        "warmup": 0.0, "beta": 0.05, "spike_rate": 0.002,
    },
    "verl/grpo": {
        "entropy_drop": (0.15, 0.5), "points": (90, 220), "prompts": 64, "group": 8, "kl": (0.1, 0.6),
        "kl_noise": 0.06, "entropy": (0.2, 0.35), "grad": (0.3, 0.7), "grad_noise": 0.08, "length": (600, 1100),
        "max_length": 8096, "length_spread": 0.45, "lr": 1e-6, "decay": "constant", "eval_every": 10, "clip": 0.002,
        "seconds": 120.0, "seconds_per_token": 0.12, "spike_rate": 0.001,
    },
    "openrlhf/grpo": {
        "entropy_drop": (0.15, 0.5), "points": (100, 200), "prompts": 48, "group": 8, "kl": (0.02, 0.3),
        "kl_noise": 0.15, "entropy": (0.3, 0.6), "lr": 5e-7, "warmup": 0.03, "decay": "cosine", "eval_every": 20,
        "length": 500, "max_length": 2048, "grad_noise": 0.15,
    },
    "roll/grpo": {
        "entropy_drop": (0.15, 0.5), "points": (100, 220), "prompts": 48, "group": 8, "kl": (0.02, 0.2),
        "kl_noise": 0.12, "lr": 1e-6, "decay": "constant", "eval_every": 10, "length": 700, "max_length": 4096,
        "grad_noise": 0.15,
    },
    "slime/grpo": {
        "entropy_drop": (0.15, 0.5), "points": (100, 250), "prompts": 32, "group": 8, "kl": (0.01, 0.1),
        "decay": "constant", "eval_every": 20, "length": 2500, "max_length": 8192, "grad_noise": 0.15,
    },
    "areal/grpo": {
        "points": (100, 250), "prompts": 48, "group": 8, "decay": "constant", "eval_every": 20, "length": 1800,
        "max_length": 8192, "grad_noise": 0.15,
    },
    "skyrl/grpo": {
        "entropy_drop": (0.15, 0.5), "points": (100, 200), "prompts": 32, "group": 5, "decay": "constant",
        "eval_every": 10, "length": 800, "max_length": 3072, "grad_noise": 0.15,
    },
    "nemo_rl/grpo": {
        "points": (100, 200), "prompts": 32, "group": 8, "decay": "constant", "eval_every": 10, "length": 700,
        "max_length": 2048,
    },
    "prime_rl/grpo": {
        "points": (100, 250), "prompts": 32, "group": 8, "decay": "constant", "eval_every": 25, "length": 3000,
        "max_length": 8192, "grad_noise": 0.15,
    },
    "None/grpo": {
        "entropy_drop": (0.15, 0.5), "points": (80, 250), "prompts": (8, 24), "group": (4, 8), "kl_noise": 0.3,
        "grad_noise": 0.3,
    },
    "tinker/grpo": {"points": (45, 70), "prompts": 64, "group": 16, "entropy": 2.4, "entropy_drop": 0.35},
    "rlhf_tracker/ppo": {
        "points": (60, 90), "prompts": 32, "group": 4, "score_noise": 0.3, "kl": 0.08, "entropy": 1.2,
        "seconds": 300.0,
    },
    "rlaif/rlaif": {"points": (120, 250), "prompts": 4, "group": 4, "score_noise": 0.15, "kl": 0.05, "kl_noise": 0.3},
    "grpo_agent/grpo": {
        "points": (80, 160), "prompts": 8, "group": 6, "eval_every": 5, "eval_size": 100, "turns": 4.0,
        "reward_low": -0.5, "reward_high": 1.2,
    },
}  # fmt: skip
HABITS["verl/ppo"] = {**HABITS["verl/grpo"], "group": 1, "prompts": 256}
HABITS["openrlhf/ppo"] = {**HABITS["openrlhf/grpo"], "group": 1, "prompts": 128, "score_noise": 0.4}
HABITS["None/ppo"] = {**HABITS["None/grpo"], "score_noise": 0.3}
PAIR_HABITS: dict[str, dict[str, Any]] = {
    "trl/dpo": {"points": (90, 180), "margin": (1.2, 3.5), "spread": (0.5, 1.5)},
    "unsloth/dpo": {"points": (100, 130), "pairs": 8, "margin": (1.5, 2.5)},
    "openrlhf/dpo": {"points": (90, 180), "pairs": 32, "spread": (0.5, 1.5)},
    "trl/kto": {"points": (90, 180), "margin": (0.6, 1.6), "kto": True, "pairs": 16},
    "kto_guide/kto": {
        "points": (80, 150),
        "margin": (0.5, 1.5),
        "kto": True,
        "pairs": 8,
        "decay": "constant",
        "kl_end": (0.05, 0.4),
    },
}
AGENT = {
    "turns": (5.8, 7.0),
    "max_turns": 16,
    "reward_low": -1.0,
    "start": 0.22,
    "end": 0.42,
    "entropy": 0.24,
    "kl_start": 0.48,
    "kl": 0.08,
}
"""A multi-turn tool agent, modelled on public verl logs: scores from -1 to 1, six or seven messages."""
