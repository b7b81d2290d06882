"""Following the log: cursors, failing and hanging trackers, crashes, catching up, and the messages to users."""

from __future__ import annotations

import contextlib
import importlib.util
import json
import logging
import os
import signal
import socket
import subprocess
import sys
import textwrap
import threading
import time
from pathlib import Path
from typing import ClassVar

import pytest

import rlvitals
from conftest import fill, until
from rlvitals import plugins
from rlvitals.cli import sync
from rlvitals.cli.main import main
from rlvitals.errors import ConfigError, MissingDependency
from rlvitals.masking import MASK
from rlvitals.sinks.base import Sink, SinkError
from rlvitals.sinks.follower import Forwarder, follow
from rlvitals.store.cursors import bytes_behind, read_cursor
from rlvitals.store.files import replace_file
from rlvitals.store.layout import RunDir

pytestmark = pytest.mark.slow


class Ledger(Sink):
    """A tracker whose back end is a list: `held` are committed rows, `taken` are written but not committed."""

    held: ClassVar[list[tuple[str, int, float]]] = []
    opened = abandoned = 0

    def __init__(self, facts, settings, memory):
        super().__init__(facts, settings, memory)
        type(self).opened += 1
        self.taken: list[tuple[str, int, float]] = []

    def write(self, rows):
        self.taken += [(item.stream, item.row.step, item.row.numbers.get("loss", -1.0)) for item in rows]

    def commit(self):
        type(self).held += self.taken
        self.taken = []
        self.memory["count"] = len(type(self).held)

    def close(self):
        self.memory["closed"] = True

    def abandon(self):
        type(self).abandoned += 1


@pytest.fixture
def ledger(monkeypatch):
    """A fresh ledger under the name "ledger"."""
    kind = type("FreshLedger", (Ledger,), {"held": [], "opened": 0})
    install(monkeypatch, "ledger", kind)
    return kind


def install(monkeypatch, name: str, kind: type) -> None:
    real = plugins.tracker_class
    monkeypatch.setattr(plugins, "tracker_class", lambda asked: kind if asked == name else real(asked))


def record(path: Path, steps, **settings) -> None:
    with rlvitals.start(path, **settings) as run:
        for step in steps:
            run.log({"loss": float(step)}, step=step)


def expected(steps) -> list[tuple[str, int, float]]:
    return [("train", step, float(step)) for step in steps]


def test_every_row_arrives_once_and_in_order(tmp_path, ledger):
    record(tmp_path, range(2500))
    assert follow(RunDir(tmp_path), {"ledger": {}})
    assert ledger.held == expected(range(2500))
    cursor = read_cursor(RunDir(tmp_path), "ledger")
    assert (cursor.state, cursor.rows, cursor.memory) == ("done", 2500, {"count": 2500, "closed": True})


def test_a_second_round_sends_only_what_is_new(tmp_path, ledger):
    record(tmp_path, range(10))
    follow(RunDir(tmp_path), {"ledger": {}})
    record(tmp_path, range(10, 15), resume=True)
    follow(RunDir(tmp_path), {"ledger": {}})
    assert ledger.held == expected(range(15))


def test_what_a_killed_follower_left_unfinished_is_closed_by_the_next(tmp_path, ledger):
    record(tmp_path, range(3))
    feed = Forwarder(RunDir(tmp_path), "ledger", {})
    assert feed.advance()
    feed.let_go()  # without closing the tracker
    assert "closed" not in read_cursor(RunDir(tmp_path), "ledger").memory
    assert follow(RunDir(tmp_path), {"ledger": {}})
    assert read_cursor(RunDir(tmp_path), "ledger").memory["closed"]
    assert ledger.opened == 2
    assert follow(RunDir(tmp_path), {"ledger": {}})
    assert ledger.opened == 2  # a finished tracker is not opened again


def test_a_live_run_is_followed_until_it_ends(tmp_path, ledger):
    with rlvitals.start(tmp_path) as run:
        thread = threading.Thread(target=follow, args=(RunDir(tmp_path), {"ledger": {}}))
        thread.start()
        for step in range(20):
            run.log({"loss": float(step)}, step=step)
        assert until(lambda: len(ledger.held) == 20)
        assert thread.is_alive()
        run.log_eval({"loss": 7.0}, step=19)
    thread.join(timeout=30)
    assert not thread.is_alive()
    assert sorted(ledger.held) == sorted([*expected(range(20)), ("eval", 19, 7.0)])


