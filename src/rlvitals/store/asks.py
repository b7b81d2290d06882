"""Requests that people put on a live run: `asks/ID.json`, one file each. The run removes a file once it has put the
request on record in its health log; from there on the health log tells what became of it.
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
"""Files that are looked at in one go: whoever fills the folder does not stop the training."""

MAX_BYTES = 10_000
MAX_WORDS = 500
"""Characters kept of who asked and why."""

SETTLED_NS = 2_000_000_000
"""A folder's time of change is remembered once it is so old: a file that came within the same tick of the clock would
not change it."""


@dataclass(frozen=True, slots=True)
class Ask:
    """What somebody asks of the trainer."""

    action: Action
    asked_by: str
    attempt: AttemptNumber
    """The attempt it is meant for: a run that was resumed since does not stop for it."""
    why: str = ""
    checkpoint_step: int | None = None
    """revert: the checkpoint to revert to; None: the newest."""
    factor: float | None = None
    """reduce_lr, revert: what to multiply the learning rate by."""
    id: str = ""
    """The name of its file."""


def put(run_dir: RunDir, ask: Ask) -> str:
    """Put a request on a run; returns its id. Raises OSError where the folder does not take it."""
    name = f"{time.time_ns():020d}-{secrets.token_hex(4)}"
    told = asdict(ask) | {"why": ask.why[:MAX_WORDS], "asked_by": ask.asked_by[:MAX_WORDS], "id": name}
    put_file(run_dir.asks / f"{name}.json", encode({key: value for key, value in told.items() if value is not None}))
    return name


def is_waiting(run_dir: RunDir, name: str) -> bool:
    """Whether the run has not taken it yet."""
    return (run_dir.asks / f"{name}.json").exists()


def withdraw(run_dir: RunDir, name: str) -> bool:
    """Take a request back; False where the run has taken it already."""
    try:
        (run_dir.asks / f"{name}.json").unlink()
    except FileNotFoundError:
        return False
    return True


class Inbox:
    """The requests waiting for one run, as its own process sees them. Looking costs one `stat` while nobody asks."""

    def __init__(self, run_dir: RunDir) -> None:
        self._dir = run_dir
        self._seen: int | None = None

    def waiting(self) -> list[Ask]:
        """The requests that have come, oldest first, each until `remove`. Files that hold none are removed."""
        try:
            changed = os.stat(self._dir.asks).st_mtime_ns
        except OSError:  # nobody has ever asked
            return []
        if changed == self._seen:
            return []
        self._seen = changed if time.time_ns() - changed > SETTLED_NS else None
        asks = {path.stem: _read(path) for path in sorted(self._dir.asks.glob("*.json"))[:MOST_WAITING]}
        for name in [name for name, ask in asks.items() if ask is None]:
            self.remove(name)
        return [ask for ask in asks.values() if ask is not None]

    def remove(self, name: str) -> None:
        """The request is on record."""
        with contextlib.suppress(OSError):
            withdraw(self._dir, name)


def _read(path: Path) -> Ask | None:
    try:
        if path.stat().st_size > MAX_BYTES:
            return None
        return replace(record_of(Ask, read_json(path)), id=path.stem)
    except (OSError, ValueError):
        return None
