"""How much memory is in use at this moment: by this process, and on the CUDA devices it works on.

torch is never imported for it: who uses it has. A CUDA that nobody has initialised stays so.
"""

from __future__ import annotations

import importlib
import os
import sys
from collections.abc import Callable
from typing import Any, NamedTuple, Protocol

from rlvitals.guard import value_or

GIB = 2**30


class ProcessMemory(NamedTuple):
    """In bytes."""

    rss: int
    vms: int


class DeviceMemory(NamedTuple):
    """What the caching allocator has given out and holds on one device, now and at most, in bytes."""

    allocated: int
    reserved: int
    max_allocated: int
    max_reserved: int


class DeviceMark(Protocol):
    """A point in a device's stream of work."""

    def query(self) -> bool:
        """Whether the device has come to it. Never waits."""

    def elapsed_time(self, end: Any, /) -> float:
        """Milliseconds of the device from here to `end`."""


class Devices(Protocol):
    """The accelerators of this process."""

    def used(self) -> list[int]:
        """The devices it works on."""

    def memory(self, device: int) -> DeviceMemory: ...

    def reset_peaks(self, device: int) -> None:
        """Let the peaks begin again at what is in use now."""

    def total(self, device: int) -> int:
        """The size of its memory in bytes."""

    def mark(self, like: Any = None) -> DeviceMark | None:
        """Put a mark into the current stream, or into that of an earlier mark, without waiting."""


class CudaDevices:
    """`Devices` by way of torch.cuda, which is ROCm's name in torch as well."""

    def __init__(self, cuda: Any) -> None:
        self._cuda = cuda
        self._totals: dict[int, int] = {}

    def used(self) -> list[int]:
        current = self._cuda.current_device()
        devices = range(self._cuda.device_count())
        return [device for device in devices if device == current or self.memory(device).reserved]

    def memory(self, device: int) -> DeviceMemory:
        counters = self._cuda.memory_stats_as_nested_dict(device)  # all four in one call
        allocated, reserved = counters["allocated_bytes"]["all"], counters["reserved_bytes"]["all"]
        return DeviceMemory(allocated["current"], reserved["current"], allocated["peak"], reserved["peak"])

    def reset_peaks(self, device: int) -> None:
        self._cuda.reset_peak_memory_stats(device)

    def total(self, device: int) -> int:
        if device not in self._totals:
            self._totals[device] = self._cuda.get_device_properties(device).total_memory
        return self._totals[device]

    def mark(self, like: Any = None) -> DeviceMark | None:
        if self._cuda.is_current_stream_capturing():  # it would become a part of the graph
            return None
        stream = self._cuda.current_stream() if like is None else like.stream
        event = self._cuda.Event(enable_timing=True)
        event.record(stream)
        return _StreamMark(event, stream)


class _StreamMark:
    """An event, with the stream it is in."""

    __slots__ = ("_event", "stream")

    def __init__(self, event: Any, stream: Any) -> None:
        self._event = event
        self.stream = stream

    def query(self) -> bool:
        return bool(self._event.query())

    def elapsed_time(self, end: _StreamMark, /) -> float:
        return float(self._event.elapsed_time(end._event))


_cuda_devices: CudaDevices | None = None


def cuda_devices() -> CudaDevices | None:
    """What torch calls CUDA devices; None where torch is not in use, or CUDA is not yet."""
    global _cuda_devices  # noqa: PLW0603 - one process, one torch
    cuda = getattr(sys.modules.get("torch"), "cuda", None)
    is_initialized = getattr(cuda, "is_initialized", None)
    if is_initialized is None or not is_initialized():
        return None
    if _cuda_devices is None:
        _cuda_devices = CudaDevices(cuda)
    return _cuda_devices


_statm = -1  # a fork inherits its parent's, which tells of the parent
_IS_LINUX = sys.platform.startswith("linux")
_PAGE = os.sysconf("SC_PAGE_SIZE") if hasattr(os, "sysconf") else 4096


def process_memory() -> ProcessMemory | None:
    """Of this process; None where the system does not say and psutil is not installed. Never raises."""
    global _statm  # noqa: PLW0603 - opening the file each time would take three times as long
    if not _IS_LINUX:
        return _by_psutil()
    try:
        if _statm < 0:
            _statm = os.open("/proc/self/statm", os.O_RDONLY)
        whole, resident, _ = os.pread(_statm, 128, 0).split(b" ", 2)
    except OSError:
        return None
    return ProcessMemory(int(resident) * _PAGE, int(whole) * _PAGE)


def _forget_parent() -> None:
    global _statm  # noqa: PLW0603
    _statm = -1


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_forget_parent)


_process: Callable[[], Any] | None = None


def _by_psutil() -> ProcessMemory | None:
    global _process  # noqa: PLW0603
    if _process is None:
        try:
            _process = importlib.import_module("psutil").Process().memory_info
        except ImportError:
            return None
    info = value_or(None, _process)  # psutil has errors of its own for a process that it may not see
    return None if info is None else ProcessMemory(rss=info.rss, vms=info.vms)
