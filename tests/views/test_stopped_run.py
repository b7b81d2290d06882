"""A run whose process has died: no view shows it as healthy, and each shows where it stopped and how to resume."""

from __future__ import annotations

import json
import os
import subprocess
import sys

import pytest

import rlvitals
from rlvitals.cli.main import main
from rlvitals.records import RunInfo
from rlvitals.tui.watched import Watched
from rlvitals.views.headlines import Headlines
from rlvitals.views.report import gather
from rlvitals.views.stopped_run import resume_words
from rlvitals.web.folder import Folder

KILLED = """
import os, signal, sys
import rlvitals

run = rlvitals.start(sys.argv[1], algorithm="grpo", total_steps=60, display="none", hardware=False)
for step in range(1, 37):
    run.log({"reward": 0.3 + 0.01 * step, "loss": 1 / step, "grad_norm": 0.5, "entropy": 1.0}, step=step)
os.kill(os.getpid(), signal.SIGKILL)
"""
STOPPED = "stopped at step 36 of 60: the process is gone"


@pytest.fixture(scope="module")
def dead(tmp_path_factory):
    run = tmp_path_factory.mktemp("dead") / "run"
    subprocess.run([sys.executable, "-c", KILLED, run], check=False)
    return run


def test_every_place_says_that_it_stopped(dead, capsys):
    resume = f"resume from your newest checkpoint, with rlvitals.start({str(dead)!r}, resume=STEP)"
    reason = f"{STOPPED}; {resume}"
    view = rlvitals.open_run(dead)
    watched = Watched(dead)
    for _ in range(3):  # reported once, however often it is read
        watched.poll()
    report = gather(dead)
    listed = Folder(dead.parent).runs()["runs"][0]
    verdicts = {
        "check": (rlvitals.check(dead).verdict, rlvitals.check(dead).reason),
        "watch": (watched.diagnosis.verdict, watched.diagnosis.reason),
        "report": (report.check["verdict"], report.check["reason"]),
        "list": (listed["verdict"], listed["reason"]),
        "headline": tuple(Headlines().of(dead)[key] for key in ("verdict", "reason")),
    }
    assert verdicts == dict.fromkeys(verdicts, ("act", reason))
    assert [(found.rule, found.step) for found in view.findings] == [("process_gone", 36)]
    assert [found.rule for found in watched.findings] == ["process_gone"]
    assert main(["runs", str(dead.parent)]) == 0
    assert STOPPED in " ".join(capsys.readouterr().out.split())
    assert STOPPED in view._repr_html_()
    assert "Healthy" not in view._repr_html_()


def test_a_silent_run_of_another_machine_is_not_called_gone(dead, tmp_path):
    import shutil

    run = tmp_path / "run"
    shutil.copytree(dead, run)
    lock = json.loads((run / "run.lock").read_text())
    (run / "run.lock").write_text(json.dumps(lock | {"host": "node7"}))
    card = json.loads((run / "run.json").read_text())
    (run / "run.json").write_text(json.dumps(card | {"host": "node7"}))
    assert rlvitals.open_run(run).status == "running"  # its heartbeat is seconds old
    for name in ("heartbeat", "run.lock"):
        os.utime(run / name, (1e9, 1e9))
    assert rlvitals.check(run).reason.startswith("stopped at step 36 of 60: no heartbeat from node7 any more; resume")


def test_a_run_that_goes_on_is_not_stopped_any_more(dead, tmp_path):
    import shutil

    run = tmp_path / "run"
    shutil.copytree(dead, run)
    with rlvitals.start(run, resume=True, display="none", hardware=False) as again:
        for step in range(37, 61):
            again.log({"reward": 0.3 + 0.01 * step, "loss": 1 / step, "grad_norm": 0.5, "entropy": 1.0}, step=step)
    assert rlvitals.check(run).verdict == "healthy"
    assert rlvitals.open_run(run).findings == []


@pytest.mark.parametrize(
    ("command", "words"),
    [
        (
            "/usr/bin/rlvitals train kto --output-dir out/demo --resume-from checkpoint-5 --seed 1",
            "resume with: rlvitals train kto --output-dir out/demo --seed 1 --resume-from last",
        ),
        ("rlvitals train ppo", "resume with: rlvitals train ppo --resume-from last"),
        ("rlvitals train ppo; rm -rf x", "resume from your newest checkpoint"),  # text of a user is not inserted
        ("train.py", "resume from your newest checkpoint"),
    ],
)
def test_the_command_that_resumes_one_of_our_trainers(tmp_path, command, words):
    info = RunInfo("", "", "running", 0.0, 0.0, command=command)
    assert resume_words(info, {}, tmp_path).startswith(words)


def test_a_trainer_of_transformers_resumes_where_it_saved_something(tmp_path):
    info = RunInfo("", "", "running", 0.0, 0.0, framework="trl_grpo", command="train.py")
    (tmp_path / "checkpoint-best").mkdir()  # transformers resumes from a number
    for folder in (7, "no\0folder"):
        assert resume_words(info, {"output_dir": folder}, tmp_path / "rlvitals").startswith("no checkpoint was saved")
    (tmp_path / "checkpoint-5").mkdir()
    assert resume_words(info, {}, tmp_path) == "resume with: trainer.train(resume_from_checkpoint=True)"
