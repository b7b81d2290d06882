"""What every request passes before it is answered: who may ask, from which page, and what a browser may do with the
answer.

- `Host` must name this machine. A foreign site that lets its own name resolve to 127.0.0.1 (DNS rebinding) sends its
  own name there.
- `Origin`, and a browser's `Sec-Fetch-Site`, must be this page's: other sites get nothing.
- Beyond the loopback address a token is needed: from the address once, from a cookie afterwards.
- GET and HEAD only: nothing here writes.
"""

from __future__ import annotations

import hashlib
import hmac
import ipaddress
import secrets
import socket
from collections.abc import Iterable
from typing import Any
from urllib.parse import parse_qsl, quote, urlencode, urlsplit

from rlvitals.errors import ConfigError
from rlvitals.web.answers import as_json

LONGEST_ADDRESS = 32 * 1024
"""Characters of a path and its query together."""

SHORTEST_TOKEN = 16

POLICY = (
    "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self' data:; connect-src 'self'; "
    "base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
)
HEADERS = [
    (b"content-security-policy", POLICY.encode()),
    (b"x-content-type-options", b"nosniff"),
    (b"referrer-policy", b"no-referrer"),
    (b"cross-origin-opener-policy", b"same-origin"),
    (b"cross-origin-resource-policy", b"same-origin"),
    (b"x-frame-options", b"DENY"),
]


class Guard:
    """An ASGI application around another one."""

    def __init__(self, app: Any, hosts: Iterable[str], *, any_address: bool = False, token: str | None = None) -> None:
        self._app = app
        self._hosts = frozenset(host.casefold() for host in hosts)
        self._any_address = any_address
        self._token = token

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        if scope["type"] == "lifespan":
            await self._app(scope, receive, send)
            return None
        if scope["type"] != "http":  # there are no web sockets here
            return await _refuse(send, 404, "there is nothing here")
        headers = {name.decode("latin-1"): value.decode("latin-1") for name, value in scope["headers"]}
        if len(scope["query_string"]) + len(scope.get("raw_path") or b"") > LONGEST_ADDRESS:
            return await _refuse(send, 414, "the address is too long")
        if scope["method"] not in ("GET", "HEAD"):
            return await _refuse(send, 405, "nothing here can be written: GET only", [(b"allow", b"GET, HEAD")])
        if _count(scope, b"host") != 1 or not self._is_known(headers.get("host", "")):
            said = f"the name {headers.get('host', '')[:80]!r} is not one this server goes by; --allow-host adds one"
            return await _refuse(send, 403, said)
        if not _is_own_page(headers):
            return await _refuse(send, 403, "another site's page may not ask here")
        if self._token is not None and not self._has_cookie(headers):
            if self._is_token(_bearer(headers)):
                return await self._pass(scope, receive, send)
            query = parse_qsl(scope["query_string"].decode("latin-1"), keep_blank_values=True)
            if any(key == "token" and self._is_token(value) for key, value in query):
                return await self._welcome(scope, send, query)
            return await _refuse(send, 401, "a token is needed: open the address that 'rlvitals serve' printed")
        return await self._pass(scope, receive, send)

    async def _pass(self, scope: Any, receive: Any, send: Any) -> None:
        async def with_headers(message: Any) -> None:
            if message["type"] == "http.response.start":
                message["headers"] = [*message.get("headers", []), *HEADERS]
            await send(message)

        await self._app(scope, receive, with_headers)

    def _is_known(self, host: str) -> bool:
        name = host_name(host)
        if name is None:
            return False
        return name in self._hosts or (self._any_address and _is_address(name))

    def _has_cookie(self, headers: dict[str, str]) -> bool:
        ticket = self._ticket.encode()
        given = cookies_named(self._cookie, headers.get("cookie", ""))
        return any(hmac.compare_digest(value.encode(), ticket) for value in given)

    def _is_token(self, given: str) -> bool:
        return self._token is not None and hmac.compare_digest(given.encode(), self._token.encode())

    @property
    def _ticket(self) -> str:
        """What the cookie holds: made from the token, and not the token itself."""
        return hmac.new((self._token or "").encode(), b"rlvitals cookie", hashlib.sha256).hexdigest()

    @property
    def _cookie(self) -> str:
        """Its name: cookies know no ports, and two servers on one machine must not overwrite each other's."""
        return f"rlvitals_{hashlib.sha256((self._token or '').encode()).hexdigest()[:8]}"

    async def _welcome(self, scope: Any, send: Any, query: list[tuple[str, str]]) -> None:
        """Take the token out of the address bar and the history, and leave a cookie."""
        kept = urlencode([(key, value) for key, value in query if key != "token"])
        path = "/" + scope["path"].lstrip("/\\")  # never '//elsewhere', which is another site
        where = quote(path, safe="/") + (f"?{kept}" if kept else "")
        cookie = f"{self._cookie}={self._ticket}; HttpOnly; SameSite=Lax; Path=/; Max-Age=2592000"
        headers = [(b"location", where.encode()), (b"set-cookie", cookie.encode())]
        await _answer(send, 303, b"", headers)


