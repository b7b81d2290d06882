"""Finds the step and time of each row, and the rows at which a file starts over."""

from __future__ import annotations

import itertools
import math
from functools import cache
from typing import Any

from rlvitals.importers.base import Notes
from rlvitals.importers.cells import mean, time_of
from rlvitals.records import MAX_STEP, PLACES, Fields
from rlvitals.splits import held_out_name

STEP_NAMES = (
    "step", "global_step", "rlvitals/step", "train/global_step", "trainer/global_step", "training/global_step",
    "train/step", "progress/step", "system/step", "training_step", "train_step", "optimizer_step", "step_num", "_step",
    "global_steps", "current_steps", "iteration", "iter", "training_iteration", "iter_num", "update", "time/iterations",
    "round", "episode", "episodes", "episode_num", "steps", "total_timesteps", "time/total_timesteps", "num_timesteps",
    "timestep", "timesteps",
)  # fmt: skip
"""By precedence: names that count optimizer steps come before names that count log calls."""

TIME_NAMES = ("timestamp", "_timestamp", "wall_time", "Wall time", "time", "datetime", "date")

NUMBERED = "no row says its step: rows are numbered from 1"

AXES = frozenset({*STEP_NAMES, *TIME_NAMES, "epoch"})
"""Names that give a row's position, not a metric."""

SAMPLES = 2
"""A table with at least this many rows per step, on average, is a table of samples."""


def has_values(row: Fields) -> bool:
    """Whether a row has more than its step and its time."""
    return len(row) > 1 + ("timestamp" in row)


def held_out_row(row: Fields) -> Fields:
    """A row of an evaluation, with its metrics under held-out names."""
    return {name if name.lower() in AXES else held_out_name(name): value for name, value in row.items()}


class StepFinder:
    """Gives every row an integer "step" and, if the row has a time, a "timestamp"."""

    def __init__(self, notes: Notes) -> None:
        self.notes = notes
        self.is_numbered = False
        """Whether a row arrived before any row had stated its step."""
        self._rows = 0
        self._name = ""
        self._differing: set[str] = set()
        self._last = 0
        self._epoch = -math.inf
        self._offset = 0

    def memory(self) -> dict[str, Any]:
        """The state that `recall` needs to continue with the following rows, as JSON values."""
        epoch = self._epoch if math.isfinite(self._epoch) else None
        kept = {"rows": self._rows, "name": self._name, "differing": sorted(self._differing), "last": self._last}
        return {**kept, "epoch": epoch, "offset": self._offset, "is_numbered": self.is_numbered}

    def recall(self, memory: dict[str, Any]) -> None:
        """Continue from another finder's state."""
        self._rows, self._name, self._last = memory["rows"], memory["name"], memory["last"]
        self._differing, self._offset = set(memory["differing"]), memory["offset"]
        self._epoch = -math.inf if memory["epoch"] is None else memory["epoch"]
        self.is_numbered = memory["is_numbered"]

    def place(self, row: Fields, raw: dict[str, Any] | None = None) -> Fields:
        """The row with its step first and its time second; `raw` is the row before texts were dropped."""
        self._rows += 1
        found = self._step(row)
        placed: Fields = {"step": self._last if found is None else found}
        source = row if raw is None else raw
        for name in TIME_NAMES:
            moment = time_of(source[name]) if name in source else None
            if moment is not None:
                placed["timestamp"] = moment
                row.pop(name, None)
                break
        if "timestamp" in row:  # an elapsed time: stored like any other metric
            row["metric/timestamp"] = row.pop("timestamp")
        placed.update(row)
        return placed

    def _step(self, row: Fields) -> int | None:
        names = {plain: name for name in row if (plain := _plain(name))}
        whole = {plain: number for plain, name in names.items() if (number := _whole(row[name])) is not None}
        for plain, name in names.items():
            if plain in ("step", "_step"):
                del row[name]
        if not whole:
            if self._name:
                return None  # a row without a step among rows that state it
            self.is_numbered = True
            self.notes.say(NUMBERED)
            self._last = self._rows
            return self._last
        chosen = min(whole, key=STEP_NAMES.index)
        if self._name and self._name not in whole and chosen in self._differing:
            return None  # this name counts something else in this file
        if not self._name or STEP_NAMES.index(chosen) < STEP_NAMES.index(self._name):
            self._name = chosen
        if chosen == self._name:
            self._differing |= {plain for plain, number in whole.items() if number != whole[chosen]}
        self._last = self._continued(whole[chosen], row)
        return self._last

    def _continued(self, step: int, row: Fields) -> int:
        """The step. If steps start over in each epoch, it is counted across epochs."""
        epoch = row.get("epoch", row.get("train/epoch", row.get("progress/epoch")))
        if not isinstance(epoch, int | float):
            return step + self._offset
        if epoch >= self._epoch + 1 and step + self._offset < self._last and math.isfinite(self._epoch):
            self._offset = self._last + 1 - step
            self.notes.say("steps start over in each epoch: they are numbered on")
        elif epoch < self._epoch:
            self._offset = 0
        self._epoch = epoch
        return step + self._offset


