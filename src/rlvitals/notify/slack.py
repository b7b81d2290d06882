"""Slack, through an incoming webhook.

The text is rich text. Slack shows its `text` elements unchanged, so a name cannot become a mention, a link or a format.
An incoming webhook accepts no files, so the message has a link to the run instead of a chart.
"""

from __future__ import annotations

from typing import Any

from rlvitals.notify.messages import Message
from rlvitals.notify.service import Variable, WebService, json_body, sign_of
from rlvitals.terminal import cut_middle
from rlvitals.webhook import Sending

LONGEST_HEADER = 150
LONGEST_PART = 2900


class Slack(WebService):
    """A channel of Slack. A recovery is a separate message, because an incoming webhook cannot edit messages."""

    name = "slack"
    variables = (Variable("RLVITALS_SLACK_WEBHOOK", "the address of an incoming webhook"),)
    takes_pictures = False

    def compose(self, message: Message, reference: str = "") -> Sending:
        headline = f"{sign_of(message)} {message.headline}"
        header = {"type": "plain_text", "text": cut_middle(headline, LONGEST_HEADER)}
        elements: list[dict[str, Any]] = []
        for line in [*([message.title] if len(headline) > LONGEST_HEADER else []), *message.lines]:
            label, colon, rest = line.partition(": ")
            is_fact = bool(colon) and label in (*message.facts, "Consider")
            bold = {"type": "text", "text": f"{label}: ", "style": {"bold": True}}
            elements += [bold, _text(f"{rest}\n")] if is_fact else [_text(f"{line}\n")]
        if message.link:
            elements.append({"type": "link", "url": message.link, "text": "Open the run"})
        body, headers = json_body(
            {
                "text": escaped(cut_middle(message.headline, LONGEST_PART)),  # shown in the notification
                "blocks": [
                    {"type": "header", "text": header},
                    {"type": "rich_text", "elements": [{"type": "rich_text_section", "elements": elements}]},
                ],
                "unfurl_links": False,
                "unfurl_media": False,
            }
        )
        return Sending(self._address("RLVITALS_SLACK_WEBHOOK"), body, headers)


def escaped(text: str) -> str:
    """A text that Slack's own markup shows unchanged.

    >>> escaped("<!channel> & co")
    '&lt;!channel&gt; &amp; co'
    """
    return text.replace("&", "&amp;").replace("<", "&lt;").replace(">", "&gt;")


def _text(text: str) -> dict[str, Any]:
    return {"type": "text", "text": cut_middle(text, LONGEST_PART)}
