"""How long a run's processes were alive, and on how many GPUs: the time a training took, in total and after a step.

The time between two attempts is not counted, because the GPUs may have been released. Within an attempt every second
counts, including a hang, because its process held the GPUs. In another tool's log the cause of a long silence is
unknown, so it is left out and reported.
"""

from __future__ import annotations

import math
import re
import time
from collections.abc import Mapping
from dataclasses import dataclass, field
from itertools import pairwise
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from rlvitals import catalog
from rlvitals.config import flatten
from rlvitals.store.layout import STREAMS, RunDir
from rlvitals.values import is_whole
from rlvitals.views.query import StoredRun
from rlvitals.views.settings import setting_of

LONG_SILENCE, TIMES_USUAL = 1800.0, 50.0
"""A silence in another tool's log that exceeds this many seconds and this many usual intervals is not counted."""

TRUSTED_SECONDS = 120.0
"""Maximum difference between the time in a file and the file's own time. A larger difference means that the files are
copies, whose times are not meaningful.
"""

_STEP_TIME = "time.step"

_GPU_SETTINGS = (
    ("trainer.n_gpus_per_node", "trainer.nnodes"),  # verl
    ("cluster.n_gpus_per_node", "cluster.n_nodes"),  # AReaL
    ("cluster.gpus_per_node", "cluster.num_nodes"),  # NeMo-RL
    ("cluster.gpu_per_node", "cluster.node_num"),  # Trinity-RFT
    ("world_size", "n_gpu"),  # transformers: n_gpu is per process, 0 on a CPU
    ("num_gpus",),
    ("n_gpus",),
    ("world_size",),
    ("num_processes",),
)
"""Settings whose product is the number of GPUs, the most reliable first."""

_CARD = re.compile(r"System/GPU_\w+?(?:/(?P<card>\d+))?")


@dataclass(frozen=True, slots=True)
class HeldGpus:
    """How many GPUs a run holds, and the source of this number."""

    count: int | None
    source: str
    """The source as text; empty if the number is unknown."""


@dataclass(frozen=True, slots=True)
class RunClock:
    """The times of a run."""

    measured_by: Literal["timestamps", "step times", ""]
    steps: NDArray[Any] = field(default_factory=lambda: np.zeros(0, dtype=np.int64))
    """The steps of the rows of the living line, in order."""
    times: NDArray[Any] = field(default_factory=lambda: np.zeros(0))
    """The time at which each row was logged."""
    spans: tuple[tuple[float, float], ...] = ()
    """The start and end of each period in which a process was alive."""
    silences: tuple[tuple[float, float], ...] = ()
    """The start and end of each period that is not counted, because nothing is known of it."""

    def seconds_since(self, step: int) -> float | None:
        """How long processes were alive after the row of a step; None if it is unknown."""
        if not self.measured_by or not len(self.steps):
            return None
        since = self._moment(step)
        return sum(max(0.0, end - max(start, since)) for start, end in self.spans)

    def silent_since(self, step: int) -> float:
        """The seconds after a step that are not counted, because nothing is known of them."""
        if not len(self.steps):
            return 0.0
        since = self._moment(step)
        return sum(max(0.0, end - max(start, since)) for start, end in self.silences)

    def _moment(self, step: int) -> float:
        place = int(np.searchsorted(self.steps, step))
        return float(self.times[min(place, len(self.times) - 1)])


def clock_of(view: StoredRun) -> RunClock:
    """The clock from the timestamps of the rows, or else from the logged step times."""
    columns, lives = view.columns("train")[0]
    known = lives & np.isfinite(columns.timestamps)
    if not known.any():
        return _by_step_times(view)
    order = np.argsort(columns.steps[known], kind="stable")
    steps, times = columns.steps[known][order], columns.timestamps[known][order]
    seen = _times_by_attempt(view)
    if view.foreign is not None or not view.info.pid:  # another tool's log, possibly imported
        return RunClock("timestamps", steps, times, *_without_silences(seen))
    started = {attempt.number: attempt.started for attempt in view.attempts}
    spans = []
    for number, own in seen.items():
        start = min(started.get(number, math.inf), float(own.min()))
        spans.append((start, float(own.max())))
    if spans and max(seen) == max(started, default=max(seen)):
        start, last = spans[-1]
        spans[-1] = (start, max(last, _end(view)))
    return RunClock("timestamps", steps, times, tuple(spans))


