"""Rows of a run or a log that is still being written, poll by poll."""

from __future__ import annotations

import math
import time
from abc import ABC, abstractmethod
from array import array
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from rlvitals.config import by_last_name, planned_steps
from rlvitals.errors import RlvitalsError
from rlvitals.health.history import GONE
from rlvitals.health.rows import RowReader, is_set_back, rows_of_log, rows_of_run
from rlvitals.importers import Growth, LogTail
from rlvitals.importers.into_run import stream_of
from rlvitals.importers.steps import RestartWatch
from rlvitals.records import Fields, HealthEvent, Row
from rlvitals.store.cards import read_attempts
from rlvitals.store.findings import event_of
from rlvitals.store.layout import STREAMS, Forwarded, RunDir, Stream, as_named
from rlvitals.store.lineage import Lineage, lineage_of, trace
from rlvitals.store.tail import RowTail, rows_between
from rlvitals.views.discovery import is_dump, is_joined, is_run, parts_of
from rlvitals.views.dumps import DumpView, Split, reward_rows, splits_of
from rlvitals.views.headlines import run_state
from rlvitals.views.joined_runs import joined_status, open_parts
from rlvitals.views.judge import RowCount
from rlvitals.views.logs import JoinedView, status_since
from rlvitals.views.rollouts import DumpedRollouts
from rlvitals.views.run import RunView, open_run
from rlvitals.views.sources import RowSource, source_of, source_of_log, source_of_run

LOGS: tuple[Forwarded, ...] = (*STREAMS, "system")

PAUSE = 10
"""A training of several processes is read again after this many times the duration of the last read."""

RowsByLog = dict[Forwarded, list[Row]]
"""Rows by log."""


@dataclass(slots=True)
class News:
    """The result of one poll."""

    rows: list[Fields] = field(default_factory=list)
    before: list[Fields] | None = None
    """Set if earlier rows are no longer valid, because a resumed run superseded some of them: the valid rows before the
    new ones. Judging restarts with them.
    """
    events: list[HealthEvent] = field(default_factory=list)
    """Events of the run's own clock and epochs."""


class Feed(ABC):
    """A source of rows that is still growing."""

    reader: RowReader
    """Reads its rows."""
    misses_rows = True
    """Whether missing rows are judged here. They are not if a separate clock of the run does it, or if the log was not
    being written when its newest rows came.
    """

    @abstractmethod
    def poll(self) -> News:
        """What has come since the last poll."""

    @abstractmethod
    def flush(self) -> News:
        """The rows that were held back: a row whose step may have continued, and an incomplete last line. Those of a
        recorded run stay back until its end is on record.
        """

    @abstractmethod
    def source(self) -> RowSource:
        """What is known of the source so far. Its rows come with the polls."""

    @property
    def counted(self) -> RowCount:
        """The training rows of the living line so far."""
        return self.reader

    @property
    def ending(self) -> str:
        """Why no more rows will come; empty if more may come, as for a log, which has no end marker."""
        return ""


def open_feed(path: Path, before: Feed | None = None) -> Feed:
    """Open a run's directory, a training whose processes record a run each, a dump of rollouts or a foreign log. The
    path need not exist yet. `before` is returned if it is already of the right kind: while it has no rows, a path may
    still become a run.
    """
    kind = _feed_for(path)
    return before if isinstance(before, kind) else kind(path)


def _feed_for(path: Path) -> type[RunFeed | JoinedFeed | DumpFeed | LogFeed]:
    if is_run(path):
        return RunFeed
    if is_joined(path):
        return JoinedFeed
    return DumpFeed if path.is_dir() and is_dump(path) else LogFeed


class LogRowCount:
    """Counts the training rows of a log without those that were logged again after the file started over, as
    `LogView` does.
    """

    def __init__(self) -> None:
        self._watch = RestartWatch()
        self._attempts, self._steps = array("q"), array("q")
        self._first: dict[Stream, dict[int, int]] = {"train": {}, "eval": {}}
        """By stream: for each attempt the step of its first row."""
        self._attempt = 1
        self._living: tuple[int, NDArray[np.int64]] = (0, np.array([], dtype=np.int64))

    def take(self, rows: Iterable[Fields]) -> None:
        """Count further rows."""
        for row in rows:
            self._attempt += self._watch.is_restart(row)
            stream = stream_of(row)
            self._first[stream].setdefault(self._attempt, row["step"])
            if stream == "train":
                self._attempts.append(self._attempt)
                self._steps.append(row["step"])

    @property
    def rows(self) -> int:
        return len(self._living_steps)

    @property
    def first_step(self) -> int | None:
        return int(self._living_steps.min()) if self.rows else None

    @property
    def last_step(self) -> int | None:
        return int(self._living_steps.max()) if self.rows else None

    @property
    def _living_steps(self) -> NDArray[np.int64]:
        known = len(self._steps) + sum(map(len, self._first.values()))
        if known != self._living[0]:
            steps, attempts = np.array(self._steps), np.array(self._attempts)
            lineage = lineage_of((), self._first["train"], self._first["eval"])
            self._living = (known, steps[~lineage.is_ghost(attempts, steps)])
        return self._living[1]


