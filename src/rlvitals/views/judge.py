"""Judges one run: rows go to a monitor, its findings are kept with their row, and each series is kept downsampled for
charts. Memory does not grow with the length of a run.
"""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Iterable, Mapping
from typing import Any, NamedTuple, Protocol

from rlvitals.health.history import MOST_FINDINGS, History
from rlvitals.health.monitor import Monitor
from rlvitals.health.rows import is_training_row
from rlvitals.records import Fields, Finding, HealthEvent
from rlvitals.store.lines import as_float
from rlvitals.views.thinning import plain_number

MAX_BUCKETS = 240
"""Maximum buckets of one series. When they are full, neighbours are joined."""


MOST_UNTRACED = 64


class RowCount(Protocol):
    """The training rows of a run or a log: a view of it, the reader of its rows, or their judge."""

    @property
    def rows(self) -> int: ...
    @property
    def first_step(self) -> int | None: ...
    @property
    def last_step(self) -> int | None: ...


class RaisedFinding(NamedTuple):
    """A finding and the row it was raised at, counted from 1 over the whole log."""

    point: int
    finding: Finding


class Trace:
    """A series in at most MAX_BUCKETS buckets, each with its lowest and highest value, so that spikes stay visible."""

    __slots__ = ("_per_bucket", "highs", "lows", "nonfinite", "points", "steps", "taken")

    def __init__(self) -> None:
        self.points: list[int] = []
        """The row at which each bucket begins."""
        self.steps: list[int] = []
        self.lows: list[float] = []
        self.highs: list[float] = []
        """NaN where a bucket holds no finite value."""
        self.taken = 0
        self.nonfinite = 0
        self._per_bucket = 1

    def add(self, point: int, step: int, value: float) -> None:
        """Add one value."""
        self.add_column([(point, step, {"": value})], "")

    def add_column(self, rows: Iterable[tuple[int, int, Mapping[str, Any]]], key: str) -> None:
        """Add the values that some rows, each with its row number and step, have under a name."""
        for point, step, row in rows:
            value = row.get(key)
            if type(value) is not float:
                if not isinstance(value, float | int):
                    continue
                value = as_float(value)
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
        """Plain lists; None for a bucket without a finite value."""
        return {
            "points": self.taken,
            "nonfinite": self.nonfinite,
            "rows": list(self.points),
            "steps": list(self.steps),
            "low": [plain_number(value) for value in self.lows],
            "high": [plain_number(value) for value in self.highs],
        }


class Judge:
    """Feeds a monitor row by row and keeps what a report needs."""

    def __init__(self, monitor: Monitor) -> None:
        self.monitor = monitor
        self.points = 0
        """Rows read so far, restarts included."""
        self.rows = 0
        """Rows that are not evaluations, the rows of one step joined."""
        self.first_step: int | None = None
        self.last_step: int | None = None
        self.history = History()
        self._raised_at: deque[int] = deque(maxlen=MOST_FINDINGS)
        self._traces: dict[str, Trace] = {}
        self._untraced: list[tuple[int, int, Mapping[str, Any]]] = []
        """The newest rows, not yet added to the traces. Adding many at once is much faster."""
        self._known = (-1, -1)

    def take(self, row: Fields) -> list[Finding]:
        """Judge one row and return the new findings. The row is kept for a while and must not be changed."""
        self.points += 1
        is_training = is_training_row(row)
        found = self.monitor.update(row)
        step = self.monitor.case.step
        if self.first_step is None or (is_training and not self.rows):
            self.first_step = step  # an evaluation before the training does not count as a step
        self.rows += is_training
        self.last_step = step
        self._trace(row, step)
        self._keep(self.monitor.events)
        return found

    def tick(self, now: float) -> list[Finding]:
        """Pass the current time to the monitor and return the findings about missing rows."""
        found = self.monitor.tick(now)
        self._keep(self.monitor.events)
        return found

    def take_recorded(self, event: HealthEvent) -> None:
        """Add an event of the run's own clock or epochs from the training. It cannot be derived from the rows."""
        self._keep([event])

    @property
    def raised(self) -> list[RaisedFinding]:
        """The findings so far, each with the row it was raised at."""
        return [
            RaisedFinding(point, finding) for point, finding in zip(self._raised_at, self.history.findings, strict=True)
        ]

    def trace(self, metric: str) -> Trace | None:
        """The downsampled series of a metric."""
        self._catch_up()
        return self._traces.get(metric)

    def _keep(self, events: list[HealthEvent]) -> None:
        for event in events:
            self.history.take(event)
            if event.finding is not None:
                self._raised_at.append(self.points)

    def _trace(self, row: Mapping[str, Any], step: int) -> None:
        """Keep the series that a rule reads, because findings are about these."""
        case = self.monitor.case
        size = (case.names_seen, len(case.parts))
        if size != self._known or self.points < 5:  # a better name may replace a signal's name within its first points
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
