"""Foreign logs and folders of epochs, opened like runs; nothing is written."""

from __future__ import annotations

import json
import subprocess
import sys

import numpy as np
import pytest

import rlvitals
from judged_logs import healthy_rows
from rlvitals.cli.main import main
from rlvitals.errors import NotALog
from rlvitals.views.logs import open_any
from rlvitals.views.report import gather


@pytest.fixture
def log(tmp_path):
    """A log that restarts in the middle, with an evaluation and a NaN."""
    rows = [*healthy_rows(12), *healthy_rows(20, seed=2)[6:], {"step": 20, "eval_reward": 0.5}]
    rows[3] = {**rows[3], "loss": float("nan")}
    path = tmp_path / "train.jsonl"
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return path


def test_a_log_answers_like_the_run_it_would_be_imported_to(log, tmp_path, capsys):
    assert main(["import", str(log), "--to", str(tmp_path / "run")]) == 0
    run, view = rlvitals.open_run(tmp_path / "run"), open_any(log)
    assert view.metrics == run.metrics
    assert (view.rows, view.ghost_rows, view.last_step) == (run.rows, run.ghost_rows, run.last_step)
    assert view.ghost_rows > 0
    for name in run.metrics:
        for ghosts in (False, True):
            np.testing.assert_array_equal(view.series(name, ghosts=ghosts), run.series(name, ghosts=ghosts))
    assert [row.step for row in view.last_rows(3)] == [row.step for row in run.last_rows(3)]
    assert (view.framework, view.algorithm, view.findings) == (run.framework, run.algorithm, [])


def test_reading_a_log_leaves_nothing_behind(log):
    before = sorted(log.parent.rglob("*"))
    view = open_any(log)
    view.epochs(steps_per_epoch=5)
    view.best("reward")
    assert sorted(log.parent.rglob("*")) == before


def test_a_run_opens_as_itself(tmp_path):
    with rlvitals.start(tmp_path / "run", monitor=False) as run:
        run.log({"loss": 1.0}, step=1)
    assert open_any(tmp_path / "run").info.id


@pytest.mark.parametrize("place", ["run1", "run1/metrics", "run1/metrics/epochs.jsonl"])
def test_a_folder_of_epochs_is_read_from_its_record(tmp_path, place):
    tracker = rlvitals.MetricsTracker(output_dir=str(tmp_path / "run1" / "metrics"), keep_last_epochs=2, plots=False)
    for epoch in range(1, 6):
        tracker.log_epoch(epoch=epoch, loss=1.0 / epoch, reward=epoch / 10)
    tracker.log_epoch(epoch=3, bleu=0.25)
    tracker.close()
    view = open_any(tmp_path / place)
    assert view.name == "run1"
    assert view.series("reward").values.tolist() == [0.1, 0.2, 0.3, 0.4, 0.5]
    assert [column.tolist() for column in view.series("bleu")] == [[3], [0.25]]


def test_a_table_alone_is_read_too(tmp_path):
    (tmp_path / "run2" / "metrics").mkdir(parents=True)
    table = "epoch,timestamp,loss,reward\n1,2026-01-01T10:00:00,2.0,0.5\n2,2026-01-01T11:00:00,1.0,0.75\n"
    (tmp_path / "run2" / "metrics" / "training_metrics.csv").write_text(table)
    steps, rewards = open_any(tmp_path / "run2").series("reward")
    assert (steps.tolist(), rewards.tolist()) == ([1, 2], [0.5, 0.75])


def test_what_is_not_there_is_reported_with_the_nearest_name(tmp_path):
    (tmp_path / "run-one").mkdir()
    with pytest.raises(NotALog, match="Did you mean 'run-one'"):
        open_any(tmp_path / "run-onne")


@pytest.mark.parametrize("is_run", [False, True])
def test_epochs_are_judged_alike_by_check_and_in_a_report_however_they_are_named(tmp_path, is_run):
    """The table and the history beside the record are written only now and then."""
    if is_run:
        rlvitals.start(tmp_path / "out", display="none", hardware=False).finish()
    tracker = rlvitals.MetricsTracker(tmp_path / "out" / "metrics", save_every_n_epochs=10, plots=False, display="none")
    for epoch in range(1, 16):
        tracker.log_epoch(epoch, loss=1 / epoch, reward=0.1 * epoch)
    for place in (tmp_path / "out", tmp_path / "out" / "metrics", tmp_path / "out" / "metrics" / "epochs.jsonl"):
        report, told = rlvitals.check(place), gather(place).check
        assert (report.verdict, report.rows, report.format) == ("healthy", 15, "epochs")
        assert (told["verdict"], told["rows"], told["source"]) == (report.verdict, report.rows, report.source)


def test_a_killed_run_of_epochs_is_a_run_whose_process_is_gone(tmp_path, child_environment):
    code = (
        "import os, rlvitals\n"
        "rlvitals.start('out', display='none', hardware=False)\n"
        "tracker = rlvitals.MetricsTracker('out/metrics', plots=False, display='none')\n"
        "for epoch in range(1, 16): tracker.log_epoch(epoch, loss=1 / epoch, reward=0.1 * epoch)\n"
        "os._exit(9)\n"
    )
    subprocess.run([sys.executable, "-c", code], cwd=tmp_path, env=child_environment, check=False, timeout=60)
    report = rlvitals.check(tmp_path / "out")
    assert (report.verdict, report.rows, [found.rule for found in report.findings]) == ("act", 15, ["process_gone"])
    assert gather(tmp_path / "out").check["verdict"] == "act"
