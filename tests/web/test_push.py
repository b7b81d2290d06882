"""Runs pushed to a server: exactly once, whichever process is killed in between; and what the server refuses."""

from __future__ import annotations

import base64
import json
import os
import random
import signal
import subprocess
import sys
import threading
import time
from contextlib import contextmanager
from pathlib import Path

import pytest
from serving import serving

import rlvitals
from conftest import free_port, until
from rlvitals.cli.main import main
from rlvitals.errors import RunError
from rlvitals.records import Group, Rollout, Turn
from rlvitals.store.inbox import MOST_PIECE, Inbox, run_files
from rlvitals.store.layout import RunDir
from rlvitals.views.run import open_run
from rlvitals.web.delivery import Delivery, PushServer
from rlvitals.web.server import MOST_PUSHED, Team

pytestmark = pytest.mark.slow

TOKEN = "a-token-for-pushes-0123"


def start(path, **settings):
    return rlvitals.start(path, **({"display": "none", "hardware": False, "monitor": False} | settings))


def record(path, rows=50):
    run = start(path, algorithm="grpo")
    for step in range(1, rows + 1):
        run.log({"loss": 1 / step, "note": "é" * 20}, step=step)
    run.log_groups([Group("Why?", (Rollout((Turn("Because."),), reward=1.0),))], step=1)
    run.log_eval({"accuracy": 0.5}, step=rows)
    run.finish()
    return path


@contextmanager
def receiving(folder, **options):
    folder.mkdir(exist_ok=True)
    team = Team(inbox=Inbox(folder, **options), push_token=TOKEN)
    with serving(folder, team=team) as client:
        yield client


def deliver(run, client, name="run", **options):
    delivery = Delivery(RunDir(run), PushServer(f"http://127.0.0.1:{client.port}", TOKEN), name)
    delivery.send(**options)
    return delivery


def contents(folder: Path) -> dict[str, bytes]:
    return {name: (folder / name).read_bytes() for name in run_files(folder)}


def push(client, token=TOKEN, headers=(), **message):
    """Send one push message with exactly these bytes."""
    body = message.pop("body", None) or json.dumps({"run": "run", "id": "", **message}).encode()
    lines = [f"host: localhost:{client.port}", "content-type: application/json", f"content-length: {len(body)}"]
    lines += [f"authorization: Bearer {token}"] if token else []
    head = "\r\n".join(["POST /push HTTP/1.1", *lines, *headers, "connection: close", "", ""])
    return client.send(head.encode() + body)


def test_a_pushed_run_is_the_run_byte_by_byte(tmp_path, monkeypatch, capsys):
    run = record(tmp_path / "mine")
    with receiving(tmp_path / "team") as client:
        first = deliver(run, client)
        copy = tmp_path / "team" / "run"
        assert contents(copy) == contents(run)
        assert len(contents(copy)) >= 5
        assert open_run(copy).rows == 50
        assert client.api("run", run="run").facts["rows"] == 50

        assert first.bytes_sent == sum(map(len, contents(run).values()))
        assert deliver(run, client).bytes_sent == 0, "what is there is not sent again"

        monkeypatch.setenv("RLVITALS_PUSH_TOKEN", TOKEN)
        assert main(["push", str(run), f"http://127.0.0.1:{client.port}", "--name", "a/b/c/d"]) == 0
        assert "the whole run" in capsys.readouterr().out
        assert contents(tmp_path / "team" / "a/b/c/d") == contents(run)

        monkeypatch.delenv("RLVITALS_PUSH_TOKEN")
        (tmp_path / "token").write_text(f"  {TOKEN}\n")
        run = run.rename(tmp_path / ".été 1")
        command = ["push", str(run), f"http://127.0.0.1:{client.port}"]
        assert main([*command, "--token-file", str(tmp_path / "token")]) == 0
        assert contents(tmp_path / "team" / "été-1") == contents(run)
        assert main(command) == 64
        assert "RLVITALS_PUSH_TOKEN" in capsys.readouterr().err


def test_what_differs_on_the_server_is_sent_again(tmp_path):
    run = record(tmp_path / "mine")
    with receiving(tmp_path / "team") as client:
        deliver(run, client)
        copy = tmp_path / "team" / "run"
        log = RunDir(copy).train_log
        log.write_bytes(log.read_bytes()[:777])  # as a power cut may leave it
        RunDir(copy).eval_log.write_bytes(b"something else\n")
        RunDir(copy).info.unlink()
        deliver(run, client)
        assert contents(copy) == contents(run)


def test_a_live_run_is_followed_to_its_end(tmp_path):
    run = start(tmp_path / "mine")
    run.log({"loss": 1.0}, step=1)
    with receiving(tmp_path / "team") as client:
        follower = threading.Thread(target=deliver, args=(tmp_path / "mine", client), kwargs={"follow": True})
        follower.start()
        copy = tmp_path / "team" / "run"
        until(lambda: RunDir(copy).holds_run and open_run(copy).rows == 1 and open_run(copy).status == "running")
        run.log({"loss": 0.5}, step=2)
        until(lambda: open_run(copy).rows == 2)
        run.finish()
        follower.join(30)
        assert not follower.is_alive()
        assert open_run(copy).status == "finished"
        assert contents(copy) == contents(tmp_path / "mine")
        assert not RunDir(copy).lock.exists()


