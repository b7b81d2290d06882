"""Decides which outputs of a notebook show the same training, at which steps, and which training is the main one."""

from __future__ import annotations

import itertools
import math
import re
import statistics
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from rlvitals.importers.base import named
from rlvitals.importers.notebook_code import CodedTrainer
from rlvitals.records import PLACES, Fields

FEWEST_ROWS = 8
"""Runs with fewer rows are not judged, so a training with at least this many is preferred."""

LOOK_BACK = 12
"""How many of the previous trainings an output may belong to."""

MOST_IN_A_CELL = 8
"""If the steps of one text start over more often than this, they count within epochs."""

METRIC = re.compile(
    r"loss|reward|return|\bkl\b|_kl|entropy|margin|logps|advantage|perplexity|grad_norm|损失|奖励|потер|наград", re.I
)
"""A training logs at least one of these names. A notebook also shows other numbers."""
_TELLING = re.compile(
    r"reward|\bkl\b|_kl|kl_|margin|advantage|logps|entropy|return|policy|completion|clip_?(?:frac|ratio)|奖励|наград",
    re.I,
)
"""Metric names of RL and preference trainings."""
_OPTIMISED = re.compile(
    r"loss|\bkl\b|_kl|kl_|policy|grad|advantage|entropy|learning_rate|\blr\b|logps|损失|потер", re.I
)
"""Metric names that an evaluation does not log."""
_SUPERVISED = (None, "sft", "reward_model")


class BarProgress(NamedTuple):
    """The position of a progress bar."""

    done: int
    total: int


@dataclass(slots=True)
class OutputPart:
    """The part of a training that one output shows."""

    cell: int
    rows: list[Fields]
    is_table: bool = False
    progress: BarProgress | None = None
    """The progress bar above a table, or the last one in a text. Notebook services do not keep its earlier states."""
    total: int | None = None
    """The planned steps, if the output states them."""
    is_beside: bool = False
    """Whether a text belongs to the training whose table is in the same cell."""
    config: dict[str, Any] = field(default_factory=dict)
    notes: list[str] = field(default_factory=list)

    @property
    def is_over(self) -> bool:
        """Whether its progress bar reached the end."""
        return self.progress is not None and self.progress.done == self.progress.total

    @property
    def is_trainers(self) -> bool:
        """Whether a trainer class printed it: a table of steps, or rows with a trainer's names. Other texts may be
        anything.
        """
        names = {name for row in self.rows for name in row}
        return self.is_table or ("loss" in names and bool(names & {"epoch", "learning_rate", "grad_norm"}))

    @property
    def is_counted(self) -> bool:
        """Whether the steps are only row numbers, which the console importer assigns if the text states no steps."""
        steps = [row["step"] for row in self.rows if is_train(row)]
        return not self.is_table and steps != [] and steps == list(range(1, len(steps) + 1))


