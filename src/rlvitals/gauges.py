"""Current readings of runs for the monitoring of a fleet: progress, status and vital signs.

Each look reads what was added since the previous one. Of a log that was not read before, it reads only the end.
Hundreds of live runs can therefore be polled every few seconds. No rules are evaluated here: the verdict comes from the
health log.
"""

from __future__ import annotations

import math
import time
from collections import Counter, deque
from collections.abc import Iterable
from dataclasses import dataclass
from functools import lru_cache
from itertools import islice
from pathlib import Path

from rlvitals import catalog
from rlvitals.health.history import GONE, History, recorded_verdict, was_monitored_before, with_stop
from rlvitals.health.rows import RowReader, rows_of_run
from rlvitals.records import SEVERITIES, Finding, HealthEvent, Row, RunInfo, RunReading, Severity, Status, Verdict
from rlvitals.splits import is_held_out, is_of_whole_training
from rlvitals.store.archive import log_state, open_log
from rlvitals.store.cards import read_config, read_info
from rlvitals.store.files import stamp
from rlvitals.store.findings import event_of
from rlvitals.store.index import indexed_lines
from rlvitals.store.layout import STREAMS, RunDir, Stream, archive_of
from rlvitals.store.lock import status_now
from rlvitals.store.past import LivingLine, living_line
from rlvitals.store.reader import first_rows, rows_in
from rlvitals.store.tail import RowTail

LOOK_BYTES = 256 * 1024
"""Bytes of each log that one look reads. In the part before them, only lines are counted."""

MOST_NAMES = 2_000
"""Maximum number of names in which vital signs are searched, in the order in which they were logged."""

KEPT_PLACES = 500
"""Newest rows of which attempt and step are kept, to know whether a resumed run has enough rows for a verdict."""

SPEED = "perf.tokens_per_s"
"""The catalogue's id of the tokens per second of a whole step."""

_BLOCK = 2**20


@dataclass(frozen=True, slots=True)
class GaugeSign:
    """One vital sign of a set of logged names."""

    concept: str
    names: tuple[str, ...]
    """The name, or the slices whose mean is used for the whole."""
    caveat: catalog.Caveat | None
    """How the logged number is converted to the concept's."""

    def value(self, newest: dict[str, float]) -> float | None:
        known = [newest[name] for name in self.names if name in newest]
        if not known:
            return None
        finite = list(filter(math.isfinite, known)) or known[:1]  # the mean of inf and -inf would be an error
        mean = sum(finite) / len(finite)
        return mean if self.caveat is None else self.caveat.to_concept(mean)


