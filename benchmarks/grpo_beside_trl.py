"""The same GRPO in our loop and in TRL's GRPOTrainer with transformers' `generate`: sampled tokens per second, seconds
per step, and reward per minute.

Both train the agent of the mini mailbox (`examples/trl_mailbox.py`) from the same weights, with 8 questions per step, 8
conversations for each, and the same reward, learning rate and KL. The model has the architecture of SmolLM2-135M. It is
first trained on examples of the careless agent, which takes about a minute on an H200. Needs a CUDA device and TRL:

    python benchmarks/grpo_beside_trl.py
"""

from __future__ import annotations

import argparse
import json
import os
import sys
import tempfile
import time
from pathlib import Path
from statistics import fmean
from typing import Any

os.environ.setdefault("TRL_EXPERIMENTAL_SILENCE", "1")

import torch
from transformers import LlamaConfig, LlamaForCausalLM

from rlvitals.train import grpo, models, recipe
from rlvitals.train.grpo import warm_start
from rlvitals.train.grpo.conversation import Dialogue
from rlvitals.train.grpo.trainer import GrpoTrainer

sys.path.insert(0, str(Path(__file__).parents[1] / "examples"))

BODIES = {
    "106M": {"hidden_size": 576, "intermediate_size": 1536, "num_hidden_layers": 30, "num_attention_heads": 9,
             "num_key_value_heads": 3},
    "tiny": {},
}  # fmt: skip
SKIPPED = 3
"""First steps that are not timed: CUDA graphs are captured in them."""


def taught(body: str, folder: Path, *, steps: int, rate: float) -> Path:
    """A model trained on the careless agent's examples."""
    if not BODIES[body]:
        return warm_start.SHIPPED["careless"]
    tokenizer = warm_start.build().tokenizer
    torch.manual_seed(0)
    config = LlamaConfig(
        vocab_size=len(tokenizer), max_position_embeddings=288, tie_word_embeddings=True,
        pad_token_id=tokenizer.pad_token_id, bos_token_id=tokenizer.bos_token_id,
        eos_token_id=tokenizer.eos_token_id, **BODIES[body],
    )  # fmt: skip
    model = LlamaForCausalLM(config).to("cuda" if torch.cuda.is_available() else "cpu")
    dialogue = Dialogue(tokenizer, None)
    deal = warm_start.lessons("careless", dialogue, steps=steps, batch=32, seed=0)
    began = time.perf_counter()
    loss = warm_start.teach(model, dialogue, deal, steps=steps, rate=rate)
    print(f"{models.parameters(model):,} parameters, taught in {time.perf_counter() - began:.0f} s, loss {loss:.3f}")
    model.save_pretrained(folder)
    tokenizer.save_pretrained(folder)
    return folder


def ours(start: Path, folder: Path, *, steps: int, rate: float) -> dict[str, list[float]]:
    """Our trainer on the GPU."""
    found: dict[str, list[float]] = {"tokens": [], "sampling": [], "at": []}
    collect, one_step = GrpoTrainer._collect, GrpoTrainer._one_step

    def collected(self: GrpoTrainer) -> Any:
        began = time.perf_counter()
        played = collect(self)
        found["sampling"].append(time.perf_counter() - began)
        found["tokens"].append(float(sum(sum(row.own) for rows in played.trajectories for row in rows)))
        return played

    def stepped(self: GrpoTrainer) -> Any:
        row = one_step(self)
        found["at"].append(time.perf_counter())
        return row

    GrpoTrainer._collect, GrpoTrainer._one_step = collected, stepped  # type: ignore[method-assign]
    warm_start.SHIPPED["careless"] = start
    settings = recipe.load(
        "grpo", grpo.Settings, None,
        {"output_dir": str(folder), "max_steps": steps, "learning_rate": rate, "lr_schedule": "linear", "held_out": 1,
         "eval_steps": 10_000, "save_steps": 10_000, "display": "none", "early_stopping": 0, "seed": 0},
    )  # fmt: skip
    grpo.train(settings)
    rows = [json.loads(line) for line in (folder / "logs" / "training_metrics.jsonl").read_text().splitlines()]
    return found | {"reward": [row["reward"] for row in rows]}


