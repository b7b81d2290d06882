"""Logs of other tools, opened like runs. They are held in memory, and nothing is written.

With `open_any`, every view opens a recorded run, a foreign log and a folder of per-epoch metrics in the same way.
"""

from __future__ import annotations

import math
import os
import time
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace
from functools import cached_property
from pathlib import Path
from typing import Any, Literal

from rlvitals.config import planned_steps
from rlvitals.errors import NotALog
from rlvitals.health.rows import RowReader, rows_of_log
from rlvitals.importers import ForeignLog, local_or_log, read_log, split_choice
from rlvitals.importers.into_run import stored_rows
from rlvitals.masking import masked
from rlvitals.records import Attempt, Fields, HealthEvent, Row, RunInfo, Status
from rlvitals.store.chunks import from_rows
from rlvitals.store.distributions import Logged
from rlvitals.store.epochs import EpochRow, EpochStore
from rlvitals.store.images import Image
from rlvitals.store.index import Columns
from rlvitals.store.layout import EpochDir, RunDir, Stream
from rlvitals.views.discovery import is_run, near_directory, parts_of
from rlvitals.views.joined_runs import joined_end, joined_log, joined_status, open_parts
from rlvitals.views.rollouts import JoinedRollouts, RolloutSource
from rlvitals.views.run import RunView, open_run

BEING_WRITTEN = 300.0
"""Seconds after its last change in which a log or a dump counts as being written, because they have no end marker."""


def status_since(changed: float) -> Status:
    """`running` or `finished`, by the time at which the files of a log or a dump were last changed."""
    return "running" if time.time() - changed < BEING_WRITTEN else "finished"


class LogView(RunView):
    """A foreign log as a run view."""

    def __init__(self, log: ForeignLog, path: Path) -> None:
        self.log = self.foreign = log
        self._keep(RunDir(path))
        self._rows: dict[Stream, list[Row]] = {"train": [], "eval": []}
        for stream, row in stored_rows(log):
            self._rows[stream].append(replace(row, numbers={name: float(n) for name, n in row.numbers.items()}))
        self._opened = {(stream, 0): Columns([from_rows(rows, 0, 0)]) for stream, rows in self._rows.items()}
        self.config = masked(log.config)
        numbers = sorted({row.attempt for rows in self._rows.values() for row in rows})
        self.attempts = [Attempt(number=number, started=0.0) for number in numbers]
        changed = log.changed
        self.info = RunInfo(
            id="",
            name=_name(path),
            status="finished",
            created=changed,
            updated=changed,
            total_steps=planned_steps(log.config),
            algorithm=log.algorithm,
            framework=log.framework,
        )

    @property
    def status(self) -> Status:
        return self.info.status  # a foreign log has no lock

    @property
    def damage(self) -> list[str]:
        return []  # a foreign log has none of a run's small files

    @property
    def problems(self) -> list[str]:
        return self.log.notes

    @property
    def has_distributions(self) -> bool:
        return bool(self.log.distributions)

    def _read_distributions(self) -> Iterable[Logged]:
        return self.log.distributions

    @property
    def has_images(self) -> bool:
        return bool(self.log.images)

    def _read_images(self) -> Iterable[Image]:
        return self.log.images

    def _held_images(self) -> Iterable[Image]:
        return self.log.images

    @property
    def health_events(self) -> list[HealthEvent]:
        return []  # it was not monitored

    def iterate(self, *, stream: Stream | Literal["system"] = "train", ghosts: bool = False) -> Iterator[Row]:
        if stream == "system":
            return iter(())  # a foreign log's values about its machine are in its rows
        return (row for row in self._rows[stream] if self._is_ghost(row) == ghosts)

    def _first_rows(self) -> Iterator[Fields]:
        return rows_of_log(self.log.rows, RowReader())

    def last_rows(self, count: int) -> list[Row]:
        return sorted(self.iterate(), key=lambda row: row.step)[-count:] if count else []


class EpochsView(LogView):
    """A recorded run that logged epochs and no rows, as the log of its epochs."""

    def __init__(self, log: ForeignLog, run: RunView) -> None:
        config = {key: value for key, value in run.config.items() if key != "rlvitals"}
        known = replace(log, config=config, algorithm=run.info.algorithm, framework=run.info.framework)
        super().__init__(known, run.path)
        self.parts, self.info = [run], run.info

    @property
    def health_events(self) -> list[HealthEvent]:
        return self.parts[0].health_events


