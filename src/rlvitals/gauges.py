"""Readings of runs for the monitoring of a fleet: where a run is, how it is, and its vital signs, look by look.

A look reads what was added since the last one and the ends of logs that were never looked at, so that hundreds of live
runs can be asked every few seconds. Nothing is judged here: the verdict is what the health log amounts to.
"""

from __future__ import annotations

import math
import time
from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path

from rlvitals import catalog
from rlvitals.health.history import GONE, History, verdict_of, was_watched, with_stop
from rlvitals.records import SEVERITIES, Finding, HealthEvent, Row, RunInfo, RunReading, Severity, Status, Verdict
from rlvitals.splits import is_held_out
from rlvitals.store.archive import log_state, open_log
from rlvitals.store.cards import read_config, read_info
from rlvitals.store.files import stamp
from rlvitals.store.findings import event_of
from rlvitals.store.index import indexed_lines
from rlvitals.store.layout import RunDir, archive_of
from rlvitals.store.lock import read_holder, status_now
from rlvitals.store.past import LivingLine, living_line
from rlvitals.store.tail import RowTail, rows_in

LOOK_BYTES = 256 * 1024
"""Of each log, read at one look; of what lies before, the lines are counted alone."""

MOST_NAMES = 2_000
"""Names in which vital signs are looked for; those logged first."""

SPEED = "perf.tokens_per_s"
"""The catalogue's id of the tokens per second of a whole step."""

_BLOCK = 2**20


@dataclass(frozen=True, slots=True)
class Sign:
    """One vital sign of a set of logged names."""

    concept: str
    names: tuple[str, ...]
    """The name, or the slices of which the mean stands for the whole."""
    caveat: catalog.Caveat | None
    """How the logged number turns into the concept's."""

    def value(self, newest: dict[str, float]) -> float | None:
        known = [newest[name] for name in self.names if name in newest]
        if not known:
            return None
        mean = known[0] if len(known) == 1 else math.fsum(known) / len(known)
        return mean if self.caveat is None else self.caveat.to_concept(mean)


