"""Hostile requests to a real server with a token: each is answered or dropped, and a browser gets its answers
meanwhile.
"""

from __future__ import annotations

import contextlib
import resource
import socket
import subprocess
import sys
import time
from typing import NamedTuple
from urllib.parse import urlencode, urlsplit

import pytest
from serving import Client, parse, serving

import rlvitals
from conftest import until
from rlvitals.web import connections, guard, live

pytestmark = pytest.mark.slow

TOKEN = "correct-horse-battery"
HEAD = b"GET /api/runs HTTP/1.1\r\nhost: localhost\r\n"
BROWSER = HEAD + b"authorization: Bearer " + TOKEN.encode() + b"\r\nconnection: close\r\n\r\n"
PATIENCE = 5.0
"""Seconds that a browser waits: far longer than an answer takes, shorter than any request that blocks the server."""

DROPPED = 0


class Hostile(NamedTuple):
    name: str
    request: bytes
    expected: tuple[int, ...]
    """Allowed statuses. DROPPED means closed without an answer."""


def with_headers(*lines: bytes, first: bytes = b"GET /api/runs HTTP/1.1") -> bytes:
    return b"\r\n".join([first, b"host: localhost", *lines, b"", b""])


def hostile_cookies():
    for name, cookie in {
        "backslashes": b'a="' + b"\\" * 60_000,
        "octal escapes": b'a="' + b"\\012" * 15_000 + b'"',
        "quotes": b"a=" + b'"' * 60_000,
        "many": b"; ".join(b"a%d=b" % number for number in range(6_000)),
        "no names": b"=" * 60_000,
        "separators": b";" * 60_000,
        "spaces": b"a" + b" b" * 30_000,
        "the right name": b"; ".join([b"rlvitals_00000000=" + b"0" * 64] * 700),
    }.items():
        yield Hostile(f"cookie of {name}", with_headers(b"cookie: " + cookie), (401,))
    yield Hostile("cookie of 200 KB", with_headers(b"cookie: " + b'a="' + b"\\" * 200_000), (431,))


def hostile_heads():
    yield Hostile("1,000 headers", with_headers(*(b"x-%d: y" % number for number in range(1_000))), (431,))
    yield Hostile("60,000 empty headers", with_headers(*[b"a:"] * 60_000), (431,))
    yield Hostile("a long header name", with_headers(b"x" * 60_000 + b": y"), (401,))
    yield Hostile("a header name longer than a head", with_headers(b"x" * 100_000 + b": y"), (431,))
    yield Hostile("spaces before a bad character", with_headers(b"x:" + b" " * 60_000 + b"\x01"), (400,))
    yield Hostile("spaces before a bad character, folded", with_headers(b"x: y", b" " * 60_000 + b"\x7f"), (400,))
    yield Hostile("tabs", with_headers(b"x:" + b"\t" * 60_000 + b"y"), (400,))
    yield Hostile("folded lines", with_headers(b"x: y", *[b" z"] * 10_000), (431,))
    yield Hostile("a folded content-length", with_headers(b"content-length:", b" 5"), (413,))
    yield Hostile("a null byte in a header", with_headers(b"x: a\0b"), (400,))
    yield Hostile("a null byte in the address", with_headers(first=b"GET /\0 HTTP/1.1"), (400,))
    yield Hostile("bytes that are not a text", with_headers(b"x: \xff\xfe\x80"), (401,))
    yield Hostile("a header without a colon", with_headers(b"nonsense"), (400,))
    yield Hostile("a header without a name", with_headers(b": x"), (400,))
    yield Hostile("a space before the colon", with_headers(b"x : y"), (400,))
    yield Hostile("a bare line feed", HEAD.replace(b"\r\n", b"\n") + b"\n", (401,))
    yield Hostile("a bare carriage return", with_headers(b"x: a\rb"), (400, 401))
    yield Hostile("two hosts", with_headers(b"host: evil.example"), (400, 403))
    yield Hostile("no host", b"GET / HTTP/1.1\r\n\r\n", (400, 403))
    yield Hostile("no host in HTTP/1.0", b"GET / HTTP/1.0\r\n\r\n", (403,))
    yield Hostile("a long host", b"GET / HTTP/1.1\r\nhost: " + b"a." * 30_000 + b"\r\n\r\n", (403,))
    yield Hostile("a host of brackets", b"GET / HTTP/1.1\r\nhost: " + b"[" * 60_000 + b"\r\n\r\n", (403,))
    yield Hostile("a long token", with_headers(b"authorization: Bearer " + b"x" * 60_000), (401,))
    yield Hostile("a long scheme", with_headers(b"authorization: " + b" " * 200 + b"x" * 60_000), (401,))
    yield Hostile("a long origin", with_headers(b"origin: http://" + b"[" * 60_000), (403,))


