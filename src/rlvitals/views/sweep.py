"""A sweep: how the varying settings relate to a target.

Importance is Spearman's rank correlation of a setting with the target. A setting whose values have no order is judged
by the ranks of the target within its values (the correlation ratio, minus the share expected by chance). Neither shows
a cause, and settings that were changed together cannot be distinguished.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from rlvitals.contract import Importance, Sweep, SweepRun, SweepSetting
from rlvitals.values import is_number
from rlvitals.views.settings import is_bookkeeping, varying
from rlvitals.views.thinning import plain_number

FEW_RUNS = 5
"""With fewer runs, no importance is shown."""

MOST_SETTINGS = 40
LOGARITHMIC = 50.0
"""Positive values are drawn on a logarithmic axis from this ratio of largest to smallest."""


def sweep(target: str, targets: Mapping[str, Any], settings: Mapping[str, Mapping[str, Any]]) -> Sweep:
    """The response of `/api/sweep`, from run -> target and run -> settings."""
    names = [key for key in varying(settings.values()) if not is_bookkeeping(key)]
    shown = names[:MOST_SETTINGS]
    aims = [_number(targets.get(run)) for run in settings]
    columns = {key: [own.get(key) for own in settings.values()] for key in shown}
    runs: list[SweepRun] = [
        {"run": run, "target": aim, "values": [own.get(key) for key in shown]}
        for (run, own), aim in zip(settings.items(), aims, strict=True)
    ]
    importances = [importance_of(key, values, aims) for key, values in columns.items()]
    return {
        "target": target,
        "runs": runs,
        "settings": [_setting(key, values) for key, values in columns.items()],
        "importance": sorted(importances, key=lambda one: -abs(one["strength"] or 0.0)),
        "left_out": len(names) - len(shown),
    }


def importance_of(key: str, values: Sequence[Any], targets: Sequence[float | None]) -> Importance:
    """How strongly a setting is related to a target, over the runs that have both.

    >>> importance_of("lr", [1, 2, 3, 4, 5], [1.0, 2.0, 3.0, 5.0, 4.0])["strength"]
    0.9
    """
    pairs = [
        (value, target)
        for value, target in zip(values, targets, strict=True)
        if value is not None and target is not None
    ]
    n = len(pairs)
    found: Importance = {"key": key, "n": n, "kind": "number", "strength": None, "is_clear": False, "note": ""}
    own, aims = [value for value, _ in pairs], np.array([target for _, target in pairs], dtype=float)
    is_number = all(isinstance(value, int | float) for value in own)
    if not is_number:
        found["kind"] = "category"
    if n < FEW_RUNS:
        found["note"] = f"only {n} runs have both; at least {FEW_RUNS} are needed"
    elif len(set(map(str, own))) == 1:
        found["note"] = "the same in every run that has the target"
    elif len(set(aims.tolist())) == 1:
        found["note"] = "the target is the same in every run"
    elif is_number:
        strength = spearman(np.array(own, dtype=float), aims)
        found["strength"], found["is_clear"] = round(strength, 4), abs(strength) > 1.96 / math.sqrt(n - 1)
    else:
        strength, is_clear = _of_categories([str(value) for value in own], aims)
        found["strength"], found["is_clear"] = round(strength, 4), is_clear
        found["note"] = "values without an order: no direction"
    if found["strength"] is not None and not found["is_clear"]:
        found["note"] = "; ".join(filter(None, [found["note"], "may be chance"]))
    return found


def spearman(one: NDArray[Any], other: NDArray[Any]) -> float:
    """Spearman's rank correlation. Ties get their mean rank.

    >>> round(spearman(np.array([1.0, 2.0, 2.0, 3.0]), np.array([4.0, 3.0, 2.0, 1.0])), 4)
    -0.9487
    """
    left, right = ranks(one), ranks(other)
    left, right = left - left.mean(), right - right.mean()
    return float((left * right).sum() / math.sqrt(float((left**2).sum() * (right**2).sum())))


def ranks(values: NDArray[Any]) -> NDArray[Any]:
    """Ranks from 1. Equal values get the mean of their ranks.

    >>> ranks(np.array([10.0, 30.0, 20.0, 20.0])).tolist()
    [1.0, 4.0, 2.5, 2.5]
    """
    _, place, counts = np.unique(values, return_inverse=True, return_counts=True)
    ends = np.cumsum(counts)
    return ((ends - counts + 1 + ends) / 2.0)[place]


def _of_categories(values: Sequence[str], targets: NDArray[Any]) -> tuple[float, bool]:
    """The correlation ratio of the ranks minus the share expected by chance, and whether it is significant
    (Kruskal-Wallis test at 5 %).
    """
    ranked, n = ranks(targets), len(values)
    groups = [ranked[[place for place, own in enumerate(values) if own == value]] for value in dict.fromkeys(values)]
    freedom = len(groups) - 1
    if freedom >= n - 1:  # every run has a different value
        return 0.0, False
    between = sum(len(group) * (group.mean() - ranked.mean()) ** 2 for group in groups)
    share = float(between / ((ranked - ranked.mean()) ** 2).sum())
    by_chance = freedom / (n - 1)
    limit = freedom * (1 - 2 / (9 * freedom) + 1.645 * math.sqrt(2 / (9 * freedom))) ** 3  # Wilson-Hilferty
    return math.sqrt(max(0.0, (share - by_chance) / (1 - by_chance))), share * (n - 1) > limit


def _setting(key: str, values: Sequence[Any]) -> SweepSetting:
    known = [value for value in values if value is not None]
    if all(is_number(value) for value in known):
        low, high = float(min(known)), float(max(known))
        return {"key": key, "kind": "number", "is_log": low > 0 and high / low >= LOGARITHMIC, "words": []}
    return {"key": key, "kind": "category", "is_log": False, "words": sorted(set(map(_word, known)))}


def _number(value: Any) -> float | None:
    return plain_number(float(value)) if isinstance(value, int | float) else None


def _word(value: Any) -> str:
    return str(value).lower() if isinstance(value, bool) else str(value)
