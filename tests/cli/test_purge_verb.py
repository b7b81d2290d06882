"""`rlvitals purge` removes runs that were marked as deleted, after a confirmation, and nothing else."""

from __future__ import annotations

import io
import json

import pytest

import rlvitals
from rlvitals.cli.main import main
from rlvitals.store.marks import FolderMarks


@pytest.fixture
def folder(tmp_path):
    for name in ("kept", "gone", "sweep/gone"):
        with rlvitals.start(tmp_path / name, monitor=False, hardware=False, display="none") as run:
            run.log({"loss": 1.0}, step=1)
            run.log_eval({"accuracy": 0.5}, step=1)
    (tmp_path / "gone" / "checkpoint-1").mkdir()
    (tmp_path / "gone" / "checkpoint-1" / "weights").write_text("mine")
    for name in ("gone", "sweep/gone"):
        FolderMarks(tmp_path).mark(name, {"deleted": True, "note": "bad seed"})
    FolderMarks(tmp_path).mark("kept", {"archived": True})
    return tmp_path


def listed(folder, capsys):
    capsys.readouterr()
    assert main(["runs", str(folder), "--all", "--json"]) == 0
    return [line["path"].removeprefix(f"{folder}/") for line in json.loads(capsys.readouterr().out)]


def test_it_asks_first_and_yes_removes_what_rlvitals_wrote(folder, capsys, monkeypatch):
    class Terminal(io.StringIO):
        def isatty(self):
            return True

    monkeypatch.setattr("sys.stdin", Terminal("no\n"))
    assert main(["purge", str(folder)]) == 1
    assert "cannot be undone" in capsys.readouterr().out
    assert listed(folder, capsys) == ["gone", "kept", "sweep/gone"]
    monkeypatch.setattr("sys.stdin", Terminal("yes\n"))
    assert main(["purge", str(folder), "--json"]) == 0
    output, questions = capsys.readouterr()
    assert json.loads(output)["removed"] is True
    assert "cannot be undone" in questions
    assert listed(folder, capsys) == ["kept"]
    assert [path.name for path in (folder / "gone").iterdir()] == ["checkpoint-1"]
    assert (folder / "gone" / "checkpoint-1" / "weights").read_text() == "mine"
    assert not (folder / "sweep" / "gone").exists()
    assert FolderMarks(folder).read()["runs"] == {"kept": {"archived": True}}


def test_the_list_leaves_out_what_was_put_away(folder, capsys):
    assert main(["runs", str(folder), "--json"]) == 0
    assert json.loads(capsys.readouterr().out) == []
    assert listed(folder, capsys) == ["gone", "kept", "sweep/gone"]
    (folder / ".rlvitals-marks.json").write_text("{")
    assert main(["runs", str(folder), "--json"]) == 0
    assert len(json.loads(capsys.readouterr().out)) == 3


def test_without_a_terminal_it_needs_yes(folder, capsys, monkeypatch):
    monkeypatch.setattr("sys.stdin", io.StringIO("yes\n"))
    assert main(["purge", str(folder)]) == 64
    assert "--yes" in capsys.readouterr().err
    assert main(["purge", str(folder / "nowhere"), "--yes"]) == 64
    assert "nowhere is not a directory" in capsys.readouterr().err
    assert main(["purge", str(folder), "--dry-run", "--json"]) == 0
    facts = json.loads(capsys.readouterr().out)
    assert (facts["runs"], facts["removed"], facts["bytes"] > 500) == (["gone", "sweep/gone"], False, True)
    assert listed(folder, capsys) == ["gone", "kept", "sweep/gone"]


def test_marks_that_lead_elsewhere_and_running_runs_remove_nothing(folder, tmp_path_factory, capsys):
    outside = tmp_path_factory.mktemp("outside") / "run"
    with rlvitals.start(outside, monitor=False, hardware=False, display="none") as run:
        run.log({"loss": 1.0}, step=1)
    (folder / "link").symlink_to(outside)
    running = rlvitals.start(folder / "running", monitor=False, hardware=False, display="none")
    running.log({"loss": 1.0}, step=1)
    for name in ("link", "../outside/run", "running", "nowhere"):
        FolderMarks(folder).mark(name, {"deleted": True})
    assert main(["purge", str(folder), "--yes"]) == 0
    running.finish()
    errors = capsys.readouterr().err
    assert "is being recorded" in errors
    assert (outside / "run.json").exists()
    assert listed(folder, capsys) == ["kept", "running"]
