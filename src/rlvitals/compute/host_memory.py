"""Places in host memory that a device writes its results to.

On CUDA a place is page-locked, so a kernel can write to it directly and the host does not wait. torch does not track
such writes, so a place is never returned to torch's allocator. It is reused once its reader is gone and the device has
finished writing to it.
"""

from __future__ import annotations

import weakref
from collections import deque
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import torch
    from torch import Tensor

LOOKED_AT = 4
"""Places that `take` checks for a free one. A place whose reader is still alive is skipped."""


class HostNumbers:
    """Numbers in host memory, and an event that marks when the device has written them."""

    def __init__(self, size: int, device: torch.device) -> None:
        import torch

        on_cuda = device.type == "cuda"
        self.numbers: Tensor = torch.empty(size, dtype=torch.float64, pin_memory=on_cuda)
        self.address = self.numbers.data_ptr()
        self._event: torch.Event | None = torch.Event(device) if on_cuda else None
        self.reader: weakref.ref[object] | None = None

    def record(self) -> None:
        """Mark the work queued so far as the work that writes these numbers."""
        if self._event is not None:
            self._event.record()

    def is_reached(self) -> bool:
        """Whether the device has written. Never waits."""
        return self._event is None or bool(self._event.query())

    def wait(self) -> None:
        """Wait until the device has written."""
        if self._event is not None:
            self._event.synchronize()

    def is_free(self) -> bool:
        """Whether its reader is gone and no pending work writes to it."""
        return (self.reader is None or self.reader() is None) and self.is_reached()


class HostPlaces:
    """All places of one size, by device. Threads may share it: a place in use is removed until `expect`."""

    def __init__(self, size: int) -> None:
        self._size = size
        self._places: dict[torch.device, deque[HostNumbers]] = {}
        self._kept: list[HostNumbers] = []

    def take(self, device: torch.device) -> HostNumbers:
        """Take a place for one call's numbers. No other caller gets it before `expect`."""
        places = self._places.setdefault(device, deque())
        for _ in range(min(len(places), LOOKED_AT)):
            try:
                place = places.popleft()
            except IndexError:  # another thread was quicker
                break
            if place.is_free():
                return place
            places.append(place)
        return HostNumbers(self._size, device)

    def expect(self, place: HostNumbers, device: torch.device, reader: object) -> None:
        """Record that `reader` will read the results of the work queued so far. The place is free once it is gone."""
        place.reader = weakref.ref(reader)
        place.record()
        self._places[device].append(place)

    def keep(self, device: torch.device) -> HostNumbers:
        """A place that no other caller ever gets, for example for a captured graph."""
        self._kept.append(HostNumbers(self._size, device))
        return self._kept[-1]