class RestartWatch:
    """Detects the row at which a file starts over: most of its metrics were already logged at a later step."""

    def __init__(self) -> None:
        self._newest: dict[str, int] = {}
        self._first: int | None = None
        self._before: Fields = {}

    def memory(self) -> dict[str, Any]:
        """The state that `recall` needs to continue with the following rows, as JSON values. It does not include the
        last row.
        """
        return {"newest": self._newest, "first": self._first}

    def recall(self, memory: dict[str, Any]) -> None:
        """Continue from another watch's state."""
        self._newest, self._first = dict(memory["newest"]), memory["first"]

    def is_restart(self, row: Fields) -> bool:
        step: int = row["step"]
        names = [name for name in row if name not in PLACES]
        again = sum(self._newest.get(name, step - 1) > step for name in names)
        if step == self._first and row != self._before:  # started, aborted and started again
            again = sum(self._newest.get(name, step - 1) >= step for name in names)
        found = again * 2 > len(names)
        if found or self._first is None:
            self._newest = {}
            self._first = step
        for name in names:
            self._newest[name] = step
        self._before = row
        return found


def restarts(rows: list[Fields]) -> list[int]:
    """The positions of the rows at which a file starts over."""
    watch = RestartWatch()
    return [position for position, row in enumerate(rows) if watch.is_restart(row)]


def count_epochs(rows: list[Fields], steps: StepFinder) -> list[Fields]:
    """If rows state an epoch and no step, and there is one row per epoch, the epoch becomes the step."""
    epochs = [row.get("epoch") for row in rows] if steps.is_numbered else []
    whole = [int(epoch) for epoch in epochs if isinstance(epoch, int | float) and float(epoch).is_integer()]
    if not whole or len(whole) < len(rows) or whole != sorted(set(whole)):
        return rows
    steps.notes.take_back(NUMBERED)
    return [{**row, "step": epoch} for row, epoch in zip(rows, whole, strict=True)]


def averaged(rows: list[Fields], notes: Notes) -> list[Fields]:
    """If a table has one row per sample, returns the mean row of each step; otherwise the rows unchanged."""
    remark = "several rows a step are samples of it: their means are read"
    notes.take_back(remark)
    groups = [list(group) for _, group in itertools.groupby(rows, key=lambda row: row["step"])]
    if (
        len(groups) < 2
        or len(rows) < len(groups) * SAMPLES
        or len({group[0]["step"] for group in groups}) < len(groups)
    ):
        return rows
    names = rows[0].keys()
    if sum(row.keys() == names for row in rows) < 0.9 * len(rows):
        return rows
    notes.say(remark)
    return [_mean_of(group) for group in groups]


def joined(rows: list[Fields]) -> list[Fields]:
    """Merges the rows of a long table (one metric each) into one row per step. If a step has a metric twice, the rows
    are returned unchanged.
    """
    found: dict[int, Fields] = {}
    for row in rows:
        whole = found.setdefault(row["step"], {"step": row["step"]})
        if whole.keys() & row.keys() - PLACES:
            return rows
        whole.update(row)
    return [found[step] for step in sorted(found)]


def _mean_of(group: list[Fields]) -> Fields:
    found: dict[str, list[int | float]] = {}
    for row in group:
        for name, value in row.items():
            found.setdefault(name, []).append(value)
    return {
        name: group[0]["step"] if name == "step" else values[0] if len(set(values)) == 1 else mean(values)
        for name, values in found.items()
    }


@cache
def _plain(name: str) -> str:
    """The entry of STEP_NAMES that matches a name, ignoring case and spaces; empty if there is none."""
    plain = name.lower().replace(" ", "_")
    return plain if plain in STEP_NAMES else ""


def _whole(value: int | float) -> int | None:
    if isinstance(value, float):
        if not value.is_integer():
            return None
        value = int(value)
    return value if -MAX_STEP <= value <= MAX_STEP else None
