"""The gauges for monitoring a fleet, compared with what every other reader reports for the same files."""

from __future__ import annotations

import json
import math
import subprocess
import sys
from pathlib import Path

import pytest

import rlvitals
from health_lines import finding_line, monitor_line, recovered_line
from rlvitals import gauges
from rlvitals.gauges import RunGauges
from rlvitals.records import Finding
from rlvitals.store.archive import compact
from rlvitals.store.layout import RunDir
from rlvitals.views.headlines import Headlines

QUIET = {"display": "none", "hardware": False}
KILLED = """
import os, signal, sys
import rlvitals

run = rlvitals.start(sys.argv[1], algorithm="grpo", display="none", hardware=False)
for step in range(20):
    run.log({"reward": 0.3 + 0.01 * step, "kl": 0.01}, step=step)
os.kill(os.getpid(), signal.SIGKILL)
"""


def values(step: int) -> dict[str, float]:
    """A run of TRL's GRPO that goes well."""
    return {
        "reward": 0.2 + step / 100, "reward_std": 0.3, "kl": 0.01, "entropy": 1.0, "loss": 0.1 + (step % 3) / 50,
        "grad_norm": 0.4 + (step % 5) / 50, "completions/mean_length": 200.0 + step % 7,
    }  # fmt: skip


def record(folder: Path, steps: range, **settings) -> rlvitals.Run:
    run = rlvitals.start(folder, **{"algorithm": "grpo", "framework": "trl", **QUIET, **settings})
    for step in steps:
        run.log(values(step), step=step)
    return run


def look(folder: Path):
    return RunGauges(folder, folder.name, folder.parent.name).look()


def add(folder: Path, *lines: bytes) -> None:
    with open(folder / "logs" / "findings.jsonl", "ab") as log:
        log.writelines(lines)


KL = Finding("kl_high", "kl_explosion", "warning", 20, 15, "KL is high")
NAN = Finding("nonfinite", "nonfinite", "critical", 25, 25, "the loss is NaN")


def test_a_live_run_and_its_end(tmp_path):
    folder = tmp_path / "out" / "grpo"
    run = record(folder, range(30), total_steps=40)
    told = look(folder)
    assert (told.run, told.project, told.name, told.algorithm, told.framework) == ("grpo", "out", "grpo", "grpo", "trl")
    assert (told.status, told.verdict, told.rows, told.step, told.total_steps) == ("running", "healthy", 30, 29, 40)
    assert told.attempt == 1
    assert told.last_row == pytest.approx(rlvitals.open_run(folder).last_rows(1)[0].timestamp)
    assert told.vitals["reward.total.mean"] == pytest.approx(0.49)
    assert told.vitals["length.response.mean"] == 201.0
    run.finish()
    assert look(folder).status == "finished"


def test_verdicts_are_those_of_the_list_of_runs(tmp_path):
    runs = {"healthy": range(30), "few rows": range(3)}
    for name, steps in runs.items():
        record(tmp_path / name, steps).finish()
    record(tmp_path / "not monitored", range(30), monitor=False).finish()
    for name, lines in {
        "watch": [finding_line(KL)],
        "recovered": [finding_line(KL), recovered_line("kl_high", 28)],
        "act": [finding_line(KL), finding_line(NAN)],
    }.items():
        record(tmp_path / name, range(30), monitor=False).finish()
        add(tmp_path / name, monitor_line(), *lines)
    subprocess.run([sys.executable, "-c", KILLED, tmp_path / "killed"], check=False)
    told = {path.name: look(path) for path in tmp_path.iterdir()}
    listed = {path.name: Headlines().of(path) for path in tmp_path.iterdir()}
    assert {name: one.verdict for name, one in told.items()} == {
        "healthy": "healthy", "few rows": "cannot judge", "not monitored": "cannot judge", "watch": "watch",
        "recovered": "healthy", "act": "act", "killed": "act",
    }  # fmt: skip
    for name, one in told.items():
        line = listed[name]
        assert (one.verdict, one.status) == (line["verdict"], line["status"])
        assert (one.rows, one.step) == (line["rows"], line["last_step"])
    assert told["killed"].status == "interrupted"
    assert told["killed"].open_findings == {"info": 0, "warning": 0, "critical": 1}
    assert told["act"].open_findings == {"info": 0, "warning": 1, "critical": 1}
    assert told["recovered"].open_findings == {"info": 0, "warning": 0, "critical": 0}
    assert told["recovered"].raised_findings == {"info": 0, "warning": 1, "critical": 0}