def hostile_addresses():
    def first(target: bytes, method: bytes = b"GET") -> bytes:
        return with_headers(first=method + b" " + target + b" HTTP/1.1")

    yield Hostile("a long path", first(b"/" + b"a" * 40_000), (414,))
    yield Hostile("a long query", first(b"/?" + b"a=b&" * 10_000), (414,))
    yield Hostile("a query of separators", first(b"/?" + b"&" * 32_000), (401,))
    yield Hostile("a query of tokens", first(b"/?" + b"token=wrong&" * 2_600), (401,))
    yield Hostile("a query of escapes", first(b"/?token=" + b"%41" * 10_000), (401,))
    yield Hostile("an address of megabytes", first(b"/" + b"a" * 3_000_000), (431, DROPPED))
    yield Hostile("another server's address", first(b"http://evil.example/"), (401,))
    yield Hostile("an asterisk", first(b"*", b"OPTIONS"), (405,))
    yield Hostile("a tunnel", first(b"evil.example:443", b"CONNECT"), (405,))
    yield Hostile("a long method", first(b"/", b"A" * 60_000), (405,))
    yield Hostile("bytes that are no address", first(b"/\xff\xfe"), (400,))
    yield Hostile("half an escape", first(b"/%"), (401,))
    yield Hostile("another protocol", b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n", (400, 403, 405))
    yield Hostile("a version that is none", b"GET / HTTP/9.9\r\nhost: localhost\r\n\r\n", (400, 401))
    yield Hostile("no version", b"GET /\r\n\r\n", (400,))
    yield Hostile("no request line", b"\r\n\r\n", (400,))
    yield Hostile("TLS", b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03" + bytes(range(256)), (400,))
    yield Hostile("SSH", b"SSH-2.0-OpenSSH_9.6\r\n\r\n", (400,))
    yield Hostile("null bytes", b"\0" * 100_000, (400,))


def hostile_bodies():
    def post(*lines: bytes, body: bytes = b"", method: bytes = b"POST") -> bytes:
        return with_headers(*lines, first=method + b" / HTTP/1.1") + body

    large = b"x" * 1_000_000
    yield Hostile("a body", post(b"content-length: 1000000", body=large), (413,))
    yield Hostile("a body that never comes", post(b"content-length: 1000000000"), (413,))
    yield Hostile("a body of a GET", post(b"content-length: 5", body=b"hello", method=b"GET"), (413,))
    yield Hostile("chunks", post(b"transfer-encoding: chunked", body=b"ffffff\r\n" + large), (413,))
    yield Hostile("chunks of a GET", post(b"Transfer-Encoding: chunked", body=b"zz\r\n", method=b"GET"), (413,))
    yield Hostile("a negative length", post(b"content-length: -1"), (413,))
    yield Hostile("a length that is none", post(b"content-length: ten"), (413,))
    yield Hostile("a length beyond counting", post(b"content-length: " + b"9" * 5_000), (413,))
    yield Hostile("two lengths", post(b"content-length: 0", b"content-length: 5", body=b"hello"), (413,))
    yield Hostile("a length and chunks", post(b"content-length: 0", b"transfer-encoding: chunked"), (413,))
    yield Hostile("more than it said", post(b"content-length: 0", body=large), (405,))
    yield Hostile("waiting to go on", post(b"expect: 100-continue", b"content-length: 5"), (413,))
    yield Hostile("an upgrade", with_headers(b"connection: upgrade", b"upgrade: websocket"), (401,))


def hostile_halves():
    yield Hostile("nothing", b"", (DROPPED,))
    yield Hostile("half a line", b"GET /api", (DROPPED,))
    yield Hostile("half a head", HEAD, (DROPPED,))
    yield Hostile("half a head of 60 KB", HEAD + b"x: " + b"y" * 60_000, (DROPPED,))
    yield Hostile("a header without end", HEAD + b"x: " + b"y" * 3_000_000, (431, DROPPED))
    yield Hostile("lines without end", HEAD + b"x: y\r\n" * 100_000, (431, DROPPED))


HOSTILE = [
    *hostile_cookies(), *hostile_heads(), *hostile_addresses(), *hostile_bodies(), *hostile_halves(),
]  # fmt: skip


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    root = tmp_path_factory.mktemp("served")
    with rlvitals.start(root / "run", monitor=False, hardware=False, display="none") as run:
        for step in range(1, 11):
            run.log({"loss": 1.0 / step}, step=step)
    return root


@pytest.fixture(scope="module")
def hurried():
    """Shorter time limits."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(connections, "HEAD_SECONDS", 1.0)
        patch.setattr(connections, "SEND_SECONDS", 0.5)
        yield


@pytest.fixture(scope="module")
def client(folder, hurried):
    with serving(folder, "0.0.0.0", token=TOKEN) as served:
        yield served


def connect(client, seconds=PATIENCE):
    return socket.create_connection(("127.0.0.1", client.port), timeout=seconds)


def push(connection, request: bytes) -> None:
    with contextlib.suppress(ConnectionError):  # refused before everything was sent
        connection.sendall(request)


def receive(connection) -> bytes:
    """All bytes until the server closes the connection; a TimeoutError if it does not."""
    received = b""
    with contextlib.suppress(ConnectionError):
        while part := connection.recv(65536):
            received += part
    return received


def browse(client) -> int:
    """The status that a browser gets; a TimeoutError after PATIENCE."""
    with connect(client) as connection:
        connection.sendall(BROWSER)
        received = receive(connection)
    return parse(received).status if received else DROPPED


@pytest.mark.parametrize("hostile", HOSTILE, ids=lambda hostile: hostile.name)
def test_a_hostile_request_is_answered_or_dropped_and_a_browser_beside_it_is_answered(client, hostile):
    with connect(client, 2 * PATIENCE) as connection:
        push(connection, hostile.request)
        assert browse(client) == 200
        received = receive(connection)
    status = parse(received).status if received else DROPPED
    assert status in hostile.expected, received[:200]
    assert b'"runs"' not in received


def test_every_kind_of_hostile_request_gets_the_protecting_headers(client):
    for request in (b"GET\r\n\r\n", with_headers(b"x: " + b"y" * 100_000), with_headers(b"content-length: 5")):
        with connect(client) as connection:
            push(connection, request)
            answer = parse(receive(connection))
        assert {name.decode(): value.decode() for name, value in guard.HEADERS}.items() <= answer.headers.items()
        assert answer.facts["error"]
        assert answer.headers["connection"] == "close"


def test_nobody_can_fill_the_terminal_of_the_server(folder, capfd):
    with serving(folder, "0.0.0.0", token=TOKEN) as client:
        for request in (b"GET\r\n\r\n", b"\x16\x03", with_headers(b"connection: upgrade", b"upgrade: websocket"), HEAD):
            with connect(client) as connection:
                push(connection, request)
                connection.shutdown(socket.SHUT_WR)
                receive(connection)
    assert capfd.readouterr() == ("", "")


def test_requests_on_one_connection_are_answered_in_order(client):
    first = BROWSER.replace(b"connection: close\r\n", b"")
    with connect(client) as connection:
        connection.sendall(first + b"GET /nowhere" + first.removeprefix(b"GET /api/runs") + BROWSER)
        received = receive(connection)
    assert [int(part[:3]) for part in received.split(b"HTTP/1.1 ")[1:]] == [200, 404, 200]


def test_a_head_may_come_in_pieces(client):
    with connect(client) as connection:
        for place in range(len(BROWSER)):
            connection.sendall(BROWSER[place : place + 1])
        assert parse(receive(connection)).status == 200


def test_who_asks_more_and_more_while_the_answer_is_on_its_way_is_dropped(client):
    listen = HEAD.replace(b"/api/runs", b"/api/live?run=run") + b"authorization: Bearer " + TOKEN.encode() + b"\r\n\r\n"
    with connect(client, 2 * PATIENCE) as connection:
        connection.sendall(listen)
        assert connection.recv(12) == b"HTTP/1.1 200"
        push(connection, BROWSER * 1000)
        receive(connection)  # ends
    assert browse(client) == 200


def test_more_half_requests_than_there_are_places_keep_no_browser_out(folder, monkeypatch):
    monkeypatch.setattr(connections, "MOST_CONNECTIONS", 40)
    with serving(folder, "0.0.0.0", token=TOKEN) as client, contextlib.ExitStack() as held:
        half = []
        for _ in range(4 * connections.MOST_CONNECTIONS):
            half.append(held.enter_context(connect(client)))
            push(half[-1], HEAD)
            if len(half) % connections.MOST_CONNECTIONS == 0:
                assert browse(client) == 200
        dropped = [connection for connection in half if is_closed(connection)]
        assert len(half) - len(dropped) <= connections.MOST_CONNECTIONS
        assert dropped == half[: len(dropped)]  # the oldest


def is_closed(connection) -> bool:
    connection.setblocking(False)
    try:
        return connection.recv(1) == b""
    except BlockingIOError:
        return False
    except ConnectionError:
        return True


def test_a_crowd_from_one_machine_costs_another_machine_nothing(folder, monkeypatch):
    """All addresses of 127.0.0.0/8 are local. The server treats two of them as two machines."""
    monkeypatch.setattr(connections, "MOST_CONNECTIONS", 40)
    with serving(folder, "0.0.0.0", token=TOKEN) as client, contextlib.ExitStack() as held:
        quiet = held.enter_context(connect(client))
        push(quiet, HEAD)
        for _ in range(3 * connections.MOST_CONNECTIONS):
            try:
                crowd = socket.create_connection(("127.0.0.1", client.port), PATIENCE, ("127.0.0.2", 0))
            except OSError:
                pytest.skip("this machine has one loopback address")
            push(held.enter_context(crowd), HEAD)
        assert browse(client) == 200
        assert not is_closed(quiet)


def test_streams_in_every_place_leave_the_others_their_answers(folder, monkeypatch):
    monkeypatch.setattr(live, "MOST_LISTENERS", 10)
    listen = b"GET /api/live?run=run HTTP/1.1\r\nhost: localhost\r\n\r\n"
    with serving(folder) as client, contextlib.ExitStack() as held:
        streams = [held.enter_context(connect(client)) for _ in range(25)]
        for stream in streams:  # at once, before the server has handled one
            stream.sendall(listen)
        statuses = [stream.recv(12) for stream in streams]
        assert statuses.count(b"HTTP/1.1 200") == live.MOST_LISTENERS
        assert statuses.count(b"HTTP/1.1 503") == len(streams) - live.MOST_LISTENERS
        assert browse(client) == 200
        held.close()
        assert until(lambda: len(client.connections) == 0)
        with client.listen("run") as events:
            assert next(events)[0] == "status"


def test_the_head_of_a_stream_is_an_answer_that_ends(folder):
    with serving(folder) as client:
        answer = client.get("/api/live?run=run", method="HEAD")
        assert (answer.status, answer.body) == (200, b"")
        assert answer.headers["content-type"].startswith("text/event-stream")


@pytest.fixture(scope="module")
def large_answer(tmp_path_factory):
    """A folder, and a request whose answer is larger than the buffers of a connection."""
    root = tmp_path_factory.mktemp("large")
    names = [f"metric/{number}" for number in range(16)]
    with rlvitals.start(root / "run", monitor=False, hardware=False, display="none") as run:
        for step in range(1, 10_001):
            run.log(dict.fromkeys(names, 1.0 / step), step=step)
    query = urlencode({"run": "run", "points": 10_000, "name": names}, doseq=True)
    return root, f"GET /api/series?{query} HTTP/1.1\r\nhost: localhost\r\nconnection: close\r\n\r\n".encode()


@contextlib.contextmanager
def small_window(client):
    with socket.socket() as connection:
        connection.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
        connection.settimeout(PATIENCE)
        connection.connect(("127.0.0.1", client.port))
        yield connection


def test_an_answer_that_is_not_read_is_given_up(large_answer, hurried):
    folder, ask = large_answer
    with serving(folder) as client:
        whole = client.send(ask)
        with small_window(client) as connection:
            connection.sendall(ask)
            assert until(lambda: len(client.connections) == 1)
            assert until(lambda: not client.connections)
            assert 0 < len(receive(connection)) < len(whole.body)


def test_a_slow_reader_gets_its_answer_whole(large_answer, hurried):
    folder, ask = large_answer
    with serving(folder) as client:
        whole = client.send(ask)
        with small_window(client) as connection:
            connection.sendall(ask)
            received = bytearray()
            began = time.monotonic()
            while part := connection.recv(65536):
                received += part
                slow = 3 * connections.SEND_SECONDS * len(received) / len(whole.body)  # three checks of its progress
                time.sleep(max(0.0, slow - (time.monotonic() - began)))
        assert parse(bytes(received)).body == whole.body


def test_places_leave_files_for_the_runs(monkeypatch):
    for files, places in ((256, 64), (1024, 256), (1_000_000, 256), (resource.RLIM_INFINITY, 256)):
        monkeypatch.setattr(resource, "getrlimit", lambda kind, files=files: (files, files))
        assert connections.most_connections() == places


SCARCE = """
import resource, sys
resource.setrlimit(resource.RLIMIT_NOFILE, (128, 128))
from rlvitals.web.server import serve
serve(sys.argv[1], port=0, token=sys.argv[2], ready=lambda url: print(url, flush=True))
"""


def test_more_connections_than_files_keep_no_browser_out(folder):
    command = [sys.executable, "-c", SCARCE, str(folder), TOKEN]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process, contextlib.ExitStack() as held:
        try:
            client = Client(urlsplit(process.stdout.readline()).port)
            for _ in range(300):
                push(held.enter_context(connect(client)), HEAD)
            assert browse(client) == 200
        finally:
            process.terminate()
