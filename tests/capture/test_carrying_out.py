"""`rlvitals.Actions` in a hand-written loop. Every rank carries out the doctor's requests by the same policy, and each
request is answered. A request that cannot be carried out is declined with the reason. Nothing raises.
"""

from __future__ import annotations

import json
import subprocess
import sys
import time
from types import SimpleNamespace

import pytest
import torch

import rlvitals
from conftest import free_port
from rlvitals.capture.actions import scale_learning_rate


class Loop:
    """A trainer that logs the given rows, saves every `save_steps` steps and carries out requests."""

    def __init__(self, folder, *, save_steps=0, without=(), **settings):
        self.folder, self.save_steps = folder, save_steps
        self.run = rlvitals.start(folder, algorithm="ppo", actions="act", hardware=False, **settings)
        self.optimizer = torch.optim.SGD([torch.nn.Parameter(torch.zeros(1))], lr=1.0)
        self.scheduler = torch.optim.lr_scheduler.LambdaLR(self.optimizer, lambda step: 1.0)
        given = {"optimizer": self.optimizer, "scheduler": self.scheduler, "save": self.save, "load": self.load}
        self.actions = rlvitals.Actions(self.run, **{name: it for name, it in given.items() if name not in without})
        self.saved, self.loaded, self.stopped_at, self.step = [], [], None, 0

    def go(self, rows, after=0):
        for self.step, row in enumerate(rows, after + 1):
            self.run.log(row, step=self.step)
            if self.save_steps and self.step % self.save_steps == 0:
                self.save()
            stop = self.actions.carry_out()
            self.optimizer.step()
            self.scheduler.step()
            if stop:
                self.stopped_at = self.step
                break
        self.run.finish()
        return self

    def save(self):
        self.saved.append(self.step)
        path = self.folder / f"checkpoint-{self.step}"
        path.mkdir()
        return path

    def load(self, place):
        if not place.is_dir():
            raise FileNotFoundError(f"{place.name} is gone")
        self.loaded.append(place.name)

    @property
    def answers(self):
        return answers(self.folder)


def answers(folder):
    lines = [json.loads(line) for line in (folder / "logs" / "findings.jsonl").read_text().splitlines()]
    return [(e["action"], e["answer"], e["text"]) for e in lines if e["type"] == "answer" and e["action"] != "warn"]


def own_rule(action, name="gauge"):
    """A rule that raises a critical finding when the gauge is high, and requests an action."""
    return {"rule": name, "kind": "reward_collapse", "when": f"{name} > 5", "severity": "critical", "warm_up": 3,
            "hold": "2 of 2", "title": f"the {name} is high", "action_critical": action}  # fmt: skip


def gauge(*numbers):
    return [{"gauge": number, "loss": 1.0 / (step + 1)} for step, number in enumerate(numbers)]


HIGH = gauge(1, 1, 1, 1, 9, 9, 9, 9)
"""The onset is step 5, the request comes at step 6."""


def test_a_dead_gradient_stops_the_loop(tmp_path):
    rows = [{"loss": 0.5, "actor/grad_norm": 0.0, "reward": 0.1 * (step % 3)} for step in range(40)]
    loop = Loop(tmp_path).go(rows)
    assert loop.stopped_at is not None
    assert ("stop", "done", "training stops") in loop.answers


def test_a_healthy_loop_is_left_alone(tmp_path):
    generator = torch.Generator().manual_seed(0)
    noise = torch.randn(60, generator=generator)
    rows = [
        {"loss": 0.5 - 0.004 * step, "actor/grad_norm": 1.0 + 0.1 * abs(n), "reward": 0.2 + 0.01 * step + 0.02 * n}
        for step, n in enumerate(noise.tolist())
    ]
    loop = Loop(tmp_path).go(rows)
    assert (loop.stopped_at, loop.saved, loop.loaded) == (None, [], [])
    assert loop.optimizer.param_groups[0]["lr"] == 1.0


def test_the_rate_is_halved_and_the_scheduler_keeps_it(tmp_path):
    loop = Loop(tmp_path, rules=[own_rule("reduce_lr")]).go(HIGH)
    assert loop.answers == [("reduce_lr", "done", "learning rate 1 -> 0.5")]
    assert loop.scheduler.get_last_lr() == [0.5]
    assert loop.optimizer.param_groups[0]["lr"] == 0.5


