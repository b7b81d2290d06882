"""A stored run: its series, frames and facts. `views.run` opens one.

Reading never writes to a run, except for its derived `index/`. The living line of the run is shown. Rows that a resumed
attempt superseded are ghosts and are returned only on request.
"""

from __future__ import annotations

import math
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

import numpy as np
from numpy.typing import NDArray

from rlvitals import catalog
from rlvitals.contract import TrackerFacts
from rlvitals.errors import ConfigError, UnknownMetric
from rlvitals.health.history import History, with_stop
from rlvitals.health.rows import RowReader, rows_of_run
from rlvitals.importers.base import ForeignLog
from rlvitals.masking import masked
from rlvitals.records import Attempt, Fields, Finding, HealthEvent, PhaseSpan, Row, RunInfo, Status
from rlvitals.render.numbers import duration
from rlvitals.splits import is_of_whole_training
from rlvitals.store.cards import read_attempts, read_config, read_info
from rlvitals.store.chunks import FieldArray, is_present, with_nan
from rlvitals.store.cursors import read_cursors, rows_behind
from rlvitals.store.distributions import Logged, read_distributions
from rlvitals.store.findings import read_events
from rlvitals.store.images import Image, read_images
from rlvitals.store.index import Columns, open_columns
from rlvitals.store.layout import STREAMS, RunDir, Stream, as_named, has_bytes
from rlvitals.store.lineage import Lineage, trace
from rlvitals.store.lock import heartbeat_age, read_holder, status_now
from rlvitals.store.process import is_alive
from rlvitals.store.ranks import merge_metric
from rlvitals.store.reader import first_rows, last_row, last_rows, read_rows
from rlvitals.store.spans import read_spans
from rlvitals.views.discovery import near_metrics
from rlvitals.views.rollouts import RolloutSource, RunRollouts
from rlvitals.views.series import Best, Series, find_best
from rlvitals.views.stopped_run import Stop, finding_of, resume_words

if TYPE_CHECKING:
    import pandas


AxisName = Literal["step", "time", "epoch", "tokens", "samples", "policy_version"]

AXIS_CONCEPTS: dict[str, str] = {
    "epoch": "progress.epoch",
    "tokens": "progress.tokens_total",
    "samples": "progress.samples_total",
    "policy_version": "progress.policy_version",
}
"""The x-axes that a row may carry as metrics, with their concepts."""

OUTCOMES = ("reward.total.mean", "pref.reward.margin")
"""The goal of a run. Lists show its last value."""

HELD_OUT_OUTCOMES = ("eval.score.mean", "eval.reward.mean", "eval.pass_at_k", "eval.beat_rate")
"""The same on held-out data."""