@dataclass(slots=True)
class Training:
    """The parts of one training, in the order of the notebook."""

    parts: list[OutputPart]
    trainer: CodedTrainer | None = None

    @property
    def cells(self) -> list[int]:
        return sorted({part.cell for part in self.parts})

    @property
    def rows(self) -> list[Fields]:
        """The rows of all parts. Several parts are merged into one row per step."""
        if len(self.parts) == 1:
            return self.parts[0].rows
        merged: dict[int, Fields] = {}
        for part in sorted(self.parts, key=lambda part: not part.is_table):  # texts have more digits than tables
            for row in part.rows:
                merged.setdefault(row["step"], {}).update(row)
        return [merged[step] for step in sorted(merged)]

    @property
    def names(self) -> set[str]:
        return {name for part in self.parts for row in part.rows for name in row} - PLACES

    @property
    def algorithm(self) -> str | None:
        return self.trainer.algorithm if self.trainer else None

    @property
    def is_telling(self) -> bool:
        """Whether it logs more than a supervised training does."""
        return any(map(_TELLING.search, self.names))

    @property
    def is_supervised(self) -> bool:
        """Whether the code starts no RL or preference trainer."""
        return self.algorithm in _SUPERVISED

    @property
    def likelihood(self) -> tuple[int, bool, bool, int]:
        """A sort key: how likely this is the training that is meant. RL and preference trainings rank highest, then
        those with enough rows, those that log more than a loss, and those with more rows.
        """
        rows, is_telling = len(self.rows), self.is_telling
        is_trainers = any(part.is_trainers for part in self.parts)
        is_optimised = rows >= FEWEST_ROWS and any(map(_OPTIMISED.search, self.names))
        is_rl = (is_telling and (is_trainers or is_optimised)) or (is_trainers and not self.is_supervised)
        return 2 if is_rl else int(is_trainers), rows >= FEWEST_ROWS, is_telling, rows

    def takes(self, part: OutputPart) -> bool:
        """Add a part if it belongs to this training, and return whether it does."""
        is_mine = self._shows(part) or self._goes_on_in(part)
        if is_mine:
            self.parts.append(part)
        return is_mine

    def describe(self) -> str:
        """Its cells, number of rows and algorithm, for a remark."""
        where = ", ".join(str(cell) for cell in self.cells)
        what = self.algorithm or named(sorted(self.names, key=lambda name: not _TELLING.search(name))[:3])
        rows = len(self.rows)
        return f"cell {where}, {rows} {'row' if rows == 1 else 'rows'}, {what}"

    def _shows(self, part: OutputPart) -> bool:
        """Whether a part shows the same steps again, in another view or in a later state of the same table."""
        if part.is_beside and any(one.is_table and one.cell == part.cell for one in self.parts):
            return True
        shown = {row["step"]: row for row in self.rows}
        common = [(shown[row["step"]], row) for row in part.rows if row["step"] in shown]
        if len(common) * 2 < min(len(shown), len(part.rows)):
            return False
        is_near = self.cells[-1] == part.cell
        pairs = [(one[name], row[name]) for one, row in common for name in one.keys() & row.keys() - PLACES]
        if not pairs:
            return is_near and not any(one.is_table and part.is_table for one in self.parts)
        if sum(itertools.starmap(_is_close, pairs)) * 10 < len(pairs) * 9:
            return False
        levels = [one for one, _ in pairs]
        if max(levels) - min(levels) < 1e-3 and part.is_table:  # losses that stay at 0 would match any training
            return is_near and not any(one.is_over for one in self.parts)
        return True

    def _goes_on_in(self, part: OutputPart) -> bool:
        """Whether a part shows the resumed training: mostly the same names, and steps that follow its last step at a
        similar interval.
        """
        steps, further = ({row["step"] for one in parts for row in one.rows} for parts in (self.parts, [part]))
        last, first = max(steps), min(further)
        if part.is_counted or not last < first <= last + 2 * _usual_gap(steps):
            return False
        if len(further) > 1 and not _usual_gap(steps) <= 2 * _usual_gap(further) <= 4 * _usual_gap(steps):
            return False
        names = {name for row in part.rows for name in row} - PLACES
        return len(names & self.names) * 2 > len(names | self.names)


def _usual_gap(steps: set[int]) -> float:
    """The median distance between logged steps; 0 if there is only one step."""
    gaps = [after - before for before, after in itertools.pairwise(sorted(steps))]
    return statistics.median(gaps) if gaps else 0


def is_train(row: Fields) -> bool:
    """Whether a row holds training metrics, rather than an evaluation or the final summary."""
    return "train_runtime" not in row and not all(name.startswith("eval") for name in row if name not in PLACES)


def _is_close(one: float, other: float) -> bool:
    """Whether two numbers may be the same if one of them was printed with four decimal places."""
    return (math.isnan(one) and math.isnan(other)) or abs(one - other) <= 6e-5 + 1e-4 * abs(other)


# Steps that start over


def joined_epochs(runs: list[list[Fields]]) -> list[Fields]:
    """The rows of a text whose steps start over in each epoch, numbered across epochs. Empty if the text shows several
    trainings.

    Epochs log the same names, and at least some epochs start near the last value of the previous one rather than near
    its first.
    """
    names = set(runs[0][0]) - PLACES
    if any(set(run[0]) - PLACES != names or "train_runtime" in run[-1] for run in runs):
        return []
    main = min(names, key=lambda name: (not name.lower().endswith("loss"), not _TELLING.search(name), name), default="")
    goes_on = 0
    for before, run in itertools.pairwise(runs):
        first, last, now = (row.get(main, 0) for row in (before[0], before[-1], run[0]))
        goes_on += abs(now - last) <= abs(now - first)
    if len(runs) <= MOST_IN_A_CELL and goes_on * 4 < len(runs) - 1:
        return []
    rows: list[Fields] = []
    for run in runs:
        offset = rows[-1]["step"] + 1 - run[0]["step"] if rows else 0
        rows += [{**row, "step": row["step"] + offset} for row in run]
    return rows


