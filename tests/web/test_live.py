"""A page that receives events while a run is written."""

from __future__ import annotations

import contextlib
import gc
import socket
import time
import warnings

import pytest
from serving import serving

import rlvitals
from conftest import until
from rlvitals.views.run_tail import RunTail
from rlvitals.web.connections import Connection

pytestmark = pytest.mark.slow


@pytest.fixture
def run(tmp_path):
    with rlvitals.start(tmp_path / "run", monitor=False, hardware=False, display="none") as run:
        run.log({"loss": 1.0}, step=1)
        yield run


def test_a_row_is_received_within_a_second_of_being_logged(tmp_path, run):
    with serving(tmp_path) as client, client.listen("run") as events:
        assert next(events)[:2] == ("status", {"status": "running", "status_note": "", "ended": None})
        waits = []
        for step in range(2, 6):
            logged = time.monotonic()
            run.log({"loss": float(step), "kl": float("nan")}, step=step)
            name, facts, _ = next(events)
            waits.append(time.monotonic() - logged)
            assert (name, facts["step"], facts["values"]) == ("rows", step, {"loss": float(step), "kl": None})
            assert facts["updated"] == pytest.approx(time.time(), abs=30)
    assert min(waits) < 1.0  # the machine may have been busy during the others


def test_rows_that_come_fast_are_sent_together(tmp_path, run):
    with serving(tmp_path) as client, client.listen("run") as events:
        next(events)
        for step in range(2, 202):
            run.log({"loss": float(step)}, step=step)
        received = []
        while not received or received[-1]["step"] != 201:
            received.append(next(events)[1])
    assert sum(facts["rows"] for facts in received) == 200
    assert len(received) < 20


def test_a_page_that_comes_back_misses_nothing(tmp_path, run):
    with serving(tmp_path) as client:
        with client.listen("run") as events:
            next(events)
            run.log({"loss": 2.0}, step=2)
            place = next(events)[2]
        run.log({"loss": 3.0}, step=3)
        with client.listen("run", place) as events:
            next(events)
            name, facts, _ = next(events)
    assert (name, facts["step"], facts["rows"]) == ("rows", 3, 1)


def test_the_end_of_a_run_is_received(tmp_path):
    run = rlvitals.start(tmp_path / "run", monitor=False, hardware=False, display="none")
    run.log({"loss": 1.0}, step=1)
    with serving(tmp_path) as client, client.listen("run") as events:
        next(events)
        run.finish()
        name, facts, _ = next(events)
    assert (name, facts["status"]) == ("status", "finished")
    assert facts["ended"]


def test_findings_are_received(tmp_path):
    with (
        rlvitals.start(tmp_path / "run", rules=["loss > 5: critical"], hardware=False, display="none") as run,
        serving(tmp_path) as client,
    ):
        run.log({"loss": 1.0}, step=1)
        with client.listen("run") as events:
            next(events)
            for step in range(2, 30):
                run.log({"loss": 9.0}, step=step)
            facts = next(facts for name, facts, _ in events if name == "findings")
    assert facts["findings"][0]["severity"] == "critical"
    assert facts["findings"][0]["metrics"] == ["loss"]


def test_a_torn_line_waits_until_it_is_whole(tmp_path):
    log = tmp_path / "run" / "logs" / "training_metrics.jsonl"
    log.parent.mkdir(parents=True)
    log.write_text('{"step":1,"loss":1.0}\n')
    tail = RunTail(tmp_path / "run")
    with log.open("a") as file:
        file.write('{"step":2,"lo')
        file.flush()
        assert tail.look().rows == 0
        file.write('ss":2.0}\n')
        file.flush()
        assert tail.look().values == {"loss": 2.0}
        assert tail.look().rows == 0


@pytest.mark.parametrize("place", ["x", "1-2", "-1--1--1", "9" * 30 + "-0-0", "1-2-3-4"])
def test_a_place_that_is_none_begins_at_the_end(tmp_path, place):
    log = tmp_path / "run" / "logs" / "training_metrics.jsonl"
    log.parent.mkdir(parents=True)
    log.write_text('{"step":1,"loss":1.0}\n')
    tail = RunTail(tmp_path / "run", place)
    assert tail.place == f"{log.stat().st_size}-0-0"


def test_a_run_that_was_replaced_is_read_from_its_beginning(tmp_path):
    log = tmp_path / "run" / "logs" / "training_metrics.jsonl"
    log.parent.mkdir(parents=True)
    log.write_text('{"step":1,"loss":1.0}\n{"step":2,"loss":1.0}\n')
    tail = RunTail(tmp_path / "run")
    log.write_text('{"step":1,"loss":7.0}\n')
    assert tail.look().values == {"loss": 7.0}


def test_who_is_far_behind_gets_the_newest(tmp_path, monkeypatch):
    monkeypatch.setattr("rlvitals.views.run_tail.LONGEST_CATCH_UP", 1000)
    log = tmp_path / "run" / "logs" / "training_metrics.jsonl"
    log.parent.mkdir(parents=True)
    log.write_text("".join(f'{{"step":{step},"loss":1.0}}\n' for step in range(1000)))
    tail = RunTail(tmp_path / "run", "0-0-0")
    added = tail.look()
    assert added.step == 999
    assert 10 < added.rows < 60
    assert tail.place == f"{log.stat().st_size}-0-0"


def test_a_server_that_ends_leaves_no_connection_open(tmp_path, monkeypatch):
    """Also closes a connection that arrived after the others were notified, and that sends no request."""
    monkeypatch.setattr(Connection, "shutdown", lambda connection: None)
    with warnings.catch_warnings(record=True) as warned:
        warnings.simplefilter("always")
        with socket.socket() as late:
            with serving(tmp_path) as client:
                late.connect(("127.0.0.1", client.port))
                assert until(lambda: len(client.connections) == 1)
            late.settimeout(10)
            with contextlib.suppress(ConnectionResetError):
                assert late.recv(1) == b""
        gc.collect()
    assert not [str(one.message) for one in warned if issubclass(one.category, ResourceWarning)]
