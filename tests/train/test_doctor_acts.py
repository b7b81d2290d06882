"""Every trainer carries out the requests of the rules: it halves the learning rate, restores a checkpoint and stops the
training. The changes persist after a resume.

One run of each trainer goes through all of it. Its rules read only the learning rate: at the full rate they request
half of it, at half the rate they revert to a checkpoint (which halves it again), at a quarter they stop. So each
request can only come after the previous one was carried out.
"""

from __future__ import annotations

import json
import re
from importlib import import_module
from typing import NamedTuple

import pytest

from rlvitals.train import recipe

pytestmark = pytest.mark.slow

RATE, STEPS = 1e-3, 12


def length(prompts, answers, references):
    """A reward that needs no trained model."""
    return [len(answer) % 5 / 4 for answer in answers]


class Row(NamedTuple):
    trainer: str
    rate: str
    """The name of the learning rate in the trainer's rows."""
    given: dict[str, object]


TABLE = [
    Row("kto", "learning_rate", {
        "warm_up_steps": 3, "examples": 200, "batch_size": 8, "eval_steps": 0, "warmup_ratio": 0.0,
    }),
    Row("ppo", "actor/lr", {
        "families": ("add",), "held_out": 4, "warm_up_steps": 2, "warm_up_batch": 8, "reward": f"{__name__}:length",
        "critic": "shared", "batch_size": 4, "minibatch_size": 4, "ppo_epochs": 1, "max_new_tokens": 6,
        "steps_per_epoch": STEPS, "eval_steps": 0, "plots": False, "text_scores": (), "lr_schedule": "constant",
        "warmup_steps": 0,
    }),
    Row("rlaif", "optim.lr", {
        "warm_up_steps": 3, "warm_up_batch_size": 4, "tasks": 4, "eval_tasks": 2, "prompts_per_step": 2,
        "group_size": 2, "max_new_tokens": 8, "eval_steps": 0, "agreement_steps": 0, "track_with": (),
        "lr_warmup_steps": 0,
    }),
    Row("grpo", "learning_rate", {
        "groups_per_step": 2, "rollouts_per_group": 4, "held_out": 2, "eval_steps": 100, "lr_schedule": "constant",
        "warmup_steps": 0, "min_group_std": 0.0,
    }),
]  # fmt: skip


def rules(rate):
    asked = {"cut": (0.9, 1.1, "reduce_lr"), "back": (0.45, 0.9, "revert"), "enough": (0.0, 0.45, "stop")}
    return "".join(
        f"- {{rule: {name}, kind: instability, when: '{rate} > {low * RATE} and {rate} < {high * RATE}', "
        f"severity: critical, warm_up: 1, hold: 2 of 2, certain: true, title: {name}, action_critical: {action}}}\n"
        for name, (low, high, action) in asked.items()
    )


def lines(folder, name):
    return [json.loads(line) for line in (folder / "logs" / f"{name}.jsonl").read_text().splitlines()]


@pytest.mark.parametrize("row", TABLE, ids=lambda row: row.trainer)
def test_the_doctor_cuts_goes_back_and_stops_and_a_resume_keeps_it(tmp_path, row):
    module, folder = import_module(f"rlvitals.train.{row.trainer}"), tmp_path / "run"
    (tmp_path / "rules.yaml").write_text(rules(row.rate))
    given = {
        **row.given, "output_dir": str(folder), "max_steps": STEPS, "learning_rate": RATE, "save_steps": 1,
        "keep_last": None, "display": "none",
    }  # fmt: skip
    acting = {**given, "actions": "act", "rules": str(tmp_path / "rules.yaml")}
    outcome = module.train(recipe.load(row.trainer, module.Settings, None, acting))
    answers = [line for line in lines(folder, "findings") if line["type"] == "answer"]
    assert [(line["action"], line["answer"]) for line in answers] == [
        ("reduce_lr", "done"), ("revert", "done"), ("stop", "done"),
    ]  # fmt: skip
    there = re.search(r"back to (checkpoint-\d+)", answers[1]["text"])[1]
    kept, put_back = (
        (folder / name / "model.safetensors").read_bytes() for name in (there, f"checkpoint-{answers[1]['step']}")
    )
    assert kept == put_back  # the checkpoint of this step is written after the request is carried out
    assert (outcome.status, outcome.steps) == ("stopped", answers[2]["step"])
    assert outcome.steps < STEPS
    rates = {line["step"]: line[row.rate] for line in lines(folder, "training_metrics") if row.rate in line}
    assert rates[1] == pytest.approx(RATE)
    assert rates[answers[1]["step"]] == pytest.approx(RATE / 2)
    assert rates[outcome.steps] == pytest.approx(RATE / 4)

    del given["learning_rate"]  # a given learning rate would replace the checkpoint's
    again = module.train(recipe.load(row.trainer, module.Settings, None, {**given, "resume_from": "last"}))
    assert (again.status, again.steps) == ("finished", STEPS)
    after = [line for line in lines(folder, "training_metrics") if line["attempt"] == 2 and line["step"]]
    assert [line["step"] for line in after] == list(range(outcome.steps + 1, STEPS + 1))
    assert [line[row.rate] for line in after] == pytest.approx([RATE / 4] * len(after))
