"""Scans the texts of rollouts while a run trains, within a time limit.

The background thread calls `scan` for a small share of the time. Steps that arrive faster than that are skipped;
`rlvitals scan` reads all of them afterwards.
"""

from __future__ import annotations

import threading
import time
from collections import Counter, deque
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager
from typing import TYPE_CHECKING, Any

from rlvitals.guard import words_of
from rlvitals.records import Group, HealthEvent, Severity
from rlvitals.store.process import renew_after_fork
from rlvitals.terminal import logger

if TYPE_CHECKING:
    from rlvitals.health.rulebook import Rulebook
    from rlvitals.scan import Scans

MOST_WAITING = 64
"""Largest number of waiting `log_groups` calls; beyond it the oldest is skipped."""
MOST_OF_A_CALL = 128
"""Largest number of rollouts scanned per call: the first groups, each as a whole."""
TIME_SHARE, ALLOWANCE = 0.02, 2.0
"""Scanning may take this share of the time since the first rollouts, plus this many seconds."""
WAIT_SECONDS = 2.0


class TextScans:
    """The queue of rollouts to scan. The run's lock guards the queue and is not held while scanning."""

    def __init__(self, rulebook: Callable[[], Rulebook], scanners: Sequence[Any] = ()) -> None:
        """`rulebook` is called and the user's scanners are loaded at the first scan."""
        self.is_used = False
        """Whether any texts were recorded."""
        self.left_out = 0
        """Number of rollouts that were skipped because of the limits."""
        self._rulebook = rulebook
        self._own = scanners
        self._waiting: deque[tuple[int, int, list[Group], float]] = deque()  # step, first number, groups, time
        self._numbered: Counter[int] = Counter()  # groups of the newest steps
        self._scans: Scans | None = None
        self._left_standing: dict[str, Severity] = {}
        self._began, self._spent = 0.0, 0.0
        self._is_over = False
        self._lock = threading.RLock()
        renew_after_fork(self, "_lock")

    @property
    def standing(self) -> dict[str, Severity]:
        """The rules in alarm."""
        return self._scans.rules.standing if self._scans is not None else self._left_standing

    def stand(self, rules: dict[str, Severity]) -> None:
        """Set the rules that an earlier attempt left in alarm."""
        self._left_standing = rules
        if self._scans is not None:
            self._scans.rules.stand(rules)

    def take_groups(self, groups: Sequence[Group], step: int, now: float) -> None:
        """Queue recorded rollouts. The caller holds the run's lock."""
        if self._is_over or not any(turn.text or turn.calls for g in groups for r in g.rollouts for turn in r.turns):
            return
        if not self.is_used:
            self.is_used, self._began = True, time.monotonic()
        first = self._numbered[step] + 1
        self._numbered[step] += len(groups)
        if len(self._numbered) > MOST_WAITING:
            del self._numbered[min(self._numbered)]
        taken, rollouts = list[Group](), 0
        for group in groups:
            if taken and rollouts + len(group.rollouts) > MOST_OF_A_CALL:
                break
            taken.append(group)
            rollouts += len(group.rollouts)
        self.left_out += sum(len(group.rollouts) for group in groups) - rollouts
        self._waiting.append((step, first, taken, now))
        if len(self._waiting) > MOST_WAITING:
            dropped = self._waiting.popleft()
            self.left_out += sum(len(group.rollouts) for group in dropped[2])

    def scanned(self, lock: AbstractContextManager[Any]) -> Iterator[tuple[float, list[HealthEvent]]]:
        """Scan the queue; yields the events of each step, with the time of its rollouts. `lock` is the run's lock."""
        from rlvitals.scan import Scans, load_scanners

        if not self._lock.acquire(timeout=WAIT_SECONDS):
            return
        try:
            if self._scans is None:
                own = load_scanners(*self._own)
                with lock:
                    self._scans = Scans(self._rulebook(), own)
                    self._scans.rules.stand(self._left_standing)
            while not self._is_over and self._spent < ALLOWANCE + TIME_SHARE * (time.monotonic() - self._began):
                with lock:
                    if not self._waiting:
                        return
                    step, first, groups, now = self._waiting.popleft()
                began = time.thread_time()
                events = self._scans.take(groups, step, first)
                self._spent += time.thread_time() - began
                if events:
                    yield now, events
        finally:
            self._lock.release()

    def give_up(self, error: Exception) -> None:
        """Stop scanning."""
        self._scans, self.is_used, self._is_over = None, False, True
        logger.warning("the texts of rollouts are not scanned: %s", words_of(error))
