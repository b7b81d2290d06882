"""The monitor inside the recorder: its input, findings, requests and messages, and that it never disturbs training."""

from __future__ import annotations

import json
import logging
import math
import os
import shutil
import socket
import subprocess
import sys
import textwrap
import threading
import time
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest

import rlvitals
from conftest import free_port, until
from health_lines import finding_line
from rlvitals import values
from rlvitals.errors import ConfigError, RuleError
from rlvitals.health.monitor import Monitor
from rlvitals.records import Finding
from rlvitals.store import past
from rlvitals.store.findings import read_events
from rlvitals.store.layout import RunDir
from rlvitals.store.past import FIRST_ROWS, LAST_ROWS
from rlvitals.views.places import open_source

FINDINGS = Path("logs/findings.jsonl")
OWN_RULE = "kl > 0.5 for 3: critical"


def refuse_constant(name):
    raise AssertionError(f"{name} is not strict JSON")


def events_of(folder, kind=None):
    """The lines of the health log except those of type "monitor", parsed as strict JSON."""
    text = (Path(folder) / FINDINGS).read_text(encoding="utf-8")
    lines = [json.loads(line, parse_constant=refuse_constant) for line in text.splitlines()]
    kinds = ("raised", "escalated") if kind == "finding" else (kind,)
    return [line for line in lines if (line["type"] in kinds if kind else line["type"] != "monitor")]


def dead(step):
    """A row of a run with a zero gradient norm; its other values vary."""
    return {"loss": 0.1 + 0.01 * (step % 7), "grad_norm": 0.0, "reward": 0.3 + 0.01 * (step % 3)}


def alive(step):
    return {**dead(step), "grad_norm": 0.5 + 0.01 * (step % 5)}


def log_rows(run, make, steps):
    for step in steps:
        run.log(make(step), step=step)


@pytest.fixture
def seen(monkeypatch):
    """Every row that a monitor receives."""
    rows = []
    update = Monitor.update

    def spy(self, row):
        rows.append(dict(row))
        return update(self, row)

    monkeypatch.setattr(Monitor, "update", spy)
    return rows


# Findings are recorded


def test_a_dead_run_is_found_recorded_and_read_back(tmp_path):
    with rlvitals.start(tmp_path, algorithm="grpo") as run:
        assert run.findings == []
        log_rows(run, dead, range(1, 30))
        findings = run.findings
    assert "dead_gradient" in [finding.kind for finding in findings]
    assert all(isinstance(finding, Finding) for finding in findings)
    assert rlvitals.open_run(tmp_path).findings == findings
    line = next(line for line in events_of(tmp_path, "finding") if line["kind"] == "dead_gradient")
    assert list(line)[:4] == ["type", "step", "timestamp", "attempt"]
    assert line["attempt"] == 1
    assert set(line) >= {
        "rule",
        "severity",
        "onset_step",
        "title",
        "confidence",
        "evidence",
        "causes",
        "advice",
        "action",
    }


def test_of_a_healthy_run_it_is_on_record_that_it_was_watched(tmp_path):
    with rlvitals.start(tmp_path, algorithm="grpo") as run:
        log_rows(run, alive, range(1, 6))
    (line,) = events_of(tmp_path, "monitor")
    assert (line["attempt"], line["is_on"]) == (1, True)
    assert events_of(tmp_path) == []
    assert rlvitals.open_run(tmp_path).findings == []


def test_show_prints_the_last_findings(tmp_path, capsys):
    from rlvitals.cli.main import main

    with rlvitals.start(tmp_path, algorithm="grpo") as run:
        log_rows(run, dead, range(1, 15))
    main(["show", str(tmp_path)])
    assert "critical at step 10: the gradient has been exactly zero" in capsys.readouterr().out
    main(["show", "--json", str(tmp_path)])
    assert json.loads(capsys.readouterr().out)["findings"][0]["kind"] == "dead_gradient"


def test_torn_lines_unknown_types_and_unknown_keys_are_tolerated(tmp_path):
    with rlvitals.start(tmp_path, algorithm="grpo") as run:
        log_rows(run, dead, range(1, 15))
        findings = run.findings
    path = tmp_path / FINDINGS
    good = path.read_bytes().splitlines()[1]
    newer = json.dumps({**json.loads(good), "rule": "newer", "new_key": {"a": 1}, "action": "new_action"}).encode()
    damaged = [b"{", b"[]", b'{"type":"finding","step":1}', b'{"type":"future","step":1}', b"\xff", newer, good[:40]]
    path.write_bytes(path.read_bytes() + b"\n".join(damaged))
    found = rlvitals.open_run(tmp_path).findings
    assert found[:-1] == findings
    assert (found[-1].rule, found[-1].action) == ("newer", "none")


def test_evidence_that_is_not_finite_is_strict_json_and_comes_back(tmp_path):

    finding = Finding("r", "data", "info", 3, 2, "t\ud800", evidence={"value": float("inf"), "metric": "loss"})
    run_dir = RunDir(tmp_path)
    run_dir.logs.mkdir()
    run_dir.findings.write_bytes(finding_line(finding, 1.0, 1))
    (line,) = events_of(tmp_path)
    assert line["evidence"] == {"value": "inf", "metric": "loss"}
    (back,) = [event.finding for event in read_events(run_dir)]
    assert back.evidence == finding.evidence