def gpus_of(view: StoredRun) -> HeldGpus:
    """From the settings, the processes that were started or wrote rows, or the samples of the machine."""
    settings = flatten(view.config)
    if _is_on_cpu(settings):
        return HeldGpus(None, "")
    for names in _GPU_SETTINGS:
        counts = [setting_of(settings, name) for name in names]
        if all(is_whole(count) for count in counts):
            product = math.prod(counts)
            if product > 0:
                return HeldGpus(product, f"from the setting{'s' if len(names) > 1 else ''} {' and '.join(names)}")
    cards = _cards(view)
    processes = max(view.info.processes or 0, len(view.ranks) if len(view.ranks) > 1 else 0)
    if processes and cards != 0:
        return HeldGpus(processes, f"one for each of its {processes} processes")
    if cards:
        return HeldGpus(cards, "from the samples of its machine")
    return HeldGpus(None, "")


def _is_on_cpu(settings: Mapping[str, Any]) -> bool:
    """Whether the settings exclude GPUs."""
    if any(setting_of(settings, name) is True for name in ("use_cpu", "no_cuda")):
        return True
    return bool(setting_of(settings, "device") == "cpu" or setting_of(settings, "n_gpu") == 0)


def _cards(view: StoredRun) -> int | None:
    """The GPUs in the samples of the machine; 0 if the samples contain none, None without samples."""
    if view.foreign is not None:
        return None
    samples = view.system()
    if not len(samples["timestamp"]):
        return None
    found = [match for name in samples if (match := _CARD.fullmatch(name))]
    numbered = {match["card"] for match in found if match["card"] is not None}
    return len(numbered) or int(bool(found))


def _times_by_attempt(view: StoredRun) -> dict[int, NDArray[Any]]:
    """All timestamps of rows of any kind by attempt, sorted, superseded rows included."""
    logs = [view.columns(stream)[0][0] for stream in STREAMS]
    found = [(columns.attempts, columns.timestamps) for columns in logs]
    if view.foreign is None:
        samples = view.system()
        found.append((samples["attempt"], samples["timestamp"]))
    attempts, times = (np.concatenate(parts) for parts in zip(*found, strict=True))
    known = np.isfinite(times)
    attempts, times = attempts[known], times[known]
    return {int(number): np.sort(times[attempts == number]) for number in np.unique(attempts)}


def _without_silences(seen: Mapping[int, NDArray[Any]]) -> tuple[tuple[Any, ...], tuple[Any, ...]]:
    """The periods from the first to the last row of each attempt without long silences, and these silences."""
    spans, silences = [], []
    for times in seen.values():
        between = np.diff(times)
        usual = float(np.median(between)) if len(between) else 0.0
        cuts = np.flatnonzero(between > max(LONG_SILENCE, TIMES_USUAL * usual))
        edges = [0, *(cuts + 1).tolist(), len(times)]
        spans += [(float(times[first]), float(times[last - 1])) for first, last in pairwise(edges)]
        silences += [(float(times[cut]), float(times[cut + 1])) for cut in cuts]
    return tuple(spans), tuple(silences)


def _end(view: StoredRun) -> float:
    """The end of the last attempt: now if it is running; for a killed one, its last sign of life."""
    if view.status == "running":
        return time.time()
    if view.info.ended is not None:
        return view.info.ended
    if view.stop is None:
        return -math.inf
    try:
        written = RunDir(view.path).info.stat().st_mtime
    except OSError:
        return -math.inf
    return view.stop.when if abs(written - view.info.updated) < TRUSTED_SECONDS else -math.inf


def _by_step_times(view: StoredRun) -> RunClock:
    """A clock that starts at 0 and adds up the step times."""
    name = next((name for name in view.metrics if _is_step_time(view, name)), None)
    if name is None:
        return RunClock("")
    meaning = view.meaning(name)
    steps, values = view.series(name, stream="train")
    known = np.isfinite(values)
    steps, values = steps[known], values[known]
    if not len(steps):
        return RunClock("")
    seconds = np.array([catalog.to_concept(meaning, float(value)) for value in values])
    taken = seconds * np.concatenate(([1], np.maximum(np.diff(steps), 0)))  # a row may cover several steps
    times = np.cumsum(np.maximum(taken, 0.0))
    return RunClock("step times", steps, times, ((0.0, float(times[-1])),))


def _is_step_time(view: StoredRun, name: str) -> bool:
    meaning = view.meaning(name)
    if meaning is None or meaning.metric.id != _STEP_TIME or view.labels(name):
        return False
    return meaning.caveat is None or meaning.caveat.kind == "scale"