def test_findings_of_abandoned_steps_do_not_count(tmp_path):
    folder = tmp_path / "run"
    record(folder, range(30), monitor=False).finish()
    add(folder, monitor_line(), finding_line(NAN))
    known = RunGauges(folder, "run", "p")
    assert known.look().verdict == "act"
    again = rlvitals.start(folder, resume=10, monitor=False, **QUIET)
    for step in range(11, 40):
        again.log(values(step), step=step)
    add(folder, monitor_line(attempt=2))
    for told in (known.look(), look(folder)):  # a reader that has looked before, and a new one
        assert (told.verdict, told.attempt, told.step, told.rows) == ("healthy", 2, 39, 59)
        assert told.open_findings["critical"] == 0
        assert told.raised_findings["critical"] == 1  # a counter does not fall
    assert Headlines().of(folder)["verdict"] == "healthy"
    again.finish()


@pytest.mark.parametrize("most", [200, 3_000, 10**6])
def test_looking_often_and_looking_once_tell_the_same(tmp_path, monkeypatch, most):
    monkeypatch.setattr(gauges, "LOOK_BYTES", most)  # less than a line, a few lines, more than the log
    folder = tmp_path / "run"
    run = rlvitals.start(folder, algorithm="grpo", framework="trl", **QUIET)
    known = RunGauges(folder, "run", tmp_path.name)
    for step in range(120):
        run.log(values(step), step=step)
        if step % 7 == 0:
            assert known.look().rows == step + 1
    assert known.look().rows == look(folder).rows == 120
    if most > 1_000:
        assert known.look() == look(folder)
    run.finish()


def test_an_indexed_log_is_not_counted_again(tmp_path, monkeypatch):
    monkeypatch.setattr(gauges, "LOOK_BYTES", 2_000)
    folder = tmp_path / "run"
    run = record(folder, range(400), monitor=False)
    assert rlvitals.open_run(folder).rows == 400  # writes the index
    assert (folder / "index").is_dir()
    told = look(folder)
    assert (told.rows, told.step) == (400, 399)
    assert told.vitals["reward.total.mean"] == pytest.approx(4.19)
    for step in range(400, 450):
        run.log(values(step), step=step)
    assert (look(folder).rows, look(folder).step) == (450, 449)
    run.finish()


def test_an_archived_log(tmp_path):
    folder = tmp_path / "run"
    record(folder, range(50), monitor=False).finish()
    before = look(folder)
    known = RunGauges(folder, "run", tmp_path.name)
    known.look()
    compact(RunDir(folder).train_log)
    assert not RunDir(folder).train_log.exists()
    assert look(folder) == known.look() == before


def test_another_run_in_the_same_place_is_read_from_its_start(tmp_path):
    folder = tmp_path / "run"
    record(folder, range(60), monitor=False).finish()
    known = RunGauges(folder, "run", "p")
    assert known.look().rows == 60
    run = rlvitals.start(folder, overwrite=True, algorithm="grpo", monitor=False, **QUIET)
    run.log({"reward": 0.7}, step=3)
    told = known.look()
    assert (told.rows, told.step, told.vitals) == (1, 3, {"reward.total.mean": 0.7})
    run.finish()


