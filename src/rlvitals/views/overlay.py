"""Metrics of several runs in one chart: one line per run, or the mean and the band of each group of runs.

Different quantities are not overlaid. The catalogue compares every run's metric with that of the first run that has it,
and a refusal states the reason.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np

from rlvitals import catalog
from rlvitals.contract import ListedMetric, OtherMetric, OverlaidLine, Overlay, Overlays, Refusal, RunBand, RunGroup
from rlvitals.errors import ConfigError
from rlvitals.store.layout import Stream
from rlvitals.views.chart_lines import AxisPlaces, Window, curve
from rlvitals.views.run import RunView
from rlvitals.views.settings import families, is_bookkeeping, is_seed, plain_settings, setting_of, value_text, varying
from rlvitals.views.thinning import plain_numbers
from rlvitals.views.tree import band_of, streams_of

BY_SEED = "seed"
"""Groups runs whose settings differ only in the seed. Any other value is the name of a setting, and runs with the same
value form a group.
"""

BAND_PLACES = 400
MOST_SETTINGS = 200
MOST_OTHERS = 2_000
"""Maximum number of listed metrics that only the other runs log."""


def overlay(views: Mapping[str, RunView], name: str, window: Window) -> Overlay:
    """The response of `/api/overlay`: every run's line, and the bands of runs that differ only in their seed."""
    return _Laid(views, window).overlay(name, run_groups(views, BY_SEED), keep_lines=True)


def overlays(
    views: Mapping[str, RunView], names: Sequence[str], by: str, window: Window, unread: Sequence[Refusal] = ()
) -> Overlays:
    """The response of `/api/overlays`: several metrics of several runs. With `by`, the runs of a group are returned
    only as a band. `unread` are runs that could not be opened.
    """
    laid = _Laid(views, window, unread)
    groups = run_groups(views, by) if by else []
    return {
        "x": window.x,
        "groups": groups,
        "settings": differing_settings(views),
        "overlays": [laid.overlay(name, groups, keep_lines=False) for name in names],
    }


def others(views: Mapping[str, RunView], listed: Mapping[str, Sequence[ListedMetric]]) -> list[OtherMetric]:
    """Metrics that the other runs log and the first run does not, neither under the same name nor as the same quantity.
    `listed` has the metrics of the other runs.
    """
    first, *rest = views
    own = views[first]
    known = {*own.metrics, *(key for name in own.metrics if (key := _quantity(own, name)))}
    found: dict[str | tuple[str, str], OtherMetric] = {}
    for run in rest:
        for metric in listed[run]:
            name, key = metric["name"], _quantity(views[run], metric["name"])
            if name in known or key in known:
                continue
            entry = found.get(name) or (found.get(key) if key else None)
            if entry is None:
                entry = found[name] = {**metric, "logged_by": []}
                if key:
                    found.setdefault(key, entry)
            if run not in entry["logged_by"]:
                entry["logged_by"].append(run)
    return [entry for key, entry in found.items() if isinstance(key, str)]


def _quantity(view: RunView, name: str) -> tuple[str, str] | None:
    """The concept of a metric and its slice; None if it is not in the catalogue."""
    concept = view.concept(name)
    return (concept, repr(sorted(view.labels(name).items()))) if concept else None


def run_groups(views: Mapping[str, RunView], by: str) -> list[RunGroup]:
    """The runs in groups, in the order of their first runs."""
    settings = {run: plain_settings(view.config) for run, view in views.items()}
    if by == BY_SEED:
        # Runs without recorded settings are not known to be the same, so each is its own group.
        described = {run: own for run, own in settings.items() if not all(map(is_bookkeeping, own))}
        labels = {run: run for run in settings} | families(described)
    else:
        labels = {run: f"{by}={value_text(setting_of(own, by))}" for run, own in settings.items()}
    found: dict[str, list[str]] = {}
    for run, label in labels.items():
        found.setdefault(label, []).append(run)
    return [{"label": label, "runs": runs} for label, runs in found.items()]


