"""Checks every request before it is answered, and adds security headers to every answer.

- `Host` must be a name of this machine. With DNS rebinding, the name of a foreign site resolves to 127.0.0.1, but
  `Host` still holds that site's name.
- `Origin`, and `Sec-Fetch-Site` of a browser, must be those of this page. Requests from other sites are refused.
- If the server listens on more than the loopback address, a token is required. The URL contains it once; afterwards a
  cookie replaces it.
- Only GET and HEAD are accepted. Exceptions are the `doors`: paths to which a page of this server may POST JSON.
- Pushes have a separate token. It is not valid for anything else, and other tokens are not valid for pushes.
"""

from __future__ import annotations

import hmac
import ipaddress
import secrets
import socket
from collections.abc import Callable, Collection, Iterable
from typing import Any
from urllib.parse import parse_qsl, quote, urlencode, urlsplit

from rlvitals.web.answers import as_json
from rlvitals.web.people import OneToken, People, check_token, ticket_of
from rlvitals.webhook import LOOPBACK

LONGEST_ADDRESS = 32 * 1024
"""Maximum number of characters of a path and its query together."""

PUSH = "/push"
"""The path that runs are pushed to."""

MAY_LOOK = "rlvitals.may_look"
"""Key in a request's scope: a function that returns whether the token is still valid. A stream ends when it is not."""

MOST_GIVEN = 4
"""Maximum number of tokens or cookies checked per request."""

PAGE_POLICY = (
    "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self' data:; connect-src 'self'; "
    "base-uri 'none'; form-action 'none'"
)
"""What a page may load, as far as a meta tag can say it."""

