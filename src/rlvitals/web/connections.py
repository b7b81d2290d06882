"""A browser's connection: limits on the size of requests, on their duration, and on the number of connections.

uvicorn reads heads of any size for any time. At its limit of connections it refuses new ones, such as the user's
browser. `Connection` checks a head before it is parsed, because the parser needs 15 seconds for 64 KiB of spaces before
a bad character. It accepts a body only at the addresses in `doors`. When all connections are in use, it closes an idle
one for the new one.
"""

from __future__ import annotations

import asyncio
import hmac
import re
import time
from collections import Counter
from collections.abc import Mapping
from http import HTTPStatus
from typing import Any, ClassVar

from uvicorn.protocols.http.h11_impl import H11Protocol

from rlvitals.web.answers import as_json
from rlvitals.web.guard import HEADERS

LONGEST_HEAD = 64 * 1024
"""Bytes of a request's first line and headers together."""

MOST_LINES = 128
"""Lines of a head: a browser sends about 20."""

LONGEST_GAP = 256
"""Maximum number of consecutive spaces."""

HEAD_SECONDS = 10.0
"""Seconds from connecting to the end of the first head. For later heads, uvicorn's keep-alive timeout applies."""

SEND_SECONDS = 20.0
"""If a response does not fit in the buffers, the browser must read SLOWEST_BYTES of it in each period of this many
seconds.
"""

SLOWEST_BYTES = 16 * 1024

MOST_CONNECTIONS = 256
"""Maximum number of open connections. It is lower if the process may not open four times as many files."""

TURN = 16
"""Connections accepted in one iteration of the event loop. Those of a few iterations may exceed MOST_CONNECTIONS."""

QUEUE = 1024
"""Connections that the operating system queues until they are accepted."""

LINGER_SECONDS, LINGER_BYTES = 1.0, 2**20
"""A browser reads a refusal only after it has sent its request. The server waits this long, and for this many bytes."""

NO_KEY = "pushing needs the server's token for pushes"
NO_REQUEST = "this is not an HTTP request; the server uses http:// and not https://"

_BLANK_LINE = re.compile(rb"\n\r?\n")
_CONTROL = re.compile(rb"[\x00-\x08\x0b\x0c\x0e-\x1f\x7f]")
_GAP = re.compile(rb"[ \t]{%d}" % LONGEST_GAP)
_BODY = re.compile(rb"\n(?:transfer-encoding[ \t]*:|content-length[ \t]*:(?![ \t]*0+[ \t]*\r?\n))", re.IGNORECASE)
_BEARER = re.compile(rb"\nauthorization:[ \t]*bearer[ \t]+(\S+)[ \t]*\r?\n", re.IGNORECASE)
_LENGTHS = re.compile(rb"\n(?:transfer-encoding|content-length)[ \t]*:", re.IGNORECASE)
_LENGTH = re.compile(rb"\ncontent-length:[ \t]*(\d{1,9})[ \t]*\r?\n", re.IGNORECASE)


def fault_of(head: bytes, doors: Mapping[bytes, int] | None = None) -> tuple[int, str] | None:
    r"""The status and the message with which a head is refused, or None if it is passed to the parser. `doors` are the
    paths that accept a body, each with its maximum size in bytes.

    >>> fault_of(b"POST / HTTP/1.1\r\ncontent-length: 5\r\n\r\n")
    (413, 'nothing here takes a body')
    >>> fault_of(b"GET / HTTP/1.1\r\ncontent-length: 0\r\n\r\n")
    >>> fault_of(b"POST /api/marks HTTP/1.1\r\ncontent-length: 50\r\n\r\n", {b"/api/marks": 40})
    (413, 'a body here has at most 40 bytes')
    """
    if len(head) > LONGEST_HEAD:
        return 431, f"the request's address and headers are longer than {LONGEST_HEAD:,} bytes"
    if head.count(b"\n") > MOST_LINES:
        return 431, f"the request has more than {MOST_LINES} header lines"
    if _GAP.search(head):
        return 400, f"the request has {LONGEST_GAP} spaces in a row"
    if _BODY.search(head):
        most = _door(head, doors or {})
        if most is None:
            return 413, "nothing here takes a body"
        length = body_length(head)
        if length is None:
            return 413, "a body needs one Content-Length, and no other encoding"
        if length > most:
            return 413, f"a body here has at most {most:,} bytes"
    return None


def body_length(head: bytes) -> int | None:
    r"""The number of bytes after a head, or None if the head does not state it exactly once.

    >>> body_length(b"POST / HTTP/1.1\r\nContent-Length: 5\r\n\r\n"), body_length(b"GET / HTTP/1.1\r\n\r\n")
    (5, 0)
    """
    count = len(_LENGTHS.findall(head))
    if count == 0:
        return 0
    found = _LENGTH.findall(head)
    return int(found[0]) if count == len(found) == 1 else None


def _door(head: bytes, doors: Mapping[bytes, int]) -> int | None:
    """The maximum body size at the address in a head; None if the address accepts no body."""
    return doors.get(_address(head)) if head.startswith(b"POST ") else None


def _address(head: bytes) -> bytes:
    return head.partition(b" ")[2].partition(b" ")[0]


