"""Complete runs with notifications: the follower process, its restart and its death, and the chart that it sends."""

from __future__ import annotations

import json
import os
import signal
import struct
import subprocess
import sys
import textwrap
import zlib

import psutil
import pytest
from notify_servers import SECRETS

import rlvitals
from conftest import until
from rlvitals.cli.main import main
from rlvitals.errors import ConfigError
from rlvitals.store.layout import RunDir
from rlvitals.store.lock import read_holder
from rlvitals.store.outbox import Outbox, outbox_place, read_outbox

pytest_plugins = ["notify_fixtures"]
pytestmark = pytest.mark.slow

RULE = "loss > 5 for 3: critical"


def log(run, steps, loss):
    for step in steps:
        run.log({"loss": loss + step % 2 / 10, "reward": step / 100}, step=step)


def sent(run_dir, name="slack"):
    outbox = read_outbox(run_dir, name)
    return 0 if outbox is None else outbox.sent


def follower_of(run_dir, name="slack"):
    """The pid of the process that sends."""
    assert until(lambda: read_holder(outbox_place(run_dir, name)) is not None)
    return read_holder(outbox_place(run_dir, name)).process.pid


def everything_below(folder):
    return {path: path.read_bytes() for path in folder.rglob("*") if path.is_file()}


def test_a_run_notifies_people_and_no_secret_is_on_disk_or_on_a_command_line(desk, smtp, tmp_path, caplog):
    box = smtp()
    server = desk(smtp_port=box.port, answer=b'{"id": "77", "result": {"message_id": 78}}')
    names = ["slack", "discord", "telegram", "ntfy", "pagerduty", "email"]
    notify = {"to": names, "link": "https://team.example/#health?run={run}"}
    run_dir = RunDir(tmp_path / "kto")
    with rlvitals.start(run_dir.root, name="kto-7b", rules=[RULE], notify=notify) as run:
        log(run, range(12), 1.0)
        log(run, range(12, 20), 9.0)
        pid = follower_of(run_dir)
        with open(f"/proc/{pid}/cmdline", "rb") as file:
            arguments = file.read()
        log(run, range(20, 60), 1.0)
        assert until(lambda: all(sent(run_dir, name) >= 2 for name in names), 120)
    for secret in SECRETS.values():
        assert secret.encode() not in arguments
        assert secret not in caplog.text
        assert [path for path, data in everything_below(tmp_path).items() if secret.encode() in data] == []
    own = json.loads((run_dir.root / "config.json").read_text())["rlvitals"]["notify"]
    assert [target["to"] for target in own["to"]] == names
    by_service = {}
    for request in server.requests:
        by_service.setdefault(request.path.strip("/").split("/")[0].split("?")[0], []).append(request)
    assert {name: len(requests) for name, requests in by_service.items()} == {
        "services": 2, "api": 2, "v2": 2,
        f"bot{SECRETS['RLVITALS_TELEGRAM_TOKEN']}": 2, SECRETS["RLVITALS_NTFY_URL"]: 2,
    }  # fmt: skip
    assert len(box.mails) == 2
    posted, edited = by_service["api"]
    assert (posted.method, edited.method) == ("POST", "PATCH")
    pictures = [
        posted.parts["files[0]"][1],
        by_service[SECRETS["RLVITALS_NTFY_URL"]][0].body,
        next(part for part in box.mails[0].walk() if part.get_content_type() == "image/png").get_payload(decode=True),
    ]
    for picture in pictures:
        width, height = png_size(picture)
        assert width > 400
        assert height > 200
    trigger, resolve = (request.json for request in by_service["v2"])
    assert (trigger["event_action"], resolve["event_action"]) == ("trigger", "resolve")
    assert trigger["dedup_key"] == resolve["dedup_key"]
    assert trigger["client_url"] == "https://team.example/#health?run=kto"


def png_size(data):
    """Width and height of a PNG; checks that the file is complete."""
    assert data.startswith(b"\x89PNG\r\n\x1a\n")
    place, pixels, size = 8, b"", (0, 0)
    while place < len(data):
        length, kind = struct.unpack(">I4s", data[place : place + 8])
        chunk = data[place + 8 : place + 8 + length]
        assert struct.unpack(">I", data[place + 8 + length : place + 12 + length])[0] == zlib.crc32(kind + chunk)
        size = struct.unpack(">II", chunk[:8]) if kind == b"IHDR" else size
        pixels += chunk if kind == b"IDAT" else b""
        place += 12 + length
    assert len(zlib.decompress(pixels)) > size[0] * size[1]
    return size


