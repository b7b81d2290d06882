"""The history built from health events: findings with their recovery, requests, and the verdict."""

from __future__ import annotations

import math
from dataclasses import replace

import pytest

from rlvitals.health.history import FEW_ROWS, GONE, History, reads_metrics, verdict_of, with_stop
from rlvitals.health.monitor import CLEAR_POINTS, Monitor
from rlvitals.records import Finding, HealthEvent

WARNING = Finding("kl_high", "kl_explosion", "warning", 20, 12, "KL is high")
CRITICAL = replace(WARNING, severity="critical", step=30)


def raised(finding, kind="raised", **more):
    return HealthEvent(kind, finding.step, finding=finding, **more)


def recovered(rule, step, **more):
    return HealthEvent("recovered", step, facts={"rule": rule}, **more)


def test_an_alarm_that_escalates_and_recovers_closes_both_of_its_findings():
    history = History([raised(WARNING), raised(CRITICAL, "escalated")])
    assert history.standing == {"kl_high": "critical"}
    history.take(recovered("kl_high", 70))
    assert [finding.recovered_step for finding in history.findings] == [70, 70]
    assert history.standing == {}


def test_an_alarm_that_comes_again_is_another_finding():
    again = replace(WARNING, step=90)
    history = History([raised(WARNING), recovered("kl_high", 70), raised(again)])
    assert [(finding.step, finding.recovered_step) for finding in history.findings] == [(20, 70), (90, None)]
    assert history.standing == {"kl_high": "warning"}


def test_a_recovery_of_a_rule_that_was_never_raised_changes_nothing():
    history = History([raised(WARNING), recovered("other", 70)])
    assert history.findings == [WARNING]


def test_an_epoch_s_rule_is_not_that_of_the_rows():
    history = History([raised(WARNING), raised(CRITICAL, seen_in="epochs"), recovered("kl_high", 50, seen_in="epochs")])
    assert [finding.recovered_step for finding in history.findings] == [None, 50]


def test_of_very_many_findings_the_newest_are_kept():
    history = History((raised(replace(WARNING, rule=f"rule {step}", step=step)) for step in range(8)), most=5)
    assert [finding.step for finding in history.findings] == [3, 4, 5, 6, 7]
    assert set(history.standing) == {f"rule {step}" for step in range(3, 8)}
    history.take(recovered("rule 0", 9))
    history.take(recovered("rule 4", 9))
    assert [finding.recovered_step for finding in history.findings] == [None, 9, None, None, None]


@pytest.mark.parametrize(
    ("findings", "rows", "verdict", "reason"),
    [
        ([], FEW_ROWS, "healthy", "nothing to act on up to step 1,200"),
        ([], FEW_ROWS - 1, "cannot judge", "7 rows: a verdict needs at least 8"),
        ([replace(WARNING, severity="info")], 50, "healthy", "nothing to act on up to step 1,200"),
        ([WARNING], 50, "watch", "1 warning; first: kl explosion, since step 12"),
        ([WARNING, CRITICAL], 3, "act", "1 critical finding; first: kl explosion, since step 12"),
        (
            [replace(WARNING, rule="late", kind="drift", step=40, onset_step=2), WARNING, replace(WARNING, slice="a")],
            50,
            "watch",
            "3 warnings; first: kl explosion, since step 12",
        ),
        (
            [replace(WARNING, rule="steps_repeated", kind="data")],
            50,
            "healthy",
            "nothing to act on up to step 1,200 (1 warning; first: data, since step 12)",
        ),
        (
            [replace(WARNING, rule="recomputed_loss_scale", kind="data")],
            50,
            "watch",
            "1 warning; first: data, since step 12",
        ),
        (
            [replace(WARNING, recovered_step=60)],
            50,
            "healthy",
            "nothing to act on up to step 1,200 (1 warning; first: kl explosion, since step 12; all recovered)",
        ),
        (
            [replace(CRITICAL, recovered_step=60)],
            50,
            "healthy",
            "nothing to act on up to step 1,200 "
            "(1 critical finding; first: kl explosion, since step 12; all recovered)",
        ),
    ],
)
def test_the_verdict_and_its_reason(findings, rows, verdict, reason):
    assert verdict_of(findings, rows, 1200) == (verdict, reason)