def test_findings_wait_while_the_directory_is_gone_and_do_not_make_it_again(tmp_path):
    above = tmp_path / "above"
    folder = above / "run"
    with rlvitals.start(folder, algorithm="grpo", fsync=0.05) as run:
        run.log(dead(1), step=1)
        shutil.rmtree(above)
        log_rows(run, dead, range(2, 15))
        findings = run.findings
        assert findings
        assert not above.exists()  # after a lost mount the path would be on another disk
        above.mkdir()
        deadline = time.monotonic() + 10
        while not (folder / FINDINGS).exists() and time.monotonic() < deadline:
            time.sleep(0.02)
    assert [finding.rule for finding in rlvitals.open_run(folder).findings] == [finding.rule for finding in findings]


def test_overwriting_a_run_removes_its_findings(tmp_path):
    with rlvitals.start(tmp_path, algorithm="grpo") as run:
        log_rows(run, dead, range(1, 15))
    with rlvitals.start(tmp_path, overwrite=True) as run:
        run.log({"loss": 1.0})
    assert rlvitals.open_run(tmp_path).findings == []


# The monitor's input


def test_the_monitor_sees_the_row_as_it_was_logged(tmp_path, seen):
    with rlvitals.start(tmp_path) as run:
        run.log({"loss": 0.5, "ok": True}, step=1)
        run.log({"loss": 0.5, "ok": True}, step=2)  # the fast path
        run.log(
            {"a b": float("nan"), "up": float("inf"), "rewards": {"x": 1}, "kl": values.mean([1.0, 3.0]), "s": "text"},
            step=3,
        )
    assert [row["step"] for row in seen] == [1, 2, 3]
    assert seen[0] == {**seen[1], "step": 1, "timestamp": seen[0]["timestamp"]}
    assert seen[1]["loss"] == 0.5
    assert seen[2]["a b"] != seen[2]["a b"]
    assert seen[2]["up"] == float("inf")
    assert (seen[2]["rewards/x"], seen[2]["kl"]) == (1, 2.0)
    assert not [name for name in seen[2] if name.startswith("_")]


def test_evaluations_are_seen_under_names_that_no_training_metric_has(tmp_path, seen):
    with rlvitals.start(tmp_path) as run:
        run.log({"loss": 0.5}, step=7)
        run.log_eval({"loss": 0.9, "eval_reward": 0.1, "val/acc": 0.2, "predictions": [1, 2]}, step=3)
    evaluation = seen[1]
    assert evaluation.keys() - {"step", "timestamp"} == {"eval/loss", "eval_reward", "val/acc"}
    assert evaluation["step"] == 7  # an evaluation of an earlier step is not a restart


def sample(run, **values_):
    run._measurements._take_sample({f"System/{name}": value for name, value in values_.items()})


def test_samples_of_the_machine_are_seen_once_with_the_next_row(tmp_path, seen):
    with rlvitals.start(tmp_path, hardware=False) as run:
        run.log({"loss": 0.5}, step=1)
        sample(run, GPU_Utilization=90.0, Memory_Percent=40.0)
        sample(run, GPU_Utilization=50.0, Memory_Percent=70.0)
        assert len(seen) == 1  # a sample is not a row
        run.log({"loss": 0.5, "System/Memory_Percent": 1.0}, step=2)
        run.log({"loss": 0.5}, step=3)
    assert [row["step"] for row in seen] == [1, 2, 3]
    assert (seen[1]["System/GPU_Utilization"], seen[1]["System/Memory_Percent"]) == (70.0, 1.0)
    assert not [name for name in seen[2] if name.startswith("System/")]


def test_an_idle_gpu_and_a_full_memory_are_found_in_the_samples_live_and_afterwards(tmp_path):
    with rlvitals.start(tmp_path, algorithm="grpo", hardware=False, display="none") as run:
        for step in range(200):
            if step % 4 == 0:  # rows come more often than samples
                time.sleep(0.003)  # logs keep milliseconds: samples of the same one could not be distinguished later
                sample(run, GPU_Utilization=12.0 + step % 3, Memory_Percent=93.0, CPU_Percent=50.0)
            run.log({"loss": 0.5 + 0.01 * (step % 7), "reward": 0.2 + 0.05 * (step % 5)}, step=step)
        live = {finding.rule for finding in run.findings}
    assert {"gpu_idle", "memory_full"} <= live
    report = rlvitals.check(tmp_path)
    assert {"gpu_idle", "memory_full"} <= {finding.rule for finding in report.findings}
    assert not {"steps_backwards", "steps_repeated", "metric_vanished"} & live


def test_a_busy_machine_is_not_reported(tmp_path):
    with rlvitals.start(tmp_path, algorithm="grpo", hardware=False, display="none") as run:
        for step in range(200):
            sample(run, GPU_Utilization=85.0 + step % 9, GPU_Memory_Percent=80.0, Memory_Percent=55.0 + step % 2)
            run.log({"loss": 0.5 + 0.01 * (step % 7), "reward": 0.2 + 0.05 * (step % 5)}, step=step)
        assert not {"gpu_idle", "memory"} & {finding.kind for finding in run.findings}


def test_samples_do_not_change_which_framework_the_names_point_to(tmp_path):
    with rlvitals.start(tmp_path, hardware=False) as run:
        sample(run, CPU_Percent=1.0, Memory_Percent=1.0, Memory_Used_GB=1.0, GPU_Utilization=1.0)
        run.log({"critic/score/mean": 0.5, "actor/pg_loss": 0.1, "actor/ppo_kl": 0.1}, step=1)
        case = run._monitor._monitor.case
    assert case.framework == "verl"
    assert case.signals["gpu_utilisation"].n == 1


