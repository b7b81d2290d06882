"""The best and the mean of a training's epochs. Only finite numbers count; a zero is one."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING

from rlvitals.store.epochs import SCORES, TRAINING

if TYPE_CHECKING:
    from rlvitals.store.epochs import Epoch


def best_metrics(history: Sequence[Epoch], columns: Iterable[str]) -> dict[str, float | int | None]:
    """Flat: `best_NAME` and `best_NAME_epoch` where higher is better, `lowest_NAME` where lower is. Reward and loss are
    always there, None before they were logged. A further metric counts where the catalogue knows its direction.
    """
    found: dict[str, float | int | None] = {}
    for name in columns:
        word = _word(name)
        if not word:
            continue
        points = [(epoch.number, number) for epoch in history if (number := _finite(epoch, name)) is not None]
        if points:
            pick = max if word == "best" else min
            best = pick(value for _, value in points)
            found[f"{word}_{name}"] = best
            found[f"{word}_{name}_epoch"] = next(number for number, value in points if value == best)
        elif name in ("reward", "loss"):
            found |= {f"{word}_{name}": None, f"{word}_{name}_epoch": None}
    return found


def averages(history: Sequence[Epoch], columns: Iterable[str]) -> dict[str, float]:
    """The mean over the epochs that have a metric, each counting once."""
    found = {}
    for name in columns:
        values = [value for epoch in history if (value := _finite(epoch, name)) is not None]
        if values:
            found[name] = math.fsum(values) / len(values)
    return found


def _word(name: str) -> str:
    if name == "loss":
        return "lowest"
    if name == "reward" or name in SCORES:
        return "best"
    if name in TRAINING or name in ("epoch", "timestamp"):
        return ""  # how fast an epoch went is no merit of the model
    from rlvitals import catalog

    found = catalog.reader().meaning(name)
    return {"up": "best", "down": "lowest"}.get(found.metric.direction if found else "", "")


def _finite(epoch: Epoch, name: str) -> float | int | None:
    value = epoch.numbers.get(name)
    return value if value is not None and math.isfinite(value) else None