@pytest.mark.parametrize(
    ("states", "expected"),
    [({1: False}, False), ({1: True, 2: False}, True), ({1: False, 2: None}, False), ({}, True)],
)  # fmt: skip
def test_which_rules_read_the_metrics_of_a_run(states, expected):
    events = [HealthEvent("monitor", 1, attempt=attempt, facts={"reads_metrics": state} if state is not None else {})
              for attempt, state in states.items()]  # fmt: skip
    assert reads_metrics(events) is expected


def test_the_stop_of_an_earlier_attempt_ended_when_the_run_continued_and_its_other_findings_remain():
    stop = Finding(GONE, "process_gone", "critical", 36, 36, "the process is gone")
    events = [raised(WARNING, attempt=1), raised(stop, attempt=1)]
    assert with_stop(events, 2, None, 9.0) == events[:1]
    worded = replace(stop, step=50, title="stopped at step 50", advice=("resume",))
    recorded = raised(replace(stop, step=48), attempt=2, seen_in="clock")
    kept, found = with_stop([*events, recorded], 2, worded, 9.0)
    assert kept == events[0]
    assert (found.attempt, found.timestamp, found.step) == (2, 9.0, 48)
    assert (found.finding.step, found.finding.title, found.finding.advice) == (48, "stopped at step 50", ("resume",))


# Events of a monitor


def events_of(values, rule="x > 5 for 2: warning"):
    monitor = Monitor(rules=[{"rule": "*", "enabled": False}, rule])
    found = []
    for step, value in enumerate(values, 1):
        monitor.update({"step": step, "x": value})
        found += monitor.events
    return found, monitor


def test_a_monitor_reports_when_an_alarm_is_raised_and_when_it_has_recovered():
    quiet = 3 + CLEAR_POINTS
    events, monitor = events_of([9.0, 9.0, 9.0] + [1.0] * 30)
    assert [(event.type, event.step) for event in events] == [("raised", 2), ("recovered", quiet)]
    assert events[1].facts["severity"] == "warning"
    assert [finding.recovered_step for finding in monitor.findings] == [quiet]
    assert monitor.verdict == "healthy"


def test_a_monitor_reports_when_an_alarm_gets_more_severe():
    monitor = Monitor(
        algorithm="grpo", rules=[{"rule": "*", "enabled": False}, {"rule": "kl_explosion", "enabled": True}]
    )
    events = []
    for step in range(1, 120):
        wobble = 1 + 0.05 * math.sin(step * 12.9)
        monitor.update({"step": step, "reward": 0.3 * wobble, "kl": 0.01 * math.exp(max(0, step - 40) / 8) * wobble})
        events += monitor.events
    assert [(event.type, event.finding.severity) for event in events] == [
        ("raised", "warning"),
        ("escalated", "critical"),
    ]


def test_a_restart_within_a_log_ends_the_alarms_of_the_run_before():
    monitor = Monitor(rules=[{"rule": "*", "enabled": False}, "x > 5 for 2: warning"])
    for step in range(1, 12):
        monitor.update({"step": step, "x": 9.0})
    monitor.update({"step": 1, "x": 1.0})
    assert [(event.type, event.step) for event in monitor.events] == [("recovered", 11)]
    assert [finding.recovered_step for finding in monitor.findings] == [11]


@pytest.mark.parametrize("rule", ["throughput", "gpu_idle", "steps_repeated"])
def test_what_a_step_costs_and_how_a_log_was_written_is_reported_and_does_not_count(rule):
    slow = replace(WARNING, rule=rule)
    assert verdict_of([slow], FEW_ROWS)[0] == "healthy"
    assert verdict_of([slow, WARNING], FEW_ROWS)[0] == "watch"
    assert verdict_of([replace(slow, severity="critical")], FEW_ROWS)[0] == "act"
