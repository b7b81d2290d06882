"""The dashboard's server: the addresses, the error responses, and the listening process.

The application's only state is caches. Finished and live runs are opened in the same way, and any number of servers may
serve one folder. By default it writes nothing. With editing enabled, it writes marks to one file of the folder; if it
accepts pushes, it writes the pushed runs.
"""

from __future__ import annotations

import asyncio
import mimetypes
import os
import socket
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from rlvitals.codec import parse_shallow
from rlvitals.errors import (
    ConfigError,
    RlvitalsError,
    RunExists,
    RunNotFound,
    needs,
)
from rlvitals.render.prometheus import CONTENT_TYPE
from rlvitals.store.inbox import MOST_PIECE, Inbox, OutOfPlace, QuotaUsed
from rlvitals.terminal import logger
from rlvitals.web.answers import Query, as_json, status_of
from rlvitals.web.api import ANSWERS, change_marks
from rlvitals.web.folder import Folder
from rlvitals.web.guard import PUSH, Guard, choose_token, known_hosts
from rlvitals.web.metrics import MetricsPage
from rlvitals.web.people import People

with needs("the dashboard", "web"):
    import anyio.to_thread
    import uvicorn
    from anyio.to_thread import run_sync
    from starlette.applications import Starlette
    from starlette.requests import Request
    from starlette.responses import FileResponse, Response
    from starlette.routing import Mount, Route
    from starlette.staticfiles import StaticFiles

from rlvitals.web.connections import QUEUE, TURN, Connection
from rlvitals.web.live import Live

STATIC = Path(__file__).parent / "static"
THREADS = 8
"""Maximum number of requests answered at the same time."""

PORT = 8642

MARKS = "/api/marks"
DOORS = {MARKS: 64 * 1024}
"""The paths that accept POST when editing is enabled, each with its maximum body size in bytes."""

MOST_PUSHED = MOST_PIECE * 4 // 3 + 16 * 1024
"""Maximum size of a push request's body: a piece as base64, and its description."""


@dataclass(frozen=True, slots=True)
class Team:
    """Options of a server for several people."""

    people: People | None = None
    """People with their own tokens, instead of one shared token."""
    inbox: Inbox | None = None
    """Where pushed runs are stored; None if pushes are not accepted."""
    push_token: str | None = None
    seen: Callable[[str, Any, int], None] = lambda name, scope, status: None
    """Called for every response."""


def make_app(
    folder: Folder,
    address: str = "127.0.0.1",
    *,
    token: str | None = None,
    allow_hosts: Sequence[str] = (),
    edit: bool = False,
    team: Team | None = None,
    is_ending: Callable[[], bool] = lambda: False,
) -> Guard:
    """The guarded application over a folder. With `edit`, its marks may be changed. Streams end when `is_ending`
    returns True.
    """
    folder.is_editable = edit
    team = team or Team()
    mimetypes.add_type("text/javascript", ".js")  # the system may say text/plain, and browsers refuse such modules
    routes = [
        Route("/", _index),
        *(Route(f"/api/{name}", _endpoint(folder, answer)) for name, answer in ANSWERS.items()),
        Route(MARKS, _changes(folder), methods=["POST"]),
        Route("/api/live", Live(folder, is_ending)),
        Route("/metrics", _scrapes(MetricsPage(folder))),
        *([Route(PUSH, _pushes(team.inbox), methods=["POST"])] if team.inbox else []),
        Mount("/static", _Static(directory=STATIC, check_dir=False)),
    ]
    app = Starlette(routes=routes, lifespan=_few_threads, exception_handlers={404: _nothing, 500: _broken})
    hosts, any_address = known_hosts(address, allow_hosts)
    return Guard(
        app, hosts, any_address=any_address, token=token, doors=_doors(edit, team), people=team.people,
        push_token=team.push_token, seen=team.seen,
    )  # fmt: skip


