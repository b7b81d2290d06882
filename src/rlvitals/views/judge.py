"""One run under judgement: rows go to a monitor, its findings are kept with their place, and what charts need of each
series is kept thinned. Nothing grows with the length of a run.
"""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Iterable, Mapping
from typing import Any, NamedTuple

from rlvitals.health.history import MOST_FINDINGS, History
from rlvitals.health.monitor import Monitor
from rlvitals.health.rows import Fields, is_training_row
from rlvitals.records import Finding, HealthEvent

MAX_BUCKETS = 240
"""Buckets of one series; when they are full, neighbours are joined."""


MOST_UNTRACED = 64


class Said(NamedTuple):
    """A finding and the row it was raised at, counted from 1 over the whole log."""

    point: int
    finding: Finding


class Trace:
    """A series in at most MAX_BUCKETS buckets, each with its lowest and highest value: thinning hides no spike."""

    __slots__ = ("_per_bucket", "highs", "lows", "nonfinite", "points", "steps", "taken")

    def __init__(self) -> None:
        self.points: list[int] = []
        """The row each bucket begins at."""
        self.steps: list[int] = []
        self.lows: list[float] = []
        self.highs: list[float] = []
        """NaN where a bucket holds no finite value."""
        self.taken = 0
        self.nonfinite = 0
        self._per_bucket = 1

    def add(self, point: int, step: int, value: float) -> None:
        """Take one value."""
        self.add_column([(point, step, {"": value})], "")

    def add_column(self, rows: Iterable[tuple[int, int, Mapping[str, Any]]], key: str) -> None:
        """Take what some rows, each with its place and step, have under a name."""
        for point, step, row in rows:
            value = row.get(key)
            if type(value) is not float:
                if not isinstance(value, float | int):
                    continue
                value = _as_float(value)
            if self.taken % self._per_bucket == 0:
                self._begin_bucket(point, step)
            self.taken += 1
            if value - value != 0.0:  # NaN and both infinities
                self.nonfinite += 1
                continue
            if not value >= self.lows[-1]:
                self.lows[-1] = value
            if not value <= self.highs[-1]:
                self.highs[-1] = value

    def _begin_bucket(self, point: int, step: int) -> None:
        if len(self.points) == MAX_BUCKETS:
            self._join()
        if self.taken % self._per_bucket == 0:
            self.points.append(point)
            self.steps.append(step)
            self.lows.append(math.nan)
            self.highs.append(math.nan)

    def _join(self) -> None:
        self.points = self.points[::2]
        self.steps = self.steps[::2]
        self.lows = [_nan_min(*pair) for pair in zip(self.lows[::2], self.lows[1::2], strict=True)]
        self.highs = [-_nan_min(-one, -other) for one, other in zip(self.highs[::2], self.highs[1::2], strict=True)]
        self._per_bucket *= 2

    def to_dict(self) -> dict[str, Any]:
        """Plain lists; a bucket without a finite value has None."""
        return {
            "points": self.taken,
            "nonfinite": self.nonfinite,
            "rows": list(self.points),
            "steps": list(self.steps),
            "low": [_or_none(value) for value in self.lows],
            "high": [_or_none(value) for value in self.highs],
        }


class Judge:
    """Feeds a monitor row by row and remembers what a report needs."""

    def __init__(self, monitor: Monitor) -> None:
        self.monitor = monitor
        self.points = 0
        """Rows taken, restarts included."""
        self.training_rows = 0
        """Those of them that are not evaluations."""
        self.first_step: int | None = None
        self.last_step: int | None = None
        self.history = History()
        self._said_at: deque[int] = deque(maxlen=MOST_FINDINGS)
        self._traces: dict[str, Trace] = {}
        self._untraced: list[tuple[int, int, Mapping[str, Any]]] = []
        """The newest rows, which the traces do not hold yet: many at once cost a fraction of each alone."""
        self._known = (-1, -1)

    def take(self, row: Fields) -> list[Finding]:
        """Judge one row, which is kept for a while and must not be changed; return what is new."""
        self.points += 1
        is_training = is_training_row(row)
        found = self.monitor.update(row)
        step = self.monitor.case.step
        if self.first_step is None or (is_training and not self.training_rows):
            self.first_step = step  # an evaluation before the training is no step of it
        self.training_rows += is_training
        self.last_step = step
        self._trace(row, step)
        self._keep(self.monitor.events)
        return found

    def tick(self, now: float) -> list[Finding]:
        """Tell the time; return what the silence says."""
        found = self.monitor.tick(now)
        self._keep(self.monitor.events)
        return found

    def take_recorded(self, event: HealthEvent) -> None:
        """Take what the run's own clock or epochs led to while it trained: its rows cannot tell it again."""
        self._keep([event])

    @property
    def said(self) -> list[Said]:
        """The findings so far, each with the row it was raised at."""
        return [Said(point, finding) for point, finding in zip(self._said_at, self.history.findings, strict=True)]

    def trace(self, metric: str) -> Trace | None:
        """What is kept of a series."""
        self._catch_up()
        return self._traces.get(metric)

    def _keep(self, events: list[HealthEvent]) -> None:
        for event in events:
            self.history.take(event)
            if event.finding is not None:
                self._said_at.append(self.points)

    def _trace(self, row: Mapping[str, Any], step: int) -> None:
        """Keep the series some rule reads; a finding is about one of them."""
        case = self.monitor.case
        size = (case.names_seen, len(case.parts))
        if size != self._known or self.points < 5:  # a better name may take a signal over within its first points
            self._known = size
            self._catch_up()
            for name in case.read_names:
                self._traces.setdefault(name, Trace())
        self._untraced.append((self.points, step, row))
        if len(self._untraced) >= MOST_UNTRACED:
            self._catch_up()

    def _catch_up(self) -> None:
        for name, trace in self._traces.items():
            trace.add_column(self._untraced, name)
        self._untraced.clear()


def _nan_min(one: float, other: float) -> float:
    return other if math.isnan(one) else one if math.isnan(other) else min(one, other)


def _as_float(value: float) -> float:
    try:
        return float(value)
    except OverflowError:
        return math.inf


def _or_none(value: float) -> float | None:
    return None if math.isnan(value) else value