def test_a_failing_tracker_is_tried_again_from_its_last_commit(tmp_path, monkeypatch):
    class Flaky(Ledger):
        held: ClassVar[list[tuple[str, int, float]]] = []
        failures = 3

        def commit(self):
            if type(self).failures:
                type(self).failures -= 1
                raise ConnectionError("connection refused")
            super().commit()

    install(monkeypatch, "flaky", Flaky)
    monkeypatch.setattr("rlvitals.sinks.follower.POLL_SECONDS", 0.01)
    record(tmp_path, range(5))
    assert follow(RunDir(tmp_path), {"flaky": {}})
    assert Flaky.held == expected(range(5))
    assert Flaky.opened == 4


def test_what_a_tracker_remembered_of_rows_it_never_held_is_forgotten(tmp_path, monkeypatch):
    """A tracker skips rows that its memory lists. A row in the memory that was not committed would never arrive."""

    class Remembering(Ledger):
        held: ClassVar[list[tuple[str, int, float]]] = []
        commits = 0

        def write(self, rows):
            known = self.memory.setdefault("steps", [])
            super().write([item for item in rows if item.row.step not in known])
            known += [item.row.step for item in rows]

        def commit(self):
            type(self).commits += 1
            if type(self).commits == 2:
                raise ConnectionError("connection refused")
            super().commit()

    install(monkeypatch, "remembering", Remembering)
    monkeypatch.setattr("rlvitals.sinks.follower.POLL_SECONDS", 0.01)
    monkeypatch.setattr("rlvitals.sinks.follower.BATCH_ROWS", 3)
    record(tmp_path, range(8))
    assert follow(RunDir(tmp_path), {"remembering": {}})
    assert Remembering.held == expected(range(8))
    assert read_cursor(RunDir(tmp_path), "remembering").memory["steps"] == list(range(8))


def test_a_tracker_learns_of_an_attempt_that_began_while_it_was_open(tmp_path, monkeypatch):
    class Attentive(Ledger):
        seen: ClassVar[list[tuple[int, int]]] = []

        def write(self, rows):
            """Record each row's attempt with the number of attempts that the tracker knows."""
            type(self).seen += [(item.row.attempt, len(self.facts.attempts)) for item in rows]

    install(monkeypatch, "attentive", Attentive)
    feed = Forwarder(RunDir(tmp_path), "attentive", {})
    for attempt in (1, 2, 3):
        with rlvitals.start(tmp_path, resume=attempt > 1) as run:
            for step in range(2):
                run.log({"loss": 1.0}, step=10 * attempt + step)
                assert feed.advance()
    feed.let_go()
    assert Attentive.seen == [(1, 1), (1, 1), (2, 2), (2, 2), (3, 3), (3, 3)]
    assert Attentive.opened == 3  # once per attempt, not once per row


def test_a_failure_is_reported_with_its_reason_and_since_when(tmp_path, monkeypatch, capsys):
    class Broken(Ledger):
        def __init__(self, facts, settings, memory):
            raise SinkError("no key for the service; run: service login")

    install(monkeypatch, "broken", Broken)
    record(tmp_path, range(7))
    assert not follow(RunDir(tmp_path), {"broken": {}}, linger=0.3)
    (tracker,) = rlvitals.open_run(tmp_path).trackers
    assert (tracker["state"], tracker["rows"], tracker["behind"]) == ("failing", 0, 7)
    assert tracker["error"] == "no key for the service; run: service login"
    assert tracker["since"] > 0
    assert main(["show", str(tmp_path)]) == 0
    assert "broken: 0 rows, 7 behind since" in capsys.readouterr().out