def test_an_outage_and_a_killed_follower_lose_nothing_and_repeat_nothing(desk, tmp_path, caplog):
    server = desk()
    run_dir = RunDir(tmp_path / "run")
    notify = [{"to": "slack", "picture": False}]
    with rlvitals.start(run_dir.root, rules=[RULE], notify=notify, display="none") as run:
        log(run, range(12), 1.0)
        log(run, range(12, 20), 9.0)
        assert until(lambda: sent(run_dir) == 1, 60)
        os.kill(follower_of(run_dir), signal.SIGKILL)
        log(run, range(20, 50), 1.0)  # no process sends the recovery
    assert len(server.requests) == 1
    server.close()
    again = desk(500)
    with rlvitals.start(run_dir.root, resume=True, rules=[RULE], notify=notify, display="none") as run:
        assert until(lambda: sent(run_dir) == 2, 60)  # the follower of the next attempt sends the recovery
        log(run, range(50, 60), 9.0)
        assert until(lambda: sent(run_dir) == 3, 60)
    first_words = [request.json["text"].split(" ")[0] for request in again.requests]
    assert first_words == ["Recovered", "Recovered", "CRITICAL"]  # the first one was answered with 500
    assert all(b"may be a repeat" not in request.body for request in again.requests)


def test_a_trainer_that_is_killed_is_reported_by_the_process_beside_it(desk, tmp_path):
    server = desk()
    script = """
        import os, signal, sys, time
        import rlvitals
        run = rlvitals.start(sys.argv[1], notify=[{"to": "pagerduty"}], display="none")
        for step in range(10):
            run.log({"loss": 1.0}, step=step)
        while not os.path.exists(sys.argv[1] + "/notify/pagerduty.json"):
            time.sleep(0.05)
        os.kill(os.getpid(), signal.SIGKILL)
    """
    child = subprocess.run([sys.executable, "-c", textwrap.dedent(script), str(tmp_path / "run")], check=False)
    assert child.returncode == -signal.SIGKILL
    assert until(lambda: server.requests, 60)
    event = server.requests[0].json
    assert event["event_action"] == "trigger"
    assert "process" in event["payload"]["summary"]
    # A follower that is replaced before it has recorded the service's answer is followed by one that sends again.
    assert until(lambda: sent(RunDir(tmp_path / "run"), "pagerduty"))
    with rlvitals.start(
        tmp_path / "run", resume=True, notify=[{"to": "pagerduty"}], display="none"
    ) as run:  # the process is back
        log(run, range(10, 14), 1.0)
        assert until(lambda: len(server.requests) > 1, 60)
    assert server.requests[1].json == {
        "routing_key": SECRETS["RLVITALS_PAGERDUTY_ROUTING_KEY"], "event_action": "resolve",
        "dedup_key": event["dedup_key"],
    }  # fmt: skip


def test_training_goes_on_while_a_service_hangs(desk, tmp_path):
    """The service answers only after the run has ended. The trainer waits no longer than `tracker_wait`."""
    server = desk("hang", "hang", "hang")
    notify = [{"to": "slack", "picture": False}]
    with rlvitals.start(tmp_path / "run", rules=[RULE], notify=notify, tracker_wait=0.1, display="none") as run:
        log(run, range(12), 1.0)
        log(run, range(12, 20), 9.0)
        assert until(lambda: server.requests, 60)
        log(run, range(20, 500), 9.0)
    assert rlvitals.open_run(tmp_path / "run").rows == 500
    server.release.set()
    server.statuses.clear()
    assert until(lambda: sent(RunDir(tmp_path / "run")) == 1, 60)  # the follower continues without the trainer


def test_where_no_process_may_be_started_a_thread_sends(desk, tmp_path, monkeypatch, caplog):
    server = desk()

    def refused(*_, **__):
        raise PermissionError(1, "Operation not permitted")

    monkeypatch.setattr(subprocess, "Popen", refused)
    run_dir = RunDir(tmp_path / "run")
    with rlvitals.start(run_dir.root, rules=[RULE], notify="slack", display="none") as run:
        log(run, range(12), 1.0)
        log(run, range(12, 20), 9.0)
        assert until(lambda: sent(run_dir) == 1, 60)
    assert "Verdict: act" in "".join(
        element["text"] for element in server.requests[0].json["blocks"][1]["elements"][0]["elements"]
    )
    assert "a thread follows the log instead" in caplog.text


