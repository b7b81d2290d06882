"""Which outputs of a notebook show one and the same training, at which steps, and which training is the main one."""

from __future__ import annotations

import itertools
import math
import re
import statistics
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from rlvitals.importers.base import Fields, named
from rlvitals.importers.notebook_code import CodedTrainer

FEWEST_ROWS = 8
"""With fewer a run is not judged: a training that has them comes before one that has not."""

LOOK_BACK = 12
"""Trainings before it that an output may belong to."""

MOST_IN_A_CELL = 8
"""When the steps of one text begin again more often, they count within epochs."""

AXES = frozenset({"step", "timestamp", "epoch"})

METRIC = re.compile(
    r"loss|reward|return|\bkl\b|_kl|entropy|margin|logps|advantage|perplexity|grad_norm|损失|奖励|потер|наград", re.I
)
"""Names of which a training logs at least one; a notebook shows other numbers too."""
_TELLING = re.compile(
    r"reward|\bkl\b|_kl|kl_|margin|advantage|logps|entropy|return|policy|completion|clip_?(?:frac|ratio)|奖励|наград",
    re.I,
)
"""Those of RL and of preferences."""
_OPTIMISED = re.compile(
    r"loss|\bkl\b|_kl|kl_|policy|grad|advantage|entropy|learning_rate|\blr\b|logps|损失|потер", re.I
)
"""Those that an evaluation has not."""
_SUPERVISED = (None, "sft", "reward_model")


class BarProgress(NamedTuple):
    """How far a progress bar is."""

    done: int
    total: int


@dataclass(slots=True)
class OutputPart:
    """What one output shows of a training."""

    cell: int
    rows: list[Fields]
    is_table: bool = False
    progress: BarProgress | None = None
    """Above a table, or as a text has it last: of the bars drawn before, services keep nothing."""
    total: int | None = None
    """Steps planned, where the output states them."""
    is_beside: bool = False
    """Whether a text is of the training whose table is in the same cell."""
    config: dict[str, Any] = field(default_factory=dict)
    notes: list[str] = field(default_factory=list)

    @property
    def is_over(self) -> bool:
        """Whether its progress bar had reached the end."""
        return self.progress is not None and self.progress.done == self.progress.total

    @property
    def is_trainers(self) -> bool:
        """Whether a trainer shows it: a table of steps, or its printed rows. Other texts may be anything."""
        names = {name for row in self.rows for name in row}
        return self.is_table or ("loss" in names and bool(names & {"epoch", "learning_rate", "grad_norm"}))

    @property
    def is_counted(self) -> bool:
        """Whether steps only number the rows, as the console's reader does where the text says none."""
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
        """The rows of all parts, one for each step where there are several."""
        if len(self.parts) == 1:
            return self.parts[0].rows
        merged: dict[int, Fields] = {}
        for part in sorted(self.parts, key=lambda part: not part.is_table):  # texts have more digits than tables
            for row in part.rows:
                merged.setdefault(row["step"], {}).update(row)
        return [merged[step] for step in sorted(merged)]

    @property
    def names(self) -> set[str]:
        return {name for part in self.parts for row in part.rows for name in row} - AXES

    @property
    def algorithm(self) -> str | None:
        return self.trainer.algorithm if self.trainer else None

    @property
    def is_telling(self) -> bool:
        """Whether it logs more than a supervised training does."""
        return any(map(_TELLING.search, self.names))

    @property
    def is_supervised(self) -> bool:
        """Whether the code starts no trainer of RL or of preferences."""
        return self.algorithm in _SUPERVISED

    @property
    def likelihood(self) -> tuple[int, bool, bool, int]:
        """How likely it is meant, of several: one of RL or preferences, long enough, that logs more than a loss."""
        rows, is_telling = len(self.rows), self.is_telling
        is_trainers = any(part.is_trainers for part in self.parts)
        is_optimised = rows >= FEWEST_ROWS and any(map(_OPTIMISED.search, self.names))
        is_rl = (is_telling and (is_trainers or is_optimised)) or (is_trainers and not self.is_supervised)
        return 2 if is_rl else int(is_trainers), rows >= FEWEST_ROWS, is_telling, rows

    def takes(self, part: OutputPart) -> bool:
        """Whether a part belongs to it. If so, it is added."""
        is_mine = self._shows(part) or self._goes_on_in(part)
        if is_mine:
            self.parts.append(part)
        return is_mine

    def describe(self) -> str:
        """For a remark: where it is, how long, what it is."""
        where = ", ".join(str(cell) for cell in self.cells)
        what = self.algorithm or named(sorted(self.names, key=lambda name: not _TELLING.search(name))[:3])
        rows = len(self.rows)
        return f"cell {where}, {rows} {'row' if rows == 1 else 'rows'}, {what}"

    def _shows(self, part: OutputPart) -> bool:
        """Whether a part shows its steps once more: in another view, or in the same table a little later."""
        if part.is_beside and any(one.is_table and one.cell == part.cell for one in self.parts):
            return True
        shown = {row["step"]: row for row in self.rows}
        common = [(shown[row["step"]], row) for row in part.rows if row["step"] in shown]
        if len(common) * 2 < min(len(shown), len(part.rows)):
            return False
        is_near = self.cells[-1] == part.cell
        pairs = [(one[name], row[name]) for one, row in common for name in one.keys() & row.keys() - AXES]
        if not pairs:
            return is_near and not any(one.is_table and part.is_table for one in self.parts)
        if sum(itertools.starmap(_is_close, pairs)) * 10 < len(pairs) * 9:
            return False
        levels = [one for one, _ in pairs]
        if max(levels) - min(levels) < 1e-3 and part.is_table:  # losses that are 0 throughout are those of any training
            return is_near and not any(one.is_over for one in self.parts)
        return True

    def _goes_on_in(self, part: OutputPart) -> bool:
        """Whether a part continues it, resumed: the same names, and steps that continue after its last as they did."""
        steps, further = ({row["step"] for one in parts for row in one.rows} for parts in (self.parts, [part]))
        last, first = max(steps), min(further)
        if part.is_counted or not last < first <= last + 2 * _usual_gap(steps):
            return False
        if len(further) > 1 and not _usual_gap(steps) <= 2 * _usual_gap(further) <= 4 * _usual_gap(steps):
            return False
        names = {name for row in part.rows for name in row} - AXES
        return len(names & self.names) * 2 > len(names | self.names)


