"""Phases of a training step: measures the time and memory of each, for the next row.

The keys are those of ROLL's document: `time/{phase}/{total,execute,onload,offload}`, `memory/{phase}/...` and
`memory/cpu/{phase}/...`, memory in GiB. If a phase runs several times between two rows, its seconds are added up, its
peaks are the highest ones, its start values come from the first run and its end values from the last. Device time is
read from marks in the device's stream after the device has reached them. Nothing here waits for a device, and no error
of the measurement is raised into a phase.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from contextvars import ContextVar
from types import TracebackType
from typing import Any, Literal, Self, TypeVar

from rlvitals.capture.counters import Rates, amount
from rlvitals.capture.memory import GIB, DeviceMark, DeviceMemory, Devices, ProcessMemory, cuda_devices, process_memory
from rlvitals.guard import words_of
from rlvitals.records import OpenPhase
from rlvitals.store.process import renew_after_fork

T = TypeVar("T")

WAITING_MARKS = 64
"""From this number of phases with unknown device time on, the marks are also read between two rows."""

Hook = Callable[[], Any] | None
"""A function that loads or unloads a model's state before or after a phase."""

HookPoint = Literal["start/offload", "start/onload", "end/onload", "end/offload"]
"""When memory is measured: before and after the state is loaded, before and after it is unloaded."""

FAILED: float | None = -1.0

PARTS = ("total", "execute", "onload", "offload")

Kept = Literal["first", "last", "most"]
"""Which value is kept if a phase runs several times before a row."""