class RunGauges:
    """One run that is polled repeatedly."""

    def __init__(self, path: Path, run: str, project: str) -> None:
        self._dir = RunDir(path)
        self._run, self._project = run, project
        train = self._dir.train_log
        self._files = (
            self._dir.info, train, archive_of(train), self._dir.eval_log, self._dir.findings, self._dir.attempts,
        )  # fmt: skip
        """The files whose change means that the run has changed. Kept, because building the paths costs more than
        checking them.
        """
        self._begin()

    def _begin(self) -> None:
        """Discard all state: the run is new, or another one has replaced it."""
        self._state: object = None
        self._reading: RunReading | None = None
        self._card: tuple[object, RunInfo] | None = None
        self._tails = {stream: RowTail(self._dir.log(stream)) for stream in STREAMS}
        self._health = RowTail(self._dir.findings)
        self._events: list[HealthEvent] = []
        self._rows = 0
        self._last: Row | None = None
        self._attempts: dict[Stream, int] = dict.fromkeys(STREAMS, 1)
        """The attempt of the newest row of each log."""
        self._places: deque[tuple[int, int]] = deque(maxlen=KEPT_PLACES)
        self._highest = 0
        """The highest training step of the last row's attempt."""
        self._last_time: float | None = None
        self._trained: dict[str, float] = {}
        self._evaluated: dict[str, float] = {}
        self._signs: tuple[GaugeSign, ...] = ()
        self._names_known = (0, 0)
        self._about: tuple[str, str] = ("", "")
        self._line: LivingLine | None = None

    def look(self) -> RunReading:
        """The run as it is now. Raises RlvitalsError or OSError if it cannot be read."""
        state = tuple(map(stamp, self._files))
        if self._reading is not None and state == self._state and self._is_still(self._reading, state[0]):
            return self._reading
        tails = (self._tails["train"], self._tails["eval"], self._health)
        sizes = [None if found is None else found[1] for found in (state[1], state[3], state[4])]
        if any(size is not None and size < tail.offset for size, tail in zip(sizes, tails, strict=True)):
            self._begin()  # shorter than what was read: another run has replaced it
        reading = self._read(self._info(state[0]), dict(zip(("train", "eval", "findings"), sizes, strict=True)))
        self._state, self._reading = state, reading
        return reading

    def _is_still(self, reading: RunReading, card: object) -> bool:
        """Whether the status is unchanged. The files do not show that a process has died, so a running run is checked
        again.
        """
        return reading.status != "running" or self._status(self._info(card)) == "running"

    def _info(self, state: object) -> RunInfo:
        if self._card is None or state is None or self._card[0] != state:
            self._card = (state, read_info(self._dir))
        return self._card[1]

    def _status(self, info: RunInfo) -> Status:
        return status_now(info, self._dir)

    def _read(self, info: RunInfo, sizes: dict[str, int | None]) -> RunReading:
        attempts_before = dict(self._attempts)
        self._take_rows(sizes)
        if sizes["findings"] is not None and sizes["findings"] > self._health.offset:
            self._events += [event for line in self._health.lines() if (event := event_of(line)) is not None]
        is_resumed = max(info.attempt, *self._attempts.values()) > 1
        if is_resumed and (self._line is None or self._attempts != attempts_before):
            self._line = living_line(self._dir)
            self._names_known = (0, 0)  # its first rows may be others now
        status = self._status(info)
        self._find_signs(info)
        step = self._highest if self._last is not None else None
        events = self._living_events(info, status, step)
        newest = {**self._evaluated, **self._trained}
        values = {sign.concept: sign.value(newest) for sign in self._signs}
        return RunReading(
            run=self._run,
            project=self._project,
            name=info.name,
            algorithm=self._about[0],
            framework=self._about[1],
            status=status,
            verdict=self._verdict(events, info, step),
            rows=self._rows,
            attempt=max(info.attempt, self._last.attempt if self._last is not None else 1),
            started=info.created,
            last_row=None if self._last_time is None else min(self._last_time, time.time()),
            step=step,
            total_steps=info.total_steps,
            tokens_per_s=values.pop(SPEED, None),
            open_findings=_by_severity(History(events).open),
            raised_findings=_by_severity(event.finding for event in self._events if event.finding is not None),
            vitals={concept: value for concept, value in values.items() if value is not None},
        )

    def _take_rows(self, sizes: dict[str, int | None]) -> None:
        for stream, tail in self._tails.items():
            size = sizes[stream]
            size = log_state(tail.path)[1] if size is None else size  # missing, or archived
            if size == tail.offset:
                continue
            is_training = stream == "train"
            skipped = self._skip(tail, size, counted=is_training)
            lines = tail.lines()
            if is_training:
                self._rows += skipped + len(lines)
            for row in rows_in(lines):
                values = self._trained if is_training else self._evaluated
                values.update(row.numbers)
                self._attempts[stream] = row.attempt
                if is_training:
                    is_resumed = self._last is None or row.attempt != self._last.attempt
                    self._highest = row.step if is_resumed else max(row.step, self._highest)
                    self._last = row
                    self._places.append((row.attempt, row.step))
                if math.isfinite(row.timestamp):
                    self._last_time = max(self._last_time or 0.0, row.timestamp)

    def _skip(self, tail: RowTail, size: int, *, counted: bool) -> int:
        """Skip to near the end of a log that has grown a lot. Returns the number of skipped lines if they are counted.
        The rest of a line that is cut in two counts as read, not as skipped.
        """
        start, tail.offset = tail.offset, max(tail.offset, size - LOOK_BYTES)
        if not counted or start == tail.offset:
            return 0
        lines = 0
        if start == 0 and self._dir.index.is_dir():
            lines, start = indexed_lines(tail.path, self._dir.index)
        if start > tail.offset:  # lines that are both indexed and read are counted once
            return lines - _lines_between(tail.path, tail.offset, start)
        return lines + _lines_between(tail.path, start, tail.offset)

    def _find_signs(self, info: RunInfo) -> None:
        known = (len(self._trained), len(self._evaluated))
        if known == self._names_known and self._card is not None and self._about != ("", ""):
            return
        self._names_known = known
        trained = tuple(self._trained)[:MOST_NAMES]
        own = (name for name in self._evaluated if name not in self._trained and not is_of_whole_training(name))
        evaluated = tuple(own)[:MOST_NAMES]
        found = catalog.Recognised(info.framework, info.algorithm)
        if not all(found):
            train, evals = map(self._first_rows, STREAMS)
            by_names = catalog.recognise_rows(rows_of_run(train, evals, reader=RowReader()))
            found = catalog.Recognised(info.framework or by_names.framework, info.algorithm or by_names.algorithm)
        self._signs = _signs(found.algorithm, found.framework, trained, evaluated)
        self._about = (found.algorithm or "", found.framework or "")

    def _first_rows(self, stream: Stream) -> list[Row]:
        if self._line is None:
            return first_rows(self._tails[stream].path, catalog.RECOGNISED_ROWS)
        return list(islice(self._line.rows(stream), catalog.RECOGNISED_ROWS))

    def _living_events(self, info: RunInfo, status: Status, step: int | None) -> list[HealthEvent]:
        """The events of the living line, and a finding that the process is gone if it is."""
        events = self._events
        if self._line is not None:
            is_abandoned = self._line.lineage.is_abandoned
            events = [event for event in events if not is_abandoned(event.attempt, event.step)]
        is_gone = info.status == "running" and status == "interrupted"
        at = step or 0
        advice = ("resume the run",)
        gone = Finding(GONE, "stall", "critical", at, at, "the process is gone", advice=advice) if is_gone else None
        return with_stop(events, info.attempt, gone, math.nan)

    def _verdict(self, events: list[HealthEvent], info: RunInfo, step: int | None) -> Verdict:
        attempts = self._line.attempts if self._line is not None else {self._last.attempt} if self._last else set()
        rows = self._rows
        if self._line is not None:
            rows = sum(not self._line.lineage.is_abandoned(*place) for place in self._places)
        found = recorded_verdict(
            events,
            attempts,
            rows,
            step,
            was_monitored=lambda: was_monitored_before(info, lambda: read_config(self._dir)),
        )
        return found[0] if found is not None else "cannot judge"