def test_the_end_of_a_run_says_what_could_not_be_sent(desk, tmp_path, caplog):
    desk().close()
    run_dir = RunDir(tmp_path / "run")
    notify = [{"to": "slack", "picture": False}]
    with rlvitals.start(run_dir.root, rules=[RULE], notify=notify, tracker_wait=0.1, display="none") as run:
        log(run, range(12), 1.0)
        log(run, range(12, 20), 9.0)
        assert until(lambda: (read_outbox(run_dir, "slack") or Outbox("slack")).state == "failing", 60)
        follower = follower_of(run_dir)
    warning = next(message for message in caplog.messages if "not sent yet" in message)
    left = f"run 'rlvitals notify {run_dir.root}' to send the rest"
    assert warning == f"slack: 1 notification is not sent yet (Connection refused); {left}"
    process = psutil.Process(follower)
    process.kill()  # otherwise it would retry for ten minutes
    process.wait(60)  # it holds its lock until it is gone
    server = desk()
    assert main(["notify", str(run_dir.root)]) == 0
    assert [request.json["text"].split(" ")[0] for request in server.requests] == ["CRITICAL"]


@pytest.mark.parametrize("damage", ["nothing", "findings", "notify"])
def test_a_run_without_findings_or_with_damaged_files_ends_as_ever(desk, tmp_path, damage):
    server = desk()
    run_dir = RunDir(tmp_path / "run")
    run = rlvitals.start(run_dir.root, notify="slack", display="none")
    if damage == "findings":
        run_dir.findings.mkdir(parents=True)
    elif damage == "notify":
        run_dir.notify.write_text("a file in its place")
    if damage != "nothing":
        log(run, range(3), 1.0)
    run.finish()
    assert run.status == "finished"
    assert rlvitals.open_run(run_dir.root).rows == (0 if damage == "nothing" else 3)
    assert server.requests == []


def test_ranks_beside_the_first_need_no_variables(tmp_path, no_variables):
    with rlvitals.start(tmp_path / "run", monitor=False) as run:
        run.log({"loss": 1.0}, step=0)
        with rlvitals.start(tmp_path / "run", notify="slack", rank=1) as other:
            other.log({"loss": 1.0}, step=0)
    assert not (tmp_path / "run" / "notify").exists()


# Settings


@pytest.mark.parametrize(
    ("given", "problem"),
    [
        ("slak", "Did you mean 'slack'"),
        ("https://hooks.slack.com/services/T0/B0/very-secret", "names services"),
        ({"to": "slack", "webhook_url": "very-secret"}, "no setting"),
        ([{"to": "slack", "url": "https://very-secret"}], "taken from the environment"),
        ([{"to": "slack", "on": "criticl"}], "Did you mean 'critical'"),
        ([{"to": "slack", "per_hour": 0}], "per_hour"),
        ([{"to": "slack", "per_hour": 1000}], "at most 60"),
        ([{"to": "slack", "name": "../../etc"}], "small letters"),
        (["slack", "slack"], "same name"),
        (["template"], "needs a 'file'"),
        ([{"to": "slack", "file": "x"}], "needs a 'file'"),
        ([{"to": "slack", "picture": "yes"}], "picture"),
        ({"to": "slack", "link": "https://team.example/?token=very-secret-0123456789"}, "without a token"),
        ({"to": "slack", "link": "javascript:alert(1)"}, "link"),
        ("slack", "RLVITALS_SLACK_WEBHOOK"),
    ],
)
def test_a_wrong_setting_is_refused_without_repeating_what_may_be_secret(tmp_path, no_variables, given, problem):
    with pytest.raises(ConfigError, match=problem) as caught:
        rlvitals.start(tmp_path / "run", notify=given)
    assert "very-secret" not in str(caught.value)
    assert not (tmp_path / "run").exists()


def test_a_variable_that_holds_no_address_is_refused_without_it(tmp_path, no_variables, monkeypatch):
    monkeypatch.setenv("RLVITALS_SLACK_WEBHOOK", "very-secret")
    with pytest.raises(ConfigError, match="RLVITALS_SLACK_WEBHOOK must hold an http") as caught:
        rlvitals.start(tmp_path / "run", notify="slack")
    assert "very-secret" not in str(caught.value)


def test_two_channels_of_a_service_have_variables_of_their_own(desk, tmp_path, monkeypatch):
    server = desk()
    monkeypatch.setenv("RLVITALS_SLACK_WEBHOOK_ONCALL_EU", f"{server.url}/oncall")
    file = tmp_path / "settings.yaml"
    file.write_text(
        "rlvitals:\n  rules: ['loss > 5 for 3: critical']\n  notify:\n    - slack\n"
        "    - {to: slack, name: oncall-eu, on: warning, picture: false}\n"
    )
    run_dir = RunDir(tmp_path / "run")
    with rlvitals.start(run_dir.root, config=file, display="none") as run:
        assert [target["on"] for target in run.settings.notify["to"]] == ["critical", "warning"]
        log(run, range(12), 1.0)
        log(run, range(12, 20), 9.0)
        assert until(lambda: sent(run_dir) and sent(run_dir, "oncall-eu"), 60)
    assert {request.path for request in server.requests} == {f"/{SECRETS['RLVITALS_SLACK_WEBHOOK']}", "/oncall"}
