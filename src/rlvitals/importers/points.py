"""From single points, as trackers keep them, to rows: the values of one step together."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import NamedTuple

from rlvitals.importers.base import Fields, Notes
from rlvitals.records import MAX_STEP

UNNUMBERED = "no step was logged: the points of each metric are numbered from 1"


class Point(NamedTuple):
    """One value of one metric."""

    step: int
    time: float
    """Unix seconds; 0 where it is not known."""
    name: str
    value: float


def rows_of_points(writers: Iterable[Iterable[Point]], notes: Notes) -> list[Fields]:
    """Rows by step, of one or several writers beside each other."""
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
    """The points, or where all have one step although metrics have several points: counted for each metric."""
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
    """Points in order; another segment begins where a metric's steps go back, or come again."""
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
