"""Places in the host's memory where a device's numbers arrive.

On CUDA a place is page-locked, so that a kernel can write there itself and nobody waits. torch does not know of such
writes, so a place is never given back to it: it is used again when nobody expects its numbers any more and the device
has passed it.
"""

from __future__ import annotations

import weakref
from collections import deque
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import torch
    from torch import Tensor

LOOKED_AT = 4
"""Places that are looked at for one that is free; those that somebody keeps for long are skipped."""


class HostNumbers:
    """Some numbers in the host's memory, and when the device has written them."""

    def __init__(self, size: int, device: torch.device) -> None:
        import torch

        on_cuda = device.type == "cuda"
        self.numbers: Tensor = torch.empty(size, dtype=torch.float64, pin_memory=on_cuda)
        self.address = self.numbers.data_ptr()
        self._event: torch.Event | None = torch.Event(device) if on_cuda else None
        self.reader: weakref.ref[object] | None = None

    def record(self) -> None:
        """The numbers are those of what was queued so far."""
        if self._event is not None:
            self._event.record()

    def is_reached(self) -> bool:
        """Whether the device has written. Never waits."""
        return self._event is None or bool(self._event.query())

    def wait(self) -> None:
        """Until the device has written."""
        if self._event is not None:
            self._event.synchronize()

    def is_free(self) -> bool:
        """Whether nobody reads it any more and nothing writes to it."""
        return (self.reader is None or self.reader() is None) and self.is_reached()


class HostPlaces:
    """All places of one size, by device. Threads may share it: a place that is in use is in nobody else's reach."""

    def __init__(self, size: int) -> None:
        self._size = size
        self._places: dict[torch.device, deque[HostNumbers]] = {}
        self._kept: list[HostNumbers] = []

    def take(self, device: torch.device) -> HostNumbers:
        """A place for one call's numbers; nobody else gets it before `expect`."""
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
        """What was queued so far will be read by `reader`; when it is gone the place can be used again."""
        place.reader = weakref.ref(reader)
        place.record()
        self._places[device].append(place)

    def keep(self, device: torch.device) -> HostNumbers:
        """A place that is never given to anybody else, as for a captured graph."""
        self._kept.append(HostNumbers(self._size, device))
        return self._kept[-1]
