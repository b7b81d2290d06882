"""What the corpus hands out: one simulated run with the truth about it."""

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
    """The kinds that name the cause rightly; empty for a run that cannot be scored."""
    onset: int | None
    """The index in `rows` at which the failure starts; 0 for a run that is dead from the start."""
    algorithm: str | None
    framework: str | None
    total_steps: int | None
    config: dict[str, Any]
    rows: list[dict[str, Any]]
    ticks: list[float] = field(default_factory=list)
    """Times at which nothing had come yet, after the last row; rows then carry "timestamp"."""
    marker: str = ""
    """The key that shows the failure first: for checking the label and for plots, not for a monitor."""
    cause: str = ""
    """What lies behind it, one of `records.CAUSES`, where the simulation says so."""
