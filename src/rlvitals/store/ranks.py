"""Merges the mergeable values of several ranks, step by step, as if one process had seen all samples.

Plain numbers cannot be merged because the number of samples behind them is unknown. For these the run shows the values
of rank 0. The values of any single rank can be read separately.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from rlvitals.store.chunks import ATTEMPT, MOMENT_PARTS, STEP, FieldArray, is_present, missing_cells
from rlvitals.store.index import Columns


@dataclass(frozen=True, slots=True)
class MergedColumn:
    """One metric over all ranks: one number for each attempt and step."""

    attempts: NDArray[np.int64]
    steps: NDArray[np.int64]
    numbers: FieldArray

    def at(self, rows: Columns) -> FieldArray:
        """The merged number for each row of one rank; cells of steps without a merged number are missing."""
        keys = zip(self.attempts.tolist(), self.steps.tolist(), strict=True)
        found = dict(zip(keys, self.numbers, strict=True))
        cells = missing_cells(len(rows))
        for position, key in enumerate(zip(rows.attempts.tolist(), rows.steps.tolist(), strict=True)):
            if key in found:
                cells[position] = found[key]
        return cells


def merge_metric(logs: Sequence[Columns], name: str) -> MergedColumn | None:
    """Merge one metric over the ranks' logs; None when it is mergeable in none of them."""
    if all(log.moments(name) is None for log in logs):
        return None
    parts = [_rows_with(log, name) for log in logs]
    data = {field: np.concatenate([part[field] for part in parts]) for field in parts[0]}
    kind = next((log.kind(name) for log in logs if log.moments(name) is not None), "mean")
    # Sort by order within a step, so that the newest value comes last. Only `last` depends on it.
    order = np.lexsort((data["mean"], data["order"], data[STEP], data[ATTEMPT]))
    data = {field: column[order] for field, column in data.items()}
    starts = _group_starts(data[ATTEMPT], data[STEP])
    with np.errstate(invalid="ignore", divide="ignore", over="ignore"):
        numbers = finish(data, starts, kind)
    keep = ~np.isnan(numbers) | _is_undefined_by_nan(data, starts)
    return MergedColumn(
        attempts=data[ATTEMPT][starts][keep].astype(np.int64),
        steps=data[STEP][starts][keep].astype(np.int64),
        numbers=numbers[keep],
    )


def _rows_with(log: Columns, name: str) -> dict[str, FieldArray]:
    """The rows of one rank that have the metric. A plain number among mergeable ones has no moments; they are NaN."""
    plain, moments = log.column(name), log.moments(name)
    if moments is None:
        moments = {part: missing_cells(len(log)) for part in MOMENT_PARTS}
    keep = is_present(plain) | is_present(moments["count"])
    columns = {part: np.where(is_present(column[keep]), column[keep], np.nan) for part, column in moments.items()}
    return {ATTEMPT: log.column(ATTEMPT)[keep], STEP: log.column(STEP)[keep], **columns}


def _group_starts(attempts: FieldArray, steps: FieldArray) -> NDArray[np.intp]:
    is_first = np.ones(len(steps), dtype=bool)
    is_first[1:] = (np.diff(attempts) != 0) | (np.diff(steps) != 0)
    return np.flatnonzero(is_first)


def _is_undefined_by_nan(data: dict[str, FieldArray], starts: NDArray[np.intp]) -> NDArray[np.bool_]:
    """Steps where NaN is a result of the data (a rank logged NaN or infinity), not of too few samples."""
    parts = np.isnan(data["mean"]) | np.isnan(data["m2"]) | np.isnan(data["min"]) | np.isnan(data["max"])
    infinite = np.isinf(data["mean"]) | np.isinf(data["m2"])
    return np.logical_or.reduceat(parts | infinite, starts) if len(starts) else np.zeros(0, dtype=bool)


def finish(data: dict[str, FieldArray], starts: NDArray[np.intp], kind: str) -> FieldArray:
    """The final number of each group of rows, from their moments. A group begins at each of `starts`."""
    if not len(starts):
        return np.zeros(0)
    sizes = np.diff([*starts, len(data["mean"])])
    if kind == "last":
        return data["mean"][starts + sizes - 1]
    if kind == "min":
        return np.minimum.reduceat(data["min"], starts)
    if kind == "max":
        return np.maximum.reduceat(data["max"], starts)
    count = np.add.reduceat(data["count"], starts)
    if kind == "count":
        return count
    total = np.add.reduceat(data["count"] * data["mean"], starts)
    if kind == "sum":
        return total
    mean = total / count
    if kind == "mean":
        return mean
    m2 = np.add.reduceat(data["m2"] + data["count"] * (data["mean"] - np.repeat(mean, sizes)) ** 2, starts)
    if kind == "var":
        return m2 / count
    return np.sqrt(m2 / count) if kind == "std" else np.sqrt(np.where(count > 1, m2 / (count - 1), np.nan))
