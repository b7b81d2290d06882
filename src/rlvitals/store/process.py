"""Which process is this, is that one still alive, and may it be sent a signal? Nothing here is specific to runs.

A pid alone says little: it is reused, and means nothing on another host or in another container. It counts only
together with the host, the boot, the pid namespace and the process's start time. A file that names a process proves
nothing at all: whoever can write the file can name any process.
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
    """A process, distinguished from every other one."""

    host: str
    pid: Annotated[int, Range(1, 2**31 - 1)]
    """Never 0 or below: asked after or told to end, those are whole groups of processes."""
    boot: str = ""
    """Identifies the boot and the pid namespace; empty where the system does not tell."""
    started: str = ""
    """When the process began, in the system's own ticks; empty where the system does not tell."""

    def to_dict(self) -> dict[str, Any]:
        return asdict(self)

    @classmethod
    def from_dict(cls, raw: Any) -> ProcessId | None:
        """Read it back; None when it is not one."""
        try:
            return record_of(cls, raw)
        except ValueError:
            return None


def this_process() -> ProcessId:
    """The process that asks."""
    pid = os.getpid()
    return ProcessId(host=platform.node(), pid=pid, boot=_boot(), started=_stat(pid)[1])


def is_alive(process: ProcessId) -> bool | None:
    """Whether it runs; None when that cannot be known from here (another host, boot or container)."""
    if process.host != platform.node() or process.boot != _boot():
        return None
    if os.name == "nt":
        return None  # os.kill would end the process on Windows; the heartbeat decides there
    try:
        os.kill(process.pid, 0)
    except ProcessLookupError:
        return False
    except PermissionError:
        pass
    state, started = _stat(process.pid)
    if state in ("Z", "X"):  # killed, and nobody has asked for its exit code yet
        return False
    return not (process.started and started and process.started != started)


_lock_owners: WeakKeyDictionary[object, tuple[str, ...]] = WeakKeyDictionary()


def renew_after_fork(owner: object, *locks: str) -> None:
    """Give an object new locks in every forked child: a thread that the child does not have may hold the copies."""
    _lock_owners[owner] = locks


def _renew_locks() -> None:
    for owner, locks in list(_lock_owners.items()):
        for name in locks:
            setattr(owner, name, threading.RLock())


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_renew_locks)


class Handle:
    """A hold on one process: a signal reaches that process or none, even when its pid is given to another one."""

    def __init__(self, pid: int) -> None:
        """Raises ProcessLookupError where there is no such process."""
        self._pid = pid
        self._descriptor: int | None = None
        if hasattr(os, "pidfd_open") and hasattr(signal, "pidfd_send_signal"):
            try:
                self._descriptor = os.pidfd_open(pid)
            except ProcessLookupError:
                raise
            except OSError:  # a kernel or sandbox without such handles: the pid has to do
                pass

    def send(self, number: int) -> None:
        """Send a signal. Raises ProcessLookupError where the process is gone."""
        if self._descriptor is not None:
            signal.pidfd_send_signal(self._descriptor, number)
        else:
            os.kill(self._pid, number)

    def close(self) -> None:
        """Let go of it."""
        if self._descriptor is not None:
            os.close(self._descriptor)
            self._descriptor = None


def prove(process: ProcessId, command: Sequence[str]) -> Handle | None:
    """A handle on a process, if the system itself confirms that it is the one named and that this user started it with
    a command line that ends in `command`; None without that proof.

    Whoever can write a folder can put any process's identity into a file there, but cannot give another process of this
    user's a command line. A path in `command` means the same folder only to a process with the same mounts.
    """
    if not process.boot or not process.started or not is_alive(process):
        return None
    try:
        handle = Handle(process.pid)  # first of all: whatever is read from here on is about the process held
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
    """State and start time, from the 3rd and 22nd fields of stat; empty where the system does not tell."""
    # The command name before them may hold spaces and brackets, so count from the last bracket.
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