class RunGauges:
    """One run, asked again and again."""

    def __init__(self, path: Path, run: str, project: str) -> None:
        self._dir = RunDir(path)
        self._run, self._project = run, project
        train = self._dir.train_log
        self._files = (
            self._dir.info, train, archive_of(train), self._dir.eval_log, self._dir.findings, self._dir.attempts,
        )  # fmt: skip
        """What changes when the run does. Kept: making so many paths costs more than looking at them."""
        self._begin()

    def _begin(self) -> None:
        """Know nothing: the run is new, or another one has taken its place."""
        self._state: object = None
        self._told: RunReading | None = None
        self._card: tuple[object, RunInfo] | None = None
        self._tails = {stream: RowTail(self._dir.log(stream)) for stream in ("train", "eval")}
        self._health = RowTail(self._dir.findings)
        self._events: list[HealthEvent] = []
        self._rows = 0
        self._last: Row | None = None
        self._last_time: float | None = None
        self._trained: dict[str, float] = {}
        self._evaluated: dict[str, float] = {}
        self._signs: tuple[Sign, ...] = ()
        self._names_known = (0, 0)
        self._about: tuple[str, str] = ("", "")
        self._line: LivingLine | None = None
        self._was_monitored: bool | None = None

    def look(self) -> RunReading:
        """The run as it is now. Raises RlvitalsError or OSError where it cannot be read."""
        state = tuple(map(stamp, self._files))
        if self._told is not None and state == self._state and self._is_still(self._told, state[0]):
            return self._told
        tails = (self._tails["train"], self._tails["eval"], self._health)
        sizes = [None if found is None else found[1] for found in (state[1], state[3], state[4])]
        if any(size is not None and size < tail.offset for size, tail in zip(sizes, tails, strict=True)):
            self._begin()  # shorter than what was read: another run has taken its place
        told = self._read(self._info(state[0]), dict(zip(("train", "eval", "findings"), sizes, strict=True)))
        self._state, self._told = state, told
        return told

    def _is_still(self, told: RunReading, card: object) -> bool:
        """Whether a run has the status it had: that its process has died is not in its files."""
        return told.status != "running" or self._status(self._info(card)) == "running"

    def _info(self, state: object) -> RunInfo:
        if self._card is None or state is None or self._card[0] != state:
            self._card = (state, read_info(self._dir))
        return self._card[1]

    def _status(self, info: RunInfo) -> Status:
        holder = read_holder(self._dir) if info.status == "running" else None
        return status_now(info, is_written=holder is not None and holder.is_live)

    def _read(self, info: RunInfo, sizes: dict[str, int | None]) -> RunReading:
        attempt_before = self._last.attempt if self._last is not None else 0
        self._take_rows(sizes)
        if sizes["findings"] is not None and sizes["findings"] > self._health.offset:
            self._events += [event for line in self._health.lines() if (event := event_of(line)) is not None]
        if self._last is not None and max(info.attempt, self._last.attempt) > 1 and (
            self._line is None or self._last.attempt != attempt_before
        ):  # fmt: skip
            self._line = living_line(self._dir)
        status = self._status(info)
        self._find_signs(info)
        step = self._last.step if self._last is not None else None
        findings = History(self._living_events(info, status, step))
        newest = {**self._evaluated, **self._trained}
        values = {sign.concept: sign.value(newest) for sign in self._signs}
        return RunReading(
            run=self._run,
            project=self._project,
            name=info.name,
            algorithm=self._about[0],
            framework=self._about[1],
            status=status,
            verdict=self._verdict(findings.findings, step),
            rows=self._rows,
            attempt=max(info.attempt, self._last.attempt if self._last is not None else 1),
            started=info.created,
            last_row=None if self._last_time is None else min(self._last_time, time.time()),
            step=step,
            total_steps=info.total_steps,
            tokens_per_s=values.pop(SPEED, None),
            open_findings=_by_severity(findings.open),
            raised_findings=_by_severity(event.finding for event in self._events if event.finding is not None),
            vitals={concept: value for concept, value in values.items() if value is not None},
        )

    def _take_rows(self, sizes: dict[str, int | None]) -> None:
        for stream, tail in self._tails.items():
            size = sizes[stream]
            size = log_state(tail.path)[1] if size is None else size  # not there, or archived
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
                if is_training:
                    self._last = row
                if math.isfinite(row.timestamp):
                    self._last_time = max(self._last_time or 0.0, row.timestamp)

    def _skip(self, tail: RowTail, size: int, *, counted: bool) -> int:
        """Go to near the end of a log that is far ahead. Returns the lines passed over, where they are to be counted;
        the rest of a line that is cut in two is among those that are read.
        """
        start, tail.offset = tail.offset, max(tail.offset, size - LOOK_BYTES)
        if not counted or start == tail.offset:
            return 0
        lines = 0
        if start == 0 and self._dir.index.is_dir():
            lines, start = indexed_lines(tail.path, self._dir.index)
        if start > tail.offset:  # what is indexed and is read all the same is counted once
            return lines - _lines_between(tail.path, tail.offset, start)
        return lines + _lines_between(tail.path, start, tail.offset)

    def _find_signs(self, info: RunInfo) -> None:
        known = (len(self._trained), len(self._evaluated))
        if known == self._names_known and self._card is not None and self._about != ("", ""):
            return
        self._names_known = known
        trained = tuple(self._trained)[:MOST_NAMES]
        evaluated = tuple(name for name in self._evaluated if name not in self._trained)[:MOST_NAMES]
        algorithm, framework, self._signs = _signs(info.algorithm, info.framework, trained, evaluated)
        self._about = (algorithm or "", framework or "")

    def _living_events(self, info: RunInfo, status: Status, step: int | None) -> list[HealthEvent]:
        """The events of the living line, and that the process is gone where it is."""
        events = self._events
        if self._line is not None:
            is_abandoned = self._line.lineage.is_abandoned
            events = [event for event in events if not is_abandoned(event.attempt, event.step)]
        is_gone = info.status == "running" and status == "interrupted"
        at = step or 0
        advice = ("resume the run",)
        gone = Finding(GONE, "stall", "critical", at, at, "the process is gone", advice=advice) if is_gone else None
        return with_stop(events, info.attempt, gone, math.nan)

    def _verdict(self, findings: list[Finding], step: int | None) -> Verdict:
        attempts = self._line.attempts if self._line is not None else {self._last.attempt} if self._last else set()
        is_watched = bool(attempts) and was_watched(self._events, attempts)
        if not findings and not is_watched and not self._was_watched_before():
            return "cannot judge"
        return verdict_of(findings, self._rows, step)[0]

    def _was_watched_before(self) -> bool:
        """Whether an earlier version's monitor, which did not put on record that it watched, looked at the run."""
        if self._was_monitored is None:
            own = read_config(self._dir).get("rlvitals")
            self._was_monitored = isinstance(own, dict) and own.get("monitor") is True
        return self._was_monitored


@lru_cache(maxsize=256)
def _signs(
    algorithm: str | None, framework: str | None, trained: tuple[str, ...], evaluated: tuple[str, ...]
) -> tuple[str | None, str | None, tuple[Sign, ...]]:
    """Algorithm, framework and vital signs of a run that logs these names. The runs of a fleet mostly log the same."""
    names = [*trained, *evaluated]
    recognised = catalog.recognise(names) if names else catalog.Recognised(None, None)
    algorithm, framework = algorithm or recognised.algorithm, framework or recognised.framework
    reader = catalog.reader(framework, algorithm)
    groups = reader.slices(names)
    speed = [name for name in trained if (found := reader.meaning(name)) is not None and found.metric.id == SPEED]
    signs: dict[str, Sign] = {}
    for name in [*reader.vital_signs(names), *speed[:1]] if names else []:
        is_evaluated = name in evaluated
        found = reader.meaning(name, evaluated=is_evaluated)
        if found is None or (reader.named(name, evaluated=is_evaluated) is None and not _converts(found)):
            continue
        concept = f"eval/{found.metric.id}" if is_held_out(name) and found.how == "prefix" else found.metric.id
        slices = next((group.names for group in groups if name in group.names.values()), None)
        members = (name,) if slices is None else tuple(slices.values())
        signs.setdefault(concept, Sign(concept, members, found.caveat if _converts(found) else None))
    return algorithm, framework, tuple(signs.values())


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
