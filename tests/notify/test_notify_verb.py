"""`rlvitals notify`: a test message, the list of variables, and the unsent notifications of a run."""

from __future__ import annotations

import json
import os
from dataclasses import replace

import pytest

import rlvitals
from health_lines import finding_line, monitor_line
from rlvitals.cli.main import main
from rlvitals.records import Finding
from rlvitals.store.findings import append_event
from rlvitals.store.layout import RunDir

pytest_plugins = ["notify_fixtures"]

KL = Finding("kl_high", "kl_explosion", "critical", 20, 12, "KL is 3.1")


@pytest.fixture
def run_dir(tmp_path):
    """A run with ten rows, a critical finding and a warning, whose settings name Slack."""
    with rlvitals.start(tmp_path / "kto", name="kto-7b", config={}, monitor=False) as run:
        for step in range(10):
            run.log({"kl": 1.0}, step=step)
    found = RunDir(tmp_path / "kto")
    config = json.loads(found.config.read_text())
    target = {"to": "slack", "name": "slack", "on": "critical"}
    config["rlvitals"]["notify"] = {"to": [target], "link": "https://team.example/#health?run={run}"}
    found.config.write_text(json.dumps(config))
    append_event(found, monitor_line())
    append_event(found, finding_line(KL))
    append_event(found, finding_line(replace(KL, rule="loss_up", severity="warning", title="the loss climbs")))
    return found


@pytest.mark.parametrize("name", ["slack", "discord", "telegram", "ntfy", "pagerduty"])
def test_a_test_message_is_sent(desk, capsys, name):
    server = desk(answer=b"{}")
    assert main(["notify", "--test", name]) == 0
    assert capsys.readouterr().out == f"{name}: the test message was sent\n"
    (request,) = server.requests
    text = request.body.decode() + request.headers.get("Title", "")
    assert "notifications from rlvitals arrive here" in text


def test_a_test_mail_is_sent(smtp, capsys):
    box = smtp()
    assert main(["notify", "--test", "email"]) == 0
    assert "notifications from rlvitals arrive here" in box.mails[0]["Subject"]


def test_a_test_message_has_the_chart_of_a_run(desk, run_dir):
    server = desk(answer=b"{}")
    arguments = ["notify", str(run_dir.root), "--test", "discord", "--link", "https://team.example/{run}"]
    assert main(arguments) == 0
    parts = server.requests[0].parts
    assert parts["files[0]"][1].startswith(b"\x89PNG")
    assert json.loads(parts["payload_json"])["embeds"][0]["url"] == "https://team.example/kto"


def test_a_test_message_that_does_not_arrive_says_why_without_the_address(desk, capsys):
    desk(404)
    assert main(["notify", "--test", "slack"]) == 1
    output = capsys.readouterr().out
    assert output == "slack: not sent: HTTP 404; check RLVITALS_SLACK_WEBHOOK\n"


def test_a_missing_variable_is_named(no_variables, capsys):
    assert main(["notify", "--test", "slack"]) == 64
    assert "RLVITALS_SLACK_WEBHOOK (the address of an incoming webhook)" in capsys.readouterr().err


def test_a_template_is_tried_as_well(desk, tmp_path):
    server = desk()
    (tmp_path / "mine.yaml").write_text(f"url: {server.url}\nbody: '{{{{title}}}}'\n")
    assert main(["notify", "--test", "template", "--file", str(tmp_path / "mine.yaml")]) == 0
    assert server.requests[0].body == b"notifications from rlvitals arrive here"


def test_the_variables_are_listed_and_not_what_they_hold(desk, capsys):
    desk()
    assert main(["notify"]) == 0
    output = capsys.readouterr().out
    assert "RLVITALS_SLACK_WEBHOOK" in output
    assert "very-secret" not in output
    assert main(["notify", "--json"]) == 0
    listed = {one["variable"]: one for one in json.loads(capsys.readouterr().out)}
    assert listed["RLVITALS_SMTP_PASSWORD"]["is_set"] is True
    assert listed["RLVITALS_EMAIL_FROM"]["is_set"] is False


def test_what_is_left_is_sent_once(desk, run_dir, capsys):
    server = desk()
    for _ in range(2):
        assert main(["notify", str(run_dir.root)]) == 0
        assert capsys.readouterr().out == "slack: 1 sent in all\n"
    assert [request.json["text"] for request in server.requests] == ["CRITICAL in kto-7b: KL is 3.1"]
    assert "https://team.example/#health?run=kto" in server.requests[0].body.decode()


def test_a_service_that_is_down_leaves_what_is_left(desk, run_dir, capsys):
    desk(500)
    assert main(["notify", str(run_dir.root), "--json"]) == 1
    (result,) = json.loads(capsys.readouterr().out)
    assert result == {"target": "slack", "left": 1, "problem": "HTTP 500", "sent": 0, "refused": 0}
    assert main(["notify", str(run_dir.root)]) == 0


def test_another_service_and_severity_can_be_named(desk, run_dir, capsys):
    server = desk()
    assert main(["notify", str(run_dir.root), "--to", "pagerduty", "--on", "warning"]) == 0
    assert [request.json["payload"]["severity"] for request in server.requests] == ["critical", "warning"]
    assert not os.path.exists(run_dir.notify / "slack.json")


def test_a_run_without_targets_is_reported(tmp_path, capsys):
    with rlvitals.start(tmp_path / "run", monitor=False) as run:
        run.log({"loss": 1.0})
    assert main(["notify", str(tmp_path / "run")]) == 64
    assert "--to slack" in capsys.readouterr().err
