"""A run continues while its directory is renamed, deleted or taken by another run, and keeps all its files."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

import rlvitals
from conftest import fill, until
from health_lines import finding_line
from rlvitals.records import Finding
from rlvitals.store.cards import read_attempts, read_info
from rlvitals.store.findings import read_events
from rlvitals.store.layout import RunDir
from rlvitals.store.lock import read_holder
from rlvitals.store.reader import read_rows
from rlvitals.store.rollouts import rollout_files

LOG = Path("logs/training_metrics.jsonl")
QUIET = {"monitor": False, "hardware": False}
FINDING = Finding("kl_high", "kl", "warning", 3, 2, "KL is high", 0.9, {}, (), (), "none", ("kl",))

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="a renamed directory is found through /proc")


def steps_of(folder, log=LOG):
    return [row.step for row in read_rows(folder / log)]


def log_some(run, steps):
    for step in steps:
        run.log({"loss": step / 8}, step=step)


def look(run):
    """Check the files, as `log` does about once a second and the background thread every ten."""
    for writer in run._all_writers:
        writer.tend()


def log_everything(run, step):
    """Log one row of every kind; each kind has its own file."""
    run.log({"loss": step / 8}, step=step)
    run.log_eval({"accuracy": step / 10}, step=step)
    run.log_groups([{"id": f"g{step}", "prompt": "p", "rollouts": [{"reward": 1.0}]}], step)
    with run.phase("train"):
        pass
    assert run._append_finding(finding_line(FINDING, float(step), 1))


def holds_everything(folder, steps):
    run_dir = RunDir(folder)
    assert steps_of(folder) == steps
    assert steps_of(folder, "logs/eval_metrics.jsonl") == steps
    assert [file.step for file in rollout_files(run_dir)] == steps
    assert [event.timestamp for event in read_events(run_dir)] == steps
    assert sorted(int(path.stem[-4:]) for path in run_dir.eval_logs.iterdir()) == steps


# Renamed


@pytest.mark.parametrize("is_taken", [False, True], ids=["the name is free", "another run has the name"])
def test_a_run_follows_its_renamed_directory_with_every_file(tmp_path, caplog, is_taken):
    old, new = tmp_path / "out", tmp_path / "kept"
    with rlvitals.start(old, fsync=0.05, **QUIET) as run:
        log_everything(run, 1)
        old.rename(new)
        if is_taken:
            with rlvitals.start(old, **QUIET) as other:
                log_some(other, [100])
        log_everything(run, 2)
        heartbeat = (new / "heartbeat").read_text()
        assert until(lambda: (new / "heartbeat").read_text() not in (heartbeat, ""))
        assert read_holder(RunDir(new)).is_live
        assert run.dir == str(new)
        log_everything(run, 3)
    holds_everything(new, [1, 2, 3])
    assert read_info(RunDir(new)).status == "finished"
    assert not (new / "run.lock").exists()
    if is_taken:
        assert steps_of(old) == [100]
        assert read_info(RunDir(old)).id == other.id
        assert not (old / "eval_logs").exists()
    else:
        assert not old.exists()
    warnings = [message for message in caplog.messages if "was renamed while the run was being recorded" in message]
    assert len(warnings) == 1
    assert f"{old} was renamed" in warnings[0]
    assert f"continues in {new}" in warnings[0]
    assert rlvitals.open_run(new).problems == []


def test_a_directory_renamed_twice_is_followed_twice(tmp_path):
    with rlvitals.start(tmp_path / "a", **QUIET) as run:
        log_everything(run, 1)
        (tmp_path / "a").rename(tmp_path / "b")
        log_everything(run, 2)
        (tmp_path / "b").rename(tmp_path / "c")
        log_everything(run, 3)
    holds_everything(tmp_path / "c", [1, 2, 3])
    assert sorted(path.name for path in tmp_path.iterdir()) == ["c"]


def test_a_link_that_leads_elsewhere_now_does_not_split_the_run(tmp_path):
    """`latest` is such a link: it points to the next run as soon as that starts."""
    (tmp_path / "first").mkdir()
    (tmp_path / "second").mkdir()
    (tmp_path / "latest").symlink_to("first")
    with rlvitals.start(tmp_path / "latest", **QUIET) as run:
        log_everything(run, 1)
        (tmp_path / "latest").unlink()
        (tmp_path / "latest").symlink_to("second")
        log_everything(run, 2)
    holds_everything(tmp_path / "first", [1, 2])
    assert not list((tmp_path / "second").iterdir())


def test_epochs_and_other_ranks_follow_a_renamed_directory_too(tmp_path):
    old, new = tmp_path / "out", tmp_path / "kept"
    with (
        rlvitals.start(old, **QUIET) as run,
        rlvitals.start(old, rank=3, **QUIET) as other,
        rlvitals.MetricsTracker(old / "metrics", plots=False, display="none") as epochs,
    ):
        for number in (1, 2):
            log_some(run, [number])
            log_some(other, [number])
            epochs.log_epoch(number, loss=1.0)
            if number == 1:
                old.rename(new)
                run.place()
    assert not old.exists()
    assert steps_of(new, "logs/ranks/rank-3.jsonl") == steps_of(new) == [1, 2]
    lines = (new / "metrics/epochs.jsonl").read_text().splitlines()
    assert [json.loads(line)["epoch"] for line in lines] == [1, 2]


def test_a_tracker_goes_on_where_a_renamed_run_is(tmp_path):
    old, new = tmp_path / "out", tmp_path / "kept"
    with rlvitals.start(old, track_with="json", fsync=0.05, **QUIET) as run:
        log_some(run, range(3))
        assert until((old / "logs/metrics.json").exists)
        old.rename(new)
        log_some(run, range(3, 6))
    rows = json.loads((new / "logs/metrics.json").read_text())
    assert [row["step"] for row in rows] == list(range(6))
    assert not old.exists()


# Deleted, and another run started there


@pytest.mark.parametrize("what", ["the directory", "all that is in it"])
def test_a_run_started_where_a_live_one_was_deleted_keeps_its_rows_to_itself(tmp_path, caplog, what):
    folder = tmp_path / "out"
    old = rlvitals.start(folder, **QUIET)
    log_some(old, range(3))
    old.log_eval({"accuracy": 0.5}, step=2)
    if what == "the directory":
        shutil.rmtree(folder)
    else:
        for path in folder.iterdir():
            shutil.rmtree(path) if path.is_dir() else path.unlink()
    with rlvitals.start(folder, **QUIET) as new:
        log_some(new, [100])
        look(old)
        log_some(old, range(3, 5))
        old.log_eval({"accuracy": 0.75}, step=4)
        log_some(new, [101])
        assert read_holder(RunDir(folder)).is_live
    old.finish()
    beside = tmp_path / f"out-{old.id}"
    assert steps_of(folder) == [100, 101]
    assert (read_info(RunDir(folder)).id, read_info(RunDir(folder)).status) == (new.id, "finished")
    assert sorted(path.name for path in folder.iterdir()) == [
        "attempts.jsonl",
        "config.json",
        "heartbeat",
        "logs",
        "run.json",
    ]
    assert steps_of(beside) == list(range(5))
    assert steps_of(beside, "logs/eval_metrics.jsonl") == [2, 4]
    assert (read_info(RunDir(beside)).id, read_info(RunDir(beside)).status) == (old.id, "finished")
    assert not (beside / "run.lock").exists()
    warnings = [message for message in caplog.messages if "another run was started there" in message]
    assert len(warnings) == 1
    assert f"continues in {beside}" in warnings[0]
    assert rlvitals.open_run(beside).problems == []


def test_the_first_sign_of_another_run_is_its_lock(tmp_path):
    """A run takes the lock first and writes its card a moment later."""
    folder = tmp_path / "out"
    with rlvitals.start(folder, **QUIET) as run:
        log_some(run, range(3))
        shutil.rmtree(folder)
        folder.mkdir()
        other = {"host": "elsewhere", "pid": 1, "boot": "", "started": "", "token": "of-another", "since": 1.0}
        (folder / "run.lock").write_text(json.dumps(other))
        look(run)
        log_some(run, [3])
    assert [path.name for path in folder.iterdir()] == ["run.lock"]
    assert steps_of(tmp_path / f"out-{run.id}") == [0, 1, 2, 3]


def test_another_rank_of_a_deleted_run_goes_where_rank_0_went(tmp_path):
    folder = tmp_path / "out"
    old, rank = rlvitals.start(folder, **QUIET), None
    rank = rlvitals.start(folder, rank=2, **QUIET)
    log_some(old, [1])
    log_some(rank, [1])
    shutil.rmtree(folder)
    with rlvitals.start(folder, **QUIET) as new:
        log_some(new, [100])
        for run in (rank, old):
            look(run)
            log_some(run, [2])
    rank.finish()
    old.finish()
    beside = tmp_path / f"out-{old.id}"
    assert steps_of(beside) == steps_of(beside, "logs/ranks/rank-2.jsonl") == [1, 2]
    assert steps_of(folder) == [100]
    assert not (folder / "logs/ranks").exists()


def test_a_deleted_directory_without_another_run_is_made_again_under_its_name(tmp_path):
    folder = tmp_path / "out"
    with rlvitals.start(folder, **QUIET) as run:
        log_some(run, range(3))
        shutil.rmtree(folder)
        (folder / "checkpoint-50").mkdir(parents=True)  # made by the trainer
        look(run)
        log_some(run, [3])
    assert steps_of(folder) == [0, 1, 2, 3]
    assert sorted(path.name for path in tmp_path.iterdir()) == ["out"]
    assert [attempt.number for attempt in read_attempts(RunDir(folder))] == [1]


# One file of a run


def test_a_log_that_was_moved_away_is_made_again_with_every_row(tmp_path, caplog):
    with rlvitals.start(tmp_path / "run", **QUIET) as run:
        log_some(run, range(3))
        (tmp_path / "run" / LOG).rename(tmp_path / "elsewhere.jsonl")
        look(run)
        log_some(run, [3])
    assert steps_of(tmp_path / "run") == [0, 1, 2, 3]
    assert steps_of(tmp_path, "elsewhere.jsonl") == [0, 1, 2]
    assert any("it is created again (no row is lost)" in message for message in caplog.messages)


def test_a_log_that_was_edited_in_place_of_itself_gets_what_it_lacks(tmp_path, caplog):
    """`sed -i` puts a new file under the old name, while rows still go to the old file."""
    log = tmp_path / "run" / LOG
    with rlvitals.start(tmp_path / "run", **QUIET) as run:
        log_some(run, range(4))
        lines = log.read_bytes().splitlines(keepends=True)
        (tmp_path / "edited").write_bytes(b"".join(lines[1:]))
        log_some(run, [4])
        os.replace(tmp_path / "edited", log)
        log_some(run, [5])
        look(run)
        log_some(run, [6])
    assert steps_of(tmp_path / "run") == [1, 2, 3, 4, 5, 6]
    assert any("the rows missing there are added" in message for message in caplog.messages)


def test_half_a_copy_of_a_deleted_log_is_taken_back(small_disk):
    """The disk fills up during the copy. A partial copy must be removed, or the next try would repeat its rows."""
    folder = small_disk / "run"
    with rlvitals.start(folder, **QUIET) as run:
        for step in range(60):
            run.log({"note": "x" * 700}, step=step)
        (folder / LOG).unlink()
        filler = fill(small_disk)
        os.truncate(filler, filler.stat().st_size - 16384)  # room for some of the rows
        look(run)
        assert not (folder / LOG).exists() or (folder / LOG).read_bytes() == b""
        filler.unlink()
        look(run)
        assert steps_of(folder) == list(range(60))
    assert steps_of(folder) == list(range(60))


def test_rows_of_a_deleted_log_that_cannot_be_made_again_are_rescued(tmp_path, monkeypatch, caplog):
    """The parent directory is gone until the end, as with a lost mount."""
    elsewhere = tmp_path / "elsewhere"
    elsewhere.mkdir()
    monkeypatch.setattr("tempfile.tempdir", str(elsewhere))
    with rlvitals.start(tmp_path / "above" / "run", **QUIET) as run:
        log_some(run, range(3))
        shutil.rmtree(tmp_path / "above")
        log_some(run, range(3, 6))
    (rescue,) = elsewhere.iterdir()
    assert steps_of(elsewhere, rescue.name) == list(range(6))
    assert any(f"6 rows could not be written to {tmp_path / 'above/run' / LOG}" in text for text in caplog.messages)


# The lock


def test_a_full_disk_at_the_first_heartbeat_leaves_no_lock(small_disk):
    """The lock fits on the disk, the heartbeat does not."""
    folder = small_disk / "run"
    folder.mkdir()
    filler = fill(small_disk)
    os.truncate(filler, filler.stat().st_size - 4096)
    with pytest.raises(rlvitals.errors.RunError, match="No space left"):
        rlvitals.start(folder, **QUIET)
    assert [path.name for path in folder.iterdir() if path.name.startswith("run.lock")] == []
    filler.unlink()
    with rlvitals.start(folder, **QUIET) as run:
        log_some(run, [0])
    assert steps_of(folder) == [0]


def test_a_process_started_again_records_where_its_forebear_still_lives(tmp_path, child_environment):
    """With two processes: rm -rf, a new process starts there, and the old one continues."""
    script = """
import sys, rlvitals
run = rlvitals.start(sys.argv[1], monitor=False, hardware=False)
for line in sys.stdin:
    run.log({"loss": 0.5}, step=int(line))
    print("logged", flush=True)
run.finish()
print(run.dir, flush=True)
"""
    words = [sys.executable, "-c", script, str(tmp_path / "out")]
    pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "text": True, "env": child_environment}

    def log_step(child, step):
        child.stdin.write(f"{step}\n")
        child.stdin.flush()
        assert child.stdout.readline() == "logged\n"

    old = subprocess.Popen(words, **pipes)
    log_step(old, 1)
    shutil.rmtree(tmp_path / "out")
    new = subprocess.Popen(words, **pipes)
    log_step(new, 100)
    log_step(old, 2)
    folders = [child.communicate(timeout=60)[0].strip() for child in (old, new)]
    assert folders[1] == str(tmp_path / "out")
    assert steps_of(Path(folders[0])) == [1, 2]
    assert steps_of(tmp_path / "out") == [100]