class LogFeed(Feed):
    """A foreign log."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._tail = LogTail(path)
        self.reader = RowReader()
        self._counted = LogRowCount()

    @property
    def counted(self) -> RowCount:
        return self._counted

    def poll(self) -> News:
        growth = self._tail.poll()
        if growth.rows:
            self.misses_rows = status_since(self._tail.changed) == "running"
        return self._news(growth)

    def flush(self) -> News:
        news = self._news(self._tail.finish())
        news.rows += self.reader.flush()
        return news

    def _news(self, growth: Growth) -> News:
        before = None
        if growth.before is not None:
            self.reader, self._counted = RowReader(), LogRowCount()
            before = list(rows_of_log(growth.before, self.reader))
            self._counted.take(growth.before)
        self._counted.take(growth.rows)
        return News(list(rows_of_log(growth.rows, self.reader)), before)

    def source(self) -> RowSource:
        config = self._tail.config
        return RowSource(
            path=self._path,
            format=self._tail.format,
            rows=(),
            total_steps=planned_steps(config),
            config=by_last_name(config),
            notes=list(self._tail.notes),
            counted=self._counted,
        )


class WholeFeed(Feed):
    """A source that is read as a whole each time."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self.reader = RowReader()
        self._counted = LogRowCount()
        self._known: list[Fields] = []
        self._state: object = None

    @property
    def counted(self) -> RowCount:
        return self._counted

    def flush(self) -> News:
        return News(self.reader.flush())

    def _new_rows(self, logged: Sequence[Fields]) -> News:
        """The rows added since the last call, or all of them if an earlier one has changed."""
        known, self._known = self._known, list(logged)
        if logged[: len(known)] == known:
            self._counted.take(logged[len(known) :])
            return News(list(rows_of_log(logged[len(known) :], self.reader)))
        self.reader, self._counted = RowReader(), LogRowCount()
        self._counted.take(logged)
        return News(before=list(rows_of_log(logged, self.reader)))


class DumpFeed(WholeFeed):
    """A dump of rollouts without a log: the mean reward of each step."""

    def poll(self) -> News:
        rollouts = DumpedRollouts(self._path, self._split)
        if rollouts.state == self._state:
            return News()
        self._state = rollouts.state
        self.misses_rows = status_since(rollouts.changed) == "running"
        return self._new_rows(reward_rows(rollouts))

    def source(self) -> RowSource:
        return source_of_log(DumpView(self._path, self._split).log)

    @property
    def _split(self) -> Split:
        """The training split, or validation if there is no other."""
        return splits_of(self._path)[0]


class JoinedFeed(WholeFeed):
    """A training whose processes record a run each. A step's row is returned after every running process has logged
    this step or a later one.
    """

    misses_rows = False
    """The run of each process has a separate clock. Its findings come with the events."""

    def __init__(self, path: Path) -> None:
        super().__init__(path)
        self._events = 0
        self._again = 0.0

    def poll(self) -> News:
        state = [run_state(part) for part in parts_of(self._path)]
        if state == self._state or time.monotonic() < self._again:
            return News()
        began = time.monotonic()
        view = JoinedView(self._path)
        self._state = state
        news = self._news(view, _complete(view))
        # All rows are read each time, so the pause grows with the time that reading takes.
        self._again = began + PAUSE * (time.monotonic() - began)
        return news

    def flush(self) -> News:
        """Includes the steps that only one process has logged."""
        view = JoinedView(self._path)
        news = self._news(view, view.log.rows)
        news.rows += self.reader.flush()
        return news

    def _news(self, view: JoinedView, logged: list[Fields]) -> News:
        source = source_of(view)
        events = [event for event in source.recorded if event.seen_in != "rows"]
        news = self._new_rows(logged)
        news.events = events[self._events if news.before is None else 0 :]
        self._events = len(events)
        return news

    def source(self) -> RowSource:
        return source_of(JoinedView(self._path))

    @property
    def ending(self) -> str:
        try:
            status, note = joined_status(open_parts(self._path))
        except RlvitalsError:
            return ""
        return "" if status == "running" else f"the run is {status}{f': {note}' if note else ''}"


def _complete(view: JoinedView) -> list[Fields]:
    """The rows of steps to which no process will add values."""
    behind = [part.last_step for part in view.parts if part.status == "running"]
    if None in behind:
        return []
    until = min((step for step in behind if step is not None), default=math.inf)
    return [row for row in view.log.rows if row["step"] <= until]


