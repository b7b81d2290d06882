"""Makes the logs next to this file: real KTO and DPO trainings of a tiny language model, healthy and broken.

    python -m venv trl && . trl/bin/activate
    pip install torch==2.13.0         # first and alone: the CPU build, no CUDA packages
    pip install trl==1.16.0 transformers==5.22.2 accelerate==1.15.0 datasets==5.2.0 tokenizers==0.23.3
    python tests/health/kto_runs/make.py OUT [--only NAME ...] [--base DIR]

Nothing is downloaded. In a short supervised warm-up, a Llama of a million parameters learns to answer small sums both
well (right and polite) and badly (wrong or rude). TRL's trainers then teach it to prefer the good answers.
OUT/NAME.jsonl gets one line per optimiser step with the values that TRL logged, rounded to six digits. Evaluation
results are in the line of their step. The final summary, which repeats the last step, is omitted. One core makes a run
in less than two minutes. Another processor may change the last digits.

runs.tsv labels each run by hand: verdict, kind (the cause), also (other kinds that are correct), onset (the first step
at which the log shows it) and what happened. Its numbers are means of the first 10 and the last 20 steps unless noted.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import tempfile
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

if TYPE_CHECKING:
    from transformers import PreTrainedModel, PreTrainedTokenizerFast

BATCH = 8
STEPS = 160
WARMUP_STEPS = 10
LABEL_NOISE = 0.05
"""The share of wrong labels in every run, because annotators make mistakes."""

POLITE = (
    ["sure ,", "of course ,", "happy to help ,", "with pleasure ,"],
    [
        "have a nice day .",
        "thank you for asking .",
        "hope that helps .",
        "let me know if you need more .",
    ],
)
RUDE = (
    ["ugh ,", "again ?", "whatever ,", "do it yourself ,"],
    [
        "now go away .",
        "stop asking .",
        "obviously .",
        "leave me alone .",
    ],
)
LARGEST = 19


@dataclass(frozen=True)
class Recipe:
    """One training. The defaults are the healthy base run."""

    algorithm: Literal["kto", "dpo"] = "kto"
    beta: float = 0.1
    learning_rate: float = 5e-5
    desirable_weight: float = 1.0
    undesirable_weight: float = 1.0
    n_desirable: int = BATCH * STEPS // 2
    n_undesirable: int = BATCH * STEPS // 2
    seed: int = 0
    labels: Literal["true", "swapped", "random"] = "true"
    swapped_from_step: int | None = None
    """From this step on, the labels of the data are swapped (a second data file with the opposite convention)."""
    gradient: Literal["descend", "ascend", "zeroed"] = "descend"
    evaluate: bool = False
    """Evaluate every 20 steps, on 64 held-out answers whose labels are neither swapped nor random."""

    def config(self) -> dict[str, Any]:
        """The settings that could be passed to a monitor."""
        settings = {"beta": self.beta, "learning_rate": self.learning_rate}
        if self.algorithm == "dpo":
            return settings | {"n_pairs": BATCH * STEPS}
        return settings | {
            "desirable_weight": self.desirable_weight,
            "undesirable_weight": self.undesirable_weight,
            "n_desirable": self.n_desirable,
            "n_undesirable": self.n_undesirable,
        }


# Eq. (8) of the KTO paper asks for 1 <= desirable_weight * n_desirable / (undesirable_weight * n_undesirable) <= 4/3.
RECIPES = {
    "kto_base": Recipe(),
    "kto_base_seed1": Recipe(seed=1, evaluate=True),
    "kto_beta_0.05": Recipe(beta=0.05),
    "kto_beta_0.3": Recipe(beta=0.3),
    "kto_3to1_weighted": Recipe(n_desirable=960, n_undesirable=320, undesirable_weight=3.0),
    "kto_1to3_weighted": Recipe(n_desirable=320, n_undesirable=960, desirable_weight=3.0),
    "kto_lr_1e-4": Recipe(learning_rate=1e-4),
    "kto_swapped_labels": Recipe(labels="swapped", evaluate=True),
    "kto_swapped_halfway": Recipe(swapped_from_step=STEPS // 2),
    "kto_gradient_ascent": Recipe(gradient="ascend"),
    "kto_1to9_undesirable_weight_10": Recipe(n_desirable=128, n_undesirable=1152, undesirable_weight=10.0),
    "kto_lr_5e-4": Recipe(learning_rate=5e-4),
    "kto_lr_3e-3": Recipe(learning_rate=3e-3),
    "kto_lr_3e-2": Recipe(learning_rate=3e-2),
    "kto_lr_1": Recipe(learning_rate=1.0),
    "kto_lr_1e-9": Recipe(learning_rate=1e-9),
    "kto_zeroed_gradient": Recipe(gradient="zeroed"),
    "kto_random_labels": Recipe(labels="random"),
    "dpo_base": Recipe("dpo"),
    "dpo_lr_3e-2": Recipe("dpo", learning_rate=3e-2),
    "dpo_random_labels": Recipe("dpo", labels="random"),
}


def question(rng: random.Random) -> tuple[int, int, str]:
    a, b = rng.randint(0, LARGEST), rng.randint(0, LARGEST)
    return a, b, f"what is {a} plus {b} ?"


def answer(a: int, b: int, good: bool, rng: random.Random) -> str:
    """A right and polite answer, or one that is wrong (half of the bad ones), rude (a quarter) or both."""
    wrong, rude = (False, False) if good else rng.choice([(True, False), (True, False), (False, True), (True, True)])
    total = rng.choice([n for n in range(2 * LARGEST + 1) if n != a + b]) if wrong else a + b
    openers, closers = RUDE if rude else POLITE
    return f" {rng.choice(openers)} {a} plus {b} is {total} . {rng.choice(closers)}"


def labelled_answers(recipe: Recipe, rng: random.Random) -> list[dict[str, Any]]:
    """The data for KTO, in training order."""
    labels = [True] * recipe.n_desirable + [False] * recipe.n_undesirable
    rng.shuffle(labels)
    rows = []
    for index, label in enumerate(labels):
        good = rng.random() < 0.5 if recipe.labels == "random" else label != (rng.random() < LABEL_NOISE)
        second_file = recipe.swapped_from_step is not None and index >= (recipe.swapped_from_step - 1) * BATCH
        if recipe.labels == "swapped" or second_file:
            good = not good
        a, b, prompt = question(rng)
        rows.append({"prompt": prompt, "completion": answer(a, b, good, rng), "label": label})
    return rows


def answer_pairs(recipe: Recipe, rng: random.Random) -> list[dict[str, Any]]:
    """The data for DPO."""
    rows = []
    for _ in range(BATCH * STEPS):
        a, b, prompt = question(rng)
        pair = [answer(a, b, good, rng) for good in (True, False)]
        if rng.random() < (0.5 if recipe.labels == "random" else LABEL_NOISE):
            pair.reverse()
        rows.append({"prompt": prompt, "chosen": pair[0], "rejected": pair[1]})
    return rows


def build_tokenizer() -> PreTrainedTokenizerFast:
    """One token per word and per number."""
    from tokenizers import Tokenizer, models, pre_tokenizers
    from transformers import PreTrainedTokenizerFast

    phrases = ["what is plus . ?", *(phrase for style in (POLITE, RUDE) for part in style for phrase in part)]
    words = sorted({word for phrase in phrases for word in phrase.split()})
    numbers = [str(n) for n in range(2 * LARGEST + 1)]
    vocabulary = {token: index for index, token in enumerate(["<pad>", "<eos>", "<unk>", *words, *numbers])}
    tokenizer = Tokenizer(models.WordLevel(vocabulary, unk_token="<unk>"))
    tokenizer.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    return PreTrainedTokenizerFast(
        tokenizer_object=tokenizer, pad_token="<pad>", eos_token="<eos>", unk_token="<unk>", padding_side="left"
    )


def make_base(folder: Path, steps: int = 400, batch: int = 64) -> None:
    """Train the model all runs start from, on good and bad answers in the ratio 6 : 4, and save it."""
    import torch
    from transformers import LlamaConfig, LlamaForCausalLM

    torch.manual_seed(0)
    rng = random.Random(0)
    tokenizer = build_tokenizer()
    model = LlamaForCausalLM(
        LlamaConfig(
            vocab_size=len(tokenizer),
            hidden_size=128,
            intermediate_size=512,
            num_hidden_layers=4,
            num_attention_heads=4,
            max_position_embeddings=64,
            pad_token_id=tokenizer.pad_token_id,
            eos_token_id=tokenizer.eos_token_id,
            bos_token_id=None,
        )
    )
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3, weight_decay=0.01)
    schedule = torch.optim.lr_scheduler.OneCycleLR(optimizer, max_lr=1e-3, total_steps=steps)
    for step in range(steps):
        texts = []
        for _ in range(batch):
            a, b, prompt = question(rng)
            texts.append(prompt + answer(a, b, rng.random() < 0.6, rng) + tokenizer.eos_token)
        inputs = tokenizer(texts, return_tensors="pt", padding=True, padding_side="right", return_token_type_ids=False)
        labels = inputs["input_ids"].masked_fill(inputs["attention_mask"] == 0, -100)
        loss = model(**inputs, labels=labels).loss
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        schedule.step()
        if step % 50 == 0 or step == steps - 1:
            print(f"warm-up step {step}: loss {loss.item():.3f}", flush=True)
    print(f"{sum(p.numel() for p in model.parameters()):,} parameters")
    model.save_pretrained(folder)
    tokenizer.save_pretrained(folder)


def build_trainer(recipe: Recipe, base: Path, scratch: Path) -> Any:
    """TRL's trainer for a recipe, with the fault of the recipe."""
    import torch
    from datasets import Dataset
    from transformers import AutoModelForCausalLM, AutoTokenizer
    from trl import DPOConfig, DPOTrainer, KTOConfig, KTOTrainer

    rng = random.Random(1000 + recipe.seed)
    # Without a separate reference model, TRL would look up the model's name on a hub.
    model, reference = (AutoModelForCausalLM.from_pretrained(base, dtype=torch.float32) for _ in range(2))
    optimizer = _optimizer(recipe, model)
    settings: dict[str, Any] = {
        "output_dir": str(scratch),
        "beta": recipe.beta,
        "learning_rate": recipe.learning_rate,
        "warmup_steps": WARMUP_STEPS,
        "per_device_train_batch_size": BATCH,
        "max_steps": STEPS,
        "logging_steps": 1,
        "seed": recipe.seed,
        "max_length": 64,
        "report_to": "none",
        "save_strategy": "no",
        "disable_tqdm": True,
        "use_cpu": True,
        "bf16": False,
        "gradient_checkpointing": False,
        "dataloader_pin_memory": False,
    }
    data = {
        "model": model,
        "ref_model": reference,
        "processing_class": AutoTokenizer.from_pretrained(base),
        "optimizers": (optimizer, None),
    }
    if recipe.algorithm == "dpo":
        return DPOTrainer(
            args=DPOConfig(**settings), train_dataset=Dataset.from_list(answer_pairs(recipe, rng)), **data
        )
    if recipe.evaluate:
        settings |= {"eval_strategy": "steps", "eval_steps": 20, "per_device_eval_batch_size": BATCH}
        held_out = Recipe(n_desirable=32, n_undesirable=32)
        data["eval_dataset"] = Dataset.from_list(labelled_answers(held_out, random.Random(9000)))
    settings |= {"desirable_weight": recipe.desirable_weight, "undesirable_weight": recipe.undesirable_weight}
    return KTOTrainer(
        args=KTOConfig(**settings), train_dataset=Dataset.from_list(labelled_answers(recipe, rng)), **data
    )


