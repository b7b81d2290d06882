"""Logs of other tools among the runs of a folder: which are listed, the same verdict as `check`, and the limits."""

from __future__ import annotations

import json
import os

import pytest

import rlvitals
from rlvitals.errors import RunNotFound
from rlvitals.views import raw_logs
from rlvitals.views.raw_logs import find_logs, state_of
from rlvitals.web.folder import Folder


def rows(count=40):
    return [{"step": step, "loss": 1 / step, "grad_norm": 1.0, "reward": 0.01 * step} for step in range(1, count + 1)]


def write_log(path, count=40):
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text("".join(json.dumps(row) + "\n" for row in rows(count)))
    return path


@pytest.fixture
def folder(tmp_path):
    """A recorded run, a trainer's state and an older one in a checkpoint, a deeply nested log, and other files."""
    with rlvitals.start(tmp_path / "own", display="none", hardware=False) as run:
        for row in rows(20):
            run.log(row)
    write_log(tmp_path / "own" / "train_log.jsonl")  # a log inside a run belongs to the run
    for place, steps in (("hf/checkpoint-20", 20), ("hf", 40)):
        (tmp_path / place).mkdir(parents=True, exist_ok=True)
        state = {"global_step": steps, "log_history": rows(steps)}
        (tmp_path / place / "trainer_state.json").write_text(json.dumps(state))
    write_log(tmp_path / "deep" / "er" / "metrics.jsonl")
    (tmp_path / "config.json").write_text('{"a": 1}')
    (tmp_path / "notes.txt").write_text("nothing to read here")
    (tmp_path / "deep" / "data.json").write_text("[1, 2]")
    return tmp_path


def test_logs_are_listed_with_the_verdict_that_check_gives(folder):
    served = Folder(folder)
    assert {line["run"] for line in served.runs()["runs"]} == {"own"}  # the others are still being read
    served.logs.wait()
    lines = {line["run"]: line for line in served.runs()["runs"]}
    assert lines.keys() == {"own", "hf", "deep/er/metrics.jsonl"}
    for name in ("hf", "deep/er/metrics.jsonl"):
        report = rlvitals.check(folder / name)
        line = lines[name]
        assert (line["verdict"], line["reason"], line["rows"]) == (report.verdict, report.reason, report.rows)
        assert served.view(name).rows == 40


def test_nothing_else_is_opened_as_a_log(folder):
    outside = write_log(folder.parent / f"{folder.name}-outside" / "secret_log.jsonl")
    os.symlink(outside, folder / "train.jsonl")
    served = Folder(folder)
    served.runs()
    served.logs.wait()
    for name in ("config.json", "notes.txt", "train.jsonl", "deep/data.json", "../x", "own/train_log.jsonl"):
        with pytest.raises(RunNotFound):
            served.served(name)


def test_a_log_in_a_folder_that_is_a_link_to_the_outside_is_not_read(folder):
    outside = folder.parent / f"{folder.name}-outside"
    write_log(outside / "files" / "wandb-history.jsonl")
    run = folder / "wandb" / "run-20260101_000000-abc"
    run.mkdir(parents=True)
    os.symlink(outside / "files", run / "files")
    assert not any(run == log or run in log.parents for log in find_logs(folder).logs)


def test_a_log_that_grows_is_read_again_and_its_page_gets_it(folder):
    log = folder / "deep" / "er" / "metrics.jsonl"
    served = Folder(folder)
    served.runs()
    served.logs.wait()
    tail = served.tail("deep/er/metrics.jsonl", "")
    assert tail.look().rows == 0
    assert served.view("deep/er/metrics.jsonl").rows == 40
    before = state_of(log)
    write_log(log, 60)
    assert state_of(log) != before
    assert tail.look().rows == 1
    assert served.view("deep/er/metrics.jsonl").rows == 60
    served.logs._due = 0.0
    served.runs()
    served.logs.wait()
    assert {line["run"]: line["rows"] for line in served.runs()["runs"]}["deep/er/metrics.jsonl"] == 60


def test_what_is_left_out_is_counted_and_reported(folder, monkeypatch):
    for number in range(6):
        write_log(folder / "many" / f"train_{number}.csv")
    monkeypatch.setattr(raw_logs, "MOST_LOGS", 3)
    found = find_logs(folder)
    assert len(found.logs) == 3
    assert found.left_out >= 5
    assert found.note.startswith(f"{found.left_out} more files that may be logs are not shown")
    monkeypatch.setattr(raw_logs, "LARGEST", 100)
    assert raw_logs.read_raw(folder / "hf") is None
