"""The requests to each service, received by a real server and compared with the documented form. Hostile names stay
text.
"""

from __future__ import annotations

import base64
import json
import re
from datetime import datetime
from email.header import decode_header, make_header
from html.parser import HTMLParser

import pytest
from notify_servers import SECRETS, make_certificate

from conftest import REPO
from rlvitals.errors import ConfigError
from rlvitals.notify import service as services
from rlvitals.notify.briefer import Briefer
from rlvitals.notify.messages import Standing, about_finding, about_held, about_recovery, key_of
from rlvitals.notify.targets import Target, open_service, service_class
from rlvitals.records import Finding
from rlvitals.store.layout import RunDir
from rlvitals.store.outbox import HeldBack, SentMessage

pytest_plugins = ["notify_fixtures"]

PNG = b"\x89PNG\r\n\x1a\n\x00 --boundary \r\n"
LINK = "https://team.example/#health?run=kto"
MARGIN = Finding(
    "margin_inversion", "margin_inversion", "critical", 25, 20, "Very negative margin: -0.432",
    advice=("reduce the learning rate", "revert to the last checkpoint", "a third"), metrics=("rewards/margins",),
)  # fmt: skip
HOSTILE = (
    "<!channel> <@U1> @everyone [x](http://evil) *b* `c` & <b>i</b> ${env:HOME} {{key}} \r\nX-Evil: 1\x1b[2J\u202e"
    " /stop #tag www.evil.org"
)
ATTACK = Finding("r", "data", "critical", 3, 2, HOSTILE, advice=(HOSTILE,), metrics=(HOSTILE,), slice=f"env={HOSTILE}")
ACT = Standing("act", "1 critical finding; first: margin inversion, since step 20", PNG)


def raised(finding=MARGIN, run="kto-7b", standing=ACT, **given):
    return about_finding(
        run, key_of("id", finding.alarm), finding, standing, is_escalated=False, timestamp=1.8e9, link=LINK, **given
    )


def recovered(key):
    return about_recovery(
        "kto-7b", SentMessage(key, [], MARGIN.title, "critical", "1"), 60, ACT, timestamp=1.8e9, link=LINK
    )


def opened(name, **given):
    return open_service(Target(name, name, **given))


def is_plain(text):
    """Whether the text has no control characters, except line breaks, and no direction marks."""
    return all(letter.isprintable() or letter == "\n" for letter in text)


# Slack: https://docs.slack.dev/messaging/sending-messages-using-incoming-webhooks and .../block-kit/blocks


def assert_is_slack_message(payload):
    assert set(payload) <= {"text", "blocks", "unfurl_links", "unfurl_media"}
    assert 0 < len(payload["text"]) <= 40_000
    assert 0 < len(payload["blocks"]) <= 50
    header, rich = payload["blocks"]
    assert header["type"] == "header"
    assert set(header["text"]) == {"type", "text"}
    assert header["text"]["type"] == "plain_text"
    assert 0 < len(header["text"]["text"]) <= 150
    assert rich["type"] == "rich_text"
    (section,) = rich["elements"]
    assert section["type"] == "rich_text_section"
    for element in section["elements"]:
        assert element["type"] in ("text", "link")  # no user, usergroup, channel or broadcast
        assert set(element) <= {"type", "text", "style", "url"}
        assert 0 < len(element["text"]) <= 3000
    links = [element["url"] for element in section["elements"] if element["type"] == "link"]
    assert links == [LINK]


def test_slack_gets_rich_text_with_verdict_and_link(desk):
    server = desk()
    assert opened("slack").send(raised()).fate == "sent"
    (request,) = server.requests
    assert request.path == f"/{SECRETS['RLVITALS_SLACK_WEBHOOK']}"
    assert request.headers["Content-Type"].startswith("application/json")
    assert_is_slack_message(request.json)
    text = "".join(element["text"] for element in request.json["blocks"][1]["elements"][0]["elements"])
    assert "Verdict: act (1 critical finding; first: margin inversion, since step 20)\n" in text
    assert "Step: 25 (started at step 20)\n" in text
    assert text.count("Consider: ") == 2


