"""User-defined columns over hundreds of runs: any metric's last or best value or its value at a step, and any setting.

A run's log is read completely once, through its index; afterwards only the added rows are read. Unchanged files are not
read again.

A column is `reward.last`, `reward.best`, `reward@100` (the last value at or before step 100) or the name of a setting.
`sweep` is the experiment that a run belongs to, `seeds` the family of runs that differ only in their seed.
"""

from __future__ import annotations

import math
import re
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NamedTuple

from rlvitals.contract import Choices
from rlvitals.errors import RlvitalsError
from rlvitals.records import Row, Stream
from rlvitals.store.files import stamp
from rlvitals.store.layout import STREAMS, RunDir, archive_of
from rlvitals.store.reader import first_rows, last_rows, read_blocks, rows_in
from rlvitals.store.tail import file_size
from rlvitals.views.headlines import END_ROWS
from rlvitals.views.run import RunView
from rlvitals.views.settings import families, plain_settings, setting_of

PATIENCE = 0.6
"""Seconds of reading logs for one response. The rest is read for the next response."""

MOST_CHOICES = 5_000
"""Maximum names of metrics and of settings to choose from."""

SWEEPS = ("sweep", "sweep_id", "sweep_name", "experiment", "experiment_name", "group", "wandb_group")
_METRIC = re.compile(r"(?P<name>.+?)(?:\.(?P<kind>last|best)|@(?P<step>\d{1,15}))")


class CellSource(NamedTuple):
    """The source of a run's cells."""

    path: Path
    open: Callable[[], RunView]
    state: object = None
    """A value that changes when the run must be read again, if that depends on more than its own files."""


class Wanted(NamedTuple):
    """A column that shows a metric."""

    name: str
    step: int | None
    is_best: bool


def wanted_of(column: str) -> Wanted | None:
    """The metric of a column; None if the column names a setting.

    >>> wanted_of("reward.best"), wanted_of("rewards/margins@100"), wanted_of("learning_rate")
    (Wanted(name='reward', step=None, is_best=True), Wanted(name='rewards/margins', step=100, is_best=False), None)
    """
    found = _METRIC.fullmatch(column)
    if found is None:
        return None
    step = found["step"]
    return Wanted(found["name"], None if step is None else int(step), found["kind"] == "best")


@dataclass(slots=True)
class Cell:
    """A metric's value that is updated row by row."""

    wanted: Wanted
    logged: str | None = None
    """The name in the run; None: the run has not logged it yet."""
    direction: str = "none"
    step: int = -1
    value: float | None = None

    def see(self, step: int, value: float) -> None:
        if self.wanted.is_best:
            is_better = self.value is None or (value > self.value if self.direction == "up" else value < self.value)
            if math.isfinite(value) and self.direction in ("up", "down") and is_better:
                self.step, self.value = step, value
        elif step >= self.step and (self.wanted.step is None or step <= self.wanted.step):
            self.step, self.value = step, value


@dataclass(slots=True)
class Followed:
    """One run's cells, and how far its logs were read for them."""

    state: object = None
    settings: dict[str, Any] = field(default_factory=dict)
    metrics: list[str] = field(default_factory=list)
    cells: dict[str, Cell] = field(default_factory=dict)
    read_to: dict[Stream, int] = field(default_factory=dict)
    attempt: int = 0


