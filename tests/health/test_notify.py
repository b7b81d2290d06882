"""Banners, webhooks and sentinel files, with a real server on loopback."""

from __future__ import annotations

import json
import os
import threading
import time
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import pytest

from conftest import until
from rlvitals.health import notify
from rlvitals.health.notify import Notifier, Webhook, banner, format_of, message
from rlvitals.records import Finding
from rlvitals.store.files import put_file

SECRET = "T0SECRET/B0SECRET/very-secret-part"

MARGIN = Finding(
    rule="margin_inversion", kind="margin_inversion", severity="critical", step=25, onset_step=20,
    title="Very negative margin: -0.432 (chosen model may be worse than reference)",
    advice=("reducing learning rate or reverting to last checkpoint",), action="revert",
)  # fmt: skip


class Hook:
    """A webhook server. It answers with the given statuses in turn, then with 200; None hangs."""

    def __init__(self, *statuses):
        self.bodies, self.paths, self.statuses = [], [], list(statuses)
        self.release = threading.Event()
        hook = self

        class Handler(BaseHTTPRequestHandler):
            def do_POST(self):
                hook.paths.append(self.path)
                hook.bodies.append(json.loads(self.rfile.read(int(self.headers["Content-Length"]))))
                status = hook.statuses.pop(0) if hook.statuses else 200
                if status is None:
                    hook.release.wait(10)
                    status = 200
                self.send_response(status)
                if status in (301, 302, 307):
                    self.send_header("Location", "/elsewhere")
                self.end_headers()

            do_GET = do_POST  # noqa: N815 - the name http.server looks for

            def log_message(self, *_):
                pass

        self.server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.server.daemon_threads = True
        self.thread = threading.Thread(target=self.server.serve_forever, args=(0.02,), daemon=True)
        self.thread.start()
        self.url = f"http://127.0.0.1:{self.server.server_port}/services/{SECRET}"

    def close(self):
        self.release.set()
        self.server.shutdown()
        self.server.server_close()
        self.thread.join()


@pytest.fixture
def hook():
    made = []

    def make(*statuses):
        made.append(Hook(*statuses))
        return made[-1]

    yield make
    for one in made:
        one.close()


def posted(hook, finding=MARGIN, shape=None, **settings):
    """Post one finding and wait for the thread. Returns the warnings."""
    warned = []
    webhook = Webhook(hook.url, shape, warn=warned.append, **{"back_off": 0.01, **settings})
    webhook.post("kto-7b", finding)
    webhook.close(10)
    return warned


# The banner


def test_the_banner_looks_as_in_the_kto_document(shared):
    document = (shared / "reference" / "kto-metrics.md").read_text(encoding="utf-8")
    assert f"```\n{banner(MARGIN)}\n```" in document


def test_the_banner_is_ascii_where_the_stream_cannot_take_the_sign():
    for encoding in ("ascii", "latin-1", None, "no-such-encoding"):
        lines = banner(MARGIN, encoding).splitlines()
        assert lines[0] == lines[3] == "!" * 61
        assert lines[1].startswith("  ! Very negative margin")


def test_a_name_in_a_title_cannot_move_the_cursor():
    hostile = Finding("r", "data", "warning", 1, 1, "loss\x1b[2J\nfake line")
    assert "\x1b" not in banner(hostile)
    assert len(banner(hostile).splitlines()) == 3


# Shapes


@pytest.mark.parametrize(
    ("url", "shape"),
    [
        ("https://hooks.slack.com/services/a/b/c", "slack"),
        ("https://discord.com/api/webhooks/1/x", "discord"),
        ("https://ptb.discord.com/api/webhooks/1/x", "discord"),
        ("https://discordapp.com/api/webhooks/1/x", "discord"),
        ("https://example.org/discord.com", "json"),
        ("https://notdiscord.com/x", "json"),
    ],
)
def test_the_shape_follows_from_the_host(url, shape):
    assert format_of(url) == shape


def test_the_generic_shape_holds_the_finding_and_nothing_of_the_machine():
    assert message("kto-7b", MARGIN, "json") == {
        "run": "kto-7b", "step": 25, "severity": "critical", "title": MARGIN.title, "advice": list(MARGIN.advice),
    }  # fmt: skip


def test_slack_and_discord_get_one_text_that_calls_nobody():
    slack = message("<!channel>", MARGIN, "slack")
    assert set(slack) == {"text"}
    assert "<" not in slack["text"]
    assert "step 25" in slack["text"]
    discord = message("@everyone", Finding("r", "data", "critical", 1, 1, "x" * 5000), "discord")
    assert len(discord["content"]) == 2000
    assert discord["allowed_mentions"] == {"parse": []}


# Posting


def test_a_finding_is_posted(hook):
    server = hook()
    assert posted(server) == []
    assert server.bodies == [message("kto-7b", MARGIN, "json")]
    assert server.paths == [f"/services/{SECRET}"]


def test_the_format_asked_for_wins_over_the_host(hook):
    server = hook()
    posted(server, shape="slack")
    assert set(server.bodies[0]) == {"text"}


def test_a_server_that_fails_twice_gets_it_at_the_third_try(hook):
    server = hook(500, 503)
    assert posted(server) == []
    assert len(server.bodies) == 3


