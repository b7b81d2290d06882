"""The dashboard's server: addresses, errors as sentences, and the process that listens.

The application keeps no state but caches: a finished run and a live one open the same way, and any number of servers
may look at one folder.
"""

from __future__ import annotations

import mimetypes
import os
import socket
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

from rlvitals.errors import ConfigError, MissingDependency, RlvitalsError, RunNotFound, RunUnreadable, UnknownMetric
from rlvitals.terminal import logger
from rlvitals.web.answers import Query, as_json
from rlvitals.web.api import ANSWERS
from rlvitals.web.folder import Folder
from rlvitals.web.guard import Guard, choose_token, known_hosts

try:
    import anyio.to_thread
    import uvicorn
    from starlette.applications import Starlette
    from starlette.requests import Request
    from starlette.responses import FileResponse, Response
    from starlette.routing import Mount, Route
    from starlette.staticfiles import StaticFiles
except ImportError as error:
    raise MissingDependency("the dashboard", "web") from error

from rlvitals.web.connections import QUEUE, TURN, Connection
from rlvitals.web.live import Live

STATIC = Path(__file__).parent / "static"
THREADS = 8
"""Questions answered at a time."""

PORT = 8642


def make_app(
    folder: Folder,
    address: str = "127.0.0.1",
    *,
    token: str | None = None,
    allow_hosts: Sequence[str] = (),
    is_ending: Callable[[], bool] = lambda: False,
) -> Guard:
    """The guarded application over a folder. `is_ending` tells those that listen to let go."""
    mimetypes.add_type("text/javascript", ".js")  # a machine's own table may say text/plain, which no module may be
    routes = [
        Route("/", _index),
        *(Route(f"/api/{name}", _endpoint(folder, answer)) for name, answer in ANSWERS.items()),
        Route("/api/live", Live(folder, is_ending)),
        Mount("/static", _Static(directory=STATIC, check_dir=False)),
    ]
    app = Starlette(routes=routes, lifespan=_few_threads, exception_handlers={404: _nothing, 500: _broken})
    hosts, any_address = known_hosts(address, allow_hosts)
    return Guard(app, hosts, any_address=any_address, token=token)


def serve(
    directory: str | os.PathLike[str],
    address: str = "127.0.0.1",
    port: int = PORT,
    *,
    token: str | None = None,
    allow_hosts: Sequence[str] = (),
    ready: Callable[[str], None] = lambda url: None,
) -> None:
    """Serve a folder until Ctrl-C. `ready` is told the address, token included, once it can be opened."""
    chosen = choose_token(address, token)
    server = Server(Folder(directory), address, chosen, allow_hosts)
    listening = listen(address, port)
    ready(_url(address, listening.getsockname()[1]) + (f"?token={chosen}" if chosen else ""))
    server.run(sockets=[listening])


def listen(address: str, port: int) -> socket.socket:
    """A socket that takes connections from now on, before anything is there to answer them."""
    try:
        family = socket.getaddrinfo(address, port, type=socket.SOCK_STREAM)[0][0]
        return socket.create_server((address, port), family=family, backlog=QUEUE)
    except OSError as error:
        said = error.strerror or str(error)
        raise ConfigError(f"cannot listen on {address} port {port}: {said}; --port 0 takes a free port") from error


class Server(uvicorn.Server):
    """uvicorn's, which waits for open connections at its end: those that listen to a run are let go at once."""

    def __init__(self, folder: Folder, address: str, token: str | None = None, allow_hosts: Sequence[str] = ()) -> None:
        app = make_app(folder, address, token=token, allow_hosts=allow_hosts, is_ending=lambda: self.should_exit)
        # No access log: addresses may hold a token. No warnings: anybody can cause them, as many as he likes.
        # The loop and the parser are those that are always there, whatever else is installed.
        config = uvicorn.Config(
            app, http=Connection, loop="asyncio", backlog=TURN, log_level="error", access_log=False,
            server_header=False, proxy_headers=False, lifespan="on", ws="none", timeout_graceful_shutdown=2,
        )  # fmt: skip
        super().__init__(config)

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        await super().startup(sockets)
        for listening in sockets or []:
            listening.listen(QUEUE)  # uvicorn has made it as short as what is taken in one turn


def _url(address: str, port: int) -> str:
    if address in ("0.0.0.0", "::"):  # noqa: S104
        name = socket.gethostname()
    else:
        name = "localhost" if address in ("127.0.0.1", "::1") else address
    return f"http://[{name}]:{port}/" if ":" in name else f"http://{name}:{port}/"


def _endpoint(folder: Folder, answer: Callable[[Folder, Query], Mapping[str, object]]) -> Callable[[Request], Response]:
    def respond(request: Request) -> Response:
        try:
            return _json(as_json(answer(folder, Query(request.query_params.multi_items()))))
        except (RunNotFound, UnknownMetric) as error:
            return _error(404, error)
        except RunUnreadable as error:
            return _error(503, error)
        except RlvitalsError as error:
            return _error(400, error)
        except OSError as error:  # a file that went away between two looks
            return _error(503, f"{type(error).__name__}: {error.strerror or 'the run cannot be read right now'}")

    return respond


def _json(body: bytes, status: int = 200) -> Response:
    return Response(body, status, media_type="application/json", headers={"cache-control": "no-store"})


def _error(status: int, said: object) -> Response:
    return _json(as_json({"error": str(said)}), status)


async def _nothing(request: Request, error: Exception) -> Response:
    return _error(404, "there is nothing at this address")


async def _broken(request: Request, error: Exception) -> Response:
    logger.error("%s failed", request.url.path, exc_info=error)
    return _error(500, f"the server failed on this question ({type(error).__name__}); its log says more")


async def _index(request: Request) -> Response:
    page = STATIC / "index.html"
    if not page.is_file():
        return _error(404, "the pages are not installed")
    return FileResponse(page, headers={"cache-control": "no-cache"})


class _Static(StaticFiles):
    """Files of the package alone; a browser asks each time whether they changed, which costs nothing here."""

    def file_response(self, *arguments: Any, **named: Any) -> Response:
        response = super().file_response(*arguments, **named)
        response.headers["cache-control"] = "no-cache"
        return response


@asynccontextmanager
async def _few_threads(app: Starlette) -> AsyncIterator[None]:
    anyio.to_thread.current_default_thread_limiter().total_tokens = THREADS
    yield
