"""An environment that collapses while the mean stays flat is named; the health log keeps the alarms of slices apart."""

from __future__ import annotations

import math
import random

import pytest

from corpus import slices
from rlvitals.health.history import History, recovery, verdict_of
from rlvitals.health.monitor import Monitor
from rlvitals.health.slices import MOST_JUDGED
from rlvitals.records import Finding, HealthEvent

ENVS = ("math", "code", "search", "sudoku")
STEPS, BROKEN_AT = 120, 60


def rows(broken=(), *, back=None, name="reward/env={}", envs=ENVS, every=1, whole=True):
    """Rewards of some environments that learn. Each broken one earns nothing from its step on (BROKEN_AT by default)
    until its step in `back`. The others compensate for it in the mean.
    """
    noise = random.Random(5)
    since = broken if isinstance(broken, dict) else dict.fromkeys(broken, BROKEN_AT)
    for step in range(1, STEPS + 1):
        row = {"step": step, "loss": noise.gauss(0.02, 0.004)}
        down = [env for env, at in since.items() if at < step < (back or {}).get(env, STEPS + 1)]
        values = {}
        for place, env in enumerate(envs):
            value = 0.3 + 0.05 * (place % 5) + 0.002 * step + noise.gauss(0, 0.05)
            value = abs(noise.gauss(0, 0.01)) if env in down else value + 0.4 * len(down) / len(envs)
            values[name.format(env)] = value
        if whole:
            row["reward"] = sum(values.values()) / len(values)
        yield row | (values if step % every == 0 else {})


def judged(some, **facts):
    monitor = Monitor("grpo", **facts)
    events = []
    for row in some:
        monitor.update(row)
        events += monitor.events
    assert monitor.problems == {}
    return monitor, events


def of_slices(monitor):
    return [finding for finding in monitor.findings if finding.slice]


def test_a_collapsed_environment_is_named_with_its_own_metric():
    monitor, _ = judged(rows(["code"]))
    (found,) = of_slices(monitor)
    assert (found.rule, found.slice, found.severity) == ("slice_collapse", "env=code", "warning")
    assert found.metrics == ("reward/env=code",)
    assert found.title.startswith("env=code has collapsed")
    assert BROKEN_AT < found.step <= BROKEN_AT + 20
    assert BROKEN_AT - 5 <= found.onset_step <= BROKEN_AT + 5
    assert monitor.verdict == "watch"
    assert not any(finding.kind == "reward_collapse" for finding in monitor.findings if not finding.slice)


def test_it_is_named_where_only_slices_are_logged():
    monitor, _ = judged(rows(["code"], whole=False))
    assert [found.slice for found in of_slices(monitor)] == ["env=code"]


def test_environments_that_hold_are_not_reported():
    monitor, _ = judged(rows())
    assert of_slices(monitor) == []


def test_a_fall_of_all_environments_is_the_runs_and_not_a_slices():
    monitor, _ = judged(rows(ENVS))
    assert of_slices(monitor) == []
    assert any(found.kind in ("reward_collapse", "reward_floor") for found in monitor.findings)


def test_two_slices_are_two_alarms_that_recover_by_themselves():
    monitor, events = judged(rows(["code", "math"], back={"math": 90}))
    raised = [event.finding.slice for event in events if event.type == "raised" and event.finding.slice]
    assert sorted(raised) == ["env=code", "env=math"]
    over = [event.facts["slice"] for event in events if event.type == "recovered" and event.rule == "slice_collapse"]
    assert over == ["env=math"]
    standing = {found.slice: found.recovered_step is None for found in of_slices(monitor)}
    assert standing == {"env=code": True, "env=math": False}


def test_most_slices_one_after_the_other_are_critical():
    monitor, _ = judged(rows({"code": 30, "math": 60, "search": 90}))
    reported = [(found.slice, found.severity) for found in of_slices(monitor)]
    assert reported[:2] == [("env=code", "warning"), ("env=math", "warning")]
    assert ("env=search", "critical") in reported


def test_evaluations_of_few_points_are_judged_too():
    monitor, _ = judged(rows(["code"], name="val-core/{}/acc/mean@8", every=10, whole=False))
    (found,) = of_slices(monitor)
    assert found.slice == "source=code"
    assert found.step <= BROKEN_AT + 30


