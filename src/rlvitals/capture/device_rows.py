"""Rows whose numbers are still on a device: they are copied asynchronously, and the row is written when they arrive.

Reading a scalar from a GPU makes the trainer wait until the GPU has finished all earlier work. So `Run.log` holds at
most one such row back, and the next call writes it first. Values on the host are read at once, because the trainer may
change them before the row is written.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Mapping
from functools import partial
from typing import Any, Literal, NamedTuple, Protocol

from rlvitals.capture.intake import PLAIN, CannotTake, flatten, scalar
from rlvitals.guard import Once, guarded, value_or, words_of
from rlvitals.values import Derived, Value

_ON_THE_HOST = PLAIN | {str, type(None), Value, Derived}
_POLL_SECONDS = 0.001

LAST_WAIT_SECONDS = 5.0
"""How long a process waits for a device after SIGTERM."""

NO_ROW = [""]
"""Names that match no row. While a row is pending, they keep `Run.log` from its fast path."""


Place = Literal["device", "arriving", "host"]


class HostCopy(Protocol):
    """Numbers that are being copied to the host: a copy started here, or `compute.step.Arrival`."""

    def ready(self) -> bool:
        """Whether the numbers have arrived. Never waits."""

    def values(self) -> Mapping[str, Any]:
        """The numbers by name; waits for them."""


class LoggedRow(NamedTuple):
    """The arguments of one `Run.log` call."""

    metrics: dict[str, Any]
    step: int
    now: float


class PendingRow:
    """At most one row that waits for a device. The caller holds the run's lock."""

    def __init__(self, record: Callable[[Mapping[str, Any], int, float], None], warn_once: Once) -> None:
        self._record = record
        self._warn_once = warn_once
        self.row: LoggedRow | None = None
        """The waiting row. Callers on a fast path test it before they call `flush`."""
        self._copies: list[HostCopy] = []

    def hold(self, metrics: Mapping[str, Any], step: int, now: float) -> bool:
        """Keep the row if something in it is still on a device; False if it can be written now."""
        if not isinstance(metrics, Mapping) or all(map(_is_here, metrics.values())):
            return False
        row: dict[str, Any] = {}
        copies: list[HostCopy] = []
        on_device: dict[str, Any] = {}
        for name, value in flatten(metrics, "", 0):
            place = _place_of(value)
            if place == "device":
                on_device[name] = value
                row[name] = None  # keeps its position in the row
            elif place == "arriving":
                copies.append(value)  # its numbers have their own names
            else:
                row[name] = _as_it_is_now(value)
        if on_device:
            copies.append(DeviceCopy(on_device))
        if not copies:
            return False
        self.row, self._copies = LoggedRow(row, step, now), copies
        return True

    def write(self, seconds: float | None = None) -> None:
        """Write the row, if there is one. Waits at most `seconds` for each copy; None waits without a limit.

        Numbers that the device does not deliver are missing from the row; the rest is written.
        """
        row, copies, self.row, self._copies = self.row, self._copies, None, []
        if row is None:
            return
        for copy in copies:
            with guarded(partial(self._not_delivered, row.step)):
                if seconds is not None and not _arrives(copy, seconds):
                    raise TimeoutError(f"the device did not deliver them within {seconds:g} s")
                row.metrics.update(copy.values())
        self._record(*row)

    def flush(self, seconds: float | None = None) -> None:
        """Like `write`, but never raises."""
        with guarded(self.not_recorded):
            self.write(seconds)

    def _not_delivered(self, step: int, error: Exception) -> None:
        self._warn_once(f"numbers of step {step} are missing in its row: {words_of(error)}", "device")

    def not_recorded(self, error: Exception) -> None:
        """Warn that a row is lost, with the reason."""
        self._warn_once(f"a row could not be recorded: {words_of(error)}", f"log {type(error)}")

    def flush_if_ready(self) -> None:
        """Call `flush` if it need not wait."""
        if self.row is not None and all(copy.ready() for copy in self._copies):
            self.flush()

    def forget(self) -> None:
        """Drop the row in a forked child: it belongs to the parent."""
        self.row, self._copies = None, []


class DeviceCopy:
    """Scalars of CUDA devices, gathered into one copy to page-locked memory for each device and type."""

    def __init__(self, scalars: Mapping[str, Any]) -> None:
        torch = sys.modules["torch"]
        groups: dict[Any, list[str]] = {}
        for name, tensor in scalars.items():
            groups.setdefault((tensor.device, tensor.dtype), []).append(name)
        self._parts = []
        for (device, dtype), names in groups.items():
            with torch.cuda.device(device):
                gathered = torch.stack([_bare(scalars[name]) for name in names])
                host = torch.empty(len(names), dtype=dtype, pin_memory=True)
                host.copy_(gathered, non_blocking=True)
                event = torch.cuda.Event()
                event.record()
            self._parts.append((names, host, event))

    def ready(self) -> bool:
        """Whether all numbers have arrived."""
        return all(event.query() for _, _, event in self._parts)

    def values(self) -> dict[str, Any]:
        """The numbers, as Python numbers."""
        found: dict[str, Any] = {}
        for names, host, event in self._parts:
            event.synchronize()
            found.update(zip(names, host.tolist(), strict=True))
        return found


def _bare(tensor: Any) -> Any:
    """The tensor without gradient and dimensions. The tests avoid calls that take a microsecond each."""
    plain = tensor.detach() if tensor.requires_grad else tensor
    return plain.reshape(()) if plain.ndim else plain


def _arrives(copy: HostCopy, seconds: float) -> bool:
    deadline = time.monotonic() + seconds
    while not copy.ready():
        if time.monotonic() > deadline:
            return False
        time.sleep(_POLL_SECONDS)
    return True


def _is_here(value: Any) -> bool:
    """Whether a value is certainly on the host."""
    return type(value) in _ON_THE_HOST


def _place_of(value: Any) -> Place:
    """Where a value's number is. A value that raises counts as on the host; `intake` reports it."""
    return value_or("host", _found_place, value)


def _found_place(value: Any) -> Place:
    return "device" if _is_device_scalar(value) else "arriving" if _is_arriving(value) else "host"


def _is_device_scalar(value: Any) -> bool:
    """Whether it is one number on a CUDA device. Other devices have no page-locked memory; they are read at once."""
    return getattr(value, "is_cuda", False) is True and callable(getattr(value, "numel", None)) and value.numel() == 1


def _is_arriving(value: Any) -> bool:
    """Whether it is a HostCopy. `isinstance` with the protocol would take far longer."""
    return callable(getattr(value, "ready", None)) and callable(getattr(value, "values", None))


def _as_it_is_now(value: Any) -> Any:
    if type(value) in (Value, Derived):
        return value
    try:
        return scalar(value)
    except CannotTake:
        return value  # reported and counted when the row is written