def test_a_checkpoint_is_saved_when_it_is_asked_for(tmp_path):
    loop = Loop(tmp_path, rules=[own_rule("checkpoint")]).go(HIGH)
    assert loop.saved == [6]
    assert loop.answers == [("checkpoint", "done", "saved checkpoint-6")]


@pytest.mark.parametrize(
    ("saves", "answer"), [(True, ("done", "saved checkpoint-7")), (False, ("declined", "the trainer has not saved"))]
)
def test_a_trainer_that_saves_later_answers_then(tmp_path, saves, answer):
    loop = Loop(tmp_path, rules=[own_rule("checkpoint")])
    asked = []

    def save():
        asked.append(loop.step)
        if saves:
            loop.run.log = lambda row, *, step, log=loop.run.log: (
                log(row, step=step),
                loop.actions.saved("checkpoint-7"),
            )

    loop.actions.controls = SimpleNamespace(save=save)
    assert loop.go(HIGH).answers == [("checkpoint", *answer)]
    assert asked == [6]


def test_the_loop_goes_back_to_the_checkpoint_before_the_onset_at_half_the_rate(tmp_path):
    for step in (1, 4, 5, 8):
        (tmp_path / f"checkpoint-{step}").mkdir()
    loop = Loop(tmp_path, rules=[own_rule("revert")]).go(HIGH)
    assert loop.loaded == ["checkpoint-4"]
    assert loop.answers == [("revert", "done", "back to checkpoint-4, learning rate 1 -> 0.5; steps and data continue")]
    assert loop.stopped_at is None
    assert loop.scheduler.get_last_lr() == [0.5]


# What cannot be done


@pytest.mark.parametrize(
    ("missing", "action"), [("save", "checkpoint"), ("load", "revert"), ("optimizer", "reduce_lr")]
)
def test_what_the_loop_does_not_offer_is_declined_and_training_goes_on(tmp_path, missing, action):
    (tmp_path / "checkpoint-1").mkdir()
    loop = Loop(tmp_path, rules=[own_rule(action)], without=[missing]).go(HIGH)
    assert loop.answers == [(action, "declined", f"rlvitals.Actions was given no `{missing}`")]
    assert (loop.stopped_at, loop.step) == (None, 8)


def test_without_an_optimizer_the_loop_goes_back_and_says_that_the_rate_is_the_same(tmp_path):
    (tmp_path / "checkpoint-1").mkdir()
    loop = Loop(tmp_path, rules=[own_rule("revert")], without=["optimizer", "scheduler"]).go(HIGH)
    ((_, answer, text),) = loop.answers
    assert (answer, loop.loaded) == ("done", ["checkpoint-1"])
    assert "the learning rate stays the same (rlvitals.Actions was given no `optimizer`)" in text


def test_a_save_that_fails_is_declined_and_does_not_raise(tmp_path):
    class Full(Loop):
        def save(self):
            raise OSError("the disk is full")

    loop = Full(tmp_path, rules=[own_rule("checkpoint")]).go(HIGH)
    assert loop.answers == [("checkpoint", "declined", "OSError: the disk is full")]
    assert loop.stopped_at is None


def test_a_revert_that_fails_stops_the_loop_because_its_weights_may_be_half_loaded(tmp_path):
    class Other(Loop):
        def load(self, place):
            raise RuntimeError("size mismatch")

    (tmp_path / "checkpoint-1").mkdir()
    loop = Other(tmp_path, rules=[own_rule("revert")]).go(HIGH)
    text = "training stops: it cannot revert to checkpoint-1: RuntimeError: size mismatch"
    assert loop.answers == [("revert", "declined", text)]
    assert loop.stopped_at == 6


def test_a_run_that_cannot_be_asked_is_reported_once_and_raises_nothing(caplog):
    class Broken:
        def request(self, *, everywhere):
            raise OSError("no recorder")

    actions = rlvitals.Actions(Broken())
    assert [actions.carry_out() for _ in range(3)] == [False] * 3
    assert [record.message for record in caplog.records] == [
        "the doctor's requests cannot be read: OSError: no recorder"
    ]


