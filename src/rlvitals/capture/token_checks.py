"""Compares recorded tokens with the row of their step, once both are recorded and the step is over.

Rollouts may be recorded before or after the row of their step. A step is over when a row of a later step is logged.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from rlvitals.config import Settings, by_last_name
from rlvitals.guard import words_of
from rlvitals.records import Group, HealthEvent, RunInfo
from rlvitals.store.process import renew_after_fork
from rlvitals.terminal import logger

if TYPE_CHECKING:
    from rlvitals.health.rechecks import Rechecks
    from rlvitals.health.rulebook import Rulebook

MOST_STEPS, MOST_WAITING = 32, 400_000
"""Largest number of waiting steps and tokens. Beyond it, the thread that records the rollouts compares them."""


WAIT_SECONDS = 2.0


class TokenChecks:
    """The rollouts and rows to compare. The run's lock guards them and is not held during the computation."""

    def __init__(self, info: RunInfo, settings: Settings, rulebook: Callable[[], Rulebook]) -> None:
        """`rulebook` is called at the first comparison."""
        self.is_used = False
        """Whether any tokens were recorded."""
        self._info, self._settings = info, settings
        self._groups: dict[int, list[Group]] = {}
        self._rows: dict[int, tuple[dict[str, float], float]] = {}
        self._rulebook = rulebook
        self._rechecks: Rechecks | None = None  # created at the first comparison: most runs record no tokens
        self._is_over = False
        self._left_standing: frozenset[str] = frozenset()
        self._lock = threading.RLock()  # one thread compares at a time, in order
        renew_after_fork(self, "_lock")

    @property
    def standing(self) -> frozenset[str]:
        """The rules in alarm."""
        return self._rechecks.standing if self._rechecks is not None else self._left_standing

    def stand(self, rules: Iterable[str]) -> None:
        """Set the rules that an earlier attempt left in alarm."""
        self._left_standing = frozenset(rules)
        if self._rechecks is not None:
            self._rechecks.stand(rules)

    def take_row(self, step: int, numbers: Mapping[str, Any], now: float) -> None:
        """Take a row, or a part of one. The caller holds the run's lock."""
        found = {name: float(number) for name, number in numbers.items() if isinstance(number, int | float)}
        known, _ = self._rows.pop(step, ({}, 0.0))
        self._rows[step] = known | found, now
        if len(self._rows) > 4 * MOST_STEPS:
            del self._rows[next(iter(self._rows))]

    def take_groups(self, groups: Sequence[Group], step: int) -> None:
        """Take rollouts, some of them with tokens. The caller holds the run's lock."""
        self.is_used = not self._is_over
        self._groups.setdefault(step, []).extend(replace(group, step=step) for group in groups)
        if len(self._groups) > 2 * MOST_STEPS:  # rollouts whose rows never come must not pile up
            del self._groups[min(self._groups)]

    @property
    def is_full(self) -> bool:
        """Whether more steps or tokens are waiting than allowed."""
        traces = (rollout.trace for groups in self._groups.values() for group in groups for rollout in group.rollouts)
        return len(self._groups) > MOST_STEPS or sum(trace.length for trace in traces if trace) > MOST_WAITING

    def checked(self, lock: AbstractContextManager[Any], *, is_last: bool) -> Iterator[tuple[float, list[HealthEvent]]]:
        """Compare the steps that are over; yields the events of each, with its row's time. `lock` is the run's lock."""
        from rlvitals.compute.recomputation import recheck
        from rlvitals.health.rechecks import Rechecks

        if not self._lock.acquire(timeout=WAIT_SECONDS):  # its holder may wait for a lock of the caller
            return
        try:
            config = by_last_name(self._settings.config)
            if self._rechecks is None:
                with lock:
                    self._rechecks = Rechecks(self._rulebook())
                    self._rechecks.stand(self._left_standing)
            while not self._is_over:
                with lock:
                    due = self._next(is_last=is_last)
                if due is None:
                    return
                groups, (numbers, now) = due
                found = recheck(
                    groups, numbers, config=config, framework=self._info.framework, algorithm=self._info.algorithm
                )
                if found is not None and (events := self._rechecks.take(found)):
                    yield now, events
        finally:
            self._lock.release()

    def give_up(self, error: Exception) -> None:
        """Stop comparing."""
        self._rechecks, self.is_used, self._is_over = None, False, True
        logger.warning("recorded tokens are not compared with the logged values: %s", words_of(error))

    def _next(self, *, is_last: bool) -> tuple[list[Group], tuple[dict[str, float], float]] | None:
        newest = max(self._rows, default=None)
        for step in sorted(self._groups):
            if step in self._rows and (is_last or (newest is not None and newest > step)):
                return self._groups.pop(step), self._rows[step]
        return None