# Rows without a step


def place(part: OutputPart, tables: list[OutputPart], ended: int | None, trainer: CodedTrainer | None) -> None:
    """Assign steps to rows that a text only numbers. They are the steps of the trainer's table in the same cell, or
    derived from the rows' epochs, the settings or the last progress bar. `ended` is the final step the trainer printed.
    """
    train = [row for row in part.rows if is_train(row)]
    for table in tables:
        if _has_losses_of(train, table.rows):
            known = [row["step"] for row in table.rows]
            cadence = max(1, known[-1] - known[-2]) if len(known) > 1 else 1
            known += [known[-1] + cadence * more for more in range(1, len(train) - len(known) + 1)]
            _restep(part, known[: len(train)])
            return
    progress = part.progress
    if progress is None and len(tables) == 1 and "loss" in train[0] and any("loss" in row for row in tables[0].rows):
        progress = tables[0].progress  # the table's rows are evaluations
        part.is_beside = progress is not None and progress.done >= len(train)
    if progress is None or progress.done < len(train):
        progress = BarProgress(0, 0)
    ends = [one.progress.total for one in (*tables, part) if one.progress and one.is_over]
    total = ended or next(iter(ends), None)
    if steps := _steps_of_epochs(part, train, total):
        _restep(part, steps)
        return
    cadence = int(trainer.settings.get("logging_steps", 1)) if trainer else 1
    planned = part.config.get("max_steps") or total
    if cadence == 1 and (cadence := _cadence(len(train), progress.done)) > 1:
        part.total = progress.total
        part.notes.append(f"rows say no step: {len(train)} until step {progress.done} are one every {cadence} steps")
    if cadence > 1 and (not planned or len(train) * cadence <= planned + cadence):
        _restep(part, [cadence * position for position in range(1, len(train) + 1)])


def _has_losses_of(rows: list[Fields], shown: list[Fields]) -> bool:
    """Whether the rows of a text match those of a table: about as many, with the same losses up to rounding."""
    pairs = list(zip(rows, shown, strict=False))
    if not pairs or abs(len(rows) - len(shown)) > max(2, len(shown) // 5):
        return False
    compared = [(row["loss"], other["loss"]) for row, other in pairs if "loss" in row and "loss" in other]
    close = sum(itertools.starmap(_is_close, compared))
    return len(compared) * 10 >= len(pairs) * 9 and close * 10 >= len(compared) * 9


def _steps_of_epochs(part: OutputPart, train: list[Fields], total: int | None) -> list[int]:
    """The steps computed from the rows' epochs, if the final summary states the epoch of the last step."""
    final = next((row.get("epoch") for row in reversed(part.rows) if "train_runtime" in row), None)
    epochs = [row.get("epoch", math.nan) for row in train]
    if not total or not final or not all(map(math.isfinite, epochs)):
        return []
    steps = [round(epoch * total / final) for epoch in epochs]
    is_rising = all(before < after for before, after in itertools.pairwise([0, *steps]))
    return steps if is_rising and steps[-1] <= total else []


def _cadence(rows: int, done: int) -> int:
    """The logging interval, given the number of rows logged by step `done`. Several intervals may fit, because a
    progress bar may lag behind; the roundest is used.

    >>> _cadence(50, 500), _cadence(3, 31), _cadence(203, 2026), _cadence(20, 20)
    (10, 10, 10, 1)
    """
    fitting = range(done // (rows + 1) + 1, done // max(1, rows - 1) + 1)
    return max(fitting, key=lambda number: sum(number % base == 0 for base in (2, 5, 10, 50, 100, 500)), default=1)


def _restep(part: OutputPart, steps: list[int]) -> None:
    """Renumber the training rows. Other rows get the step of the training row before them."""
    renumbered = dict(enumerate(steps, 1))
    part.rows = [{**row, "step": renumbered.get(row["step"], steps[-1])} for row in part.rows]
