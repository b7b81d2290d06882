"""A sweep: how the varying settings relate to a target.

Importance is Spearman's rank correlation of a setting with the target. A setting whose values have no order is judged
by the ranks of the target within its values (the correlation ratio, minus the share expected by chance). Neither shows
a cause, and settings that were changed together cannot be distinguished.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

from rlvitals.compute.association import rank_correlation, ranks
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
    own, aims = [value for value, _ in pairs], [target for _, target in pairs]
    is_number = all(isinstance(value, int | float) for value in own)
    if not is_number:
        found["kind"] = "category"
    if n < FEW_RUNS:
        found["note"] = f"only {n} runs have both; at least {FEW_RUNS} are needed"
    elif len(set(own if is_number else map(str, own))) == 1:
        found["note"] = "the same in every run that has the target"
    elif len(set(aims)) == 1:
        found["note"] = "the target is the same in every run"
    elif is_number:
        strength, z = rank_correlation(own, aims) or (0.0, 0.0)
        found["strength"], found["is_clear"] = round(strength, 4), abs(z) > 1.96
    else:
        strength, is_clear = _of_categories([str(value) for value in own], aims)
        found["strength"], found["is_clear"] = round(strength, 4), is_clear
        found["note"] = "values without an order: no direction"
    if found["strength"] is not None and not found["is_clear"]:
        found["note"] = "; ".join(filter(None, [found["note"], "may be chance"]))
    return found


def _of_categories(values: Sequence[str], targets: Sequence[float]) -> tuple[float, bool]:
    """The correlation ratio of the ranks minus the share expected by chance, and whether it is significant
    (Kruskal-Wallis test at 5 %).
    """
    n, middle = len(values), (len(values) + 1) / 2
    apart = [rank - middle for rank in ranks(targets)]
    groups = [[far for far, own in zip(apart, values, strict=True) if own == value] for value in dict.fromkeys(values)]
    freedom = len(groups) - 1
    if freedom >= n - 1:  # every run has a different value
        return 0.0, False
    between = sum(sum(group) ** 2 / len(group) for group in groups)
    share = between / sum(far**2 for far in apart)
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