def test_only_concepts_of_the_catalogue_are_signs_in_their_own_scale(tmp_path):
    run = rlvitals.start(tmp_path / "run", algorithm="grpo", framework="roll", monitor=False, **QUIET)
    run.log({"reward": 0.5, "my/private number": 3.0, "optim.grad_norm": float("nan")}, step=1)
    run.log({"reward": 0.5, "actor/max_len_mask_ratio": 0.9}, step=2)  # the share that was not truncated
    vitals = look(tmp_path / "run").vitals
    assert vitals["length.truncated_fraction"] == pytest.approx(0.1)
    assert set(vitals) <= {metric.id for metric in rlvitals.catalog.metrics()}
    assert vitals["reward.total.mean"] == 0.5
    assert math.isnan(vitals["optim.grad_norm"])  # it was logged
    run.finish()


def test_slices_without_a_whole_are_reported_as_their_mean(tmp_path):
    run = rlvitals.start(tmp_path / "run", algorithm="grpo", monitor=False, **QUIET)
    run.log({"reward/env=math": 0.2, "reward/env=code": 0.6, "kl": 0.1}, step=1)
    assert look(tmp_path / "run").vitals["reward.total.mean"] == pytest.approx(0.4)
    run.log({"reward/env=math": math.inf, "reward/env=code": 0.6, "reward/env=search": -math.inf}, step=2)
    assert look(tmp_path / "run").vitals["reward.total.mean"] == 0.6  # of those that are numbers
    run.finish()


def test_tokens_per_second_are_found_with_the_catalogue(tmp_path):
    run = rlvitals.start(tmp_path / "run", algorithm="grpo", monitor=False, **QUIET)
    run.log({"reward": 0.2, "perf.tokens_per_s": 1234.5}, step=1)
    told = look(tmp_path / "run")
    assert told.tokens_per_s == 1234.5
    assert "perf.tokens_per_s" not in told.vitals
    run.finish()


def test_a_log_without_a_card_and_damaged_lines(tmp_path):
    logs = tmp_path / "run" / "logs"
    logs.mkdir(parents=True)
    lines = [json.dumps({"step": step, "reward": step / 10}) for step in range(10)]
    (logs / "training_metrics.jsonl").write_text("\n".join([*lines[:5], "{torn", *lines[5:]]) + '\n{"step": 99')
    told = look(tmp_path / "run")
    assert (told.step, told.last_row, told.verdict) == (9, None, "cannot judge")
    assert told.vitals["reward.total.mean"] == 0.9


def test_the_framework_of_a_resumed_run_is_recognised_from_rows_that_were_not_abandoned(tmp_path):
    folder = tmp_path / "run"
    of_trl = {"loss": 0.1, "rewards/chosen": 0.5, "rewards/margins": 0.1, "logps/chosen": -9.0}
    with rlvitals.start(folder, **QUIET) as run:
        for step in range(5):
            run.log({"actor/pg_loss": 0.1, "critic/score/mean": 0.5, "response_length/mean": 100.0}, step=step)
        run.log(of_trl, step=5)
    known = RunGauges(folder, "run", "p")
    assert known.look().framework == rlvitals.open_run(folder).framework == "verl"
    with rlvitals.start(folder, resume=True, **QUIET) as run:  # from the beginning
        for step in range(5):
            run.log(of_trl, step=step)
    assert known.look().framework == look(folder).framework == rlvitals.open_run(folder).framework == "trl"


def test_evaluations_alone_show_that_earlier_ones_were_abandoned(tmp_path):
    folder = tmp_path / "run"
    with rlvitals.start(folder, **QUIET) as run:
        for step in range(9):
            run.log_eval({"score": 0.5, "loss": math.nan}, step=step)
    known = RunGauges(folder, "run", "p")
    assert known.look().verdict == "watch"
    with rlvitals.start(folder, resume=0, **QUIET) as run:
        run.log_eval({"score": 0.5}, step=0)
    assert known.look().verdict == look(folder).verdict == Headlines().of(folder)["verdict"] == "cannot judge"
