"""Samples of the machine, `logs/system.jsonl`: their own axis, and several of them as one for those who go by rows."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import replace
from pathlib import Path

from rlvitals.records import Row
from rlvitals.store.reader import read_rows

_AVERAGED = ("System/CPU_Percent", "System/GPU_Utilization")
"""Shares of time. Of everything else the highest counts: memory that was full for a moment was full."""


def read_samples(log: Path) -> Iterator[Row]:
    """Every sample with its place in the log as its step, 0 for the first: an axis that never goes back."""
    for place, row in enumerate(read_rows(log)):
        yield replace(row, step=place)


class Samples:
    """The samples since the last row, as one.

    >>> samples = Samples()
    >>> samples.add({"System/GPU_Utilization": 90.0, "System/GPU_Memory_Percent": 60.0})
    >>> samples.add({"System/GPU_Utilization": 50.0, "System/GPU_Memory_Percent": 80.0})
    >>> samples.take(), samples.take()
    ({'System/GPU_Utilization': 70.0, 'System/GPU_Memory_Percent': 80.0}, {})
    """

    def __init__(self) -> None:
        self._joined: dict[str, float] = {}
        self._counts: dict[str, int] = {}

    def add(self, sample: Mapping[str, float]) -> None:
        """One more. The values of single cards, `.../0`, are left to those who read the samples themselves."""
        for name, value in sample.items():
            if name.count("/") > 1:
                continue
            count = self._counts[name] = self._counts.get(name, 0) + 1
            known = self._joined.get(name, value)
            self._joined[name] = known + (value - known) / count if name in _AVERAGED else max(known, value)

    def take(self) -> dict[str, float]:
        """All since the last call as one; empty without any."""
        joined = self._joined
        if joined:
            self._joined, self._counts = {}, {}
        return joined
