"""Everything a report tells of one run or foreign log, gathered once: the page and the Markdown are drawn from it.

The verdict is the one `check` gives: the log judged row by row, now.
"""

from __future__ import annotations

import os
import time
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any

from rlvitals.config import flatten, masked
from rlvitals.errors import ConfigError, RlvitalsError
from rlvitals.records import Group, Rollout
from rlvitals.render.run_plots import Picture
from rlvitals.store.findings import read_events
from rlvitals.store.layout import RunDir
from rlvitals.views.best import Best
from rlvitals.views.check import Report, check_source
from rlvitals.views.compare import RunComparison, compare_runs
from rlvitals.views.epochs import Epochs
from rlvitals.views.evaluations import Evaluations, read_trend
from rlvitals.views.findings import Diagnosis, requests_about
from rlvitals.views.logs import LogView, open_any
from rlvitals.views.plots import comparison, overview
from rlvitals.views.query import RunView
from rlvitals.views.rollouts import Hit
from rlvitals.views.sources import source_of_log, source_of_run
from rlvitals.views.summary import ordered_metrics
from rlvitals.views.vitals import environment, step_bar, tiles

SHOWN_ROLLOUTS = 3
"""Best ones, and worst ones."""
LOOKED_AT = 60
"""Rollouts of the highest (or lowest) reward among which different prompts are looked for."""
MOST_VALUES = 40
"""Metrics in the table of best and final values."""


@dataclass(frozen=True, slots=True)
class ShownRollout:
    """A rollout with where it is and the group it is from."""

    hit: Hit
    group: Group
    rollout: Rollout


@dataclass(frozen=True, slots=True)
class Compared:
    """The run beside others."""

    facts: RunComparison
    curves: Picture | None
    """None where no metric compares."""


@dataclass(frozen=True, slots=True)
class RunReport:
    """What there is to tell. What a run does not have is None or empty."""

    name: str
    about: dict[str, Any]
    """Status, algorithm, framework, rows, steps, times."""
    check: Report
    done: dict[str, str]
    """What was asked of the trainer because of a rule, and its answer."""
    tiles: list[dict[str, Any]]
    step_bar: list[dict[str, Any]]
    curves: Picture | None
    values: list[Best]
    """Best and last values, the vital signs first."""
    values_left_out: int
    epochs: Epochs | None
    evaluations: Evaluations | None
    best_rollouts: list[ShownRollout]
    worst_rollouts: list[ShownRollout]
    config: dict[str, Any]
    """Dotted key -> value, secrets masked."""
    environment: dict[str, Any]
    attempts: list[dict[str, Any]]
    compared: Compared | None
    made: float
    """Unix seconds."""

    def to_dict(self) -> dict[str, Any]:
        """Plain data with stable keys. Of curves it names what is drawn; the points are the run's own."""
        return {
            "name": self.name,
            "about": self.about,
            "check": self.check.to_dict(),
            "done": self.done,
            "tiles": self.tiles,
            "curves": _drawn(self.curves),
            "values": [asdict(best) for best in self.values],
            "epochs": self.epochs.to_dict() if self.epochs else None,
            "evaluations": asdict(self.evaluations) if self.evaluations else None,
            "best_rollouts": [shown.hit._asdict() for shown in self.best_rollouts],
            "worst_rollouts": [shown.hit._asdict() for shown in self.worst_rollouts],
            "config": self.config,
            "environment": self.environment,
            "attempts": self.attempts,
            "compared": asdict(self.compared.facts) if self.compared else None,
            "made": self.made,
        }


def gather(path: str | os.PathLike[str], others: Sequence[str | os.PathLike[str]] = ()) -> RunReport:
    """The report on a run or any log that can be read, beside others where some are given. Raises NotALog or
    RunError.
    """
    view = open_any(path)
    report = check_source(source_of_log(view.log) if isinstance(view, LogView) else source_of_run(view))
    said = [*report.findings, *report.normal]
    diagnosis = Diagnosis(report.verdict, report.reason, said, report.ongoing)
    names = ordered_metrics(view)
    return RunReport(
        name=view.name,
        about=_about(view, report),
        check=report,
        done=_done(view, report),
        tiles=tiles(view, diagnosis),
        step_bar=step_bar(view, report.findings),
        curves=_curves(view, report),
        values=[best for name in names[:MOST_VALUES] if (best := view.best(name)) is not None],
        values_left_out=max(0, len(names) - MOST_VALUES),
        epochs=_epochs(view),
        evaluations=_evaluations(view),
        best_rollouts=_rollouts(view, best=True),
        worst_rollouts=_rollouts(view, best=False),
        config=flatten(masked(view.config)),
        environment=environment(view),
        attempts=[asdict(attempt) for attempt in view.attempts],
        compared=_compared([view, *map(open_any, others)]) if others else None,
        made=time.time(),
    )


