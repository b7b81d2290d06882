"""Writes one line per response: time, name, method, address, status. Tokens are never written."""

from __future__ import annotations

import contextlib
import sys
import threading
import time
from pathlib import Path
from typing import Any
from urllib.parse import parse_qsl, urlencode

from rlvitals.errors import ConfigError, explained
from rlvitals.terminal import put, visible


class AccessLog:
    """A file that lines are appended to; `-` is standard error."""

    def __init__(self, path: str) -> None:
        self._lock = threading.Lock()
        self._path = None if path == "-" else Path(path).absolute()
        if self._path is not None:
            with explained(f"cannot write the access log {path}", ConfigError):
                self._path.open("a").close()

    def __call__(self, name: str, scope: Any, status: int) -> None:
        query = parse_qsl(scope["query_string"].decode("latin-1"), keep_blank_values=True)
        kept = urlencode([(key, value) for key, value in query if key != "token"])
        address = scope["path"] + (f"?{kept}" if kept else "")
        when = time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime())
        line = visible(f"{when} {name or '-'} {scope['method']} {address} {status}")
        with self._lock:
            if self._path is None:
                put(line, sys.stderr)
                return
            with contextlib.suppress(OSError), self._path.open("a", encoding="utf-8") as file:  # it may be rotated away
                file.write(line + "\n")
