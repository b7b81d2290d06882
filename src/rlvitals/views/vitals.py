"""The summary of a run: the verdict with its reason, the vital signs as tiles, findings by step, and its progress."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from itertools import pairwise

import numpy as np

from rlvitals import catalog
from rlvitals.catalog.slices import Round
from rlvitals.contract import Division, Now, SliceFacts, SliceValue, StepCell, TileFacts, TileStatus, Vitals
from rlvitals.health.history import is_standing
from rlvitals.records import SEVERITIES, Finding
from rlvitals.splits import held_out_name
from rlvitals.store.layout import RunDir
from rlvitals.store.reader import last_row
from rlvitals.views.changes import change
from rlvitals.views.diagnosis import Diagnosis, is_on_record
from rlvitals.views.headlines import last_sign
from rlvitals.views.run import RunView
from rlvitals.views.series import Series
from rlvitals.views.thinning import plain_number, thin
from rlvitals.views.tree import MOST_LISTED, band_of, described, slice_facts

SPARK_POINTS = 60
MOST_SLICES = 40
"""Maximum slices that a tile lists."""

BAR_CELLS = 60

ETA_ROWS = 50
"""Rows at the end from which the pace is computed."""


def vitals(view: RunView, diagnosis: Diagnosis) -> Vitals:
    """The response of `/api/run`."""
    info = view.info
    return {
        "name": view.name,
        "id": info.id,
        "status": view.status,
        "status_note": view.status_note,
        "algorithm": view.algorithm,
        "framework": view.framework,
        "started": info.created,
        "ended": info.ended,
        "rows": view.rows,
        "ghost_rows": view.ghost_rows,
        "ranks": view.ranks,
        "verdict": diagnosis.verdict,
        "reason": diagnosis.reason,
        "judging": diagnosis.is_pending,
        "was_watched": is_on_record(view),
        "tiles": tiles(view, diagnosis),
        "step_bar": step_bar(view, diagnosis.findings),
        "now": now(view),
        "attempts": view.attempts,
        "config": view.config,
        "environment": environment(view),
        "trackers": view.trackers,
        "problems": view.problems,
    }


def environment(view: RunView) -> dict[str, object]:
    """The environment of the run, as far as it was recorded."""
    info = asdict(view.info)
    keys = ("host", "pid", "python", "platform", "packages", "git", "command", "written_by")
    return {key: info[key] for key in keys if info[key]}


def tiles(view: RunView, diagnosis: Diagnosis) -> list[TileFacts]:
    """The vital signs of a run, each with the severity of its findings."""
    standing = standing_findings(diagnosis)
    facts_of = slice_facts(view.sliced, view.reader)
    stage = catalog.stage_at(view.last_step, view.info.total_steps)
    found = []
    for name in view.vital_signs:
        members = slices_of(name, view.sliced, facts_of)
        found.append(_tile(view, name, stage, standing, members, division=_division(view, members, facts_of)))
    return found


def slices_of(name: str, groups: Sequence[catalog.Sliced], facts_of: Mapping[str, SliceFacts]) -> list[str]:
    """The slices of a vital sign, which is either their whole or one of them."""
    own = [group for group in groups if name == group.whole or name in group.names.values()]
    return max(([one for one in group.names.values() if one in facts_of] for group in own), key=len, default=[])


def mean_of(members: Mapping[str, Series]) -> Series:
    """The series that represents the whole of these slices, as the doctor reads it (`slices.Round`)."""
    rows: dict[int, dict[str, float]] = {}
    for name, series in members.items():
        for step, value in zip(series.steps.tolist(), series.values.tolist(), strict=True):
            if math.isfinite(value):
                rows.setdefault(step, {})[name] = value
    newest = Round()
    steps, means = [], []
    for step in sorted(rows):
        for name, value in rows[step].items():
            newest.take(name, value)
        if (mean := newest.mean()) is not None:
            steps.append(step)
            means.append(mean)
    return Series(np.array(steps), np.array(means))


def title_of_mean(title: str, count: int) -> str:
    """The title of a sign of which only slices are logged."""
    return f"{title}, mean of {count}"


def _division(view: RunView, members: Sequence[str], facts_of: Mapping[str, SliceFacts]) -> Division:
    if not members:
        return {"divided_by": "", "slices": []}
    listed: list[SliceValue] = [
        {"label": facts_of[one]["label"], "name": one, "value": _last_finite(view.series(one))}
        for one in members[:MOST_SLICES]
    ]
    return {"divided_by": facts_of[members[0]]["title"].rpartition(" by ")[2], "slices": listed}


def _tile(
    view: RunView,
    name: str,
    stage: catalog.Stage,
    standing: Sequence[Finding],
    members: Sequence[str],
    *,
    division: Division,
) -> TileFacts:
    is_mean = name in members  # the whole is not logged: one of its slices is the sign and stands for all of them
    series = mean_of({one: view.series(one) for one in members}) if is_mean else view.series(name)
    band = band_of(view, name, stage)
    status, why = status_of(name, standing, members, evaluated=view.is_evaluated(name))
    what = described(view, name)
    if is_mean:
        what["title"] = title_of_mean(view.reader.title(name, evaluated=view.is_evaluated(name)), len(members))
    spark = thin(series.steps, series.values, series.steps, SPARK_POINTS)
    return {
        **what,
        **division,
        "value": _last_finite(series),
        "change": change(series.steps, series.values, what["direction"]),
        "band": band,
        "status": status,
        "why": why,
        "spark": list(zip(spark["x"], spark["y"], strict=True)),
        "points": spark["total"],
    }


def standing_findings(diagnosis: Diagnosis) -> list[Finding]:
    """The findings that have not recovered."""
    return list(filter(is_standing, diagnosis.findings))


def status_of(
    name: str, standing: Sequence[Finding], members: Sequence[str] = (), *, evaluated: bool = False
) -> tuple[TileStatus, str]:
    """act, watch or ok, and a text about the most severe open finding on a metric or one of its slices (`members`). The
    text has the finding's title, with the numbers of the step at which it was raised, and its onset. A value outside
    the typical range alone does not change the status. `evaluated`: only evaluations log the name, which the rules read
    as held out.
    """
    known = {held_out_name(one) if evaluated else one for one in (name, *members)}
    about = [found for found in standing if not known.isdisjoint(found.metrics) and found.severity != "info"]
    if not about:
        return "ok", ""
    worst = max(about, key=lambda found: SEVERITIES.index(found.severity))
    since = f"{worst.title}, since step {worst.onset_step}"
    return ("act" if worst.severity == "critical" else "watch"), since


def step_bar(view: RunView, findings: Sequence[Finding]) -> list[StepCell]:
    """The steps so far in equal cells, each with its highest severity and the positions of its findings in the list,
    the most severe first. A finding covers the steps from its onset until it recovered.
    """
    columns, lives = view.columns("train")[0]
    steps = columns.steps[lives]
    if not len(steps):
        return []
    first, last = int(steps.min()), int(steps.max())
    count = min(BAR_CELLS, last + 1 - first)
    edges = [first + (last + 1 - first) * place // count for place in range(count + 1)]
    cells: list[StepCell] = [
        {"from": low, "to": high - 1, "severity": None, "findings": []} for low, high in pairwise(edges)
    ]
    by_severity = sorted(enumerate(findings), key=lambda item: -SEVERITIES.index(item[1].severity))
    for place, found in by_severity:
        end = last if found.recovered_step is None else found.recovered_step
        for cell in cells:
            if cell["from"] <= end and found.onset_step <= cell["to"]:
                cell["findings"].append(place)
                cell["severity"] = cell["severity"] or found.severity
    return cells


def now(view: RunView) -> Now:
    """The current state of the run: step, time left, speed, the phase that ended last."""
    rows = view.last_rows(ETA_ROWS)
    stamps = [(row.step, row.timestamp) for row in rows if math.isfinite(row.timestamp)]
    total = view.info.total_steps
    last = view.last_step
    phase = last_row(RunDir(view.path).log("phases"))
    return {
        "step": last,
        "total_steps": total,
        "eta_s": time_left(stamps, total) if view.status == "running" else None,
        "tokens_per_s": _speed(view),
        "phase": phase.texts.get("phase") if phase is not None and view.status == "running" else None,
        "updated": last_sign(view.info, rows),
    }


def time_left(stamps: Sequence[tuple[int, float]], total: int | None) -> float | None:
    """Seconds to the last step at the pace of (step, time) pairs; None if the pace is unknown.

    >>> time_left([(10, 100.0), (20, 120.0)], 50)
    60.0
    """
    if total is None or len(stamps) < 2:
        return None
    (first, began), (last, ended) = stamps[0], stamps[-1]
    if last <= first or ended <= began:
        return None
    return max(0, total - last) * (ended - began) / (last - first)


def _speed(view: RunView) -> float | None:
    speeds = (name for name in view.metrics[:MOST_LISTED] if view.concept(name) == "perf.tokens_per_s")
    return next((_last_finite(view.series(name)) for name in speeds), None)


def _last_finite(series: Series) -> float | None:
    return plain_number(float(series.values[-1])) if len(series.values) else None