def host_name(host: str) -> str | None:
    """The name in a Host header, without its port; None where it is none.

    >>> host_name("localhost:8642"), host_name("[::1]:80"), host_name("a b"), host_name("x@localhost")
    ('localhost', '::1', None, None)
    """
    if not host or any(character in host for character in "/\\@?#, \t\r\n\0"):
        return None
    try:
        parts = urlsplit(f"//{host}")
        _ = parts.port
    except ValueError:
        return None
    return parts.hostname.casefold().rstrip(".") if parts.hostname else None


def cookies_named(name: str, header: str) -> list[str]:
    """The values of a cookie in a Cookie header. Not `http.cookies`, whose time grows with the square of the length.

    >>> cookies_named("a", 'b=1; a=2;a="3" ; aa=4; a')
    ['2', '3', '']
    """
    pairs = (part.partition("=") for part in header.split(";"))
    return [value.strip().strip('"') for key, _, value in pairs if key.strip() == name]


def known_hosts(address: str, extra: Iterable[str] = ()) -> tuple[set[str], bool]:
    """The names a server on an address goes by, and whether every literal address is one (it listens on all).

    A literal address cannot be rebound: only names resolve.
    """
    names = {"localhost", "127.0.0.1", "::1", *extra}
    if is_loopback(address):
        return names | ({address} if address else set()), False
    own = socket.gethostname()
    everywhere = address in ("0.0.0.0", "::", "")  # noqa: S104
    return names | {address, own, socket.getfqdn()}, everywhere


def is_loopback(address: str) -> bool:
    """Whether only this machine can reach it.

    >>> is_loopback("localhost"), is_loopback("127.0.0.2"), is_loopback("0.0.0.0"), is_loopback("example.org")
    (True, True, False, False)
    """
    if address.casefold() == "localhost":
        return True
    try:
        return ipaddress.ip_address(address).is_loopback
    except ValueError:
        return False


def choose_token(address: str, given: str | None) -> str | None:
    """The token to ask for: the given one, a fresh one beyond loopback, none on it."""
    if given is not None:
        if len(given) < SHORTEST_TOKEN or not given.isascii() or not given.isprintable():
            raise ConfigError(f"a token has at least {SHORTEST_TOKEN} printable characters")
        return given
    return None if is_loopback(address) else secrets.token_urlsafe(24)


def _is_own_page(headers: dict[str, str]) -> bool:
    origin = headers.get("origin")
    if origin is not None:
        try:
            parts = urlsplit(origin)
        except ValueError:
            return False
        if parts.scheme not in ("http", "https") or parts.netloc.casefold() != headers["host"].casefold():
            return False
    # 'none' is the address bar; a link from elsewhere to the page itself is a navigation, which shows it and no more.
    site = headers.get("sec-fetch-site", "same-origin")
    return site in ("same-origin", "none") or headers.get("sec-fetch-mode") == "navigate"


def _is_address(name: str) -> bool:
    try:
        ipaddress.ip_address(name)
    except ValueError:
        return False
    return True


def _bearer(headers: dict[str, str]) -> str:
    scheme, _, given = headers.get("authorization", "").partition(" ")
    return given.strip() if scheme.casefold() == "bearer" else ""


def _count(scope: Any, name: bytes) -> int:
    return sum(key == name for key, _ in scope["headers"])


async def _refuse(send: Any, status: int, sentence: str, headers: Iterable[tuple[bytes, bytes]] = ()) -> None:
    kind = [(b"content-type", b"application/json"), (b"connection", b"close"), *headers]
    await _answer(send, status, as_json({"error": sentence}), kind)


async def _answer(send: Any, status: int, body: bytes, headers: list[tuple[bytes, bytes]]) -> None:
    whole = [*headers, (b"content-length", str(len(body)).encode()), (b"cache-control", b"no-store"), *HEADERS]
    await send({"type": "http.response.start", "status": status, "headers": whole})
    await send({"type": "http.response.body", "body": body})
