"""E-mail over SMTP: plain text, and HTML with the chart. A recovery is a reply to the first message."""

from __future__ import annotations

import smtplib
import ssl
from collections.abc import Mapping
from email.headerregistry import Address
from email.message import EmailMessage
from email.policy import SMTP as SMTP_LINES
from email.utils import formatdate, getaddresses
from html import escape

from rlvitals.errors import ConfigError
from rlvitals.notify.messages import Message
from rlvitals.notify.service import TIMEOUT_SECONDS, SendOutcome, Service, Variable, colour_of
from rlvitals.terminal import cut_middle, logger
from rlvitals.webhook import LOOPBACK

PORTS = {"starttls": 587, "tls": 465, "none": 25}
LONGEST_SUBJECT = 200
LONGEST_LINE = 400
"""Longest line of a header. Some mail clients do not find ids that are split over two lines."""
TRANSIENT = range(400, 500)
OF_THE_MESSAGE = (552, 554)
"""SMTP codes about a message's size or content."""


class Mail(Service):
    """One or several mailboxes."""

    name = "email"
    variables = (
        Variable("RLVITALS_SMTP_HOST", "the mail server"),
        Variable("RLVITALS_EMAIL_TO", "who gets the messages; several are separated by commas"),
        Variable("RLVITALS_EMAIL_FROM", "the sender (default: the first recipient)", is_needed=False),
        Variable("RLVITALS_SMTP_USER", "the name to log in with", is_needed=False),
        Variable("RLVITALS_SMTP_PASSWORD", "the password to log in with", is_needed=False),
        Variable("RLVITALS_SMTP_SECURITY", "starttls (the default), tls or none", is_needed=False),
        Variable("RLVITALS_SMTP_PORT", "the port (default: starttls 587, tls 465, none 25)", is_needed=False),
    )
    knows_repeats = False

    def __init__(self, given: Mapping[str, str]) -> None:
        super().__init__(given)
        self._security = self._variable("RLVITALS_SMTP_SECURITY").strip().lower() or "starttls"
        if self._security not in PORTS:
            raise ConfigError(f"RLVITALS_SMTP_SECURITY must be one of {', '.join(PORTS)}")
        port = self._variable("RLVITALS_SMTP_PORT").strip() or str(PORTS[self._security])
        if not port.isdecimal() or not 0 < int(port) < 65536:
            raise ConfigError("RLVITALS_SMTP_PORT must be the number of a port")
        self._port = int(port)
        self._host = self._variable("RLVITALS_SMTP_HOST").strip()
        self._to = _addresses(self._variable("RLVITALS_EMAIL_TO"), "RLVITALS_EMAIL_TO")
        sender = _addresses(self._variable("RLVITALS_EMAIL_FROM"), "RLVITALS_EMAIL_FROM", is_needed=False)
        self._from = sender[0] if sender else self._to[0]
        self._user = self._variable("RLVITALS_SMTP_USER")
        if self._user and self._security == "none" and self._host not in LOOPBACK:
            raise ConfigError("RLVITALS_SMTP_SECURITY=none would send the password unencrypted: use starttls or tls")

    def send(self, message: Message, reference: str = "") -> SendOutcome:
        mail = self.compose(message, reference)
        is_handed_over = False
        try:
            with self._connect() as server:
                is_handed_over = True
                refused = server.send_message(mail)
                is_handed_over = False
            if refused:
                reason = ", ".join(sorted({f"SMTP {code}" for code, _ in refused.values()}))
                logger.warning("e-mail: %d of %d recipients were refused (%s)", len(refused), len(self._to), reason)
        except smtplib.SMTPResponseException as error:
            return _refused(error.smtp_code)
        except smtplib.SMTPRecipientsRefused as error:
            codes = [code for code, _ in error.recipients.values()]
            return _refused(max(codes, default=550))
        except (smtplib.SMTPException, OSError) as error:
            reason = error.strerror if isinstance(error, OSError) and error.strerror else type(error).__name__
            return SendOutcome("later", f"SMTP: {reason}", is_doubtful=is_handed_over)
        return SendOutcome("sent", reference=str(mail["Message-ID"]))

    def compose(self, message: Message, reference: str = "") -> EmailMessage:
        """The message as it is sent."""
        mail = EmailMessage(policy=SMTP_LINES.clone(max_line_length=LONGEST_LINE))
        mail["Subject"] = cut_middle(f"[rlvitals] {message.headline}", LONGEST_SUBJECT)
        mail["From"], mail["To"] = self._from, self._to
        mail["Date"] = formatdate(message.timestamp or None)
        domain = self._from.domain or "localhost"
        mail["Message-ID"] = f"<{message.key}.{message.kind}.{message.severity}@{domain}>"
        mail["Auto-Submitted"] = "auto-generated"
        if reference and reference != mail["Message-ID"]:
            mail["In-Reply-To"] = mail["References"] = reference
        mail.set_content(f"{message.text}\n")
        chart = f"chart.{message.key}@{domain}" if message.picture is not None else ""
        mail.add_alternative(_html(message, chart), subtype="html")
        if message.picture is not None:
            html = mail.get_payload()[1]  # type: ignore[index]
            html.add_related(message.picture, "image", "png", cid=f"<{chart}>", filename="chart.png")  # type: ignore[union-attr]
        return mail

    def _connect(self) -> smtplib.SMTP:
        if self._security == "tls":
            context = ssl.create_default_context()
            server: smtplib.SMTP = smtplib.SMTP_SSL(self._host, self._port, timeout=TIMEOUT_SECONDS, context=context)
        else:
            server = smtplib.SMTP(self._host, self._port, timeout=TIMEOUT_SECONDS)
        try:
            if self._security == "starttls":
                server.starttls(context=ssl.create_default_context())
            if self._user:
                server.login(self._user, self._variable("RLVITALS_SMTP_PASSWORD"))
        except (smtplib.SMTPException, OSError):
            server.close()
            raise
        return server


