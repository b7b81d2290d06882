"""Telegram, through a bot: a photo with a caption, and a reply to it when the finding has recovered."""

from __future__ import annotations

import json
import re
from html import escape
from typing import Any

from rlvitals.notify.messages import Message
from rlvitals.notify.service import Variable, WebService, form_body, json_body, sign_of
from rlvitals.terminal import cut_middle
from rlvitals.webhook import Sending

API = "https://api.telegram.org"
LONGEST_CAPTION = 1024
LONGEST_TEXT = 4096
"""Limits in UTF-16 units, not counting the markup."""

_FOUND = re.compile(r"[@#$](?=\w)|:(?=//)|(?<!\w)/(?=\w)|(?<=\w)\.(?=[^\W\d])")
"""Places where Telegram detects mentions, tags, commands and addresses, regardless of the markup."""

_TOKEN = re.compile(r"[0-9]{1,20}:[\w-]{1,100}")
_ID = re.compile(r"[0-9]{1,20}")


class Telegram(WebService):
    """A chat, a group or a channel of Telegram."""

    name = "telegram"
    variables = (
        Variable("RLVITALS_TELEGRAM_TOKEN", "the bot's token"),
        Variable("RLVITALS_TELEGRAM_CHAT", "the chat's id, or the name of a channel: @name"),
        Variable("RLVITALS_TELEGRAM_URL", "the address of your own Bot API server", is_needed=False),
    )

    def compose(self, message: Message, reference: str = "") -> Sending:
        fields: dict[str, Any] = {"chat_id": self._variable("RLVITALS_TELEGRAM_CHAT"), "parse_mode": "HTML"}
        if _ID.fullmatch(reference):
            fields["reply_parameters"] = {"message_id": int(reference), "allow_sending_without_reply": True}
        if message.kind == "recovered":
            fields["disable_notification"] = True
        if message.picture is None:
            fields |= {"text": marked_up(message, LONGEST_TEXT), "link_preview_options": {"is_disabled": True}}
            body, headers = json_body(fields)
            return Sending(self._method("sendMessage"), body, headers)
        fields["caption"] = marked_up(message, LONGEST_CAPTION)
        texts = {name: value if isinstance(value, str) else json.dumps(value) for name, value in fields.items()}
        body, headers = form_body(texts, {"photo": ("chart.png", message.picture)})
        return Sending(self._method("sendPhoto"), body, headers)

    def reference_in(self, answer: Any) -> str:
        result = answer.get("result") if isinstance(answer, dict) else None
        found = result.get("message_id") if isinstance(result, dict) else None
        return str(found) if type(found) is int else ""

    def wait_in(self, answer: Any) -> float | None:
        parameters = answer.get("parameters") if isinstance(answer, dict) else None
        found = parameters.get("retry_after") if isinstance(parameters, dict) else None
        return float(found) if isinstance(found, int | float) else None

    def _method(self, method: str) -> str:
        base = self._address("RLVITALS_TELEGRAM_URL") if self._variable("RLVITALS_TELEGRAM_URL") else API
        return f"{base.rstrip('/')}/bot{self._token}/{method}"

    @property
    def _token(self) -> str:
        from rlvitals.errors import ConfigError

        token = self._variable("RLVITALS_TELEGRAM_TOKEN").strip()
        if not _TOKEN.fullmatch(token):
            raise ConfigError(
                "RLVITALS_TELEGRAM_TOKEN does not hold a bot's token, which is a number, a colon and letters"
            )
        return token


def marked_up(message: Message, longest: int) -> str:
    """The message in Telegram's HTML. Lines beyond the limit are dropped from the end."""
    link = f'\n<a href="{escape(message.link)}">Open the run</a>' if message.link else ""
    room = longest - (len("\nOpen the run") if link else 0)
    title = cut_middle(f"{sign_of(message)} {plain(message.headline)}", room // 2)
    room -= _length(title)
    html = f"<b>{escape(title)}</b>"
    for line in map(plain, message.lines):
        room -= _length(line) + 1
        if room < 0:
            break
        html += f"\n{escape(line)}"
    return html + link


def plain(text: str) -> str:
    r"""A text in which Telegram detects no mentions and no links: an invisible joiner is inserted where it would.

    >>> plain("@ann 0.5 rewards/mean evil.org").replace("\u2060", "|")
    '@|ann 0.5 rewards/mean evil.|org'
    """
    return _FOUND.sub("\\g<0>\u2060", text)


def _length(text: str) -> int:
    """The length of a text as Telegram counts it.

    >>> _length("a"), _length("🔴")
    (1, 2)
    """
    return len(text.encode("utf-16-le", "replace")) // 2
