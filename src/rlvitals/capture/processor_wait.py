"""How long a training thread waits for a processor because other threads and programs use it.

On a shared machine, tokens per second depend on the other programs. The share of time spent waiting shows how much of
a slowdown they caused, and `rlvitals gate` removes it from a speed before it compares two runs.
"""

from __future__ import annotations

import os
import threading
from collections import deque

SCHEDSTAT = "/proc/thread-self/schedstat"
"""Linux counts, for the thread that opens it: nanoseconds on a processor, nanoseconds waiting for one, time slices."""


class ProcessorWait:
    """The share of its time in which the thread that writes the rows was ready to run and had no processor.

    Time in which the thread sleeps, or waits for a disk, a lock or a GPU, is not counted as waiting. Missing on systems
    without the kernel's counter.
    """

    def __init__(self, window: int, path: str = SCHEDSTAT) -> None:
        """`window` is the number of rows that a share is computed over."""
        self._path = path
        self._file: int | None = None
        self._owner: tuple[int, int] | None = None
        self._waited, self._seen_at = 0, 0.0
        self._window: deque[tuple[float, float]] = deque(maxlen=window)

    def begin(self, now: float) -> None:
        """Count from `now` on. Only the thread that calls this is measured."""
        self.close()
        self._window.clear()
        self._owner = (os.getpid(), threading.get_ident())
        try:
            self._file = os.open(self._path, os.O_RDONLY)
            self._waited, self._seen_at = self._read(self._file), now
        except (OSError, ValueError, IndexError):  # not Linux, or a kernel or a sandbox without the counter
            self.close()

    def take(self, now: float) -> float | None:
        """The share of the seconds of the last rows; None if it is unknown."""
        if self._owner != (os.getpid(), threading.get_ident()):  # a fork, or rows that come from another thread now
            self.begin(now)
            return None
        if self._file is None:
            return None
        try:
            waited = self._read(self._file)
        except (OSError, ValueError, IndexError):
            self.close()
            return None
        self._window.append((now - self._seen_at, (waited - self._waited) / 1e9))
        self._waited, self._seen_at = waited, now
        seconds = sum(seconds for seconds, _ in self._window)
        return min(sum(waited for _, waited in self._window) / seconds, 1.0) if seconds > 0 else None

    def close(self) -> None:
        """Stop counting."""
        if self._file is not None:
            os.close(self._file)
            self._file = None

    @staticmethod
    def _read(file: int) -> int:
        return int(os.pread(file, 96, 0).split()[1])
