"""A training whose processes record a run each, read as one: prime-rl's orchestrator has the rewards and the rollouts,
its trainer the losses. Rows of the same step are one row; nothing is written.
"""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

from rlvitals.errors import RlvitalsError
from rlvitals.importers import ForeignLog
from rlvitals.splits import held_out_name
from rlvitals.store.cards import read_info
from rlvitals.store.layout import RunDir
from rlvitals.views.run import RunView, open_run

PARTS = {"prime_rl": ("orchestrator", "trainer")}
"""By framework: the folders of its processes' runs. Of a name that several log, the first one's numbers are taken."""

_NAMED = 6
"""Names that are told in a note."""


def framework_of(folder: Path) -> str | None:
    """The framework whose processes' runs are in a folder; None of any other folder."""
    for framework, parts in PARTS.items():
        runs = [RunDir(folder / part) for part in parts]
        try:
            if all(run.holds_run and read_info(run).framework == framework for run in runs):
                return framework
        except (RlvitalsError, OSError):
            continue
    return None


def read_joined(folder: Path) -> ForeignLog | None:
    """The runs of one training's processes as one log; None where the folder does not hold them."""
    framework = framework_of(folder)
    if framework is None:
        return None
    parts = {name: open_run(folder / name) for name in PARTS[framework]}
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
        told = ", ".join(list(twice)[:_NAMED]) + (" ..." if len(twice) > _NAMED else "")
        notes.append(f"logged by several processes, and read from the {next(iter(parts))}'s run: {told}")
    return ForeignLog(
        folder,
        f"{framework} run of {len(parts)} processes",
        [*(rows[step] for step in sorted(rows)), *held_out],
        config={
            name: {key: own for key, own in view.config.items() if key != "rlvitals"} for name, view in parts.items()
        },
        notes=notes,
        algorithm=next((view.algorithm for view in parts.values() if view.algorithm), None),
        framework=framework,
    )


def _take(view: RunView, own: set[str], rows: dict[int, dict[str, Any]], held_out: list[dict[str, Any]]) -> None:
    """Put a part's living rows to those of the same steps."""
    for row in view.iterate():
        numbers = {name: number for name, number in row.numbers.items() if name in own}
        known = rows.setdefault(row.step, {"step": row.step})
        known.update(numbers)
        if math.isfinite(row.timestamp):
            known["timestamp"] = max(row.timestamp, known.get("timestamp", -math.inf))
    for row in view.iterate(stream="eval"):
        told = {held_out_name(name): number for name, number in row.numbers.items()}
        when = {"timestamp": row.timestamp} if math.isfinite(row.timestamp) else {}
        held_out.append({"step": row.step, **when, **told})