class RunTable:
    """Caches the cells of every run of a folder."""

    def __init__(self) -> None:
        self._runs: dict[str, Followed] = {}

    def cells(
        self, runs: Mapping[str, CellSource], columns: Sequence[str], patience: float = PATIENCE
    ) -> tuple[dict[str, list[Any]], int]:
        """Run -> one value per column, and how many runs are not read yet. Unknown values are None."""
        until = time.monotonic() + patience
        wanted = {column: found for column in columns if (found := wanted_of(column)) is not None}
        values: dict[str, list[Any]] = {}
        pending = 0
        settings: dict[str, Mapping[str, Any]] = {}
        for run, source in runs.items():
            try:
                known = self._followed(run, source)
                is_known = self._bring_up(known, source, wanted, is_late=time.monotonic() > until)
            except (RlvitalsError, OSError):  # the run's line shows the reason
                values[run] = [None] * len(columns)
                continue
            pending += not is_known
            settings[run] = known.settings
            values[run] = [self._value(known, column, run) for column in columns]
        if "seeds" in columns:
            place = list(columns).index("seeds")
            for run, label in families(settings).items():
                values[run][place] = label
        return values, pending

    def settings(self, runs: Mapping[str, CellSource]) -> dict[str, dict[str, Any]]:
        """Run -> its settings; empty for unreadable runs."""
        found: dict[str, dict[str, Any]] = {}
        for run, source in runs.items():
            try:
                found[run] = self._followed(run, source).settings
            except (RlvitalsError, OSError):
                found[run] = {}
        return found

    def choices(self, runs: Iterable[str]) -> Choices:
        """The metrics and settings of runs whose cells were requested, the most common ones first."""
        metrics: dict[str, int] = {}
        settings: dict[str, int] = {}
        for run in runs:
            known = self._runs.get(run, Followed())
            for counts, names in ((metrics, known.metrics), (settings, known.settings)):
                for name in names:
                    counts[name] = counts.get(name, 0) + 1
        return {"metrics": _common(metrics), "settings": _common(settings)}

    def _followed(self, run: str, source: CellSource) -> Followed:
        run_dir = RunDir(source.path)
        files = [run_dir.config, run_dir.attempts, run_dir.ranks, *map(archive_of, map(run_dir.log, STREAMS))]
        state = (source.state, *map(stamp, files))
        known = self._runs.get(run)
        if known is None or known.state != state:
            view = source.open()
            names = view.metrics if source.state is not None else _names_at_ends(run_dir)
            known = Followed(state, plain_settings(view.config), names)
            self._runs[run] = known
        return known

    def _bring_up(self, known: Followed, source: CellSource, wanted: Mapping[str, Wanted], *, is_late: bool) -> bool:
        """Update the cells; returns whether all wanted cells are up to date."""
        run_dir = RunDir(source.path)
        if all(column in known.cells for column in wanted) and self._read_on(known, run_dir):
            return True
        if is_late:
            return False
        view = source.open()
        sizes = {stream: file_size(run_dir.log(stream)) or 0 for stream in STREAMS}
        is_same = sizes == known.read_to and not run_dir.ranks.exists()
        known.read_to = sizes
        known.attempt = max((row.attempt for row in last_rows(run_dir.train_log, 1)), default=0)
        for column, asked in {**{name: cell.wanted for name, cell in known.cells.items()}, **wanted}.items():
            if not is_same or column not in known.cells:
                known.cells[column] = _cell(view, asked)
        return True

    def _read_on(self, known: Followed, run_dir: RunDir) -> bool:
        """Add the new rows. Returns False if the whole log must be read: it was cut or resumed, has a new metric, or is
        merged over ranks.
        """
        for stream in STREAMS if known.cells else ():
            log, start = run_dir.log(stream), known.read_to.get(stream, 0)
            size = file_size(log) or 0
            if size == start:
                continue
            if size < start or run_dir.ranks.exists():
                return False
            for lines, end in read_blocks(log, start, size):
                for row in rows_in(lines):
                    if row.attempt != known.attempt or not self._take(known, row):
                        return False
                known.read_to[stream] = end
        return True

    @staticmethod
    def _take(known: Followed, row: Row) -> bool:
        for cell in known.cells.values():
            if cell.logged is None and cell.wanted.name in row.numbers:
                return False
            value = row.numbers.get(cell.logged or "")
            if value is not None:
                cell.see(row.step, float(value))
        return True

    @staticmethod
    def _value(known: Followed, column: str, run: str) -> Any:
        cell = known.cells.get(column)
        if cell is not None and cell.value is not None:
            return cell.value if math.isfinite(cell.value) else str(cell.value)
        if column == "sweep":
            named = (setting_of(known.settings, name) for name in SWEEPS)
            return next((value for value in named if value is not None), None) or run.rpartition("/")[0] or None
        return setting_of(known.settings, column)


def _cell(view: RunView, wanted: Wanted) -> Cell:
    logged = view.logged_as(wanted.name)
    if logged is None:
        return Cell(wanted)
    steps, values = view.series(logged)
    best = view.best(logged)
    cell = Cell(wanted, logged, best.direction if best else "none")
    if best is None:
        return cell
    if wanted.is_best:
        cell.step, cell.value = (best.best_step or 0, best.best) if best.best is not None else (-1, None)
    elif wanted.step is None:
        cell.step, cell.value = best.last_step, best.last
    elif (place := int((steps <= wanted.step).sum())) > 0:
        cell.step, cell.value = int(steps[place - 1]), float(values[place - 1])
    return cell


def _names_at_ends(run_dir: RunDir) -> list[str]:
    logs = [run_dir.log(stream) for stream in STREAMS]
    rows = [row for log in logs for row in (*first_rows(log, END_ROWS), *last_rows(log, END_ROWS))]
    return list(dict.fromkeys(name for row in rows for name in row.numbers))


def _common(counts: Mapping[str, int]) -> list[str]:
    return sorted(counts, key=lambda name: (-counts[name], name))[:MOST_CHOICES]