def test_samples_of_an_abandoned_line_are_not_judged_again(tmp_path):
    for resume, used in ((False, 97.0), (5, 40.0)):
        with rlvitals.start(tmp_path, resume=resume, hardware=False, display="none") as run:
            for step in range(0 if not resume else 6, 30):
                run.log({"loss": 0.5 + 0.01 * (step % 3)}, step=step)
                if step > 5:
                    sample(run, Memory_Percent=used)
    rows = list(open_source(tmp_path).rows)
    assert {row["System/Memory_Percent"] for row in rows if "System/Memory_Percent" in row} == {40.0}


def test_the_row_is_durable_before_the_monitor_looks(tmp_path, monkeypatch):
    lines = []

    def spy(self, row):
        lines.append((tmp_path / "logs/training_metrics.jsonl").read_bytes().count(b"\n"))
        return []

    monkeypatch.setattr(Monitor, "update", spy)
    with rlvitals.start(tmp_path) as run:
        log_rows(run, alive, range(1, 5))
    assert lines == [1, 2, 3, 4]


def test_settings_reach_the_monitor(tmp_path, monkeypatch):
    made = []
    monkeypatch.setattr(Monitor, "__init__", lambda self, **given: made.append(given) or (_ for _ in ()).throw(OSError))
    config = {"grpo": {"num_generations": 8, "lr": 1}, "critic": {"lr": 2}, "reward_max": 1.0}
    with rlvitals.start(tmp_path, algorithm="grpo", framework="trl", total_steps=9, config=config) as run:
        run.log({"loss": 1.0})
    (given,) = made
    assert (given["algorithm"], given["framework"], given["total_steps"]) == ("grpo", "trl", 9)
    assert given["config"]["num_generations"] == 8
    assert given["config"]["reward_max"] == 1.0
    assert "lr" not in given["config"]  # two settings have this name


# It never disturbs


def test_a_monitor_that_cannot_be_made_is_put_aside_with_one_warning(tmp_path, monkeypatch, caplog):
    def fail(self, **_):
        raise RuntimeError("broken plug-in")

    monkeypatch.setattr(Monitor, "__init__", fail)
    with rlvitals.start(tmp_path) as run:
        log_rows(run, alive, range(1, 5))
    assert sum("is disabled" in message for message in caplog.messages) == 1
    assert rlvitals.open_run(tmp_path).rows == 4


def test_a_monitor_that_raises_is_put_aside_with_one_warning(tmp_path, monkeypatch, caplog):
    monkeypatch.setattr(Monitor, "update", lambda self, row: 1 / 0)
    with rlvitals.start(tmp_path, actions="act") as run:
        log_rows(run, alive, range(1, 5))
        assert run.request() is None
    assert [message for message in caplog.messages if "ZeroDivisionError" in message] == [
        f"the monitor of {tmp_path} is disabled, rows are still recorded: ZeroDivisionError: division by zero"
    ]
    assert rlvitals.open_run(tmp_path).rows == 4


def is_closed(run_dir):
    return not (run_dir / "run.lock").exists() and rlvitals.open_run(run_dir).status == "finished"


def test_a_run_whose_monitor_failed_is_closed_after_the_last_line_of_its_health_log(tmp_path, monkeypatch, caplog):
    monkeypatch.setattr(Monitor, "update", lambda self, row: 1 / 0)
    with rlvitals.start(tmp_path) as run:
        log_rows(run, alive, range(1, 5))
    assert is_closed(tmp_path)
    assert events_of(tmp_path, "monitor")[-1]["is_on"] is False
    assert [message for message in caplog.messages if "cannot write" in message] == []


def test_a_finding_about_the_last_row_is_recorded_before_the_run_is_closed(tmp_path, caplog):
    """Two rows a step: the last one is judged when no more rows come."""
    with rlvitals.start(tmp_path, rules=["loss > 5: critical"]) as run:
        for step in range(1, 6):
            run.log({"loss": 0.5}, step=step)
            run.log({"reward": 0.1}, step=step)
        run.log({"loss": 9.0}, step=6)
    assert is_closed(tmp_path)
    assert [line["step"] for line in events_of(tmp_path, "raised")] == [6]
    assert [message for message in caplog.messages if "cannot write" in message] == []


def test_without_the_monitor_nothing_of_it_is_imported_or_written(tmp_path):
    code = (
        f"import sys, rlvitals\nrun = rlvitals.start({str(tmp_path / 'run')!r}, monitor=False)\n"
        "for step in range(20): run.log({'grad_norm': 0.0, 'loss': 1.0}, step=step)\n"
        "assert run.findings == [] and run.request() is None\nrun.finish()\n"
        "print([name for name in ('rlvitals.health.monitor', 'rlvitals.catalog') if name in sys.modules])"
    )
    out = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout
    assert out.strip() == "[]"
    assert not (tmp_path / "run" / FINDINGS).exists()


def test_starting_makes_no_monitor_and_a_run_without_one_imports_no_network(tmp_path):
    code = (
        f"import sys, rlvitals\nrun = rlvitals.start({str(tmp_path / 'run')!r})\n"
        "print('rlvitals.health.monitor' in sys.modules)\nrun.log({'loss': 1.0})\nrun.finish()\n"
        "print('rlvitals.health.monitor' in sys.modules, 'urllib.request' in sys.modules, 'numpy' in sys.modules)"
    )
    out = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout
    assert out.split() == ["False", "True", "False", "False"]


def test_a_run_without_rows_makes_no_monitor_at_its_end(tmp_path):
    code = (
        f"import sys, rlvitals\nrlvitals.start({str(tmp_path / 'run')!r}).finish()\n"
        "print('rlvitals.health.monitor' in sys.modules)"
    )
    out = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout
    assert out.split() == ["False"]