def _optimizer(recipe: Recipe, model: PreTrainedModel) -> Any:
    """Applies the gradient fault of a recipe. Returns an optimiser for ascent, None for the trainer's default."""
    import torch

    if recipe.gradient == "zeroed":
        for parameter in model.parameters():
            parameter.register_hook(torch.zeros_like)
    if recipe.gradient == "ascend":
        return torch.optim.AdamW(model.parameters(), lr=recipe.learning_rate, weight_decay=0.0, maximize=True)
    return None


def rows_of(history: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """One row per step out of a trainer's log history.

    >>> rows_of([{"loss": 0.50000049, "step": 1}, {"eval_loss": 0.4, "eval_runtime": 3.0, "step": 1}])
    [{'step': 1, 'loss': 0.5, 'eval_loss': 0.4}]
    """
    rows: dict[int, dict[str, Any]] = {}
    for entry in history:
        if "train_runtime" in entry:
            continue
        row = rows.setdefault(entry["step"], {"step": entry["step"]})
        for key, value in entry.items():
            if not key.endswith(("_runtime", "_per_second")) and key not in row:
                row[key] = float(f"{value:.6g}") if isinstance(value, float) else value
    return [rows[step] for step in sorted(rows)]


def train(name: str, base: Path, out: Path) -> None:
    """Run one recipe and write its log, even if the training fails."""
    import torch

    torch.set_num_threads(1)
    with tempfile.TemporaryDirectory() as scratch:
        trainer = build_trainer(RECIPES[name], base, Path(scratch))
        try:
            trainer.train()
        except (RuntimeError, ValueError) as error:
            print(f"{name} broke off: {error}")
    lines = [json.dumps(row, separators=(",", ":")) + "\n" for row in rows_of(trainer.state.log_history)]
    (out / f"{name}.jsonl").write_text("".join(lines), encoding="utf-8")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("out", type=Path, help="where the logs go")
    parser.add_argument("--only", nargs="+", choices=RECIPES, default=list(RECIPES), metavar="NAME")
    parser.add_argument("--base", type=Path, help="where the warmed-up model is kept; made there when missing")
    arguments = parser.parse_args()
    os.environ |= {"HF_HUB_OFFLINE": "1", "TOKENIZERS_PARALLELISM": "false", "TQDM_DISABLE": "1"}
    arguments.out.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory() as scratch:
        base = arguments.base or Path(scratch) / "base"
        if not (base / "config.json").exists():
            import torch

            torch.set_num_threads(1)
            make_base(base)
        for name in arguments.only:
            print(f"== {name}", flush=True)
            train(name, base, arguments.out)


if __name__ == "__main__":
    main()
