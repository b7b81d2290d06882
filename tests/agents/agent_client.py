"""A real MCP client for plain (not async) tests: over a server's standard input and output, or over HTTP."""

from __future__ import annotations

import json
import os
import re
import sys
import threading
from contextlib import contextmanager
from typing import Any

import httpx2
from anyio.from_thread import start_blocking_portal
from mcp import Client
from mcp.client.stdio import StdioServerParameters
from mcp.client.streamable_http import streamable_http_client

from conftest import until
from rlvitals.agents.server import PATH, make_http_server
from rlvitals.web.server import listen

MARKED = re.compile(r"<data (\w+)>(.*?)</data \1>", re.DOTALL)


class Asker:
    """Calls the tools of one server and counts the calls."""

    def __init__(self, portal, client) -> None:
        self._portal, self._client = portal, client
        self.calls = 0
        self.sizes: list[int] = []

    def __call__(self, tool: str, **arguments: Any) -> dict[str, Any]:
        """The structured answer, without the marks around texts from runs."""
        answer = self.whole(tool, **arguments)
        assert not answer.is_error, answer.content[0].text
        return unmarked(answer.structured_content)

    def whole(self, tool: str, **arguments: Any):
        """The complete answer that the client received. Its text must equal the structured content."""
        self.calls += 1
        answer = self._portal.call(self._client.call_tool, tool, arguments)
        assert json.loads(answer.content[0].text) == answer.structured_content
        self.sizes.append(len(answer.content[0].text.encode()))
        return answer

    def tools(self):
        return self._portal.call(self._client.list_tools).tools

    @property
    def instructions(self) -> str:
        return self._client.instructions


def unmarked(value: Any) -> Any:
    """An answer without the marks around texts."""
    if isinstance(value, str):
        return MARKED.sub(r"\2", value)
    if isinstance(value, dict):
        return {unmarked(key): unmarked(item) for key, item in value.items()}
    return [unmarked(item) for item in value] if isinstance(value, list) else value


@contextmanager
def over_stdio(folder, **options):
    """Start the server as a coding agent does."""
    words = ["-m", "rlvitals.cli.main", "mcp", str(folder)]
    server = StdioServerParameters(command=sys.executable, args=words, env=dict(os.environ))
    with start_blocking_portal() as portal, portal.wrap_async_context_manager(Client(server, **options)) as client:
        yield Asker(portal, client)


@contextmanager
def http_server(folder, **options):
    """Run the server of `rlvitals mcp --http` on a free port; yields the port."""
    listening = listen("127.0.0.1", 0)
    server = make_http_server(folder, **options)
    thread = threading.Thread(target=server.run, kwargs={"sockets": [listening]}, daemon=True)
    thread.start()
    assert until(lambda: server.started)
    try:
        yield listening.getsockname()[1]
    finally:
        server.should_exit = True
        thread.join(30)
        listening.close()
        assert not thread.is_alive()


@contextmanager
def over_http(port: int, token: str = "", **options):
    headers = {"Authorization": f"Bearer {token}"} if token else {}
    with (
        start_blocking_portal() as portal,
        portal.wrap_async_context_manager(httpx2.AsyncClient(headers=headers)) as connection,
        portal.wrap_async_context_manager(
            Client(streamable_http_client(f"http://127.0.0.1:{port}{PATH}", http_client=connection), **options)
        ) as client,
    ):
        yield Asker(portal, client)