def test_other_ranks_watch_nothing(tmp_path, seen):
    with rlvitals.start(tmp_path, rank=0) as run:
        with rlvitals.start(tmp_path, rank=1, actions="act") as other:
            log_rows(other, dead, range(1, 20))
            assert other.findings == []
            assert other.request() is None
        run.log({"loss": 1.0}, step=1)
    assert len(seen) == 1


def test_a_row_logged_by_a_signal_handler_in_the_middle_is_recorded_and_not_judged(tmp_path, monkeypatch):
    update, judged = Monitor.update, []

    def interrupted(self, row):
        judged.append(row["step"])
        if row["step"] == 2:
            run.log({"loss": 9.0}, step=100)
        return update(self, row)

    monkeypatch.setattr(Monitor, "update", interrupted)
    with rlvitals.start(tmp_path) as run:
        log_rows(run, alive, range(1, 4))
    assert rlvitals.open_run(tmp_path).rows == 4
    assert judged == [1, 2, 3]


def test_a_silence_is_seen_by_the_clock_of_the_background_thread(tmp_path, monkeypatch):
    ticks = threading.Event()
    monkeypatch.setattr(Monitor, "tick", lambda self, now, **_: ticks.set() or [])
    with rlvitals.start(tmp_path, fsync=0.05) as run:
        assert not ticks.wait(0.2)  # no row yet
        run.log({"loss": 1.0})
        assert ticks.wait(5)


# Resuming


def test_a_resume_repeats_nothing_and_goes_on_where_it_was(tmp_path, seen):
    with rlvitals.start(tmp_path, algorithm="grpo") as run:
        log_rows(run, dead, range(1, 15))
        run.log_eval({"score": 0.5}, step=14)
        before = run.findings
    assert before
    del seen[:]
    with rlvitals.start(tmp_path, resume=True) as run:
        log_rows(run, dead, range(15, 25))
        assert run.findings[: len(before)] == before
        rules = [(finding.rule, finding.severity) for finding in run.findings]
    assert len(rules) == len(set(rules))
    assert [row["step"] for row in seen] == [*range(1, 15), 14, *range(15, 25)]
    assert rlvitals.open_run(tmp_path).findings == run.findings


def test_a_finding_in_the_last_row_does_not_keep_the_run_open(tmp_path, caplog):
    given = {"algorithm": "grpo", "rules": ["grad_norm > 0.5 for 5: critical"]}
    with rlvitals.start(tmp_path, **given) as run:
        for step in range(1, 6):  # the fifth step lacks its last row, so that the monitor waits for it until the end
            run.log({"loss": 0.1 * step, "grad_norm": 1.0}, step=step)
            if step < 5:
                run.log({"reward": 0.1 * step}, step=step)
    assert [found.step for found in rlvitals.open_run(tmp_path).findings] == [5]
    assert not [record for record in caplog.records if "cannot write" in record.message]
    with rlvitals.start(tmp_path, resume=True, **given) as run:  # the first recording has released the run
        run.log({"loss": 0.1}, step=6)
    assert rlvitals.open_run(tmp_path).last_step == 6
    assert [event["type"] for event in events_of(tmp_path)] == ["raised"]  # it has not recovered meanwhile


def test_a_warning_that_became_critical_is_not_recorded_again_by_a_resume(tmp_path):
    with rlvitals.start(tmp_path) as run:
        for step in range(1, 30):
            run.log(alive(step) | {"extra": math.nan if step > 5 else 1.0}, step=step)
    before = [(found.rule, found.severity, found.step) for found in run.findings]
    assert {"warning", "critical"} <= {severity for _, severity, _ in before}
    for step in (30, 31):
        with rlvitals.start(tmp_path, resume=True) as run:
            run.log(alive(step) | {"extra": math.nan}, step=step)
    assert [(found.rule, found.severity, found.step) for found in run.findings] == before


def test_a_text_in_a_row_is_not_a_name_that_the_monitor_reads(tmp_path, seen):
    with rlvitals.start(tmp_path) as run:
        run.log({"loss": 1.0, "chosen_text": "yes"}, step=1)
        run.log({"loss": math.inf, "chosen_text": "yes"}, step=2)
    assert [set(row) for row in seen] == [{"step", "timestamp", "loss"}] * 2


def test_an_evaluation_before_the_first_row_of_a_resumed_run_does_not_decide_where_it_continues(tmp_path, seen):
    with rlvitals.start(tmp_path) as run:
        log_rows(run, alive, range(10))
    del seen[:]
    with rlvitals.start(tmp_path, resume=True) as run:  # from the beginning
        run.log_eval({"score": 0.5}, step=0)
        log_rows(run, alive, range(5))
    assert [row["step"] for row in seen] == [0, *range(5)]
    del seen[:]
    with rlvitals.start(tmp_path, resume=True) as run:
        run.log_eval({"score": 0.6}, step=4)
    assert [row["step"] for row in seen] == [0, *range(5), 4]


@pytest.mark.parametrize("make", [alive, dead])
def test_before_the_first_row_of_a_resumed_run_the_record_of_the_earlier_attempts_counts(tmp_path, make):
    with rlvitals.start(tmp_path, algorithm="grpo") as run:
        log_rows(run, make, range(1, 20))
    before = (run.verdict, run.findings)
    with rlvitals.start(tmp_path, resume=True) as run:
        assert (run.verdict, run.findings) == before
    assert (run.verdict, run.findings) == before
    report = rlvitals.check(tmp_path)
    assert (report.verdict, report.reason) == run.verdict