def test_the_door_is_shut_unless_it_was_opened(tmp_path):
    with serving(tmp_path) as client:
        answer = push(client, what="state")
        assert answer.status == 413
        assert "nothing here takes a body" in answer.facts["error"]


def test_only_the_token_for_pushes_opens_the_door(tmp_path):
    with receiving(tmp_path / "team") as client:
        assert push(client, what="state").status == 200
        assert push(client, token="", what="state").status == 401
        assert push(client, token=TOKEN[:-1] + "x", what="state").status == 401
        assert push(client, what="state", headers=["origin: http://evil.example"]).status == 403
        assert push(client, what="state", headers=["sec-fetch-site: cross-site"]).status == 403
        assert push(client, what="state", headers=["content-type: text/plain"]).status in (400, 415)
        head = f"POST /push HTTP/1.1\r\nhost: localhost:{client.port}\r\ncontent-length: 700000\r\n"
        assert client.send(f"{head}authorization: Bearer wrong\r\n\r\n".encode()).status == 401, "no body is waited for"
        assert client.get("/push", authorization=f"Bearer {TOKEN}").status == 405
        assert client.get("/push", method="PUT", authorization=f"Bearer {TOKEN}").status == 405
    with serving(
        tmp_path / "team", token="a-token-for-looking-01", team=Team(inbox=Inbox(tmp_path), push_token=TOKEN)
    ) as client:
        assert client.get("/api/runs", authorization=f"Bearer {TOKEN}").status == 401, "it opens nothing else"
        assert push(client, token="a-token-for-looking-01", what="state").status == 401


OUTSIDE = [
    "../out", "/etc", "a/../../b", ".hidden", "a//b", "a/.git", "", "x" * 200, "a\0b", "a\nb", "a/b/c/d/e", "C:\\x",
]  # fmt: skip
FOREIGN = [
    "../run.json", "logs/../../x.jsonl", "/etc/passwd", "index/x", "checkpoint-1/model.pt", "logs/other.jsonl",
    ".pushed.json", "logs/rollouts/../../x", "run.json\n", "logs\\training_metrics.jsonl", "", "logs", "run.py",
]  # fmt: skip


def test_no_name_leads_out_of_the_folder(tmp_path):
    with receiving(tmp_path / "team") as client:
        before = sorted(tmp_path.rglob("*"))
        for run in OUTSIDE:
            answer = push(client, run=run, what="append", file="attempts.jsonl", offset=0, data="")
            assert answer.status == 400, run
        assert sorted(tmp_path.rglob("*")) == before


def test_only_files_of_a_run_are_written(tmp_path):
    with receiving(tmp_path / "team") as client:
        for file in FOREIGN:
            for what in ("append", "put", "remove"):
                answer = push(client, what=what, file=file, offset=0, data="", sha256="0" * 64)
                assert answer.status == 400, (what, file)
        assert [path.name for path in (tmp_path / "team").rglob("*") if path.is_file()] == [".pushed.json"]


def test_links_are_not_followed(tmp_path):
    outside = tmp_path / "outside"
    outside.mkdir()
    (outside / "secret").write_text("kept")
    with receiving(tmp_path / "team") as client:
        assert push(client, what="append", file="attempts.jsonl", offset=0, data="").status == 200
        copy = tmp_path / "team" / "run"
        (copy / "logs").symlink_to(outside)
        (copy / "run.json").symlink_to(outside / "secret")
        (tmp_path / "team" / "linked").symlink_to(outside)
        answers = [
            push(client, what="append", file="logs/system.jsonl", offset=0, data="eHg="),
            push(client, what="put", file="run.json", data="eHg=", sha256="0" * 64),
            push(client, run="linked", what="append", file="attempts.jsonl", offset=0, data=""),
            push(client, run="linked/x", what="append", file="attempts.jsonl", offset=0, data=""),
        ]
        assert {answer.status for answer in answers} <= {403, 409}
    assert [path.name for path in outside.iterdir()] == ["secret"]
    assert (outside / "secret").read_text() == "kept"


