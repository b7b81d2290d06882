"""The card of a run in a notebook: shown with the first row and updated in place while the run trains.

Owns the time of updates, at most one per second, and the points of the small curves. `render.notebook` formats the
card. Outside a notebook there is no card and no cost per row.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Mapping
from importlib import import_module
from typing import Any, Protocol

from rlvitals.guard import guarded

EVERY_SECONDS = 1.0
MOST_POINTS = 80
"""Largest number of points per curve. Beyond it, every second point is dropped."""


class Shown(Protocol):
    """The run that the card shows."""

    def _repr_html_(self) -> str: ...


def in_notebook() -> bool:
    """Whether this process is the kernel of a notebook."""
    ipython = sys.modules.get("IPython")
    shell = ipython.get_ipython() if ipython is not None else None
    return getattr(shell, "kernel", None) is not None


class LiveCard:
    """The card of one run that this process records."""

    def __init__(self, run: Shown) -> None:
        self._run = run
        self._handle: Any = None
        self._due = 0.0
        self._every = 1
        self._rows = 0
        self.points: dict[str, list[tuple[float, float]]] = {}
        """For each metric, (step, value) for some of the rows so far."""

    def see(self, step: int, row: Mapping[str, Any]) -> None:
        """Take a durable row, and update the card if that is due."""
        self._rows += 1
        if self._rows % self._every == 0:
            self._keep(step, row)
        if time.monotonic() >= self._due:
            self.update()

    def hurry(self) -> None:
        """Update the card at the next row, because there is a new finding."""
        self._due = 0.0

    def update(self) -> None:
        """Show the run's current state. A failure never affects the training."""
        self._due = time.monotonic() + EVERY_SECONDS
        with guarded(lambda _: None):
            shown = import_module("IPython.display")
            card = shown.HTML(self._run._repr_html_())
            if self._handle is None:
                self._handle = shown.display(card, display_id=True)
            else:
                self._handle.update(card)

    def _keep(self, step: int, row: Mapping[str, Any]) -> None:
        for name, value in row.items():
            if isinstance(value, (int, float)) and value == value:  # noqa: PLR0124 - no NaN in a curve
                self.points.setdefault(name, []).append((float(step), float(value)))
        if max(map(len, self.points.values()), default=0) > MOST_POINTS:
            self.points = {name: course[::2] for name, course in self.points.items()}
            self._every *= 2
