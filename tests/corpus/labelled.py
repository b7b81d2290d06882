"""The record of the corpus: one simulated run with its label."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any


@dataclass(frozen=True)
class LabelledRun:
    """The rows of a simulated run as its framework would log them, and what is wrong with it."""

    name: str
    kind: str | None
    """The failure's kind; None for a healthy run."""
    accept: frozenset[str]
    """The kinds that count as a correct answer; empty for a run that is not scored."""
    onset: int | None
    """The index in `rows` at which the failure starts; 0 for a run that fails from the first row."""
    algorithm: str | None
    framework: str | None
    total_steps: int | None
    config: dict[str, Any]
    rows: list[dict[str, Any]]
    ticks: list[float] = field(default_factory=list)
    """Clock times after the last row at which no new row had arrived. Rows then have a "timestamp"."""
    marker: str = ""
    """The key that shows the failure first. It is for checks of the label and for plots, not for a monitor."""
    cause: str = ""
    """The cause of the failure, one of `records.CAUSES`, where the simulation has one."""
