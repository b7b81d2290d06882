"""The real trainers of transformers and TRL on a model of a few thousand weights. torch and TRL are imported only when
a trainer is made, so that pytest collects tests quickly.
"""

from __future__ import annotations

import os

NAMES = ("trainer", "sft", "reward", "dpo", "kto", "grpo", "rloo", "online_dpo")

PROMPTS = ["the cat ", "the dog ", "a bird ", "my fish "]
GOOD, BAD = "sat on the mat .", "no no no !"


def build(seed=0):
    from rlvitals.train import tiny

    return tiny.build([*PROMPTS, GOOD, BAD], width=16, layers=1, heads=2, context=64, seed=seed)


def make(name, folder, callbacks, *, seed=0, **settings):
    """One trainer: by default 6 steps, each of them logged; `settings` override this. For trainers that sample, the
    setting `rewards` replaces the reward function and `given` adds constructor arguments.
    """
    os.environ["TRL_EXPERIMENTAL_SILENCE"] = "1"
    import torch

    torch.set_num_threads(1)
    model, tokenizer = build(seed)
    given = {
        "output_dir": str(folder),
        "max_steps": 6,
        "per_device_train_batch_size": 4,
        "per_device_eval_batch_size": 4,
        "logging_steps": 1,
        "save_strategy": "no",
        "report_to": [],
        "learning_rate": 1e-3,
        "use_cpu": True,
        "disable_tqdm": True,
        "bf16": False,
        "seed": seed,
        **settings,
    }
    return _MAKERS[name](model, tokenizer, given, callbacks)


def _data(rows):
    from datasets import Dataset

    return Dataset.from_list(rows * 8)


def _answers(tokenizer):
    return [(prompt, answer + tokenizer.eos_token, answer == GOOD) for prompt in PROMPTS for answer in (GOOD, BAD)]


def _pairs(tokenizer):
    eos = tokenizer.eos_token
    return _data([{"prompt": prompt, "chosen": GOOD + eos, "rejected": BAD + eos} for prompt in PROMPTS])


def _trainer(model, tokenizer, given, callbacks):
    from transformers import Trainer, TrainingArguments

    ids = [tokenizer(prompt + GOOD)["input_ids"] for prompt in PROMPTS]
    data = _data([{"input_ids": row, "labels": row} for row in ids])
    return Trainer(
        model,
        TrainingArguments(**given),
        train_dataset=data,
        eval_dataset=data.select(range(8)),
        callbacks=callbacks,
    )


def _sft(model, tokenizer, given, callbacks):
    from trl import SFTConfig, SFTTrainer

    data = _data([{"prompt": prompt, "completion": answer} for prompt, answer, _ in _answers(tokenizer)])
    return SFTTrainer(
        model,
        SFTConfig(max_length=32, **given),
        train_dataset=data,
        eval_dataset=data.select(range(8)),
        processing_class=tokenizer,
        callbacks=callbacks,
    )


def _reward(model, tokenizer, given, callbacks):
    from transformers import LlamaForSequenceClassification
    from trl import RewardConfig, RewardTrainer

    data = _pairs(tokenizer)
    model.config.num_labels = 1
    return RewardTrainer(
        LlamaForSequenceClassification(model.config),
        RewardConfig(max_length=32, **given),
        train_dataset=data,
        eval_dataset=data.select(range(8)),
        processing_class=tokenizer,
        callbacks=callbacks,
    )


def _dpo(model, tokenizer, given, callbacks):
    from trl import DPOConfig, DPOTrainer

    data = _pairs(tokenizer)
    return DPOTrainer(
        model,
        build(given["seed"])[0],
        args=DPOConfig(max_length=32, **given),
        train_dataset=data,
        eval_dataset=data.select(range(8)),
        processing_class=tokenizer,
        callbacks=callbacks,
    )


def _kto(model, tokenizer, given, callbacks):
    from trl import KTOConfig, KTOTrainer

    answers = _answers(tokenizer)
    data = _data([{"prompt": prompt, "completion": answer, "label": label} for prompt, answer, label in answers])
    return KTOTrainer(
        model,
        build(given["seed"])[0],
        args=KTOConfig(max_length=32, **given),
        train_dataset=data,
        eval_dataset=data.select(range(8)),
        processing_class=tokenizer,
        callbacks=callbacks,
    )


def brevity(completions, **_):
    """The reward: 1 for an empty answer, less for each word."""
    return [1.0 / (1 + len(answer.split())) for answer in completions]


def _loaded(model, given):
    """The same model loaded from a file: TRL loads the reference model from the path of the model."""
    from transformers import AutoModelForCausalLM

    model.save_pretrained(folder := f"{given['output_dir']}-base")
    return AutoModelForCausalLM.from_pretrained(folder)


def _grpo(model, tokenizer, given, callbacks):
    from trl import GRPOConfig, GRPOTrainer

    if given.get("beta"):
        model = _loaded(model, given)
    rewards, more = given.pop("rewards", brevity), given.pop("given", {})
    data = _data([{"prompt": prompt, "answer": GOOD} for prompt in PROMPTS])
    return more.pop("kind", GRPOTrainer)(
        model,
        rewards,
        args=GRPOConfig(**{"num_generations": 4, "max_completion_length": 6, **given}),
        callbacks=callbacks,
        **{"train_dataset": data, "eval_dataset": data.select(range(4)), "processing_class": tokenizer, **more},
    )


def _rloo(model, tokenizer, given, callbacks):
    from trl import RLOOConfig, RLOOTrainer

    rewards = given.pop("rewards", brevity)
    if given.get("beta"):
        model = _loaded(model, given)
    data = _data([{"prompt": prompt} for prompt in PROMPTS])
    return RLOOTrainer(
        model,
        rewards,
        args=RLOOConfig(**{"num_generations": 4, "max_completion_length": 6, "beta": 0.0, **given}),
        train_dataset=data,
        eval_dataset=data.select(range(4)),
        processing_class=tokenizer,
        callbacks=callbacks,
    )


def _online_dpo(model, tokenizer, given, callbacks):
    from trl.experimental.online_dpo import OnlineDPOConfig, OnlineDPOTrainer

    rewards = given.pop("rewards", brevity)
    return OnlineDPOTrainer(
        model,
        build(given["seed"])[0],
        reward_funcs=rewards,
        args=OnlineDPOConfig(**{"max_new_tokens": 6, "max_length": 32, **given}),
        train_dataset=_data([{"prompt": prompt} for prompt in PROMPTS]),
        processing_class=tokenizer,
        callbacks=callbacks,
    )


_MAKERS = {
    "trainer": _trainer,
    "sft": _sft,
    "reward": _reward,
    "dpo": _dpo,
    "kto": _kto,
    "grpo": _grpo,
    "rloo": _rloo,
    "online_dpo": _online_dpo,
}
