"""Helpers for the tests of trackers: the rows of a run, the command in a separate process, and a proxy that can fail.

Imported as `from brought import ...`: pytest puts this folder on the path.
"""

from __future__ import annotations

import contextlib
import http.client
import re
import subprocess
import sys
import threading
from collections.abc import Mapping
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

from rlvitals.records import Row
from rlvitals.store.layout import RunDir
from rlvitals.store.reader import read_rows, read_samples


def rows(root: Path, stream: str = "train") -> list[Row]:
    log = RunDir(root).log(stream)  # type: ignore[arg-type]
    return list(read_samples(log) if stream == "system" else read_rows(log))


def points(root: Path, name: str, stream: str = "train") -> list[tuple[int, float, str]]:
    """Step, time and value of each point of a metric. Values are text, so NaN equals NaN."""
    return [
        (row.step, row.timestamp, repr(float(row.numbers[name]))) for row in rows(root, stream) if name in row.numbers
    ]


def folders(folder: Path) -> dict[str, Path]:
    """The imported runs in a folder, by name."""
    from rlvitals.store.cards import read_info

    return {read_info(RunDir(path.parent)).name: path.parent for path in folder.glob("*/run.json")}


def command(*words: object) -> list[str]:
    return [sys.executable, "-m", "rlvitals.cli.main", "import", *map(str, words)]


def imported(environment: Mapping[str, str], *words: object) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        command(*words), env=dict(environment), capture_output=True, text=True, timeout=200, check=False
    )


class _Server(ThreadingHTTPServer):
    daemon_threads = True

    def handle_error(self, request: Any, client_address: Any) -> None:
        pass  # a client that was killed


class Proxy:
    """Forwards requests to a real server. It can answer some with an error status, and hold others."""

    def __init__(self, url: str) -> None:
        target = urlsplit(url)
        self.seen: list[str] = []
        self.faults: dict[str, list[int]] = {}
        """Pattern -> statuses for the next requests whose address or body matches it."""
        self.hold: tuple[str, int] | None = None
        """(pattern, number): hold requests whose address or body matches, from the match with this number on."""
        self.holding, self.released = threading.Event(), threading.Event()
        self._matched = 0
        proxy = self

        class Handler(BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"

            def do_GET(self) -> None:
                body = self.rfile.read(int(self.headers.get("content-length") or 0))
                asked = f"{self.command} {self.path} {body[:2000].decode('utf-8', 'replace')}"
                proxy.seen.append(asked)
                status = next(
                    (left.pop(0) for pattern, left in proxy.faults.items() if left and re.search(pattern, asked)), None
                )
                if status is not None:
                    refusal = b"You are not authenticated." if status == 401 else b"try later"
                    return self.send(status, refusal, {"content-type": "text/plain"})
                proxy.wait_at(asked)
                with contextlib.closing(
                    http.client.HTTPConnection(target.hostname or "", target.port, timeout=60)
                ) as there:
                    sent = {name: value for name, value in self.headers.items() if name.lower() != "host"}
                    there.request(self.command, self.path, body or None, sent)
                    answer = there.getresponse()
                    data, headers = answer.read(), dict(answer.getheaders())
                return self.send(answer.status, data, headers)

            do_POST = do_PUT = do_GET  # noqa: N815

            def send(self, status: int, data: bytes, headers: dict[str, str]) -> None:
                self.send_response(status)
                for name, value in headers.items():
                    if name.lower() not in ("content-length", "transfer-encoding", "connection", "date", "server"):
                        self.send_header(name, value)
                self.send_header("content-length", str(len(data)))
                self.end_headers()
                self.wfile.write(data)

            def log_message(self, *arguments: object) -> None:
                pass

        self._server = _Server(("127.0.0.1", 0), Handler)
        self.url = f"http://127.0.0.1:{self._server.server_port}"
        threading.Thread(target=self._server.serve_forever, daemon=True).start()

    def wait_at(self, request: str) -> None:
        if self.hold is not None and re.search(self.hold[0], request):
            self._matched += 1
            if self._matched >= self.hold[1]:
                self.holding.set()
                self.released.wait(100)

    def count(self, pattern: str) -> int:
        return sum(re.search(pattern, request) is not None for request in self.seen)

    def close(self) -> None:
        self.released.set()
        self._server.shutdown()
        self._server.server_close()