def test_before_the_first_row_nothing_is_said_about_rows_that_no_monitor_read(tmp_path):
    with rlvitals.start(tmp_path, monitor=False) as run:
        log_rows(run, alive, range(1, 20))
    with rlvitals.start(tmp_path, resume=True) as run:
        assert run.verdict == ("cannot judge", "not monitored during training")
        assert run.findings == []


def test_rows_of_an_abandoned_line_are_not_seen_and_their_findings_are_not_kept(tmp_path, seen):
    with rlvitals.start(tmp_path, algorithm="grpo") as run:
        log_rows(run, alive, range(1, 6))
        log_rows(run, dead, range(6, 30))
        assert "dead_gradient" in [finding.kind for finding in run.findings]
    del seen[:]
    with rlvitals.start(tmp_path, resume=5) as run:
        log_rows(run, alive, range(6, 10))
        assert "dead_gradient" not in [finding.kind for finding in run.findings]
    assert [row["step"] for row in seen] == list(range(1, 10))
    assert "dead_gradient" not in [finding.kind for finding in rlvitals.open_run(tmp_path).findings]


def test_what_a_run_without_monitor_missed_is_reported_after_a_resume_if_it_still_holds(tmp_path):
    with rlvitals.start(tmp_path, algorithm="grpo", monitor=False) as run:
        log_rows(run, dead, range(1, 15))
    with rlvitals.start(tmp_path, resume=True, actions="act") as run:
        run.log(dead(15), step=15)
        assert "dead_gradient" in [finding.kind for finding in run.findings]
        assert run.request().action == "stop"
        run.request().declined()


def test_an_answer_from_before_a_resume_counts(tmp_path):
    with rlvitals.start(tmp_path, rules=[OWN_RULE], actions="act") as run:
        for step in range(1, 6):
            run.log({"kl": 0.9}, step=step)
    with rlvitals.start(tmp_path, resume=True, algorithm="grpo", actions="act") as run:
        log_rows(run, dead, range(6, 20))
        request = until(run.request)
        numbers = [line["request"] for line in events_of(tmp_path, "request")]
        assert numbers == sorted(set(numbers))  # numbering continues
        assert request.number == numbers[-1]
        request.declined("no")
    with rlvitals.start(tmp_path, resume=True, actions="act") as run:
        log_rows(run, dead, range(20, 25))
        assert [line["answer"] for line in events_of(tmp_path, "answer") if line["request"] == request.number] == [
            "declined"
        ]
        assert not [
            line for line in events_of(tmp_path, "request") if line["attempt"] == 3 and line["rule"] == "dead_gradient"
        ]


@pytest.fixture
def slow_past(monkeypatch):
    """A monitor that blocks at its first row until the event is set."""
    go = threading.Event()
    update = Monitor.update

    def wait_and_update(self, row):
        assert go.wait(60)
        return update(self, row)

    monkeypatch.setattr(Monitor, "update", wait_and_update)
    yield go
    go.set()


def test_rows_logged_while_the_past_is_read_are_recorded_at_once_and_judged_in_order_afterwards(
    tmp_path, seen, slow_past
):
    slow_past.set()
    with rlvitals.start(tmp_path, algorithm="grpo", monitor=False) as run:
        log_rows(run, alive, range(1, 6))
    slow_past.clear()
    with rlvitals.start(tmp_path, resume=True, actions="act", fsync=0.05) as run:
        log_rows(run, dead, range(6, 30))
        run.log_eval({"score": 0.5}, step=29)
        assert not seen, "the monitor is still at the first row of the past"
        assert len((tmp_path / "logs/training_metrics.jsonl").read_bytes().splitlines()) == 29
        assert run.request() is None
        beat = (tmp_path / "heartbeat").read_bytes()
        assert until(lambda: (tmp_path / "heartbeat").read_bytes() != beat), "the heartbeat goes on meanwhile"
        slow_past.set()
        request = until(run.request)
        assert request.finding.kind == "dead_gradient"
        request.declined()
        run.log(dead(30), step=30)
        assert [finding.kind for finding in run.findings].count("dead_gradient") >= 1
    assert [row["step"] for row in seen] == [*range(1, 30), 29, 30]
    assert rlvitals.open_run(tmp_path).findings == run.findings


def test_the_end_of_a_run_waits_until_its_last_rows_are_judged(tmp_path, seen, slow_past):
    slow_past.set()
    with rlvitals.start(tmp_path, algorithm="grpo", monitor=False) as run:
        log_rows(run, alive, range(1, 6))
    slow_past.clear()
    with rlvitals.start(tmp_path, resume=True) as run:
        log_rows(run, dead, range(6, 30))
        threading.Timer(0.1, slow_past.set).start()
    assert [row["step"] for row in seen] == list(range(1, 30))
    assert "dead_gradient" in [finding.kind for finding in rlvitals.open_run(tmp_path).findings]


def test_findings_on_record_come_before_those_of_rows_that_waited(tmp_path, slow_past):
    slow_past.set()
    with rlvitals.start(tmp_path, algorithm="grpo") as run:
        log_rows(run, dead, range(1, 15))
        before = run.findings
    assert before
    slow_past.clear()
    with rlvitals.start(tmp_path, resume=True) as run:
        for step in range(15, 20):
            run.log({**dead(step), "loss": float("nan")}, step=step)
        slow_past.set()
        assert len(run.findings) > len(before)
        assert run.findings[: len(before)] == before


