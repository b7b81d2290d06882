"""A start ends the remaining followers of its own run, and never any other process."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
import sys
import textwrap
import time
from dataclasses import replace
from pathlib import Path

import pytest

import rlvitals
from conftest import until
from rlvitals.capture import forwarding
from rlvitals.errors import RunLocked
from rlvitals.sinks.follower import Forwarder
from rlvitals.store.cursors import cursor_place, read_cursor, write_cursor
from rlvitals.store.layout import RunDir
from rlvitals.store.lock import RunLock
from rlvitals.store.process import Handle, ProcessId, _stat, is_alive, prove, this_process

pytestmark = [
    pytest.mark.skipif(not Path("/proc/self/stat").exists(), reason="processes are proven by /proc"),
    pytest.mark.slow,
]

WAIT = ["sh", "-c", "printf up; read line", "sh"]


@pytest.fixture
def bystander():
    """Start an unrelated process; it is alive when this returns and is ended after the test."""
    children = []

    def begin(*arguments: str, **options):
        child = subprocess.Popen([*WAIT, *arguments], stdin=subprocess.PIPE, stdout=subprocess.PIPE, **options)
        children.append(child)
        assert child.stdout.read(2) == b"up"
        return child

    yield begin
    for child in children:
        child.kill()
        child.communicate()


@pytest.fixture
def short_wait(monkeypatch):
    """Shorten the wait for followers to stop."""
    monkeypatch.setattr(forwarding, "STOP_SECONDS", 0.05)


@pytest.fixture
def ends():
    """Processes to end after the test if they still run."""
    pids: list[int] = []
    yield pids
    for pid in pids:
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)


def identity(pid: int, **changes) -> ProcessId:
    """The identity of a process as a lock records it."""
    own = this_process()
    return ProcessId(**{"host": own.host, "pid": pid, "boot": own.boot, "started": _stat(pid)[1]} | changes)


def forge_lock(run: Path, name: str, process: ProcessId) -> None:
    """Name a process in a tracker's lock, with a fresh heartbeat, as anyone with write access to the folder can."""
    place = cursor_place(RunDir(run), name)
    place.root.mkdir(exist_ok=True)
    place.lock.write_text(json.dumps({**process.to_dict(), "token": "feed", "since": time.time()}))
    place.heartbeat.write_text("now")
    write_cursor(RunDir(run), read_cursor(RunDir(run), name))


def command_of(run: Path) -> list[str]:
    return ["-m", "rlvitals.follow", str(run.resolve())]


def record(run: Path, steps, **settings) -> None:
    with rlvitals.start(run, **settings) as recorder:
        for step in steps:
            recorder.log({"loss": float(step)}, step=step)


def holder_pid(run: Path, name: str) -> int | None:
    with contextlib.suppress(OSError, ValueError):
        return int(json.loads(cursor_place(RunDir(run), name).lock.read_text())["pid"])
    return None


def steps_in(file: Path) -> list[int]:
    return [json.loads(line.rstrip(",\n"))["step"] for line in file.read_text().splitlines() if line.startswith("{")]


def test_a_forged_lock_ends_no_process(tmp_path, bystander, short_wait, caplog):
    record(tmp_path, range(3))
    victim = bystander()
    forge_lock(tmp_path, "json", identity(victim.pid))
    record(tmp_path, range(3, 6), resume=True)
    assert victim.poll() is None
    assert f"process {victim.pid} on host" in caplog.text
    assert "and does not stop it" in caplog.text
    assert str(cursor_place(RunDir(tmp_path), "json").lock) in caplog.text
    assert rlvitals.open_run(tmp_path).series("loss").steps.tolist() == list(range(6))


@pytest.mark.parametrize(
    "words", [[], ["-m", "rlvitals.follow", "{other}"], ["-m", "rlvitals.follow", "{run}", "--more"], ["{run}"]]
)
def test_a_process_that_only_resembles_the_follower_is_not_ended(tmp_path, bystander, short_wait, words):
    run, other = tmp_path / "run", tmp_path / "other"
    record(run, range(3))
    victim = bystander(*(word.format(run=run, other=other) for word in words))
    forge_lock(run, "json", identity(victim.pid))
    forwarding.stop_followers(RunDir(run))
    assert victim.poll() is None