def _usual_gap(steps: set[int]) -> float:
    """Between steps that were logged; 0 where there is one alone."""
    gaps = [after - before for before, after in itertools.pairwise(sorted(steps))]
    return statistics.median(gaps) if gaps else 0


def is_train(row: Fields) -> bool:
    """Whether a row is one of training steps, not of an evaluation or a summary at the end."""
    return "train_runtime" not in row and not all(name.startswith("eval") for name in row if name not in AXES)


def _is_close(one: float, other: float) -> bool:
    """Whether two numbers may be the same, one of them printed with four digits behind the point."""
    return (math.isnan(one) and math.isnan(other)) or abs(one - other) <= 6e-5 + 1e-4 * abs(other)


# Steps that begin again


def joined_epochs(runs: list[list[Fields]]) -> list[Fields]:
    """The rows of a text whose steps begin again in each epoch, counted on; none where it shows several trainings.

    Epochs have the same names, and numbers that now and then continue from where they were rather than from the
    beginning.
    """
    names = set(runs[0][0]) - AXES
    if any(set(run[0]) - AXES != names or "train_runtime" in run[-1] for run in runs):
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


# Rows that say no step


def place(part: OutputPart, tables: list[OutputPart], ended: int | None, trainer: CodedTrainer | None) -> None:
    """Give rows that a text only numbers the steps of the trainer's table beside it, or those that their epochs, the
    settings or the last progress bar tell. `ended` is the step at which the training says it ended.
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
        progress = tables[0].progress  # its rows are others, those of evaluations
        part.is_beside = progress is not None and progress.done >= len(train)
    if progress is None or progress.done < len(train):
        progress = BarProgress(0, 0)
    ends = [one.progress.total for one in (*tables, part) if one.progress and one.is_over]
    total = ended or next(iter(ends), None)
    if told := _steps_of_epochs(part, train, total):
        _restep(part, told)
        return
    cadence = int(trainer.settings.get("logging_steps", 1)) if trainer else 1
    planned = part.config.get("max_steps") or total
    if cadence == 1 and (cadence := _cadence(len(train), progress.done)) > 1:
        part.total = progress.total
        part.notes.append(f"rows say no step: {len(train)} until step {progress.done} are one every {cadence} steps")
    if cadence > 1 and (not planned or len(train) * cadence <= planned + cadence):
        _restep(part, [cadence * position for position in range(1, len(train) + 1)])


def _has_losses_of(rows: list[Fields], shown: list[Fields]) -> bool:
    """Whether rows of a text are those of a table: as many, with the same losses as far as both show digits."""
    pairs = list(zip(rows, shown, strict=False))
    if not pairs or abs(len(rows) - len(shown)) > max(2, len(shown) // 5):
        return False
    compared = [(row["loss"], other["loss"]) for row, other in pairs if "loss" in row and "loss" in other]
    close = sum(itertools.starmap(_is_close, compared))
    return len(compared) * 10 >= len(pairs) * 9 and close * 10 >= len(compared) * 9


def _steps_of_epochs(part: OutputPart, train: list[Fields], total: int | None) -> list[int]:
    """Steps from the epochs of rows, where the summary says which epoch the last step was in."""
    final = next((row.get("epoch") for row in reversed(part.rows) if "train_runtime" in row), None)
    epochs = [row.get("epoch", math.nan) for row in train]
    if not total or not final or not all(map(math.isfinite, epochs)):
        return []
    steps = [round(epoch * total / final) for epoch in epochs]
    is_rising = all(before < after for before, after in itertools.pairwise([0, *steps]))
    return steps if is_rising and steps[-1] <= total else []


def _cadence(rows: int, done: int) -> int:
    """Every how many steps a row was logged, when there are so many at a step: the roundest of the numbers that fit. A
    bar may lag a little behind.

    >>> _cadence(50, 500), _cadence(3, 31), _cadence(203, 2026), _cadence(20, 20)
    (10, 10, 10, 1)
    """
    fitting = range(done // (rows + 1) + 1, done // max(1, rows - 1) + 1)
    return max(fitting, key=lambda number: sum(number % base == 0 for base in (2, 5, 10, 50, 100, 500)), default=1)


def _restep(part: OutputPart, steps: list[int]) -> None:
    """Number the training rows again; those between them keep the step of the row before."""
    renumbered = dict(enumerate(steps, 1))
    part.rows = [{**row, "step": renumbered.get(row["step"], steps[-1])} for row in part.rows]
