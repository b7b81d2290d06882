"""What the machine tells of itself now: processors, memory, accelerators.

CPU and memory come from /proc on Linux and from psutil elsewhere, where it is installed; accelerators from their
drivers, see `gpus`. What a machine does not tell is not there. The names are the RLAIF document's; sizes are GiB,
though it writes GB.
"""

from __future__ import annotations

import importlib
import logging
import os
import sys
from collections.abc import Callable
from typing import Any, NamedTuple, Protocol

from rlvitals.capture.gpus import Gpus, combined, find_gpus
from rlvitals.capture.memory import GIB, process_memory

logger = logging.getLogger("rlvitals")


class Cpu(NamedTuple):
    """Time of all cores together since the machine started."""

    busy: float
    whole: float


class Host(Protocol):
    """The machine's processors and main memory."""

    def cpu(self) -> Cpu: ...

    def memory(self) -> tuple[int, int]:
        """Whole and available bytes."""


class ProcHost:
    """`Host` by /proc."""

    def cpu(self) -> Cpu:
        with open("/proc/stat", "rb") as file:
            # user nice system idle iowait irq softirq steal; what guests took is in user already.
            times = [float(word) for word in file.readline().split()[1:9]]
        idle = times[3] + times[4]
        return Cpu(sum(times) - idle, sum(times))

    def memory(self) -> tuple[int, int]:
        found: dict[bytes, int] = {}
        with open("/proc/meminfo", "rb") as file:
            for line in file:
                name, _, rest = line.partition(b":")
                if name in (b"MemTotal", b"MemAvailable"):
                    found[name] = int(rest.split()[0]) * 1024
                    if len(found) == 2:
                        break
        return found[b"MemTotal"], found[b"MemAvailable"]


class PsutilHost:
    """`Host` by psutil. Raises ImportError without it."""

    def __init__(self) -> None:
        self._psutil: Any = importlib.import_module("psutil")

    def cpu(self) -> Cpu:
        times = self._psutil.cpu_times()
        idle = times.idle + getattr(times, "iowait", 0.0)
        guests = getattr(times, "guest", 0.0) + getattr(times, "guest_nice", 0.0)  # in user already
        whole = sum(times) - guests
        return Cpu(whole - idle, whole)

    def memory(self) -> tuple[int, int]:
        memory = self._psutil.virtual_memory()
        return memory.total, memory.available


def find_host() -> Host | None:
    """The best way to ask this machine; None where there is none."""
    if sys.platform.startswith("linux") and os.path.exists("/proc/meminfo"):
        return ProcHost()
    try:
        return PsutilHost()
    except ImportError:
        logger.info("CPU and memory are not sampled: pip install 'rlvitals[hardware]'")
        return None


class Machine:
    """One machine, sampled now and then. `sample` never raises: what fails once is not asked again."""

    def __init__(
        self, host: Callable[[], Host | None] = find_host, gpus: Callable[[], Gpus | None] = find_gpus
    ) -> None:
        self._host, self._gpus = host(), gpus()
        self._cpu = self._asked_cpu()

    def sample(self) -> dict[str, float]:
        """Everything it tells, by name. CPU use is the mean since the sample before."""
        found: dict[str, float] = {}
        earlier, self._cpu = self._cpu, self._asked_cpu()
        if earlier is not None and self._cpu is not None and self._cpu.whole > earlier.whole:
            share = (self._cpu.busy - earlier.busy) / (self._cpu.whole - earlier.whole)
            found["System/CPU_Percent"] = min(max(share, 0.0), 1.0) * 100.0
        found |= self._memory()
        if self._gpus is not None:
            try:
                found |= combined(self._gpus.read())
            except Exception as error:  # noqa: BLE001 - a card that fell off the bus
                logger.warning("the GPUs are no longer sampled: %s: %s", type(error).__name__, error)
                self._gpus = None
        return found

    def close(self) -> None:
        if self._gpus is not None:
            try:
                self._gpus.close()
            except Exception as error:  # noqa: BLE001 - it is over anyway
                logger.debug("the GPUs' library did not close: %s", error)

    def _memory(self) -> dict[str, float]:
        found: dict[str, float] = {}
        try:
            if self._host is not None:
                whole, available = self._host.memory()
                found["System/Memory_Percent"] = (whole - available) / whole * 100.0
                found["System/Memory_Used_GB"] = (whole - available) / GIB
                found["System/Memory_Available_GB"] = available / GIB
            if (own := process_memory()) is not None:
                found["System/Process_Memory_GB"] = own.rss / GIB
        except Exception as error:  # noqa: BLE001 - a /proc of another shape
            self._put_aside(error)
        return found

    def _asked_cpu(self) -> Cpu | None:
        try:
            return self._host.cpu() if self._host is not None else None
        except Exception as error:  # noqa: BLE001 - as above
            self._put_aside(error)
            return None

    def _put_aside(self, error: Exception) -> None:
        logger.warning("the machine is no longer sampled: %s: %s", type(error).__name__, error)
        self._host = None
