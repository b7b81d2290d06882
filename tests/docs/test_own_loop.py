"""The loop in the README runs as printed, with a trainer whose loss explodes for three steps."""

from __future__ import annotations

import json
import re
from types import SimpleNamespace

import pytest
import torch

from conftest import REPO


def block(page, marker):
    """The Python block of a page that contains the marker."""
    blocks = re.findall(r"```python\n(.*?)```", (REPO / page).read_text(), re.DOTALL)
    (found,) = [text for text in blocks if marker in text]
    return found


class Trainer:
    """Provides the names that the loop uses. Its weight counts the training steps."""

    def __init__(self, folder):
        self.folder, self.step = folder, 0
        self.weight = torch.nn.Parameter(torch.zeros(1))
        self.optimizer = torch.optim.AdamW([self.weight], lr=1e-3)
        self.scheduler = torch.optim.lr_scheduler.LambdaLR(self.optimizer, lambda step: 1.0)

    def train_step(self, batch):
        self.step += 1
        self.weight.data += 1.0
        self.optimizer.step()
        self.scheduler.step()
        if self.step % 10 == 0:
            self.save_checkpoint()
        return (9.0 if self.step in (24, 25, 26) else 0.5 / self.step), SimpleNamespace(margin=0.01 * self.step)

    def save_checkpoint(self):
        place = self.folder / f"checkpoint-{self.step}"
        place.mkdir(parents=True, exist_ok=True)
        torch.save((self.weight.data.clone(), self.optimizer.state_dict()), place / "state.pt")
        return place

    def load_checkpoint(self, place):
        weight, optimizer = torch.load(place / "state.pt", weights_only=True)
        self.weight.data.copy_(weight)
        self.optimizer.load_state_dict(optimizer)


@pytest.mark.parametrize("action", ["stop", "checkpoint", "reduce_lr", "revert"])
def test_the_loop_of_the_readme_does_what_it_is_asked_to(tmp_path, monkeypatch, action):
    monkeypatch.chdir(tmp_path)
    rule = {"rule": "mine", "kind": "instability", "when": "loss > 5", "severity": "critical", "warm_up": 1,
            "hold": "2 of 2", "certain": True, "title": "the loss is high", "action_critical": action}  # fmt: skip
    (tmp_path / "run.yaml").write_text(json.dumps({"rlvitals": {"rules": [rule], "hardware": False}}))
    trainer = Trainer(tmp_path / "out/kto")
    names = {
        "optimizer": trainer.optimizer, "scheduler": trainer.scheduler, "save_checkpoint": trainer.save_checkpoint,
        "load_checkpoint": trainer.load_checkpoint, "train_step": trainer.train_step, "loader": range(60),
        "evaluate": lambda: {"accuracy": 0.5},
    }  # fmt: skip
    exec(compile(block("README.md", "actions.carry_out()"), "README.md", "exec"), names)
    lines = [json.loads(line) for line in (tmp_path / "out/kto/logs/findings.jsonl").read_text().splitlines()]
    answers = [(line["action"], line["answer"], line["text"]) for line in lines if line["type"] == "answer"]
    texts = {
        "stop": "training stops",
        "checkpoint": "saved checkpoint-25",
        "reduce_lr": "learning rate 0.001 -> 0.0005",
        "revert": "back to checkpoint-20, learning rate 0.001 -> 0.0005; steps and data continue",
    }
    assert answers == [(action, "done", texts[action])]
    assert trainer.step == (25 if action == "stop" else 60)
    assert trainer.weight.item() == {"stop": 25.0, "revert": 20.0 + 35.0}.get(action, 60.0)
    assert trainer.scheduler.get_last_lr() == [1e-3 if action in ("stop", "checkpoint") else 5e-4]
