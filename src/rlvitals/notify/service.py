"""The interface of a service: it sends a message and reports the outcome.

A service gets its secrets from the environment when it is opened, and never reveals them: a `SendOutcome` names only
the status or the type of a problem.
"""

from __future__ import annotations

import json
import secrets as random_names
from abc import ABC, abstractmethod
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, ClassVar, Literal

from rlvitals.codec import encode
from rlvitals.errors import ConfigError
from rlvitals.notify.messages import Message
from rlvitals.signs import COLOURS
from rlvitals.webhook import Reply, Sending, send

TIMEOUT_SECONDS = 10.0
WRONG_ADDRESS = (401, 403, 404, 405, 407, 410)
"""Statuses that concern the address, the token or the recipient, not the message."""

SIGNS = {"critical": "🔴", "warning": "🟠", "info": "🔵", "recovered": "✅", "digest": "📋", "test": "👋"}

Fate = Literal["sent", "later", "refused"]


@dataclass(frozen=True, slots=True)
class SendOutcome:
    """The result of sending a message. `later`: try again. `refused`: the service will never accept this message."""

    fate: Fate
    problem: str = ""
    retry_after: float | None = None
    is_doubtful: bool = False
    """Whether the message may have arrived despite the problem."""
    reference: str = ""
    """The message's id, if the service returns one."""


@dataclass(frozen=True, slots=True)
class Variable:
    """An environment variable that a service reads."""

    name: str
    holds: str
    is_needed: bool = True


class Service(ABC):
    """One service, opened with the values of its variables."""

    name: ClassVar[str]
    variables: ClassVar[tuple[Variable, ...]]
    takes_pictures: ClassVar[bool] = True
    recovers_quietly: ClassVar[bool] = False
    """Whether a recovery only updates the earlier message. Then it notifies nobody and does not count towards the
    limit.
    """
    knows_repeats: ClassVar[bool] = False
    """Whether the service shows a message only once if it is sent twice."""

    def __init__(self, given: Mapping[str, str]) -> None:
        """`given` maps names of variables to values. Raises ConfigError for an invalid value, without showing it."""
        self._given = given

    @abstractmethod
    def send(self, message: Message, reference: str = "") -> SendOutcome:
        """Send the message once. `reference`: the id of an earlier message about the same finding."""

    def _variable(self, name: str) -> str:
        return self._given.get(name, "")

    def _address(self, name: str) -> str:
        """The http(s) address in a variable."""
        return checked_address(self._variable(name), name)


class WebService(Service):
    """A service that accepts HTTP requests. Subclasses format the message."""

    @abstractmethod
    def compose(self, message: Message, reference: str = "") -> Sending:
        """The request that carries a message."""

    def send(self, message: Message, reference: str = "") -> SendOutcome:
        return self._outcome(send(self.compose(message, reference), TIMEOUT_SECONDS))

    def reference_in(self, answer: Any) -> str:
        """The message's id in the service's answer: parsed JSON, or None if the answer was not JSON."""
        return ""

    def wait_in(self, answer: Any) -> float | None:
        """The seconds to wait, for a service that states them in the body of its answer."""
        return None

    def _outcome(self, reply: Reply) -> SendOutcome:
        answer = _parsed(reply.body)
        if not reply.problem:
            return SendOutcome("sent", reference=self.reference_in(answer)[:200])
        wait = reply.retry_after if reply.retry_after is not None else self.wait_in(answer)
        if reply.may_help:
            return SendOutcome("later", reply.problem, wait, reply.is_doubtful)
        if reply.status in WRONG_ADDRESS or 300 <= reply.status < 400 or not reply.status:
            names = ", ".join(variable.name for variable in self.variables if variable.is_needed)
            return SendOutcome("later", f"{reply.problem}; check {names or 'the template'}")
        return SendOutcome("refused", reply.problem)


def json_body(value: Any) -> tuple[bytes, dict[str, str]]:
    """A JSON body with its header."""
    return encode(value), {"Content-Type": "application/json; charset=utf-8"}


def form_body(fields: Mapping[str, str], files: Mapping[str, tuple[str, bytes]]) -> tuple[bytes, dict[str, str]]:
    """A multipart/form-data body with its header. `files`: for each field, a file name and a PNG."""
    boundary = f"rlvitals-{random_names.token_hex(16)}"
    parts = [
        f'--{boundary}\r\nContent-Disposition: form-data; name="{name}"\r\n\r\n{value}\r\n'.encode("utf-8", "replace")
        for name, value in fields.items()
    ]
    for name, (file_name, data) in files.items():
        disposition = f'Content-Disposition: form-data; name="{name}"; filename="{file_name}"'
        parts += [f"--{boundary}\r\n{disposition}\r\nContent-Type: image/png\r\n\r\n".encode(), data, b"\r\n"]
    parts.append(f"--{boundary}--\r\n".encode())
    return b"".join(parts), {"Content-Type": f"multipart/form-data; boundary={boundary}"}


def sign_of(message: Message) -> str:
    """The sign that a message begins with."""
    return SIGNS.get(message.kind) or SIGNS[message.severity]


def colour_of(message: Message) -> int:
    """The colour of a message, as a number."""
    return int(COLOURS["healthy" if message.kind == "recovered" else message.severity][1:], 16)


def checked_address(value: str, variable: str) -> str:
    """The value, if it is an http(s) address. Else raises ConfigError, which names the variable and not its value."""
    from urllib.parse import urlsplit

    try:
        parts = urlsplit(value)
        is_address = parts.scheme in ("http", "https") and bool(parts.hostname) and (parts.port or 1) > 0
    except ValueError:
        is_address = False
    if not is_address or any(letter.isspace() or not letter.isprintable() for letter in value):
        raise ConfigError(f"{variable} must hold an http(s) address")
    return value


def _parsed(body: bytes) -> Any:
    try:
        return json.loads(body)
    except (ValueError, RecursionError):
        return None
