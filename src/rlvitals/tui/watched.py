"""The watched run or foreign log, which may still grow. Polls read its rows, which are judged one by one. The series
for the screens are downsampled, so that memory does not grow with the length of a run.
"""

from __future__ import annotations

import math
import threading
import time
from collections import deque
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any, NamedTuple, Unpack

import numpy as np

from rlvitals import catalog
from rlvitals.catalog.slices import Round
from rlvitals.contract import ChangeFacts
from rlvitals.errors import RlvitalsError
from rlvitals.health.rows import EvaluationRow
from rlvitals.records import RESERVED, SEVERITIES, Finding
from rlvitals.render.charts import ChartSeries
from rlvitals.splits import held_out_name
from rlvitals.values import is_number
from rlvitals.views.changes import change
from rlvitals.views.diagnosis import Diagnosis, of_judge
from rlvitals.views.discovery import is_joined, is_run
from rlvitals.views.feeds import News
from rlvitals.views.following import Following
from rlvitals.views.judge import Trace
from rlvitals.views.logs import open_any
from rlvitals.views.series import Series as Points
from rlvitals.views.sources import Known, RowSource
from rlvitals.views.tree import slice_facts
from rlvitals.views.vitals import ETA_ROWS, mean_of, slices_of, standing_findings, status_of, time_left, title_of_mean

BUSY_SECONDS = 0.05
"""How long rows are judged before a short pause for other threads: a long log must not freeze the screen."""
MOST_METRICS = 5000
"""The maximum number of metric names. In a log with more, some names are not metrics."""


class Tile(NamedTuple):
    """One vital sign."""

    name: str
    title: str
    value: float | None
    change: ChangeFacts | None
    band: catalog.Limits | None
    status: str
    why: str