def test_without_a_run_or_leave_to_act_nothing_is_done(tmp_path):
    assert rlvitals.Actions(None).carry_out() is False
    with rlvitals.start(tmp_path, hardware=False, rules=[{**own_rule("stop"), "certain": True}]) as run:
        actions = rlvitals.Actions(run)
        for step, row in enumerate(HIGH, 1):
            run.log(row, step=step)
            assert not actions.carry_out()
        assert "gauge" in {finding.rule for finding in run.findings}


# The rates around a checkpoint


@pytest.mark.parametrize("rate", [2.0, torch.tensor(2.0)], ids=["float", "tensor"])
def test_loading_a_checkpoint_does_not_bring_its_learning_rate_back(tmp_path, rate):
    """The checkpoint is older than a learning rate cut. With its rate, the second revert would repeat the first one."""
    weight = torch.nn.Parameter(torch.zeros(1))
    optimizer = torch.optim.AdamW([weight], lr=rate, betas=(0.8, 0.9))
    scheduler = torch.optim.lr_scheduler.LambdaLR(optimizer, lambda step: 0.5**step)
    torch.save(optimizer.state_dict(), tmp_path / "optimizer.pt")

    def load(place):
        optimizer.load_state_dict(torch.load(tmp_path / "optimizer.pt", weights_only=True))
        scheduler.base_lrs = [2.0]

    controls = rlvitals.Actions(None, optimizer, scheduler, load=load).controls
    for expected in (1.0, 0.5, 0.25):
        controls.revert(tmp_path)
        controls.scale_rate(0.5)
        assert float(optimizer.param_groups[0]["lr"]) == pytest.approx(expected)
        assert float(scheduler.base_lrs[0]) == pytest.approx(expected)
    optimizer.step()
    scheduler.step()
    assert float(optimizer.param_groups[0]["lr"]) == pytest.approx(0.125)


@pytest.mark.parametrize("decay", [lambda step: 1.0, lambda step: 0.9**step])
def test_a_cut_holds_after_a_resume(decay):
    def build():
        optimizer = torch.optim.AdamW([torch.nn.Parameter(torch.zeros(1))], lr=2.0)
        return optimizer, torch.optim.lr_scheduler.LambdaLR(optimizer, decay)

    optimizer, scheduler = build()
    optimizer.step()
    scheduler.step()
    assert scale_learning_rate(optimizer, scheduler, 0.5) == (2.0 * decay(1), decay(1))
    kept = optimizer.state_dict(), scheduler.state_dict()
    optimizer, scheduler = build()
    optimizer.load_state_dict(kept[0])
    scheduler.load_state_dict(kept[1])
    optimizer.step()
    scheduler.step()
    assert optimizer.param_groups[0]["lr"] == pytest.approx(decay(2))


# Reverts after a resume


def alarms(first, last, *, high):
    """Rows in which the named gauges are high at the given steps."""
    return [{"loss": 1.0 / step, **{name: 9.0 if step in at else 1.0 for name, at in high.items()}}
            for step in range(first, last + 1)]  # fmt: skip


RULES = [own_rule("revert", name) for name in ("one", "two", "three")]
HIGHS = {"one": (6, 7), "two": (12, 13), "three": (18, 19)}


def test_reverts_and_the_checkpoints_they_spoil_are_remembered_after_a_resume(tmp_path):
    """6 is the first onset and 7 the last step of the abandoned stretch: neither checkpoint is restored."""
    first = Loop(tmp_path, rules=RULES, save_steps=1)
    first.go(alarms(1, 9, high=HIGHS))
    assert first.loaded == ["checkpoint-5"]
    for step in (8, 9):  # the checkpoints of the abandoned stretch are now the newest
        (tmp_path / f"checkpoint-{step}").rmdir()
    second = Loop(tmp_path, rules=RULES, resume=9)
    second.run.log(alarms(10, 10, high=HIGHS)[0], step=10)
    assert second.run.findings is not None  # waits until the earlier rows are read
    second.go(alarms(11, 16, high=HIGHS), after=10)
    assert second.loaded == ["checkpoint-5"]
    third = Loop(tmp_path, rules=RULES, resume=16)
    third.run.log(alarms(17, 17, high=HIGHS)[0], step=17)
    assert third.run.findings is not None
    third.go(alarms(18, 24, high=HIGHS), after=17)
    assert (third.loaded, third.stopped_at) == ([], 19)
    assert [answer[:2] for answer in answers(tmp_path)] == [("revert", "done"), ("revert", "done"), ("stop", "done")]