def test_a_real_follower_of_another_run_is_not_ended(tmp_path, short_wait):
    run, other = tmp_path / "run", tmp_path / "other"
    record(run, range(3))
    with rlvitals.start(other, track_with="json") as recorder:
        recorder.log({"loss": 1.0}, step=0)
        assert until(lambda: holder_pid(other, "json"))
        follower = holder_pid(other, "json")
        forge_lock(run, "json", identity(follower))
        record(run, range(3, 5), resume=True)
        recorder.log({"loss": 2.0}, step=1)
        assert is_alive(identity(follower))
    assert steps_in(other / "logs" / "metrics.json") == [0, 1]


@pytest.mark.parametrize(
    "elsewhere",
    [{"boot": "another boot pid:[1]"}, {"boot": ""}, {"host": "another-host"}, {"started": "1"}, {"started": ""}],
)
def test_a_process_of_another_boot_container_or_time_is_not_ended(tmp_path, bystander, short_wait, elsewhere):
    """A restarted pod has the same host name and pid, so even a matching command line proves nothing."""
    record(tmp_path, range(3))
    victim = bystander(*command_of(tmp_path))
    forge_lock(tmp_path, "json", identity(victim.pid, **elsewhere))
    forwarding.stop_followers(RunDir(tmp_path))
    assert victim.poll() is None


@pytest.mark.parametrize("pid", [0, -1, 2**31, 2**70])
def test_a_lock_that_names_no_single_process_names_nobody(tmp_path, pid):
    record(tmp_path, range(3))
    forge_lock(tmp_path, "json", replace(identity(os.getpid()), pid=pid))
    forwarding.stop_followers(RunDir(tmp_path))
    record(tmp_path, range(3, 5), resume=True, track_with="json")
    assert steps_in(tmp_path / "logs" / "metrics.json") == list(range(5))


@pytest.mark.skipif(not hasattr(os, "geteuid") or os.geteuid() != 0, reason="needs root to act as another user")
def test_a_process_of_another_user_is_not_ended(tmp_path, bystander, short_wait):
    record(tmp_path, range(3))
    victim = bystander(*command_of(tmp_path), user=65534)
    forge_lock(tmp_path, "json", identity(victim.pid))
    forwarding.stop_followers(RunDir(tmp_path))
    assert victim.poll() is None


def test_a_process_with_other_mounts_is_not_proven():
    """The same path may be another directory in that mount namespace."""
    command = ["-m", "rlvitals.follow", "/runs/one"]
    apart = subprocess.run(["unshare", "--mount", "true"], check=False, capture_output=True)
    if apart.returncode:
        pytest.skip(f"no mount namespace can be made here: {apart.stderr.decode().strip()}")
    child = subprocess.Popen(["unshare", "--mount", *WAIT, *command], stdin=subprocess.PIPE, stdout=subprocess.PIPE)
    try:
        assert child.stdout.read(2) == b"up"
        assert prove(identity(child.pid), command) is None
    finally:
        child.kill()
        child.communicate()


def test_proof_needs_every_part(bystander):
    child = bystander("-m", "rlvitals.follow", "/runs/one")
    command = ["-m", "rlvitals.follow", "/runs/one"]
    handle = prove(identity(child.pid), command)
    assert isinstance(handle, Handle)
    assert prove(identity(child.pid), [*command[:-1], "/runs/two"]) is None
    assert prove(identity(child.pid, started="7"), command) is None
    handle.send(signal.SIGTERM)
    assert child.wait(timeout=30) == -signal.SIGTERM
    with pytest.raises(ProcessLookupError):  # the handle stays with its process, even if the pid is reused
        handle.send(0)
    handle.close()