def test_bodies_pieces_and_the_quota_are_bounded(tmp_path):
    with receiving(tmp_path / "team", quota=100_000) as client:
        assert push(client, body=b" " * (MOST_PUSHED + 1)).status == 413
        too_long = base64.b64encode(bytes(MOST_PIECE + 1)).decode()
        assert push(client, what="append", file="attempts.jsonl", offset=0, data=too_long).status == 400
        some = base64.b64encode(b"x" * 60_000).decode()
        assert push(client, what="append", file="attempts.jsonl", offset=0, data=some).facts == {"size": 60_000}
        full = push(client, what="append", file="attempts.jsonl", offset=60_000, data=some)
        assert (full.status, "quota" in full.facts["error"]) == (413, True)
        assert push(client, what="append", file="attempts.jsonl", offset=0, cut=True, data=some).status == 200
        part = base64.b64encode(b"x" * 30_000).decode()
        for _ in range(3):  # a file that arrives damaged is removed, and does not count
            assert push(client, what="put", file="run.json", data=part, sha256="0" * 64).status == 409
        assert push(client, what="put", file="run.json", data=part).status == 200
        assert push(client, what="put", file="run.json", data=some).status == 413
        assert push(client, body=b"no json").status == 400
        assert push(client, body=b"[1]").status == 400
        assert push(client, what="append", file="attempts.jsonl", offset=-1, data="").status == 400
        assert push(client, what="append", file="attempts.jsonl", offset=0, data="%%").status == 400
        assert push(client, what="fly", file="attempts.jsonl").status == 400
    assert Inbox(tmp_path / "team").used == 90_000, "counted again when a server starts"


def test_a_piece_is_written_where_the_file_ends_and_nowhere_else(tmp_path):
    with receiving(tmp_path / "team") as client:
        piece = {"what": "append", "file": "attempts.jsonl", "data": base64.b64encode(b"0123456789").decode()}
        assert push(client, **piece, offset=0).facts == {"size": 10}
        for offset in (0, 5, 11):
            answer = push(client, **piece, offset=offset)
            assert (answer.status, answer.facts["size"]) == (409, 10)
        assert (tmp_path / "team" / "run" / "attempts.jsonl").read_bytes() == b"0123456789"


def test_another_run_is_left_alone(tmp_path):
    own = record(tmp_path / "team-run")
    (tmp_path / "team").mkdir()
    record(tmp_path / "team" / "local")
    other = record(tmp_path / "other", rows=3)
    with receiving(tmp_path / "team") as client:
        deliver(own, client)
        before = contents(tmp_path / "team" / "run")
        with pytest.raises(RunError, match="holds another run"):
            deliver(other, client)
        with pytest.raises(RunError, match="was not pushed"):
            deliver(other, client, name="local")
        with pytest.raises(RunError, match="inside another run"):
            deliver(other, client, name="local/deeper")
        assert contents(tmp_path / "team" / "run") == before


def test_a_server_that_stays_away_is_reported(tmp_path):
    run = record(tmp_path / "mine", rows=3)
    delivery = Delivery(RunDir(run), PushServer("http://127.0.0.1:9", TOKEN), "run")
    with pytest.raises(RunError, match="run the same command again"):
        delivery.send(patience=0.2)


@pytest.mark.slow
def test_kills_on_both_sides_and_an_outage_cost_nothing(tmp_path):
    """A run is written while its pusher and the server are killed at random points; once the server stays down."""
    chance = random.Random(19)
    team = tmp_path / "team"
    team.mkdir()
    environment = {**os.environ, "RLVITALS_PUSH_TOKEN": TOKEN, "PYTHONDONTWRITEBYTECODE": "1"}
    program = [sys.executable, "-m", "rlvitals.cli.main"]
    port = free_port()

    def serve():
        command = [*program, "serve", str(team), "--port", str(port), "--accept-pushes"]
        return subprocess.Popen(command, env=environment, stdout=subprocess.DEVNULL)

    def pusher():
        command = [*program, "push", str(tmp_path / "mine"), f"http://127.0.0.1:{port}", "--follow", "--name", "run"]
        return subprocess.Popen(command, env=environment, stdout=subprocess.DEVNULL)

    run = start(tmp_path / "mine")
    run.log({"loss": 1.0}, step=1)
    server, sender = serve(), pusher()
    rows, killed = 1, ["server", "pusher"] * 3
    chance.shuffle(killed)
    try:
        for number, side in enumerate(killed):
            for _ in range(400):
                rows += 1
                run.log({"loss": 1 / rows, "text": "x" * 200}, step=rows)
            copy = RunDir(team / "run").train_log
            before = _size(copy)
            until(lambda copy=copy, before=before: _size(copy) > before, seconds=60)  # in the middle of its work
            time.sleep(chance.random() * 0.05)
            if side == "server":
                server.send_signal(signal.SIGKILL)
                server.wait()
                if "server" not in killed[number + 1 :]:  # an outage, during which the run continues
                    run.log({"loss": 0.0}, step=(rows := rows + 1))
                    time.sleep(1.5)
                server = serve()
            else:
                sender.send_signal(signal.SIGKILL)
                sender.wait()
                sender = pusher()
        run.finish()
        assert sender.wait(90) == 0
    finally:
        for process in (server, sender):
            process.kill()
            process.wait()
    assert contents(team / "run") == contents(tmp_path / "mine")
    view = open_run(team / "run")
    assert (view.rows, view.status) == (rows, "finished")


def _size(path: Path) -> int:
    return path.stat().st_size if path.exists() else 0