def _doors(edit: bool, team: Team) -> dict[str, int]:
    """The paths that accept POST, each with its maximum body size in bytes."""
    pushes = {PUSH: MOST_PUSHED} if team.inbox and team.push_token else {}
    return pushes | (DOORS if edit else {})


def serve(
    directory: str | os.PathLike[str],
    address: str = "127.0.0.1",
    port: int = PORT,
    *,
    token: str | None = None,
    allow_hosts: Sequence[str] = (),
    edit: bool = False,
    team: Team | None = None,
    ready: Callable[[str], None] = lambda url: None,
) -> None:
    """Serve a folder until Ctrl-C. `ready` is called with the URL, including the token, when it can be opened."""
    chosen = None if team and team.people else choose_token(address, token)
    server = Server(Folder(directory), address, chosen, allow_hosts, edit=edit, team=team)
    listening = listen(address, port)
    ready(url_of(address, listening.getsockname()[1]) + (f"?token={chosen}" if chosen else ""))
    server.run(sockets=[listening])


def listen(address: str, port: int) -> socket.socket:
    """A socket that accepts connections from now on, before the application is ready to answer them."""
    try:
        family = socket.getaddrinfo(address, port, type=socket.SOCK_STREAM)[0][0]
        return socket.create_server((address, port), family=family, backlog=QUEUE)
    except OSError as error:
        reason = error.strerror or str(error)
        raise ConfigError(f"cannot listen on {address} port {port}: {reason}; --port 0 takes a free port") from error


class GuardedServer(uvicorn.Server):
    """uvicorn's server with a guarded application and our connections. uvicorn waits for open connections when it
    stops, so streams are ended at once.
    """

    def __init__(self, app: Guard, doors: Mapping[str, int], keys: Mapping[bytes, bytes] | None = None) -> None:
        """`doors` are the paths that accept bodies, each with its maximum size. Those in `keys` require the token."""
        taking = {path.encode(): most for path, most in doors.items()}
        connection = type("Connection", (Connection,), {"doors": taking, "keys": keys or {}})
        # No access log: addresses may hold a token. No warnings: any client can cause any number of them.
        # No logging configuration: uvicorn's own closes every handler of the process, and absl's handlers then close
        # their streams. The event loop and the parser are those that are always installed.
        config = uvicorn.Config(
            app, http=connection, loop="asyncio", backlog=TURN, log_level="error", log_config=None, access_log=False,
            server_header=False, proxy_headers=False, lifespan="on", ws="none", timeout_graceful_shutdown=2,
        )  # fmt: skip
        super().__init__(config)

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        await super().startup(sockets)
        for listening in sockets or []:
            listening.listen(QUEUE)  # uvicorn shortened the queue to the connections of one iteration

    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        await super().shutdown(sockets)
        await asyncio.sleep(0)  # lets the cancelled tasks end
        for connection in list(self.server_state.connections):
            connection.transport.abort()
        await asyncio.sleep(0)  # lets connections close before the loop does


class Server(GuardedServer):
    """The dashboard's server."""

    def __init__(
        self,
        folder: Folder,
        address: str,
        token: str | None = None,
        allow_hosts: Sequence[str] = (),
        *,
        edit: bool = False,
        team: Team | None = None,
    ) -> None:
        app = make_app(
            folder, address, token=token, allow_hosts=allow_hosts, edit=edit, team=team,
            is_ending=lambda: self.should_exit,
        )  # fmt: skip
        keys = {PUSH.encode(): team.push_token.encode()} if team and team.push_token else {}
        super().__init__(app, _doors(edit, team or Team()), keys)


def url_of(address: str, port: int) -> str:
    """The address that opens a server."""
    if address in ("0.0.0.0", "::"):  # noqa: S104
        name = socket.gethostname()
    else:
        name = "localhost" if address in ("127.0.0.1", "::1") else address
    return f"http://[{name}]:{port}/" if ":" in name else f"http://{name}:{port}/"


