"""One phase and one timer, as a trainer enters and leaves them. What they measured is kept by `phases`."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextvars import ContextVar
from types import TracebackType
from typing import TYPE_CHECKING, Any, Literal, Self

from rlvitals.capture.memory import GIB, DeviceMemory, Devices, Mark, ProcessMemory, process_memory

if TYPE_CHECKING:
    from rlvitals.capture.phases import Phases

Hook = Callable[[], Any] | None
"""What loads or unloads a model's state around a phase."""

Point = Literal["start/offload", "start/onload", "end/onload", "end/offload"]
"""When memory is looked at: before and after the state is loaded, before and after it is unloaded."""

PARTS = ("total", "execute", "onload", "offload")

Kept = Literal["first", "last", "most"]
"""Which value stays of several runs before one row."""

_innermost: ContextVar[Phase | None] = ContextVar("rlvitals_phase", default=None)


class Phase:
    """One phase, to be entered once."""

    __slots__ = (
        "_began",
        "_body_began",
        "_first_mark",
        "_measures_memory",
        "_offload",
        "_onload",
        "_peaks",
        "_phases",
        "error",
        "heard_at",
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
        self.marks: tuple[Mark, Mark] | None = None
        self.error = ""
        """The type of the exception that left it."""
        self.heard_at = 0.0
        """When something last began or ended in it, by the clock."""
        self.process_before: ProcessMemory | None = None
        self.process_after: ProcessMemory | None = None
        self.sizes: dict[int, int] = {}
        """The devices' whole memory in bytes."""
        self._phases, self._onload, self._offload, self._measures_memory = phases, onload, offload, memory
        self.points: dict[Point, dict[int, DeviceMemory]] = {}
        """The devices' memory at each of them, where it was looked at."""
        self._peaks: dict[int, tuple[int, int]] = {}
        self._began = self._body_began = 0.0
        self._first_mark: Mark | None = None

    def tokens(self, count: float) -> None:
        """So many tokens were processed in this phase, for its tokens per second."""
        self.token_count += self._phases.amount(count)

    def __enter__(self) -> Self:
        phases, clock = self._phases, self._phases.clock
        outer = _innermost.get()
        self.parent = outer if outer is not None and outer._phases is phases else None
        _innermost.set(self)
        self.started = time.time()
        self._began = self.heard_at = clock()
        self._tell_outer(self._began)
        phases.enter(self)
        devices = phases.devices()
        if self._measures_memory:
            self.process_before = process_memory()
            if devices is not None:
                self._look(devices, "start/offload")
        if self._onload is not None:
            try:
                self.seconds["onload"] = self._timed(self._onload)
            except BaseException as error:
                self._close(error)
                raise
            devices = phases.devices()  # loading may have been the first to use one
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
        try:
            if self._offload is not None:  # after an exception too: what was loaded must not stay
                self.seconds["offload"] = self._timed(self._offload)
        except BaseException as failure:
            error = error or failure
            raise
        finally:
            if self._offload is not None and (devices := phases.devices()) is not None:
                self._look(devices, "end/offload")
            self._close(error)

    def see_peak(self, device: int, seen: DeviceMemory) -> None:
        allocated, reserved = self._peaks.get(device, (0, 0))
        self._peaks[device] = (max(allocated, seen.max_allocated), max(reserved, seen.max_reserved))

    def since_it_began(self, device: int, seen: DeviceMemory) -> DeviceMemory:
        allocated, reserved = self._peaks[device]
        return seen._replace(max_allocated=allocated, max_reserved=reserved)

    def device_memory(self) -> Iterator[tuple[str, float, Kept]]:
        """The devices' values, in GiB, and which is kept of several before one row."""
        for point, devices in self.points.items():
            now: Kept = "first" if point.startswith("start") else "last"
            for device, seen in devices.items():
                for counter, size in zip(DeviceMemory._fields, seen, strict=True):
                    key = f"memory/{self.name}/{point}/{counter}"
                    is_peak = counter.startswith("max_")
                    yield f"{key}/{device}", size / GIB, "most" if is_peak else now
                    if is_peak and point == "end/onload" and self.sizes.get(device):
                        yield f"{key}_frac/{device}", size / self.sizes[device], "most"

    def _look(self, devices: Devices, point: Point) -> None:
        if self._measures_memory and (seen := self._phases.look(devices, self, point)):
            self.points[point] = seen

    def _timed(self, call: Callable[[], Any]) -> float:
        began = self._phases.clock()
        call()
        return self._phases.clock() - began

    def _close(self, error: BaseException | None) -> None:
        if self.points:
            # Where nothing is loaded or unloaded, the memory before and after is the same.
            for missing, same in (("start/onload", "start/offload"), ("end/offload", "end/onload")):
                if same in self.points:
                    self.points.setdefault(missing, self.points[same])  # type: ignore[arg-type]
        if self._measures_memory:
            self.process_after = process_memory()
        self.error = type(error).__name__ if error is not None else ""
        ended = self._phases.clock()
        self.seconds["total"] = ended - self._began
        _innermost.set(self.parent)
        self._tell_outer(ended)
        self._phases.close(self)

    def _tell_outer(self, now: float) -> None:
        outer = self.parent
        while outer is not None:
            outer.heard_at = now
            outer = outer.parent


class Timer:
    """The seconds of a block, as `time/{name}` in the next row; `seconds` has them once it has ended."""

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
