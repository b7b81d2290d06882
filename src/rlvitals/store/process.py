"""Identifies processes, checks whether they are alive, and sends them signals. Nothing here is specific to runs.

A pid alone is not enough: it is reused, and it has no meaning on another host or in another container. A process is
identified by its pid together with the host, the boot, the pid namespace and the start time. A file that names a
process is no proof, because anyone who can write the file can name any process.
"""

from __future__ import annotations

import contextlib
import os
import platform
import signal
import threading
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Annotated, Any
from weakref import WeakKeyDictionary

from rlvitals.records import Range
from rlvitals.store.fields import record_of


@dataclass(frozen=True, slots=True)
class ProcessId:
    """The identity of a process, distinct from every other process."""

    host: str
    pid: Annotated[int, Range(1, 2**31 - 1)]
    """Never 0 or below: signals to such numbers go to whole groups of processes."""
    boot: str = ""
    """Identifies the boot and the pid namespace; empty if the system does not provide them."""
    started: str = ""
    """When the process began, in the system's own ticks; empty if the system does not provide it."""

    def to_dict(self) -> dict[str, Any]:
        return asdict(self)

    @classmethod
    def from_dict(cls, raw: Any) -> ProcessId | None:
        """Parse a stored identity; None if it is invalid."""
        try:
            return record_of(cls, raw)
        except ValueError:
            return None


def this_process() -> ProcessId:
    """The current process."""
    pid = os.getpid()
    return ProcessId(host=platform.node(), pid=pid, boot=_boot(), started=_stat(pid)[1])


def is_alive(process: ProcessId) -> bool | None:
    """Whether the process is running; None if that cannot be checked from here (another host, boot or container)."""
    if process.host != platform.node() or process.boot != _boot():
        return None
    if os.name == "nt":
        return None  # os.kill would end the process on Windows; the heartbeat is used there
    try:
        os.kill(process.pid, 0)
    except ProcessLookupError:
        return False
    except PermissionError:
        pass
    state, started = _stat(process.pid)
    if state in ("Z", "X"):  # the process has ended, and its parent has not read the exit code yet
        return False
    return not (process.started and started and process.started != started)


_lock_owners: WeakKeyDictionary[object, tuple[str, ...]] = WeakKeyDictionary()


def renew_after_fork(owner: object, *locks: str) -> None:
    """Give an object new locks in every forked child. A thread that the child does not have may hold the old ones."""
    _lock_owners[owner] = locks


def _renew_locks() -> None:
    for owner, locks in list(_lock_owners.items()):
        for name in locks:
            setattr(owner, name, threading.RLock())


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_renew_locks)


class Handle:
    """A handle on one process: a signal never reaches another process, even if the pid is reused."""

    def __init__(self, pid: int) -> None:
        """Raises ProcessLookupError if the process does not exist."""
        self._pid = pid
        self._descriptor: int | None = None
        if hasattr(os, "pidfd_open") and hasattr(signal, "pidfd_send_signal"):
            try:
                self._descriptor = os.pidfd_open(pid)
            except ProcessLookupError:
                raise
            except OSError:  # the kernel or sandbox does not support such handles: use the pid
                pass

    def send(self, number: int) -> None:
        """Send a signal. Raises ProcessLookupError if the process has ended."""
        if self._descriptor is not None:
            signal.pidfd_send_signal(self._descriptor, number)
        else:
            os.kill(self._pid, number)

    def close(self) -> None:
        """Close the handle."""
        if self._descriptor is not None:
            os.close(self._descriptor)
            self._descriptor = None


def prove(process: ProcessId, command: Sequence[str]) -> Handle | None:
    """A handle on a process, or None. The system must confirm that it is the named process and that this user started
    it with a command line that ends in `command`.

    Anyone who can write a folder can put any process's identity into a file there, but cannot choose the command line
    of a process of this user. A path in `command` means the same folder only to a process with the same mounts.
    """
    if not process.boot or not process.started or not is_alive(process):
        return None
    try:
        handle = Handle(process.pid)  # opened first, so that everything read below is about this process
    except OSError:
        return None
    if (
        _stat(process.pid)[1] == process.started
        and _owner(process.pid) == os.geteuid()
        and _link(f"/proc/{process.pid}/ns/mnt") == _link("/proc/self/ns/mnt") != ""
        and _command(process.pid)[-len(command) :] == [os.fsencode(word) for word in command]
    ):
        return handle
    handle.close()
    return None


def _owner(pid: int) -> int | None:
    try:
        return os.stat(f"/proc/{pid}").st_uid
    except OSError:
        return None


def _command(pid: int) -> list[bytes]:
    with contextlib.suppress(OSError), open(f"/proc/{pid}/cmdline", "rb") as file:
        return file.read().split(b"\0")[:-1]
    return []


def _boot() -> str:
    return f"{_read('/proc/sys/kernel/random/boot_id')} {_link('/proc/self/ns/pid')}".strip()


def _stat(pid: int) -> tuple[str, str]:
    """State and start time, from the 3rd and 22nd fields of stat; empty if the system does not provide them."""
    # The command name before these fields may contain spaces and brackets: count from the last bracket.
    fields = _read(f"/proc/{pid}/stat").rpartition(")")[2].split()
    return (fields[0], fields[19]) if len(fields) > 19 else ("", "")


def _read(path: str) -> str:
    try:
        with open(path, encoding="utf-8", errors="replace") as file:
            return file.read().strip()
    except OSError:
        return ""


def _link(path: str) -> str:
    try:
        return os.readlink(path)
    except OSError:
        return ""