def test_a_hanging_tracker_holds_up_nobody_else(tmp_path, ledger, monkeypatch):
    release = threading.Event()

    class Hanging(Ledger):
        def commit(self):
            release.wait(60)

    hanging = Hanging
    real = plugins.tracker_class
    monkeypatch.setattr(plugins, "tracker_class", lambda name: hanging if name == "hanging" else real(name))
    record(tmp_path, range(50))
    try:
        assert not follow(RunDir(tmp_path), {"hanging": {}, "ledger": {}}, linger=1.0)
    finally:
        release.set()
    assert ledger.held == expected(range(50))
    assert read_cursor(RunDir(tmp_path), "ledger").state == "done"


def test_a_slow_call_is_waited_for_though_a_failing_tracker_would_have_been_given_up(tmp_path, monkeypatch):
    release, began = threading.Event(), time.monotonic()

    class Slow(Ledger):
        def __init__(self, facts, settings, memory):
            release.wait(60)
            super().__init__(facts, settings, memory)

    def watch():
        if time.monotonic() - began > 2.0:
            release.set()

    install(monkeypatch, "slow", Slow)
    record(tmp_path, range(7))
    assert follow(RunDir(tmp_path), {"slow": {}}, linger=1.0, slowest_call=60.0, once=True, progress=watch)
    assert read_cursor(RunDir(tmp_path), "slow").state == "done"


def test_one_tracker_has_one_follower(tmp_path, ledger):
    record(tmp_path, range(3))
    first = Forwarder(RunDir(tmp_path), "ledger", {})
    assert first.advance()
    second = Forwarder(RunDir(tmp_path), "ledger", {})
    with pytest.raises(rlvitals.errors.RunLocked):
        second.advance()
    first.let_go()
    assert second.advance() is False


def test_a_follower_that_lost_its_place_opens_the_tracker_again(tmp_path, ledger):
    """Its tracker does not know what another follower has stored meanwhile."""
    lock, stop = RunDir(tmp_path).sinks / "ledger.lock", threading.Event()
    with rlvitals.start(tmp_path) as run:
        run.log({"loss": 0.0}, step=0)
        feed = Forwarder(RunDir(tmp_path), "ledger", {})
        thread = threading.Thread(target=feed.run, args=(stop,), daemon=True)
        thread.start()
        assert until(lambda: read_cursor(RunDir(tmp_path), "ledger").rows == 1)
        replace_file(lock, json.dumps({**json.loads(lock.read_text()), "token": "of-another"}).encode())
        assert until(lambda: feed._sink is None, 10.0)
        run.log({"loss": 1.0}, step=1)
        lock.unlink()
        assert until(lambda: len(ledger.held) == 2)
    stop.set()
    thread.join(timeout=30)
    assert ledger.held == expected(range(2))
    assert (ledger.opened, ledger.abandoned) == (2, 1)


def test_a_bad_line_is_skipped_and_not_sent_again(tmp_path, ledger):
    record(tmp_path, range(3))
    log = tmp_path / "logs" / "training_metrics.jsonl"
    log.write_bytes(log.read_bytes() + b"garbage\n")
    assert follow(RunDir(tmp_path), {"ledger": {}})
    assert ledger.held == expected(range(3))
    assert rlvitals.open_run(tmp_path).trackers[0]["behind"] == 0


def test_a_bare_log_without_a_list_of_attempts_is_followed_by_one_sink(tmp_path, ledger):
    log = tmp_path / "logs" / "training_metrics.jsonl"
    log.parent.mkdir()
    log.write_text("".join(f'{{"step":{step},"loss":{step}.0}}\n' for step in range(2500)))
    assert follow(RunDir(tmp_path), {"ledger": {}})
    assert ledger.held == expected(range(2500))
    assert ledger.opened == 1


# In the process that `start` spawns


def rows_in(path: Path) -> list[dict]:
    return json.loads(path.read_text()) if path.exists() else []


def test_start_spawns_a_follower_and_finish_waits_for_it(tmp_path):
    record(tmp_path / "run", range(100), track_with=["csv", "json"])
    rows = rows_in(tmp_path / "run" / "logs" / "metrics.json")
    assert [row["step"] for row in rows] == list(range(100))
    assert len((tmp_path / "run" / "logs" / "metrics.csv").read_text().splitlines()) == 101
    assert [tracker["state"] for tracker in rlvitals.open_run(tmp_path / "run").trackers] == ["done", "done"]


