"""GRPO of TRL on a tiny model from scratch. One line, the callback, records its metrics and completions.

pip install rlvitals trl
python examples/trl_grpo.py out/trl [STEPS]     # half a minute on a laptop: the model learns to answer in 12 letters
rlvitals serve out/trl                          # the completions are on the Rollouts screen
"""

from __future__ import annotations

import sys
from typing import Any

from datasets import Dataset
from trl import GRPOConfig, GRPOTrainer

from rlvitals.adapters.transformers import VitalsCallback
from rlvitals.train import tiny

PROMPTS = ["is it red ? ", "is it round ? ", "is it big ? ", "is it here ? "]


def twelve_letters(completions: list[str], **_: Any) -> list[float | None]:
    return [1 - min(abs(len(answer) - 12) / 24, 1) for answer in completions]


def one_yes(completions: list[str], **_: Any) -> list[float | None]:
    return [float(answer.count("yes") == 1) for answer in completions]


folder, steps = sys.argv[1], int(sys.argv[2]) if len(sys.argv) > 2 else 60
model, tokenizer = tiny.build([*PROMPTS, "yes no maybe red round big here"], width=32, layers=1, heads=2, context=32)
settings: dict[str, Any] = {
    "max_steps": steps, "learning_rate": 0.01, "per_device_train_batch_size": 32, "num_generations": 8,
    "max_completion_length": 16, "reward_weights": [1.0, 0.5], "logging_steps": 1, "save_steps": 20, "report_to": [],
    "use_cpu": True, "bf16": False, "disable_tqdm": True,
}  # fmt: skip
trainer = GRPOTrainer(
    model,
    [twelve_letters, one_yes],
    args=GRPOConfig(folder, **settings),
    train_dataset=Dataset.from_list([{"prompt": prompt} for prompt in PROMPTS] * 8),
    processing_class=tokenizer,
    callbacks=[VitalsCallback()],
)
trainer.train()