@lru_cache(maxsize=256)
def _signs(
    algorithm: str | None, framework: str | None, trained: tuple[str, ...], evaluated: tuple[str, ...]
) -> tuple[GaugeSign, ...]:
    """The vital signs of a run that logs these names. Cached: the runs of a fleet mostly log the same."""
    names = [*trained, *evaluated]
    reader = catalog.reader(framework, algorithm)
    groups = reader.slices(names)
    speed = [name for name in trained if (found := reader.meaning(name)) is not None and found.metric.id == SPEED]
    signs: dict[str, GaugeSign] = {}
    for name in [*reader.vital_signs(names), *speed[:1]] if names else []:
        is_evaluated = name in evaluated
        found = reader.meaning(name, evaluated=is_evaluated)
        if found is None or (reader.named(name, evaluated=is_evaluated) is None and not _converts(found)):
            continue
        concept = f"eval/{found.metric.id}" if is_held_out(name) and found.how == "prefix" else found.metric.id
        slices = next((group.names for group in groups if name in group.names.values()), None)
        members = (name,) if slices is None else tuple(slices.values())
        signs.setdefault(concept, GaugeSign(concept, members, found.caveat if _converts(found) else None))
    return tuple(signs.values())


def _converts(found: catalog.Match) -> bool:
    return found.caveat is not None and found.caveat.is_convertible


def _by_severity(findings: Iterable[Finding]) -> dict[Severity, int]:
    counts = Counter(finding.severity for finding in findings)
    return {severity: counts[severity] for severity in SEVERITIES}


def _lines_between(log: Path, start: int, end: int) -> int:
    """Line ends between two offsets of a log."""
    if start >= end:
        return 0
    lines = 0
    with open_log(log) as file:
        file.seek(start)
        while start < end and (block := file.read(min(_BLOCK, end - start))):
            lines += block.count(b"\n")
            start += len(block)
    return lines
