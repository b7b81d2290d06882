"""A process changes its working directory: all files of a run stay where they were at the start.

Each test changes it in a real child process.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import textwrap
from pathlib import Path

import pytest

import rlvitals
from rlvitals.capture.start import keep_given
from rlvitals.errors import RuleError
from rlvitals.sinks.mlflow import MlflowSink
from rlvitals.sinks.tensorboard import TensorBoardSink

pytestmark = pytest.mark.slow


@pytest.fixture
def child(tmp_path, child_environment):
    """Run a script in the folder `here`. It may change to `there`, which must stay empty."""
    here, there = tmp_path / "here", tmp_path / "there"
    here.mkdir()
    there.mkdir()

    def run(script: str) -> str:
        done = subprocess.run(
            [sys.executable, "-c", "import os, sys, json, rlvitals\n" + textwrap.dedent(script)],
            env=child_environment, cwd=here, capture_output=True, text=True, check=False,
        )  # fmt: skip
        assert done.returncode == 0, done.stderr
        assert not list(there.rglob("*")), "files went along with the working directory"
        return done.stdout

    run.here = here
    return run


def lines_of(path: Path) -> list[dict]:
    return [json.loads(line) for line in path.read_text().splitlines()]


def test_a_run_stays_in_its_folder(child):
    (child.here / "rules.yaml").write_text(
        "- {rule: high, kind: instability, when: loss > 0.5, hold: 2 of 2, severity: critical, title: high}\n"
    )
    child("""
        run = rlvitals.start(
            "out", track_with=["csv", "json"],
            tracker_kwargs={"csv": {"path": "rows.csv"}, "json": {"path": "rows.json"}},
            rules="rules.yaml", notify={"sentinel": "stop.json"},
        )
        os.chdir("../there")
        for step in range(4):
            run.log({"loss": 1.0}, step=step)
        run.log_eval({"accuracy": 0.5}, step=3)
        run.log_groups([{"prompt": "p", "rollouts": [{"text": "t", "reward": 1.0}]}], step=3)
        with run.phase("generate"):
            pass
        assert run.findings[0].rule == "high", run.findings
        assert os.path.isabs(run.dir)
        run.finish()
    """)
    out = child.here / "out"
    assert json.loads((out / "run.json").read_text())["status"] == "finished"
    assert len(lines_of(out / "logs" / "training_metrics.jsonl")) == 4
    assert (out / "eval_logs" / "eval_step_0003.json").exists()
    assert (out / "logs" / "rollouts" / "step-000003.jsonl").exists()
    assert len((child.here / "rows.csv").read_text().splitlines()) == 6
    assert '"step"' in (child.here / "rows.json").read_text()
    assert json.loads((child.here / "stop.json").read_text())["finding"]["rule"] == "high"
    kept = json.loads((out / "config.json").read_text())["rlvitals"]
    assert [entry["rule"] for entry in kept["rules"]] == ["high"]
    assert kept["tracker_kwargs"]["csv"]["path"] == str(child.here / "rows.csv")


def test_trackers_in_a_thread_stay_in_their_files(child):
    child("""
        import subprocess
        def refuse(*_, **__):
            raise PermissionError("not allowed to spawn")
        subprocess.Popen = refuse
        run = rlvitals.start("out", track_with="json", tracker_kwargs={"path": "rows.json"})
        os.chdir("../there")
        run.log({"loss": 1.0}, step=0)
        run.finish()
    """)
    assert '"loss"' in (child.here / "rows.json").read_text()


def test_a_run_started_through_a_link_stays_in_the_folder_it_led_to(child):
    """`latest` points to another run as soon as that starts."""
    child("""
        os.mkdir("first"); os.mkdir("second")
        os.symlink("first", "latest")
        run = rlvitals.start("latest")
        run.log({"loss": 1.0}, step=0)
        os.unlink("latest"); os.symlink("second", "latest")
        run.log_eval({"accuracy": 0.5}, step=0)
        run.finish()
    """)
    assert not list((child.here / "second").iterdir())
    assert json.loads((child.here / "first" / "run.json").read_text())["status"] == "finished"
    assert (child.here / "first" / "eval_logs" / "eval_step_0000.json").exists()


def test_epochs_stay_in_their_folder(child):
    out = child("""
        run = rlvitals.start("out")
        beside, alone = (rlvitals.MetricsTracker(folder, plots=False) for folder in ("out/metrics", "alone"))
        os.chdir("../there")
        run.log({"loss": 1.0}, step=7)
        for tracker in (beside, alone):
            tracker.log_epoch(epoch=1, loss=0.5)
            tracker.close()
        print(json.dumps(alone.export_summary()["record_file"]))
        run.finish()
    """)
    assert lines_of(child.here / "out" / "metrics" / "epochs.jsonl")[0]["step"] == 7
    assert json.loads(out) == str(child.here / "alone" / "epochs.jsonl")
    assert Path(json.loads(out)).exists()


def test_a_request_names_its_checkpoint_in_full(child):
    out = child("""
        os.makedirs("out/checkpoint-3")
        run = rlvitals.start("out", actions="act")
        os.chdir("../there")
        for step in range(8):
            run.log({"loss": 1.0 if step < 5 else float("nan"), "grad_norm": 1.0}, step=step)
        print(run.request(everywhere=False).checkpoint)
        run.finish()
    """)
    assert out.strip() == str(child.here / "out" / "checkpoint-3")


def test_a_view_reads_on_after_the_working_directory_has_changed(child):
    with rlvitals.start(child.here / "out") as run:
        for step in range(5):
            run.log({"loss": float(step)}, step=step)
    (child.here / "log.jsonl").write_text('{"step": 1, "loss": 0.5}\n{"step": 2, "loss": 0.25}\n')
    child("""
        from pathlib import Path
        from rlvitals.importers.tail import LogTail
        from rlvitals.tui.watched import Watched
        from rlvitals.views.feeds import RunFeed
        from rlvitals.views.run_tail import RunTail
        view, log = rlvitals.open_run("out"), LogTail("log.jsonl")
        feed, tail = RunFeed(Path("out")), RunTail(Path("out"), "0-0-0")
        watched = Watched(Path("out"))
        assert str(view.path) == "out", view.path  # as it was typed
        os.chdir("../there")
        assert view.series("loss").values.tolist() == [0.0, 1.0, 2.0, 3.0, 4.0]
        assert view.status == "finished" and view.last_step == 4 and not view.findings
        assert view.path.is_absolute() and view.path.is_dir(), view.path
        assert len(feed.poll().rows) == 5 and feed.ending == "the run is finished", feed.ending
        assert tail.look().rows == 5
        assert len(log.poll().rows) == 2
        watched.poll()
        assert watched.judge.points == 5 and watched.path.is_dir(), watched.problem
    """)


@pytest.mark.parametrize("given", ["rules", "notify", "tracker_kwargs", "resume"])
def test_what_is_started_later_elsewhere_is_given_its_files_in_full(tmp_path, monkeypatch, given):
    monkeypatch.chdir(tmp_path)
    Path("file").mkdir() if given == "resume" else Path("file").write_text("rules: [{rule: plateau, enabled: false}]\n")
    values = {
        "rules": ["kl > 0.5 for 5: warning", "file"],
        "notify": {"sentinel": "file", "webhook": "${env:HOOK}"},
        "tracker_kwargs": {"csv": {"path": "file"}},
        "resume": "file",
    }
    monkeypatch.setenv("HOOK", "https://example.org/secret")
    kept = keep_given({"track_with": ["csv", "json"], given: values[given]})
    full = str(tmp_path / "file")
    expected = {
        "rules": ("kl > 0.5 for 5: warning", {"rule": "plateau", "enabled": False}),
        "notify": {"sentinel": full, "webhook": "${env:HOOK}"},
        "tracker_kwargs": {"csv": {"path": full}},
        "resume": full,
    }
    assert kept[given] == expected[given]


@pytest.mark.parametrize("start", [rlvitals.start, lambda _, **given: keep_given(given)])
def test_an_error_in_a_rule_file_names_the_file_and_the_line(tmp_path, start):
    (file := tmp_path / "own.yaml").write_text("- {rule: plateau, enabled: false}\n- {rule: plateau, hold: 5 of 2}\n")
    with pytest.raises(RuleError, match=r"own\.yaml, line 2"):
        start(tmp_path / "run", rules=str(file))
    assert not (tmp_path / "run").exists()


def test_trackers_know_which_of_their_settings_are_paths(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    assert TensorBoardSink.with_kept_paths({"log_dir": "tb", "max_queue": 3}) == {
        "log_dir": f"{tmp_path}/tb",
        "max_queue": 3,
    }
    assert MlflowSink.with_kept_paths({"tracking_uri": "sqlite:///m.db"}) == {
        "tracking_uri": f"sqlite:///{tmp_path}/m.db"
    }
    for address in ("http://localhost:5000", "sqlite:////data/m.db", "databricks"):
        assert MlflowSink.with_kept_paths({"tracking_uri": address}) == {"tracking_uri": address}
    assert MlflowSink.with_kept_paths({"artifact_location": "s3://bucket/x"}) == {"artifact_location": "s3://bucket/x"}


def test_a_trackers_file_under_the_name_an_earlier_version_recorded_is_continued(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    with rlvitals.start("out", track_with="csv", tracker_kwargs={"path": "rows.csv"}) as run:
        run.log({"loss": 1.0}, step=0)
    cursor = Path("out/sinks/csv.json")
    state = json.loads(cursor.read_text())
    state["memory"]["path"] = "rows.csv"
    cursor.write_text(json.dumps(state))
    with rlvitals.start("out", track_with="csv", tracker_kwargs={"path": "rows.csv"}, resume=True) as run:
        run.log({"loss": 2.0}, step=1)
    assert len(Path("rows.csv").read_text().splitlines()) == 3
    assert not os.path.exists("rows.csv.1")