def test_a_loop_that_logs_faster_than_rows_are_judged_does_not_outrun_the_monitor(tmp_path, seen):
    with rlvitals.start(tmp_path, monitor=False) as run:
        log_rows(run, alive, range(1, 6))
    with rlvitals.start(tmp_path, resume=True) as run:
        step = 6
        while not seen or seen[-1]["step"] < step - 1:  # ends when a row is judged before log() returns
            run.log(alive(step), step=step)
            step += 1
            assert step < 200_000
    assert [row["step"] for row in seen] == list(range(1, step))


def test_what_an_epoch_tracker_finds_while_the_past_is_read_is_recorded_too(tmp_path, slow_past):
    slow_past.set()
    with rlvitals.start(tmp_path, monitor=False) as run:
        log_rows(run, alive, range(1, 6))
    slow_past.clear()
    found = Finding("mine", "overfit", "warning", 6, 5, "epochs get worse")
    with rlvitals.start(tmp_path, resume=True) as run:
        run.log(alive(6), step=6)
        run.take_findings([found], ["mine"])
        slow_past.set()
        assert found in run.findings
    assert "mine" in [line["rule"] for line in events_of(tmp_path, "finding")]


def test_a_past_that_cannot_be_read_puts_the_monitor_aside_and_not_the_run(tmp_path, monkeypatch, caplog):
    with rlvitals.start(tmp_path, monitor=False) as run:
        log_rows(run, alive, range(1, 6))

    def broken(*_):
        raise OSError(5, "Input/output error")

    monkeypatch.setattr(past, "rows_between", broken)
    with rlvitals.start(tmp_path, resume=True) as run:
        log_rows(run, alive, range(6, 12))
        assert run.findings == []
    assert sum("is disabled" in record.message for record in caplog.records) == 1
    assert len((tmp_path / "logs/training_metrics.jsonl").read_bytes().splitlines()) == 11