def test_settings_go_to_the_one_tracker_or_to_each_by_name(tmp_path):
    record(tmp_path / "one", [1], track_with="csv", tracker_kwargs={"path": str(tmp_path / "one.csv")})
    assert (tmp_path / "one.csv").exists()
    both = {"csv": {"path": str(tmp_path / "two.csv")}, "json": {"path": str(tmp_path / "two.json")}}
    record(tmp_path / "two", [1], track_with=["csv", "json"], tracker_kwargs=both)
    assert (tmp_path / "two.csv").exists()
    assert (tmp_path / "two.json").exists()


def test_an_unknown_tracker_lists_the_known_ones(tmp_path):
    with pytest.raises(
        ConfigError, match=r"unknown tracker 'wandbb'\. Did you mean 'wandb'\? Known trackers: csv, json"
    ):
        rlvitals.start(tmp_path, track_with="wandbb")
    with pytest.raises(ConfigError, match="settings for 'jsn', which is not among track_with"):
        rlvitals.start(tmp_path, track_with=["csv", "json"], tracker_kwargs={"csv": {}, "jsn": {}})


def test_a_tracker_whose_package_is_missing_says_how_to_get_it(tmp_path, monkeypatch):
    monkeypatch.setitem(plugins.TRACKERS, "ghost", plugins.Tracker("rlvitals.sinks.ghost", "G", "no_such_package_here"))
    with pytest.raises(MissingDependency, match=r"pip install 'rlvitals\[ghost\]'"):
        rlvitals.start(tmp_path, track_with="ghost")


@pytest.mark.slow
def test_a_tracker_that_cannot_keep_up_is_left_behind_with_the_way_on(tmp_path, caplog):
    blocked = tmp_path / "file"
    blocked.write_text("in the way")
    with caplog.at_level(logging.WARNING):
        began = time.monotonic()
        record(
            tmp_path / "run",
            range(3),
            track_with="csv",
            tracker_kwargs={"path": str(blocked / "x.csv")},
            tracker_wait=1.0,
        )
    assert time.monotonic() - began < 15
    assert "csv: 3 rows are not sent yet" in caplog.text
    assert f"rlvitals sync {tmp_path / 'run'} --to csv" in caplog.text
    blocked.unlink()
    blocked.mkdir()
    assert main(["sync", str(tmp_path / "run"), "--to", "csv"]) in (0, 64)
    assert until(lambda: (blocked / "x.csv").exists() and len((blocked / "x.csv").read_text().splitlines()) == 4)


def test_secrets_for_trackers_stay_off_the_disk(tmp_path):
    kwargs = {"csv": {"path": str(tmp_path / "x.csv")}, "json": {}}
    secret = "0123456789abcdef-secret"
    record(
        tmp_path / "run",
        [1],
        track_with=["csv", "json"],
        tracker_kwargs={**kwargs, "csv": {**kwargs["csv"]}},
        config={"wandb": {"api_key": secret}},
    )
    for path in (tmp_path / "run").rglob("*"):
        assert path.is_dir() or secret.encode() not in path.read_bytes()


TRAINER = """
    import sys, time, rlvitals
    folder, first, resume = sys.argv[1], int(sys.argv[2]), sys.argv[3] == "resume"
    run = rlvitals.start(folder, track_with=["csv", "json", "tensorboard"], resume=resume)
    print("ready", flush=True)
    for step in range(first, 10**9):
        run.log({"loss": float(step)}, step=step)
        print(step, flush=True)
        time.sleep(0.002)
"""


def follower_pids(run: Path) -> set[int]:
    found = set()
    for lock in (run / "sinks").glob("*.lock"):
        try:
            found.add(json.loads(lock.read_text())["pid"])
        except (OSError, ValueError):
            continue
    return found


def kill_followers(run: Path) -> None:
    for pid in follower_pids(run):
        with contextlib.suppress(ProcessLookupError):  # a lock of the previous round: this follower has not started yet
            os.kill(pid, signal.SIGKILL)


