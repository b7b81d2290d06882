"""Sends one HTTP request to a webhook and returns the result. The address is a secret: no message and no error contains
it.

Redirects are not followed: a redirect means that the address is wrong, and the content must not reach another host.
Nothing here raises.
"""

from __future__ import annotations

import contextlib
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

MOST_ANSWER_BYTES = 2**16
"""Bytes of an answer that are read. Services return the id of a message within the first few hundred."""
LOOPBACK = ("localhost", "127.0.0.1", "::1")
"""The names by which a machine reaches itself."""

LONGEST_ASKED = 86400.0
"""Seconds that a server may ask to wait."""


@dataclass(frozen=True, slots=True)
class Sending:
    """An outgoing request. Its `repr` shows neither the address nor the headers: both may hold secrets."""

    url: str = field(repr=False)
    body: bytes = field(repr=False)
    headers: Mapping[str, str] = field(default_factory=dict, repr=False)
    method: str = "POST"


@dataclass(frozen=True, slots=True)
class Reply:
    """The result of a request."""

    status: int = 0
    """The HTTP status; 0 if there was no answer."""
    problem: str = ""
    """What went wrong, without the address; empty: the request was accepted."""
    may_help: bool = False
    """Whether a retry may succeed."""
    is_doubtful: bool = False
    """Whether the server may still have received the request: the connection was made, but no answer arrived."""
    retry_after: float | None = None
    """Seconds the server asks to wait."""
    body: bytes = field(default=b"", repr=False)


def send(sending: Sending, timeout: float) -> Reply:
    """Send once."""
    # Imported here: a run without notifications must not load sockets in its write path.
    from http.client import HTTPException, InvalidURL
    from urllib.error import HTTPError, URLError
    from urllib.request import HTTPRedirectHandler, Request, build_opener

    class Stay(HTTPRedirectHandler):
        def redirect_request(self, *_: Any) -> None:
            return None

    late = Reply(problem=f"no answer within {timeout:g} s", may_help=True, is_doubtful=True)
    headers = {"User-Agent": "rlvitals", **sending.headers}
    try:
        # S310: the settings accept only http and https.
        request = Request(sending.url, data=sending.body, headers=headers, method=sending.method)  # noqa: S310
        with build_opener(Stay).open(request, timeout=timeout) as answer:
            return Reply(answer.status, body=answer.read(MOST_ANSWER_BYTES))
    except HTTPError as error:
        with error:
            body = b""
            with contextlib.suppress(OSError, HTTPException):
                body = error.read(MOST_ANSWER_BYTES)
            wait = retry_after(error.headers.get("Retry-After"))
            return Reply(error.code, f"HTTP {error.code}", may_pass(error.code), retry_after=wait, body=body)
    except URLError as error:
        reason = error.reason
        if isinstance(reason, TimeoutError):
            return late
        # Never str(error): some errors quote the address.
        problem = reason.strerror if isinstance(reason, OSError) and reason.strerror else type(reason).__name__
        return Reply(problem=problem, may_help=True, is_doubtful=isinstance(reason, ConnectionResetError))
    except TimeoutError:
        return late
    except (InvalidURL, ValueError, OverflowError) as error:
        return Reply(problem=type(error).__name__)
    except (OSError, HTTPException) as error:
        return Reply(problem=type(error).__name__, may_help=True, is_doubtful=True)


def may_pass(status: int) -> bool:
    """Whether a request that a server refused with this status may be accepted later.

    >>> may_pass(503), may_pass(429), may_pass(501), may_pass(404)
    (True, True, False, False)
    """
    return status in (408, 425, 429) or (status >= 500 and status not in (501, 505))


def retry_after(header: str | None) -> float | None:
    """The seconds that a `Retry-After` header asks to wait: a number, or a date, at most a day.

    >>> retry_after("2"), retry_after("soon"), retry_after("Wed, 21 Oct 2015 07:28:00 GMT")
    (2.0, None, 0.0)
    """
    if not header:
        return None
    with contextlib.suppress(ValueError):
        seconds = float(header)
        return seconds if 0 <= seconds <= LONGEST_ASKED else None
    from email.utils import parsedate_to_datetime
    from time import time

    with contextlib.suppress(ValueError, TypeError, OverflowError):
        return min(max(0.0, parsedate_to_datetime(header).timestamp() - time()), LONGEST_ASKED)
    return None
