"""The clock outside the trainer: it reports a trainer that hangs or is gone, and no other one."""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import sys
import textwrap
import threading
import time
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest

import rlvitals
from conftest import fill, until
from health_lines import finding_line
from rlvitals import clock as clocks
from rlvitals.capture.forwarding import Forwarding
from rlvitals.cli.main import main
from rlvitals.clock import open_clock
from rlvitals.health.rules import OUTSIDE
from rlvitals.records import Finding
from rlvitals.store import reader
from rlvitals.store.findings import append_event, read_events
from rlvitals.store.layout import RunDir
from rlvitals.store.lock import read_holder

pytestmark = pytest.mark.slow

FINDINGS = Path("logs/findings.jsonl")


def stall_rule(seconds, seconds_critical, times=5, times_critical=8):
    numbers = {"seconds": seconds, "seconds_critical": seconds_critical}
    return [{"rule": "stall", "numbers": {**numbers, "times": times, "times_critical": times_critical}}]


def lines_of(folder):
    path = Path(folder) / FINDINGS
    return [json.loads(line) for line in path.read_text().splitlines()] if path.exists() else []


def stalls(folder, severity=None):
    """The recorded stall findings."""
    found = [line for line in lines_of(folder) if line["type"] in ("raised", "escalated") and line["kind"] == "stall"]
    return [line for line in found if severity in (None, line["severity"])]


# In a separate process


def clock_pids(folder):
    """The pids of the clock processes of a run, found by their command lines."""
    found = []
    for path in Path("/proc").glob("[0-9]*/cmdline"):
        try:
            words = path.read_bytes().split(b"\0")
            state = (path.parent / "stat").read_text().rpartition(")")[2].split()[0]
        except OSError:
            continue
        if b"rlvitals.follow" in words and os.fsencode(Path(folder).resolve()) in words and state != "Z":
            found.append(int(path.parent.name))
    return found


needs_proc = pytest.mark.skipif(not Path("/proc/self/cmdline").exists(), reason="needs /proc to find a process")

TRAINER = """
    import json, sys, time, rlvitals
    folder, settings, rows, pause = sys.argv[1], json.loads(sys.argv[2]), int(sys.argv[3]), float(sys.argv[4])
    run = rlvitals.start(folder, **settings)
    for step in range(rows):
        run.log({"loss": 1.0 + 0.01 * (step % 7)}, step=step)
        print(step, flush=True)
        time.sleep(pause)
    if len(sys.argv) > 5:
        time.sleep(float(sys.argv[5]))
    run.finish()
"""


@pytest.fixture
def train(child_environment):
    """Start a trainer and return it after it has logged some rows; it is killed after the test."""
    children = []

    def begin(folder, settings, *, rows=10**6, pause=0.05, wait_for=8, then=0.0, **environment):
        child = subprocess.Popen(
            [sys.executable, "-c", textwrap.dedent(TRAINER), str(folder), json.dumps(settings),
             str(rows), str(pause), str(then)],
            stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env={**child_environment, **environment},
        )  # fmt: skip
        children.append(child)
        for _ in range(wait_for):
            assert child.stdout.readline(), child.stderr.read()
        return child

    yield begin
    for child in children:
        child.kill()
        child.communicate()


@pytest.fixture
def hook():
    """A server that keeps the posted bodies: (its address, which contains a secret, and the bodies)."""
    bodies = []

    class Handler(BaseHTTPRequestHandler):
        def do_POST(self):
            bodies.append(json.loads(self.rfile.read(int(self.headers["Content-Length"]))))
            self.send_response(200)
            self.end_headers()

        def log_message(self, *_):
            pass

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    threading.Thread(target=server.serve_forever, args=(0.02,), daemon=True).start()
    yield f"http://127.0.0.1:{server.server_port}/T0SECRET-very-secret", bodies
    server.shutdown()
    server.server_close()