def test_a_resume_of_a_finished_run_imports_nothing_heavy(tmp_path):
    with rlvitals.start(tmp_path) as run:
        log_rows(run, alive, range(1, 6))
    code = (
        f"import rlvitals, sys\nwith rlvitals.start({str(tmp_path)!r}, resume=True) as run:\n"
        "    run.log({'loss': 1.0})\n"
        "assert run.findings == []\nprint(sorted({'numpy', 'torch', 'yaml', 'rich'} & set(sys.modules)))"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"


def test_of_a_very_long_past_the_beginning_and_the_end_are_read(tmp_path):
    total = FIRST_ROWS + LAST_ROWS + 300
    with rlvitals.start(tmp_path, monitor=False) as run:
        log_rows(run, lambda step: {"x": float(step)}, range(total))
    found = past.past_before(RunDir(tmp_path), 2, "train", total)
    assert found.has_gap
    steps = [row.step for row in found.rows("train")]
    assert steps == [*range(FIRST_ROWS), *range(FIRST_ROWS + 300, total)]


# Requests


def test_advice_alone_asks_for_nothing(tmp_path):
    with rlvitals.start(tmp_path, algorithm="grpo") as run:
        for step in range(1, 20):
            run.log(dead(step), step=step)
            assert run.request() is None
        assert [finding.action for finding in run.findings if finding.kind == "dead_gradient"] == ["stop"]
    assert {line["type"] for line in events_of(tmp_path)} == {"raised"}


def test_a_plain_loop_gets_a_request_and_answers_it(tmp_path):
    with rlvitals.start(tmp_path, algorithm="grpo", actions="act") as run:
        assert run.request() is None
        request = None
        for step in range(1, 30):
            run.log(dead(step), step=step)
            request = run.request()
            if request is not None and request.action == "stop":
                break
        assert (step, request.finding.kind) == (10, "dead_gradient")
        assert "gradient" in request.reason
        assert run.request() == request  # open until it is answered
        request.done("stopping at step 10")
        request.declined("no second answer counts")
        assert run.request() is None
    asked, answered = events_of(tmp_path, "request"), events_of(tmp_path, "answer")
    assert (asked[-1]["action"], asked[-1]["rule"], asked[-1]["step"]) == ("stop", "dead_gradient", 10)
    assert [(line["request"], line["answer"], line["text"]) for line in answered if line["action"] == "stop"] == [
        (asked[-1]["request"], "done", "stopping at step 10")
    ]


def test_a_forked_worker_is_asked_for_nothing_and_takes_no_request_away(tmp_path, child_environment):
    """A data loader's worker has no trainer to stop or change."""
    script = """
        import os, sys, warnings
        warnings.simplefilter("ignore", DeprecationWarning)  # newer Pythons warn of any fork beside a thread
        import rlvitals
        run = rlvitals.start(sys.argv[1], algorithm="grpo", actions="act", display="none")
        for step in range(1, 20):
            run.log({"loss": 0.1 + 0.01 * (step % 7), "grad_norm": 0.0, "reward": 0.3 + 0.01 * (step % 3)}, step=step)
        pid = os.fork()
        if pid == 0:
            os._exit(0 if run.request() is None and run.request(everywhere=False) is None else 1)
        assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 0, "the worker got a request"
        assert run.request().action == "stop"
        run.request().done()
        run.finish()
    """
    command = [sys.executable, "-c", textwrap.dedent(script), str(tmp_path)]
    done = subprocess.run(command, check=False, env=child_environment, capture_output=True, text=True, timeout=60)
    assert done.returncode == 0, done.stderr
    assert [line["answer"] for line in events_of(tmp_path, "answer")][-1] == "done"


def test_an_answer_after_the_end_is_recorded_too(tmp_path):
    with rlvitals.start(tmp_path, algorithm="grpo", actions="act") as run:
        log_rows(run, dead, range(1, 12))
        request = run.request()
    request.done("stopped")
    assert events_of(tmp_path, "answer")[-1]["text"] == "stopped"


def test_revert_names_the_newest_checkpoint_before_the_onset(tmp_path):
    for step in (5, 10, 20):
        (tmp_path / f"checkpoint-{step}").mkdir(parents=True)
    with rlvitals.start(tmp_path, algorithm="grpo", actions="act") as run:
        log_rows(run, alive, range(1, 15))
        run.log({**alive(15), "loss": float("nan")}, step=15)
        for step in range(16, 25):
            run.log({**alive(step), "loss": float("nan")}, step=step)
        request = run.request()
        assert (request.action, request.checkpoint_step) == ("revert", 10)
        assert request.checkpoint == str(tmp_path / "checkpoint-10")
        request.done()


def test_a_checkpoint_of_an_abandoned_line_is_not_gone_back_to(tmp_path):
    with rlvitals.start(tmp_path, algorithm="grpo") as run:
        log_rows(run, alive, range(1, 13))
    for step in (5, 10):
        (tmp_path / f"checkpoint-{step}").mkdir()
        os.utime(tmp_path / f"checkpoint-{step}", (time.time() - 60, time.time() - 60))
    with rlvitals.start(tmp_path, resume=5, actions="act") as run:
        log_rows(run, alive, range(6, 15))
        for step in range(15, 25):
            run.log({**alive(step), "loss": float("nan")}, step=step)
        assert until(run.request).checkpoint_step == 5
        run.request().declined()


def test_a_secret_in_an_answer_is_masked(tmp_path):
    with rlvitals.start(tmp_path, algorithm="grpo", actions="act") as run:
        log_rows(run, dead, range(1, 12))
        run.request().done("see hf_abcdefghijklmnopqrstuvwxyz")
    assert "hf_abcdef" not in (tmp_path / FINDINGS).read_text()


# Under torch.distributed


@pytest.mark.slow
def test_every_rank_gets_the_same_request_at_the_same_call(tmp_path):
    pytest.importorskip("torch", reason="needs torch, which is not installed here")
    port = free_port()
    code = textwrap.dedent(
        f"""
        import json, os, signal, sys, warnings, torch.distributed as dist, rlvitals
        warnings.simplefilter("ignore", DeprecationWarning)  # newer Pythons warn of any fork beside a thread
        rank = int(sys.argv[1])
        dist.init_process_group("gloo", init_method="tcp://127.0.0.1:{port}", rank=rank, world_size=2)
        run = rlvitals.start({str(tmp_path / "run")!r}, algorithm="grpo", actions="act", rank=rank)
        got = []
        for step in range(1, 20):
            run.log({{"loss": 0.1 + 0.01 * (step % 7), "grad_norm": 0.0, "reward": 0.3 + 0.01 * (step % 3)}}, step=step)
            request = run.request()
            got.append([request.action, request.reason, request.finding.title, request.number] if request else None)
            if request is not None and request.action == "stop":
                request.done(f"by rank {{rank}}")
        if rank == 0 and (pid := os.fork()) == 0:  # a data loader's worker, which must not wait for the other rank
            signal.alarm(10)
            os._exit(0 if run.request() is None else 1)
        assert rank != 0 or os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 0
        print(json.dumps(got))
        run.finish()
        dist.destroy_process_group()
        """
    )
    ranks = [
        subprocess.Popen([sys.executable, "-c", code, str(rank)], stdout=subprocess.PIPE, text=True) for rank in (0, 1)
    ]
    first, second = (json.loads(rank.communicate(timeout=120)[0].strip().splitlines()[-1]) for rank in ranks)
    assert first == second
    assert [request[0] for request in first if request].count("stop") >= 1
    assert first[9][0] == "stop"
    assert "by rank 0" in [line["text"] for line in events_of(tmp_path / "run", "answer")]
    assert "by rank 1" not in [line["text"] for line in events_of(tmp_path / "run", "answer")]


# Settings


@pytest.mark.parametrize(
    ("given", "problem"),
    [
        ({"actions": "advice"}, "Did you mean 'advise'"),
        ({"monitor": "yes"}, "monitor must be true or false"),
        ({"moniter": True}, "Did you mean 'monitor'"),
        ({"rules": 3}, "rules must be"),
        ({"monitor": False, "actions": "act"}, "actions needs the monitor"),
        ({"monitor": False, "rules": OWN_RULE}, "rules needs the monitor"),
        ({"notify": "https://x"}, "notify names services: slack.*from the environment"),
        ({"notify": 5}, "notify must be a mapping"),
        ({"notify": {"webhok": "https://x"}}, "Did you mean 'webhook'"),
        ({"notify": {"webhook": "ftp://secret"}}, "http"),
        ({"notify": {"webhook": "https://x", "format": "slak"}}, "Did you mean 'slack'"),
        ({"notify": {"webhook": "https://x", "on": "criticl"}}, "Did you mean 'critical'"),
        ({"notify": {"on": "critical"}}, "webhook or a sentinel"),
        ({"notify": {"webhook": "${env:RLVITALS_TEST_NOT_SET}"}}, "RLVITALS_TEST_NOT_SET"),
    ],
)
def test_a_wrong_setting_is_refused_with_the_fix_and_before_anything_is_written(tmp_path, given, problem):
    with pytest.raises(ConfigError, match=problem) as caught:
        rlvitals.start(tmp_path / "run", **given)
    assert "secret" not in str(caught.value)
    assert not (tmp_path / "run").exists()


def test_wrong_rules_are_refused_before_anything_is_written(tmp_path):
    with pytest.raises(RuleError):
        rlvitals.start(tmp_path / "run", rules="no_such_preset")
    assert not (tmp_path / "run").exists()


@pytest.mark.parametrize("rules", [OWN_RULE, [OWN_RULE]])
def test_a_users_rules_are_applied(tmp_path, rules):
    with rlvitals.start(tmp_path, rules=rules) as run:
        for step in range(1, 8):
            run.log({"kl": 0.9}, step=step)
        assert [finding.severity for finding in run.findings if "kl > 0.5" in f"{finding.rule} {finding.title}"]


def test_the_yaml_section_takes_them_too(tmp_path):
    (tmp_path / "run.yaml").write_text(
        f"rlvitals:\n  monitor: true\n  actions: act\n  rules: ['{OWN_RULE}']\n  notify: {{sentinel: {tmp_path}/s}}\n"
    )
    with rlvitals.start(tmp_path / "run", config=tmp_path / "run.yaml") as run:
        assert run.settings.actions == "act"
        assert run.settings.rules == (OWN_RULE,)
        assert run.settings.notify == {"sentinel": f"{tmp_path}/s"}


# Notifications


@pytest.mark.parametrize(("display", "shown"), [("plain", True), ("none", False), ("json", False)])
def test_the_banner_is_shown_on_stderr_where_something_is_displayed(tmp_path, capsys, display, shown):
    with rlvitals.start(tmp_path, algorithm="grpo", display=display, display_every=1000) as run:
        log_rows(run, dead, range(1, 15))
    output = capsys.readouterr()
    assert ("!" * 61 + "\n  ⚠ the gradient has been exactly zero" in output.err) == shown
    assert "!!!" not in output.out


def test_findings_go_to_the_log_for_those_who_keep_one(tmp_path, caplog):
    caplog.set_level(logging.INFO, "rlvitals")
    with rlvitals.start(tmp_path, algorithm="grpo") as run:
        log_rows(run, dead, range(1, 15))
    assert any(message.startswith("critical at step 10: the gradient") for message in caplog.messages)


def test_a_critical_is_posted_and_the_address_is_nowhere(tmp_path, capfd, caplog, monkeypatch):
    caplog.set_level(logging.DEBUG)
    secret = "T0SECRET-B0SECRET-very-secret-part"
    bodies = []

    class Handler(BaseHTTPRequestHandler):
        def do_POST(self):
            bodies.append(json.loads(self.rfile.read(int(self.headers["Content-Length"]))))
            self.send_response(200 if len(bodies) == 1 else 403)
            self.end_headers()

        def log_message(self, *_):
            pass

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    threading.Thread(target=server.serve_forever, args=(0.02,), daemon=True).start()
    monkeypatch.setenv("RLVITALS_TEST_HOOK", f"http://127.0.0.1:{server.server_port}/{secret}")
    monkeypatch.setattr(sys, "argv", ["train.py", "--webhook", f"https://hooks.slack.com/services/{secret}"])
    folder, sentinel = tmp_path / "run", tmp_path / "stop.json"
    notify = {"webhook": "${env:RLVITALS_TEST_HOOK}", "format": "slack", "on": "critical", "sentinel": str(sentinel)}
    settings = {"algorithm": "grpo", "actions": "act", "display": "plain", "notify": notify}
    try:
        with rlvitals.start(folder, name="kto-7b", **settings) as run:
            log_rows(run, dead, range(1, 40))
            run.request().done(f"told {os.environ['RLVITALS_TEST_HOOK']}")
            assert secret not in repr(run.settings)
    finally:
        server.shutdown()
        server.server_close()
    assert bodies[0]["text"].startswith("CRITICAL in kto-7b at step 10: the gradient has been exactly zero")
    assert json.loads(sentinel.read_text())["finding"]["severity"] == "critical"
    written = [path for path in tmp_path.rglob("*") if path.is_file()]
    assert folder / "config.json" in written
    assert not [path for path in written if secret.encode() in path.read_bytes()]
    output = capfd.readouterr()
    assert secret not in output.err + output.out + caplog.text
    assert str(tmp_path) not in json.dumps(bodies)


def test_the_end_waits_only_a_little_for_a_hook_that_hangs(tmp_path, monkeypatch):
    monkeypatch.setattr("rlvitals.health.notify.Notifier.close.__defaults__", (0.1,))
    with socket.socket() as silent:
        silent.bind(("127.0.0.1", 0))
        silent.listen()
        url = f"http://127.0.0.1:{silent.getsockname()[1]}/x"
        with rlvitals.start(tmp_path, algorithm="grpo", notify={"webhook": url}) as run:
            log_rows(run, dead, range(1, 15))
            began = time.monotonic()
        assert time.monotonic() - began < 4
    assert rlvitals.open_run(tmp_path).status == "finished"


def test_after_a_ctrl_c_in_the_middle_of_a_rule_the_next_rows_are_judged(tmp_path, monkeypatch):
    update = Monitor.update

    def interrupted(self, row):
        if row["step"] == 3:
            raise KeyboardInterrupt
        return update(self, row)

    monkeypatch.setattr(Monitor, "update", interrupted)
    with rlvitals.start(tmp_path, algorithm="grpo") as run:
        log_rows(run, dead, range(1, 3))
        with pytest.raises(KeyboardInterrupt):
            run.log(dead(3), step=3)
        log_rows(run, dead, range(4, 30))
        assert "dead_gradient" in {finding.rule for finding in run.findings}
