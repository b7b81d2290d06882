"""Metrics as lines to draw: downsampled, over any x-axis, with the typical range, findings and abandoned attempts."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from rlvitals.contract import Bounds, Curve, DrawnLine, Ghost, Lines, finding_facts
from rlvitals.errors import ConfigError
from rlvitals.records import Finding
from rlvitals.store.layout import Stream
from rlvitals.views.query import AXIS_CONCEPTS, StoredRun, in_order
from rlvitals.views.thinning import thin
from rlvitals.views.tree import band_of, streams_of

POINTS = 800
GHOST_POINTS = 200
AXES = ("step", "time", *AXIS_CONCEPTS)


class Window(NamedTuple):
    """The visible part of the x-axis, and the number of points."""

    x: str = "step"
    start: float | None = None
    end: float | None = None
    points: int = POINTS


def lines(view: StoredRun, names: Sequence[str], window: Window, findings: Sequence[Finding] = ()) -> Lines:
    """The response of `/api/series`. Raises UnknownMetric, and ConfigError for an axis the run does not have."""
    place = AxisPlaces(view, window.x)
    drawn: list[DrawnLine] = []
    bands: dict[str, Bounds] = {}
    for asked in names:
        name = view.resolve(asked)
        drawn += [_line(view, name, stream, window, place) for stream in streams_of(view, name)]
        if (band := band_of(view, name)) is not None:
            bands[name] = band
    logged = {line["name"] for line in drawn}
    marked = [found for found in findings if logged.intersection(found.metrics)]
    at: list[float] = place(np.array([found.onset_step for found in marked], dtype=np.int64)).tolist()
    return {
        "x": window.x,
        "lines": drawn,
        "bands": bands,
        "findings": [{**finding_facts(found), "x": x} for x, found in zip(at, marked, strict=True)],
    }


class AxisPlaces:
    """Places steps on an x-axis. Rows without an axis value, such as evaluations, are interpolated between rows with
    one.
    """

    def __init__(self, view: StoredRun, x: str) -> None:
        self._known: tuple[NDArray[Any], NDArray[Any]] | None = None
        if x == "step":
            return
        if x == "time":
            columns, lives = view.columns("train")[0]
            has_time = lives & np.isfinite(columns.timestamps)
            self._known = in_order(columns.steps[has_time], columns.timestamps[has_time])
        elif x in AXIS_CONCEPTS:
            steps, places = view.series(_axis_name(view, x), stream="train")
            finite = np.isfinite(places)
            self._known = steps[finite], places[finite]
        else:
            raise ConfigError(f"there is no x-axis {x!r}. Axes: {', '.join(AXES)}")
        if not len(self._known[0]):
            raise ConfigError(f"this run has no {x} axis: no row carries one")

    def __call__(self, steps: NDArray[Any]) -> NDArray[Any]:
        return steps if self._known is None else np.interp(steps, *self._known)


def _axis_name(view: StoredRun, x: str) -> str:
    columns, _ = view.columns("train")[0]
    for name in columns.names:
        if name == x or view.concept(name) == AXIS_CONCEPTS[x]:
            return name
    raise ConfigError(f"this run has no {x} axis: no row carries a metric that means {AXIS_CONCEPTS[x]!r}")


def curve(view: StoredRun, name: str, stream: Stream, window: Window, place: AxisPlaces) -> Curve:
    """One metric of one stream, downsampled."""
    steps, values = view.series(name, stream=stream)
    x = place(steps)
    seen = _seen(x, window)
    return thin(x[seen], values[seen], steps[seen], window.points)


def _line(view: StoredRun, name: str, stream: Stream, window: Window, place: AxisPlaces) -> DrawnLine:
    line = curve(view, name, stream, window, place)
    return {"name": name, "stream": stream, **line, "ghosts": _ghosts(view, name, stream, window, place)}


def _ghosts(view: StoredRun, name: str, stream: Stream, window: Window, place: AxisPlaces) -> list[Ghost]:
    """The values of all abandoned attempts as one line."""
    if len(view.attempts) < 2:
        return []
    steps, values = view.series(name, stream=stream, ghosts=True)
    x = place(steps)
    seen = _seen(x, window)
    line = thin(x[seen], values[seen], steps[seen], GHOST_POINTS)
    return [{"x": line["x"], "y": line["y"]}] if line["shown"] else []


def _seen(x: NDArray[Any], window: Window) -> NDArray[np.bool_] | slice:
    is_whole = window.start is None and window.end is None  # a slice copies nothing
    return slice(None) if is_whole else within(x, window.start, window.end)


def within(x: NDArray[Any], start: float | None, end: float | None) -> NDArray[np.bool_]:
    """Which places lie between two bounds. A bound of None is open."""
    return (x >= (-np.inf if start is None else start)) & (x <= (np.inf if end is None else end))
