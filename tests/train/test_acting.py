"""What the doctor asks for is done in a loop of one's own, and answered."""

from __future__ import annotations

import json

import pytest
import torch

import rlvitals
from rlvitals.adapters.learning_rate import cut_learning_rate
from rlvitals.train.acting import carry_out


class Loop:
    """A trainer that logs what it is told to and does what it is asked to."""

    def __init__(self, folder, **settings):
        self.folder = folder
        self.run = rlvitals.start(folder, algorithm="ppo", actions="act", **settings)
        self.optimizer = torch.optim.SGD([torch.nn.Parameter(torch.zeros(1))], lr=1.0)
        self.scheduler = torch.optim.lr_scheduler.LambdaLR(self.optimizer, lambda step: 1.0)
        self.saved, self.reverted, self.stopped_at = [], [], None

    def go(self, rows):
        for step, row in enumerate(rows, 1):
            self.step = step
            self.run.log(row, step=step)
            stop = carry_out(
                self.run, optimizer=self.optimizer, scheduler=self.scheduler, save=self.save, revert=self.revert
            )
            self.optimizer.step()
            self.scheduler.step()
            if stop:
                self.stopped_at = step
                break
        self.run.finish()
        return self

    def save(self):
        self.saved.append(self.step)
        path = self.folder / f"checkpoint-{self.step}"
        path.mkdir()
        return path

    def revert(self, place):
        self.reverted.append(place.name)
        return place if place.is_dir() else None

    @property
    def answers(self):
        lines = (self.folder / "logs" / "findings.jsonl").read_text().splitlines()
        events = [json.loads(line) for line in lines]
        return [
            (e["action"], e["answer"], e["text"]) for e in events if e["type"] == "answer" and e["action"] != "warn"
        ]


def own_rule(action):
    """Says critical when the gauge is high, and asks for an action."""
    return {"rule": "gauge", "kind": "reward_collapse", "when": "gauge > 5", "severity": "critical", "warm_up": 3,
            "hold": "2 of 2", "title": "the gauge is high", "action_critical": action}  # fmt: skip


def gauge(*numbers):
    return [{"gauge": number, "loss": 1.0 / (step + 1)} for step, number in enumerate(numbers)]


def test_a_dead_gradient_stops_the_loop(tmp_path):
    rows = [{"loss": 0.5, "actor/grad_norm": 0.0, "reward": 0.1 * (step % 3)} for step in range(40)]
    loop = Loop(tmp_path).go(rows)
    assert loop.stopped_at is not None
    assert ("stop", "done", "stopped") in loop.answers


def test_a_healthy_loop_is_left_alone(tmp_path):
    generator = torch.Generator().manual_seed(0)
    noise = torch.randn(60, generator=generator)
    rows = [
        {"loss": 0.5 - 0.004 * step, "actor/grad_norm": 1.0 + 0.1 * abs(n), "reward": 0.2 + 0.01 * step + 0.02 * n}
        for step, n in enumerate(noise.tolist())
    ]
    loop = Loop(tmp_path).go(rows)
    assert (loop.stopped_at, loop.saved, loop.reverted) == (None, [], [])
    assert loop.optimizer.param_groups[0]["lr"] == 1.0


def test_the_rate_is_halved_and_the_scheduler_keeps_it(tmp_path):
    loop = Loop(tmp_path, rules=[own_rule("reduce_lr")]).go(gauge(1, 1, 1, 1, 9, 9, 9, 9))
    assert loop.answers == [("reduce_lr", "done", "lr 1 -> 0.5")]
    assert loop.scheduler.get_last_lr() == [0.5]
    assert loop.optimizer.param_groups[0]["lr"] == 0.5


def test_a_checkpoint_is_saved_when_it_is_asked_for(tmp_path):
    loop = Loop(tmp_path, rules=[own_rule("checkpoint")]).go(gauge(1, 1, 1, 1, 9, 9, 9, 9))
    assert loop.saved == [6]
    assert loop.answers == [("checkpoint", "done", "saved checkpoint-6")]


def test_the_loop_goes_back_to_the_checkpoint_before_the_onset(tmp_path):
    for step in (1, 3, 8):
        (tmp_path / f"checkpoint-{step}").mkdir()
    loop = Loop(tmp_path, rules=[own_rule("revert")]).go(gauge(1, 1, 1, 1, 9, 9, 9, 9))
    assert loop.reverted == ["checkpoint-3"]
    assert loop.answers == [("revert", "done", "back to checkpoint-3")]
    assert loop.stopped_at is None


def test_a_checkpoint_that_is_gone_is_declined(tmp_path):
    (tmp_path / "checkpoint-1").mkdir()
    loop = Loop(tmp_path, rules=[own_rule("revert")])
    loop.revert = lambda place: None
    loop.go(gauge(1, 1, 1, 1, 9, 9, 9, 9))
    assert loop.answers == [("revert", "declined", "the checkpoint is gone")]


@pytest.mark.parametrize("decay", [lambda step: 1.0, lambda step: 0.9**step])
def test_a_cut_holds_after_a_resume(decay):
    def build():
        optimizer = torch.optim.AdamW([torch.nn.Parameter(torch.zeros(1))], lr=2.0)
        return optimizer, torch.optim.lr_scheduler.LambdaLR(optimizer, decay)

    optimizer, scheduler = build()
    optimizer.step()
    scheduler.step()
    assert cut_learning_rate(optimizer, scheduler, 0.5) == (2.0 * decay(1), decay(1))
    kept = optimizer.state_dict(), scheduler.state_dict()
    optimizer, scheduler = build()
    optimizer.load_state_dict(kept[0])
    scheduler.load_state_dict(kept[1])
    optimizer.step()
    scheduler.step()
    assert optimizer.param_groups[0]["lr"] == pytest.approx(decay(2))
