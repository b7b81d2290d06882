"""Work that a training thread hands over and does not wait for: one thread, jobs in order, a queue with an end.

Where the queue is full the new job is dropped and counted: training never waits for us. `finish` does what is left.
"""

from __future__ import annotations

import queue
import threading
from collections.abc import Callable
from typing import Generic, TypeVar

from rlvitals.guard import guarded

J = TypeVar("J")


class Background(Generic[J]):
    """Calls `work` with each job. What it raises goes to `handle` and ends nothing."""

    def __init__(
        self, name: str, work: Callable[[J], object], *, room: int, handle: Callable[[Exception], object]
    ) -> None:
        self._work, self._handle = work, handle
        self._jobs: queue.Queue[J | None] = queue.Queue(maxsize=room)
        self._thread = threading.Thread(target=self._run, name=name, daemon=True)
        self._is_started = False
        self.dropped = 0

    def hand_over(self, job: J) -> bool:
        """Queue a job. False: there was no room, and it is dropped."""
        if not self._is_started:
            self._is_started = True
            self._thread.start()
        try:
            self._jobs.put_nowait(job)
        except queue.Full:
            self.dropped += 1
            return False
        return True

    def finish(self, seconds: float) -> bool:
        """Do what is queued and end. False: it was not done within this time; the thread continues while it can."""
        if not self._is_started:
            return True
        try:
            self._jobs.put(None, timeout=seconds)
        except queue.Full:
            return False
        self._thread.join(seconds)
        return not self._thread.is_alive()

    def _run(self) -> None:
        while (job := self._jobs.get()) is not None:
            with guarded(self._handle):
                self._work(job)
            del job  # it holds tensors
