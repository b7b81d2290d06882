"""One live writer for each run: which writers are refused, which locks are taken over, and that only one wins."""

from __future__ import annotations

import json
import os
import platform
import signal
import subprocess
import sys
import time

import pytest

import rlvitals
from rlvitals.errors import RunLocked
from rlvitals.store.layout import RunDir
from rlvitals.store.lock import STALE_SECONDS, RunLock, read_holder
from rlvitals.store.process import this_process

pytestmark = pytest.mark.slow

HOLD = """
import sys
import rlvitals
run = rlvitals.start(sys.argv[1], resume=True)
run.log({"loss": 1.0})
print("holding", flush=True)
sys.stdin.read()
run.finish()
"""


@pytest.fixture
def other_writer(tmp_path, child_environment):
    """Start another live process that records into the given folder; it is ended after the test."""
    started = []

    def begin(folder):
        child = subprocess.Popen(
            [sys.executable, "-c", HOLD, str(folder)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            env=child_environment,
        )
        started.append(child)
        assert child.stdout.readline() == "holding\n"
        return child

    yield begin
    for child in started:
        child.kill()
        child.communicate()


def write_lock(folder, *, heartbeat_age=None, lock_age=0.0, **fields):
    """Write the lock of another process, with a heartbeat of the given age (None: no heartbeat)."""
    folder.mkdir(exist_ok=True)
    lock = folder / "run.lock"
    lock.write_text(json.dumps({**this_process().to_dict(), "token": "theirs", "since": time.time(), **fields}))
    os.utime(lock, (time.time() - lock_age,) * 2)
    if heartbeat_age is not None:
        (folder / "heartbeat").write_text("")
        os.utime(folder / "heartbeat", (time.time() - heartbeat_age,) * 2)


def is_taken_over(folder):
    """Try to start a run here; returns whether that worked."""
    try:
        run = rlvitals.start(folder, resume=True)
    except RunLocked:
        return False
    assert read_holder(RunDir(folder)).process == this_process()
    run.finish()
    assert not list(folder.glob("run.lock*"))
    return True


def dead_pid():
    child = subprocess.Popen([sys.executable, "-c", ""])
    child.wait()
    return child.pid


# Live writers


def test_a_second_writer_is_refused_with_the_first_one_s_pid_and_host(tmp_path, other_writer):
    child = other_writer(tmp_path / "run")
    log = tmp_path / "run/logs/training_metrics.jsonl"
    before = log.read_bytes()
    for how in ({}, {"resume": True}, {"overwrite": True}):
        with pytest.raises(RunLocked, match=f"another live process: pid {child.pid} on host {platform.node()}"):
            rlvitals.start(tmp_path / "run", **how)
    assert log.read_bytes() == before
    assert len((tmp_path / "run/attempts.jsonl").read_text().splitlines()) == 1
    child.communicate("")
    assert child.returncode == 0
    assert is_taken_over(tmp_path / "run")


def test_the_same_process_cannot_record_a_run_twice(tmp_path):
    with rlvitals.start(tmp_path) as run:
        with pytest.raises(RunLocked, match=rf"this process \(pid {os.getpid()} on host .*finish\(\)"):
            rlvitals.start(tmp_path, resume=True)
        run.log({"loss": 1.0})
    assert rlvitals.open_run(tmp_path).rows == 1


def test_the_lock_says_who_holds_it_and_goes_with_finish(tmp_path):
    run = rlvitals.start(tmp_path)
    held = json.loads((tmp_path / "run.lock").read_text())
    assert (held["pid"], held["host"]) == (os.getpid(), platform.node())
    assert time.time() - (tmp_path / "heartbeat").stat().st_mtime < STALE_SECONDS
    run.finish()
    assert not (tmp_path / "run.lock").exists()
    assert is_taken_over(tmp_path)


def test_a_deleted_lock_is_restored_without_leftovers(tmp_path):
    lock = RunLock(RunDir(tmp_path))
    lock.acquire()
    (tmp_path / "run.lock").unlink()
    assert lock.restore()
    assert lock.is_ours()
    assert [path.name for path in tmp_path.glob("run.lock*")] == ["run.lock"]


def test_the_lock_goes_when_the_block_fails(tmp_path):
    with pytest.raises(ZeroDivisionError), rlvitals.start(tmp_path):
        raise ZeroDivisionError
    assert not (tmp_path / "run.lock").exists()


def test_the_lock_goes_when_its_first_heartbeat_cannot_be_written(tmp_path):
    """Else this process, which is alive, could not acquire it again."""
    (tmp_path / "heartbeat").mkdir()
    with pytest.raises(OSError, match=r"not a regular file|Is a directory"):
        RunLock(RunDir(tmp_path)).acquire()
    assert [path.name for path in tmp_path.iterdir()] == ["heartbeat"]


def test_finish_leaves_a_lock_that_names_someone_else(tmp_path):
    run = rlvitals.start(tmp_path)
    write_lock(tmp_path, pid=1)
    run.finish()
    assert json.loads((tmp_path / "run.lock").read_text())["pid"] == 1


def test_two_runs_in_one_process_do_not_disturb_each_other(tmp_path):
    with rlvitals.start(tmp_path / "a") as first, rlvitals.start(tmp_path / "b") as second:
        first.log({"loss": 1.0})
        second.log({"loss": 2.0})
    assert rlvitals.open_run(tmp_path / "a").series("loss").values.tolist() == [1.0]
    assert rlvitals.open_run(tmp_path / "b").series("loss").values.tolist() == [2.0]


# Locks of dead processes


def test_the_lock_of_a_dead_process_is_taken_over_at_once_however_fresh_its_heartbeat(tmp_path):
    write_lock(tmp_path / "run", pid=dead_pid(), started="1", heartbeat_age=0)
    assert is_taken_over(tmp_path / "run")


def test_the_lock_of_a_killed_writer_is_taken_over(tmp_path, other_writer):
    child = other_writer(tmp_path / "run")
    child.kill()
    child.wait()
    assert rlvitals.open_run(tmp_path / "run").status == "interrupted"
    assert is_taken_over(tmp_path / "run")
    assert [attempt.number for attempt in rlvitals.open_run(tmp_path / "run").attempts] == [1, 2]


def test_a_killed_writer_nobody_has_reaped_is_dead(tmp_path, other_writer):
    """A zombie keeps its pid. A launcher that does not wait, or a container without init, leaves zombies."""
    child = other_writer(tmp_path / "run")
    os.kill(child.pid, signal.SIGKILL)
    os.waitid(os.P_PID, child.pid, os.WEXITED | os.WNOWAIT)  # it is dead and stays a zombie
    assert rlvitals.open_run(tmp_path / "run").status == "interrupted"
    assert is_taken_over(tmp_path / "run")


def test_a_pid_used_again_by_another_process_does_not_keep_the_lock(tmp_path):
    """The pid is our own, so it is alive, but the process that wrote the lock started at another time."""
    assert this_process().started, "the system does not tell when a process began"
    write_lock(tmp_path / "run", started="1", heartbeat_age=0)
    assert is_taken_over(tmp_path / "run")


def test_a_live_process_keeps_its_lock_however_old_its_heartbeat(tmp_path, other_writer):
    child = other_writer(tmp_path / "run")
    os.utime(tmp_path / "run/heartbeat", (0, 0))
    with pytest.raises(RunLocked, match=f"pid {child.pid}"):
        rlvitals.start(tmp_path / "run", resume=True)


# Locks that cannot be checked from here


ELSEWHERE = {"another host": {"host": "elsewhere"}, "an earlier boot": {"boot": "long-ago pid:[1]"}}


@pytest.mark.parametrize("where", ELSEWHERE)
def test_a_lock_from_elsewhere_holds_while_its_heart_beats(tmp_path, where):
    # The pid is dead on this machine, which must not matter.
    write_lock(tmp_path / "run", pid=dead_pid(), heartbeat_age=STALE_SECONDS / 2, lock_age=1000, **ELSEWHERE[where])
    with pytest.raises(RunLocked, match=r"pid \d+ on host \S+ \(last heartbeat 30 s ago\)"):
        rlvitals.start(tmp_path / "run", resume=True)
    assert json.loads((tmp_path / "run/run.lock").read_text())["token"] == "theirs"


@pytest.mark.parametrize("where", ELSEWHERE)
@pytest.mark.parametrize("heartbeat_age", [STALE_SECONDS + 1, None], ids=["stale", "none"])
def test_a_lock_from_elsewhere_falls_when_its_heart_has_stopped(tmp_path, where, heartbeat_age):
    # The pid is alive on this machine, which must not matter.
    write_lock(tmp_path / "run", heartbeat_age=heartbeat_age, lock_age=1000, **ELSEWHERE[where])
    assert is_taken_over(tmp_path / "run")


def test_a_lock_made_this_moment_elsewhere_holds_before_its_first_heartbeat(tmp_path):
    """A run resumed on another host: the lock is new, but the heartbeat is still yesterday's."""
    write_lock(tmp_path / "run", host="elsewhere", heartbeat_age=86400)
    assert not is_taken_over(tmp_path / "run")


@pytest.mark.parametrize("text", ["", "{", "[]", '{"pid": "many"}'], ids=repr)
def test_a_lock_that_says_nothing_is_taken_over(tmp_path, text):
    (tmp_path / "run").mkdir()
    (tmp_path / "run/run.lock").write_text(text)
    assert is_taken_over(tmp_path / "run")


def test_a_token_that_is_no_part_of_a_file_name_says_nothing(tmp_path):
    write_lock(tmp_path, token="../theirs")
    assert is_taken_over(tmp_path)


def test_a_claim_that_is_still_being_written_is_not_passed_over(tmp_path):
    write_lock(tmp_path, pid=dead_pid())
    (tmp_path / "run.lock.after.theirs").write_text("")
    with pytest.raises(RunLocked, match="keeps changing"):
        rlvitals.start(tmp_path, resume=True)
    assert json.loads((tmp_path / "run.lock").read_text())["token"] == "theirs"


def test_a_lock_removed_by_hand_and_taken_by_another_is_reported(tmp_path, caplog):
    with rlvitals.start(tmp_path, fsync=0.02) as run:
        write_lock(tmp_path, host="elsewhere", heartbeat_age=0)
        deadline = time.monotonic() + 10
        while not caplog.messages and time.monotonic() < deadline:
            time.sleep(0.01)
        run.log({"loss": 1.0})
    assert "names another writer now" in caplog.messages[0]
    assert json.loads((tmp_path / "run.lock").read_text())["host"] == "elsewhere"


# Races


RACE = """
import json, os, sys
from pathlib import Path
from rlvitals.errors import RunLocked
from rlvitals.store.layout import RunDir
from rlvitals.store.lock import RunLock, read_holder
from rlvitals.store.process import this_process

folder, rounds, contenders = Path(sys.argv[1]), int(sys.argv[2]), int(sys.argv[3])
for number in range(rounds):
    run_dir = RunDir(folder / str(number))
    run_dir.root.mkdir()
    gone = os.fork()
    if gone == 0:
        os._exit(0)
    os.waitpid(gone, 0)
    run_dir.lock.write_text(json.dumps({**this_process().to_dict(), "pid": gone, "started": "1", "token": "dead"}))
    go_read, go_write = os.pipe()
    stay_read, stay_write = os.pipe()
    result_read, result_write = os.pipe()
    children = []
    for _ in range(contenders):
        pid = os.fork()
        if pid == 0:
            os.close(go_write)
            os.close(stay_write)
            lock = RunLock(run_dir)
            os.read(go_read, 1)  # returns for all at once, when the parent closes its end
            try:
                lock.acquire()
                result = b"won"
            except RunLocked:
                result = b"refused"
            except BaseException as error:
                result = repr(error).encode()
            os.write(result_write, str(os.getpid()).encode() + b" " + result.replace(b"\\n", b" ") + b"\\n")
            os.read(stay_read, 1)  # a winner lives until everyone has tried
            os._exit(0)
        children.append(pid)
    os.close(go_read)
    os.close(stay_read)
    os.close(result_write)
    os.close(go_write)
    with os.fdopen(result_read) as results:
        outcomes = [results.readline().split(maxsplit=1) for _ in range(contenders)]
    holder = read_holder(run_dir)
    os.close(stay_write)
    for pid in children:
        os.waitpid(pid, 0)
    outcome = {
        "winners": [int(pid) for pid, word in outcomes if word.strip() == "won"],
        "others": sorted({word.strip() for _, word in outcomes} - {"won"}),
        "holder": holder and holder.process.pid,
        "litter": sorted(path.name for path in run_dir.root.iterdir() if path.name not in ("run.lock", "heartbeat")),
    }
    print(json.dumps(outcome), flush=True)
"""


@pytest.mark.slow
def test_of_many_processes_that_find_a_dead_lock_exactly_one_takes_it_over(tmp_path, child_environment):
    rounds, contenders = 60, 16
    race = subprocess.run(
        [sys.executable, "-c", RACE, str(tmp_path), str(rounds), str(contenders)],
        env=child_environment,
        capture_output=True,
        text=True,
        check=False,
        timeout=120,
    )
    assert race.returncode == 0, race.stderr
    outcomes = [json.loads(line) for line in race.stdout.splitlines()]
    assert len(outcomes) == rounds
    for outcome in outcomes:
        assert len(outcome["winners"]) == 1, outcome
        assert outcome["holder"] == outcome["winners"][0]
        assert outcome["others"] == ["refused"]
        assert outcome["litter"] == []


def test_a_slow_contender_cannot_move_a_fresh_lock_out_of_the_way(tmp_path, monkeypatch):
    """Forces the order in which two could win: B has seen the dead lock and is slow, A takes over meanwhile, and C
    arrives while B moves locks.
    """
    run_dir = RunDir(tmp_path / "run")
    write_lock(run_dir.root, pid=dead_pid(), started="1")
    a, b, c = RunLock(run_dir), RunLock(run_dir), RunLock(run_dir)
    won = []

    def contend(name, lock):
        try:
            lock.acquire()
        except RunLocked:
            return
        won.append(name)

    real_rename, real_replace = os.rename, os.replace
    busy = []

    def interrupted(move):
        def moving(source, target, **options):
            if busy:
                return move(source, target, **options)
            busy.append(True)
            contend("A", a)
            try:
                return move(source, target, **options)
            finally:
                contend("C", c)

        return moving

    monkeypatch.setattr(os, "rename", interrupted(real_rename))
    monkeypatch.setattr(os, "replace", interrupted(real_replace))
    contend("B", b)
    assert len(won) == 1, won
    assert [lock.is_ours() for lock in (a, b, c)].count(True) == 1
