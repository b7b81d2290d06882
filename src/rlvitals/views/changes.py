"""How a metric has changed, since the start and recently, in numbers and in text, for every tile, table and card."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
from numpy.typing import NDArray

from rlvitals.contract import ChangeFacts
from rlvitals.health.statistics import TO_SIGMA
from rlvitals.render.numbers import number

FEWEST_FOR_LATELY = 8
"""With fewer points, the recent change would cover the whole series."""

MEAN_OF_FEW = 3
"""Points that are averaged to a level if there are four times as many. A long series averages a tenth of its points."""

FEWEST_JUMPS = 5
"""With fewer jumps, the noise of a series is unknown."""


def change(steps: NDArray[Any], values: NDArray[np.float64], direction: str = "none") -> ChangeFacts | None:
    """How far a series is from its start, and how far its newest tenth is from the tenth before. None if there is
    nothing to compare. A level is the mean of a tenth of the points. A difference is 0 unless it is more than twice the
    noise of the series. `direction` is the better direction.

    >>> steps = np.arange(1, 41)
    >>> change(steps, np.linspace(0.0, 1.95, 40))["told"]
    '▲ 0.075 → 1.875 since step 1; +0.2 over the last 8 steps'
    >>> change(steps, np.tile([1.0, 2.0], 20))["told"]
    'steady since step 1'
    """
    finite = np.isfinite(values)
    known, at = values[finite], steps[finite]
    if len(known) < 2:
        return None
    window = max(1, len(known) // 10, min(MEAN_OF_FEW, len(known) // 4))
    with np.errstate(over="ignore", invalid="ignore"):
        first, last = float(known[:window].mean()), float(known[-window:].mean())
        before = float(known[-2 * window : -window].mean())
        noise = max(_noise(known[: 4 * window], window), _noise(known[-4 * window :], window))
        recent = _noise(known[-4 * window :], window)
    if not (math.isfinite(last - first) and math.isfinite(last - before)):
        return None
    is_long = len(known) >= FEWEST_FOR_LATELY
    facts: ChangeFacts = {
        "first_step": int(at[0]),
        "start": first,
        "now": last,
        "since_start": _beyond(last - first, noise),
        "lately": _beyond(last - before, recent) if is_long else None,
        "lately_steps": int(at[-1] - at[-2 * window]) + 1 if is_long else None,
        "told": "",
    }
    return {**facts, "told": _text(facts, direction)}


def _beyond(moved: float, noise: float) -> float:
    return moved if abs(moved) > 2 * noise else 0.0


def _noise(values: NDArray[np.float64], window: int) -> float:
    """The noise of a mean of `window` points. It uses the jumps between neighbours, so that a trend does not count as
    noise, and their mean deviation, so that a single jump has little effect.
    """
    jumps = np.diff(values)
    if len(jumps) < FEWEST_JUMPS:
        return 0.0
    return float(TO_SIGMA * np.abs(jumps - np.median(jumps)).mean() / math.sqrt(window))


def _text(facts: ChangeFacts, direction: str) -> str:
    moved, lately, span = facts["since_start"], facts["lately"], facts["lately_steps"]
    since = f"since step {number(facts['first_step'])}"
    better = {"up": moved > 0, "down": moved < 0}.get(direction)
    word = "" if better is None or not moved else ", better" if better else ", worse"
    arrow = "▲" if moved > 0 else "▼"
    text = f"{arrow} {number(facts['start'])} → {number(facts['now'])} {since}{word}" if moved else f"steady {since}"
    if lately is None or span is None:
        return text
    window = f"over the last {number(span)} step{'' if span == 1 else 's'}"
    if lately:
        return f"{text}; {'+' if lately > 0 else ''}{number(lately)} {window}"
    return f"{text}; steady {window}" if moved else text