def tensorboard_steps(folder: Path) -> list[int]:
    """The steps that TensorBoard's own reader finds."""
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    reader = EventAccumulator(str(folder), size_guidance={"scalars": 0}, purge_orphaned_data=True)
    reader.Reload()
    return [event.step for event in reader.Scalars("loss")]


@pytest.mark.slow
def test_killed_trainers_and_followers_leave_every_row_once_in_every_tracker(tmp_path):
    """Trainer and follower are killed at random moments and resumed; at the end the run is synced."""
    pytest.importorskip("tensorboard")
    run = tmp_path / "run"
    first = 0
    for round_number in range(6):
        child = subprocess.Popen(
            [sys.executable, "-c", textwrap.dedent(TRAINER), str(run), str(first), "resume" if round_number else "new"],
            stdout=subprocess.PIPE, text=True,
        )  # fmt: skip
        assert child.stdout.readline() == "ready\n"
        acknowledged = -1
        for _ in range(150 + 70 * round_number):
            acknowledged = int(child.stdout.readline())
        if (
            round_number % 2
        ):  # kill the follower first, then the trainer; otherwise the trainer, and the follower a little later
            kill_followers(run)
        child.kill()
        child.wait()
        child.stdout.close()
        if not round_number % 2:
            time.sleep(0.03 * round_number)
            kill_followers(run)
        log = rlvitals.open_run(run)
        assert log.last_step >= acknowledged
        first = log.last_step + 1
    assert main(["sync", str(run)]) == 0
    steps = rlvitals.open_run(run).series("loss").steps.tolist()
    assert [row["step"] for row in rows_in(run / "logs" / "metrics.json")] == steps
    csv_steps = [int(line.split(",")[0]) for line in (run / "logs" / "metrics.csv").read_text().splitlines()[1:]]
    assert csv_steps == steps
    assert tensorboard_steps(run / "logs" / "tensorboard") == steps


def test_a_tracker_whose_follower_never_began_is_synced_too(tmp_path):
    """Trainer and follower die before the first commit: only the settings name the tracker."""
    script = """
        import os, signal, sys, rlvitals
        run = rlvitals.start(sys.argv[1], track_with=["csv", "json"], display="none")
        os.kill(run._forwarding._process.pid, signal.SIGKILL)
        for step in range(5):
            run.log({"loss": float(step)}, step=step)
        os.kill(os.getpid(), signal.SIGKILL)
    """
    run = tmp_path / "run"
    killed = subprocess.run([sys.executable, "-c", textwrap.dedent(script), str(run)], check=False)
    assert killed.returncode == -signal.SIGKILL
    before = {tracker["name"]: (tracker["state"], tracker["behind"]) for tracker in rlvitals.open_run(run).trackers}
    assert before == {"csv": ("waiting", 5), "json": ("waiting", 5)}
    assert main(["sync", str(run)]) == 0
    assert [row["step"] for row in rows_in(run / "logs" / "metrics.json")] == [0, 1, 2, 3, 4]


def test_a_follower_outlives_its_trainer_and_finishes_the_forwarding(tmp_path):
    script = """
        import os, sys, rlvitals
        run = rlvitals.start(sys.argv[1], track_with="json")
        for step in range(2000):
            run.log({"loss": float(step)}, step=step)
        os.kill(os.getpid(), 9)
    """
    run = tmp_path / "run"
    killed = subprocess.run([sys.executable, "-c", textwrap.dedent(script), str(run)], check=False)
    assert killed.returncode == -signal.SIGKILL
    assert until(lambda: read_cursor(RunDir(run), "json").state == "done")
    assert len(rows_in(run / "logs" / "metrics.json")) == 2000


def test_a_resume_takes_over_from_the_old_follower(tmp_path):
    run = tmp_path / "run"
    record(run, range(5), track_with="json", tracker_wait=0.0)
    record(run, range(5, 9), track_with="json", resume=True)
    assert [row["step"] for row in rows_in(run / "logs" / "metrics.json")] == list(range(9))
    assert {row["attempt"] for row in rows_in(run / "logs" / "metrics.json")} == {1, 2}


def test_overwriting_a_run_restarts_its_trackers(tmp_path):
    run = tmp_path / "run"
    record(run, range(5), track_with="json")
    record(run, range(3), track_with="json", overwrite=True)
    assert [row["step"] for row in rows_in(run / "logs" / "metrics.json")] == [0, 1, 2]


