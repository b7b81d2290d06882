"""One metric of several runs over each other: a line a run, and the band between the lowest and the highest of runs
that differ by their seed alone.
"""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np

from rlvitals import catalog
from rlvitals.config import flatten
from rlvitals.contract import OverlaidLine, Overlay, Refusal, SeedBand
from rlvitals.errors import UnknownMetric
from rlvitals.views.chart_lines import Axis, Window, lines
from rlvitals.views.run import RunView
from rlvitals.views.thinning import plain_numbers

SEEDS = frozenset({"seed", "random_seed", "data_seed", "rng_seed"})
PLACES = frozenset({"name", "exp_name", "run_name", "output_dir", "logging_dir"})
"""Settings by which runs of one experiment differ anyway."""


def overlay(views: Mapping[str, RunView], name: str, window: Window) -> Overlay:
    """What `/api/overlay` answers. A run without the metric is named; one whose number is another quantity is left out
    with the reason.
    """
    drawn: list[OverlaidLine] = []
    missing: list[str] = []
    refused: list[Refusal] = []
    base: tuple[RunView, str] | None = None
    for run, view in views.items():
        try:
            logged = view.resolve(name)
        except UnknownMetric:
            missing.append(run)
            continue
        base = base or (view, logged)
        judged = _compared(base, view, logged)
        if judged.verdict == "different":
            refused.append({"run": run, "reason": judged.reason})
            continue
        for line in lines(view, [logged], window)["lines"]:
            drawn.append({**line, "run": run, "caution": judged.reason if judged.verdict != "same" else ""})
    return {
        "x": window.x,
        "name": name,
        "lines": drawn,
        "missing": missing,
        "refused": refused,
        "bands": [_band(views, group, name, window) for group in seed_groups(views) if len(group) > 1],
    }


def seed_groups(views: Mapping[str, RunView]) -> list[list[str]]:
    """The runs in groups whose settings are the same but for the seed and their own names."""
    groups: dict[str, list[str]] = {}
    for run, view in views.items():
        kept = {
            key: value for key, value in flatten(view.config).items() if key.rpartition(".")[2] not in SEEDS | PLACES
        }
        groups.setdefault(repr(sorted(kept.items())), []).append(run)
    return list(groups.values())


def _compared(base: tuple[RunView, str], view: RunView, logged: str) -> catalog.Comparison:
    first, own = base
    if view is first:
        return catalog.Comparison("same")
    return catalog.compare(first.meaning(own), view.meaning(logged), same_name=own == logged)


def _band(views: Mapping[str, RunView], group: list[str], name: str, window: Window) -> SeedBand:
    """Lowest, highest and mean over the runs of a group, at as many places of the range they share."""
    curves = []
    for run in group:
        view = views[run]
        try:
            steps, values = view.series(name)
        except UnknownMetric:
            continue
        finite = np.isfinite(values)
        if finite.any():
            curves.append((Axis(view, window.x)(steps[finite]), values[finite]))
    if len(curves) < 2:
        return {"runs": group, "x": [], "low": [], "high": [], "mean": []}
    start = max(float(x[0]) for x, _ in curves)
    end = min(float(x[-1]) for x, _ in curves)
    start = start if window.start is None else max(start, window.start)
    end = end if window.end is None else min(end, window.end)
    places = np.linspace(start, end, min(window.points, 400)) if end > start else np.zeros(0)
    table = np.array([np.interp(places, x, values) for x, values in curves])
    return {
        "runs": group,
        "x": places.tolist(),
        "low": plain_numbers(table.min(axis=0)),
        "high": plain_numbers(table.max(axis=0)),
        "mean": plain_numbers(table.mean(axis=0)),
    }