def _refused(code: int) -> SendOutcome:
    """The outcome for a server's code. The server's text is not repeated, because it may name users and recipients."""
    if code in OF_THE_MESSAGE:
        return SendOutcome("refused", f"SMTP {code}")
    if code in TRANSIENT:
        return SendOutcome("later", f"SMTP {code}")
    return SendOutcome("later", f"SMTP {code}; check RLVITALS_SMTP_USER, RLVITALS_SMTP_PASSWORD and RLVITALS_EMAIL_TO")


def _addresses(text: str, variable: str, *, is_needed: bool = True) -> list[Address]:
    """The addresses in a variable. Raises ConfigError for invalid ones, without showing them."""
    found = []
    try:
        for name, address in getaddresses([text]):
            if address:
                found.append(Address(name, addr_spec=address))
                if not found[-1].username or not found[-1].domain:
                    raise ValueError
    except (ValueError, IndexError):
        raise ConfigError(f"{variable} must hold e-mail addresses, separated by commas") from None
    if is_needed and not found:
        raise ConfigError(f"{variable} must hold e-mail addresses, separated by commas")
    return found


def _html(message: Message, chart: str) -> str:
    rows = "".join(
        f"<tr><td><b>{escape(label)}</b></td><td>{escape(value)}</td></tr>" for label, value in message.facts.items()
    )
    paragraphs = "".join(f"<p>{escape(line)}</p>" for line in message.lines[len(message.facts) :])
    link = f'<p><a href="{escape(message.link)}">Open the run</a></p>' if message.link else ""
    image = f'<p><img src="cid:{chart}" alt="chart of the metrics" style="max-width:100%"></p>' if chart else ""
    return (
        f'<div style="border-left:4px solid #{colour_of(message):06x};padding-left:10px">'
        f"<h3>{escape(message.headline)}</h3><table>{rows}</table>{paragraphs}{link}{image}</div>\n"
    )