def test_a_server_that_keeps_failing_is_given_up_and_named_by_its_answer_alone(hook):
    server = hook(500, 500, 500)
    (warning,) = posted(server)
    assert "HTTP 500" in warning
    assert len(server.bodies) == 3
    assert "127.0.0.1" not in warning
    assert SECRET not in warning


def test_a_wrong_address_is_not_tried_again(hook):
    server = hook(404)
    (warning,) = posted(server)
    assert "HTTP 404" in warning
    assert len(server.bodies) == 1


@pytest.mark.parametrize("status", [301, 302, 307])
def test_a_redirect_is_not_followed(hook, status):
    server = hook(status)
    (warning,) = posted(server)
    assert f"HTTP {status}" in warning
    assert server.paths == [f"/services/{SECRET}"]


def test_a_hanging_server_is_given_up_after_three_tries(hook):
    server = hook(None, None, None)
    warned = []
    webhook = Webhook(server.url, warn=warned.append, timeout=0.1, back_off=0.01)
    webhook.post("run", MARGIN)
    webhook.close(10)
    assert warned == ["the webhook did not accept a notification: no answer within 0.1 s"]
    until(lambda: len(server.bodies) >= 3)  # the last one may still be on its way to the server's thread
    assert len(server.bodies) == 3


def test_the_caller_goes_on_while_the_server_has_not_answered(hook):
    """The server answers only after the caller has continued. If `post` waited, it would time out with a warning."""
    server = hook(None)
    warned = []
    webhook = Webhook(server.url, warn=warned.append, timeout=8, back_off=0.01)
    webhook.post("run", MARGIN)
    assert until(lambda: server.bodies)  # the request has arrived
    server.release.set()
    webhook.close(30)
    assert warned == []
    assert len(server.bodies) == 1


def test_closing_waits_no_longer_than_it_may(hook):
    server = hook(None)
    warned = []
    webhook = Webhook(server.url, warn=warned.append)
    webhook.post("run", MARGIN)
    began = time.monotonic()
    webhook.close(0.1)
    assert time.monotonic() - began < 4  # a request may take 5 s
    assert warned == ["the webhook has not taken 1 notification"]


def test_a_refused_connection_is_reported_once_without_the_address(hook):
    server = hook()
    server.close()
    warned = []
    webhook = Webhook(server.url, warn=warned.append, back_off=0.001)
    for _ in range(3):
        webhook.post("run", MARGIN)
    webhook.close(10)
    assert warned == ["the webhook did not accept a notification: Connection refused"]


def test_an_address_urllib_chokes_on_is_not_quoted():
    warned = []
    webhook = Webhook(f"http://127.0.0.1:99999999/{SECRET}", warn=warned.append, back_off=0.001)
    webhook.post("run", MARGIN)
    webhook.close(10)
    assert len(warned) == 1
    assert SECRET not in warned[0]


def test_a_full_queue_drops_and_says_so_instead_of_waiting(hook, monkeypatch):
    monkeypatch.setattr(notify, "QUEUE_LENGTH", 2)
    server = hook(None)
    warned = []
    webhook = Webhook(server.url, warn=warned.append)
    began = time.monotonic()
    for _ in range(20):
        webhook.post("run", MARGIN)
    assert time.monotonic() - began < 4  # a request may take 5 s
    assert warned == ["the webhook is too slow: notifications are being dropped"]


# The sentinel, and which findings are sent


def test_the_sentinel_is_whole_json_with_the_finding(tmp_path):
    path = tmp_path / "below" / "stop.json"
    Notifier("kto-7b", {"sentinel": str(path)}, put_file=put_file).notify(MARGIN)
    held = json.loads(path.read_text(encoding="utf-8"))
    assert held["run"] == "kto-7b"
    assert held["finding"]["rule"] == "margin_inversion"
    assert held["finding"]["step"] == 25
    assert os.listdir(path.parent) == ["stop.json"]


@pytest.mark.parametrize(("least", "posts"), [("critical", 1), ("warning", 2), ("info", 3)])
def test_only_what_is_severe_enough_is_sent(hook, least, posts):
    server = hook()
    notifier = Notifier("run", {"webhook": server.url, "on": least}, put_file=put_file)
    for severity in ("info", "warning", "critical"):
        notifier.notify(Finding("r", "data", severity, 1, 1, severity))
    notifier.close(10)
    assert len(server.bodies) == posts


def test_critical_is_the_default(tmp_path):
    notifier = Notifier("run", {"sentinel": str(tmp_path / "s")}, put_file=put_file)
    notifier.notify(Finding("r", "data", "warning", 1, 1, "t"))
    assert not (tmp_path / "s").exists()
    notifier.notify(MARGIN)
    assert (tmp_path / "s").exists()


def test_a_sentinel_that_cannot_be_written_is_reported_once(tmp_path):
    (tmp_path / "file").write_text("")
    warned = []
    notifier = Notifier("run", {"sentinel": str(tmp_path / "file" / "s")}, warned.append, put_file=put_file)
    notifier.notify(MARGIN)
    notifier.notify(MARGIN)
    assert len(warned) == 1
    assert "sentinel" in warned[0]
