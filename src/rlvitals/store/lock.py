"""One live writer per run: `run.lock` names the process, and `heartbeat` shows that it is alive.

The lock uses file creation, hard links and renames, which also work on network disks. It does not use file locking. A
lock whose process is known to be dead is taken over at once. If the process cannot be checked from here (another host,
boot or container), the lock is taken over when its heartbeat is stale.

To take over, a process creates `run.lock.after.TOKEN`, a claim named after the dead lock. Only one process can create
it. That process replaces the dead lock with its own and then removes the claim. A late process that creates the claim
again finds a lock with another token and starts over. If the process that made a claim is dead, its claim is taken over
in the same way.
"""

from __future__ import annotations

import contextlib
import json
import os
import re
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

from rlvitals.errors import RunLocked
from rlvitals.records import RunInfo, Status, Time
from rlvitals.store.fields import record_of
from rlvitals.store.files import open_descriptor, read_json
from rlvitals.store.process import ProcessId, is_alive, this_process

HEARTBEAT_SECONDS = 10.0
STALE_SECONDS = 60.0
UNREADABLE_SECONDS = 0.5
_TOKEN = re.compile(r"[\w.-]{1,100}")
"""The token becomes part of a file name."""


@dataclass(frozen=True, slots=True)
class Holder:
    """The process that holds a lock, and whether it is alive."""

    process: ProcessId
    token: str
    is_live: bool
    silent_for: float
    """Seconds since its last sign of life."""
    since: float = 0.0
    """When it took the lock, by its own clock."""


@dataclass(frozen=True, slots=True)
class _LockFields:
    """The fields of a lock file besides the process."""

    token: str
    since: Time = 0.0


class LockPlace(Protocol):
    """A place that can be locked: a run's directory or a tracker's cursor."""

    @property
    def root(self) -> Path: ...
    @property
    def lock(self) -> Path: ...
    @property
    def heartbeat(self) -> Path: ...


class RunLock:
    """The lock this process holds on one run, or on one tracker's cursor."""

    def __init__(self, run_dir: LockPlace) -> None:
        self._dir = run_dir
        self._process = this_process()
        self._token = os.urandom(8).hex()

    @property
    def _draft(self) -> Path:
        return self._dir.lock.with_name(f"{self._dir.lock.name}.draft.{self._token}")

    def acquire(self) -> None:
        """Take the lock, or raise RunLocked naming the live writer."""
        try:
            for _ in range(50):
                if self._create(self._dir.lock):
                    return self._begin()
                # The heartbeat carries the disk's time, which on a network disk need not be this machine's.
                now = self._draft.stat().st_mtime
                holder = read_holder(self._dir, now)
                if holder is not None and holder.is_live:
                    raise RunLocked(_refusal(self._dir, holder, self._process))
                if holder is None:
                    self._remove_unreadable()
                elif self._succeed(holder, now):
                    return self._begin()
        finally:
            self._draft.unlink(missing_ok=True)
        raise RunLocked(f"{self._dir.lock} keeps changing: other processes are starting this run at the same time")

    def _begin(self) -> None:
        """Write the first heartbeat. If that fails (a full disk), release the lock: this process could not acquire it
        again.
        """
        with contextlib.ExitStack() as undo:
            undo.callback(self.release)
            self.beat()
            undo.pop_all()

    def beat(self) -> None:
        """Update the heartbeat. Raises OSError if the directory cannot be written."""
        flags = os.O_WRONLY | os.O_CREAT | os.O_TRUNC
        with os.fdopen(open_descriptor(self._dir.heartbeat, flags), "wb") as file:
            file.write(f"{time.time():.3f}\n".encode())

    def is_ours(self) -> bool:
        """Whether the lock still names this process (someone may have removed it by hand)."""
        read = _read(self._dir.lock)
        return read is not None and read[1] == self._token

    def release(self) -> None:
        """Remove the lock if it is still ours."""
        if self.is_ours():
            with contextlib.suppress(OSError):
                self._dir.lock.unlink()

    def restore(self) -> bool:
        """Restore the lock after the directory of a live run was deleted; False if another process holds the lock."""
        try:
            is_ours = self._create(self._dir.lock) or self.is_ours()
        finally:
            self._draft.unlink(missing_ok=True)
        if is_ours:
            self.beat()
        return is_ours

    def _create(self, name: Path) -> bool:
        """Create a complete file that names this process; False if the name is taken."""
        if not self._draft.exists():
            fields = {**self._process.to_dict(), "token": self._token, "since": round(time.time(), 3)}
            self._draft.write_text(json.dumps(fields) + "\n", encoding="utf-8")
        try:
            os.link(self._draft, name)
        except FileExistsError:
            return False
        except OSError:  # no hard links here (some network and Windows disks)
            text = self._draft.read_text(encoding="utf-8")
            try:
                file = open(name, "x", encoding="utf-8")  # noqa: SIM115 - closed below
            except FileExistsError:
                return False
            try:
                with file:
                    file.write(text)
            except OSError:
                with contextlib.suppress(OSError):
                    name.unlink()
                raise
        return True

    def _succeed(self, dead: Holder, now: float) -> bool:
        """Take over a dead lock, unless another process is taking it over."""
        claims: list[Path] = []
        token = dead.token
        while True:
            claim = self._dir.lock.with_name(f"{self._dir.lock.name}.after.{token}")
            claims.append(claim)
            if self._create(claim):
                break
            read = _read(claim)
            if read is None:
                return False  # the claim was removed or is being written: read the lock again
            if _is_live(read[0], _age(claim, now)):
                raise RunLocked(_refusal(self._dir, Holder(read[0], read[1], True, _age(claim, now)), self._process))
            token = read[1]
        is_still_dead = (found := _read(self._dir.lock)) is not None and found[1] == dead.token
        if is_still_dead:
            os.replace(self._draft, self._dir.lock)
        for claim in claims if is_still_dead else claims[-1:]:
            claim.unlink(missing_ok=True)
        return is_still_dead

    def _remove_unreadable(self) -> None:
        """Remove a lock that names no process. On disks without hard links its writer first gets a moment to complete
        it.
        """
        if _age(self._dir.lock) < UNREADABLE_SECONDS:
            time.sleep(0.02)
            return
        with contextlib.suppress(OSError):
            self._dir.lock.unlink()


