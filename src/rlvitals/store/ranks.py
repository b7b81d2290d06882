"""Merges the mergeable values of several ranks, step by step, as if one process had seen all samples.

Plain numbers cannot be merged (nobody knows what they count), so the run shows rank 0's; any one rank can be read by
itself.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from rlvitals.store.index import Columns, FieldArray, is_present, missing_cells


@dataclass(frozen=True, slots=True)
class MergedColumn:
    """One metric over all ranks: one number for each attempt and step."""

    attempts: NDArray[np.int64]
    steps: NDArray[np.int64]
    timestamps: FieldArray
    numbers: FieldArray

    def at(self, rows: Columns) -> FieldArray:
        """The merged numbers laid beside one rank's rows; a row without the metric stays without it where no rank has
        it.
        """
        keys = zip(self.attempts.tolist(), self.steps.tolist(), strict=True)
        found = dict(zip(keys, self.numbers, strict=True))
        cells = missing_cells(len(rows))
        for position, key in enumerate(zip(rows.attempts.tolist(), rows.steps.tolist(), strict=True)):
            if key in found:
                cells[position] = found[key]
        return cells


def merge_metric(logs: Sequence[Columns], name: str) -> MergedColumn | None:
    """Merge one metric over the ranks' logs; None when it is not mergeable in any of them."""
    parts = [_present_moments(log, name) for log in logs]
    parts = [part for part in parts if len(part["attempt"])]
    if not any(np.isfinite(part["count"]).any() for part in parts):
        return None
    data = {field: np.concatenate([part[field] for part in parts]) for field in parts[0]}
    order = np.lexsort((data["step"], data["attempt"]))
    data = {field: column[order] for field, column in data.items()}
    is_first = np.ones(len(order), dtype=bool)
    is_first[1:] = (np.diff(data["attempt"]) != 0) | (np.diff(data["step"]) != 0)
    starts = np.flatnonzero(is_first)
    with np.errstate(invalid="ignore", divide="ignore", over="ignore"):
        count = np.add.reduceat(data["count"], starts)
        mean = np.add.reduceat(data["count"] * data["mean"], starts) / count
        spread = data["m2"] + data["count"] * (data["mean"] - np.repeat(mean, np.diff([*starts, len(order)]))) ** 2
        moments = {
            "count": count,
            "mean": mean,
            "m2": np.add.reduceat(spread, starts),
            "min": np.minimum.reduceat(data["min"], starts),
            "max": np.maximum.reduceat(data["max"], starts),
        }
        numbers = _finish(moments, next((log.kind(name) for log in logs if log.moments(name) is not None), "mean"))
    return MergedColumn(
        attempts=data["attempt"][starts].astype(np.int64),
        steps=data["step"][starts].astype(np.int64),
        timestamps=np.maximum.reduceat(data["timestamp"], starts),
        numbers=numbers,
    )


def _present_moments(log: Columns, name: str) -> dict[str, FieldArray]:
    """The rows of one rank that have the metric. A non-finite one has no moments: NaN stands for them and stays NaN in
    the merge.
    """
    plain = log.column(name)
    moments = log.moments(name)
    keep = is_present(plain) if moments is None else is_present(plain) | is_present(moments["count"])
    if moments is None:
        keep &= ~np.isfinite(plain)
        blank = np.full(int(keep.sum()), np.nan)
        columns = dict.fromkeys(("count", "mean", "m2", "min", "max"), blank)
    else:
        keep &= is_present(moments["count"]) | ~np.isfinite(plain)
        columns = {part: np.where(is_present(column[keep]), column[keep], np.nan) for part, column in moments.items()}
    return {
        "attempt": log.column("attempt")[keep],
        "step": log.column("step")[keep],
        "timestamp": log.timestamps[keep],
        **columns,
    }


def _finish(moments: dict[str, FieldArray], kind: str) -> FieldArray:
    count = moments["count"]
    match kind:
        case "sum":
            return moments["mean"] * count
        case "min" | "max":
            return moments[kind]
        case "count":
            return count
        case "var":
            return moments["m2"] / count
        case "std":
            return np.sqrt(moments["m2"] / count)
        case "sample_std":
            return np.sqrt(np.where(count > 1, moments["m2"] / (count - 1), np.nan))
        case _:
            return moments["mean"]
