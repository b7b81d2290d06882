"""A training whose processes record a run each, read as one run. For example, prime-rl's orchestrator logs the rewards
and the rollouts, and its trainer the losses. Rows of the same step are joined. Nothing is written.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from rlvitals.importers import ForeignLog
from rlvitals.records import Status
from rlvitals.splits import held_out_name
from rlvitals.views.discovery import parts_of
from rlvitals.views.run import RunView, open_run

_NAMED = 6
"""Maximum names that a note lists."""


_WORST_FIRST: tuple[Status, ...] = ("running", "failed", "interrupted", "finished")


def open_parts(folder: Path) -> dict[str, RunView]:
    """The runs of one training's processes by name; empty for any other folder."""
    return {place.name: open_run(place) for place in parts_of(folder)}


def joined_status(parts: Mapping[str, RunView]) -> tuple[Status, str]:
    """`running` while a process runs, otherwise the worst final status; and the notes on all statuses."""
    found = [run.status for run in parts.values()]
    notes = [f"{name}: {run.status_note}" for name, run in parts.items() if run.status_note]
    return next(status for status in _WORST_FIRST if status in found), "; ".join(notes)


def joined_end(parts: Mapping[str, RunView]) -> float | None:
    """The time at which the last process ended; None if one has not ended."""
    ends = [run.info.ended for run in parts.values()]
    return None if None in ends else max(end for end in ends if end is not None)


def joined_log(folder: Path, parts: Mapping[str, RunView]) -> ForeignLog:
    """The runs of one training's processes, given by name, as one log."""
    rows: dict[int, dict[str, Any]] = {}
    held_out: list[dict[str, Any]] = []
    taken: dict[str, str] = {}
    twice: dict[str, None] = {}
    for part, view in parts.items():
        for name in view.metrics:
            if taken.setdefault(name, part) != part:
                twice[name] = None
        own = {name for name, of in taken.items() if of == part}
        _take(view, own, rows, held_out)
    notes = [f"{name}: {problem}" for name, view in parts.items() for problem in view.problems]
    if twice:
        listed = ", ".join(list(twice)[:_NAMED]) + (" ..." if len(twice) > _NAMED else "")
        notes.append(f"logged by several processes, and read from the {next(iter(parts))}'s run: {listed}")
    framework = next(iter(parts.values())).info.framework
    # An evaluation follows the training row of its step. After later steps, it would look like a restart.
    ordered = sorted([*rows.values(), *held_out], key=lambda row: int(row["step"]))
    return ForeignLog(
        folder,
        f"{framework} run of {len(parts)} processes",
        ordered,
        config={
            name: {key: own for key, own in view.config.items() if key != "rlvitals"} for name, view in parts.items()
        },
        notes=notes,
        algorithm=next((view.algorithm for view in parts.values() if view.algorithm), None),
        framework=framework,
    )


def _take(view: RunView, own: set[str], rows: dict[int, dict[str, Any]], held_out: list[dict[str, Any]]) -> None:
    """Add the living rows of one process to the rows of the same steps."""
    for row in view.iterate():
        numbers = {name: number for name, number in row.numbers.items() if name in own}
        known = rows.setdefault(row.step, {"step": row.step})
        known.update(numbers)
        if math.isfinite(row.timestamp):
            known["timestamp"] = max(row.timestamp, known.get("timestamp", -math.inf))
    for row in view.iterate(stream="eval"):
        scores = {held_out_name(name): number for name, number in row.numbers.items()}
        when = {"timestamp": row.timestamp} if math.isfinite(row.timestamp) else {}
        held_out.append({"step": row.step, **when, **scores})