def test_sync_brings_a_tracker_that_was_never_asked_for(tmp_path, capsys):
    record(tmp_path / "run", range(4))
    assert main(["sync", str(tmp_path / "run")]) == 64
    assert "has no trackers yet" in capsys.readouterr().err
    assert main(["sync", str(tmp_path / "run"), "--to", "json", "--json"]) == 0
    assert json.loads(capsys.readouterr().out)[0]["rows"] == 4
    assert len(rows_in(tmp_path / "run" / "logs" / "metrics.json")) == 4


def test_sync_takes_the_recorded_settings_without_the_masked_ones():
    own = {"project": "p", "api_key": MASK, "more": {"url": "u", "key": MASK}}
    kept = {"project": "p", "more": {"url": "u"}}
    for recorded in ({"track_with": ["wandb"], "tracker_kwargs": own},
                     {"track_with": ["csv", "wandb"], "tracker_kwargs": {"wandb": own}}):  # fmt: skip
        assert sync._for(["wandb"], recorded) == {"track_with": ["wandb"], "tracker_kwargs": {"wandb": kept}}


def test_without_processes_a_thread_follows(tmp_path, monkeypatch, caplog):
    def refuse(*_, **__):
        raise PermissionError("not allowed to spawn")

    monkeypatch.setattr(subprocess, "Popen", refuse)
    record(tmp_path / "run", range(10), track_with="json")
    assert "a thread follows the log instead" in caplog.text
    assert len(rows_in(tmp_path / "run" / "logs" / "metrics.json")) == 10


@pytest.mark.slow
def test_a_tracker_whose_disk_is_full_for_the_whole_run_is_caught_up_afterwards(tmp_path, small_disk):
    run, target = tmp_path / "run", small_disk / "x.json"
    filler = fill(small_disk)
    record(run, range(200), track_with="json", tracker_kwargs={"path": str(target)}, tracker_wait=2.0)
    (tracker,) = rlvitals.open_run(run).trackers
    assert (tracker["state"], tracker["rows"], tracker["behind"]) == ("failing", 0, 200)
    assert "No space left" in tracker["error"]
    filler.unlink()
    assert until(lambda: read_cursor(RunDir(run), "json").state == "done", seconds=60)  # the follower still retries
    assert [row["step"] for row in rows_in(target)] == list(range(200))


def test_a_tracker_without_a_network_for_the_whole_run_is_caught_up_afterwards(tmp_path, monkeypatch):
    """The back end is a server on this machine that starts only after the run has ended."""
    address: dict[str, int] = {}

    class Remote(Ledger):
        held: ClassVar[list[tuple[str, int, float]]] = []

        def write(self, rows):
            with socket.create_connection(("127.0.0.1", address["port"]), timeout=5) as connection:
                connection.sendall(b"".join(b"%d\n" % item.row.step for item in rows))
                connection.shutdown(socket.SHUT_WR)
                assert connection.recv(2) == b"ok"
            super().write(rows)

    install(monkeypatch, "remote", Remote)
    monkeypatch.setattr("rlvitals.sinks.follower.POLL_SECONDS", 0.01)
    with socket.socket() as server:
        server.bind(("127.0.0.1", 0))
        address["port"] = server.getsockname()[1]  # not listening yet: connections are refused
        with rlvitals.start(tmp_path) as run:
            follower = threading.Thread(target=follow, args=(RunDir(tmp_path), {"remote": {}}))
            follower.start()
            for step in range(50):
                run.log({"loss": float(step)}, step=step)
            assert until(lambda: read_cursor(RunDir(tmp_path), "remote").state == "failing")
        assert "refused" in rlvitals.open_run(tmp_path).trackers[0]["error"]
        server.listen()
        received = []
        while follower.is_alive():
            server.settimeout(0.2)
            try:
                connection, _ = server.accept()
            except TimeoutError:
                continue
            with connection, connection.makefile("rb") as lines:
                received += [int(line) for line in lines]
                connection.sendall(b"ok")
    assert received == list(range(50))
    assert Remote.held == expected(range(50))