@pytest.mark.slow
@needs_proc
def test_a_stopped_trainer_is_reported_from_outside(tmp_path, train, hook, capsys):
    address, bodies = hook
    run, sentinel = tmp_path / "run", tmp_path / "stop.json"
    notify = {"webhook": "${env:RLVITALS_TEST_HOOK}", "on": "warning", "sentinel": str(sentinel)}
    settings = {"name": "kto-7b", "rules": stall_rule(1.0, 3.0), "notify": notify}
    trainer = train(run, settings, RLVITALS_TEST_HOOK=address)
    os.kill(trainer.pid, signal.SIGSTOP)
    assert until(lambda: stalls(run, "critical") and len(bodies) == 2 and sentinel.exists())
    assert [line["severity"] for line in stalls(run)] == ["warning", "critical"]
    assert [line["attempt"] for line in stalls(run)] == [1, 1]
    titles = [finding.title for finding in rlvitals.open_run(run).findings]
    assert len(titles) == 2
    assert titles[1].startswith("no row for ")
    assert [(body["run"], body["severity"], body["title"]) for body in bodies] == [
        ("kto-7b", "warning", titles[0]),
        ("kto-7b", "critical", titles[1]),
    ]
    assert json.loads(sentinel.read_text())["finding"]["title"] == titles[1]
    main(["show", str(run)])
    assert titles[1] in capsys.readouterr().out
    command = Path(f"/proc/{clock_pids(run)[0]}/cmdline").read_bytes()
    assert b"SECRET" not in command
    assert not [path for path in tmp_path.rglob("*") if path.is_file() and b"SECRET" in path.read_bytes()]
    os.kill(trainer.pid, signal.SIGCONT)


@pytest.mark.slow
def test_a_stall_that_the_trainer_sees_too_is_recorded_once_and_shown_by_the_trainer(tmp_path, train):
    settings = {"rules": stall_rule(0.5, 1.0), "actions": "act", "fsync": 0.05, "display": "plain", "display_every": 99}
    trainer = train(tmp_path / "run", settings, rows=8, then=6.0)
    _, errors = trainer.communicate()
    assert len(stalls(tmp_path / "run", "critical")) == 1
    assert errors.count("⚠ no row for") == 2  # one banner for the warning and one for the critical finding


@pytest.mark.slow
@needs_proc
def test_a_killed_trainer_is_reported_at_once(tmp_path, train, hook):
    address, bodies = hook
    run = tmp_path / "run"
    settings = {"notify": {"webhook": "${env:RLVITALS_TEST_HOOK}"}}  # with the default threshold of 30 minutes
    trainer = train(run, settings, RLVITALS_TEST_HOOK=address)
    trainer.kill()
    killed_at = time.time()
    assert until(lambda: bodies, seconds=20)
    (line,) = stalls(run)
    finding, *_ = [event.finding for event in read_events(RunDir(run)) if event.finding is not None]
    last = rlvitals.open_run(run).last_step
    facts = [line[key] for key in ("rule", "severity", "step", "confidence")]
    assert facts == ["process_gone", "critical", last, 1.0]
    assert line["title"].startswith(
        f"the trainer's process is gone (pid {trainer.pid}); the last row is from step {last}, "
    )
    assert line["timestamp"] - killed_at < 10
    assert bodies[0]["title"] == finding.title == line["title"]
    findings = rlvitals.open_run(run).findings  # once, with the same title as on every screen
    assert [(found.rule, found.step, found.title) for found in findings] == [
        ("process_gone", last, f"stopped at step {last}: the process is gone")
    ]
    assert until(lambda: not clock_pids(run))
    assert len(stalls(run)) == len(bodies) == 1
    assert b"SECRET" not in b"".join(path.read_bytes() for path in run.rglob("*") if path.is_file())


@pytest.mark.slow
@needs_proc
def test_a_slow_but_regular_run_that_finishes_is_not_reported_and_the_process_ends(tmp_path, train):
    settings = {"rules": stall_rule(0.3, 0.5, times=6, times_critical=10), "actions": "act"}
    trainer = train(tmp_path / "run", settings, rows=7, pause=0.8, wait_for=3)
    assert clock_pids(tmp_path / "run")
    assert trainer.wait(timeout=60) == 0
    assert until(lambda: not clock_pids(tmp_path / "run"))
    assert {line["type"] for line in lines_of(tmp_path / "run")} == {"monitor"}


@pytest.mark.slow
@needs_proc
def test_a_trainer_that_is_asked_to_end_is_not_reported(tmp_path, train):
    trainer = train(tmp_path / "run", {"actions": "act"})
    trainer.terminate()
    trainer.wait(timeout=30)
    assert rlvitals.open_run(tmp_path / "run").status == "interrupted"
    assert until(lambda: not clock_pids(tmp_path / "run"))
    assert {line["type"] for line in lines_of(tmp_path / "run")} == {"monitor"}


@pytest.mark.slow
def test_the_process_of_the_trackers_looks_at_the_clock_too(tmp_path, train):
    trainer = train(tmp_path / "run", {"track_with": "json"})
    trainer.kill()
    assert until(lambda: stalls(tmp_path / "run"))
    assert until(lambda: [one["state"] for one in rlvitals.open_run(tmp_path / "run").trackers] == ["done"])


