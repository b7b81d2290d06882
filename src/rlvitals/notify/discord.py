"""Discord, through a webhook: an embed with the chart, which is edited when the finding has recovered."""

from __future__ import annotations

import json
import re
from typing import Any
from urllib.parse import urlsplit, urlunsplit

from rlvitals.notify.messages import REPEATED, Message
from rlvitals.notify.service import SendOutcome, Variable, WebService, colour_of, form_body, json_body, sign_of
from rlvitals.terminal import cut_middle
from rlvitals.webhook import Sending

LONGEST_TITLE = 256
LONGEST_FIELD = 1024
LONGEST_EMBED = 5500
"""All texts of an embed together may have 6,000 characters."""

MOST_FIELDS = 25
CHART = "chart.png"
_MARKUP = re.compile(r"([\\`*_\[\]<>#|~@]|:(?=//))")
_ID = re.compile(r"[0-9]{1,20}")


class Discord(WebService):
    """A channel of Discord."""

    name = "discord"
    variables = (Variable("RLVITALS_DISCORD_WEBHOOK", "the address of a webhook"),)
    recovers_quietly = True

    def send(self, message: Message, reference: str = "") -> SendOutcome:
        outcome = super().send(message, reference)
        if outcome.fate == "later" and "HTTP 404" in outcome.problem and reference and message.kind == "recovered":
            return super().send(message)  # the message to edit was deleted
        return outcome

    def compose(self, message: Message, reference: str = "") -> Sending:
        is_edit = message.kind == "recovered" and bool(_ID.fullmatch(reference))
        payload: dict[str, Any] = {"embeds": [_embed(message)], "allowed_mentions": {"parse": []}}
        if message.picture is None:
            body, headers = json_body(payload)
        else:
            payload["embeds"][0]["image"] = {"url": f"attachment://{CHART}"}
            payload["attachments"] = [{"id": "0", "filename": CHART}]
            body, headers = form_body({"payload_json": json.dumps(payload)}, {"files[0]": (CHART, message.picture)})
        return Sending(self._url(reference if is_edit else ""), body, headers, "PATCH" if is_edit else "POST")

    def reference_in(self, answer: Any) -> str:
        found = answer.get("id") if isinstance(answer, dict) else None
        return found if isinstance(found, str) and _ID.fullmatch(found) else ""

    def wait_in(self, answer: Any) -> float | None:
        found = answer.get("retry_after") if isinstance(answer, dict) else None
        return float(found) if isinstance(found, int | float) else None

    def _url(self, edited: str) -> str:
        """The address to post a new message to, with its id in the answer, or the address to edit a message at."""
        scheme, host, path, query, _ = urlsplit(self._address("RLVITALS_DISCORD_WEBHOOK"))
        if edited:
            return urlunsplit((scheme, host, f"{path.rstrip('/')}/messages/{edited}", query, ""))
        return urlunsplit((scheme, host, path, f"{query}&wait=true" if query else "wait=true", ""))


def escaped(text: str) -> str:
    r"""A text that Discord's Markdown shows unchanged.

    >>> print(escaped("[x](http://y) @everyone *z*"))
    \[x\](http\://y) \@everyone \*z\*
    """
    return _MARKUP.sub(r"\\\1", text)


def _embed(message: Message) -> dict[str, Any]:
    embed: dict[str, Any] = {
        "title": _cut(f"{sign_of(message)} {message.headline}", LONGEST_TITLE),
        "color": colour_of(message),
    }
    if message.link:
        embed["url"] = message.link
    lines = [f"Consider: {advice}" for advice in message.advice] + ([REPEATED] if message.is_repeat else [])
    if lines:
        embed["description"] = "\n".join(_cut(line, LONGEST_FIELD) for line in lines)
    room = LONGEST_EMBED - len(embed["title"]) - len(embed.get("description", ""))
    fields = []
    for label, value in list(message.facts.items())[:MOST_FIELDS]:
        shown = _cut(value, LONGEST_FIELD)
        room -= len(label) + len(shown)
        if room < 0:
            break
        fields.append({"name": label, "value": shown, "inline": label == "Step"})
    embed["fields"] = fields
    return embed


def _cut(text: str, longest: int) -> str:
    """The escaped text within the limit. It is cut before it is escaped, so no escape is split."""
    room = longest
    while len(shown := escaped(cut_middle(text, room))) > longest:
        room -= max(1, len(shown) - longest)
    return shown