def _endpoint(folder: Folder, answer: Callable[[Folder, Query], Mapping[str, object]]) -> Callable[[Request], Response]:
    def respond(request: Request) -> Response:
        with folder.turns.answering():
            return _json_or_error(lambda: answer(folder, Query(request.query_params.multi_items())))

    return respond


def _scrapes(metrics: MetricsPage) -> Callable[[Request], Response]:
    def respond(request: Request) -> Response:
        try:
            page = metrics.text(Query(request.query_params.multi_items()))
        except RlvitalsError as error:
            return _error(400, error)
        return Response(page, headers={"content-type": CONTENT_TYPE, "cache-control": "no-store"})

    return respond


def _changes(folder: Folder) -> Callable[[Request], Awaitable[Response]]:
    async def respond(request: Request) -> Response:
        body = await _body(request, DOORS[MARKS])
        if body is None:
            return _error(413, "the body is too large")
        return await run_sync(_json_or_error, lambda: change_marks(folder, body))

    return respond


async def _body(request: Request, most: int) -> bytes | None:
    """A request's body, or None if it is too long. `Connection` checks the length too, but other servers do not."""
    body = bytearray()
    async for part in request.stream():
        body += part
        if len(body) > most:
            return None
    return bytes(body)


def _json_or_error(answer: Callable[[], Mapping[str, object]]) -> Response:
    try:
        return _json(as_json(answer()))
    except RlvitalsError as error:
        return _error(status_of(error), error)
    except OSError as error:  # a file that was removed while it was read
        return _error(503, f"{type(error).__name__}: {error.strerror or 'the run cannot be read right now'}")


def _pushes(inbox: Inbox) -> Callable[[Request], Awaitable[Response]]:
    async def respond(request: Request) -> Response:
        body = await _body(request, MOST_PUSHED)
        if body is None:
            return _error(413, "the body is too large")
        return await run_sync(_taken, inbox, body)

    return respond


def _taken(inbox: Inbox, body: bytes) -> Response:
    try:
        message = parse_shallow(body)
        if not isinstance(message, dict):
            raise ValueError("not an object")
        return _json(as_json(inbox.take(message)))
    except OutOfPlace as error:
        return _json(as_json({"error": str(error), "size": error.size}), 409)
    except RunExists as error:
        return _error(409, error)
    except QuotaUsed as error:
        return _error(413, error)
    except RunNotFound as error:
        return _error(403, error)
    except (RlvitalsError, ValueError) as error:
        return _error(400, error)
    except OSError as error:
        return _error(503, f"the server cannot write: {error.strerror or type(error).__name__}")


def _json(body: bytes, status: int = 200) -> Response:
    return Response(body, status, media_type="application/json", headers={"cache-control": "no-store"})


def _error(status: int, message: object) -> Response:
    return _json(as_json({"error": str(message)}), status)


async def _nothing(request: Request, error: Exception) -> Response:
    return _error(404, "there is nothing at this address")


async def _broken(request: Request, error: Exception) -> Response:
    logger.error("%s failed", request.url.path, exc_info=error)
    return _error(500, f"the server failed to answer this request ({type(error).__name__}); see its log")


async def _index(request: Request) -> Response:
    page = STATIC / "index.html"
    if not page.is_file():
        return _error(404, "the pages are not installed")
    return FileResponse(page, headers={"cache-control": "no-cache"})


class _Static(StaticFiles):
    """Serves the package's static files. A browser checks on each load whether they changed, which is cheap here."""

    def file_response(self, *arguments: Any, **named: Any) -> Response:
        response = super().file_response(*arguments, **named)
        response.headers["cache-control"] = "no-cache"
        return response


@asynccontextmanager
async def _few_threads(app: Starlette) -> AsyncIterator[None]:
    anyio.to_thread.current_default_thread_limiter().total_tokens = THREADS
    yield