def test_a_checkpoint_saved_again_after_a_resume_is_good_again(tmp_path):
    """The run resumes before the abandoned stretch: steps 6 and 7 are trained and saved a second time."""
    Loop(tmp_path, rules=RULES, save_steps=1).go(alarms(1, 8, high=HIGHS))
    for path in tmp_path.glob("checkpoint-[678]"):
        path.rmdir()
    time.sleep(0.01)
    again = Loop(tmp_path, rules=RULES, resume=5)
    again.save_steps = 1
    again.step = 6
    again.run.log(alarms(6, 6, high={"two": (), "one": (), "three": ()})[0], step=6)
    again.save()
    assert again.run.findings is not None
    again.go(alarms(7, 9, high={"one": (), "two": (8, 9), "three": ()}), after=6)
    assert again.loaded == ["checkpoint-7"]


# Several ranks

RANKS = """
import json, sys, torch, torch.distributed as dist, rlvitals
rank = int(sys.argv[1])
dist.init_process_group("gloo", init_method="tcp://127.0.0.1:{port}", rank=rank, world_size=2)
sent, broadcast = [], dist.broadcast_object_list
dist.broadcast_object_list = lambda *given, **more: (sent.append(1), broadcast(*given, **more))[1]
rule = {{"rule": "gauge", "kind": "reward_collapse", "when": "gauge > 5", "severity": "critical", "warm_up": 3,
         "hold": "2 of 2", "title": "the gauge is high", "action_critical": "revert"}}

def train(case):
    run = None
    if rank == 0:
        may = "advise" if case == "advise" else "act"
        run = rlvitals.start({folder!r} + "/" + case, algorithm="ppo", actions=may, rules=[rule], hardware=False)
    optimizer = torch.optim.SGD([torch.nn.Parameter(torch.zeros(1))], lr=1.0)
    def load(place):
        if case == "broken" and rank == 1:
            raise OSError("not on this node")
    given = {{}} if case == "missing" and rank == 1 else {{"load": load}}
    actions = rlvitals.Actions(run, optimizer, **given)
    sent.clear()
    for step in range(1, 11):
        if run is not None:
            run.log({{"gauge": 9.0 if step > 4 else 1.0, "loss": 1.0 / step}}, step=step)
        if actions.carry_out():
            break
    if run is not None:
        run.finish()
    return [step, optimizer.param_groups[0]["lr"], len(sent)]

print(json.dumps({{case: train(case) for case in {cases!r}}}))
dist.destroy_process_group()
"""

CASES = {
    "whole": ((10, 11), "done", "back to checkpoint-2, learning rate 1 -> 0.5"),
    "broken": ((6, 7), "declined", "training stops: it cannot revert to checkpoint-2: OSError: not on this node"),
    "missing": ((6, 7), "declined", "training stops: rank 1 did not revert: rlvitals.Actions was given no `load`"),
    "advise": ((10, 1), None, ""),
}
"""For each case: the last step and the number of broadcasts, the answer, and the start of its text."""


@pytest.mark.slow
def test_all_ranks_do_the_same_and_a_revert_that_fails_on_one_has_failed_on_all(tmp_path):
    """Only rank 0 has a run. One broadcast at the start and one per step; only the first with `actions="advise"`."""
    for case in CASES:
        (tmp_path / case / "checkpoint-2").mkdir(parents=True)
    code = RANKS.format(port=free_port(), folder=str(tmp_path), cases=list(CASES))
    ranks = [
        subprocess.Popen([sys.executable, "-c", code, str(rank)], stdout=subprocess.PIPE, text=True) for rank in (0, 1)
    ]
    first, second = (json.loads(rank.communicate(timeout=120)[0].strip().splitlines()[-1]) for rank in ranks)
    for case, (expected, answer, begins) in CASES.items():
        assert (first[case][0], first[case][2]) == (second[case][0], second[case][2]) == expected, case
        recorded = answers(tmp_path / case) if answer else []
        assert [each[:2] for each in recorded] == ([("revert", answer)] if answer else [])
        assert all(text.startswith(begins) for _, _, text in recorded)
    assert first["whole"][1] == second["whole"][1] == 0.5
