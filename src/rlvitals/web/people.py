"""Access to the dashboard: one token for everybody, or a file with one token per person.

A line of the file is a name and a token, or a name and `proof:` with a hash, as `rlvitals serve --new-token` prints it.
The cookie (the ticket) is a hash of the token, and the proof is a hash of the ticket. Neither the token nor the cookie
can be computed from the proof. The file is read again when it changes. A person who was removed loses access at once.
"""

from __future__ import annotations

import hashlib
import hmac
import os
import re
import secrets
from collections.abc import Mapping
from pathlib import Path
from typing import Protocol

from rlvitals.errors import ConfigError
from rlvitals.store.files import read_whole, stamp
from rlvitals.terminal import logger

SHORTEST_TOKEN = 16
PROOF = "proof:"
EVERYBODY = "-"
"""The name logged for anyone who uses the single shared token."""

PUSH_VARIABLE = "RLVITALS_PUSH_TOKEN"
"""The environment variable with the token for pushes."""

_NAME = re.compile(r"[\w.@+-]{1,64}")
_HEX = re.compile(r"[0-9a-f]{64}")


class People(Protocol):
    """Finds the owner of a token or cookie."""

    @property
    def cookie(self) -> str:
        """The cookie's name, different for each server: cookies are shared by all ports of a machine."""
        ...

    def name_of(self, ticket: str) -> str | None:
        """The owner of a ticket, or None. A wrong ticket takes as long to check as a right one."""
        ...


def ticket_of(token: str) -> str:
    """The value of the cookie: a hash of the token."""
    return hmac.new(token.encode(), b"rlvitals cookie", hashlib.sha256).hexdigest()


def proof_of(ticket: str) -> str:
    """The hash that a token file may hold instead of the token."""
    return hashlib.sha256(ticket.encode("utf-8", "replace")).hexdigest()


def check_token(token: str) -> str:
    """Return the token. Raises ConfigError if it is too short, or has other characters than printable ASCII."""
    if len(token) < SHORTEST_TOKEN or not token.isascii() or not token.isprintable() or " " in token:
        raise ConfigError(f"a token has at least {SHORTEST_TOKEN} printable characters and no space")
    return token


def new_token(name: str) -> tuple[str, str]:
    """A new token, and its line for the file."""
    if not _NAME.fullmatch(name):
        raise ConfigError(f"{name[:80]!r} is not a name for a token: letters, digits and .@+- are")
    token = secrets.token_urlsafe(24)
    return token, f"{name} {PROOF}{proof_of(ticket_of(token))}"


class OneToken:
    """One token for everybody."""

    def __init__(self, token: str) -> None:
        self._proof = proof_of(ticket_of(token))
        self.cookie = f"rlvitals_{hashlib.sha256(token.encode()).hexdigest()[:8]}"

    def name_of(self, ticket: str) -> str | None:
        return EVERYBODY if hmac.compare_digest(proof_of(ticket), self._proof) else None


class TokenFile:
    """One token per person."""

    def __init__(self, path: Path) -> None:
        self._path = path.absolute()
        self.cookie = f"rlvitals_{hashlib.sha256(os.fsencode(self._path)).hexdigest()[:8]}"
        self._stamp: object = None
        self._proofs: dict[str, str] = {}
        self._read(is_first=True)

    def name_of(self, ticket: str) -> str | None:
        self._read()
        proof = proof_of(ticket)
        found = [name for name, known in self._proofs.items() if hmac.compare_digest(proof, known)]
        return found[0] if found else None

    def _read(self, *, is_first: bool = False) -> None:
        """Read the file if it has changed. While it cannot be read, nobody has access."""
        try:
            state = stamp(self._path)
            if state is not None and state == self._stamp:
                return
            self._proofs = dict(parse_tokens(read_whole(self._path).decode()))
            self._stamp = state
        except (OSError, ValueError, ConfigError) as error:
            if is_first:
                raise ConfigError(f"cannot read the tokens in {self._path}: {error}") from error
            if self._proofs:
                logger.warning("access is denied to everybody: the tokens in %s cannot be read: %s", self._path, error)
            self._proofs, self._stamp = {}, None


def parse_tokens(text: str) -> Mapping[str, str]:
    r"""The names and proofs in a file of tokens. Raises ConfigError with the number of a wrong line, never the token.

    >>> list(parse_tokens("# the team\nann 0123456789abcdef\n"))
    ['ann']
    """
    found: dict[str, str] = {}
    for number, line in enumerate(text.splitlines(), 1):
        words = line.split()
        if not words or words[0].startswith("#"):
            continue
        if len(words) != 2 or not _NAME.fullmatch(words[0]):
            raise ConfigError(f"line {number} is not a name and a token")
        name, secret = words
        if name in found:
            raise ConfigError(f"line {number}: {name} has a token already")
        if secret.startswith(PROOF):
            if not _HEX.fullmatch(secret.removeprefix(PROOF)):
                raise ConfigError(f"line {number}: a proof has 64 hexadecimal digits")
            found[name] = secret.removeprefix(PROOF)
        else:
            try:
                found[name] = proof_of(ticket_of(check_token(secret)))
            except ConfigError as error:
                raise ConfigError(f"line {number}: {error}") from None
    return found


def push_token(file: str | None) -> str:
    """The token for pushes, from a file or the environment. Other users could read it on the command line."""
    if file:
        try:
            token = read_whole(Path(file)).decode().strip()
        except (OSError, ValueError) as error:
            raise ConfigError(f"cannot read a token from {file}: {error}") from error
    else:
        token = os.environ.get(PUSH_VARIABLE, "")
    if not token:
        raise ConfigError(f"pushing needs the server's token: in {PUSH_VARIABLE}, or in a file named by --token-file")
    return check_token(token)
