"""The texts of a folder's list of runs and logs. The list on a terminal and the lines in a pipe share them."""

from __future__ import annotations

import time
from collections.abc import Sequence
from typing import Any

from rlvitals.render.numbers import duration, progress
from rlvitals.terminal import visible
from rlvitals.views.folder_list import ListLine


def moment_ago(then: float | None) -> str:
    """How long ago something was, in its largest unit."""
    return "-" if then is None else " ".join(duration(max(time.time() - then, 0.0)).split()[:2])


def fitting(lines: Sequence[ListLine], words: str) -> list[ListLine]:
    """The lines that contain every word."""
    wanted = words.lower().split()
    return [line for line in lines if all(word in _searched_text(line) for word in wanted)]


def _searched_text(line: ListLine) -> str:
    facts = line.facts
    parts = (
        line.name,
        facts["name"],
        facts["verdict"],
        facts["status"],
        facts["status_note"],
        facts["algorithm"] or "",
    )
    return " ".join(parts).lower()


def listed_line(line: ListLine) -> str:
    """One line of the list for a pipe."""
    facts = line.facts
    step = f"step {progress(facts['last_step'], facts['total_steps'])}"
    parts = [facts["verdict"], str(line.path), facts["status"], step, facts["reason"]]
    return visible(" | ".join(word for word in parts if word))


def listed_event(line: ListLine) -> dict[str, Any]:
    """One line of the list as an event."""
    return {"type": "run", "path": str(line.path), **line.facts}
