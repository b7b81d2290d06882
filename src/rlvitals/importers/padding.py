"""Distinguishes nan that pads a table from nan that a training logged.

A table that merges rows of several kinds (training, evaluation, the final summary) or of several logging intervals
holds nan where nothing was logged. Padding affects a whole family of metrics and recurs. A failing training logs nan
next to numbers, or nan in every row from some row on.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Sequence
from functools import cache

from rlvitals.records import Fields
from rlvitals.splits import is_held_out

SUMMARY = frozenset({"train_runtime", "train_samples_per_second", "train_steps_per_second", "total_flos"})
_AXES = frozenset({"step", "timestamp", "epoch", "global_step", "iteration", "index", "time"})


@cache
def family(name: str) -> str:
    """The kind of rows in which a metric is logged: training, evaluation or the final summary; "axis" for positions.

    >>> [family(name) for name in ("valid_action_ratio", "eval_loss", "val-core/acc", "val/ratio", "train_runtime")]
    ['train', 'eval', 'eval', 'train', 'summary']
    """
    lower = name.lower()
    if lower in SUMMARY:
        return "summary"
    if is_held_out(name):
        return "eval"
    return "axis" if lower in _AXES else "train"


def _drop_other_families(row: Fields, keep: frozenset[str]) -> int:
    """Remove the nan of families without any number in this row; returns how many. A row with only nan keeps them."""
    kinds: dict[str, list[bool]] = {}
    for name, value in row.items():
        kinds.setdefault(family(name), []).append(is_nan(value))
    kinds.pop("axis", None)
    missing = {kind for kind, are_nan in kinds.items() if all(are_nan)}
    if len(missing) == len(kinds):
        return 0
    padded = [name for name, value in row.items() if is_nan(value) and family(name) in missing - keep]
    for name in padded:
        del row[name]
    return len(padded)


def drop_padding(rows: list[Fields]) -> int:
    """Remove the padding of a table; returns how many nan were removed."""
    are_merged = any(_has_numbers(row, "train") and _has_numbers(row, "eval") for row in rows)
    # If training and evaluation share rows, the nan of a training metric was really logged.
    keep = frozenset({"train"}) if are_merged else frozenset()
    removed = sum(_drop_other_families(row, keep) for row in rows)
    return removed + _drop_empty_rows(rows) + _drop_sparse_columns(rows)


def is_nan(value: object) -> bool:
    """Whether a value is the float nan."""
    return type(value) is float and math.isnan(value)


def _has_numbers(row: Fields, kind: str) -> bool:
    return any(not is_nan(value) and family(name) == kind for name, value in row.items())


def _drop_empty_rows(rows: list[Fields]) -> int:
    """Remove rows with only nan if they recur: the table was aligned to the steps of another."""
    empty = [
        position
        for position, row in enumerate(rows)
        if all(is_nan(value) for name, value in row.items() if family(name) != "axis")
    ]
    if not _come_and_go(empty, len(rows)):
        return 0
    removed = 0
    for position in reversed(empty):
        removed += sum(map(is_nan, rows.pop(position).values()))
    return removed


def _drop_sparse_columns(rows: list[Fields]) -> int:
    """Remove the nan of columns that are nan in the same rows, at least two with the same prefix: they were logged only
    every few rows.
    """
    holes: dict[str, list[int]] = {}
    for position, row in enumerate(rows):
        for name, value in row.items():
            if is_nan(value):
                holes.setdefault(name, []).append(position)
    groups: dict[tuple[int, ...], list[str]] = {}
    for name, positions in holes.items():
        groups.setdefault(tuple(positions), []).append(name)
    removed = 0
    for together, names in groups.items():
        prefixes = [name.rpartition("/")[0] for name in names if "/" in name]
        if len(set(prefixes)) < len(prefixes) and _come_and_go(together, len(rows)):
            for position in together:
                for name in names:
                    del rows[position][name]
            removed += len(together) * len(names)
    return removed


def _come_and_go(positions: Sequence[int], rows: int) -> bool:
    """Whether gaps recur: they make up at least a quarter of the rows, and other rows interrupt them at least twice."""
    gaps = sum(after - before > 1 for before, after in itertools.pairwise(positions))
    return gaps >= 2 and len(positions) * 4 >= rows