def begin_failing(run: Path, tracker: str, obstacle: Path) -> int:
    """Start a trainer with a tracker that cannot write until `obstacle` is gone, and kill the trainer. Returns the pid
    of the follower, which keeps trying.
    """
    obstacle.write_text("in the way")
    script = """
        import os, sys, rlvitals
        run = rlvitals.start(sys.argv[1], track_with="json", tracker_kwargs={"path": sys.argv[2]})
        for step in range(5):
            run.log({"loss": float(step)}, step=step)
        sys.stdin.readline()
        os.kill(os.getpid(), 9)
    """
    target = str(obstacle / "rows.json")
    child = subprocess.Popen([sys.executable, "-c", textwrap.dedent(script), str(run), target], stdin=subprocess.PIPE)
    assert until(lambda: read_cursor(RunDir(run), tracker).state == "failing")
    pid = holder_pid(run, tracker)
    child.communicate(b"\n")
    assert is_alive(identity(pid))
    return pid


@pytest.mark.slow
@pytest.mark.parametrize("is_stopped", [False, True])
def test_the_follower_of_an_earlier_attempt_is_ended_also_where_it_is_stopped(tmp_path, ends, caplog, is_stopped):
    run, obstacle = tmp_path / "run", tmp_path / "folder"
    old = begin_failing(run, "json", obstacle)
    ends.append(old)
    if is_stopped:
        os.kill(old, signal.SIGSTOP)
    was = identity(old)
    obstacle.unlink()
    with rlvitals.start(
        run, resume=True, track_with="json", tracker_kwargs={"path": str(obstacle / "rows.json")}
    ) as go:
        assert until(lambda: not is_alive(was))
        go.log({"loss": 5.0}, step=5)
    assert "and does not stop it" not in caplog.text
    assert steps_in(obstacle / "rows.json") == list(range(6))


@pytest.mark.slow
def test_a_follower_that_cannot_be_proven_ends_by_itself(tmp_path, ends, caplog, monkeypatch):
    """As on another host: the follower sees the new attempt's lock on the run."""
    run, obstacle = tmp_path / "run", tmp_path / "folder"
    old = begin_failing(run, "json", obstacle)
    ends.append(old)
    was = identity(old)
    obstacle.unlink()
    monkeypatch.setattr(forwarding, "prove", lambda process, command: None)
    monkeypatch.setattr(forwarding, "STOP_SECONDS", 30.0)
    with rlvitals.start(
        run, resume=True, track_with="json", tracker_kwargs={"path": str(obstacle / "rows.json")}
    ) as go:
        go.log({"loss": 5.0}, step=5)
        assert until(lambda: not is_alive(was))
    assert "and does not stop it" not in caplog.text
    assert steps_in(obstacle / "rows.json") == list(range(6))


def test_a_follower_whose_lock_was_taken_leaves_the_cursor_alone(tmp_path, short_wait):
    record(tmp_path, range(3))
    feed = Forwarder(RunDir(tmp_path), "json", {})
    assert feed.advance()
    before = read_cursor(RunDir(tmp_path), "json")
    place = cursor_place(RunDir(tmp_path), "json")
    place.lock.unlink()
    other = RunLock(place)
    other.acquire()
    record(tmp_path, range(3, 5), resume=True)
    with pytest.raises(RunLocked):
        feed.advance()
    feed._drop_sink()
    feed.let_go()
    assert other.is_ours()
    assert read_cursor(RunDir(tmp_path), "json") == before
    other.release()


def test_a_fifo_in_the_place_of_a_lock_heartbeat_or_log_is_not_waited_for(tmp_path, caplog):
    record(tmp_path, range(3), track_with="json")
    sinks = tmp_path / "sinks"
    for name in ("follower.log", "json.heartbeat", "csv.lock"):
        (sinks / name).unlink(missing_ok=True)
        os.mkfifo(sinks / name)
    record(tmp_path, range(3, 5), resume=True, track_with="json", tracker_wait=0.0)
    assert "the follower's messages are not kept" in caplog.text
    assert rlvitals.open_run(tmp_path).series("loss").steps.tolist() == list(range(5))