@needs_proc
def test_where_nobody_is_to_hear_of_it_there_is_no_process(tmp_path):
    with rlvitals.start(tmp_path / "run") as run:
        run.log({"loss": 1.0})
        assert not clock_pids(tmp_path / "run")
    assert not (tmp_path / "run" / "sinks").exists()


@needs_proc
def test_without_its_rules_there_is_no_clock(tmp_path):
    with rlvitals.start(tmp_path, actions="act", rules=[{"rule": name, "enabled": False} for name in OUTSIDE]) as run:
        run.log({"loss": 1.0})
        assert until(lambda: not clock_pids(tmp_path))
    assert (tmp_path / "sinks" / "follower.log").read_text() == ""


@needs_proc
def test_the_end_does_not_wait_for_a_clock_that_cannot_end(tmp_path):
    with rlvitals.start(tmp_path, actions="act") as run:
        run.log({"loss": 1.0})
        (pid,) = until(lambda: clock_pids(tmp_path))  # the command line is visible once the process runs
        os.kill(pid, signal.SIGSTOP)
        try:
            began = time.monotonic()
            run.finish()
            assert time.monotonic() - began < 1.0
        finally:
            os.kill(pid, signal.SIGCONT)
    assert until(lambda: not Path(f"/proc/{pid}").exists())  # no defunct process remains


@needs_proc
def test_when_the_clock_was_killed_the_trainer_records_its_stalls_itself(tmp_path):
    with rlvitals.start(tmp_path, actions="act", rules=stall_rule(0.2, 0.4), fsync=0.05) as run:
        (pid,) = until(lambda: clock_pids(tmp_path))
        os.kill(pid, signal.SIGKILL)
        for step in range(5):
            run.log({"loss": 1.0}, step=step)
            time.sleep(0.02)
        assert until(lambda: stalls(tmp_path, "critical"))


def test_without_processes_the_run_goes_on_and_that_is_reported(tmp_path, monkeypatch, caplog):
    def refuse(*_, **__):
        raise PermissionError(1, "not allowed to spawn")

    monkeypatch.setattr(subprocess, "Popen", refuse)
    with rlvitals.start(tmp_path, actions="act", rules=stall_rule(0.2, 0.4), fsync=0.05) as run:
        assert "only the trainer can detect a stall" in caplog.text
        for step in range(5):
            run.log({"loss": 1.0}, step=step)
            time.sleep(0.02)
        assert until(lambda: stalls(tmp_path, "critical"))
    assert rlvitals.open_run(tmp_path).status == "finished"


def test_rules_and_settings_that_are_no_plain_json_do_not_stop_the_start(tmp_path):
    follower = None
    with rlvitals.start(tmp_path, monitor=False) as run:
        holder = read_holder(RunDir(tmp_path)).token
        task = {"holder": holder, "attempt": 1, "rules": [Path("rules.yaml"), object()], "notify": {}}
        follower = Forwarding(RunDir(tmp_path), {}, task)
        run.log({"loss": 1.0})
        assert until(lambda: not follower.has_clock)
    assert "stalls are not detected: RuleError" in (tmp_path / "sinks" / "follower.log").read_text()


def test_the_clock_imports_nothing_heavy(tmp_path):
    with rlvitals.start(tmp_path, actions="act") as run:
        run.log({"loss": 1.0})
        task = {"holder": read_holder(RunDir(tmp_path)).token, "attempt": 1, "rules": stall_rule(1, 2), "notify": {}}
        code = (
            "import pathlib, sys, rlvitals.follow as f\n"
            f"clock = f.open_clock(f.RunDir(pathlib.Path({str(tmp_path)!r})), {task!r})\nclock.look()\n"
            "assert not clock.is_over\nprint(*sys.modules)"
        )
        listing = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout
    assert not {"torch", "pandas", "numpy", "yaml", "rich", "pyarrow"} & set(listing.split())


# Look by look


def clock_of(run, rules=None):
    run_dir = RunDir(Path(run.dir))
    task = {"holder": read_holder(run_dir).token, "attempt": run.attempt, "rules": rules, "notify": {}}
    return open_clock(run_dir, task)


class WallClock:
    """The time of day, which a test can move forward: tests need not wait, and a busy machine does not affect them.

    The runs are started without a monitor, because it would also notice the silence.
    """

    def __init__(self, real):
        self._real, self._moved = real, 0.0

    def __call__(self):
        return self._real() + self._moved

    def move(self, seconds):
        self._moved += seconds


