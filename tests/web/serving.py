"""A real server on a free port of this machine, and a client that sends exactly the bytes it is given."""

from __future__ import annotations

import json
import socket
import threading
from contextlib import contextmanager
from typing import NamedTuple
from urllib.parse import urlencode

from conftest import until
from rlvitals.web.folder import Folder
from rlvitals.web.server import Server, listen


class Answer(NamedTuple):
    status: int
    headers: dict[str, str]
    body: bytes

    @property
    def facts(self):
        return json.loads(self.body)


class Client:
    """Sends requests to one server; the caller sets every header."""

    def __init__(self, port: int, connections=frozenset()) -> None:
        self.port = port
        self.connections = connections
        """The connections that the server has open now."""

    def get(self, path: str, method: str = "GET", **headers: str) -> Answer:
        fields = {"host": f"localhost:{self.port}"} | {name.replace("_", "-"): value for name, value in headers.items()}
        lines = "".join(f"{name}: {value}\r\n" for name, value in fields.items() if value is not None)
        return self.send(f"{method} {path} HTTP/1.1\r\n{lines}connection: close\r\n\r\n".encode("latin-1"))

    def api(self, address: str, /, **question) -> Answer:
        return self.get(f"/api/{address}?{urlencode(question, doseq=True)}")

    def judged(self, address: str, run: str) -> dict:
        """The answer of `/api/run` or `/api/findings` after the rules have judged the run."""

        def answer():
            facts = self.api(address, run=run).facts
            return None if facts["judging"] else facts

        return until(answer, seconds=120)

    def send(self, request: bytes) -> Answer:
        with socket.create_connection(("127.0.0.1", self.port), timeout=60) as connection:
            connection.sendall(request)
            received = b""
            while part := connection.recv(65536):
                received += part
        return parse(received)

    @contextmanager
    def listen(self, run: str, place: str = "", cookie: str = ""):
        """The lines of `/api/live` as they arrive."""
        request = (
            f"GET /api/live?{urlencode({'run': run})} HTTP/1.1\r\nhost: localhost\r\nlast-event-id: {place}\r\n"
            + (f"cookie: {cookie}\r\nconnection: close\r\n\r\n" if cookie else "\r\n")
        )
        with socket.create_connection(("127.0.0.1", self.port), timeout=30) as connection:
            connection.sendall(request.encode())
            with connection.makefile("rb") as stream:
                while stream.readline().strip():  # the head
                    pass
                yield events(stream)


def events(stream):
    """(event, facts, id) for each server-sent event of a chunked answer."""
    fields = {}
    for line in stream:
        name, colon, value = line.strip().partition(b": ")
        if colon and name:
            fields[name.decode()] = value
        elif fields.keys() >= {"event", "data", "id"} and not line.strip():
            yield fields["event"].decode(), json.loads(fields["data"]), fields["id"].decode()
            fields = {}


def parse(received: bytes) -> Answer:
    head, _, body = received.partition(b"\r\n\r\n")
    first, *lines = head.decode("latin-1").split("\r\n")
    headers = {name.casefold(): value.strip() for name, _, value in (line.partition(":") for line in lines)}
    return Answer(int(first.split()[1]), headers, body)


@contextmanager
def serving(folder, address="127.0.0.1", **options):
    """The server, as `rlvitals serve` makes it."""
    listening = listen("127.0.0.1", 0)
    server = Server(Folder(folder), address, **options)
    thread = threading.Thread(target=server.run, kwargs={"sockets": [listening]}, daemon=True)
    thread.start()
    assert until(lambda: server.started)
    try:
        yield Client(listening.getsockname()[1], server.server_state.connections)
    finally:
        server.should_exit = True
        thread.join(30)
        listening.close()
        assert not thread.is_alive()