def test_hostile_names_call_nobody_in_slack(desk):
    server = desk()
    opened("slack").send(raised(ATTACK, run=HOSTILE))
    payload = server.requests[0].json
    assert_is_slack_message(payload)
    assert "<" not in payload["text"]  # the only part that Slack reads as markup
    assert "&lt;!channel&gt;" in payload["text"]
    assert all(is_plain(element["text"]) for element in payload["blocks"][1]["elements"][0]["elements"])


def test_a_long_message_stays_within_slacks_limits(desk):
    server = desk()
    long = Finding("r", "data", "critical", 1, 1, "t" * 5000, metrics=("m" * 900,) * 6, advice=("&" * 5000,) * 3)
    opened("slack").send(raised(long, run="<" * 500, standing=Standing("act", "r" * 9000)))
    assert_is_slack_message(server.requests[0].json)
    assert len(json.dumps(server.requests[0].json["blocks"])) < 13_000  # Slack refuses longer blocks


# Discord: https://discord.com/developers/docs/resources/webhook#execute-webhook


def assert_is_discord_message(payload):
    assert set(payload) <= {"embeds", "allowed_mentions", "attachments"}
    assert payload["allowed_mentions"] == {"parse": []}
    (embed,) = payload["embeds"]
    assert set(embed) <= {"title", "description", "url", "color", "fields", "image"}
    assert 0 <= embed["color"] <= 0xFFFFFF
    assert len(embed["title"]) <= 256
    assert len(embed.get("description", "")) <= 4096
    assert len(embed["fields"]) <= 25
    total = len(embed["title"]) + len(embed.get("description", ""))
    for item in embed["fields"]:
        assert set(item) == {"name", "value", "inline"}
        assert 0 < len(item["name"]) <= 256
        assert 0 < len(item["value"]) <= 1024
        total += len(item["name"]) + len(item["value"])
    assert total <= 6000
    return embed


def test_discord_gets_an_embed_with_the_chart_and_edits_it_when_the_finding_has_recovered(desk):
    server = desk(answer=b'{"id": "987654321", "type": 0}')
    discord = opened("discord")
    outcome = discord.send(raised())
    assert (outcome.fate, outcome.reference) == ("sent", "987654321")
    first = server.requests[0]
    assert (first.method, first.path) == ("POST", f"/{SECRETS['RLVITALS_DISCORD_WEBHOOK']}?wait=true")
    assert first.parts["files[0]"] == ("chart.png", PNG)
    boundary = first.headers["Content-Type"].partition("boundary=")[2]
    assert first.body.endswith(f"\r\n--{boundary}--\r\n".encode())
    payload = json.loads(first.parts["payload_json"])
    embed = assert_is_discord_message(payload)
    assert embed["image"] == {"url": "attachment://chart.png"}
    assert payload["attachments"] == [{"id": "0", "filename": "chart.png"}]
    assert embed["url"] == LINK
    verdict = next(item["value"] for item in embed["fields"] if item["name"] == "Verdict")
    assert verdict.startswith("act ")
    discord.send(recovered("k"), outcome.reference)
    second = server.requests[1]
    assert (second.method, second.path) == ("PATCH", f"/{SECRETS['RLVITALS_DISCORD_WEBHOOK']}/messages/987654321")
    edited = assert_is_discord_message(json.loads(second.parts["payload_json"]))
    assert "Recovered in" in edited["title"]
    assert edited["color"] != embed["color"]


def test_a_message_that_somebody_deleted_at_discord_is_followed_by_a_new_one(desk):
    server = desk(404, answer=b'{"id": "5"}')
    assert opened("discord").send(recovered("k"), "987").fate == "sent"
    assert [request.method for request in server.requests] == ["PATCH", "POST"]


def test_hostile_names_are_no_markdown_in_discord(desk):
    server = desk(answer=b"{}")
    opened("discord").send(raised(ATTACK, run=HOSTILE, standing=Standing("act", "x")))
    embed = assert_is_discord_message(server.requests[0].json)
    shown = [embed["title"], embed["description"], *(item["value"] for item in embed["fields"])]
    for text in shown:
        assert is_plain(text)
        assert not re.search(r"(?<!\\)([\[\]*`<>@|~_#]|://)", text), text


def test_a_long_title_full_of_marks_is_cut_within_discords_limits(desk):
    server = desk(answer=b"{}")
    long = Finding("r", "data", "critical", 1, 1, "*_" * 3000, metrics=("[" * 900,) * 6, advice=("~" * 5000,) * 3)
    opened("discord").send(raised(long, run="`" * 500))
    assert_is_discord_message(json.loads(server.requests[0].parts["payload_json"]))