POLICY = f"{PAGE_POLICY}; frame-ancestors 'none'"
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

    def __init__(
        self,
        app: Any,
        hosts: Iterable[str],
        *,
        any_address: bool = False,
        token: str | None = None,
        doors: Collection[str] = (),
        people: People | None = None,
        push_token: str | None = None,
        seen: Callable[[str, Any, int], None] = lambda name, scope, status: None,
        how: str = "open the address that 'rlvitals serve' printed",
    ) -> None:
        """`doors` are the paths that accept POST. `people` have their own tokens and replace the single `token`.
        `push_token` is required for pushes. `seen` is called for every answer with a name, the request and the status.
        `how` tells a user without a token how to get one.
        """
        self._how = how
        self._app = app
        self._people = people or (OneToken(token) if token is not None else None)
        self._push_token = push_token
        self._seen = seen
        self._doors = frozenset(doors)
        self._hosts = frozenset(host.casefold() for host in hosts)
        self._any_address = any_address

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        if scope["type"] == "lifespan":
            await self._app(scope, receive, send)
            return None
        if scope["type"] != "http":  # there are no web sockets here
            return await _refuse(send, 404, "there is nothing here")
        headers = {name.decode("latin-1"): value.decode("latin-1") for name, value in scope["headers"]}
        if len(scope["query_string"]) + len(scope.get("raw_path") or b"") > LONGEST_ADDRESS:
            return await _refuse(send, 414, "the address is too long")
        is_written = scope["method"] == "POST" and scope["path"] in self._doors
        if scope["method"] not in ("GET", "HEAD") and not is_written:
            allowed = b"GET, HEAD, POST" if scope["path"] in self._doors else b"GET, HEAD"
            return await _refuse(send, 405, "nothing can be written here: GET only", [(b"allow", allowed)])
        if _count(scope, b"host") != 1 or not self._is_known(headers.get("host", "")):
            text = f"the name {headers.get('host', '')[:80]!r} is not a host name of this server; --allow-host adds one"
            return await _refuse(send, 403, text)
        if not _is_own_page(headers):
            return await _refuse(send, 403, "another site's page may not ask here")
        if is_written and headers.get("sec-fetch-site", "same-origin") != "same-origin":
            return await _refuse(send, 403, "another site's page may not write here")
        if is_written and headers.get("content-type", "").partition(";")[0].strip().casefold() != "application/json":
            return await _refuse(send, 415, "what is written here is application/json")
        if scope["path"] == PUSH and self._push_token is not None:
            if not hmac.compare_digest(_bearer(headers).encode(), self._push_token.encode()):
                return await _refuse(send, 401, "pushing needs the server's token for pushes")
            return await self._pass(scope, receive, send, "push")
        if self._people is None:
            return await self._pass(scope, receive, send, "")
        ticket = next((value for value in self._tickets(headers) if self._people.name_of(value)), None)
        if ticket is not None:
            return await self._pass(scope, receive, send, self._people.name_of(ticket) or "", ticket)
        query = parse_qsl(scope["query_string"].decode("latin-1"), keep_blank_values=True)
        tokens = [value for key, value in query if key == "token"][:MOST_GIVEN]
        given = next((token for token in tokens if self._people.name_of(ticket_of(token))), None)
        if not is_written and given is not None:
            return await self._welcome(scope, send, query, ticket_of(given))
        return await _refuse(send, 401, f"a token is needed: {self._how}")

    async def _pass(self, scope: Any, receive: Any, send: Any, name: str, ticket: str = "") -> None:
        people = self._people
        if people is not None and ticket:
            scope[MAY_LOOK] = lambda: people.name_of(ticket) is not None

        async def with_headers(message: Any) -> None:
            if message["type"] == "http.response.start":
                message["headers"] = [*message.get("headers", []), *HEADERS]
                self._seen(name, scope, message["status"])
            await send(message)

        await self._app(scope, receive, with_headers)

    def _is_known(self, host: str) -> bool:
        name = host_name(host)
        if name is None:
            return False
        return name in self._hosts or (self._any_address and _is_address(name))

    def _tickets(self, headers: dict[str, str]) -> list[str]:
        """The credentials of a request: its cookies, and the token that a program sends."""
        cookie = self._people.cookie if self._people else ""
        bearer = _bearer(headers)
        return [
            *([ticket_of(bearer)] if bearer else []),
            *cookies_named(cookie, headers.get("cookie", ""))[:MOST_GIVEN],
        ]

    async def _welcome(self, scope: Any, send: Any, query: list[tuple[str, str]], ticket: str) -> None:
        """Set a cookie, and redirect to the address without the token, so that it is not in the browser's history."""
        kept = urlencode([(key, value) for key, value in query if key != "token"])
        # A relative address never leads to another site, and is correct behind a proxy that adds a prefix.
        where = "./" + quote(scope["path"].rpartition("/")[2], safe="") + (f"?{kept}" if kept else "")
        name = self._people.cookie if self._people else ""
        cookie = f"{name}={ticket}; HttpOnly; SameSite=Lax; Path=/; Max-Age=2592000"
        headers = [(b"location", where.encode()), (b"set-cookie", cookie.encode())]
        await _answer(send, 303, b"", headers)


def host_name(host: str) -> str | None:
    """The name in a Host header, without its port, or None if it is not valid.

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
    """The values of a cookie in a Cookie header. `http.cookies` is not used: its time is quadratic in the length.

    >>> cookies_named("a", 'b=1; a=2;a="3" ; aa=4; a')
    ['2', '3', '']
    """
    pairs = (part.partition("=") for part in header.split(";"))
    return [value.strip().strip('"') for key, _, value in pairs if key.strip() == name]


def known_hosts(address: str, extra: Iterable[str] = ()) -> tuple[set[str], bool]:
    """The host names of a server, and whether any literal IP address is accepted too (if it listens on all addresses).

    DNS rebinding needs a name, so a literal address is safe.
    """
    names = {*LOOPBACK, *extra}
    if is_loopback(address):
        return names | ({address} if address else set()), False
    own = socket.gethostname()
    everywhere = address in ("0.0.0.0", "::", "")  # noqa: S104
    return names | {address, own, socket.getfqdn()}, everywhere


def is_loopback(address: str) -> bool:
    """Whether only this machine can reach the address.

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
    """The required token: the given one; otherwise none on a loopback address, and a new one on any other."""
    if given is not None:
        return check_token(given)
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
    # 'none' is the address bar. A link from another site is a navigation: it opens the page but cannot read it.
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
