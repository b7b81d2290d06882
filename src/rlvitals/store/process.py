"""Which process is this, and is that one still alive? Nothing here is specific to runs.

A pid alone says little: it is reused, and means nothing on another host or in another container. It counts only
together with the host, the boot, the pid namespace and the process's start time.
"""

from __future__ import annotations

import os
import platform
from dataclasses import asdict, dataclass
from typing import Annotated, Any

from rlvitals.records import Range
from rlvitals.store.fields import record_of


@dataclass(frozen=True, slots=True)
class ProcessId:
    """A process, told apart from every other one."""

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