# Telegram: https://core.telegram.org/bots/api#sendphoto


class Markup(HTMLParser):
    """Telegram's HTML, parsed as Telegram shows it."""

    def __init__(self, text):
        super().__init__(convert_charrefs=True)
        self.tags, self.shown = [], ""
        self.feed(text)
        self.close()

    def handle_starttag(self, tag, attrs):
        self.tags.append((tag, dict(attrs)))

    def handle_data(self, data):
        self.shown += data


def test_telegram_gets_a_photo_and_a_reply_when_the_finding_has_recovered(desk):
    server = desk(answer=b'{"ok": true, "result": {"message_id": 42}}')
    telegram = opened("telegram")
    outcome = telegram.send(raised())
    assert outcome.reference == "42"
    first = server.requests[0]
    assert first.path == f"/bot{SECRETS['RLVITALS_TELEGRAM_TOKEN']}/sendPhoto"
    parts = first.parts
    assert set(parts) == {"chat_id", "parse_mode", "caption", "photo"}
    assert parts["photo"] == ("chart.png", PNG)
    assert (parts["chat_id"], parts["parse_mode"]) == (SECRETS["RLVITALS_TELEGRAM_CHAT"], "HTML")
    caption = Markup(parts["caption"])
    assert caption.tags == [("b", {}), ("a", {"href": LINK})]
    assert len(caption.shown.encode("utf-16-le")) // 2 <= 1024
    assert "Verdict: act (" in caption.shown
    telegram.send(recovered("k"), outcome.reference)
    assert server.requests[1].parts["disable_notification"] == "true"
    reply = json.loads(server.requests[1].parts["reply_parameters"])
    assert reply == {"message_id": 42, "allow_sending_without_reply": True}


def test_hostile_names_are_no_tags_in_telegram(desk):
    server = desk(answer=b'{"ok": true}')
    opened("telegram").send(raised(ATTACK, run=HOSTILE, standing=Standing("act", "x")))
    request = server.requests[0]
    assert request.path.endswith("/sendMessage")
    assert set(request.json) == {"chat_id", "parse_mode", "text", "link_preview_options"}
    text = Markup(request.json["text"])
    assert [tag for tag, _ in text.tags] == ["b", "a"]
    assert "<!channel>" in text.shown
    assert is_plain(text.shown.replace("\u2060", ""))
    # Patterns that Telegram would turn into a mention, a tag, a command or a link.
    shown = text.shown.replace("Open the run", "")
    assert not re.search(r"@\w|#\w|://|(^|\s)/\w|\w\.[a-z]", shown), shown


@pytest.mark.parametrize("picture", [PNG, None])
def test_a_long_message_stays_within_telegrams_limits(desk, picture):
    server = desk(answer=b'{"ok": true}')
    long = Finding("r", "data", "critical", 1, 1, "🔴&" * 3000, metrics=("m" * 900,) * 4, advice=("a" * 5000,) * 3)
    opened("telegram").send(raised(long, run="<" * 500, standing=Standing("act", "r" * 2000, picture)))
    request = server.requests[0]
    shown = Markup(request.parts["caption"] if picture else request.json["text"]).shown
    assert len(shown.encode("utf-16-le")) // 2 <= (1024 if picture else 4096)
    assert shown.endswith("Open the run")


# ntfy: https://docs.ntfy.sh/publish/


def test_ntfy_gets_the_chart_as_a_body_and_the_words_in_headers(desk):
    server = desk()
    ntfy = opened("ntfy")
    assert ntfy.send(raised()).fate == "sent"
    request = server.requests[0]
    assert (request.method, request.path) == ("PUT", f"/{SECRETS['RLVITALS_NTFY_URL']}")
    assert request.body == PNG
    assert request.headers["Filename"] == "chart.png"
    assert (request.headers["Priority"], request.headers["Tags"]) == ("5", "rotating_light")
    assert request.headers["Click"] == LINK
    assert request.headers["Authorization"] == f"Bearer {SECRETS['RLVITALS_NTFY_TOKEN']}"
    assert request.headers["Title"] == "CRITICAL in kto-7b: Very negative margin: -0.432"
    # The server replaces backslash and n by a line break (server.go, parsePublishParams).
    assert request.headers["Message"].replace("\\n", "\n").startswith("Verdict: act (1 critical finding; first: margin")
    ntfy.send(recovered("k"))
    assert (server.requests[1].headers["Priority"], server.requests[1].headers["Tags"]) == ("2", "white_check_mark")


