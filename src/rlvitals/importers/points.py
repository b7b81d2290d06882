"""Combines the single points that trackers store into rows with all values of a step."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator
from itertools import pairwise
from typing import TYPE_CHECKING, Any, NamedTuple

from rlvitals.importers.base import Notes
from rlvitals.importers.padding import family
from rlvitals.records import MAX_STEP, Fields, Row
from rlvitals.store.lines import metric_key

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

_LOT = 2**16
"""How many points are kept as objects at most, before they are packed."""


class Point(NamedTuple):
    """One value of one metric."""

    step: int
    time: float
    """Unix seconds; 0 if unknown."""
    name: str
    value: float


class PackedPoints(NamedTuple):
    """Points as arrays."""

    which: NDArray[np.int32]
    """The number of the metric."""
    steps: NDArray[np.int64]
    times: NDArray[np.float64]
    values: NDArray[np.float64]
    order: NDArray[np.float64]
    """The times, but never before that of an earlier point of the same writer."""

    def taken(self, places: NDArray[Any]) -> PackedPoints:
        """Some of the points, or all in another order."""
        return PackedPoints(*(array[places] for array in self))


class PointTable:
    """The points of a run, at 36 bytes each, and the rows that they give.

    A row has the values of one step; evaluations of the step get a row after it. Points of several writers are read in
    the order of their times.
    """

    def __init__(self, notes: Notes) -> None:
        self._notes = notes
        self._names: dict[str, int] = {}
        self._lots: list[PackedPoints] = []

    def add(self, name: str, steps: Iterable[int], times: Iterable[float], values: Iterable[float]) -> None:
        """Add all points of a metric, in any order; times in Unix seconds, 0 if unknown."""
        import numpy as np

        given = [one if isinstance(one, np.ndarray) else np.array(list(one)) for one in (steps, times, values)]
        self._add(np.full(len(given[0]), self._number(name)), *given, given[1])

    def add_written(self, points: Iterable[Point]) -> None:
        """Add the points of one writer, in the order they were written, whatever their times are."""
        import numpy as np

        latest = 0.0
        lot: list[tuple[int, int, float, float, float]] = []
        for point in points:
            latest = max(latest, point.time)
            lot.append((self._number(point.name), point.step, point.time, point.value, latest))
            if len(lot) == _LOT:
                self._add(*map(np.array, zip(*lot, strict=True)))
                lot = []
        if lot:
            self._add(*map(np.array, zip(*lot, strict=True)))

    def number(self) -> None:
        """If all points have the same step although a metric has several, number the points of each metric from 1."""
        import numpy as np

        points = self._in_order()
        counts = np.bincount(points.which)
        if len(np.unique(points.steps)) != 1 or counts.max() == 1:
            return
        self._notes.say("no step was logged: the points of each metric are numbered from 1")
        by_metric = np.argsort(points.which, kind="stable")
        firsts = np.cumsum(counts) - counts
        points.steps[by_metric] = np.arange(1, len(by_metric) + 1) - np.repeat(firsts, counts)
        self._lots = [points]

    def rows(self) -> Iterator[Row]:
        """The rows by step. If metrics start over, another series of steps follows."""
        import numpy as np

        points = self._in_order()
        names = list(self._names)
        segments = self._segments(points)
        are_evaluations = np.array([family(name) == "eval" for name in names], bool)[points.which]
        order = np.lexsort((are_evaluations, points.steps, segments))
        points, segments, are_evaluations = points.taken(order), segments[order], are_evaluations[order]
        begins = np.zeros(max(len(order) - 1, 0), bool)
        for part in (points.steps, segments, are_evaluations):
            begins |= part[1:] != part[:-1]
        edges = [0, *(np.flatnonzero(begins) + 1).tolist(), len(order)] if len(order) else []
        for begin, end in pairwise(edges):
            here = points.taken(slice(begin, end))  # type: ignore[arg-type]
            known = here.times[here.times > 0]
            numbers = {
                names[place]: value for place, value in zip(here.which.tolist(), here.values.tolist(), strict=True)
            }
            yield Row(int(here.steps[0]), float(known.min()) if len(known) else math.nan, 1, numbers)

    def fields(self) -> list[Fields]:
        """The rows as the importers of local logs return them."""
        return [
            {"step": row.step} | ({} if math.isnan(row.timestamp) else {"timestamp": row.timestamp}) | row.numbers
            for row in self.rows()
        ]

    def _number(self, name: str) -> int:
        return self._names.setdefault(metric_key(name), len(self._names))

    def _add(self, which: NDArray[Any], steps: NDArray[Any], *numbers: NDArray[Any]) -> None:
        import numpy as np

        steps = np.clip(steps, -MAX_STEP - 1, MAX_STEP + 1)  # an impossible one may be too large for an int64
        times, values, order = (one.astype(np.float64) for one in numbers)
        lot = PackedPoints(which.astype(np.int32), steps.astype(np.int64), times, values, order)
        possible = np.abs(lot.steps) <= MAX_STEP
        if not possible.all():
            self._notes.count(
                "1 point has no possible step and was skipped", "{} points have no possible step: skipped",
                int((~possible).sum()),
            )  # fmt: skip
        self._lots.append(lot.taken(possible))

    def _in_order(self) -> PackedPoints:
        """All points in the order they are read."""
        import numpy as np

        if not self._lots:
            self._add(*(np.empty(0) for _ in PackedPoints._fields))
        points = PackedPoints(*(np.concatenate(parts) for parts in zip(*self._lots, strict=True)))
        points = points.taken(np.argsort(points.order, kind="stable"))
        self._lots = [points]
        return points

    def _segments(self, points: PackedPoints) -> NDArray[np.int32]:
        """The segment number of each point. A new segment begins when a metric's step decreases or repeats."""
        import numpy as np

        found = np.zeros(len(points.which), dtype=np.int32)
        by_metric = points.taken(np.argsort(points.which, kind="stable"))
        if ((np.diff(by_metric.steps) > 0) | (np.diff(by_metric.which) > 0)).all():
            return found
        newest: dict[int, int] = {}
        segment = 0
        for place in range(0, len(found), _LOT):
            part = slice(place, place + _LOT)
            numbers = []
            for name, step in zip(points.which[part].tolist(), points.steps[part].tolist(), strict=True):
                if newest.get(name, step - 1) >= step:
                    segment, newest = segment + 1, {}
                newest[name] = step
                numbers.append(segment)
            found[part] = numbers
        return found
