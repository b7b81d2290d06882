"""Measures memory in use: by this process, and on its CUDA devices.

This module neither imports torch nor initialises CUDA; it uses them only if the process already does.
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
    """Memory of a process in bytes."""

    rss: int
    vms: int


class DeviceMemory(NamedTuple):
    """Memory that the caching allocator has allocated and reserved on one device, now and at the peak, in bytes."""

    allocated: int
    reserved: int
    max_allocated: int
    max_reserved: int


class DeviceMark(Protocol):
    """A point in a device's stream of work."""

    def query(self) -> bool:
        """Whether the device has reached it. Never waits."""

    def elapsed_time(self, end: Any, /) -> float:
        """Milliseconds of device time from here to `end`."""


class Devices(Protocol):
    """The accelerators of this process."""

    def used(self) -> list[int]:
        """The devices that this process uses."""

    def memory(self, device: int) -> DeviceMemory: ...

    def reset_peaks(self, device: int) -> None:
        """Reset the peaks to the memory in use now."""

    def total(self, device: int) -> int:
        """The size of the device's memory in bytes."""

    def mark(self, like: Any = None) -> DeviceMark | None:
        """Record a mark in the current stream, or in the stream of the mark `like`, without waiting."""


class CudaDevices:
    """`Devices` that uses torch.cuda. torch uses this name for ROCm as well."""

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
        if self._cuda.is_current_stream_capturing():  # the event would become part of the graph
            return None
        stream = self._cuda.current_stream() if like is None else like.stream
        event = self._cuda.Event(enable_timing=True)
        event.record(stream)
        return _StreamMark(event, stream)


class _StreamMark:
    """An event with its stream."""

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
    """The devices of torch.cuda; None if torch is not imported or CUDA is not initialised yet."""
    global _cuda_devices  # noqa: PLW0603 - one process, one torch
    cuda = getattr(sys.modules.get("torch"), "cuda", None)
    is_initialized = getattr(cuda, "is_initialized", None)
    if is_initialized is None or not is_initialized():
        return None
    if _cuda_devices is None:
        _cuda_devices = CudaDevices(cuda)
    return _cuda_devices


_statm = -1  # reset in a forked child: the parent's descriptor reads the parent's memory
_IS_LINUX = sys.platform.startswith("linux")
_PAGE = os.sysconf("SC_PAGE_SIZE") if hasattr(os, "sysconf") else 4096


def process_memory() -> ProcessMemory | None:
    """The memory of this process; None if neither the system nor psutil reports it. Never raises."""
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
    info = value_or(None, _process)  # psutil raises its own errors if access is denied
    return None if info is None else ProcessMemory(rss=info.rss, vms=info.vms)