def test_hostile_names_are_no_headers_for_ntfy(desk):
    server = desk()
    opened("ntfy").send(raised(ATTACK, run="größer 🔴 " + HOSTILE, standing=Standing("act", "x")))
    request = server.requests[0]
    assert "X-Evil" not in request.headers
    title = str(make_header(decode_header(request.headers["Title"])))
    assert title.startswith("CRITICAL in größer 🔴 <!channel>")
    assert is_plain(request.body.decode())
    assert len(request.body) <= 4096


# PagerDuty: https://developer.pagerduty.com/docs/send-alert-event


def assert_is_pagerduty_event(event, action):
    assert event["routing_key"] == SECRETS["RLVITALS_PAGERDUTY_ROUTING_KEY"]
    assert event["event_action"] == action
    assert 0 < len(event["dedup_key"]) <= 255
    if action == "resolve":
        assert set(event) == {"routing_key", "event_action", "dedup_key"}
        return
    assert set(event) <= {"routing_key", "event_action", "dedup_key", "payload", "client", "client_url", "links"}
    payload = event["payload"]
    assert {"summary", "source", "severity"} <= set(payload)
    assert set(payload) <= {"summary", "source", "severity", "timestamp", "component", "custom_details"}
    assert 0 < len(payload["summary"]) <= 1024
    assert payload["severity"] in ("critical", "error", "warning", "info")
    datetime.fromisoformat(payload["timestamp"])
    assert event["links"] == [{"href": LINK, "text": "Open the run"}]


def test_pagerduty_gets_a_trigger_and_a_resolve_with_the_same_key(desk):
    server = desk()
    pagerduty, message = opened("pagerduty"), raised()
    pagerduty.send(message)
    pagerduty.send(recovered(message.key))
    trigger, resolve = (request.json for request in server.requests)
    assert server.requests[0].path == "/v2/enqueue"
    assert_is_pagerduty_event(trigger, "trigger")
    assert trigger["payload"]["custom_details"]["Verdict"].startswith("act (")
    assert_is_pagerduty_event(resolve, "resolve")
    assert trigger["dedup_key"] == resolve["dedup_key"]


# E-mail


def test_a_mail_has_text_html_and_the_chart_and_a_recovery_replies_to_it(smtp):
    box = smtp()
    mail = opened("email")
    outcome = mail.send(raised())
    assert outcome.fate == "sent"
    assert box.logins == [[SECRETS["RLVITALS_SMTP_USER"], SECRETS["RLVITALS_SMTP_PASSWORD"]]]
    first = box.mails[0]
    assert first["Subject"] == "[rlvitals] CRITICAL in kto-7b: Very negative margin: -0.432"
    assert first["To"] == SECRETS["RLVITALS_EMAIL_TO"]
    text = first.get_body(("plain",)).get_content()
    assert "Verdict: act (1 critical finding" in text
    assert LINK in text
    html = first.get_body(("html",))
    images = [part for part in first.walk() if part.get_content_type() == "image/png"]
    assert [image.get_payload(decode=True) for image in images] == [PNG]
    assert f"cid:{images[0]['Content-ID'][1:-1]}" in html.get_content()
    mail.send(recovered("k"), outcome.reference)
    assert box.mails[1]["In-Reply-To"] == first["Message-ID"] == outcome.reference
    assert "Recovered in" in box.mails[1]["Subject"]


def test_hostile_names_are_neither_headers_nor_tags_of_a_mail(smtp):
    box = smtp()
    assert opened("email").send(raised(ATTACK, run=HOSTILE)).fate == "sent"
    (mail,) = box.mails
    assert "X-Evil" not in mail
    assert "\n" not in mail["Subject"]
    html = Markup(mail.get_body(("html",)).get_content())
    assert {tag for tag, _ in html.tags} == {"div", "h3", "table", "tr", "td", "b", "p", "a", "img"}
    assert sum(tag == "b" for tag, _ in html.tags) == 4  # the labels: verdict, step, slice, metrics
    assert "<b>i</b>" in html.shown


