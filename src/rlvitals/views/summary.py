"""The summary of a run that `show` and `runs` print, as plain data."""

from __future__ import annotations

from dataclasses import asdict
from pathlib import Path
from typing import Any

from rlvitals.health.history import History
from rlvitals.records import Row
from rlvitals.views.changes import change
from rlvitals.views.diagnosis import Diagnosis, diagnose_quickly
from rlvitals.views.headlines import last_sign, lasted
from rlvitals.views.hindsight import Neighbours, hindsight
from rlvitals.views.logs import LogView
from rlvitals.views.run import RunView

LAST_FINDINGS = 5


def headline(view: RunView) -> dict[str, Any]:
    """One run or log as a line of a list. `note` describes problems with its files."""
    return _headline(view, diagnose_quickly(view))


def _headline(view: RunView, judged: Diagnosis) -> dict[str, Any]:
    info = view.info
    updated = last_sign(info, view.last_rows(1))
    log_format = view.log.format if isinstance(view, LogView) and not view.parts else ""  # of a log of another tool
    facts = {
        "name": view.name,
        "path": str(view.path),
        "status": f"{log_format} log" if log_format else view.status,
        "algorithm": view.algorithm,
        "step": view.last_step,
        "total_steps": info.total_steps,
        "rows": view.rows,
        "attempts": max(len(view.attempts), 1),
        "updated": updated,
        "seconds": None if log_format else lasted(info, updated),
        "verdict": judged.verdict,
        "reason": judged.reason,
        "is_stopped": view.stop is not None,
        "outcome": _outcome(view),
    }
    return facts | {"note": "; ".join(view.damage)}


def _outcome(view: RunView) -> dict[str, Any] | None:
    """The last reward or margin, under its own name."""
    best = view.best(view.outcome) if view.outcome is not None else None
    return None if best is None else {"name": best.name, "value": best.last}


def unreadable_headline(path: Path, reason: object) -> dict[str, Any]:
    """The line of a run that cannot be read."""
    nothing = dict.fromkeys(("algorithm", "step", "total_steps", "rows", "attempts", "updated", "seconds", "outcome"))
    judged = {"verdict": "cannot judge", "reason": str(reason), "is_stopped": False}
    return {"name": path.name, "path": str(path), "status": "unreadable", **nothing, **judged, "note": str(reason)}


def summarise(view: RunView, last: int = 5) -> dict[str, Any]:
    """Everything that `show` prints: identity, progress, last rows, best and final values, problems."""
    info, judged = view.info, diagnose_quickly(view)
    return {
        **_headline(view, judged),
        "id": info.id,
        "status_note": view.status_note,
        "framework": view.framework,
        "created": info.created,
        "ghost_rows": view.ghost_rows,
        "ranks": view.ranks,
        "trackers": view.trackers,
        "findings": [asdict(finding) for finding in judged.findings[-LAST_FINDINGS:]],
        "asked": [asdict(asked) for asked in History(view.health_events).asked_by_people],
        "attempt_list": [asdict(attempt) for attempt in view.attempts],
        "last_rows": [_row(row) for row in view.last_rows(last)],
        "metrics": [
            asdict(best) for name in view.reader.ordered(view.metrics) if (best := view.best(name)) is not None
        ],
        "changes": _changes(view),
        "hindsight": hindsight(view, judged.findings, Neighbours.of(view.path)),
        "system": _row(sample) if (sample := view.last_sample) is not None else {},
        "texts": view.texts,
        "left_out": info.left_out,
        "rows_dropped": info.rows_dropped,
        "problems": view.problems,
    }


def _changes(view: RunView) -> dict[str, str]:
    """How each vital sign has changed, as text."""
    texts = {}
    for name in view.vital_signs:
        meaning, (steps, values) = view.meaning(name), view.series(name)
        if moved := change(steps, values, meaning.metric.direction if meaning else "none"):
            texts[name] = moved["told"]
    return texts


def _row(row: Row) -> dict[str, Any]:
    return {"step": row.step, "timestamp": row.timestamp, "attempt": row.attempt, **row.numbers, **row.texts}
