"""Requests that users send to a live run: `asks/ID.json`, one file each. The run writes the request to its health log
and then removes the file. From then on the health log records the outcome.
"""

from __future__ import annotations

import contextlib
import os
import secrets
import time
from dataclasses import asdict, dataclass, replace
from pathlib import Path

from rlvitals.codec import encode
from rlvitals.records import Action, AttemptNumber
from rlvitals.store.fields import record_of
from rlvitals.store.files import put_file, read_json
from rlvitals.store.layout import RunDir

MOST_WAITING = 100
"""Largest number of files read at once, so that a full folder does not stop the training."""

MAX_BYTES = 10_000
MAX_WORDS = 500
"""Characters kept of the requester's name and the reason."""

SETTLED_NS = 2_000_000_000
"""A folder's modification time is cached only when it is this old. A file added within the same clock tick would not
change it."""


@dataclass(frozen=True, slots=True)
class Ask:
    """A user's request to the trainer."""

    action: Action
    asked_by: str
    attempt: AttemptNumber
    """The attempt that the request is for. A run that was resumed since then ignores it."""
    why: str = ""
    checkpoint_step: int | None = None
    """revert: the checkpoint to revert to; None: the newest."""
    factor: float | None = None
    """reduce_lr, revert: what to multiply the learning rate by."""
    id: str = ""
    """The name of its file."""


def put(run_dir: RunDir, ask: Ask) -> str:
    """Send a request to a run; returns its id. Raises OSError if the folder cannot be written."""
    name = f"{time.time_ns():020d}-{secrets.token_hex(4)}"
    fields = asdict(ask) | {"why": ask.why[:MAX_WORDS], "asked_by": ask.asked_by[:MAX_WORDS], "id": name}
    put_file(run_dir.asks / f"{name}.json", encode({key: value for key, value in fields.items() if value is not None}))
    return name


def is_waiting(run_dir: RunDir, name: str) -> bool:
    """Whether the run has not read the request yet."""
    return (run_dir.asks / f"{name}.json").exists()


def withdraw(run_dir: RunDir, name: str) -> bool:
    """Withdraw a request; False if the run has already read it."""
    try:
        (run_dir.asks / f"{name}.json").unlink()
    except FileNotFoundError:
        return False
    return True


class PendingAsks:
    """The waiting requests of one run, as seen by its own process. A check costs one `stat` while there are none."""

    def __init__(self, run_dir: RunDir) -> None:
        self._dir = run_dir
        self._seen: int | None = None

    def waiting(self) -> list[Ask]:
        """The waiting requests, oldest first, each until `remove`. Invalid files are removed."""
        try:
            changed = os.stat(self._dir.asks).st_mtime_ns
        except OSError:  # the folder does not exist: no request was ever sent
            return []
        if changed == self._seen:
            return []
        self._seen = changed if time.time_ns() - changed > SETTLED_NS else None
        asks = {path.stem: _read(path) for path in sorted(self._dir.asks.glob("*.json"))[:MOST_WAITING]}
        for name in [name for name, ask in asks.items() if ask is None]:
            self.remove(name)
        return [ask for ask in asks.values() if ask is not None]

    def remove(self, name: str) -> None:
        """Remove a request that is in the health log."""
        with contextlib.suppress(OSError):
            withdraw(self._dir, name)


def _read(path: Path) -> Ask | None:
    try:
        if path.stat().st_size > MAX_BYTES:
            return None
        return replace(record_of(Ask, read_json(path)), id=path.stem)
    except (OSError, ValueError):
        return None
