"""One courier follows the health log: one message per finding, the limit, the digest, faults, restarts, kills."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import threading
import time
from dataclasses import replace

import pytest
from notify_servers import SECRETS

import rlvitals
from conftest import until
from health_lines import finding_line, monitor_line, recovered_line
from rlvitals.notify import courier as couriers
from rlvitals.notify import service as services
from rlvitals.notify.briefer import Briefer
from rlvitals.notify.courier import Courier, Couriers, NotNow, unsent
from rlvitals.notify.targets import Target
from rlvitals.records import Finding, HealthEvent
from rlvitals.store.findings import append_event, event_line
from rlvitals.store.layout import RunDir
from rlvitals.store.outbox import read_outbox, write_outbox

pytest_plugins = ["notify_fixtures"]

KL = Finding("kl_high", "kl_explosion", "critical", 20, 12, "KL is 3.1")
LOSS = Finding("loss_up", "loss_divergence", "warning", 30, 25, "the loss climbs")


class Plain(Briefer):
    """Takes the verdict from the health log and draws nothing, because a process for each message takes a second."""

    def _briefed(self, metrics):
        return None


@pytest.fixture
def run_dir(tmp_path):
    """A finished run with ten rows and an empty health log."""
    with rlvitals.start(tmp_path / "kto", name="kto-7b", monitor=False) as run:
        for step in range(10):
            run.log({"loss": 1.0}, step=step)
    found = RunDir(tmp_path / "kto")
    append_event(found, monitor_line())
    return found


def courier_of(run_dir, name="slack", **given):
    target = Target(given.pop("name", name), name, **given)
    return Courier(run_dir, target, briefer=Plain(run_dir, [target]))


def go(courier):
    """Advance the courier until it has nothing left to do."""
    while courier.advance():
        pass


def find(run_dir, number, severity="critical", rule=None):
    finding = replace(KL, rule=rule or f"rule_{number}", step=number, severity=severity, title=f"finding {number}")
    append_event(run_dir, finding_line(finding))


def headlines(server):
    return [request.json["text"] for request in server.requests]


def an_hour_later(run_dir, name="slack"):
    """Set the times of the sent messages back by an hour."""
    outbox = read_outbox(run_dir, name)
    outbox.sent_at = [then - 3601 for then in outbox.sent_at]
    write_outbox(run_dir, outbox)


# One message per finding


def test_a_finding_and_its_recovery_are_a_message_each_and_nothing_comes_twice(desk, run_dir):
    server = desk()
    append_event(run_dir, finding_line(KL))
    courier = courier_of(run_dir)
    go(courier)
    assert headlines(server) == ["CRITICAL in kto-7b: KL is 3.1"]
    assert "Verdict: act (1 critical finding" in "".join(map(str, texts_of(server.requests[0])))
    append_event(run_dir, recovered_line("kl_high", 60))
    go(courier)
    courier.let_go()
    assert headlines(server)[1:] == ["Recovered in kto-7b: KL is 3.1"]
    assert "Recovered: at step 60" in "".join(texts_of(server.requests[1]))
    go(courier_of(run_dir))  # another process
    assert len(server.requests) == 2


def texts_of(request):
    return [element["text"] for element in request.json["blocks"][1]["elements"][0]["elements"]]


@pytest.mark.parametrize(("on", "count"), [("critical", 1), ("warning", 2), ("info", 3)])
def test_each_target_has_a_least_severity(desk, run_dir, on, count):
    server = desk()
    for number, severity in enumerate(("info", "warning", "critical")):
        find(run_dir, number, severity)
        append_event(run_dir, recovered_line(f"rule_{number}", number + 1))
    go(courier_of(run_dir, on=on, per_hour=60))
    assert sum("Recovered" not in line for line in headlines(server)) == count
    assert sum("Recovered" in line for line in headlines(server)) == count


def test_an_escalation_is_sent_under_the_key_of_the_alarm(desk, run_dir):
    server = desk()
    find(run_dir, 1, "warning", "kl_high")
    escalated = replace(KL, step=4)
    append_event(run_dir, event_line(HealthEvent("escalated", 4, 1.0, 1, finding=escalated)))
    append_event(run_dir, recovered_line("kl_high", 9))
    go(courier_of(run_dir, "pagerduty", on="warning"))
    events = [request.json for request in server.requests]
    assert [event["event_action"] for event in events] == ["trigger", "trigger", "resolve"]
    assert [event["payload"]["severity"] for event in events[:2]] == ["warning", "critical"]
    assert len({event["dedup_key"] for event in events}) == 1


def test_an_alarm_that_comes_again_is_another_alert(desk, run_dir):
    server = desk()
    for step in (1, 5):
        find(run_dir, step, rule="kl_high")
        append_event(run_dir, recovered_line("kl_high", step + 1))
    go(courier_of(run_dir, "pagerduty"))
    keys = [request.json["dedup_key"] for request in server.requests]
    assert keys[0] == keys[1] != keys[2] == keys[3]


def test_the_alarms_of_two_slices_recover_by_themselves(desk, run_dir):
    server = desk()
    for name in ("math", "code"):
        append_event(run_dir, finding_line(replace(KL, slice=f"env={name}", title=f"KL of {name}")))
    over = HealthEvent("recovered", 50, 1.0, 1, facts={"rule": "kl_high", "slice": "env=code"})
    append_event(run_dir, event_line(over))
    go(courier_of(run_dir))
    assert headlines(server)[2:] == ["Recovered in kto-7b: KL of code"]


def test_the_recovery_of_a_finding_that_was_not_sent_is_not_sent(desk, run_dir):
    server = desk()
    append_event(run_dir, recovered_line("kl_high", 9))
    go(courier_of(run_dir))
    assert server.requests == []


def test_half_a_line_waits_and_garbage_is_skipped(desk, run_dir):
    server = desk()
    line = finding_line(KL)
    with open(run_dir.findings, "ab") as log:
        log.write(b"\x00\xff garbage\n\n[1]\n" + line[:30])
        log.flush()
        courier = courier_of(run_dir)
        go(courier)
        assert server.requests == []
        log.write(line[30:])
    go(courier)
    assert len(server.requests) == 1


def test_findings_before_the_target_was_added_are_not_sent(desk, run_dir):
    server = desk()
    find(run_dir, 1)
    target = Target("slack", "slack")
    late = Courier(run_dir, target, run_dir.findings.stat().st_size, Plain(run_dir, [target]))
    find(run_dir, 2)
    go(late)
    assert headlines(server) == ["CRITICAL in kto-7b: finding 2"]


# The limit


def test_beyond_the_limit_findings_are_held_back_and_come_as_one_digest(desk, run_dir):
    server = desk()
    for number in range(9):
        find(run_dir, number)
    append_event(run_dir, recovered_line("rule_7", 12))
    courier = courier_of(run_dir, per_hour=4)
    go(courier)
    assert headlines(server) == [f"CRITICAL in kto-7b: finding {number}" for number in range(4)]
    assert unsent(run_dir, courier.target) == 5
    courier.let_go()
    an_hour_later(run_dir)
    go(courier_of(run_dir, per_hour=4))
    (digest,) = server.requests[4:]
    assert digest.json["text"] == "Held back in kto-7b: 5 messages beyond the limit of 4 an hour"
    text = "".join(texts_of(digest))
    assert all(f"finding {number}" in text for number in range(4, 9))
    assert "finding 7 (recovered at step 12)" in text
    assert unsent(run_dir, courier.target) == 0


def test_no_hour_has_more_messages_than_the_limit_whatever_happens(desk, run_dir):
    """Recoveries count as well if they are messages."""
    server = desk()
    courier = courier_of(run_dir, per_hour=3, on="info")
    for number in range(20):
        find(run_dir, number, ("critical", "warning", "info")[number % 3])
        append_event(run_dir, recovered_line(f"rule_{number}", number))
        go(courier)
    assert len(server.requests) == 3
    assert unsent(run_dir, courier.target) > 0


def test_the_last_message_of_an_hour_is_kept_for_what_is_critical(desk, run_dir):
    server = desk()
    for number in range(6):
        find(run_dir, number, "warning")
    find(run_dir, 6, "critical")
    go(courier_of(run_dir, per_hour=3, on="warning"))
    assert [line.split(" ")[0] for line in headlines(server)] == ["WARNING", "WARNING", "CRITICAL"]


@pytest.mark.parametrize("name", ["pagerduty", "discord"])
def test_a_recovery_that_notifies_nobody_neither_waits_nor_counts(desk, run_dir, name):
    server = desk(answer=b'{"id": "1"}')
    courier = courier_of(run_dir, name, per_hour=2, on="warning")
    find(run_dir, 1, "warning")
    append_event(run_dir, recovered_line("rule_1", 3))
    find(run_dir, 2, "critical")
    find(run_dir, 3, "critical")
    append_event(run_dir, recovered_line("rule_2", 4))
    go(courier)
    is_over = [request.method == "PATCH" or b'"resolve"' in request.body for request in server.requests]
    assert is_over == [False, True, False, True]
    assert unsent(run_dir, courier.target) == 1


def test_of_very_many_findings_held_back_the_oldest_are_listed_and_all_are_counted(desk, run_dir, monkeypatch):
    monkeypatch.setattr(couriers, "MOST_HELD", 3)
    server = desk()
    for number in range(8):
        find(run_dir, number)
    append_event(run_dir, recovered_line("rule_0", 12))
    courier = courier_of(run_dir, per_hour=2)
    go(courier)
    courier.let_go()
    assert unsent(run_dir, courier.target) == 7  # six findings, and the recovery of one that was sent
    an_hour_later(run_dir)
    go(courier_of(run_dir, per_hour=2))
    assert headlines(server)[2] == "Held back in kto-7b: 7 messages beyond the limit of 2 an hour"
    assert "More: 4 not listed" in "".join(texts_of(server.requests[2]))


def test_a_digest_at_pagerduty_is_resolved_when_all_in_it_have_recovered(desk, run_dir):
    server = desk()
    courier = courier_of(run_dir, "pagerduty", on="warning", per_hour=1)
    for number, severity in enumerate(("critical", "warning", "warning")):
        find(run_dir, number, severity)
    worse = replace(KL, rule="rule_1", step=4, title="finding 1 is worse")
    append_event(run_dir, event_line(HealthEvent("escalated", 4, 1.0, 1, finding=worse)))
    go(courier)
    courier.let_go()
    an_hour_later(run_dir, "pagerduty")
    courier = courier_of(run_dir, "pagerduty", on="warning", per_hour=1)
    go(courier)
    digest = server.requests[1].json
    assert digest["payload"]["severity"] == "critical"
    assert "critical at step 1: finding 1 is worse" in str(digest["payload"]["custom_details"])
    append_event(run_dir, recovered_line("rule_1", 9))
    go(courier)
    assert len(server.requests) == 2
    append_event(run_dir, recovered_line("rule_2", 10))
    go(courier)
    (over,) = [request.json for request in server.requests[2:]]
    assert (over["event_action"], over["dedup_key"]) == ("resolve", digest["dedup_key"])


def test_a_digest_in_slack_is_followed_by_a_word_when_all_in_it_have_recovered(desk, run_dir):
    server = desk()
    courier = courier_of(run_dir, per_hour=2)
    for number in range(4):
        find(run_dir, number)
    go(courier)
    courier.let_go()
    an_hour_later(run_dir)
    courier = courier_of(run_dir, per_hour=60)
    go(courier)
    for number in (2, 3):
        append_event(run_dir, recovered_line(f"rule_{number}", 9 + number))
    go(courier)
    assert headlines(server)[3:] == ["Recovered in kto-7b: 2 findings of an earlier digest"]


def test_an_alarm_that_became_critical_while_held_back_resolves_both_alerts(desk, run_dir):
    server = desk()
    courier = courier_of(run_dir, "pagerduty", on="warning", per_hour=1)
    find(run_dir, 1, "warning", "kl_high")
    append_event(run_dir, event_line(HealthEvent("escalated", 4, 1.0, 1, finding=replace(KL, step=4))))
    go(courier)
    courier.let_go()
    an_hour_later(run_dir, "pagerduty")
    courier = courier_of(run_dir, "pagerduty", on="warning", per_hour=1)
    append_event(run_dir, recovered_line("kl_high", 9))
    go(courier)
    events = [request.json for request in server.requests]
    opened = {event["dedup_key"] for event in events if event["event_action"] == "trigger"}
    assert {event["dedup_key"] for event in events if event["event_action"] == "resolve"} == opened
    assert len(opened) == 2


def test_what_was_held_back_is_sent_when_the_run_ends(desk, run_dir, quick):
    server = desk()
    for number in range(6):
        find(run_dir, number)
    run_to_the_end(run_dir, per_hour=2)
    assert len(server.requests) == 3
    assert "4 messages beyond the limit of 2 an hour" in headlines(server)[2]
    assert read_outbox(run_dir, "slack").state == "done"


def test_a_run_that_is_restarted_again_and_again_gets_one_last_digest_an_hour(desk, run_dir, quick):
    server = desk()
    for attempt in range(3):
        for number in range(3):
            find(run_dir, 10 * attempt + number)
        if attempt == 0:
            run_to_the_end(run_dir, per_hour=1)
        else:
            courier = courier_of(run_dir, per_hour=1)
            stop, ended = threading.Event(), threading.Event()
            ended.set()
            thread = threading.Thread(target=courier.run, args=(stop, ended))
            thread.start()
            assert until(lambda: courier.waits_for_limit)  # noqa: B023
            stop.set()
            thread.join()
    assert len(server.requests) == 2
    assert unsent(run_dir, Target("slack", "slack")) == 6  # kept for the next digest


@pytest.fixture
def quick(monkeypatch):
    """Shortens the pauses."""
    for name, seconds in {"POLL_SECONDS": 0.02, "FIRST_PAUSE": 0.02, "GRACE_SECONDS": 0.05}.items():
        monkeypatch.setattr(couriers, name, seconds)


def run_to_the_end(run_dir, name="slack", **given):
    ended = threading.Event()
    ended.set()
    courier = courier_of(run_dir, name, **given)
    thread = threading.Thread(target=courier.run, args=(threading.Event(), ended))
    thread.start()
    thread.join(30)
    assert courier.is_over


# Faults


def test_a_server_that_fails_gets_the_message_when_it_is_well_again(desk, run_dir, quick):
    server = desk(500, 503, 502)
    find(run_dir, 1)
    run_to_the_end(run_dir)
    assert len(server.requests) == 4
    assert len({request.body for request in server.requests}) == 1  # none of them has the note that it may be a repeat


class Resting(Courier):
    """Records how long it would wait, and does not wait."""

    def _rest(self, stop, seconds):
        self.rests = [*getattr(self, "rests", []), seconds]
        if len(self.rests) == 10:
            stop.set()


def rests_of(run_dir):
    target = Target("slack", "slack")
    courier = Resting(run_dir, target, briefer=Plain(run_dir, [target]))
    courier.run(threading.Event(), threading.Event())
    return courier.rests


def test_pauses_grow_and_start_again_after_a_message_that_was_sent(desk, run_dir):
    desk(*[500] * 4, 200, *[500] * 9)
    find(run_dir, 1)
    find(run_dir, 2)
    assert rests_of(run_dir) == [1, 2, 4, 8, 1, 2, 4, 8, 16, 32]


def test_pauses_grow_to_a_minute_and_no_longer_unless_the_service_asks_for_it(desk, run_dir):
    desk(*[503] * 8, (429, {"Retry-After": "300"}, b""), 503)
    find(run_dir, 1)
    assert rests_of(run_dir) == [1, 2, 4, 8, 16, 32, 60, 60, 300, 60]


def test_retry_after_is_waited_for(desk, run_dir, quick):
    server = desk((429, {"Retry-After": "1"}, b""))
    find(run_dir, 1)
    began = time.monotonic()
    run_to_the_end(run_dir)
    assert len(server.requests) == 2
    assert time.monotonic() - began >= 1.0


def test_an_outage_holds_the_place_and_says_so_without_the_address(desk, run_dir, caplog):
    server = desk()
    server.close()
    find(run_dir, 1)
    courier = courier_of(run_dir)
    for _ in range(3):
        with pytest.raises(NotNow):
            go(courier)
    outbox = read_outbox(run_dir, "slack")
    assert (outbox.state, outbox.sent, outbox.error) == ("failing", 0, "Connection refused")
    assert len([message for message in caplog.messages if "slack" in message]) == 1
    assert "very-secret" not in caplog.text
    courier.let_go()
    again = desk()
    go(courier_of(run_dir))
    assert len(again.requests) == 1
    assert b"may be a repeat" not in again.requests[0].body
    assert read_outbox(run_dir, "slack").state == "following"


def test_a_message_that_was_not_answered_is_sent_again_and_says_that_it_may_be_a_repeat(desk, run_dir, monkeypatch):
    monkeypatch.setattr(services, "TIMEOUT_SECONDS", 0.2)
    server = desk("hang")
    find(run_dir, 1)
    courier = courier_of(run_dir)
    with pytest.raises(NotNow):
        go(courier)
    go(courier)
    assert [b"may be a repeat" in request.body for request in server.requests] == [False, True]


def test_pagerduty_recognizes_repeats_by_their_key(desk, run_dir):
    server = desk("drop")
    find(run_dir, 1)
    courier = courier_of(run_dir, "pagerduty")
    with pytest.raises(NotNow):
        go(courier)
    go(courier)
    assert server.requests[0].json == server.requests[1].json


def test_a_message_that_is_refused_with_its_chart_goes_without(desk, run_dir):
    server = desk(413, answer=b"{}")
    find(run_dir, 1)
    target = Target("discord", "discord")

    class Drawn(Briefer):
        def _briefed(self, metrics):
            return replace(self._worked_out(), picture=b"\x89PNG")

    go(Courier(run_dir, target, briefer=Drawn(run_dir, [target])))
    assert "files[0]" in server.requests[0].parts
    assert "embeds" in server.requests[1].json
    assert read_outbox(run_dir, "discord").refused == 0


def test_a_message_that_a_service_refuses_does_not_hold_up_the_others(desk, run_dir, caplog):
    server = desk(400)
    find(run_dir, 1)
    find(run_dir, 2)
    go(courier_of(run_dir))
    assert len(server.requests) == 2
    outbox = read_outbox(run_dir, "slack")
    assert (outbox.refused, outbox.sent) == (1, 1)
    assert "refused a notification: HTTP 400" in caplog.text


def test_a_wrong_address_is_reported_with_the_variable_and_holds_the_place(desk, run_dir, caplog):
    desk(404)
    find(run_dir, 1)
    with pytest.raises(NotNow):
        go(courier_of(run_dir))
    assert "HTTP 404; check RLVITALS_SLACK_WEBHOOK" in caplog.text
    assert unsent(run_dir, Target("slack", "slack")) == 1


def test_one_service_that_hangs_does_not_hold_up_another(desk, run_dir, quick):
    server = desk("hang", answer=b"{}")  # for whichever service connects first
    find(run_dir, 1)
    notify = {"to": [{"to": name, "name": name, "on": "critical", "picture": False} for name in ("slack", "pagerduty")]}
    both = Couriers(run_dir, notify, 0, None)
    try:
        assert until(lambda: any(sent_by(run_dir, name) for name in ("slack", "pagerduty")), seconds=8)  # timeout: 10
        assert len(server.requests) >= 2
    finally:
        stop = threading.Event()
        stop.set()
        server.release.set()
        both.finish(stop)


def sent_by(run_dir, name):
    outbox = read_outbox(run_dir, name)
    return outbox.sent if outbox else 0


def test_a_service_that_stays_away_is_given_up_some_time_after_the_end(desk, run_dir, quick, monkeypatch):
    monkeypatch.setattr(couriers, "LINGER_SECONDS", 0.5)
    monkeypatch.setattr(couriers, "Briefer", Plain)
    desk().close()
    find(run_dir, 1)
    one = Couriers(run_dir, {"to": [{"to": "slack", "name": "slack", "on": "critical"}]}, 0, None)
    one._couriers[0].last_progress -= 1000  # the service has been down for long
    began = time.monotonic()
    assert one.finish() is False
    assert time.monotonic() - began >= 0.5
    assert unsent(run_dir, Target("slack", "slack")) == 1
    assert not (run_dir.notify / "slack.lock").exists()


def test_the_couriers_of_a_run_that_has_ended_end_when_everything_is_sent(desk, run_dir, quick, monkeypatch):
    monkeypatch.setattr(couriers, "LINGER_SECONDS", 10.0)
    monkeypatch.setattr(couriers, "Briefer", Plain)
    server = desk()
    find(run_dir, 1)
    find(run_dir, 2)
    one = Couriers(run_dir, {"to": [{"to": "slack", "name": "slack", "on": "critical", "per_hour": 1}]}, 0, None)
    assert one.finish() is True
    assert [line.partition(" in ")[0] for line in headlines(server)] == ["CRITICAL", "Held back"]


def test_a_run_that_was_deleted_is_not_waited_for(desk, run_dir, quick, monkeypatch):
    monkeypatch.setattr(couriers, "LOST_SECONDS", 0.3)
    monkeypatch.setattr(couriers, "Briefer", Plain)
    desk().close()
    find(run_dir, 1)
    one = Couriers(run_dir, {"to": [{"to": "slack", "name": "slack", "on": "critical"}]}, 0, None)
    run_dir.root.rename(run_dir.root.with_name("thrown away"))  # gone at once for the courier
    assert one.finish() is False
    assert not run_dir.root.exists()


def test_two_processes_do_not_send_the_same(desk, run_dir):
    server = desk()
    find(run_dir, 1)
    first = courier_of(run_dir)
    go(first)
    find(run_dir, 2)
    with pytest.raises(rlvitals.errors.RunLocked):
        go(courier_of(run_dir))
    go(first)
    assert len(server.requests) == 2


def test_a_damaged_outbox_raises_nothing(desk, run_dir):
    server = desk()
    find(run_dir, 1)
    run_dir.notify.mkdir()
    for damage in (b"", b"[]", b'{"offset": -5, "told": [1], "held": {"a": 1}, "sent_at": ["x"]}', b"\xff" * 100):
        (run_dir.notify / "slack.json").write_bytes(damage)
        courier = courier_of(run_dir)
        go(courier)
        courier.let_go()
    assert len(server.requests) == 4


# Kills

CHILD = """
import sys
from pathlib import Path
from rlvitals.notify.briefer import Briefer
from rlvitals.notify.courier import Courier
from rlvitals.notify.targets import Target
from rlvitals.store.layout import RunDir
Briefer._briefed = lambda self, metrics: None
courier = Courier(RunDir(Path(sys.argv[1])), Target(sys.argv[2], sys.argv[2]))
while courier.advance():
    pass