class JoinedView(LogView):
    """A training whose processes record a run each, as a run view: their rows joined by step, and the rollouts of all
    of them.
    """

    def __init__(self, folder: Path, within: Path | None = None) -> None:
        """`within`: see `RunView.dumps_within`."""
        self._runs = open_parts(folder)
        for run in self._runs.values():
            run.dumps_within = within
        self.parts = list(self._runs.values())
        super().__init__(joined_log(folder, self._runs), folder)
        infos = [run.info for run in self.parts]
        self.info = replace(
            self.info,
            name=_name_of_all(infos, folder),
            status=self.status,
            created=min(info.created for info in infos),
            updated=max(info.updated for info in infos),
            ended=joined_end(self._runs),
            total_steps=next((info.total_steps for info in infos if info.total_steps), self.info.total_steps),
            host=infos[0].host,
        )

    @property
    def status(self) -> Status:
        return joined_status(self._runs)[0]

    @property
    def status_note(self) -> str:
        return joined_status(self._runs)[1]

    @cached_property
    def rollout_log(self) -> RolloutSource:
        return JoinedRollouts([run.rollout_log for run in self._runs.values()])

    @property
    def has_distributions(self) -> bool:
        return any(run.has_distributions for run in self._runs.values())


def _name_of_all(infos: Sequence[RunInfo], folder: Path) -> str:
    """The name that all processes' runs have, or the name of the trainer's folder."""
    names = {info.name for info in infos}
    if len(names) == 1:
        return names.pop()
    place = folder.resolve()
    return place.parent.name if place.name == "rlvitals" else place.name


def open_joined(place: Path, within: Path | None = None) -> JoinedView | None:
    """Open a training whose processes record a run each; None if the path is not one."""
    return JoinedView(place, within) if parts_of(place) else None


def open_recorded(path: str | os.PathLike[str]) -> RunView:
    """Open a recorded run, or a training whose processes record a run each. Raises as `open_run` does."""
    return open_joined(Path(path)) or open_run(path)


def open_any(path: str | os.PathLike[str]) -> RunView:
    """Open a run's directory, a folder of per-epoch metrics, or any readable log. Raises NotALog or RunError."""
    found = run_or_log(path)
    return found if isinstance(found, RunView) else LogView(*found)


def run_or_log(path: str | os.PathLike[str]) -> RunView | tuple[ForeignLog, Path]:
    """What `open_any` opens: a run, or the log of another tool or of epochs, and the place by which it is named."""
    place = local_or_log(path)
    if isinstance(place, ForeignLog):
        return place, place.path
    if is_run(place):
        view = open_run(place)
        epochs = None if view.rows else _epochs_in(place)
        return view if epochs is None else EpochsView(epochs, view)
    if not os.path.lexists(split_choice(place)[0]):
        raise NotALog(place, "there is nothing there", near_directory(place))
    return open_joined(place) or (log_at(place), place)


def log_at(place: Path) -> ForeignLog:
    """The record of epochs at a place, or the log of another tool. Raises NotALog."""
    return _epochs_in(place) or read_log(place)


def repeats_epochs(file: Path) -> bool:
    """Whether a file is the table or the history that a tracker of epochs writes beside its record, now and then."""
    epochs = EpochDir(file.parent)
    return file in (epochs.table, epochs.history) and os.path.isfile(epochs.record)


def _epochs_in(folder: Path) -> ForeignLog | None:
    """The record of epochs in a folder or its `metrics/`, or the table if there is no record. The path may also be the
    record itself.
    """
    if os.path.isfile(folder):
        own = EpochDir(folder.parent)
        return _epochs_in(folder.parent) if folder == own.record else None
    for paths in (EpochDir(folder), EpochDir(folder / "metrics")):
        if os.path.isfile(paths.record):
            store = EpochStore(paths.folder)
            store.read()
            rows = [_row(epoch) for epoch in store.history]
            return ForeignLog(paths.record, "epochs", rows) if rows else None
        if os.path.isfile(paths.table):
            return read_log(paths.table)
    return None


def _row(epoch: EpochRow) -> dict[str, Any]:
    when = {"timestamp": epoch.timestamp} if math.isfinite(epoch.timestamp) else {}
    return {"step": epoch.number, **when, "epoch": epoch.number, **epoch.numbers}


def _name(path: Path) -> str:
    """The displayed name: `run1` for `run1/metrics` and for a file in it."""
    path = path.resolve()
    folder = path.parent if path.is_file() else path
    if folder.name == "metrics":
        return folder.parent.name
    return path.stem if path.is_file() else path.name
