"""The measurements of a run: phases, counts and rates, which are added to the next row, and hardware samples, which
have their own log.
"""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any, Protocol

from rlvitals.capture.counters import WINDOW_ROWS, Rates, Throughput, amount
from rlvitals.capture.processor_wait import ProcessorWait
from rlvitals.capture.pulse import Pulse
from rlvitals.config import Settings
from rlvitals.errors import BadValue
from rlvitals.guard import Once, guarded, words_of
from rlvitals.records import Attempt, OpenPhase
from rlvitals.store.layout import RunDir, SideLog
from rlvitals.store.lines import encode_row
from rlvitals.store.process import renew_after_fork
from rlvitals.store.reader import last_rows
from rlvitals.store.spans import span_line
from rlvitals.terminal import logger

if TYPE_CHECKING:
    from rlvitals.capture.hardware import Machine
    from rlvitals.capture.phases import Hook, Phase, Phases, Timer

PAST_ROWS = 1000
"""Number of rows in which a resumed run looks for its number of samples."""


class MeasuredRun(Protocol):
    """The run that is measured."""

    is_measuring: bool
    """Whether there may be measurements to add to a row. Set by `Measurements`; `log` reads only this."""

    @property
    def settings(self) -> Settings: ...

    @property
    def rank(self) -> int: ...

    @property
    def last_step(self) -> int: ...


class Measurements:
    """The measurements of one recording process."""

    def __init__(
        self,
        run: MeasuredRun,
        run_dir: RunDir,
        attempt: Attempt,
        append: Callable[[SideLog, bytes], None],
        *,
        see_sample: Callable[[Mapping[str, float]], None],
    ) -> None:
        """`append` adds a line to a side log; `see_sample` is called with each recorded hardware sample."""
        self._see_sample = see_sample
        self._run, self._dir, self._attempt, self._append = run, run_dir, attempt, append
        self._lock = threading.RLock()
        renew_after_fork(self, "_lock")
        self._warn_once = Once()
        self._throughput = Throughput(since=time.perf_counter())
        self._wait = ProcessorWait(WINDOW_ROWS)
        self._phases: Phases  # created by the first measurement
        seconds = run.settings.hardware
        self._sampler = Sampler(self._take_sample, seconds) if seconds and is_sampled_here(run.rank) else None

    def phase(self, name: str, onload: Hook, offload: Hook, memory: bool) -> Phase:
        """A phase to enter; see `Phases.phase`."""
        if not self._run.is_measuring:
            self._begin(time.perf_counter())  # the time before was spent on loading a model
        return self._phases.phase(name, onload, offload, memory)

    def timer(self, name: str) -> Timer:
        """A timer to enter; see `Phases.timer`."""
        if not self._run.is_measuring:
            self._begin(time.perf_counter())
        return self._phases.timer(name)

    def count(self, tokens: float = 0, samples: float = 0) -> None:
        """Add processed tokens and samples."""
        if not self._run.is_measuring:
            self._begin(None)
        more_tokens, more_samples = self._amount(tokens), self._amount(samples)
        with self._lock:
            self._throughput.count(more_tokens, more_samples)

    def join(self, metrics: Mapping[str, Any]) -> Mapping[str, Any]:
        """The row with the new measurements added; values of the caller take precedence."""
        now = time.perf_counter()
        measured = self._phases.take(now)
        with self._lock:
            measured |= self._throughput.take(now)
            if measured and (share := self._wait.take(now)) is not None:
                measured["system/cpu_wait"] = share
        return {**measured, **metrics} if measured and isinstance(metrics, Mapping) else metrics

    def open_phases(self) -> list[OpenPhase]:
        """The open phases; see `Phases.open`."""
        return self._phases.open() if self._run.is_measuring else []

    def stop(self) -> None:
        """Stop sampling and measuring at the end of the run."""
        with self._lock:
            self._wait.close()
        if self._sampler is not None:
            self._sampler.stop()

    def _begin(self, now: float | None) -> None:
        """Prepare the first measurement. The token rate counts time from `now`; None: from the start of the run."""
        with self._lock:
            if self._run.is_measuring:
                return
            from rlvitals.capture.phases import Phases  # most runs measure nothing

            rates = Rates("rlaif" if self._run.settings.names == "rlaif" else "canonical")
            self._phases = Phases(rates=rates, on_close=self._record, amount=self._amount, warn=self._warn_once)
            if now is not None:
                self._throughput.since = now
            if self._attempt.number > 1:
                self._throughput.samples = _samples_before(self._dir, self._run.rank, self._run.last_step)
            self._wait.begin(time.perf_counter())
            self._run.is_measuring = True

    def _record(self, phase: Phase) -> None:
        try:
            line = span_line(
                phase.name,
                phase.started,
                phase.started + phase.seconds["total"],
                step=self._run.last_step,
                attempt=self._attempt.number,
                parent=phase.parent.name if phase.parent is not None else "",
                error=phase.error,
            )
            self._append("phases", line)
        except (TypeError, ValueError) as error:  # a name that JSON cannot hold
            self._warn_once(f"phases named {phase.name!r} are not recorded: {error}")

    def _take_sample(self, sample: dict[str, float]) -> None:
        self._append("system", encode_row(self._run.last_step, time.time(), self._attempt.number, sample))
        self._see_sample(sample)

    def _amount(self, count: float) -> float:
        try:
            return amount(count)
        except BadValue as problem:
            if self._run.settings.strict:
                raise
            self._warn_once(f"{problem}; it is dropped")
            return 0.0


class Sampler:
    """Passes a sample of the machine to `take` every `seconds`. The first comes after `seconds`, so a short run has
    none.
    """

    def __init__(self, take: Callable[[dict[str, float]], None], seconds: float) -> None:
        self._take = take
        self._machine: Machine | None = None
        self._has_failed = False
        self._pulse = Pulse(self._sample, seconds, "rlvitals-hardware")

    def stop(self) -> None:
        """End the thread and wait for a sample in progress."""
        self._pulse.stop()
        if self._machine is not None:
            self._machine.close()

    def _sample(self) -> None:
        if self._has_failed:
            return
        with guarded(self._give_up):
            if self._machine is None:
                from rlvitals.capture.hardware import Machine  # not imported earlier: a short run has no sample

                self._machine = Machine()
            if sample := self._machine.sample():
                self._take(sample)

    def _give_up(self, error: Exception) -> None:
        self._has_failed = True
        logger.warning("the machine is no longer sampled: %s", words_of(error))


def is_sampled_here(rank: int) -> bool:
    """Whether this process samples its machine: one process per machine does."""
    return rank == 0 or os.environ.get("LOCAL_RANK") == "0"


def _samples_before(run_dir: RunDir, rank: int, step: int) -> int:
    """The number of samples that the run had counted at a step; a resumed run continues from it."""
    for row in reversed(last_rows(run_dir.log("train", rank), PAST_ROWS)):
        if row.step <= step and (counted := row.numbers.get("system/samples", -1.0)) >= 0:
            return int(counted)
    return 0
