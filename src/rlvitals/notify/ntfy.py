"""ntfy: the chart is the body of the request, and the text is in its headers."""

from __future__ import annotations

from base64 import b64encode

from rlvitals.notify.messages import Message
from rlvitals.notify.service import Variable, WebService
from rlvitals.terminal import cut_middle
from rlvitals.webhook import Sending

LONGEST_TITLE = 250
LONGEST_BYTES = 3500
"""Longest message; ntfy's own limit is 4,096 bytes."""

PRIORITIES = {"critical": "5", "warning": "4", "info": "3"}
TAGS = {"critical": "rotating_light", "warning": "warning", "info": "information_source"}


class Ntfy(WebService):
    """A topic of ntfy.sh, or of a private server."""

    name = "ntfy"
    variables = (
        Variable("RLVITALS_NTFY_URL", "the address of a topic, such as https://ntfy.sh/NAME"),
        Variable("RLVITALS_NTFY_TOKEN", "an access token, where the topic needs one", is_needed=False),
    )

    def compose(self, message: Message, reference: str = "") -> Sending:
        is_over = message.kind == "recovered"
        headers = {
            "Title": encoded(cut_middle(message.headline, LONGEST_TITLE)),
            "Priority": "2" if is_over else PRIORITIES[message.severity],
            "Tags": "white_check_mark" if is_over else TAGS[message.severity],
        }
        if message.link:
            headers["Click"] = encoded(message.link)
        if token := self._variable("RLVITALS_NTFY_TOKEN"):
            headers["Authorization"] = f"Bearer {token.strip()}"
        text = "\n".join(message.lines).encode("utf-8", "replace")[:LONGEST_BYTES].decode("utf-8", "ignore")
        if message.picture is None:
            body = text.encode()
            headers["Content-Type"] = "text/plain; charset=utf-8"
        else:
            body = message.picture
            # In a header, ntfy reads a backslash and an n as a line break.
            headers |= {"Filename": "chart.png", "Message": encoded(text.replace("\n", "\\n"))}
            headers["Content-Type"] = "image/png"
        return Sending(self._address("RLVITALS_NTFY_URL"), body, headers, "PUT")


def encoded(text: str) -> str:
    """The value of a header: ASCII is unchanged, other text is encoded as in RFC 2047.

    >>> encoded("loss"), encoded("größer")
    ('loss', '=?UTF-8?B?Z3LDtsOfZXI=?=')
    """
    if text.isascii() and text.isprintable() and "=?" not in text:
        return text
    return f"=?UTF-8?B?{b64encode(text.encode('utf-8', 'replace')).decode()}?="
