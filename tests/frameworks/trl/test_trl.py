"""TRL's own GRPO, DPO and SFT trainers, and transformers' Trainer, with `VitalsCallback` as a user adds it."""

from __future__ import annotations

import pytest
import transformers
import trl
from datasets import Dataset

import rlvitals
from rlvitals.adapters.transformers import VitalsCallback

SENTENCES = ["the cat sat on the mat .", "the dog sat on the mat .", "a bird no no no !", "my fish sat on the mat ."]
COMMON = {
    "max_steps": 6,
    "per_device_train_batch_size": 4,
    "logging_steps": 1,
    "save_strategy": "no",
    "report_to": [],
    "use_cpu": True,
    "bf16": False,
    "disable_tqdm": True,
    "learning_rate": 1e-3,
}


@pytest.fixture
def model(tiny_model):
    return transformers.AutoModelForCausalLM.from_pretrained(tiny_model)


@pytest.fixture
def tokenizer(tiny_model):
    return transformers.AutoTokenizer.from_pretrained(tiny_model)


def test_transformers_trainer(model, tokenizer, tmp_path, shown):
    ids = [tokenizer(sentence)["input_ids"] for sentence in SENTENCES]
    length = max(len(row) for row in ids)
    padded = [[tokenizer.pad_token_id] * (length - len(row)) + row for row in ids]
    data = Dataset.from_list([{"input_ids": row, "labels": row} for row in padded] * 8)
    args = transformers.TrainingArguments(tmp_path, eval_strategy="steps", eval_steps=3, **COMMON)
    trainer = transformers.Trainer(
        model, args, train_dataset=data, eval_dataset=data.select(range(8)), callbacks=[VitalsCallback()]
    )
    trainer.train()
    run = rlvitals.open_run(tmp_path)
    assert list(run.series("loss")[0]) == [1, 2, 3, 4, 5, 6]
    assert list(run.series("eval_loss")[0]) == [3, 6]
    assert run.status == "finished"
    shown(
        "transformers Trainer",
        transformers.__version__,
        "training, 6 steps",
        tmp_path,
        acts="stop, save, rate, revert",
    )


def test_trl_grpo(model, tokenizer, tmp_path, shown):
    data = Dataset.from_list([{"prompt": prompt} for prompt in ("the cat ", "the dog ", "a bird ", "my fish ")] * 8)
    args = trl.GRPOConfig(tmp_path, num_generations=4, max_completion_length=8, **COMMON)

    def short(completions, **rest):
        return [-float(len(text.split())) for text in completions]

    trainer = trl.GRPOTrainer(
        model, short, args, train_dataset=data, processing_class=tokenizer, callbacks=[VitalsCallback()]
    )
    trainer.train()
    run = rlvitals.open_run(tmp_path)
    logged = [entry["reward"] for entry in trainer.state.log_history if "reward" in entry]
    assert list(run.series("reward")[1]) == logged
    assert len(logged) == 6
    assert (run.framework, run.algorithm, run.status) == ("trl_grpo", "grpo", "finished")
    shown("TRL GRPOTrainer", trl.__version__, "training, 6 steps", tmp_path, acts="stop, save, rate, revert")


def test_trl_dpo(model, tokenizer, tmp_path, shown):
    pairs = [{"prompt": "the cat ", "chosen": "sat on the mat .", "rejected": "no no no !"}] * 24
    trainer = trl.DPOTrainer(
        model,
        args=trl.DPOConfig(tmp_path, **COMMON),
        train_dataset=Dataset.from_list(pairs),
        processing_class=tokenizer,
        callbacks=[VitalsCallback()],
    )
    trainer.train()
    run = rlvitals.open_run(tmp_path)
    logged = [entry["rewards/margins"] for entry in trainer.state.log_history if "rewards/margins" in entry]
    assert list(run.series("rewards/margins")[1]) == logged
    assert len(logged) == 6
    shown("TRL DPOTrainer", trl.__version__, "training, 6 steps", tmp_path, acts="stop, save, rate, revert")


def test_a_critical_finding_stops_trl(model, tokenizer, tmp_path, ask_for):
    args = trl.GRPOConfig(tmp_path, num_generations=4, max_completion_length=8, **{**COMMON, "max_steps": 30})
    trainer = trl.GRPOTrainer(
        model,
        lambda completions, **rest: [-1.0 - len(text) for text in completions],
        args,
        train_dataset=Dataset.from_list([{"prompt": "the cat "}] * 200),
        processing_class=tokenizer,
        callbacks=[VitalsCallback(actions="act", rules=[ask_for("stop", "reward < 0")])],
    )
    trainer.train()
    assert trainer.state.global_step < 30
    assert rlvitals.open_run(tmp_path).last_step == trainer.state.global_step