def test_a_key_in_a_trackers_error_is_masked_everywhere(tmp_path, monkeypatch, caplog):
    class Leaky(Ledger):
        def __init__(self, facts, settings, memory):
            raise ConnectionError(f"401 for key {settings['login_kwargs']['api_key']}")

    install(monkeypatch, "leaky", Leaky)
    record(tmp_path, [1])
    assert not follow(RunDir(tmp_path), {"leaky": {"login_kwargs": {"api_key": "abc123secret"}}}, linger=0.2)
    assert rlvitals.open_run(tmp_path).trackers[0]["error"] == "401 for key ***"
    assert "abc123secret" not in caplog.text
    assert not [path for path in tmp_path.rglob("*") if path.is_file() and b"abc123secret" in path.read_bytes()]


def take_samples(run, count: int) -> None:
    for number in range(count):
        run._measurements._take_sample({"System/CPU_Percent": float(number)})


def test_samples_of_the_machine_are_numbered_over_the_whole_run_and_go_to_those_who_take_them(
    tmp_path, ledger, monkeypatch
):
    taker = type("Taker", (Ledger,), {"held": [], "opened": 0, "takes_samples": True})
    install(monkeypatch, "taker", taker)
    for resume, count in ((False, 3), (True, 2)):
        with rlvitals.start(tmp_path, resume=resume, hardware=False) as run:
            run.log({"loss": 1.0}, step=100 + count)
            take_samples(run, count)
        assert follow(RunDir(tmp_path), {"ledger": {}, "taker": {}})
    assert [step for stream, step, _ in taker.held if stream == "system"] == [0, 1, 2, 3, 4]
    assert (
        [item for item in taker.held if item[0] == "train"] == ledger.held == [("train", 103, 1.0), ("train", 102, 1.0)]
    )
    cursor = read_cursor(RunDir(tmp_path), "taker")
    assert (cursor.rows, cursor.samples, bytes_behind(RunDir(tmp_path), cursor)) == (2, 5, 0)
    assert "system" not in read_cursor(RunDir(tmp_path), "ledger").offsets


def test_samples_keep_their_numbers_when_they_are_sent_again(tmp_path, monkeypatch):
    broken = [True]

    class Taker(Ledger):
        held: ClassVar[list[tuple[str, int, float]]] = []
        takes_samples = True

        def commit(self):
            if len(type(self).held) and broken:
                broken.clear()
                raise OSError("no")
            super().commit()

    install(monkeypatch, "taker", Taker)
    with rlvitals.start(tmp_path, hardware=False) as run:
        take_samples(run, 2)
    feed = Forwarder(RunDir(tmp_path), "taker", {})
    assert feed.advance()
    with rlvitals.start(tmp_path, hardware=False, resume=True) as run:
        take_samples(run, 2)
    with pytest.raises(OSError, match="no"):
        feed.advance()
    feed._failed(OSError("no"))
    feed.let_go()
    assert follow(RunDir(tmp_path), {"taker": {}})
    assert [step for _, step, _ in Taker.held] == [0, 1, 2, 3]


@pytest.mark.skipif(importlib.util.find_spec("tensorboard") is None, reason="needs the tensorboard package")
def test_the_documents_tags_of_the_machine_are_in_tensorboard(tmp_path):
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    with rlvitals.start(tmp_path, track_with="tensorboard", hardware=0.2, tracker_wait=60) as run:
        run.log({"loss": 1.0}, step=1)
        log = RunDir(tmp_path).log("system")
        assert until(lambda: log.exists() and log.read_bytes().count(b"\n") >= 3)
    found = EventAccumulator(str(tmp_path / "logs" / "tensorboard")).Reload()
    tags = [tag for tag in found.Tags()["scalars"] if tag.startswith("System/")]
    document = ("CPU_Percent", "Memory_Percent", "Memory_Used_GB", "Memory_Available_GB", "Process_Memory_GB")
    assert set(tags) >= {f"System/{name}" for name in document}
    count = log.read_bytes().count(b"\n")
    assert [event.step for event in found.Scalars("System/Memory_Percent")] == list(range(count))