class Watched(Following):
    """One run or log. `poll` may run in a separate thread; readers hold `lock`."""

    def __init__(self, path: Path, **known: Unpack[Known]) -> None:
        self.lock = threading.RLock()
        self._waiting: tuple[News, str] | None = None
        """What a poll returned after which the source's own information could not be read. The next poll judges it."""
        self.ending = ""
        """Why no more rows will come."""
        self.problem = ""
        """Why the last poll could not read the source."""
        super().__init__(path, **known)

    @property
    def name(self) -> str:
        return self.path.name or str(self.path)

    @property
    def algorithm(self) -> str | None:
        return self.judge.monitor.case.algorithm

    @property
    def framework(self) -> str | None:
        return self.judge.monitor.case.framework

    @property
    def reader(self) -> catalog.Reader:
        return catalog.reader(self.framework, self.algorithm)

    @property
    def names(self) -> list[str]:
        """Every metric: the vital signs first, then the others in the order of their first rows."""
        with self.lock:
            return list(dict.fromkeys([*self.vital_names, *self._traces]))

    @property
    def vital_names(self) -> list[str]:
        with self.lock:
            sampled = self.feed.reader.sampled
            names = [name for name in self._logged if name in self._traces and name not in sampled]
            # Training first: of two names of one concept, the first counts.
            names.sort(key=self._is_evaluated)
            return self.reader.vital_signs(names)

    @property
    def diagnosis(self) -> Diagnosis:
        with self.lock:
            return of_judge(self.judge, self.feed.counted)

    @property
    def findings(self) -> list[Finding]:
        """The findings in the order in which they were raised."""
        with self.lock:
            return self.judge.history.findings

    @property
    def facts(self) -> list[dict[str, Any]]:
        """The findings as in reports, each with the row at which it was raised. The most severe come first."""
        with self.lock:
            facts = [asdict(item.finding) | {"row": item.point} for item in self.judge.raised]
        return sorted(facts, key=lambda found: -SEVERITIES.index(found["severity"]))

    @property
    def tokens_per_second(self) -> float | None:
        with self.lock:
            reader = self.reader
            for name, value in self.latest.items():
                meaning = reader.meaning(name)
                if meaning is not None and meaning.metric.id == "perf.tokens_per_s":
                    return value
        return None

    @property
    def seconds_left(self) -> float | None:
        return None if self.ending else time_left(list(self._stamps), self.total_steps)

    def tiles(self) -> list[Tile]:
        """The current state of the vital signs."""
        with self.lock:
            standing = standing_findings(self.diagnosis)
            groups = self.reader.slices(list(self._traces))
            facts_of = slice_facts(groups, self.reader)
            return [self._tile(name, standing, slices_of(name, groups, facts_of)) for name in self.vital_names]

    def series(self, name: str) -> ChartSeries | None:
        """The downsampled series of a metric; None if it was never logged."""
        with self.lock:
            trace = self._traces.get(name)
            return None if trace is None else ChartSeries.from_dict(trace.to_dict())

    def band(self, name: str, stage: catalog.Stage = "any") -> catalog.Limits | None:
        """The typical range of a metric."""
        size = self.judge.monitor.case.number("model_parameters")
        band = self.reader.band(name, stage=stage, parameters=size, evaluated=self._is_evaluated(name))
        return band.limits if band else None

    def title(self, name: str) -> str:
        """The title of a metric."""
        return self.reader.title(name, evaluated=self._is_evaluated(name))

    def explanation(self, name: str) -> catalog.Explanation | None:
        """The catalogue's explanation of a metric; None for an unknown name."""
        try:
            return self.reader.explain(name)
        except RlvitalsError:
            return None

    def poll(self) -> bool:
        """Read and judge new rows. Returns whether anything changed. `problem` gives the reason if reading failed."""
        try:
            news, ending = self._waiting = self._waiting or self.poll_feed()
            source = self.source_for(news)
        except (RlvitalsError, OSError) as error:
            changed = self.problem != str(error)
            self.problem = str(error)
            return changed
        self._waiting = None
        changed = bool(news.rows) or news.before is not None or ending != self.ending or bool(self.problem)
        self.problem, self.ending = "", ending
        self._take(news, source)
        if ending:
            self.finish()
        if ending or not self.feed.misses_rows:
            return changed
        with self.lock:
            return bool(self.judge.tick(time.time())) or changed

    def finish(self) -> None:
        """Judge the rows that were held back. No poll follows."""
        last = self.feed.flush()
        self._take(last, self.source_for(last))

    def _take(self, news: News, source: RowSource | None) -> None:
        if source is not None:  # the first rows, or earlier rows are no longer valid: judging restarts
            with self.lock:
                self.start_again(source)
        rows = [*(news.before or ()), *news.rows]
        if rows:
            self.last_row_at = time.monotonic()
        since = time.monotonic()
        for row in rows:
            with self.lock:
                self.judge.take(row)
                self._keep(row)
            if time.monotonic() - since > BUSY_SECONDS:
                time.sleep(0.002)  # without a pause other threads hardly get the lock
                since = time.monotonic()
        with self.lock:
            for event in news.events:
                self.judge.take_recorded(event)

    def start_again(self, source: RowSource | None) -> None:
        super().start_again(source)
        self.total_steps = source.total_steps if source else None
        self._traces: dict[str, Trace] = {}
        self.latest: dict[str, float] = {}
        """The newest value of every metric."""
        self.left_out = 0
        """The number of dropped values: their names are beyond MOST_METRICS."""
        self._stamps: deque[tuple[int, float]] = deque(maxlen=ETA_ROWS)
        self._trained: set[str] = set()
        """The names that training logs, and those of the machine."""
        self._logged: dict[str, None] = {}
        """The names as they were logged, in order: not the held-out name of a metric that training logs too."""
        self._stems: dict[str, str | None] = {}
        """For each name that is a slice, what it has in common with the others of its series; None for other names."""
        self._rounds: dict[str, Round] = {}
        self._means: dict[str, float] = {}
        """By stem: the mean of the slices, as the doctor reads it."""

    def _keep(self, row: dict[str, Any]) -> None:
        step = self.judge.last_step or 0
        stamp = row.get("timestamp")
        if isinstance(stamp, float | int) and math.isfinite(stamp):
            self._stamps.append((step, float(stamp)))
        touched: dict[str, Round] = {}
        evaluated = row.logged_names if isinstance(row, EvaluationRow) else None
        sampled = self.feed.reader.sampled
        for taken, value in row.items():
            if taken in RESERVED or not is_number(value):
                continue
            if evaluated is None or taken in sampled:
                self._note_trained(name := taken)
            elif not (name := self._shown_name(taken, evaluated.get(taken, taken))):
                continue
            trace = self._traces.get(name)
            if trace is None:
                if len(self._traces) >= MOST_METRICS:
                    self.left_out += 1
                    continue
                trace = self._traces[name] = Trace()
            try:
                number = float(value)
            except OverflowError:
                number = math.inf
            trace.add(self.judge.points, step, number)
            self.latest[name] = number
            if math.isfinite(number) and (stem := self._stem(name)) is not None:
                rounds = self._rounds.setdefault(stem, Round())
                rounds.take(name, number)
                touched[stem] = rounds
        for stem, rounds in touched.items():
            if (mean := rounds.mean()) is not None:
                self._means[stem] = mean

    def _stem(self, name: str) -> str | None:
        if name not in self._stems:
            cut = self.reader.cut(name)
            self._stems[name] = None if cut is None else cut.stem
        return self._stems[name]

    def _note_trained(self, name: str) -> None:
        """Note that training logs a metric. What evaluations logged under this name gets its held-out name."""
        if name in self._trained:
            return
        self._trained.add(name)
        self._logged.pop(name, None)
        self._logged[name] = None  # in the order of the training
        if name in self._traces:
            trace, latest, held_out = self._traces.pop(name), self.latest.pop(name), held_out_name(name)
            if held_out not in self._trained:
                self._traces[held_out], self.latest[held_out] = trace, latest

    def _shown_name(self, name: str, logged: str) -> str:
        """The logged name of a metric of an evaluation; if training logs it too, its held-out name. Empty if training
        logs that name as well.
        """
        if logged not in self._trained:
            self._logged.setdefault(logged)
            return logged
        return name if name not in self._trained else ""

    def _is_evaluated(self, name: str) -> bool:
        """Whether only evaluations log a name."""
        return name not in self._trained

    def _tile(self, name: str, standing: Sequence[Finding], members: Sequence[str]) -> Tile:
        trace = self._traces[name]
        band = self.band(name, catalog.stage_at(self.feed.counted.last_step, self.total_steps))
        meaning = self.reader.meaning(name, evaluated=self._is_evaluated(name))
        direction = meaning.metric.direction if meaning else "none"
        status = status_of(name, standing, members, evaluated=self._is_evaluated(name))
        if name not in members:
            return Tile(name, self.title(name), self.latest[name], change(*_middle(trace), direction), band, *status)
        # The overall metric is not logged, so the tile of this slice shows the mean of all slices.
        mean = mean_of({one: _middle(self._traces[one]) for one in members})
        title = title_of_mean(self.title(name), len(members))
        value = self._means.get(self._stem(name) or "", math.nan)
        return Tile(name, title, value, change(*mean, direction), band, *status)


def _middle(trace: Trace) -> Points:
    """The middle of the range in each bucket of a downsampled series."""
    return Points(np.array(trace.steps), (np.array(trace.lows) + np.array(trace.highs)) / 2)


def status_line(watched: Watched) -> str:
    """The status of a recorded run; `log` for a foreign log, `run` if the status cannot be read."""
    if not is_run(watched.path) and not is_joined(watched.path):
        return "log"
    try:
        return open_any(watched.path).status
    except RlvitalsError:
        return "run"