def _about(view: RunView, report: Report) -> dict[str, Any]:
    info = view.info
    is_log = isinstance(view, LogView)
    return {
        "source": str(view.path),
        "format": report.format,
        "status": "" if is_log else view.status,
        "status_note": "" if is_log else view.status_note,
        "algorithm": report.algorithm,
        "framework": report.framework,
        "rows": report.points,
        "first_step": report.first_step,
        "last_step": report.last_step,
        "total_steps": info.total_steps,
        "ghost_rows": view.ghost_rows,
        "started": None if is_log else info.created,
        "seconds": None if is_log else max(0.0, (info.ended or info.updated) - info.created),
    }


def _done(view: RunView, report: Report) -> dict[str, str]:
    """By rule: what was asked and what became of it."""
    events = read_events(RunDir(view.path))
    told: dict[str, list[str]] = {}
    for finding in report.findings if events else ():
        for request in requests_about(finding, events):
            answer = request["answer"] or "not answered"
            text = f" ({request['answer_text']})" if request["answer_text"] else ""
            asked = str(request.get("action", "")).replace("_", " ")
            told.setdefault(finding.rule, []).append(f"step {request['step']}: {asked}, {answer}{text}")
    return {rule: "; ".join(texts) for rule, texts in told.items()}


def _curves(view: RunView, report: Report) -> Picture | None:
    try:
        return overview(view, said=report.findings)
    except ConfigError:  # nothing that could be drawn
        return None


def _epochs(view: RunView) -> Epochs | None:
    try:
        return view.epochs()
    except RlvitalsError:  # nothing says where an epoch ends
        return None


def _evaluations(view: RunView) -> Evaluations | None:
    if not isinstance(view, LogView):
        try:
            found = read_trend(view.path)
        except RlvitalsError:
            return None
        return found if found.evaluations else None
    rows = [{"step": row.step, **row.numbers} for row in view.iterate(stream="eval")]
    return Evaluations(view.name, str(view.path), rows, None, None, None, []) if rows else None


def _rollouts(view: RunView, *, best: bool) -> list[ShownRollout]:
    """The best or worst, of different prompts as far as there are some. One that is among the best is no worst one."""
    if isinstance(view, LogView):
        return []
    log = view.rollout_log
    hits = log.find(best=best, worst=not best, limit=LOOKED_AT)
    if not best:
        among_best = set(_different(log.find(best=True, limit=LOOKED_AT)))
        hits = [hit for hit in hits if hit not in among_best]
    shown = []
    for hit in _different(hits):
        groups = log.at(hit.step)
        if hit.group <= len(groups) and hit.rollout <= len(groups[hit.group - 1].rollouts):
            group = groups[hit.group - 1]
            shown.append(ShownRollout(hit, group, group.rollouts[hit.rollout - 1]))
    return shown


def _different(hits: list[Hit]) -> list[Hit]:
    """The first of each prompt, filled up with the others."""
    first: dict[str, Hit] = {}
    for hit in hits:
        first.setdefault(hit.prompt, hit)
    chosen = list(first.values())[:SHOWN_ROLLOUTS]
    others = [hit for hit in hits if hit not in chosen]
    picked = {*chosen, *others[: SHOWN_ROLLOUTS - len(chosen)]}
    return [hit for hit in hits if hit in picked]


def _compared(views: Sequence[RunView]) -> Compared:
    facts = compare_runs(views)
    try:
        return Compared(facts, comparison(views, facts))
    except ConfigError:  # they have nothing in common that compares
        return Compared(facts, None)


def _drawn(picture: Picture | None) -> list[dict[str, Any]]:
    if picture is None:
        return []
    return [
        {
            "title": panel.title,
            "band": panel.band,
            "lines": [
                {"name": line.label, "points": len(line.y), "last": float(line.y[-1]) if len(line.y) else None}
                for line in panel.lines
            ],
        }
        for panel in picture.panels
    ]
