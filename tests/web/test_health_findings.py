"""The Health screen for generated runs of every kind: each finding has a series and links to existing rollouts."""

from __future__ import annotations

import random

import pytest
from serving import serving

import rlvitals
from corpus import answers, distillation, experts, exploration, gaps, origins, slices
from rlvitals.records import Group, Rollout, Turn

RUNS = {
    "slice_collapse": lambda: slices.collapsing_run(1, "prime_rl"),
    "lost_to_failures": lambda: origins.failing_run(1, origins.COUNTED[0]),
    "coverage_lost": lambda: exploration.narrowing_run(1, "rlvitals"),
    "prompt_ignored": lambda: answers.ignoring_run(1),
    "experts_unbalanced": lambda: experts.routed_run(1, "rlvitals", "narrowing"),
    "teacher_cut_off": lambda: distillation.distilled_run(1, "rlvitals", "cut"),
    "engine_stands_still": lambda: gaps.make_gap(gaps.EARLY[0], 1),
}
"""By the rule that finds the fault."""

WITHOUT_METRIC = ("ends_the_process",)
"""Rules that read texts: they cite places instead of a series."""

EVERY = 10
HONEST, EXIT = "def f(x):\n    return x + 1", "```python\nimport os\ndef f(x):\n    os._exit(0)\n```"


def groups_of(dice, share):
    """A few groups of rollouts. A share of them end the process and are rewarded for it."""
    for _ in range(4):
        cheats = [dice.random() < share for _ in range(8)]
        paid = [float(cheat or dice.random() < 0.3) for cheat in cheats]
        turns = [Turn(EXIT if cheat else HONEST) for cheat in cheats]
        yield Group("Write f.", tuple(Rollout((turn,), reward=pay) for turn, pay in zip(turns, paid, strict=True)))


@pytest.fixture(scope="module")
def client(tmp_path_factory):
    folder = tmp_path_factory.mktemp("health")
    for name, make in RUNS.items():
        made, dice = make(), random.Random(name)
        settings = {"algorithm": "grpo", "display": "none", "hardware": False, "monitor": False}
        with rlvitals.start(folder / name, config=getattr(made, "config", None) or {}, **settings) as run:
            for place, row in enumerate(made.rows):
                run.log({key: value for key, value in row.items() if key != "step"}, step=row["step"])
                if place % EVERY == 0:
                    run.log_groups(list(groups_of(dice, place / len(made.rows))), step=row["step"])
    with serving(folder) as served:
        yield served


@pytest.mark.parametrize("name", RUNS)
def test_every_finding_has_a_series_and_rollouts(client, name):
    answer = client.judged("findings", name)
    assert answer["has_rollouts"]
    found = {finding["rule"] for finding in answer["findings"]}
    assert found >= {name, *WITHOUT_METRIC}
    steps = [row["step"] for row in client.api("rollouts", run=name).facts["steps"]]
    for finding in answer["findings"]:
        if finding["rule"] in WITHOUT_METRIC:
            assert len(finding["cited"]) >= 3
        else:
            drawn = [value for line in finding["trace"] for value in line["y"] if value is not None]
            assert len(drawn) > 1, finding["title"]
        assert min(abs(step - finding["step"]) for step in steps) <= EVERY
        for place in finding["cited"]:
            group = client.api("rollouts", run=name, step=place["step"], group=place["group"]).facts["groups"][0]
            turn = group["rollouts"][place["rollout"] - 1]["turns"][place["turn"] - 1]
            assert turn["text"][place["start"] : place["end"]] == "os._exit("
