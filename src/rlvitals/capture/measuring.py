"""What a run measures beside the rows it is given: phases, counts and rates, joined to the next row; samples of the
machine, which have a log and an axis of their own.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any, Protocol

from rlvitals.capture.counters import Rates, Throughput, amount
from rlvitals.capture.sampler import Sampler, is_sampled_here
from rlvitals.codec import encode
from rlvitals.config import Settings
from rlvitals.errors import BadValue
from rlvitals.records import Attempt, OpenPhase
from rlvitals.store.layout import RunDir, SideLog
from rlvitals.store.process import renew_after_fork
from rlvitals.store.reader import last_rows
from rlvitals.store.spans import span_line

if TYPE_CHECKING:
    from rlvitals.capture.phase import Hook, Phase, Timer
    from rlvitals.capture.phases import Phases

logger = logging.getLogger("rlvitals")

PAST_ROWS = 1000
"""How far back a resumed run looks for its number of samples."""


class Recorder(Protocol):
    """The run that is measured."""

    is_measuring: bool
    """Whether a row may have measurements to be joined with. Set here: `log` looks at nothing else."""

    @property
    def settings(self) -> Settings: ...

    @property
    def rank(self) -> int: ...

    @property
    def last_step(self) -> int: ...


class Measuring:
    """The measurements of one recording process."""

    def __init__(
        self,
        run: Recorder,
        run_dir: RunDir,
        attempt: Attempt,
        append: Callable[[SideLog, bytes], None],
        *,
        see_sample: Callable[[Mapping[str, float]], None],
        clock: Callable[[], float] = time.perf_counter,
    ) -> None:
        """`append` adds a line to a log beside the rows; `see_sample` is told of a sample of the machine that is on
        record.
        """
        self._see_sample = see_sample
        self._run, self._dir, self._attempt, self._append, self._clock = run, run_dir, attempt, append, clock
        self._lock = threading.RLock()
        renew_after_fork(self, "_lock")
        self._said: set[str] = set()
        self._throughput = Throughput(begun=clock())
        self._phases: Phases  # made by the first measurement
        seconds = run.settings.hardware
        self._sampler = Sampler(self._take_sample, seconds) if seconds and is_sampled_here(run.rank) else None

    def phase(self, name: str, onload: Hook, offload: Hook, memory: bool) -> Phase:
        """A phase to enter; see `Phases.phase`."""
        if not self._run.is_measuring:
            self._begin(self._clock())  # here the work begins: what went before was loading a model
        return self._phases.phase(name, onload, offload, memory)

    def timer(self, name: str) -> Timer:
        """A timer to enter; see `Phases.timer`."""
        if not self._run.is_measuring:
            self._begin(self._clock())
        return self._phases.timer(name)

    def count(self, tokens: float = 0, samples: float = 0) -> None:
        """So much was processed."""
        if not self._run.is_measuring:
            self._begin(None)
        more_tokens, more_samples = self._amount(tokens), self._amount(samples)
        with self._lock:
            self._throughput.count(more_tokens, more_samples)

    def join(self, metrics: Mapping[str, Any]) -> Mapping[str, Any]:
        """A row with what is new; the caller's own values win."""
        now = self._clock()
        measured = self._phases.take(now)
        with self._lock:
            measured |= self._throughput.take(now)
        return {**measured, **metrics} if measured and isinstance(metrics, Mapping) else metrics

    def open_phases(self) -> list[OpenPhase]:
        """The phases that have not ended."""
        return self._phases.open() if self._run.is_measuring else []

    def stop(self) -> None:
        """The run ends: no more samples of the machine."""
        if self._sampler is not None:
            self._sampler.stop()

    def _begin(self, now: float | None) -> None:
        """The first measurement. Tokens are counted from `now` on, or from the start of the run."""
        with self._lock:
            if self._run.is_measuring:
                return
            from rlvitals.capture.phases import Phases  # most runs measure nothing

            rates = Rates("rlaif" if self._run.settings.names == "rlaif" else "canonical")
            self._phases = Phases(
                clock=self._clock, rates=rates, on_close=self._record, amount=self._amount, warn=self._warn_once
            )
            if now is not None:
                self._throughput.begun = now
            if self._attempt.number > 1:
                self._throughput.samples = _samples_before(self._dir, self._run.rank, self._run.last_step)
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
            self._warn_once(f"phases named {phase.name!r} are not on record: {error}")

    def _take_sample(self, sample: dict[str, float]) -> None:
        head = {
            "step": self._run.last_step,
            "timestamp": int(time.time() * 1000) / 1000,
            "attempt": self._attempt.number,
        }
        self._append("system", encode(head | sample))
        self._see_sample(sample)

    def _amount(self, count: float) -> float:
        try:
            return amount(count)
        except BadValue as problem:
            if self._run.settings.strict:
                raise
            self._warn_once(f"{problem}; it is left out")
            return 0.0

    def _warn_once(self, sentence: str) -> None:
        if sentence not in self._said:
            self._said.add(sentence)
            logger.warning(sentence)


def _samples_before(run_dir: RunDir, rank: int, step: int) -> int:
    """How many samples the run had counted at a step, for a resumed one to go on from."""
    for row in reversed(last_rows(run_dir.log("train", rank), PAST_ROWS)):
        if row.step <= step and (counted := row.numbers.get("system/samples", -1.0)) >= 0:
            return int(counted)
    return 0
