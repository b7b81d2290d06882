"""The default rules on real KTO and DPO runs of a tiny model. kto_runs/make.py made the runs."""

from __future__ import annotations

import csv
import json
from pathlib import Path

import pytest

from rlvitals.health.monitor import Monitor

FOLDER = Path(__file__).parent / "kto_runs"

with open(FOLDER / "runs.tsv", encoding="utf-8") as _table:
    RUNS = list(csv.DictReader(_table, delimiter="\t"))

HARD = "kto_lr_1e-4.jsonl"
"""Healthy at the end, after thirty steps in which its chosen answers had lost most of their probability."""


def judge(run):
    rows = [json.loads(line) for line in (FOLDER / run["file"]).read_text().splitlines()]
    monitor = Monitor(run["algorithm"], "trl", len(rows), json.loads(run["config"]))
    found = [finding for row in rows for finding in monitor.update(row) if finding.severity != "info"]
    assert monitor.problems == {}
    return found


def of(verdict):
    return pytest.mark.parametrize(
        "run", [run for run in RUNS if run["verdict"] == verdict], ids=lambda run: run["file"]
    )


@of("healthy")
def test_a_healthy_run_is_left_alone(run):
    found = judge(run)
    if run["file"] == HARD:
        assert {finding.severity for finding in found} <= {"warning"}
    else:
        assert found == []


@of("fail")
def test_a_failing_run_is_named_within_a_fifth_of_it_and_critical_within_a_quarter(run):
    right = {run["kind"], *run["also"].split()}
    onset = int(run["onset"])
    fifth, quarter = (32, 40) if onset > 12 else (40, 40)  # of 160 points
    if run["kind"] == "preference_signal_lost":
        fifth, quarter = 45, 70  # it takes longer to distinguish noise from a slow start
    named = [finding for finding in judge(run) if finding.kind in right]
    critical = [finding for finding in named if finding.severity == "critical"]
    reported = [(finding.step, finding.severity, finding.kind) for finding in named]
    assert any(finding.step <= onset + fifth for finding in named), reported
    assert any(finding.step <= onset + quarter for finding in critical), reported
