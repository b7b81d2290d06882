"""Rows of a run or a log that is still being written, poll by poll."""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from itertools import chain
from pathlib import Path
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from rlvitals.errors import RlvitalsError
from rlvitals.importers import LogTail
from rlvitals.records import Row
from rlvitals.store.cards import read_attempts
from rlvitals.store.layout import RunDir, SideLog, Stream, as_named
from rlvitals.store.lineage import Lineage, trace
from rlvitals.store.lines import BadLine, decode
from rlvitals.store.reader import read_blocks
from rlvitals.views.query import open_run
from rlvitals.views.sources import Fields, Source, is_run, merged, settings, source_of_run, total_steps, with_samples

STREAMS: tuple[Stream, Stream] = ("train", "eval")


@dataclass(slots=True)
class News:
    """What one poll brought."""

    rows: list[Fields] = field(default_factory=list)
    before: list[Fields] | None = None
    """Where what was read so far is no longer the story (a resumed run overtook a part of it): the rows that are, and
    that came before the new ones. Judging begins again with them.
    """


class Feed(Protocol):
    """A growing source."""

    def poll(self) -> News: ...

    def source(self) -> Source:
        """What is known of it by now; its rows come with the polls."""
        ...

    @property
    def ending(self) -> str:
        """Why no more rows will come; empty as long as they may."""
        ...


def open_feed(path: Path) -> Feed:
    """A run's directory or a foreign log, which need not be there yet."""
    return RunFeed(path) if is_run(path) else LogFeed(path)


class LogFeed:
    """A foreign log. It never ends by itself: nobody says when its writer is done."""

    ending = ""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._tail = LogTail(path)

    def poll(self) -> News:
        growth = self._tail.poll()
        return News(growth.rows, growth.before)

    def source(self) -> Source:
        config = self._tail.config
        return Source(
            path=self._path,
            format=self._tail.format,
            rows=(),
            total_steps=total_steps(config),
            config=settings(config),
            notes=list(self._tail.notes),
        )


class RunFeed:
    """A recorded run. Its rows are those of the living line."""

    def __init__(self, path: Path) -> None:
        self._named = path
        self._dir = RunDir(path.absolute())
        self._offsets: dict[Stream, int] = dict.fromkeys(STREAMS, 0)
        self._attempt = 0
        self._step: int | None = None
        self._lineage: Lineage | None = None
        self._sample_offset = 0
        self._samples: list[Row] = []

    @property
    def ending(self) -> str:
        try:
            view = open_run(self._dir.root)
        except RlvitalsError:
            return ""
        note = f": {view.status_note}" if view.status_note else ""
        return "" if view.status == "running" else f"the run is {view.status}{note}"

    def source(self) -> Source:
        return source_of_run(open_run(as_named(self._named, self._dir.root)))

    def poll(self) -> News:
        if any(self._has_shrunk(stream) for stream in STREAMS):  # overwritten: another run in the same place
            self._offsets = dict.fromkeys(STREAMS, 0)
            self._attempt = 0
            self._step, self._sample_offset, self._samples = None, 0, []
            return News(self._read_new()[0], before=[])
        ends_before = dict(self._offsets)
        rows, attempt = self._read_new()
        if self._attempt and attempt > self._attempt:
            self._attempt = attempt
            return self._overtaken(ends_before)
        self._attempt = max(self._attempt, attempt)
        return News(rows)

    def _read_new(self) -> tuple[list[Fields], int]:
        found: dict[Stream, list[Row]] = {}
        for stream in STREAMS:
            found[stream], self._offsets[stream] = _rows(self._dir, stream, self._offsets[stream])
        attempt = max((row.attempt for row in chain(*found.values())), default=0)
        if not self._attempt:  # the first look: there may be overtaken rows already
            self._attempt = attempt
            found = self._living(found)
        return self._merged(found), attempt

    def _overtaken(self, ends_before: dict[Stream, int]) -> News:
        """Split the living rows into those that were known and those that are new."""
        old, new = {}, {}
        for stream in STREAMS:
            old[stream], _ = _rows(self._dir, stream, 0, ends_before[stream])
            new[stream], _ = _rows(self._dir, stream, ends_before[stream], self._offsets[stream])
        living = self._living({stream: old[stream] + new[stream] for stream in STREAMS})
        fresh = {id(row) for rows in new.values() for row in rows}
        known = {stream: [row for row in living[stream] if id(row) not in fresh] for stream in STREAMS}
        news = {stream: [row for row in living[stream] if id(row) in fresh] for stream in STREAMS}
        self._step, self._sample_offset, self._samples = None, 0, []
        before = self._merged(known)
        return News(self._merged(news), before=before)

    def _merged(self, rows: dict[Stream, list[Row]]) -> list[Fields]:
        found = list(with_samples(merged(rows["train"], rows["eval"], self._step), self._new_samples()))
        if found:
            last = found[-1].get("timestamp", -math.inf)
            self._samples = [sample for sample in self._samples if sample.timestamp > last]
        self._step = found[-1]["step"] if found else self._step
        return found

    def _new_samples(self) -> list[Row]:
        """The samples of the machine that no row has been joined with yet."""
        samples, self._sample_offset = _rows(self._dir, "system", self._sample_offset)
        if samples and self._lineage is not None:
            gone = self._lineage.is_ghost(*_places(samples))
            samples = [sample for sample, is_gone in zip(samples, gone, strict=True) if not is_gone]
        self._samples += samples
        return self._samples

    def _living(self, rows: dict[Stream, list[Row]]) -> dict[Stream, list[Row]]:
        places = {stream: _places(rows[stream]) for stream in STREAMS}
        self._lineage = lineage = trace(read_attempts(self._dir), places["train"], places["eval"])
        return {
            stream: [row for row, gone in zip(rows[stream], lineage.is_ghost(*places[stream]), strict=True) if not gone]
            for stream in STREAMS
        }

    def _has_shrunk(self, stream: Stream) -> bool:
        try:
            return self._dir.log(stream).stat().st_size < self._offsets[stream]
        except OSError:  # not there (yet), or archived since
            return False


def _places(rows: list[Row]) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """The attempts and steps of rows."""
    attempts, steps = [row.attempt for row in rows], [row.step for row in rows]
    return np.array(attempts, dtype=np.int64), np.array(steps, dtype=np.int64)


def _rows(run_dir: RunDir, stream: Stream | SideLog, start: int, end: int | None = None) -> tuple[list[Row], int]:
    """Whole rows from one offset to another, and the offset after them; a torn last line waits."""
    rows = []
    offset = start
    for lines, after in read_blocks(run_dir.log(stream), start, end):
        offset = after
        for line in lines:
            try:
                rows.append(decode(line))
            except BadLine:
                continue
    return rows, offset
