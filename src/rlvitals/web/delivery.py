"""`rlvitals push`: sends a run's files to a server that accepts pushes, while the run is recorded or afterwards.

The server reports where its copy of a log ends, and sending continues there. A piece is therefore written only once,
even if one side was killed in between. Sizes and hashes are compared on every new connection and at the end. If a copy
is not the beginning of the log, the log is sent again. Files that are replaced whole are sent when they have changed.
The identity card is sent after the rows that it counts.
"""

from __future__ import annotations

import base64
import contextlib
import hashlib
import http.client
import os
import socket
import ssl
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

from rlvitals.codec import encode, parse_json
from rlvitals.errors import ConfigError, RunError, RunNotFound
from rlvitals.masking import mask_text
from rlvitals.store.cards import read_info
from rlvitals.store.files import open_regular, read_whole, stamp
from rlvitals.store.inbox import hash_of, run_files
from rlvitals.store.layout import RunDir, is_appended
from rlvitals.store.lock import is_recorded
from rlvitals.webhook import may_pass

PATIENCE = 60.0
"""Seconds without a response after which a push gives up. With `--follow`, it retries while the run is being written.
"""

LOOK_SECONDS = 1.0
ANSWER_SECONDS = 60.0
FIRST_PAUSE, LONGEST_PAUSE = 0.5, 5.0
"""Seconds between two attempts to reach the server."""

LONGEST_ANSWER = 16 * 2**20

FIRST_PIECE, LEAST_PIECE = 128 * 1024, 8 * 1024
"""Bytes sent at a time: more on a fast connection, less after a timeout."""


class Unreachable(Exception):
    """The server does not respond, or reports that it cannot answer now."""


class Disagreement(Exception):
    """The server's copy does not have the expected size."""


@dataclass(slots=True)
class PushServer:
    """The server that the run is pushed to."""

    url: str
    token: str
    shown: str = field(init=False)
    _connection: http.client.HTTPConnection | None = field(default=None, init=False)

    def __post_init__(self) -> None:
        self.shown = mask_text(self.url)
        parts = urlsplit(self.url)
        if parts.scheme not in ("http", "https") or not parts.hostname or parts.query or parts.username:
            raise ConfigError(f"{self.shown} is not an address to push to: http://HOST:PORT or https://HOST")

    def ask(self, message: Mapping[str, Any]) -> dict[str, Any]:
        """Send one message and return the answer. Raises Unreachable, Disagreement or RunError."""
        try:
            status, body = self._exchange(encode(message))
        except (OSError, http.client.HTTPException) as error:
            self.close()
            raise Unreachable(str(error) or type(error).__name__) from error
        try:
            answer = parse_json(body)
        except ValueError:
            answer = None
        answer = answer if isinstance(answer, dict) else {}
        reason = str(answer.get("error", f"status {status}"))[:500]
        if status == 200:
            return answer
        if status == 409 and "size" in answer:
            raise Disagreement(reason)
        if may_pass(status):
            raise Unreachable(reason)
        raise RunError(f"{self.shown} refuses the push: {reason}")

    def close(self) -> None:
        if self._connection is not None:
            self._connection.close()
            self._connection = None

    def _exchange(self, body: bytes) -> tuple[int, bytes]:
        parts = urlsplit(self.url)
        if self._connection is None:
            place = parts.hostname or "", parts.port
            if parts.scheme == "https":
                self._connection = http.client.HTTPSConnection(
                    *place, timeout=ANSWER_SECONDS, context=ssl.create_default_context()
                )
            else:
                self._connection = http.client.HTTPConnection(*place, timeout=ANSWER_SECONDS)
        headers = {"Content-Type": "application/json", "Authorization": f"Bearer {self.token}"}
        self._connection.request("POST", f"{parts.path.rstrip('/')}/push", body, headers)
        answer = self._connection.getresponse()
        content = answer.read(LONGEST_ANSWER)
        if answer.will_close:
            self.close()
        return answer.status, content


@dataclass(slots=True)
class Sent:
    """The files that the server is known to have."""

    sizes: dict[str, int] = field(default_factory=dict)
    """Sizes of the logs."""
    stamps: dict[str, object] = field(default_factory=dict)
    """Stamps of the files that are replaced whole, taken when they were sent."""


