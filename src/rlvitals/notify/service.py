"""The interface of a service: it accepts a message, and reports whether it has it.

A service gets its secrets when it is opened, from the environment, and never reveals them: an `SendOutcome` names
the problem by its status alone.
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
from rlvitals.webhook import Reply, Sending, send

TIMEOUT_SECONDS = 10.0
WRONG_ADDRESS = (401, 403, 404, 405, 407, 410)
"""Statuses about the address, the token or the recipient, not about the message."""

COLOURS = {"critical": 0xC62828, "warning": 0xB8860B, "info": 0x4682B4, "recovered": 0x2E7D32}
SIGNS = {"critical": "🔴", "warning": "🟠", "info": "🔵", "recovered": "✅", "digest": "📋", "test": "👋"}

Fate = Literal["sent", "later", "refused"]


@dataclass(frozen=True, slots=True)
class SendOutcome:
    """The result of sending a message. later: try again. refused: the service will never accept this message."""

    fate: Fate
    problem: str = ""
    retry_after: float | None = None
    is_doubtful: bool = False
    """Whether it may have arrived nevertheless."""
    reference: str = ""
    """The message's id, where the service gives one."""


@dataclass(frozen=True, slots=True)
class Variable:
    """A variable of the environment that a service reads."""

    name: str
    holds: str
    is_needed: bool = True


class Service(ABC):
    """One service, opened with what its variables hold."""

    name: ClassVar[str]
    variables: ClassVar[tuple[Variable, ...]]
    takes_pictures: ClassVar[bool] = True
    recovers_quietly: ClassVar[bool] = False
    """Whether a recovery changes what is there and notifies nobody: it does not count towards the limit."""
    knows_repeats: ClassVar[bool] = False
    """Whether it shows a message that comes twice once."""

    def __init__(self, given: Mapping[str, str]) -> None:
        """`given` holds the values by the variables' names. Raises ConfigError, without them, where one is wrong."""
        self._given = given

    @abstractmethod
    def send(self, message: Message, reference: str = "") -> SendOutcome:
        """Send it, once. `reference`: the id of an earlier message about the same."""

    def _variable(self, name: str) -> str:
        return self._given.get(name, "")

    def _address(self, name: str) -> str:
        """The http(s) address a variable holds."""
        return checked_address(self._variable(name), name)


class WebService(Service):
    """A service that takes HTTP requests: what differs is how a message is written."""

    @abstractmethod
    def compose(self, message: Message, reference: str = "") -> Sending:
        """The request that carries a message."""

    def send(self, message: Message, reference: str = "") -> SendOutcome:
        return self._outcome(send(self.compose(message, reference), TIMEOUT_SECONDS))

    def reference_in(self, answer: Any) -> str:
        """The message's id in the service's answer, which is parsed JSON, or None where it was none."""
        return ""

    def wait_in(self, answer: Any) -> float | None:
        """The seconds to wait in the answer of a service that states them in its body."""
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
    """A multipart/form-data body with its header. `files`: by field, a name of ours and a PNG."""
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
    """Its colour, as a number."""
    return COLOURS["recovered" if message.kind == "recovered" else message.severity]


def checked_address(value: str, variable: str) -> str:
    """An http(s) address. Raises ConfigError, which names the variable and not its value."""
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
