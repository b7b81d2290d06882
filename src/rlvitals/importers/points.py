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

UNNUMBERED = "no step was logged: the points of each metric are numbered from 1"


class Point(NamedTuple):
    """One value of one metric."""

    step: int
    time: float
    """Unix seconds; 0 if unknown."""
    name: str
    value: float


def rows_of_points(writers: Iterable[Iterable[Point]], notes: Notes) -> list[Fields]:
    """Rows by step, merged from one or several writers."""
    merged: dict[tuple[int, int], Fields] = {}
    times: dict[tuple[int, int], float] = {}
    for points in writers:
        for number, segment in enumerate(_segments(points, notes)):
            for point in segment:
                place = (number, point.step)
                row = merged.setdefault(place, {"step": point.step})
                if point.time and place not in times:
                    times[place] = row["timestamp"] = point.time
                row[f"metric/{point.name}" if point.name in ("step", "timestamp") else point.name] = point.value
    return [merged[place] for place in sorted(merged)]


def numbered(points: list[Point], notes: Notes) -> list[Point]:
    """The points. If all have the same step although a metric has several points, the points of each metric are
    numbered from 1.
    """
    names = {point.name for point in points}
    if len({point.step for point in points}) != 1 or len(points) <= len(names):
        return points
    notes.say(UNNUMBERED)
    counts = dict.fromkeys(names, 0)
    found = []
    for point in points:
        counts[point.name] += 1
        found.append(point._replace(step=counts[point.name]))
    return found


def _segments(points: Iterable[Point], notes: Notes) -> Iterator[list[Point]]:
    """Points in order. A new segment begins when a metric's step decreases or repeats."""
    segment: list[Point] = []
    newest: dict[str, int] = {}
    for point in points:
        if abs(point.step) > MAX_STEP:
            notes.count("1 point has no possible step and was skipped", "{} points have no possible step: skipped")
            continue
        if newest.get(point.name, point.step - 1) >= point.step:
            yield segment
            segment, newest = [], {}
        newest[point.name] = point.step
        segment.append(point)
    yield segment


class PointColumns:
    """The points of a run by metric, at 24 bytes each, for trackers that store series instead of rows.

    `rows` returns one row per step, like `rows_of_points`, but evaluations of a step get a separate row.
    """

    def __init__(self, notes: Notes) -> None:
        self._notes = notes
        self._columns: dict[str, tuple[NDArray[np.int64], NDArray[np.float64], NDArray[np.float64]]] = {}

    def add(self, name: str, steps: Iterable[int], times: Iterable[float], values: Iterable[float]) -> None:
        """Add all points of a metric; times in Unix seconds, 0 if unknown."""
        import numpy as np

        kept = [
            np.asarray(given if isinstance(given, np.ndarray) else list(given), kind)
            for given, kind in ((steps, np.int64), (times, np.float64), (values, np.float64))
        ]
        possible = np.abs(kept[0]) <= MAX_STEP
        if not possible.all():
            self._notes.count(
                "1 point has no possible step and was skipped", "{} points have no possible step: skipped",
                int((~possible).sum()),
            )  # fmt: skip
        order = np.argsort(kept[1][possible], kind="stable")
        self._columns[metric_key(name)] = tuple(one[possible][order] for one in kept)  # type: ignore[assignment]

    def number(self) -> None:
        """If all points have the same step although a metric has several, number the points of each metric from 1."""
        import numpy as np

        steps = {int(step) for column, _, _ in self._columns.values() for step in np.unique(column)[:2]}
        if len(steps) == 1 and any(len(column) > 1 for column, _, _ in self._columns.values()):
            self._notes.say(UNNUMBERED)
            for name, (column, times, values) in self._columns.items():
                self._columns[name] = (np.arange(1, len(column) + 1, dtype=np.int64), times, values)

    def rows(self) -> Iterator[Row]:
        """The rows by step. If metrics start over, another series of steps follows."""
        import numpy as np

        if not self._columns:
            return
        names = list(self._columns)
        sizes = [len(column) for column, _, _ in self._columns.values()]
        which = np.repeat(np.arange(len(names), dtype=np.int32), sizes)
        steps, times, values = (np.concatenate(parts) for parts in zip(*self._columns.values(), strict=True))
        order = np.argsort(times, kind="stable")
        which, steps, times, values = which[order], steps[order], times[order], values[order]
        segments = self._segments(which, steps)
        are_evaluations = np.array([family(name) == "eval" for name in names])[which]
        order = np.lexsort((are_evaluations, steps, segments))
        which, steps, times, values = which[order], steps[order], times[order], values[order]
        segments, are_evaluations = segments[order], are_evaluations[order]
        begins = np.flatnonzero(
            (steps[1:] != steps[:-1]) | (segments[1:] != segments[:-1]) | (are_evaluations[1:] != are_evaluations[:-1])
        )
        edges = [0, *(begins + 1).tolist(), len(steps)]
        for begin, end in pairwise(edges):
            cells = zip(which[begin:end].tolist(), values[begin:end].tolist(), strict=True)
            known = times[begin:end][times[begin:end] > 0]
            time = float(known.min()) if len(known) else math.nan
            yield Row(int(steps[begin]), time, 1, {names[place]: value for place, value in cells})

    def _segments(self, which: NDArray[Any], steps: NDArray[np.int64]) -> NDArray[np.int32]:
        """The segment number of each point. A new segment begins when a metric's step decreases or repeats."""
        import numpy as np

        found = np.zeros(len(steps), dtype=np.int32)
        if all((np.diff(column) > 0).all() for column, _, _ in self._columns.values()):
            return found
        newest: dict[int, int] = {}
        segment = 0
        for place in range(0, len(steps), 2**16):
            part = slice(place, place + 2**16)
            numbers = []
            for name, step in zip(which[part].tolist(), steps[part].tolist(), strict=True):
                if newest.get(name, step - 1) >= step:
                    segment, newest = segment + 1, {}
                newest[name] = step
                numbers.append(segment)
            found[part] = numbers
        return found