@dataclass(slots=True)
class Delivery:
    """Sends one run to one server."""

    run: RunDir
    server: PushServer
    name: str
    progress: Callable[[str], None] = lambda text: None
    bytes_sent: int = 0
    retries: int = 0
    _identity: str = ""
    _piece: int = FIRST_PIECE
    _most_piece: int = FIRST_PIECE

    def send(self, *, follow: bool = False, patience: float = PATIENCE) -> None:
        """Send the run; with `follow`, until it has ended. Raises RunError if the server refuses it or does not answer
        for `patience` seconds.
        """
        if not self.run.holds_run:
            raise RunNotFound(f"there is no run in {self.run.root}")
        self._identity = read_info(self.run).id
        try:
            self._send(follow, patience)
        finally:
            self.server.close()

    def _send(self, follow: bool, patience: float) -> None:
        known: Sent | None = None
        silent_since: float | None = None
        pause = FIRST_PAUSE
        while True:
            is_live = is_recorded(self.run)
            try:
                if known is None:
                    known = self._compare()
                self._send_changes(known)
                silent_since, pause = None, FIRST_PAUSE
                if not (follow and is_live):
                    if self._is_whole():
                        return
                    known = None
                    continue
            except Disagreement as error:
                self.progress(f"asking {self.server.shown} again: {error}")
                known = None
                self.retries += 1
                time.sleep(min(pause, 0.05 * self.retries))
                continue
            except Unreachable as error:
                known = None
                self._piece = max(LEAST_PIECE, self._piece // 4)
                self.retries += 1
                now = time.monotonic()
                silent_since = silent_since or now
                if now - silent_since > patience and not (follow and is_live):
                    raise RunError(
                        f"{self.server.shown} has not answered for {patience:.0f} s: {error}. What was sent is kept; "
                        "run the same command again to continue"
                    ) from error
                self.progress(f"{self.server.shown} does not answer ({error}); trying again")
                time.sleep(pause)
                pause = min(LONGEST_PAUSE, pause * 2)
                continue
            time.sleep(LOOK_SECONDS)

    def _ask(self, what: str, **further: Any) -> dict[str, Any]:
        return self.server.ask({"run": self.name, "id": self._identity, "what": what, **further})

    def _compare(self) -> Sent:
        """Return which files of the server's copy are correct."""
        state = self._ask("state")
        self._most_piece = _count(state.get("piece"), FIRST_PIECE)
        files = state.get("files")
        known = Sent()
        for name, facts in (files if isinstance(files, dict) else {}).items():
            path = self.run.root / name
            with contextlib.suppress(OSError):
                size, digest = _count(facts.get("size"), -1), facts.get("sha256")
                if is_appended(name):
                    fits = size <= path.stat().st_size and hash_of(path, size) == (size, digest)
                    known.sizes[name] = size if fits else -1
                elif hash_of(path) == (size, digest):
                    known.stamps[name] = stamp(path)
        return known

    def _send_changes(self, known: Sent) -> None:
        """One round. The identity card is sent after the logs, so that a card that says that the run has ended comes
        after all rows. The first time it is also sent before them: without a card, they would be read as the rows of
        another recorder.
        """
        card = self.run.info.name
        if card not in known.stamps:
            self._send_whole(card, known)
        before = stamp(self.run.info)
        names = [name for name in run_files(self.run.root) if name != card]
        for name in sorted(names, key=lambda name: (is_appended(name), name)):
            self._send_log(name, known) if is_appended(name) else self._send_whole(name, known)
        if before == stamp(self.run.info):
            self._send_whole(card, known)
        for name in [name for name in (*known.sizes, *known.stamps) if name != card and name not in names]:
            if not os.path.lexists(self.run.root / name):  # such as a released lock or a compacted log
                self._ask("remove", file=name)
                known.sizes.pop(name, None)
                known.stamps.pop(name, None)

    def _send_log(self, name: str, known: Sent) -> None:
        path = self.run.root / name
        sent = known.sizes.get(name, 0)
        try:
            with open_regular(path) as file:
                size = file.seek(0, 2)
                if sent < 0 or size < sent:  # the copy differs, or the log was cut
                    sent = _count(self._ask("append", file=name, offset=0, cut=True, data="").get("size"), 0)
                if sent == size and name not in known.sizes and size == 0:
                    self._ask("append", file=name, offset=0, data="")
                while sent < size:
                    file.seek(sent)
                    data = file.read(min(self._piece, size - sent))
                    if not data:
                        break
                    answer = self._ask("append", file=name, offset=sent, data=base64.b64encode(data).decode())
                    sent = _count(answer.get("size"), sent + len(data))
                    self.bytes_sent += len(data)
                    self._piece = max(LEAST_PIECE, min(self._piece * 2, self._most_piece))
                    known.sizes[name] = sent
                    self.progress(f"{self.name}: {name} {sent:,} of {size:,} bytes")
                known.sizes[name] = sent
        except FileNotFoundError:
            return

    def _send_whole(self, name: str, known: Sent) -> None:
        path = self.run.root / name
        now = stamp(path)
        if now is None or known.stamps.get(name) == now:
            return
        try:
            data = read_whole(path)
        except FileNotFoundError:
            return
        digest = _sha256(data)
        for offset, piece, is_last in _pieces(data, self._piece):
            mark = {"sha256": digest} if is_last else {}
            self._ask("put", file=name, offset=offset, data=base64.b64encode(piece).decode(), **mark)
        self.bytes_sent += len(data)
        known.stamps[name] = now

    def _is_whole(self) -> bool:
        """Whether the server's copy equals this run byte by byte."""
        files = self._ask("state").get("files")
        there = files if isinstance(files, dict) else {}
        for name in {*there, *run_files(self.run.root)}:
            facts = there.get(name, {})
            try:
                if hash_of(self.run.root / name) != (facts.get("size"), facts.get("sha256")):
                    return False
            except FileNotFoundError:
                if name in there:
                    self._ask("remove", file=name)
        return True


def _pieces(data: bytes, size: int) -> Iterator[tuple[int, bytes, bool]]:
    for offset in range(0, max(1, len(data)), size):
        yield offset, data[offset : offset + size], offset + size >= len(data)


def _sha256(data: bytes) -> str:
    return hashlib.sha256(data).hexdigest()


def _count(value: Any, default: int) -> int:
    return value if type(value) is int and value >= 0 else default


def default_name(run: Path) -> str:
    """The default name of a run on the server."""
    name = "".join(letter if letter.isalnum() or letter in "_.+=@-" else "-" for letter in run.resolve().name)
    return name.lstrip(".+=@-")[:100] or f"run-{socket.gethostname()[:40]}"
