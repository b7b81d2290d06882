"""A hand-written loop and a transformers trainer receive the same requests and give the same answers."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import tiny_trainers

import rlvitals

pytestmark = [pytest.mark.slow, pytest.mark.filterwarnings("ignore")]

RATE, STEPS, SAVE_STEPS = 1e-3, 20, 2
ALARMS = {"first": (6, 7), "second": (8, 9), "third": (14, 15)}
"""The steps at which each gauge is high. 6 is saved after the first onset; 8 is the second onset itself."""


def rules():
    return [
        {
            "rule": name, "kind": "instability", "when": f"{name} > 5", "severity": "critical", "warm_up": 1,
            "hold": "2 of 2", "action_critical": "revert", "title": f"the {name} gauge is high",
        }
        for name in ALARMS
    ]  # fmt: skip


def gauges(step):
    return {name: 9.0 if step in steps else 1.0 for name, steps in ALARMS.items()}


def answers(folder):
    lines = [json.loads(line) for line in (Path(folder) / "logs" / "findings.jsonl").read_text().splitlines()]
    return [
        (line["step"], line["action"], line["answer"], line["text"]) for line in lines
        if line["type"] == "answer" and line["action"] != "warn"
    ]  # fmt: skip


def loop(folder):
    import torch

    weight = torch.nn.Parameter(torch.zeros(1))
    optimizer = torch.optim.AdamW([weight], lr=RATE)
    scheduler = torch.optim.lr_scheduler.LambdaLR(optimizer, lambda step: 1.0)

    def load(place):
        kept = torch.load(place / "state.pt", weights_only=True)
        weight.data.copy_(kept["weight"])
        optimizer.load_state_dict(kept["optimizer"])

    def save():
        place = folder / f"checkpoint-{step}"
        place.mkdir()
        torch.save({"weight": weight.data, "optimizer": optimizer.state_dict()}, place / "state.pt")
        return place

    with rlvitals.start(folder, actions="act", rules=rules(), hardware=False) as run:
        actions = rlvitals.Actions(run, optimizer, scheduler, save=save, load=load)
        for step in range(1, STEPS + 1):
            optimizer.step()
            scheduler.step()
            run.log({"loss": 1.0 / step, **gauges(step)}, step=step)
            if actions.carry_out():
                break
            if step % SAVE_STEPS == 0:
                save()
    return step, optimizer.param_groups[0]["lr"]


def transformers(folder):
    from transformers import TrainerCallback

    from rlvitals.adapters.transformers import VitalsCallback

    class Gauges(TrainerCallback):
        def on_log(self, args, state, control, logs=None, **_):
            logs.update(gauges(state.global_step))

    recorder = VitalsCallback(actions="act", rules=rules(), hardware=False)
    trainer = tiny_trainers.make(
        "trainer", folder, [Gauges(), recorder], max_steps=STEPS, learning_rate=RATE, lr_scheduler_type="constant",
        save_strategy="steps", save_steps=SAVE_STEPS,
    )  # fmt: skip
    trainer.train()
    return trainer.state.global_step, trainer.optimizer.param_groups[0]["lr"]


def test_three_reverts_with_spoiled_checkpoints_end_the_same_way(tmp_path):
    own, theirs = loop(tmp_path / "own"), transformers(tmp_path / "theirs")
    assert answers(tmp_path / "own") == [
        (7, "revert", "done", "back to checkpoint-4, learning rate 0.001 -> 0.0005; steps and data continue"),
        (9, "revert", "done", "back to checkpoint-4, learning rate 0.0005 -> 0.00025; steps and data continue"),
        (15, "stop", "done", "training stops"),
    ]
    assert answers(tmp_path / "own") == answers(tmp_path / "theirs")
    assert own == theirs == (15, RATE / 4)
