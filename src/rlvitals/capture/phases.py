"""Phases of a training step: how long each took and what memory it used, for the next row.

The keys are those of ROLL's document: `time/{phase}/{total,execute,onload,offload}`, `memory/{phase}/...` and
`memory/cpu/{phase}/...`, memory in GiB. Where a phase runs several times between two rows its seconds add up, its peaks
are the highest, its start is the first one's and its end the last one's. Time of the device is read from marks in its
stream when they have been reached; nothing here waits for a device. Nothing of ours raises into a phase.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable

from rlvitals.capture.counters import Rates, amount
from rlvitals.capture.memory import GIB, DeviceMemory, Devices, Mark, cuda_devices
from rlvitals.capture.phase import PARTS, Hook, Phase, Point, Timer
from rlvitals.records import OpenPhase
from rlvitals.store.process import renew_after_fork

WAITING_MARKS = 64
"""So many phases whose device time is still to come are looked through between two rows as well."""


class Phases:
    """The phases of one process. `take` gives what is new since the last row.

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
        warn: Callable[[str], None] | None = None,
    ) -> None:
        """`amount` checks what `Phase.tokens` is told."""
        self.clock = clock
        self.amount = amount
        self.rates = rates or Rates()
        self._find_devices = devices
        self._on_close = on_close
        self._warn = warn
        self._lock = threading.RLock()  # not a Lock: a signal handler may come in the middle of a phase's end
        renew_after_fork(self, "_lock")
        self._row: dict[str, float] = {}
        self._keys: dict[str, _Keys] = {}
        self._open: dict[Phase, None] = {}
        self._usual: dict[str, tuple[int, float]] = {}
        self._waiting: list[tuple[str, Mark, Mark, float]] = []
        self._logged_at = float("-inf")
        self._looks_at_memory = True

    def phase(self, name: str, onload: Hook = None, offload: Hook = None, memory: bool = True) -> Phase:
        """A phase to enter. `onload` and `offload` are called around its body, and timed apart from it."""
        return Phase(self, name, onload, offload, memory)

    def timer(self, name: str) -> Timer:
        """The bare `time/{name}`."""
        return Timer(self, name)

    def take(self, at: float | None = None) -> dict[str, float]:
        """What ended since the last call, by name; `at` is the clock's time of the row."""
        with self._lock:
            self._logged_at = self.clock() if at is None else at
            if self._waiting:
                self._read_marks()
            row, self._row = self._row, {}
            return row | self.rates.take()

    def open(self) -> list[OpenPhase]:
        """The phases that have not ended, but for those that wait for one inside them. A row, or a phase inside that
        begins or ends, is a sign of life.
        """
        found = []
        with self._lock:
            now = self.clock()
            outer = {phase.parent for phase in self._open}
            for phase in self._open:
                if phase not in outer:
                    count, total = self._usual.get(phase.name, (0, 0.0))
                    silence = now - max(phase.heard_at, self._logged_at)
                    found.append(OpenPhase(str(phase.name), silence, total / count if count else None))
        return found

    def enter(self, phase: Phase) -> None:
        with self._lock:
            self._open[phase] = None

    def devices(self) -> Devices | None:
        """What there is to measure; None without a device, or after one has failed."""
        try:
            return self._find_devices() if self._looks_at_memory else None
        except Exception as error:  # noqa: BLE001 - a device in trouble is the trainer's to meet
            self._give_up(error)
            return None

    def look(self, devices: Devices, phase: Phase, point: Point) -> dict[int, DeviceMemory]:
        """The devices' memory as this phase sees it: the peaks are those since it began, whatever phases began inside
        it.
        """
        try:
            with self._lock:
                return {device: self._look_at(devices, device, phase, point) for device in devices.used()}
        except Exception as error:  # noqa: BLE001 - as in devices()
            self._give_up(error)
            return {}

    def mark(self, devices: Devices, like: Mark | None = None) -> Mark | None:
        """A mark in the device's stream; None where none can be put."""
        try:
            return devices.mark(like)
        except Exception as error:  # noqa: BLE001 - as in devices()
            self._give_up(error)
            return None

    def close(self, phase: Phase) -> None:
        """A phase has ended: its numbers go to the next row."""
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

    def _look_at(self, devices: Devices, device: int, phase: Phase, point: Point) -> DeviceMemory:
        seen = devices.memory(device)
        for other in self._open:  # the peaks begin again below, so that those who are open must have them
            if other is not phase or point != "start/offload":
                other.see_peak(device, seen)
        if point == "start/offload":
            devices.reset_peaks(device)
            phase.see_peak(device, seen._replace(max_allocated=seen.allocated, max_reserved=seen.reserved))
        elif point == "end/onload":
            phase.sizes[device] = devices.total(device)
        return phase.since_it_began(device, seen)

    def _read_marks(self) -> None:
        """The device time of phases whose last mark has been reached; the others stay."""
        still = []
        for name, begin, end, tokens in self._waiting:
            try:
                if not end.query():
                    still.append((name, begin, end, tokens))
                    continue
                seconds = begin.elapsed_time(end) / 1000.0
            except Exception as error:  # noqa: BLE001 - as in devices()
                self._give_up(error)
                continue
            key = f"time/{name}/device"
            self._row[key] = self._row.get(key, 0.0) + seconds
            if tokens:
                self.rates.add(name, tokens, seconds)
        self._waiting = still

    def _give_up(self, error: Exception) -> None:
        self._looks_at_memory = False
        if self._warn is not None:
            self._warn(f"devices are no longer measured in phases: {type(error).__name__}: {error}")


class _Keys:
    """The keys of one phase that every run of it writes, spelt once."""

    __slots__ = ("end_rss", "end_vms", "start_rss", "start_vms", "times")

    def __init__(self, name: str) -> None:
        self.times = tuple(f"time/{name}/{part}" for part in PARTS)
        self.start_rss, self.start_vms = f"memory/cpu/{name}/start/rss", f"memory/cpu/{name}/start/vms"
        self.end_rss, self.end_vms = f"memory/cpu/{name}/end/rss", f"memory/cpu/{name}/end/vms"
