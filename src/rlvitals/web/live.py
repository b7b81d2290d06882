"""`/api/live`: sends new rows, findings and status of a run to open pages, as server-sent events.

The id of an event is the position in the run's files up to which they were read. A browser that reconnects sends it, so
it misses nothing, even if the server was restarted. The server only reads files and does not contact the trainer.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Callable, Mapping
from typing import Any

from anyio.to_thread import run_sync
from starlette.requests import Request
from starlette.responses import Response, StreamingResponse

from rlvitals.contract import NewFindings, NewRows
from rlvitals.errors import RlvitalsError
from rlvitals.views.dumps import DumpTail
from rlvitals.views.raw_logs import RawTail
from rlvitals.views.run_tail import RunTail
from rlvitals.web.answers import Query, as_json, status_of
from rlvitals.web.folder import Folder
from rlvitals.web.guard import MAY_LOOK

LOOK_SECONDS = 0.2
"""Seconds between two checks of the files."""

ROWS_SECONDS = 0.5
"""Minimum number of seconds between two events with rows."""

STATUS_SECONDS = 2.0
QUIET_SECONDS = 15.0
"""Seconds without news after which a keep-alive is sent. It reveals connections that the browser has left."""

MOST_LISTENERS = 64


class Live:
    """The endpoint, and the number of its listeners."""

    def __init__(self, folder: Folder, is_ending: Callable[[], bool]) -> None:
        self._folder = folder
        self._is_ending = is_ending
        self._listeners = 0

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        if self._listeners >= MOST_LISTENERS:
            refusal = _error(
                503, f"{MOST_LISTENERS} pages listen already; this one shows new rows when it is loaded again"
            )
            return await refusal(scope, receive, send)
        self._listeners += 1  # counted before the first await, because many requests may arrive at once
        try:
            await (await self._response(Request(scope, receive)))(scope, receive, send)
        finally:
            self._listeners -= 1

    async def _response(self, request: Request) -> Response:
        query = Query(request.query_params.multi_items())
        try:
            place = request.headers.get("last-event-id") or query.text("place", "") or ""
            tail = await run_sync(self._folder.tail, query.needed("run"), place)
        except RlvitalsError as error:
            return _error(status_of(error), str(error))
        headers = {"cache-control": "no-store", "x-accel-buffering": "no"}
        if request.method == "HEAD":  # has no body to wait for
            return Response(headers=headers, media_type="text/event-stream")
        may_look = request.scope.get(MAY_LOOK, lambda: True)
        is_over = lambda: self._is_ending() or not may_look()  # noqa: E731
        return StreamingResponse(events(tail, is_over), media_type="text/event-stream", headers=headers)


async def events(tail: RunTail | DumpTail | RawTail, is_ending: Callable[[], bool]) -> AsyncIterator[bytes]:
    """The events for a listener, until the server ends or the listener loses access."""
    status = await run_sync(tail.status)
    yield event("status", status, tail.place)
    last_news = looked = last_sent = time.monotonic()
    while not is_ending():
        await asyncio.sleep(LOOK_SECONDS)
        now = time.monotonic()
        if now - last_news >= ROWS_SECONDS:
            added = await run_sync(tail.look)
            if added.rows:
                rows: NewRows = {
                    "step": added.step, "updated": added.updated, "rows": added.rows, "values": added.values,
                }  # fmt: skip
                yield event("rows", rows, tail.place)
                last_news = last_sent = now
            if added.is_news_of_health:
                found: NewFindings = {"findings": added.findings}
                yield event("findings", found, tail.place)
                last_news = last_sent = now
        if now - looked >= STATUS_SECONDS:
            looked = now
            if await run_sync(tail.look_at_dumps):  # an event without rows: screens with rollouts reload them
                news: NewRows = {"step": None, "updated": time.time(), "rows": 0, "values": {}}
                yield event("rows", news, tail.place)
                last_news = last_sent = now
            if (fresh := await run_sync(tail.status)) != status:
                status = fresh
                yield event("status", status, tail.place)
                last_sent = now
        if now - last_sent >= QUIET_SECONDS:
            last_sent = now
            yield b": still here\n\n"


def event(name: str, facts: Mapping[str, object], place: str) -> bytes:
    r"""One event. JSON has no bare line breaks, so the data is always one line.

    >>> event("status", {"status": "running"}, "10-0-0")
    b'id: 10-0-0\nevent: status\ndata: {"status":"running"}\n\n'
    """
    line = b" ".join(as_json(facts).split(b"\n")).strip()
    return b"id: %s\nevent: %s\ndata: %s\n\n" % (place.encode(), name.encode(), line)


def _error(status: int, sentence: str) -> Response:
    return Response(as_json({"error": sentence}), status, media_type="application/json")