def test_one_slice_is_the_whole_and_no_slice():
    monitor, _ = judged(rows(["code"], envs=("code",), whole=False))
    assert of_slices(monitor) == []
    assert any(found.kind in ("reward_collapse", "reward_floor") for found in monitor.findings)


def test_a_missing_slice_is_no_alarm():
    monitor, _ = judged(row | {"reward/env=code": math.nan} if row["step"] > 60 else row for row in rows())
    assert of_slices(monitor) == []


def test_the_better_spelling_of_a_division_is_read_once():
    """prime-rl logs the reward over all rollouts and over the effective ones."""
    both = (
        row | {f"train/{env}/effective/solver/reward/mean": row[f"train/{env}/all/solver/reward/mean"] for env in ENVS}
        | {"train/other/effective/solver/reward/mean": row["train/code/all/solver/reward/mean"]}
        for row in rows(["code"], name="train/{}/all/solver/reward/mean", whole=False)
    )  # fmt: skip
    monitor, _ = judged(both, framework="prime_rl")
    assert [(found.slice, found.metrics) for found in of_slices(monitor)] == [
        ("env=code,agent=solver", ("train/code/all/solver/reward/mean",))
    ]


def test_slices_beyond_the_most_are_left_alone():
    envs = [f"e{number:03}" for number in range(MOST_JUDGED + 10)]
    monitor, _ = judged(rows([envs[-1]], envs=envs))
    assert len(monitor.case.slices.judged) == MOST_JUDGED
    assert of_slices(monitor) == []


def test_a_second_run_in_the_log_starts_its_slices_again():
    first, second = list(rows(["code"])), list(rows())
    monitor, events = judged([*first, *second])
    assert [event.facts["slice"] for event in events if event.type == "recovered" and "slice" in event.facts] == [
        "env=code"
    ]
    assert monitor.verdict != "watch" or all(found.recovered_step for found in of_slices(monitor))


def test_history_keeps_slices_apart():
    def finding(label, step=10):
        return Finding("slice_collapse", "reward_collapse", "warning", step, step, f"{label} fell", slice=label)

    history = History()
    for label in ("env=a", "env=b", ""):
        history.take(HealthEvent("raised", 10, finding=finding(label)))
    assert set(history.standing) == {"slice_collapse[env=a]", "slice_collapse[env=b]", "slice_collapse"}
    history.take(recovery(finding("env=a"), 30))
    assert {found.slice: found.recovered_step for found in history.findings} == {"env=a": 30, "env=b": None, "": None}
    assert verdict_of(history.findings, 40)[1].startswith("3 warnings; first: reward collapse of env=a")


@pytest.mark.parametrize("framework", slices.SPELLINGS)
def test_generated_runs_are_named(framework):
    """benchmarks/doctor_depth.py measures the shares. Here two of three runs of each framework must be named."""
    hits = 0
    for seed in (701, 702, 703):
        run = slices.collapsing_run(seed, framework)
        monitor = Monitor("grpo")
        reported = [(at, found) for at, row in enumerate(run.rows) for found in monitor.update(row)]
        hits += any(found.slice == run.label and at <= run.deadline for at, found in reported)
    assert hits >= 2


def test_twenty_healthy_slices_are_quiet_in_generated_runs():
    loud = []
    for framework in slices.SPELLINGS:
        for seed in range(720, 724):
            monitor = Monitor("grpo")
            for row in slices.healthy_run(seed, framework).rows:
                monitor.update(row)
            loud += [(framework, seed)] if of_slices(monitor) else []
    assert len(loud) <= 1, loud


def test_a_metric_in_the_place_of_a_label_is_no_slice():
    """Stable-Baselines logs eval/mean_reward and eval/mean_ep_length. In slime these would be two data sets."""
    named = {"eval/code": "eval/mean_reward", "eval/math": "eval/mean_ep_length"}
    some = (
        {named.get(name, name): value for name, value in row.items()}
        for row in rows(["code"], name="eval/{}", envs=("code", "math"), whole=False)
    )
    monitor, _ = judged(some)
    assert of_slices(monitor) == []
