"""A background thread for work that the training thread does not wait for. Jobs run in order, from a bounded queue.

If the queue is full, a new job is dropped and counted, so that training never waits. `finish` runs the remaining jobs.
"""

from __future__ import annotations

import queue
import threading
from collections.abc import Callable
from typing import Generic, TypeVar

from rlvitals.guard import guarded

J = TypeVar("J")


class Background(Generic[J]):
    """Calls `work` with each job. Exceptions are passed to `handle`, and the thread continues."""

    def __init__(
        self, name: str, work: Callable[[J], object], *, room: int, handle: Callable[[Exception], object]
    ) -> None:
        self._work, self._handle = work, handle
        self._jobs: queue.Queue[J | None] = queue.Queue(maxsize=room)
        self._thread = threading.Thread(target=self._run, name=name, daemon=True)
        self._is_started = False
        self.dropped = 0

    def hand_over(self, job: J) -> bool:
        """Queue a job. Returns False if the queue was full and the job was dropped."""
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
        """Run the queued jobs and end. Returns False if they took longer than `seconds`; the thread then continues."""
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
            del job  # frees its tensors before the next job arrives