@pytest.fixture
def wall(monkeypatch):
    wall = WallClock(time.time)
    monkeypatch.setattr(time, "time", wall)
    monkeypatch.setattr("rlvitals.capture.run._clock", wall)  # bound there once, for speed
    return wall


def log_rows(run, clock, steps, wall):
    """Log a row every second."""
    for step in steps:
        wall.move(1)
        run.log({"loss": 1.0}, step=step)
        clock.look()


def hang(clock, seconds, wall):
    """Let time pass without a row; the clock looks every two seconds."""
    for _ in range(seconds // 2):
        wall.move(2)
        clock.look()


def test_it_reports_again_after_rows_have_come_again(tmp_path, wall):
    with rlvitals.start(tmp_path, monitor=False) as run:
        clock = clock_of(run, stall_rule(30, 6000))
        log_rows(run, clock, range(10), wall)
        hang(clock, 60, wall)
        assert len(stalls(tmp_path)) == 1
        log_rows(run, clock, range(10, 35), wall)
        hang(clock, 60, wall)
        assert [line["step"] for line in stalls(tmp_path)] == [9, 34]


def test_evaluations_are_signs_of_life(tmp_path, wall):
    with rlvitals.start(tmp_path, monitor=False) as run:
        clock = clock_of(run, stall_rule(100, 6000))
        log_rows(run, clock, range(10), wall)
        for step in range(12):
            run.log_eval({"accuracy": 0.5}, step=step // 2)
            hang(clock, 20, wall)
        assert not stalls(tmp_path)
        hang(clock, 130, wall)
        assert [line["step"] for line in stalls(tmp_path)] == [9]


def test_a_resumed_run_knows_its_usual_interval_and_takes_the_time_between_for_no_silence(tmp_path, wall):
    with rlvitals.start(tmp_path, monitor=False) as run:
        for step in range(3):
            wall.move(10)
            run.log({"loss": 1.0}, step=step)
    wall.move(3600)
    with rlvitals.start(tmp_path, resume=True, monitor=False) as run:
        clock = clock_of(run, stall_rule(100, 6000))
        hang(clock, 1000, wall)
        assert not stalls(tmp_path)  # loading the model may take any time
        run.log({"loss": 1.0}, step=3)
        hang(clock, 200, wall)
        (line,) = stalls(tmp_path)
        assert (line["step"], line["attempt"]) == (3, 2)
        assert 10 <= line["evidence"]["usual"] < 100


def test_only_the_end_of_a_long_log_is_read(tmp_path, monkeypatch):
    monkeypatch.setattr(clocks, "PAST_BYTES", 1000)
    decoded = []
    real = reader.decode
    monkeypatch.setattr(reader, "decode", lambda line: decoded.append(line) or real(line))
    with rlvitals.start(tmp_path) as run:
        for step in range(2000):
            run.log({"loss": 1.0}, step=step)
        clock = clock_of(run)
        clock.look()
        assert 5 < len(decoded) < 30
        del decoded[:]
        clock.look()
        assert decoded == []
        run.log({"loss": 1.0}, step=2000)
        clock.look()
        assert len(decoded) == 1


@pytest.mark.parametrize("steps_after", [range(0), range(10, 15)])
def test_the_time_a_whole_machine_was_asleep_is_no_silence(tmp_path, wall, steps_after):
    with rlvitals.start(tmp_path, monitor=False) as run:
        clock = clock_of(run, stall_rule(100, 6000))
        log_rows(run, clock, range(10), wall)
        wall.move(3600)
        clock.look()
        hang(clock, 60, wall)
        assert not stalls(tmp_path)
        log_rows(run, clock, steps_after, wall)
        hang(clock, 150, wall)  # awake, but without a row
        assert len(stalls(tmp_path)) == 1


def test_another_attempt_ends_the_clock_of_the_last_one_without_a_word(tmp_path):
    with rlvitals.start(tmp_path) as run:
        run.log({"loss": 1.0})
        clock = clock_of(run)
        clock.look()
    with rlvitals.start(tmp_path, resume=True):
        clock.look()
        assert clock.is_over
    assert {line["type"] for line in lines_of(tmp_path)} == {"monitor"}


def test_a_trainer_that_died_before_its_first_row_is_reported(tmp_path):
    code = f"import os, rlvitals\nrlvitals.start({str(tmp_path)!r})\nos.kill(os.getpid(), 9)"
    child = subprocess.run([sys.executable, "-c", code], check=False)
    assert child.returncode == -signal.SIGKILL
    task = {"holder": read_holder(RunDir(tmp_path)).token, "attempt": 1, "rules": None, "notify": {}}
    clock = open_clock(RunDir(tmp_path), task)
    clock.run()
    (line,) = stalls(tmp_path)
    assert line["title"].endswith("it had not logged a row")


def test_a_lock_that_somebody_removed_is_no_death(tmp_path, wall):
    with rlvitals.start(tmp_path) as run:
        clock = clock_of(run)
        log_rows(run, clock, range(3), wall)
        (tmp_path / "run.lock").unlink()
        clock.look()
        assert not clock.is_over
    clock.look()
    assert clock.is_over
    assert not stalls(tmp_path)


def test_a_deleted_directory_is_waited_for_and_not_made_again(tmp_path, wall):
    folder = tmp_path / "run"
    with rlvitals.start(folder) as run:
        clock = clock_of(run)
        log_rows(run, clock, range(3), wall)
        shutil.rmtree(folder)
        clock.look()
        assert not clock.is_over
        assert not folder.exists()
        wall.move(600)
        clock.look()
        assert clock.is_over
        clock.close()
        assert not folder.exists()


# Two processes, one file


def a_finding(number, length):
    return Finding("other", "stall", "info", number, number, "x" * length)


APPENDER = """
    import sys
    from pathlib import Path
    from rlvitals.records import Finding, HealthEvent
    from rlvitals.store.findings import append_event, event_line
    from rlvitals.store.layout import RunDir
    print("ready", flush=True)
    sys.stdin.readline()
    for number in range(1500):
        finding = Finding("other", "stall", "info", number, number, "x" * (number * 37 % 9000))
        append_event(RunDir(Path(sys.argv[1])), event_line(HealthEvent("raised", number, 1.0, finding=finding)))
"""


def test_what_two_processes_append_at_once_is_whole_and_kept(tmp_path, child_environment):
    # A rule that recurs is reported less and less often, so there are many rules and each raises one finding.
    rules = [{"rule": "*", "enabled": False}, *(f"y{number} > 0.5 for 1: critical" for number in range(20))]
    with rlvitals.start(tmp_path, rules=rules) as run:
        other = subprocess.Popen(
            [sys.executable, "-c", textwrap.dedent(APPENDER), str(tmp_path)],
            stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, env=child_environment,
        )  # fmt: skip
        other.stdout.readline()
        other.stdin.write("go\n")
        other.stdin.flush()
        step = 0
        while other.poll() is None or step < 60:  # at least six rules raise findings, however fast the other process is
            step += 1
            run.log({f"y{number}": float(step > 5 * number) for number in range(20)}, step=step)
        other.communicate()
        own = run.findings
    lines = (tmp_path / FINDINGS).read_bytes().split(b"\n")
    events = [json.loads(line) for line in lines if line]
    assert len(own) > 5
    found = [event for event in events if event["type"] == "raised"]
    assert [event["step"] for event in found if event["rule"] != "other"] == [finding.step for finding in own]
    theirs = [event for event in found if event["rule"] == "other"]
    assert [event["step"] for event in theirs] == list(range(1500))
    assert [len(event["title"]) for event in theirs] == [number * 37 % 9000 for number in range(1500)]


def test_half_a_line_left_by_a_kill_spoils_no_other(tmp_path):
    run_dir = RunDir(tmp_path)
    run_dir.logs.mkdir()
    append_event(run_dir, finding_line(a_finding(1, 10), 1.0, 1))
    whole = finding_line(a_finding(2, 10), 1.0, 1)
    with open(run_dir.findings, "ab") as file:
        file.write(whole[: len(whole) // 2])
    append_event(run_dir, finding_line(a_finding(3, 10), 1.0, 1))
    assert [event.step for event in read_events(run_dir)] == [1, 3]


def test_a_full_disk_is_reported_when_it_takes_lines_again(tmp_path, small_disk, wall):
    folder = small_disk / "run"
    with rlvitals.start(folder, monitor=False) as run:
        clock = clock_of(run, stall_rule(30, 6000))
        log_rows(run, clock, range(10), wall)
        filler = fill(small_disk)
        hang(clock, 60, wall)
        assert not [event for event in read_events(RunDir(folder)) if event.finding is not None]
        filler.unlink()
        clock.look()
        assert [event.step for event in read_events(RunDir(folder))] == [9]