def differing_settings(views: Mapping[str, RunView]) -> list[str]:
    """The settings by which runs can be grouped: those that differ, and the seed if it differs."""
    differing = varying(plain_settings(view.config) for view in views.values())
    rest = [key for key in differing if not is_seed(key) and not is_bookkeeping(key)]
    return [*([BY_SEED] if any(map(is_seed, differing)) else []), *rest][:MOST_SETTINGS]


class _Laid:
    """Several runs over one x-axis."""

    def __init__(self, views: Mapping[str, RunView], window: Window, unread: Sequence[Refusal] = ()) -> None:
        self._views = views
        self._window = window
        self._axes: dict[str, AxisPlaces] = {}
        self._refused: list[Refusal] = list(unread)
        for run, view in views.items():
            try:
                self._axes[run] = AxisPlaces(view, window.x)
            except ConfigError as error:
                self._refused.append({"run": run, "reason": str(error)})

    def overlay(self, name: str, groups: Sequence[RunGroup], *, keep_lines: bool) -> Overlay:
        """One metric. Runs without it are listed; runs where it is another quantity are refused with the reason."""
        logged: dict[str, str] = {}
        cautions: dict[str, str] = {}
        missing: list[str] = []
        refused = list(self._refused)
        base: tuple[RunView, str] | None = None
        for run in self._axes:
            view = self._views[run]
            own = view.logged_as(name)
            if own is None:
                missing.append(run)
                continue
            base = base or (view, own)
            judged = _compared(base, view, own)
            if judged.verdict == "different":
                refused.append({"run": run, "reason": judged.reason})
                continue
            logged[run] = own
            cautions[run] = judged.reason if judged.verdict != "same" else ""
        bands = [self._band(group, logged) for group in groups if sum(run in logged for run in group["runs"]) > 1]
        banded = set() if keep_lines else {run for band in bands if band["x"] for run in band["runs"]}
        return {
            "x": self._window.x,
            "name": name,
            "typical": band_of(*base) if base else None,
            "lines": [
                self._line(run, own, stream, cautions[run])
                for run, own in logged.items()
                if run not in banded
                for stream in streams_of(self._views[run], own)
            ],
            "missing": missing,
            "refused": refused,
            "bands": bands,
        }

    def _line(self, run: str, name: str, stream: Stream, caution: str) -> OverlaidLine:
        line = curve(self._views[run], name, stream, self._window, self._axes[run])
        is_thinned = line["shown"] < line["total"]
        return {
            "run": run,
            "name": name,
            "stream": stream,
            "total": line["total"],
            "shown": line["shown"],
            "nonfinite": line["nonfinite"],
            "x": line["x"],
            "y": line["y"],
            "low": line["low"] if is_thinned else [],
            "high": line["high"] if is_thinned else [],
            "caution": caution,
        }

    def _band(self, group: RunGroup, logged: Mapping[str, str]) -> RunBand:
        """Lowest, highest and mean value over the runs of a group, at equally spaced points of their common range."""
        runs = [run for run in group["runs"] if run in logged]
        curves = []
        for run in runs:
            steps, values = self._views[run].series(logged[run])
            finite = np.isfinite(values)
            if finite.any():
                curves.append((self._axes[run](steps[finite]), values[finite]))
        made: RunBand = {"label": group["label"], "runs": runs, "x": [], "low": [], "high": [], "mean": []}
        if len(curves) < 2:
            return made
        window = self._window
        start = max(float(x[0]) for x, _ in curves)
        end = min(float(x[-1]) for x, _ in curves)
        start = start if window.start is None else max(start, window.start)
        end = end if window.end is None else min(end, window.end)
        if end <= start:
            return made
        places = np.linspace(start, end, min(window.points, BAND_PLACES))
        table = np.array([np.interp(places, x, values) for x, values in curves])
        made["x"] = places.tolist()
        made["low"], made["high"] = plain_numbers(table.min(axis=0)), plain_numbers(table.max(axis=0))
        made["mean"] = plain_numbers(table.mean(axis=0))
        return made


def _compared(base: tuple[RunView, str], view: RunView, logged: str) -> catalog.Comparison:
    first, own = base
    if view is first:
        return catalog.Comparison("same")
    return catalog.compare(first.meaning(own), view.meaning(logged), same_name=own == logged)