class StoredRun:
    """A stored run, finished or still being written: its rows, its settings and what its names mean."""

    foreign: ForeignLog | None = None
    """The log of another tool that it represents; None for a run recorded by rlvitals."""

    parts: Sequence[StoredRun] = ()
    """The runs of the processes, if the processes of a training record a run each."""

    def __init__(self, run_dir: RunDir) -> None:
        self._keep(run_dir)
        self.info: RunInfo = read_info(run_dir, self._damage)

    @cached_property
    def _damage(self) -> list[str]:
        return []

    @property
    def damage(self) -> list[str]:
        """Problems with the small files of the run, one sentence each."""
        return self.events_and_damage()[1]

    def events_and_damage(self) -> tuple[list[HealthEvent], list[str]]:
        """All recorded events, including those of abandoned attempts, and the damage."""
        _ = self.config, self.attempts
        damage = list(self._damage)
        return read_events(self._dir, damage), damage

    def _keep(self, run_dir: RunDir) -> None:
        self._named = run_dir.root
        self._dir = RunDir(run_dir.root.absolute())

    @property
    def path(self) -> Path:
        """The run's directory as it was given; the full path after the working directory has changed."""
        return as_named(self._named, self._dir.root)

    @property
    def name(self) -> str:
        return self.info.name

    @property
    def status(self) -> Status:
        """running, finished, failed or interrupted. A run whose writer exited without finishing is interrupted."""
        return self._status

    @cached_property
    def _status(self) -> Status:
        return status_now(self.info, self._dir)  # asked once, so that all answers of a view agree

    @property
    def has_end(self) -> bool:
        """Whether its process recorded the run's end. Until then, the last step may get more rows."""
        return self.info.status != "running"

    @property
    def status_note(self) -> str:
        """Details of the status."""
        if not self.has_end and self.status == "interrupted":
            age = heartbeat_age(self._dir)
            when = "" if math.isinf(age) else f", last heartbeat {duration(age)} ago"
            who = f"its process (pid {self.info.pid} on {self.info.host})"
            is_known = self.stop is None or self.stop.is_known
            return f"{who} is gone without finishing{when}" if is_known else f"{who} has been silent{when}"
        return self.info.error or ""

    @cached_property
    def config(self) -> dict[str, Any]:
        """The resolved settings. Secrets that another recorder stored in plain text are masked too."""
        known: dict[str, Any] = masked(read_config(self._dir, self._damage))
        return known

    @cached_property
    def attempts(self) -> list[Attempt]:
        """All starts and restarts."""
        return read_attempts(self._dir, self._damage)

    @cached_property
    def framework(self) -> str | None:
        """The framework of the metric names: as recorded, or recognised from the names."""
        return self.info.framework or self._recognised.framework

    @cached_property
    def algorithm(self) -> str | None:
        """As recorded, or recognised from the metric names."""
        return self.info.algorithm or self._recognised.algorithm

    @cached_property
    def _recognised(self) -> catalog.Recognised:
        return catalog.recognise_rows(self._first_rows())

    def _first_rows(self) -> Iterator[Fields]:
        """The first rows as the monitor reads them."""
        if len(self.attempts) > 1:  # they may have been superseded
            return rows_of_run(self.iterate(stream="train"), self.iterate(stream="eval"), reader=RowReader())
        train, evals = (first_rows(self._dir.log(stream), catalog.RECOGNISED_ROWS) for stream, rank in self._logs[:2])
        return rows_of_run(train, evals, reader=RowReader())

    @cached_property
    def metrics(self) -> list[str]:
        """All numeric metrics of the run as they were logged: training first, then those that only evaluations or other
        ranks have.
        """
        logged = [name for stream, rank in self._logs for name in self._columns(stream, rank).names]
        if len(self._logs) > 2:  # with several ranks, some values are complete only after merging
            logged += [name for stream, rank in self._logs for name in self._columns(stream, rank).mergeable_names]
        return list(dict.fromkeys(logged))

    @cached_property
    def texts(self) -> list[str]:
        """Every metric that was logged as text."""
        return list(
            dict.fromkeys(name for stream, rank in self._logs for name in self._columns(stream, rank).text_names)
        )

    @property
    def rows(self) -> int:
        """Training rows on the living line."""
        return int((~self._ghosts("train")).sum())

    @property
    def ghost_rows(self) -> int:
        """Training rows that a later attempt superseded."""
        return int(self._ghosts("train").sum())

    @property
    def first_step(self) -> int | None:
        """The lowest step of the living line."""
        steps = self._columns("train").steps[~self._ghosts("train")]
        return int(steps.min()) if len(steps) else None

    @property
    def last_step(self) -> int | None:
        """The highest step of the living line."""
        steps = self._columns("train").steps[~self._ghosts("train")]
        return int(steps.max()) if len(steps) else None

    @property
    def is_set_back(self) -> bool:
        """Whether the clock was set back between two rows of the living line."""
        logs = [self._columns(stream).timestamps[~self._ghosts(stream)] for stream, rank in self._logs if rank == 0]
        return any(bool((np.diff(times[np.isfinite(times)]) < 0).any()) for times in logs)

    @property
    def trackers(self) -> list[TrackerFacts]:
        """The progress of each tracker: name, state, rows sent, rows behind, the error and its time."""
        return [
            {
                "name": cursor.name,
                "state": cursor.state,
                "rows": cursor.rows,
                "behind": rows_behind(self._dir, cursor),
                "error": cursor.error,
                "since": cursor.since,
            }
            for cursor in read_cursors(self._dir)
        ]

    @property
    def findings(self) -> list[Finding]:
        """The findings of the run's own monitor on the living line, in order."""
        return History(self.health_events).findings

    @property
    def health_events(self) -> list[HealthEvent]:
        """The recorded events of the living line, in order. If the run's process has exited, an event reports it."""
        living = [event for event in read_events(self._dir) if not self._is_ghost(event)]
        return self.with_stop(living, self.last_step)

    def with_stop(self, events: list[HealthEvent], last_step: int | None) -> list[HealthEvent]:
        """Recorded events, with an event if the process has exited."""
        stop = self.stop
        found = None if stop is None else finding_of(stop, self.info, last_step, self.resume_words)
        return with_stop(events, self.info.attempt, found, math.nan if stop is None else stop.when)

    @cached_property
    def stop(self) -> Stop | None:
        """How the run stopped, if its process exited without finishing it."""
        if self.has_end or self.status == "running":
            return None
        holder = read_holder(self._dir)
        is_known = holder is None or is_alive(holder.process) is False
        age = heartbeat_age(self._dir)
        return Stop(self.info.updated if math.isinf(age) else time.time() - age, is_known)

    @property
    def resume_words(self) -> str:
        """How to resume the run."""
        return resume_words(self.info, self.config, self.path)

    @cached_property
    def own_rollouts(self) -> RunRollouts:
        """The rollouts that the run recorded itself; see `RunView.rollout_log`."""
        return RunRollouts(self._dir, self._lineage)

    @cached_property
    def rollout_log(self) -> RolloutSource:
        """Its rollouts, wherever they are stored. For a recorded run, those of linked dumps are included."""
        return self.own_rollouts

    @property
    def living_attempts(self) -> set[int]:
        """The attempts that have training rows on the living line."""
        columns, lives = self.columns("train")[0]
        return set(np.unique(columns.attempts[lives]).tolist())

    @property
    def ranks(self) -> list[int]:
        """The ranks that wrote rows."""
        return [0, *self._dir.rank_numbers("train")]

    @property
    def problems(self) -> list[str]:
        """What was skipped while reading, and what the recorder left out; one sentence each."""
        notes = self.damage
        marked = 0
        for stream, rank in self._logs:
            name = self._dir.log(stream, rank).name
            found = self._columns(stream, rank).problems
            notes += [f"{name}: {sentence}" for sentence in found.sentences]
            marked += found.gap_rows if rank == 0 else 0
        if self.info.rows_dropped > marked:  # no later row could carry the mark
            notes.append(f"{self.info.rows_dropped - marked} rows are missing at the end: the disk would not take them")
        for name, entry in self.info.left_out.items():
            notes.append(f"{name!r} was left out {entry.get('count')} times: {entry.get('reason')}")
        return notes

    def resolve(self, name: str) -> str:
        """The logged name for a logged name, a concept id or another framework's name of the same concept. Raises
        UnknownMetric with the most similar names.
        """
        logged = self.logged_as(name)
        if logged is None:
            raise UnknownMetric(name, near_metrics(name, self.metrics))
        return logged

    def logged_as(self, name: str) -> str | None:
        """As `resolve`, but None if the run does not have it. Faster for many runs, because no similar names are
        searched.
        """
        if name in self._logged:
            return name
        asked = catalog.reader().matches(name)
        if not asked:
            return None
        wanted, labels = {match.metric.id for match in asked}, asked[0].labels
        fitting = [logged for logged in self.metrics if self.concept(logged) in wanted]
        if labels:
            fitting = [logged for logged in fitting if self.labels(logged) == labels]
        # Prefer the whole to its slices.
        return min(fitting, key=lambda logged: len(self.labels(logged)), default=None)

    def labels(self, name: str) -> Mapping[str, str]:
        """For a slice, its environment, data source, agent, task or tool; empty for other names."""
        cut = self.reader.cut(name)
        return cut.labels if cut else {}

    def slices(self, metric: str) -> dict[str, str]:
        """The slices of a metric, such as `env=math`, each with its logged name, for `series`. `metric` is a concept or
        any logged name of it. Of several series of slices, the one with the most slices is returned.
        """
        known = {metric, *(match.metric.id for match in self.reader.matches(metric))}
        fitting = [found for found in self.sliced if known & {found.concept, found.whole, found.stem}]
        return dict(max(fitting, key=lambda found: len(found.names)).names) if fitting else {}

    @cached_property
    def sliced(self) -> list[catalog.Sliced]:
        """All series of slices."""
        return self.reader.slices(self.metrics)

    def concept(self, name: str) -> str | None:
        """The catalogue's id of a logged name in the run's own framework; None if the name is unknown."""
        meaning = self.meaning(name)
        return meaning.metric.id if meaning else None

    def meaning(self, name: str) -> catalog.Match | None:
        """The meaning of a logged name in this run's framework and algorithm. A name that only evaluations log is read
        as a metric of an evaluation.
        """
        return self.reader.meaning(name, evaluated=self.is_evaluated(name))

    @cached_property
    def reader(self) -> catalog.Reader:
        """The catalogue for this run's framework and algorithm."""
        return catalog.reader(self.framework, self.algorithm)

    @property
    def vital_signs(self) -> list[str]:
        """The logged names to look at, the most informative first."""
        left_out = {name for name in self.metrics if is_of_whole_training(name) and self.is_evaluated(name)}
        while True:
            signs = self.reader.vital_signs([name for name in self.metrics if name not in left_out])
            superseded = [name for name in signs if not self._is_living(name)]
            if not superseded:
                return signs
            left_out.update(superseded)  # another name may have the same meaning

    @cached_property
    def outcome(self) -> str | None:
        """The logged name of the reward or the margin of the whole run."""
        return self._first_of(OUTCOMES)

    @cached_property
    def held_out_outcome(self) -> str | None:
        """The logged name of the score on held-out data."""
        return self._first_of(HELD_OUT_OUTCOMES)

    def _first_of(self, concepts: tuple[str, ...]) -> str | None:
        whole = [name for name in self.metrics if self.concept(name) in concepts and not self.labels(name)]
        whole.sort(key=lambda name: concepts.index(str(self.concept(name))))
        return next(filter(self._is_living, whole), None)

    def is_evaluated(self, name: str) -> bool:
        """Whether only evaluations log a name."""
        evals = [log for log in self._logs if log[0] == "eval" and self._columns(*log).has(name)]
        return bool(evals) and not any(self._has(name, *log) for log in self._logs if log[0] != "eval")

    def _is_living(self, name: str) -> bool:
        """Whether a row of the living line has a metric."""
        logs = [log for log in self._logs if self._columns(*log).has(name)]
        return not logs or any(self._has(name, *log) for log in logs)  # without: complete only after merging

    def _has(self, name: str, stream: Stream, rank: int) -> bool:
        """Whether a row of the living line in a log has a metric."""
        columns, ghosts = self._columns(stream, rank), self._ghosts(stream, rank)
        return columns.has(name) and (not ghosts.any() or bool(is_present(columns.column(name))[~ghosts].any()))

    @cached_property
    def _logged(self) -> frozenset[str]:
        return frozenset((*self.metrics, *self.texts))

    def series(
        self,
        name: str,
        *,
        x: AxisName = "step",
        stream: Stream | None = None,
        ghosts: bool = False,
        rank: int | None = None,
    ) -> Series:
        """One metric as (steps, values), sorted. Points that were not logged are missing; NaNs that were logged are
        included.

        `name` is a logged name, a concept id or another framework's name. `x` selects another axis. `ghosts=True`
        returns the abandoned rows instead. With several ranks, mergeable values are merged over them; `rank` selects
        one rank.
        """
        logged = self.resolve(name)
        chosen: Stream = stream or self._stream_of(logged)
        others = self._dir.rank_numbers(chosen)
        if rank is None and others and x == "step":
            merged = merge_metric([self._columns(chosen, number) for number in (0, *others)], logged)
            if merged is not None:
                keep = self._lineage.is_ghost(merged.attempts, merged.steps) == ghosts
                return in_order(merged.steps[keep], merged.numbers[keep])
        columns = self._columns(chosen, rank or 0)
        values = columns.column(logged)
        axis, known = self._axis(columns, x)
        keep = is_present(values) & known & (self._ghosts(chosen, rank or 0) == ghosts)
        return in_order(axis[keep], values[keep])

    def table(
        self, *, stream: Stream = "train", ghosts: bool = False, rank: int | None = None
    ) -> dict[str, NDArray[Any]]:
        """All rows and metrics as columns, sorted by step. `is_present` tells which cells of a number column were
        logged.

        One row for each logged row of rank 0, or of `rank`. Mergeable values are merged over the ranks unless `rank` is
        given.
        """
        columns = self._columns(stream, rank or 0)
        keep = self._ghosts(stream, rank or 0) == ghosts
        order = np.argsort(columns.steps[keep], kind="stable")

        def pick(column: NDArray[Any]) -> NDArray[Any]:
            picked: NDArray[Any] = column[keep][order]
            return picked

        data: dict[str, NDArray[Any]] = {
            "step": pick(columns.steps),
            "timestamp": pick(columns.timestamps),
            "attempt": pick(columns.attempts),
        }
        others = self._dir.rank_numbers(stream) if rank is None else []
        logs = [columns, *(self._columns(stream, number) for number in others)]
        for name in columns.names:
            merged = merge_metric(logs, name) if others else None
            data[name] = pick(columns.column(name) if merged is None else merged.at(columns))
        for name in columns.text_names:
            cells = np.full(len(columns), None, dtype=object)
            for row, text in columns.texts(name).items():
                cells[row] = text
            data.setdefault(name, pick(cells))
        return data

    def frame(
        self, *, stream: Stream = "train", ghosts: bool = False, rank: int | None = None
    ) -> pandas.DataFrame | dict[str, NDArray[Any]]:
        """All rows and metrics: a pandas DataFrame if pandas is installed, otherwise a dict of arrays.

        As `table`, but a cell that was not logged is NaN, as is a logged NaN. `series` distinguishes them.
        """
        data = {name: with_nan(column) for name, column in self.table(stream=stream, ghosts=ghosts, rank=rank).items()}
        try:
            import pandas
        except ImportError:
            return data
        return pandas.DataFrame(data)

    def iterate(self, *, stream: Stream | Literal["system"] = "train", ghosts: bool = False) -> Iterator[Row]:
        """Rows in file order, of the living line or of the abandoned attempts."""
        for row in read_rows(self._dir.log(stream)):
            if self._is_ghost(row) == ghosts:
                yield row

    def last_rows(self, count: int) -> list[Row]:
        """The newest rows of the living line, oldest first."""
        # Reads more than requested, because some rows may be late or superseded.
        found = last_rows(self._dir.train_log, count * 4)
        return sorted((row for row in found if not self._is_ghost(row)), key=lambda row: row.step)[-count:]

    def best(self, name: str) -> Best | None:
        """Best and last value. There is no best value if neither up nor down is better. None without any point."""
        return find_best(name, self.series(name), self.meaning(name))

    def system(self, rank: int = 0) -> dict[str, NDArray[Any]]:
        """The samples of the machine as columns, in file order: `timestamp`, `step`, `System/CPU_Percent` ..."""
        columns = open_columns(self._dir.log("system", rank), self._dir.index)
        heads = {"timestamp": columns.timestamps, "step": columns.steps, "attempt": columns.attempts}
        return heads | {name: with_nan(columns.column(name)) for name in columns.names}

    @property
    def last_sample(self) -> Row | None:
        """The newest sample of the machine."""
        return last_row(self._dir.log("system"))

    def phases(self, rank: int = 0) -> list[PhaseSpan]:
        """The phases that have ended, in the order of their ends."""
        return list(read_spans(self._dir.log("phases", rank)))

    @property
    def has_distributions(self) -> bool:
        """Whether there is data for distributions. Does not read it."""
        return has_bytes(self._dir.log("distributions")) or bool(self._dir.rollout_logs())

    @property
    def logged_distributions(self) -> list[Logged]:
        """The distributions that rank 0 logged on the living line, in order."""
        found = self._read_distributions()
        return [one for one in found if not self._lineage.is_abandoned(one.attempt, one.step)]

    def _read_distributions(self) -> Iterable[Logged]:
        return read_distributions(self._dir.log("distributions"))

    @property
    def has_images(self) -> bool:
        """Whether images were logged. Does not read them."""
        return has_bytes(self._dir.log("images"))

    @cached_property
    def images(self) -> list[Image]:
        """The images that rank 0 logged on the living line, in order. Cached, because a slider requests one after the
        other.
        """
        return [one for one in self._read_images() if not self._lineage.is_abandoned(one.attempt, one.step)]

    def _read_images(self) -> Iterable[Image]:
        return read_images(self._dir.log("images"))

    def columns(self, stream: Stream = "train") -> list[tuple[Columns, NDArray[np.bool_]]]:
        """The rows of each rank as columns, rank 0 first, each with a mask of the living rows."""
        ranks = (0, *self._dir.rank_numbers(stream))
        return [(self._columns(stream, rank), ~self._ghosts(stream, rank)) for rank in ranks]

    @property
    def held_bytes(self) -> int:
        """The memory of the columns and images read so far."""
        images = self._held_images()
        return sum(columns.held_bytes for columns in list(self._opened.values())) + sum(
            len(image.png.data) for image in images
        )

    def _held_images(self) -> Iterable[Image]:
        held: list[Image] = self.__dict__.get("images", [])
        return held

    def _axis(self, columns: Columns, x: AxisName) -> tuple[NDArray[Any], NDArray[np.bool_]]:
        """The x values of all rows, and which rows have one."""
        everywhere = np.ones(len(columns), dtype=bool)
        if x == "step":
            return columns.steps, everywhere
        if x == "time":
            return columns.timestamps, ~np.isnan(columns.timestamps)
        if x not in AXIS_CONCEPTS:
            raise ConfigError(f"there is no x-axis {x!r}. Axes: step, time, {', '.join(AXIS_CONCEPTS)}")
        for name in columns.names:
            if name == x or self.concept(name) == AXIS_CONCEPTS[x]:
                column = columns.column(name)
                return column, is_present(column) & np.isfinite(column)
        raise ConfigError(f"{self.path} has no {x} axis: no row carries a metric that means {AXIS_CONCEPTS[x]!r}")

    @cached_property
    def _logs(self) -> list[tuple[Stream, int]]:
        """All log files of the run, those of rank 0 first."""
        own = [(stream, 0) for stream in STREAMS]
        return own + [(stream, rank) for stream in STREAMS for rank in self._dir.rank_numbers(stream)]

    def _stream_of(self, name: str) -> Stream:
        if self.is_evaluated(name):
            return "eval"
        return next((stream for stream, rank in self._logs if self._columns(stream, rank).has(name)), "train")

    def _columns(self, stream: Stream, rank: int = 0) -> Columns:
        key = (stream, rank)
        if key not in self._opened:
            self._opened[key] = open_columns(self._dir.log(stream, rank), self._dir.index)
        return self._opened[key]

    @cached_property
    def _opened(self) -> dict[tuple[Stream, int], Columns]:
        return {}

    @cached_property
    def _lineage(self) -> Lineage:
        train, evals = self._columns("train"), self._columns("eval")
        return trace(self.attempts, (train.attempts, train.steps), (evals.attempts, evals.steps))

    @property
    def cuts(self) -> list[tuple[int, float]]:
        """For each attempt that superseded earlier ones: the first superseded step, and the time of its start."""
        started = {attempt.number: attempt.started for attempt in self.attempts}
        return [(cut, started.get(number, 0.0)) for number, cut in self._lineage.cuts.items()]

    def _is_ghost(self, row: Row | HealthEvent) -> bool:
        return self._lineage.is_abandoned(row.attempt, row.step)

    def _ghosts(self, stream: Stream, rank: int = 0) -> NDArray[np.bool_]:
        key = (stream, rank)
        if key not in self._ghost_rows:
            columns = self._columns(stream, rank)
            self._ghost_rows[key] = self._lineage.is_ghost(columns.attempts, columns.steps)
        return self._ghost_rows[key]

    @cached_property
    def _ghost_rows(self) -> dict[tuple[Stream, int], NDArray[np.bool_]]:
        return {}


def in_order(steps: NDArray[Any], values: FieldArray) -> Series:
    """The points sorted by step. Points of one step keep their order."""
    if len(steps) < 2 or (steps[1:] >= steps[:-1]).all():
        return Series(steps, values)  # the usual case; sorting would copy both arrays
    order = np.argsort(steps, kind="stable")
    return Series(steps[order], values[order])
