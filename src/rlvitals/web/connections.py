"""A browser's connection: what a stranger may send, how long it may take, and how many may be open.

uvicorn reads heads of any size for any time, and its limit of connections refuses whoever comes next, which is the
browser. Here a head is checked before it is parsed (the parser needs 15 seconds for 64 KiB of spaces before a bad
character), a request has no body but at a door that takes one, and when all places are taken, the connection that
waits is closed for the new one.
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
"""Spaces in a row."""

HEAD_SECONDS = 10.0
"""From connecting to the end of the first head. Later ones have the time that uvicorn keeps a connection."""

SEND_SECONDS = 20.0
"""In so long, a browser that was sent more than it takes at once must take SLOWEST_BYTES of it."""

SLOWEST_BYTES = 16 * 1024

MOST_CONNECTIONS = 256
"""At a time; fewer where the process may not open four times as many files."""

TURN = 16
"""Connections taken in one turn of the loop; those of a few turns come on top of MOST_CONNECTIONS."""

QUEUE = 1024
"""Connections that wait to be taken, at the operating system's expense."""

LINGER_SECONDS, LINGER_BYTES = 1.0, 2**20
"""A browser reads a refusal only when it has sent its request: so long, and so much of it, is waited for."""

NO_KEY = "pushing needs the server's token for pushes"
NO_REQUEST = "this is not an HTTP request; the server speaks http:// and not https://"

_BLANK_LINE = re.compile(rb"\n\r?\n")
_CONTROL = re.compile(rb"[\x00-\x08\x0b\x0c\x0e-\x1f\x7f]")
_GAP = re.compile(rb"[ \t]{%d}" % LONGEST_GAP)
_BODY = re.compile(rb"\n(?:transfer-encoding[ \t]*:|content-length[ \t]*:(?![ \t]*0+[ \t]*\r?\n))", re.IGNORECASE)
_BEARER = re.compile(rb"\nauthorization:[ \t]*bearer[ \t]+(\S+)[ \t]*\r?\n", re.IGNORECASE)
_LENGTHS = re.compile(rb"\n(?:transfer-encoding|content-length)[ \t]*:", re.IGNORECASE)
_LENGTH = re.compile(rb"\ncontent-length:[ \t]*(\d{1,9})[ \t]*\r?\n", re.IGNORECASE)


def fault_of(head: bytes, doors: Mapping[bytes, int] | None = None) -> tuple[int, str] | None:
    r"""The status and the sentence by which a head is refused; None where the parser may have it. `doors` take bodies:
    paths that may be posted to, each with the most bytes.

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
    r"""The bytes that follow a head; None where it does not state them in exactly one way.

    >>> body_length(b"POST / HTTP/1.1\r\nContent-Length: 5\r\n\r\n"), body_length(b"GET / HTTP/1.1\r\n\r\n")
    (5, 0)
    """
    said = len(_LENGTHS.findall(head))
    if said == 0:
        return 0
    found = _LENGTH.findall(head)
    return int(found[0]) if said == len(found) == 1 else None


def _door(head: bytes, doors: Mapping[bytes, int]) -> int | None:
    """The most bytes of a body at the address a head asks for; None where it takes none."""
    return doors.get(_address(head)) if head.startswith(b"POST ") else None


def _address(head: bytes) -> bytes:
    return head.partition(b" ")[2].partition(b" ")[0]


class Connection(H11Protocol):
    """uvicorn's connection by its parser in Python, which is installed with it; another one may happen to be."""

    doors: ClassVar[Mapping[bytes, int]] = {}
    """The addresses that take a body, each with its most bytes."""
    keys: ClassVar[Mapping[bytes, bytes]] = {}
    """Of these, the ones that take it from who has a token: a stranger's body is not waited for."""

    def __init__(self, *arguments: Any, **named: Any) -> None:
        super().__init__(*arguments, **named)
        self.waits_since = 0.0
        """When its last answer was complete, or it was opened."""
        self._received = bytearray()
        """What is not handed on yet: a head up to here, or what came during an answer."""
        self._searched = 0
        """How far no head ends."""
        self._awaited = 0
        """Bytes of a head that was checked and of its body, while they are not all there."""
        self._refused_bytes: int | None = None
        """Bytes that came after the refusal; None while nothing was refused."""
        self._unsent_bytes = 0
        self._deadline: asyncio.TimerHandle | None = None
        """Closes it, unless its first head is whole by then."""
        self._reading: asyncio.TimerHandle | None = None
        """Looks whether an answer is being read."""

    @property
    def is_answering(self) -> bool:
        """Whether a question is being answered or a stream is open."""
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
        """Called by uvicorn for what the parser does not take."""
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
        """Hand on the next head with its body if they are whole, and nothing behind it: that is for after the answer.
        A body has the time of its head.
        """
        if not self._awaited:  # checked once, however many pieces a body comes in
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
        """Close the connection that waited longest, of those whose machine has the most: nobody can crowd out others.

        Where every one is being answered, the new one is asked to come back.
        """
        others: list[Connection] = [other for other in self.connections if other is not self]  # type: ignore[misc]
        waiting = [other for other in others if not other.is_answering]
        if not waiting:
            self._refuse(503, f"all {len(others)} connections are in use; ask again in a moment")
            return
        counts = Counter(other.client and other.client[0] for other in others)
        chosen = min(waiting, key=lambda other: (-counts[other.client and other.client[0]], other.waits_since))
        self.connections.discard(chosen)  # it is gone in the loop's next turn; others come in this one
        chosen.transport.abort()

    def _expect_progress(self) -> None:
        left = self.transport.get_write_buffer_size()
        if self._unsent_bytes - left < SLOWEST_BYTES:
            self.transport.abort()
            return
        self._unsent_bytes = left
        self._reading = self.loop.call_later(SEND_SECONDS, self._expect_progress)


def most_connections() -> int:
    """How many may be open: a quarter of the files this process may open, because the runs need some too."""
    try:
        import resource
    except ImportError:  # Windows
        return MOST_CONNECTIONS
    files, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    return MOST_CONNECTIONS if files == resource.RLIM_INFINITY else min(MOST_CONNECTIONS, files // 4)


def _cancel(timer: asyncio.TimerHandle | None) -> None:
    if timer is not None:
        timer.cancel()
