"""All facts of a report on one run or foreign log. The page and the Markdown are rendered from them.

The verdict is the one of `check`: the log is judged row by row when the report is made.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict
from typing import Any, cast

from rlvitals.config import flatten
from rlvitals.contract import BestFacts, EpochsFacts
from rlvitals.errors import ConfigError, RlvitalsError
from rlvitals.health.history import History
from rlvitals.render.report import RunReport, ShownRollout
from rlvitals.render.run_plots import Picture
from rlvitals.version import __version__
from rlvitals.views.check import Report, check_source
from rlvitals.views.compare import compare_runs
from rlvitals.views.diagnosis import Diagnosis
from rlvitals.views.epoch_rows import EpochRows
from rlvitals.views.evaluations import numbers_of, read_trend, trend_of_log
from rlvitals.views.headlines import last_sign, lasted
from rlvitals.views.logs import LogView, open_any
from rlvitals.views.plots import chosen, comparison, overview
from rlvitals.views.rollouts import RolloutHit, rollout_of
from rlvitals.views.run import RunView
from rlvitals.views.sources import source_of
from rlvitals.views.vitals import environment, step_bar, tiles

SHOWN_ROLLOUTS = 3
"""Number of best rollouts, and of worst ones."""
LOOKED_AT = 60
"""Rollouts with the highest (or lowest) reward among which different prompts are chosen."""
MANY_METRICS = 3000
"""For a run with more metrics, only the vital signs are drawn, without a search for other interesting metrics."""
MOST_VALUES = 40
"""Maximum metrics in the table of best and final values."""


def gather(
    path: str | os.PathLike[str],
    others: Sequence[str | os.PathLike[str]] = (),
    mapping: Mapping[str, str] | None = None,
) -> RunReport:
    """The report on a run or any readable log, compared with `others` if given. Raises NotALog or RunError, and
    ConfigError for a `mapping` of missing names or to unknown concepts.
    """
    view = open_any(path)
    report = check_source(source_of(view), mapping=mapping)
    findings = [*report.findings, *report.normal]
    diagnosis = Diagnosis(report.verdict, report.reason, findings)
    is_large = len(view.metrics) > MANY_METRICS
    vital, names = view.vital_signs, view.reader.ordered(view.metrics)
    views = [view, *map(open_any, others)]
    compared = compare_runs(views) if others else None
    return RunReport(
        name=view.name,
        about=_about(view, report),
        check=report.to_dict(),
        asked=_asked(view, report),
        tiles=tiles(view, diagnosis),
        step_bar=step_bar(view, report.findings),
        curves=_drawn(
            lambda: chosen(view, vital, raised=report.findings) if is_large else overview(view, raised=report.findings)
        ),
        values=[cast(BestFacts, asdict(best)) for name in names[:MOST_VALUES] if (best := view.best(name)) is not None],
        values_left_out=max(0, len(names) - MOST_VALUES),
        epochs=_epochs(view),
        evaluations=_evaluations(view),
        best_rollouts=_rollouts(view, best=True),
        worst_rollouts=_rollouts(view, best=False),
        config=flatten(view.config),
        environment=environment(view),
        attempts=view.attempts,
        compared=asdict(compared) if compared else None,
        compared_curves=_drawn(lambda: comparison(views, compared)) if compared else None,
        made=time.time(),
        written_by=f"rlvitals {__version__}",
    )


def _about(view: RunView, report: Report) -> dict[str, Any]:
    info = view.info
    is_log = isinstance(view, LogView) and not view.parts
    return {
        "source": str(view.path),
        "format": report.format,
        "status": "" if is_log else view.status,
        "status_note": "" if is_log else view.status_note,
        "algorithm": report.algorithm,
        "framework": report.framework,
        "rows": report.rows,
        "first_step": report.first_step,
        "last_step": report.last_step,
        "total_steps": info.total_steps,
        "ghost_rows": view.ghost_rows,
        "started": None if is_log else info.created,
        "seconds": None if is_log else lasted(info, last_sign(info, view.last_rows(1))),
    }


def _asked(view: RunView, report: Report) -> dict[str, str]:
    """For each alarm: the requests and their answers."""
    history = History(view.health_events)
    by_alarm: dict[str, list[str]] = {}
    for finding in sorted(report.findings, key=lambda finding: finding.step):
        for asked in history.asked_about(finding):
            text = f" ({asked.answer_text})" if asked.answer_text else ""
            answer = asked.answer or ("" if asked.action == "warn" else "not answered")  # a warning needs no answer
            what = f"{asked.action.replace('_', ' ')}{', ' if answer else ''}{answer}{text}"
            by_alarm.setdefault(finding.alarm, []).append(f"step {asked.step}: {what}")
    return {alarm: "; ".join(texts) for alarm, texts in by_alarm.items()}


def _drawn(draw: Callable[[], Picture]) -> Picture | None:
    try:
        return draw()
    except ConfigError:  # there is nothing to draw
        return None


def _epochs(view: RunView) -> EpochsFacts | None:
    """The epochs; None for a single epoch, which is the whole run."""
    try:
        return view.epochs().to_dict() if len(EpochRows(view, None, None).epochs) > 1 else None
    except RlvitalsError:  # the end of an epoch is unknown
        return None


def _evaluations(view: RunView) -> dict[str, Any] | None:
    try:
        found = trend_of_log(view) if isinstance(view, LogView) else read_trend(view.path)
    except RlvitalsError:
        return None
    return asdict(found) | {"names": numbers_of(found.evaluations)} if found.evaluations else None


def _rollouts(view: RunView, *, best: bool) -> list[ShownRollout]:
    """The best or worst rollouts, with different prompts if possible. The worst ones do not repeat the best ones."""
    if isinstance(view, LogView) and not view.parts:
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
            shown.append(ShownRollout(hit.step, hit.group, hit.rollout, group, rollout_of(groups, hit)))
    return shown


def _different(hits: list[RolloutHit]) -> list[RolloutHit]:
    """The first of each prompt, filled up with others."""
    first: dict[str, RolloutHit] = {}
    for hit in hits:
        first.setdefault(hit.prompt, hit)
    chosen = list(first.values())[:SHOWN_ROLLOUTS]
    others = [hit for hit in hits if hit not in chosen]
    picked = {*chosen, *others[: SHOWN_ROLLOUTS - len(chosen)]}
    return [hit for hit in hits if hit in picked]
