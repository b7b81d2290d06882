"""Runs for the tests of the pages, made by recording them."""

from __future__ import annotations

import math
from pathlib import Path

import rlvitals
from rlvitals.cli.main import main
from rlvitals.compute import groups
from rlvitals.records import Group, Rollout, ToolCall, Turn

LONG = 5000
SPIKE = 3210
"""The step of the long run with one extreme value."""

LOG = "{'loss': 0.7, 'rewards/margins': 0.1, 'epoch': 0.1}\n{'loss': 0.6, 'rewards/margins': 0.2, 'epoch': 0.2}\n"


def make_runs(folder: Path) -> None:
    agent(folder / "agent")
    long(folder / "long")
    resumed(folder / "resumed")
    log = folder / "trainer.log"
    log.write_text(LOG)
    assert main(["import", str(log), "--to", str(folder / "imported")]) == 0
    log.unlink()


def start(path: Path, **settings):
    quiet = {"display": "none", "hardware": False}
    return rlvitals.start(path, **(quiet | settings))


def agent(path: Path) -> None:
    """Rollouts with tool calls, phases, evaluations, memory."""
    run = start(path, algorithm="grpo")
    for step in (1, 2, 3):
        with run.phase("generate") as phase:
            phase.tokens(100)
        with run.phase("train_step"), run.phase("model_update"):
            pass
        done = groups.advantages([group("capital", step), group("river", step, spread=0.0)])
        run.log_groups(done, step=step)
        memory = {f"memory/train_step/{at}/{kind}/cuda:0": value for at, kind, value in MEMORY}
        run.log({"loss": 1 / step, "reward": step / 3, **memory}, step=step)
        run.log_eval({"accuracy": step / 4, "total_samples": 8}, step=step)
    run.finish()


MEMORY = [
    ("start/offload", "allocated", 1.0), ("start/offload", "reserved", 2.0), ("start/onload", "allocated", 5.0),
    ("start/onload", "reserved", 6.0), ("end/onload", "allocated", 6.0), ("end/onload", "reserved", 8.0),
    ("end/onload", "max_allocated", 7.5), ("end/offload", "allocated", 1.0), ("end/offload", "reserved", 2.0),
]  # fmt: skip


def group(topic: str, step: int, spread: float = 1.0) -> Group:
    def rollout(number: int) -> Rollout:
        call = ToolCall("search", {"query": f"{topic} {number}"}, f"found {topic} page {number}")
        turns = (Turn(f"Looking for the {topic}.", (call,)), Turn(f"The {topic} is number {number} at step {step}."))
        outcome = "correct" if number % 2 else "wrong"
        return Rollout(turns, reward=number * spread, outcome=outcome, stop="answered", reward_parts={"format": 0.25})

    return Group(f"What is the {topic}?", tuple(rollout(number) for number in range(1, 5)), id=topic)


def long(path: Path) -> None:
    """More points than are drawn, one of them far above the others; tokens as another axis."""
    run = start(path, monitor=False)
    for step in range(1, LONG + 1):
        value = 50.0 if step == SPIKE else math.sin(step / 300)
        run.log({"wave": value, "tokens": step * 1000, "steady": 1.0}, step=step)
    run.finish()


def resumed(path: Path) -> None:
    """A resumed run: the last steps of its first attempt are ghosts, with values in the range of the others."""
    run = start(path, monitor=False)
    for step in range(1, 21):
        run.log({"loss": 1.7 if step > 10 else 3.0}, step=step)
    run.finish()
    run = start(path, monitor=False, resume=10)
    for step in range(11, 31):
        run.log({"loss": 0.5}, step=step)
    run.finish()