class Phases:
    """The phases of one process. `take` returns the measurements since the last row.

    >>> times = iter([10.0, 10.5, 12.5, 13.0])
    >>> phases = Phases(clock=lambda: next(times), devices=lambda: None)
    >>> with phases.phase("generate", memory=False):
    ...     pass
    >>> row = phases.take(at=13.0)
    >>> row["time/generate/total"], row["time/generate/execute"]
    (3.0, 2.0)
    """

    def __init__(
        self,
        *,
        clock: Callable[[], float] = time.perf_counter,
        devices: Callable[[], Devices | None] = cuda_devices,
        rates: Rates | None = None,
        on_close: Callable[[Phase], None] | None = None,
        amount: Callable[[float], float] = amount,
        warn: Callable[[str], object] | None = None,
    ) -> None:
        """`amount` checks the argument of `Phase.tokens`."""
        self.clock = clock
        self.amount = amount
        self.rates = rates or Rates()
        self._find_devices = devices
        self._on_close = on_close
        self._warn = warn
        self._lock = threading.RLock()  # not a Lock: a signal handler may run while a phase ends
        renew_after_fork(self, "_lock")
        self._row: dict[str, float] = {}
        self._keys: dict[str, _Keys] = {}
        self._open: dict[Phase, None] = {}
        self._usual: dict[str, tuple[int, float]] = {}
        self._waiting: list[tuple[str, DeviceMark, DeviceMark, float]] = []
        self._logged_at = float("-inf")
        self._looks_at_memory = True

    def phase(self, name: str, onload: Hook = None, offload: Hook = None, memory: bool = True) -> Phase:
        """A phase to enter. `onload` and `offload` are called before and after its body, and timed separately."""
        return Phase(self, name, onload, offload, memory)

    def timer(self, name: str) -> Timer:
        """A timer that measures only `time/{name}`."""
        return Timer(self, name)

    def take(self, at: float | None = None) -> dict[str, float]:
        """The measurements that ended since the last call, by name; `at` is the row's time on the clock."""
        with self._lock:
            self._logged_at = self.clock() if at is None else at
            if self._waiting:
                self._read_marks()
            row, self._row = self._row, {}
            return row | self.rates.take()

    def open(self) -> list[OpenPhase]:
        """The innermost open phases. A phase's silence begins at the last row, or when a phase inside it last began or
        ended.
        """
        found = []
        with self._lock:
            now = self.clock()
            outer = {phase.parent for phase in self._open}
            for phase in self._open:
                if phase not in outer:
                    count, total = self._usual.get(phase.name, (0, 0.0))
                    silence = now - max(phase.changed_at, self._logged_at)
                    found.append(OpenPhase(str(phase.name), silence, total / count if count else None))
        return found

    def enter(self, phase: Phase) -> None:
        with self._lock:
            self._open[phase] = None

    def devices(self) -> Devices | None:
        """The devices to measure; None without a device, or after one has failed."""
        return self._asked(None, self._find_devices) if self._looks_at_memory else None

    def look(self, devices: Devices, phase: Phase, point: HookPoint) -> dict[int, DeviceMemory]:
        """The memory of the devices, with the peaks since this phase began, even if other phases began inside it."""
        with self._lock:
            return self._asked({}, self._look_at_all, devices, phase, point)

    def mark(self, devices: Devices, like: DeviceMark | None = None) -> DeviceMark | None:
        """A mark in the device's stream; None if none can be recorded."""
        return self._asked(None, devices.mark, like)

    def close(self, phase: Phase) -> None:
        """Add the numbers of an ended phase to the next row."""
        with self._lock:
            self._open.pop(phase, None)
            row, name = self._row, phase.name
            keys = self._keys.get(name)
            if keys is None:
                keys = self._keys[name] = _Keys(name)
            if keys.times[0] in row:
                for key, seconds in zip(keys.times, phase.seconds.values(), strict=True):
                    row[key] = row.get(key, 0.0) + seconds
            else:
                row.update(zip(keys.times, phase.seconds.values(), strict=True))
            if (before := phase.process_before) is not None:
                row.setdefault(keys.start_rss, before.rss / GIB)
                row.setdefault(keys.start_vms, before.vms / GIB)
            if (after := phase.process_after) is not None:
                row[keys.end_rss], row[keys.end_vms] = after.rss / GIB, after.vms / GIB
            if phase.points:
                for key, size, kept in phase.device_memory():
                    known = row.get(key, size)
                    row[key] = known if kept == "first" else max(known, size) if kept == "most" else size
            count, total = self._usual.get(name, (0, 0.0))
            self._usual[name] = (count + 1, total + phase.seconds["total"])
            if phase.marks is not None:
                self._waiting.append((name, *phase.marks, phase.token_count))
                if len(self._waiting) >= WAITING_MARKS:
                    self._read_marks()
            elif phase.token_count:
                self.rates.add(name, phase.token_count, phase.seconds["execute"])
        if self._on_close is not None:
            self._on_close(phase)

    def add_time(self, name: str, seconds: float) -> None:
        with self._lock:
            key = f"time/{name}"
            self._row[key] = self._row.get(key, 0.0) + seconds

    def _asked(self, default: T, question: Callable[..., T], *arguments: Any) -> T:
        """A device's answer. After a failure, devices are no longer measured.

        Does not use `guard.value_or`, which takes a microsecond per call: a phase asks up to seven questions.
        """
        try:
            return question(*arguments)
        except Exception as error:  # noqa: BLE001 - see above
            self._looks_at_memory = False
            if self._warn is not None:
                self._warn(f"devices are no longer measured in phases: {words_of(error)}")
            return default

    def _look_at_all(self, devices: Devices, phase: Phase, point: HookPoint) -> dict[int, DeviceMemory]:
        return {device: self._look_at(devices, device, phase, point) for device in devices.used()}

    def _look_at(self, devices: Devices, device: int, phase: Phase, point: HookPoint) -> DeviceMemory:
        seen = devices.memory(device)
        for other in self._open:  # the peaks are reset below, so open phases must store them first
            if other is not phase or point != "start/offload":
                other.see_peak(device, seen)
        if point == "start/offload":
            devices.reset_peaks(device)
            phase.see_peak(device, seen._replace(max_allocated=seen.allocated, max_reserved=seen.reserved))
        elif point == "end/onload":
            phase.sizes[device] = devices.total(device)
        return phase.since_it_began(device, seen)

    def _read_marks(self) -> None:
        """Add the device time of phases whose last mark was reached; the others keep waiting."""
        waiting, self._waiting = self._waiting, []
        for mark in waiting:
            name, begin, end, tokens = mark
            seconds: float | None = self._asked(FAILED, _device_seconds, begin, end)
            if seconds is None:
                self._waiting.append(mark)
            if seconds is None or seconds == FAILED:
                continue
            key = f"time/{name}/device"
            self._row[key] = self._row.get(key, 0.0) + seconds
            if tokens:
                self.rates.add(name, tokens, seconds)