class Connection(H11Protocol):
    """uvicorn's connection with the pure-Python h11 parser. h11 is always installed with uvicorn; other parsers may not
    be.
    """

    doors: ClassVar[Mapping[bytes, int]] = {}
    """The addresses that accept a body, each with its maximum size in bytes."""
    keys: ClassVar[Mapping[bytes, bytes]] = {}
    """Addresses that require a token. A request without the right token is refused before its body is read."""

    def __init__(self, *arguments: Any, **named: Any) -> None:
        super().__init__(*arguments, **named)
        self.waits_since = 0.0
        """When the last response was complete, or when the connection was opened."""
        self._received = bytearray()
        """Bytes not yet passed to the parser: an incomplete head, or bytes that arrived during a response."""
        self._searched = 0
        """The position up to which no end of a head was found."""
        self._awaited = 0
        """Size of a checked head and its body while they are incomplete; otherwise 0."""
        self._refused_bytes: int | None = None
        """Bytes received after the refusal; None if nothing was refused."""
        self._unsent_bytes = 0
        self._deadline: asyncio.TimerHandle | None = None
        """Closes the connection unless its first head is complete in time."""
        self._reading: asyncio.TimerHandle | None = None
        """Checks whether the browser is reading the response."""

    @property
    def is_answering(self) -> bool:
        """Whether a request is being answered or a stream is open."""
        return self.cycle is not None and not self.cycle.response_complete

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        super().connection_made(transport)
        self.waits_since = time.monotonic()
        self._deadline = self.loop.call_later(HEAD_SECONDS, transport.abort)
        if len(self.connections) > most_connections():
            self._make_room()

    def connection_lost(self, exc: Exception | None) -> None:
        _cancel(self._deadline)
        _cancel(self._reading)
        super().connection_lost(exc)

    def data_received(self, data: bytes) -> None:
        if self._refused_bytes is not None:
            self._refused_bytes += len(data)
            if self._refused_bytes > LINGER_BYTES:
                self.transport.abort()
            return
        self._received += data
        if self.is_answering:
            if len(self._received) > LONGEST_HEAD:
                self.transport.abort()
        elif _CONTROL.search(data):
            self._refuse(400, NO_REQUEST)
        else:
            self._take_head()

    def on_response_complete(self) -> None:
        self.waits_since = time.monotonic()
        super().on_response_complete()
        if not self.transport.is_closing():
            self._take_head()

    def send_400_response(self, msg: str) -> None:
        """Called by uvicorn when the parser rejects a request."""
        if self.is_answering:
            self.transport.abort()
        else:
            self._refuse(400, NO_REQUEST)

    def pause_writing(self) -> None:
        super().pause_writing()
        self._unsent_bytes = self.transport.get_write_buffer_size()
        self._reading = self.loop.call_later(SEND_SECONDS, self._expect_progress)

    def resume_writing(self) -> None:
        super().resume_writing()
        _cancel(self._reading)

    def _take_head(self) -> None:
        """Pass the next complete head and body to the parser. Bytes after them wait until the response is complete. A
        body must arrive within the time limit of its head.
        """
        if not self._awaited:  # checked once, even if the body arrives in several pieces
            found = _BLANK_LINE.search(self._received, self._searched)
            self._searched = 0 if found else max(0, len(self._received) - 2)
            if found is None and len(self._received) <= LONGEST_HEAD:
                return
            head = bytes(self._received[: found.end() if found else None])
            fault = fault_of(head, self.doors)
            if fault is not None:
                self._refuse(*fault)
                return
            if not self._has_key(head):
                self._refuse(401, NO_KEY)
                return
            self._awaited = len(head) + (body_length(head) or 0)
        if len(self._received) < self._awaited:
            return
        request = bytes(self._received[: self._awaited])
        del self._received[: self._awaited]
        self._awaited = 0
        _cancel(self._deadline)
        super().data_received(request)

    def _has_key(self, head: bytes) -> bool:
        key = self.keys.get(_address(head))
        given = _BEARER.findall(head)
        return key is None or (len(given) == 1 and hmac.compare_digest(given[0], key))

    def _refuse(self, status: int, sentence: str) -> None:
        self._refused_bytes = 0
        self._received.clear()
        body = as_json({"error": sentence})
        lines = [b"HTTP/1.1 %d %s" % (status, HTTPStatus(status).phrase.encode()), b"connection: close"]
        lines += [b"content-type: application/json", b"content-length: %d" % len(body), b"cache-control: no-store"]
        lines += [b"%s: %s" % header for header in HEADERS]
        self.transport.write(b"\r\n".join([*lines, b"", body]))
        if self.transport.can_write_eof():
            self.transport.write_eof()
        _cancel(self._deadline)
        self._deadline = self.loop.call_later(LINGER_SECONDS, self.transport.abort)

    def _make_room(self) -> None:
        """Close the longest-waiting connection of the client with the most connections, so no client can displace
        others.

        If every connection is being answered, the new one is refused and the message asks to try again.
        """
        others: list[Connection] = [other for other in self.connections if other is not self]  # type: ignore[misc]
        waiting = [other for other in others if not other.is_answering]
        if not waiting:
            self._refuse(503, f"all {len(others)} connections are in use; ask again in a moment")
            return
        counts = Counter(other.client and other.client[0] for other in others)
        chosen = min(waiting, key=lambda other: (-counts[other.client and other.client[0]], other.waits_since))
        self.connections.discard(chosen)  # it closes in the loop's next iteration; others may connect in this one
        chosen.transport.abort()

    def _expect_progress(self) -> None:
        left = self.transport.get_write_buffer_size()
        if self._unsent_bytes - left < SLOWEST_BYTES:
            self.transport.abort()
            return
        self._unsent_bytes = left
        self._reading = self.loop.call_later(SEND_SECONDS, self._expect_progress)


def most_connections() -> int:
    """Maximum number of open connections: a quarter of this process's file limit, because runs need files too."""
    try:
        import resource
    except ImportError:  # Windows
        return MOST_CONNECTIONS
    files, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    return MOST_CONNECTIONS if files == resource.RLIM_INFINITY else min(MOST_CONNECTIONS, files // 4)


def _cancel(timer: asyncio.TimerHandle | None) -> None:
    if timer is not None:
        timer.cancel()
