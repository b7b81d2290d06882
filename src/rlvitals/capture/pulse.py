"""A background thread of a recording process, for the heartbeat, retries, timed fsync and hardware samples. `log` never
waits for it.
"""

from __future__ import annotations

import threading
from collections.abc import Callable

from rlvitals.store.lock import HEARTBEAT_SECONDS


class Pulse:
    """Calls `beat` every `seconds` until stopped. `beat` handles its own errors."""

    def __init__(self, beat: Callable[[], None], seconds: float, name: str = "rlvitals-pulse") -> None:
        self._beat = beat
        self._seconds = seconds
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._loop, name=name, daemon=True)
        self._thread.start()

    def stop(self) -> None:
        """Ask the thread to end, and wait at most 5 s for a beat in progress."""
        self._stop.set()
        if self._thread is not threading.current_thread():
            self._thread.join(timeout=5.0)

    def _loop(self) -> None:
        while not self._stop.wait(self._seconds):
            self._beat()


def beat_seconds(fsync: str | float) -> float:
    """Seconds between beats: the interval of the heartbeat file, or of `fsync` if that is shorter."""
    return min(HEARTBEAT_SECONDS, fsync) if isinstance(fsync, float) else HEARTBEAT_SECONDS