def _device_seconds(begin: DeviceMark, end: DeviceMark) -> float | None:
    """The device time between two marks; None while the device has not reached the second one."""
    return begin.elapsed_time(end) / 1000.0 if end.query() else None


_innermost: ContextVar[Phase | None] = ContextVar("rlvitals_phase", default=None)


class Phase:
    """One phase, which can be entered once."""

    __slots__ = (
        "_began",
        "_body_began",
        "_first_mark",
        "_measures_memory",
        "_offload",
        "_onload",
        "_peaks",
        "_phases",
        "changed_at",
        "error",
        "marks",
        "name",
        "parent",
        "points",
        "process_after",
        "process_before",
        "seconds",
        "sizes",
        "started",
        "token_count",
    )

    def __init__(self, phases: Phases, name: str, onload: Hook, offload: Hook, memory: bool) -> None:
        self.name = name
        self.parent: Phase | None = None
        self.started = 0.0
        """Unix seconds."""
        self.seconds = dict.fromkeys(PARTS, 0.0)
        self.token_count = 0.0
        self.marks: tuple[DeviceMark, DeviceMark] | None = None
        self.error = ""
        """The type of the exception that ended the phase."""
        self.changed_at = 0.0
        """When the phase, or a phase inside it, last began or ended, on the clock."""
        self.process_before: ProcessMemory | None = None
        self.process_after: ProcessMemory | None = None
        self.sizes: dict[int, int] = {}
        """The total memory of each device in bytes."""
        self._phases, self._onload, self._offload, self._measures_memory = phases, onload, offload, memory
        self.points: dict[HookPoint, dict[int, DeviceMemory]] = {}
        """The memory of each device at the points where it was measured."""
        self._peaks: dict[int, tuple[int, int]] = {}
        self._began = self._body_began = 0.0
        self._first_mark: DeviceMark | None = None

    def tokens(self, count: float) -> None:
        """Add tokens that were processed in this phase, for its tokens per second."""
        self.token_count += self._phases.amount(count)

    def __enter__(self) -> Self:
        phases, clock = self._phases, self._phases.clock
        outer = _innermost.get()
        self.parent = outer if outer is not None and outer._phases is phases else None
        _innermost.set(self)
        self.started = time.time()
        self._began = self.changed_at = clock()
        self._touch_outer(self._began)
        phases.enter(self)
        devices = phases.devices()
        if self._measures_memory:
            self.process_before = process_memory()
            if devices is not None:
                self._look(devices, "start/offload")
        if self._onload is not None:
            with ExitStack() as undo:
                undo.push(lambda _, error, __: self._close(error))
                self.seconds["onload"] = self._timed(self._onload)
                undo.pop_all()
            devices = phases.devices()  # loading may have been the first use of a device
            if devices is not None:
                self._look(devices, "start/onload")
        if devices is not None:
            self._first_mark = phases.mark(devices)
        self._body_began = clock()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        phases = self._phases
        self.seconds["execute"] = phases.clock() - self._body_began
        devices = phases.devices()
        if devices is not None:
            if self._first_mark is not None and (last := phases.mark(devices, self._first_mark)) is not None:
                self.marks = (self._first_mark, last)
            self._look(devices, "end/onload")
        if self._offload is None:
            return self._close(error)
        with ExitStack() as leaving:
            leaving.push(lambda _, failure, __: self._end(error or failure))
            self.seconds["offload"] = self._timed(self._offload)  # after an exception too: loaded state must not stay

    def see_peak(self, device: int, seen: DeviceMemory) -> None:
        allocated, reserved = self._peaks.get(device, (0, 0))
        self._peaks[device] = (max(allocated, seen.max_allocated), max(reserved, seen.max_reserved))

    def since_it_began(self, device: int, seen: DeviceMemory) -> DeviceMemory:
        allocated, reserved = self._peaks[device]
        return seen._replace(max_allocated=allocated, max_reserved=reserved)

    def device_memory(self) -> Iterator[tuple[str, float, Kept]]:
        """The memory values in GiB, each with the rule for several runs before a row."""
        for point, devices in self.points.items():
            now: Kept = "first" if point.startswith("start") else "last"
            for device, seen in devices.items():
                for counter, size in zip(DeviceMemory._fields, seen, strict=True):
                    key = f"memory/{self.name}/{point}/{counter}"
                    is_peak = counter.startswith("max_")
                    yield f"{key}/{device}", size / GIB, "most" if is_peak else now
                    if is_peak and point == "end/onload" and self.sizes.get(device):
                        yield f"{key}_frac/{device}", size / self.sizes[device], "most"

    def _look(self, devices: Devices, point: HookPoint) -> None:
        if self._measures_memory and (seen := self._phases.look(devices, self, point)):
            self.points[point] = seen

    def _timed(self, call: Callable[[], Any]) -> float:
        began = self._phases.clock()
        call()
        return self._phases.clock() - began

    def _end(self, error: BaseException | None) -> None:
        if (devices := self._phases.devices()) is not None:
            self._look(devices, "end/offload")
        self._close(error)

    def _close(self, error: BaseException | None) -> None:
        if self.points:
            # Without an onload or offload hook, the memory before and after it is the same.
            for missing, same in (("start/onload", "start/offload"), ("end/offload", "end/onload")):
                if same in self.points:
                    self.points.setdefault(missing, self.points[same])  # type: ignore[arg-type]
        if self._measures_memory:
            self.process_after = process_memory()
        self.error = type(error).__name__ if error is not None else ""
        ended = self._phases.clock()
        self.seconds["total"] = ended - self._began
        _innermost.set(self.parent)
        self._touch_outer(ended)
        self._phases.close(self)

    def _touch_outer(self, now: float) -> None:
        outer = self.parent
        while outer is not None:
            outer.changed_at = now
            outer = outer.parent


class Timer:
    """Measures the seconds of a block: `time/{name}` in the next row, and `seconds` after the block."""

    __slots__ = ("_began", "_phases", "name", "seconds")

    def __init__(self, phases: Phases, name: str) -> None:
        self.name = name
        self.seconds = 0.0
        self._phases = phases
        self._began = 0.0

    def __enter__(self) -> Self:
        self._began = self._phases.clock()
        return self

    def __exit__(self, *_: object) -> None:
        self.seconds = self._phases.clock() - self._began
        self._phases.add_time(self.name, self.seconds)


class _Keys:
    """The keys that every run of a phase writes, built once."""

    __slots__ = ("end_rss", "end_vms", "start_rss", "start_vms", "times")

    def __init__(self, name: str) -> None:
        self.times = tuple(f"time/{name}/{part}" for part in PARTS)
        self.start_rss, self.start_vms = f"memory/cpu/{name}/start/rss", f"memory/cpu/{name}/start/vms"
        self.end_rss, self.end_vms = f"memory/cpu/{name}/end/rss", f"memory/cpu/{name}/end/vms"