def trls(start: Path, folder: Path, *, steps: int, rate: float) -> dict[str, list[float]]:
    """TRL's trainer. The counted tokens are those that `generate` added, up to the end of each row."""
    import trl_mailbox
    from transformers import TrainerCallback

    model, tokenizer = models.load(str(start), None)
    found: dict[str, list[float]] = {"tokens": [0.0], "sampling": [0.0], "at": [], "reward": []}
    generate, eos = model.generate, tokenizer.eos_token_id

    def counted(ids: Any = None, **given: Any) -> Any:
        ids = given.pop("input_ids", ids)
        began = time.perf_counter()
        made = generate(ids, **given)
        torch.cuda.synchronize() if torch.cuda.is_available() else None
        found["sampling"][-1] += time.perf_counter() - began
        new = made[:, ids.shape[1] :]
        ended = (new == eos).long().cumsum(dim=1)
        found["tokens"][-1] += float(((ended == 0) | ((ended == 1) & (new == eos))).sum())
        return made

    class Clock(TrainerCallback):
        def on_log(self, args: Any, state: Any, control: Any, logs: Any = None, **_: Any) -> None:
            if logs and "rewards/mailbox_reward/mean" in logs:
                found["reward"].append(float(logs["rewards/mailbox_reward/mean"]))

        def on_step_end(self, args: Any, state: Any, control: Any, **_: Any) -> None:
            found["at"].append(time.perf_counter())
            found["tokens"].append(0.0)
            found["sampling"].append(0.0)

    model.generate = counted
    trainer = trl_mailbox.build(
        model, tokenizer, str(folder), steps=steps, learning_rate=rate, use_cpu=not torch.cuda.is_available()
    )
    trainer.add_callback(Clock())
    trainer.train()
    return {name: series[:steps] for name, series in found.items()}


def summary(name: str, found: dict[str, list[float]]) -> str:
    """One line of the table."""
    seconds = [later - earlier for earlier, later in zip(found["at"], found["at"][1:], strict=False)][SKIPPED - 1 :]
    tokens, sampling = (sum(found[key][SKIPPED:]) for key in ("tokens", "sampling"))
    first, last = fmean(found["reward"][:3]), fmean(found["reward"][-3:])
    minutes = (found["at"][-1] - found["at"][0]) / 60
    return (
        f"{name:<9} {tokens / sampling:>9,.0f} tokens/s while sampling, {tokens / sum(seconds):>8,.0f} over all, "
        f"{fmean(seconds):.2f} s a step, reward {first:.2f} -> {last:.2f} in {len(found['at'])} steps, "
        f"{(last - first) / minutes:+.2f} a minute"
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--body", default="106M", choices=BODIES)
    parser.add_argument("--steps", type=int, default=20)
    parser.add_argument("--taught", type=int, default=500, help="supervised steps before")
    parser.add_argument("--taught-rate", type=float, default=4e-4, help="their learning rate")
    parser.add_argument("--learning-rate", type=float, default=2e-5)
    options = parser.parse_args()
    where = torch.cuda.get_device_name() if torch.cuda.is_available() else "a CPU"
    print(f"{options.body} on {where}, torch {torch.__version__}")
    with tempfile.TemporaryDirectory() as folder:
        start = taught(options.body, Path(folder) / "start", steps=options.taught, rate=options.taught_rate)
        how = {"steps": options.steps, "rate": options.learning_rate}
        for name, work in (("TRL", trls), ("rlvitals", ours)):
            print(summary(name, work(start, Path(folder) / name, **how)), flush=True)


if __name__ == "__main__":
    main()