def test_a_password_goes_over_an_encrypted_line(smtp, tmp_path, monkeypatch):
    certificate = make_certificate(tmp_path)
    box = smtp(certificate=certificate)
    monkeypatch.setenv("RLVITALS_SMTP_SECURITY", "starttls")
    monkeypatch.setenv("SSL_CERT_FILE", certificate[0])
    assert opened("email").send(raised()).fate == "sent"
    assert box.is_encrypted == [True]
    assert box.logins


def test_a_server_whose_certificate_nobody_vouches_for_gets_no_password(smtp, tmp_path, monkeypatch):
    box = smtp(certificate=make_certificate(tmp_path))
    monkeypatch.setenv("RLVITALS_SMTP_SECURITY", "starttls")
    outcome = opened("email").send(raised())
    assert (outcome.fate, box.logins, box.mails) == ("later", [], [])


def test_a_server_that_offers_no_encryption_gets_no_password(smtp, monkeypatch):
    box = smtp()
    monkeypatch.setenv("RLVITALS_SMTP_SECURITY", "starttls")
    assert opened("email").send(raised()).fate == "later"
    assert (box.logins, box.mails) == ([], [])


def test_a_password_is_not_sent_unencrypted_to_another_machine(monkeypatch):
    for name, value in {"HOST": "mail.example.org", "USER": "u", "PASSWORD": "p", "SECURITY": "none"}.items():
        monkeypatch.setenv(f"RLVITALS_SMTP_{name}", value)
    monkeypatch.setenv("RLVITALS_EMAIL_TO", "a@example.org")
    with pytest.raises(ConfigError, match="unencrypted"):
        opened("email")


@pytest.mark.parametrize(
    ("code", "fate", "problem"),
    [(451, "later", "SMTP 451"), (550, "later", "SMTP 550; check"), (552, "refused", "SMTP 552")],
)
def test_a_mail_servers_answer_is_reported_by_its_code_alone(smtp, code, fate, problem):
    smtp(code)
    outcome = opened("email").send(raised())
    assert outcome.fate == fate
    assert outcome.problem.startswith(problem)
    assert SECRETS["RLVITALS_EMAIL_TO"] not in outcome.problem


def test_a_refused_recipient_is_reported_and_the_others_get_the_mail(smtp, monkeypatch, caplog):
    box = smtp()
    monkeypatch.setenv("RLVITALS_EMAIL_TO", "Ann <ann@example.org>, nobody@example.org")
    assert opened("email").send(raised()).fate == "sent"
    assert len(box.envelopes[0][1]) == 1
    assert "e-mail: 1 of 2 recipients were refused (SMTP 550)" in caplog.text
    assert "nobody@" not in caplog.text
    monkeypatch.setenv("RLVITALS_EMAIL_TO", "nobody@example.org")
    outcome = opened("email").send(raised())
    assert outcome.fate == "later"
    assert outcome.problem.startswith("SMTP 550; check")


def test_a_wrong_password_is_reported_without_it(smtp, monkeypatch):
    smtp()
    monkeypatch.setenv("RLVITALS_SMTP_PASSWORD", "another-secret")
    outcome = opened("email").send(raised())
    assert outcome.fate == "later"
    assert "SMTP 535" in outcome.problem
    assert "another-secret" not in repr(outcome)


# Templates


def template(tmp_path, text, name="hook.yaml"):
    path = tmp_path / name
    path.write_text(text)
    return open_service(Target("mine", "template", file=str(path)))


def test_a_template_fills_in_values_and_no_name_breaks_out_of_its_place(desk, tmp_path, monkeypatch):
    server = desk()
    monkeypatch.setenv("GOTIFY_TOKEN", "gotify-very-secret")
    monkeypatch.setenv("GOTIFY_URL", server.url)
    service = template(
        tmp_path,
        """
        url: ${env:GOTIFY_URL}/message/{{run}}
        headers: {X-Gotify-Key: "${env:GOTIFY_TOKEN}", X-Title: "{{headline}}"}
        body: {title: "{{ title }}", message: "{{text}}", extras: ["{{severity}}", 5, {"key": "{{key}}"}]}
        recovered: {method: PUT, body: "over: {{title}}"}
        """,
    )
    message = raised(ATTACK, run=f'a/b?c"{HOSTILE}')
    service.send(message)
    request = server.requests[0]
    assert request.path.startswith("/message/a%2Fb%3Fc%22%3C%21channel%3E")
    assert "/" not in request.path.removeprefix("/message/")
    assert request.headers["X-Gotify-Key"] == "gotify-very-secret"
    assert "X-Evil" not in request.headers
    assert request.json == {
        "title": message.title, "message": message.text, "extras": ["critical", 5, {"key": message.key}],
    }  # fmt: skip
    assert "${env:HOME} {{key}}" in request.json["title"]  # placeholders in values are not expanded
    service.send(recovered("k"))
    assert (server.requests[1].method, server.requests[1].body) == ("PUT", f"over: {MARGIN.title}".encode())


