"""The answers that agents get about a large run: size and processor time of each tool's answer.

    python benchmarks/agents.py record FOLDER     # two runs of 100,000 steps and 3,000 metrics, about 40 s
    python benchmarks/agents.py measure FOLDER

30 metrics are logged at every step and 2,970 at every 100th, as slices and evaluations are. Every 10,000 steps have 64
groups of 8 rollouts. One KL of 4.25 at step 77,777 is the extreme value that must not get lost.
"""

from __future__ import annotations

import random
import sys
import time
from pathlib import Path

import rlvitals
from rlvitals.agents.budget import tokens_at_most
from rlvitals.agents.tools import TOOLS, ask
from rlvitals.records import Group, Rollout, Turn
from rlvitals.web.answers import as_json
from rlvitals.web.folder import Folder

STEPS, SPIKE = 100_000, 77_777
RARE = [f"slice/env_{number // 30}/metric_{number % 30}" for number in range(2970)]
NOISE = [random.Random(number).gauss(0, 1) for number in range(10_007)]

QUESTIONS: list[tuple[str, dict[str, object]]] = [
    ("list_runs", {}),
    ("run_summary", {"run": "first"}),
    ("run_summary", {"run": "first", "part": "settings"}),
    ("run_findings", {"run": "first"}),
    ("list_metrics", {"run": "first"}),
    ("series", {"run": "first", "names": ["kl"]}),
    ("series", {"run": "first", "names": ["reward", "kl", "entropy", "loss", "grad_norm"]}),
    ("compare", {"runs": ["first", "second"], "names": ["reward", "kl"]}),
    ("compare", {"runs": ["first", "second"]}),
    ("explain", {"name": "kl", "run": "first"}),
    ("explain", {"name": "reward_hacking"}),
    ("rollouts", {"run": "first"}),
    ("rollouts", {"run": "first", "worst": True}),
    ("rollouts", {"run": "first", "search": "answer text"}),
    ("rollout_text", {"run": "first", "step": 50_000, "group": "3"}),
    ("rollout_diff", {"run": "first", "before": 50_000, "after": 100_000}),
    ("best_checkpoint", {"run": "first"}),
    ("check_log", {"path": "first"}),
]


def noise(place: int) -> float:
    return NOISE[place % len(NOISE)]


def row(step: int) -> dict[str, float]:
    scatter = noise(step)
    values = {
        "reward": 0.2 + 0.5 * min(step, STEPS / 2) / (STEPS / 2) + 0.02 * scatter,
        "kl": 4.25 if step == SPIKE else 0.01 + 0.001 * abs(scatter),
        "entropy": 0.9 - step / 400_000 + 0.01 * scatter,
        "loss": 0.02 + 0.004 * scatter,
        "grad_norm": 0.5 + 0.05 * scatter,
        "completion_length": 200 + 4 * scatter,
        "learning_rate": 1e-6,
    }
    values |= {f"timing/phase_{number}": 1 + 0.1 * noise(step + 31 * number) for number in range(23)}
    return values | ({name: noise(step // 100 + place) for place, name in enumerate(RARE)} if step % 100 == 0 else {})


def groups(step: int) -> list[Group]:
    def rollout(place: int) -> Rollout:
        return Rollout(turns=(Turn("answer text " * 500),), reward=noise(step + place), outcome="wrong", stop="length")

    return [
        Group(prompt=f"prompt {group} {'and words ' * 40}", id=f"p{group}", rollouts=tuple(map(rollout, range(8))))
        for group in range(64)
    ]


def record(folder: Path) -> None:
    for seed, name in enumerate(("first", "second")):
        settings = {"seed": seed} | {f"setting_{number}": number for number in range(300)}
        with rlvitals.start(
            folder / name, algorithm="grpo", total_steps=STEPS, config=settings, display="none", hardware=False
        ) as run:
            for step in range(1, STEPS + 1):
                run.log(row(step), step=step)
                if step % 10_000 == 0:
                    run.log_groups(groups(step), step=step)
                    (folder / name / f"checkpoint-{step}").mkdir()


def measure(root: Path) -> None:
    folder = Folder(root)
    asked: set[str] = set()
    print("| question | bytes | tokens at most | first, CPU | again, CPU |\n|---|---|---|---|---|")
    for tool, given in QUESTIONS:
        seconds = []
        for _ in range(2):
            began = time.process_time()
            answer = ask(folder, tool, given)
            seconds.append(time.process_time() - began)
        text = as_json(answer).decode()
        words = ", ".join(f"{key}={value}" for key, value in given.items() if key not in ("run", "runs"))
        size = f"{len(text.encode()):,} | {tokens_at_most(text):,}"
        print(f"| `{tool}` {words} | {size} | {1000 * seconds[0]:,.0f} ms | {1000 * seconds[1]:,.0f} ms |")
        asked.add(tool)
        if tool == "series" and given["names"] == ["kl"]:
            assert max(answer["lines"][0]["high"]) == 4.25, "the extreme is lost"
    assert asked == set(TOOLS)


if __name__ == "__main__":
    {"record": record, "measure": measure}[sys.argv[1]](Path(sys.argv[2]))
