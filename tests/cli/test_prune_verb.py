"""`rlvitals prune` removes old rollouts and evaluations and keeps rows and everything else."""

from __future__ import annotations

import json

import pytest

import rlvitals
from rlvitals.cli.main import main


@pytest.fixture
def run_path(tmp_path):
    with rlvitals.start(tmp_path / "run", monitor=False, display="none") as run:
        for step in (0, 5, 10, 15, 20):
            run.log({"loss": 1.0}, step=step)
            run.log_groups([{"prompt": "p", "rollouts": ["x"]}], step=step)
            run.log_eval({"accuracy": 0.5}, step=step)
    return tmp_path / "run"


def files(run_path):
    rollouts = sorted(int(path.name[5:11]) for path in (run_path / "logs" / "rollouts").iterdir())
    return rollouts, sorted(int(path.stem[10:]) for path in (run_path / "eval_logs").iterdir())


def test_the_newest_rollouts_stay(run_path, capsys):
    assert main(["prune", str(run_path), "--rollouts-keep-last", "2"]) == 0
    assert "3 files" in capsys.readouterr().out
    assert files(run_path) == ([15, 20], [0, 5, 10, 15, 20])
    view = rlvitals.open_run(run_path)
    assert view.rows == 5
    assert view.rollout_log.steps == [15, 20]


def test_the_newest_evaluations_and_the_control_stay(run_path):
    assert main(["prune", str(run_path), "--evals-keep-last", "1"]) == 0
    assert files(run_path)[1] == [0, 20]


def test_every_nth_step_can_be_kept(run_path):
    words = ["--rollouts-keep-last", "1", "--evals-keep-last", "1", "--keep-every", "10"]
    assert main(["prune", str(run_path), *words]) == 0
    assert files(run_path) == ([0, 10, 20], [0, 10, 20])


def test_a_dry_run_removes_nothing(run_path, capsys):
    assert main(["prune", str(run_path), "--rollouts-keep-last", "0", "--dry-run", "--json"]) == 0
    facts = json.loads(capsys.readouterr().out)
    assert (len(facts["files"]), facts["removed"]) == (5, False)
    assert len(files(run_path)[0]) == 5


def test_packed_rollouts_are_pruned_too(run_path):
    assert main(["compact", str(run_path)]) == 0
    assert main(["prune", str(run_path), "--rollouts-keep-last", "1"]) == 0
    assert [path.name for path in (run_path / "logs" / "rollouts").iterdir()] == ["step-000020.jsonl.archive"]


@pytest.mark.parametrize("words", [[], ["--rollouts-keep-last", "-1"]])
def test_wrong_usage_is_reported(run_path, words, capsys):
    try:
        code = main(["prune", str(run_path), *words])
    except SystemExit as left:
        code = left.code
    assert code == 64
    assert "Traceback" not in capsys.readouterr().err
    assert len(files(run_path)[0]) == 5


def test_a_run_that_is_being_recorded_is_left_alone(tmp_path, capsys):
    with rlvitals.start(tmp_path / "run", monitor=False, display="none") as run:
        run.log_groups([{"prompt": "p", "rollouts": ["x"]}], step=1)
        run.log({"loss": 1.0}, step=1)
        assert main(["prune", str(tmp_path / "run"), "--rollouts-keep-last", "0"]) == 64
    assert "being recorded" in capsys.readouterr().err