class RunFeed(Feed):
    """A recorded run. Its rows are those of the living line."""

    def __init__(self, path: Path) -> None:
        self._named = path
        self._dir = RunDir(path.absolute())
        self._begin()

    def _begin(self) -> None:
        self.reader = RowReader()
        self._tails = {log: RowTail(self._dir.log(log)) for log in LOGS}
        self._health = RowTail(self._dir.findings)
        self._attempt = 0
        self._lineage: Lineage | None = None
        self.misses_rows = True
        self._has_sent_stop = False

    @property
    def ending(self) -> str:
        try:
            view = open_run(self._dir.root)
        except RlvitalsError:
            return ""
        note = f": {view.status_note}" if view.status_note else ""
        return "" if view.status == "running" else f"the run is {view.status}{note}"

    def source(self) -> RowSource:
        return source_of_run(self._view())

    def flush(self) -> News:
        try:
            view = self._view()
        except RlvitalsError:
            return News()
        return News(self.reader.flush() if view.has_end else [], events=self._stop(view))

    def _stop(self, view: RunView) -> list[HealthEvent]:
        """The event that the run's process has exited, returned once."""
        stops = [] if self._has_sent_stop else [event for event in view.health_events if event.rule == GONE]
        self._has_sent_stop = self._has_sent_stop or bool(stops)
        return stops

    def _view(self) -> RunView:
        return open_run(as_named(self._named, self._dir.root))

    def poll(self) -> News:
        is_other = any(tail.has_shrunk for tail in self._tails.values())  # overwritten by another run
        if is_other:
            self._begin()
        ends_before = {log: tail.offset for log, tail in self._tails.items()}
        new = {log: tail.rows() for log, tail in self._tails.items()}
        attempt = max((row.attempt for log in STREAMS for row in new[log]), default=0)
        is_first, is_resumed = not self._attempt, 0 < self._attempt < attempt
        self._attempt = max(self._attempt, attempt)
        before: list[Fields] | None = [] if is_other else None
        if is_resumed:
            before, new = self._overtaken(ends_before, new)
            self._health = RowTail(self._dir.findings)  # judging restarts, also with the events before
        elif is_first:  # some rows may already be superseded
            new = self._living(new)
        elif self._lineage is not None:
            gone = self._lineage.is_ghost(*_places(new["system"]))
            new["system"] = [row for row, is_gone in zip(new["system"], gone, strict=True) if not is_gone]
        return News(self._read(new), before, self._new_events())

    def _overtaken(self, ends_before: Mapping[Forwarded, int], new: RowsByLog) -> tuple[list[Fields], RowsByLog]:
        """All living rows after a resume: those that were known, as the monitor reads them, and the new ones."""
        old = {log: list(rows_between(tail.path, 0, ends_before[log])) for log, tail in self._tails.items()}
        living = self._living({log: old[log] + new[log] for log in LOGS})
        fresh = {id(row) for rows in new.values() for row in rows}
        self.reader = RowReader()
        known = {log: [row for row in living[log] if id(row) not in fresh] for log in LOGS}
        before = self._read(known)
        return before, {log: [row for row in living[log] if id(row) in fresh] for log in LOGS}

    def _read(self, rows: RowsByLog) -> list[Fields]:
        set_back = is_set_back(*([row.timestamp for row in rows[stream]] for stream in STREAMS))
        return list(rows_of_run(rows["train"], rows["eval"], rows["system"], reader=self.reader, is_set_back=set_back))

    def _living(self, rows: RowsByLog) -> RowsByLog:
        places = {log: _places(rows[log]) for log in LOGS}
        self._lineage = lineage = trace(read_attempts(self._dir), places["train"], places["eval"])
        return {
            log: [row for row, gone in zip(rows[log], lineage.is_ghost(*places[log]), strict=True) if not gone]
            for log in LOGS
        }

    def _new_events(self) -> list[HealthEvent]:
        """New events of the run's own clock and epochs, which cannot be derived from the rows."""
        found = [event for line in self._health.lines() if (event := event_of(line)) is not None]
        self.misses_rows = self.misses_rows and all(event.type != "monitor" for event in found)
        is_ghost = self._lineage.is_abandoned if self._lineage is not None else lambda attempt, step: False
        outside = (event for event in found if event.seen_in != "rows" and event.rule != GONE)  # see `_stop`
        return [event for event in outside if not is_ghost(event.attempt, event.step)]


def _places(rows: list[Row]) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """The attempts and steps of rows."""
    attempts, steps = [row.attempt for row in rows], [row.step for row in rows]
    return np.array(attempts, dtype=np.int64), np.array(steps, dtype=np.int64)
