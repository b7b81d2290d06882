"""One metric as a series, and its best and last value."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from rlvitals.catalog import Match
from rlvitals.store.chunks import FieldArray


class Series(NamedTuple):
    """One metric of one run, sorted by its x-axis. Unpacks as `steps, values`."""

    steps: NDArray[Any]
    values: FieldArray


@dataclass(frozen=True, slots=True)
class Best:
    """A metric's best and last value on the living line."""

    name: str
    last: float
    last_step: int
    best: float | None
    best_step: int | None
    direction: str
    points: int


def find_best(name: str, series: Series, meaning: Match | None) -> Best | None:
    """Best and last value. There is no best value if neither up nor down is better. None without any point."""
    steps, values = series
    if not len(values):
        return None
    direction = meaning.metric.direction if meaning else "none"
    if meaning and meaning.alias and meaning.alias.caveat and meaning.alias.caveat.kind in ("complement", "sign"):
        direction = {"up": "down", "down": "up"}.get(direction, direction)  # type: ignore[assignment]
    best = best_step = None
    finite = np.isfinite(values)
    if direction in ("up", "down") and finite.any():
        candidates = np.where(finite, values, -np.inf if direction == "up" else np.inf)
        at = int(np.argmax(candidates) if direction == "up" else np.argmin(candidates))
        best, best_step = float(values[at]), int(steps[at])
    return Best(name, float(values[-1]), int(steps[-1]), best, best_step, direction, len(values))