def test_a_template_in_json_without_a_body_sends_all_words(desk, tmp_path):
    server = desk()
    template(tmp_path, json.dumps({"url": server.url}), "hook.json").send(raised())
    assert server.requests[0].json["verdict"].startswith("act (")
    assert server.requests[0].json["severity"] == "critical"


def test_a_template_can_hold_the_chart(desk, tmp_path):
    server = desk()
    service = template(tmp_path, f"url: {server.url}\nbody: ['{{{{picture}}}}']")
    service.send(raised())
    service.send(raised(standing=Standing("act", "x")))
    assert base64.b64decode(server.requests[0].json[0]) == PNG
    assert server.requests[1].json == [""]


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        ("url: https://x\nbody: '{{titel}}'", "Did you mean 'title'"),
        ("url: https://x\nbdy: x", "Did you mean 'body'"),
        ("url: ${env:RLVITALS_TEST_NOT_SET}", "RLVITALS_TEST_NOT_SET"),
        ("url: ftp://x", "http"),
        ("body: x", "'url'"),
        ("- a", "mapping"),
        ("url: https://x\nmethod: GET", "POST, PUT, PATCH"),
        ("url: https://x\nrecovered: never", "'recovered' must be a mapping"),
        ("url: https://x\nbody: ['https://hooks.slack.com/services/T0/B0/verysecret{{key}}']", "contain a secret"),
        ("url: https://x\nheaders: {Authorization: Bearer abcdef0123456789abcdef}", "contain a secret"),
        ("url: https://hooks.slack.com/services/T0/B0/verysecret", "contain a secret"),
        ("url: https://x\nrecovered: {headers: {X-Api-Key: 0123456789abcdef0123}}", "contain a secret"),
    ],
)
def test_a_template_that_cannot_be_used_is_refused(tmp_path, text, problem):
    with pytest.raises(ConfigError, match=problem) as caught:
        template(tmp_path, text)
    for secret in ("verysecret", "abcdef0123456789", "0123456789abcdef0123"):
        assert secret not in str(caught.value)


# Digests, repeats, answers


@pytest.mark.parametrize("name", ["slack", "discord", "telegram", "ntfy", "pagerduty"])
def test_a_digest_lists_what_was_held_back(desk, name):
    server = desk(answer=b"{}")
    held = [HeldBack(f"rule {n}", "warning", n, f"title {n}") for n in range(30)] + [
        HeldBack("c", "critical", 40, "gravest")
    ]
    held[3].recovered_step = 9
    message = about_held("kto-7b", "key", held, Standing("watch", "31 warnings"), more=5, per_hour=4, link=LINK)
    assert opened(name).send(message).fate == "sent"
    request = server.requests[0]
    text = request.body.decode() + str(make_header(decode_header(request.headers.get("Title", ""))))
    text = text.replace("\\\\", "")
    assert "36 messages beyond the limit of 4 an hour" in text
    assert "critical at step 40: gravest" in text
    assert "title 3 (recovered at step 9)" in re.sub(r"\\", "", text)
    assert "26 not listed" in text


@pytest.mark.parametrize("name", ["slack", "discord", "telegram", "ntfy"])
def test_a_message_that_may_be_a_repeat_says_so(desk, name):
    from dataclasses import replace

    server = desk(answer=b"{}")
    opened(name).send(replace(raised(standing=Standing("act", "x")), is_repeat=True))
    opened(name).send(raised(standing=Standing("act", "x")))
    assert b"may be a repeat" in server.requests[0].body
    assert b"may be a repeat" not in server.requests[1].body