def read_holder(run_dir: LockPlace, now: float | None = None) -> Holder | None:
    """The holder of the run's lock; None if it is missing or unreadable. `now` is the disk's time, if known."""
    read = _read(run_dir.lock)
    if read is None:
        return None
    process, token, since = read
    # Creating the lock counts as a sign of life: the first heartbeat is written right after it.
    silent_for = min(heartbeat_age(run_dir, now), _age(run_dir.lock, now))
    return Holder(process, token, _is_live(process, silent_for), silent_for, since)


def is_recorded(run_dir: LockPlace) -> bool:
    """Whether a live process records the run now."""
    holder = read_holder(run_dir)
    return holder is not None and holder.is_live


def status_now(info: RunInfo, run_dir: LockPlace) -> Status:
    """A run's status. A run recorded as running without a live writer is interrupted."""
    return "interrupted" if info.status == "running" and not is_recorded(run_dir) else info.status


def refuse_other_writer(run_dir: LockPlace) -> None:
    """Raise RunLocked if another live process records the run."""
    holder, own = read_holder(run_dir), this_process()
    if holder is not None and holder.is_live and holder.process != own:
        raise RunLocked(_refusal(run_dir, holder, own))


def heartbeat_age(run_dir: LockPlace, now: float | None = None) -> float:
    """Seconds since the last heartbeat; infinite when there was none."""
    return _age(run_dir.heartbeat, now)


def _is_live(process: ProcessId, silent_for: float) -> bool:
    alive = is_alive(process)
    return silent_for < STALE_SECONDS if alive is None else alive


def _age(path: Path, now: float | None = None) -> float:
    try:
        return max(0.0, (time.time() if now is None else now) - path.stat().st_mtime)
    except OSError:
        return float("inf")


def _read(path: Path) -> tuple[ProcessId, str, float] | None:
    """Process, token and time of a lock or claim; None if the file is missing or invalid."""
    try:
        raw = read_json(path)
        fields = record_of(_LockFields, raw)
    except (OSError, ValueError):
        return None
    process = ProcessId.from_dict(raw)
    if process is None or not _TOKEN.fullmatch(fields.token):
        return None
    return process, fields.token, fields.since


def _refusal(run_dir: LockPlace, holder: Holder, own: ProcessId) -> str:
    who = f"pid {holder.process.pid} on host {holder.process.host}"
    if holder.process == own:
        return (
            f"{run_dir.root} is being recorded by this process ({who}). "
            "Call finish() on the first run before starting it again."
        )
    return (
        f"{run_dir.root} is being recorded by another live process: {who} "
        f"(last heartbeat {holder.silent_for:.0f} s ago). Stop it first, or use another output directory."
    )