"""


def killed_while_sending(run_dir, server, name="slack"):
    """Start a process that sends, and kill it after the server has the request and before it answers."""
    child = subprocess.Popen([sys.executable, "-c", CHILD, str(run_dir.root), name])
    count = len(server.requests)
    assert until(lambda: len(server.requests) > count)
    arguments = b""
    if os.path.exists(f"/proc/{child.pid}/cmdline"):
        with open(f"/proc/{child.pid}/cmdline", "rb") as file:
            arguments = file.read()
    child.send_signal(signal.SIGKILL)
    child.wait()
    return arguments


def test_a_kill_between_sending_and_the_answer_repeats_one_message_and_says_so(desk, run_dir):
    server = desk(200, "hang")
    find(run_dir, 1)
    find(run_dir, 2)
    first = courier_of(run_dir)
    first.advance()
    first.advance()  # the monitor's line and the first finding
    first.let_go()
    arguments = killed_while_sending(run_dir, server)
    assert b"very-secret" not in arguments
    go(courier_of(run_dir))
    assert [line.rpartition(" ")[2] for line in headlines(server)] == ["1", "2", "2"]
    assert [b"may be a repeat" in request.body for request in server.requests] == [False, False, True]


def test_a_kill_after_the_answer_repeats_nothing(desk, run_dir):
    server = desk()
    find(run_dir, 1)
    subprocess.run([sys.executable, "-c", CHILD, str(run_dir.root), "slack"], check=True)
    assert (run_dir.notify / "slack.lock").exists()  # it ended without a release, like a killed process
    find(run_dir, 2)
    go(courier_of(run_dir))
    assert [line.rpartition(" ")[2] for line in headlines(server)] == ["1", "2"]


def test_nothing_on_disk_holds_a_secret_while_services_fail_and_work(desk, smtp, run_dir):
    box = smtp(451)
    names = ("slack", "discord", "telegram", "ntfy", "pagerduty")
    desk(
        500, 404, 400, (429, {}, b"very-secret"), smtp_port=box.port, answer=b'{"id": "1", "result": {"message_id": 1}}'
    )
    find(run_dir, 1)
    for name in (*names, "email"):
        for _ in range(4):
            courier = courier_of(run_dir, name)
            try:
                go(courier)
            except NotNow:
                pass
            finally:
                courier.let_go()
        assert read_outbox(run_dir, name).sent + read_outbox(run_dir, name).refused == 1
    assert_no_secret_below(run_dir.root)


def assert_no_secret_below(folder):
    files = [path for path in folder.rglob("*") if path.is_file()]
    assert len(files) > 5
    for path in files:
        data = path.read_bytes()
        for secret in SECRETS.values():
            assert secret.encode() not in data, path
        assert json.dumps(SECRETS["RLVITALS_EMAIL_TO"]).encode() not in data