TELEGRAM_LATE = (429, {}, b'{"ok": false, "error_code": 429, "parameters": {"retry_after": 31}}')
DISCORD_LATE = (429, {}, b'{"message": "limited", "retry_after": 2.5, "global": false}')


@pytest.mark.parametrize(
    ("name", "status", "fate", "wait"),
    [
        ("slack", 500, "later", None),
        ("slack", (429, {"Retry-After": "17"}, b""), "later", 17.0),
        ("slack", 400, "refused", None),
        ("slack", 404, "later", None),
        ("slack", 302, "later", None),
        ("telegram", TELEGRAM_LATE, "later", 31.0),
        ("discord", DISCORD_LATE, "later", 2.5),
        ("pagerduty", 400, "refused", None),
    ],
)
def test_what_a_services_answer_means(desk, name, status, fate, wait):
    desk(status)
    outcome = opened(name).send(raised())
    assert (outcome.fate, outcome.retry_after, outcome.is_doubtful) == (fate, wait, False)
    assert_no_secret_in(outcome)


@pytest.mark.parametrize("fault", ["hang", "drop"])
def test_without_an_answer_people_may_have_the_message(desk, monkeypatch, fault):
    monkeypatch.setattr(services, "TIMEOUT_SECONDS", 0.2)
    desk(fault)
    outcome = opened("slack").send(raised())
    assert (outcome.fate, outcome.is_doubtful) == ("later", True)
    assert_no_secret_in(outcome)


@pytest.mark.parametrize("name", ["slack", "discord", "telegram", "ntfy", "pagerduty"])
def test_a_refused_connection_is_reported_without_the_address(desk, name):
    desk().close()
    outcome = opened(name).send(raised())
    assert (outcome.fate, outcome.is_doubtful) == ("later", False)
    assert "refused" in outcome.problem
    assert_no_secret_in(outcome)


def assert_no_secret_in(outcome):
    for secret in ("very-secret", "127.0.0.1", SECRETS["RLVITALS_TELEGRAM_CHAT"]):
        assert secret not in repr(outcome)


NEEDED = {
    "slack": {"RLVITALS_SLACK_WEBHOOK"},
    "discord": {"RLVITALS_DISCORD_WEBHOOK"},
    "telegram": {"RLVITALS_TELEGRAM_TOKEN", "RLVITALS_TELEGRAM_CHAT"},
    "ntfy": {"RLVITALS_NTFY_URL"},
    "email": {"RLVITALS_SMTP_HOST", "RLVITALS_EMAIL_TO"},
    "pagerduty": {"RLVITALS_PAGERDUTY_ROUTING_KEY"},
}


@pytest.mark.parametrize("name", NEEDED)
def test_a_service_needs_no_other_variables_and_the_docs_name_all(desk, monkeypatch, name):
    desk()
    page = (REPO / "docs" / "notifications.md").read_text(encoding="utf-8")
    for variable in service_class(name).variables:
        assert f"`{variable.name}" in page
        if variable.name not in NEEDED[name]:
            monkeypatch.delenv(variable.name, raising=False)
    composed = opened(name).compose(raised())
    if name == "telegram":
        assert composed.url.startswith("https://api.telegram.org/bot")
    if name == "pagerduty":
        assert composed.url == "https://events.pagerduty.com/v2/enqueue"
    if name == "email":
        assert composed["From"] == composed["To"]
    for variable in NEEDED[name]:
        with monkeypatch.context() as patch:
            patch.delenv(variable)
            with pytest.raises(ConfigError, match=variable):
                opened(name)


@pytest.mark.parametrize("name", NEEDED)
def test_a_chart_is_drawn_for_services_that_take_one(desk, tmp_path, name):
    desk()
    assert Briefer(RunDir(tmp_path), [Target(name, name)])._draws is (name not in ("slack", "pagerduty"))
    assert Briefer(RunDir(tmp_path), [Target(name, name, picture=False)])._draws is False


@pytest.mark.parametrize("name", ["slack", "discord", "telegram", "ntfy", "pagerduty", "email"])
def test_a_missing_variable_is_named_and_a_service_shows_no_secret(desk, monkeypatch, name):
    desk()
    service = opened(name)
    assert "very-secret" not in repr(service)
    needed = next(variable.name for variable in service.variables if variable.is_needed)
    monkeypatch.delenv(needed)
    with pytest.raises(ConfigError, match=needed):
        opened(name)
