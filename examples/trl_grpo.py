"""GRPO of TRL on a tiny model from scratch, recorded, watched and steered by VitalsCallback.

    pip install rlvitals trl
    python examples/trl_grpo.py out/trl [--steps 60] [--learning-rate 0.01] [--seed 0]
    rlvitals check out/trl

The model has a few thousand weights and a vocabulary of a dozen words; it is to answer in 12 characters. Takes half a
minute on a laptop. With `--learning-rate 1`, a hundred times too high, it really fails; the doctor names it and stops
the run.
"""

from __future__ import annotations

import argparse
import os
from typing import Any

os.environ.setdefault("OMP_NUM_THREADS", "1")  # a model this small is slower with threads; before torch

import datasets
from transformers import PrinterCallback
from trl import GRPOConfig, GRPOTrainer  # type: ignore[attr-defined]

from rlvitals.adapters.transformers import VitalsCallback
from rlvitals.train import tiny

PROMPTS = ["is it red ? ", "is it round ? ", "is it big ? ", "is it here ? "]
WORDS = "yes no maybe red round big here"


def twelve_characters(completions: list[str], **_: Any) -> list[float | None]:
    """1 for an answer of 12 characters, less the further it is from that."""
    return [1.0 - min(abs(len(answer) - 12) / 24, 1.0) for answer in completions]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("output_dir")
    parser.add_argument("--steps", type=int, default=60)
    parser.add_argument("--learning-rate", type=float, default=0.01)
    parser.add_argument("--seed", type=int, default=0)
    given = parser.parse_args()

    datasets.disable_progress_bars()
    model, tokenizer = tiny.build([*PROMPTS, WORDS], width=32, layers=1, heads=2, context=32, seed=given.seed)
    trainer = GRPOTrainer(
        model,
        twelve_characters,
        args=GRPOConfig(
            output_dir=given.output_dir,
            max_steps=given.steps,
            learning_rate=given.learning_rate,
            seed=given.seed,
            per_device_train_batch_size=32,
            num_generations=8,
            max_completion_length=16,
            logging_steps=1,
            save_steps=20,
            report_to=[],
            bf16=False,
            use_cpu=True,
            disable_tqdm=True,
        ),
        train_dataset=datasets.Dataset.from_list([{"prompt": prompt} for prompt in PROMPTS] * 8),
        processing_class=tokenizer,
        callbacks=[VitalsCallback(actions="act", display="auto", display_every=5)],
    )
    trainer.remove_callback(PrinterCallback)  # the display below is enough
    trainer.train()


if __name__ == "__main__":
    main()
