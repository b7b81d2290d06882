"""One live writer per run: `run.lock` says who, `heartbeat` says that it lives.

Made with plain file creation, linking and renaming, which also hold on network disks; no file locking. A lock whose
process is known to be dead is taken over at once; one that cannot be checked from here (another host, boot or
container) once its heartbeat is stale.
"""

from __future__ import annotations

import contextlib
import json
import os
import time
from dataclasses import dataclass
from pathlib import Path

from rlvitals.errors import RunLocked
from rlvitals.store.layout import RunDir
from rlvitals.store.process import ProcessId, is_alive, this_process

HEARTBEAT_SECONDS = 10.0
STALE_SECONDS = 60.0


@dataclass(frozen=True, slots=True)
class Holder:
    """Who holds a run, and whether it lives."""

    process: ProcessId
    token: str
    is_live: bool
    silent_for: float
    """Seconds since its last heartbeat."""


class RunLock:
    """The lock this process holds on one run."""

    def __init__(self, run_dir: RunDir) -> None:
        self._dir = run_dir
        self._process = this_process()
        self._token = os.urandom(8).hex()
        self._disk_time = time.time()

    def acquire(self) -> None:
        """Take the lock, or raise RunLocked naming the live writer."""
        for _ in range(20):
            if self._create():
                self.beat()
                return
            holder = read_holder(self._dir, now=self._disk_time)
            if holder is not None and holder.is_live:
                raise RunLocked(_refusal(self._dir, holder, self._process))
            self._remove_dead(holder)
        raise RunLocked(
            f"{self._dir.lock} keeps changing hands; other processes are starting on this run at the same moment"
        )

    def beat(self) -> None:
        """Show that the writer lives. Raises OSError where the directory cannot be written."""
        with open(self._dir.heartbeat, "wb") as file:
            file.write(f"{time.time():.3f}\n".encode())

    def is_ours(self) -> bool:
        """Whether the lock still names this process (someone may have removed it by hand)."""
        holder = read_holder(self._dir)
        return holder is not None and holder.token == self._token

    def release(self) -> None:
        """Give the lock back, if it is still ours."""
        if self.is_ours():
            with contextlib.suppress(OSError):
                self._dir.lock.unlink()

    def restore(self) -> None:
        """Put the files back after the directory was deleted under a live run."""
        if not self._dir.lock.exists():
            self._create()
        self.beat()

    def _create(self) -> bool:
        """Make the lock appear whole, or not at all: link a written file to its name."""
        draft = self._dir.lock.with_name(f"run.lock.{self._token}")
        draft.write_text(
            json.dumps({**self._process.to_dict(), "token": self._token, "since": round(time.time(), 3)}) + "\n"
        )
        # The heartbeat carries the disk's time, which on a network disk need not be this machine's.
        self._disk_time = draft.stat().st_mtime
        try:
            os.link(draft, self._dir.lock)
        except FileExistsError:
            return False
        except OSError:  # no hard links here (some network and Windows disks)
            return self._create_exclusively(draft)
        finally:
            draft.unlink(missing_ok=True)
        return True

    def _create_exclusively(self, draft: Path) -> bool:
        try:
            with open(self._dir.lock, "x", encoding="utf-8") as file:
                file.write(draft.read_text())
        except FileExistsError:
            return False
        return True

    def _remove_dead(self, seen: Holder | None) -> None:
        """Move the dead lock aside. If another process was quicker and the moved one is alive, put it back."""
        aside = self._dir.lock.with_name(f"run.lock.dead.{self._token}")
        try:
            os.rename(self._dir.lock, aside)
        except FileNotFoundError:
            return
        moved = _read(aside)
        if moved is not None and (seen is None or moved[1] != seen.token):
            with contextlib.suppress(OSError):
                os.link(aside, self._dir.lock)
        aside.unlink(missing_ok=True)


def read_holder(run_dir: RunDir, now: float | None = None) -> Holder | None:
    """Who holds the run's lock; None when nobody does or the file says nothing. `now` is the disk's time, if known."""
    read = _read(run_dir.lock)
    if read is None:
        return None
    process, token = read
    silent_for = heartbeat_age(run_dir, now)
    alive = is_alive(process)
    return Holder(process, token, silent_for < STALE_SECONDS if alive is None else alive, silent_for)


def heartbeat_age(run_dir: RunDir, now: float | None = None) -> float:
    """Seconds since the last heartbeat; infinite when there was none."""
    try:
        return max(0.0, (time.time() if now is None else now) - run_dir.heartbeat.stat().st_mtime)
    except OSError:
        return float("inf")


def _read(path: Path) -> tuple[ProcessId, str] | None:
    try:
        raw = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return None
    process = ProcessId.from_dict(raw)
    return None if process is None else (process, str(raw.get("token", "")))


def _refusal(run_dir: RunDir, holder: Holder, own: ProcessId) -> str:
    who = f"pid {holder.process.pid} on host {holder.process.host}"
    if holder.process == own:
        return (
            f"{run_dir.root} is being recorded by this very process ({who}). "
            "Call finish() on the first run before starting it again."
        )
    return (
        f"{run_dir.root} is being recorded by another live process: {who} "
        f"(last heartbeat {holder.silent_for:.0f} s ago). Stop it first, or use another output directory."
    )
