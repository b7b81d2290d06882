"""Turns logged rows into the rows that the monitor reads.

A live run, a resumed one, a follower, `check`, `backtest` and the dashboard all read through `RowReader`, so that the
same rows lead to the same findings.

- Training and evaluation rows come in the order they were logged (`in_order`).
- Metrics of an evaluation get a held-out name. Its step is never below the training's, because the monitor could read a
  step backwards as a restart.
- Some frameworks log one step in several rows, the loss in one and the reward in another. The monitor gets them as one
  row. A row is held back only in a run that did this for two steps in a row.
- Samples of the machine are joined to the next row.
- With several ranks, only the rows of rank 0 are read.
"""

from __future__ import annotations

import math
import re
from collections import deque
from collections.abc import Iterable, Iterator, Mapping
from typing import Any

from rlvitals.records import PLACES, SAMPLED, Fields, Row, Stream
from rlvitals.splits import held_out_name, is_held_out, is_of_whole_training

_CLOCK = re.compile(r"(^|[/_.])(wall_?time|time|timestamp|runtime|elapsed)$", re.IGNORECASE)
"""Names that may differ between the rows of one step: each row has its own time."""

_AVERAGED = ("System/CPU_Percent", "System/GPU_Utilization")
"""Shares of time, which are averaged. Of all other values the highest counts: memory full for a moment was full."""


class Samples:
    """The samples of the machine since the last row, joined into one.

    >>> samples = Samples()
    >>> samples.add({"System/GPU_Utilization": 90.0, "System/GPU_Memory_Percent": 60.0})
    >>> samples.add({"System/GPU_Utilization": 50.0, "System/GPU_Memory_Percent": 80.0})
    >>> samples.take(), samples.take()
    ({'System/GPU_Utilization': 70.0, 'System/GPU_Memory_Percent': 80.0}, {})
    """

    def __init__(self) -> None:
        self._joined: dict[str, float] = {}
        self._counts: dict[str, int] = {}

    def add(self, sample: Mapping[str, float]) -> None:
        """Add one sample. Values of single GPUs, `.../0`, are skipped: they are read from the samples themselves."""
        for name, value in sample.items():
            if name.count("/") > 1:
                continue
            count = self._counts[name] = self._counts.get(name, 0) + 1
            known = self._joined.get(name, value)
            self._joined[name] = known + (value - known) / count if name in _AVERAGED else max(known, value)

    def take(self) -> dict[str, float]:
        """Return the samples since the last call as one; empty if there were none."""
        joined = self._joined
        if joined:
            self._joined, self._counts = {}, {}
        return joined


class EvaluationRow(Fields):
    """The row of an evaluation. Training may log a metric under the held-out name that it has here."""

    def __init__(self, row: Fields, logged_names: Mapping[str, str]) -> None:
        super().__init__(row)
        self.logged_names = logged_names
        """By name that was marked as held out: the name it was logged under."""


class RowReader:
    """Turns the rows of one run, one by one, into those that the monitor reads.

    >>> reader = RowReader()
    >>> reader.take("train", 10, 60.0, {"loss": 0.5})
    [{'step': 10, 'timestamp': 60.0, 'loss': 0.5}]
    >>> reader.take("eval", 8, 61.0, {"loss": 0.7})
    [{'step': 10, 'timestamp': 61.0, 'eval/loss': 0.7}]
    """

    def __init__(self) -> None:
        self.sampled: set[str] = set()
        """The names in samples of the machine."""
        self.rows = 0
        """Training rows, as they were logged."""
        self.first_step: int | None = None
        self.last_step: int | None = None
        """The lowest and the highest step of the training rows."""
        self._samples = Samples()
        self._later_samples: deque[tuple[float, Mapping[str, float]]] = deque()
        self._reached = -1  # the step of the last training row, or that of a later evaluation
        self._step: Any = None  # the training step being read
        self._seen: Fields = {}  # all its values so far
        self._parts = 0  # its rows so far
        self._closing: frozenset[str] = frozenset()  # names in the last of these rows
        self._usual = (1, 1)  # rows of the two steps before
        self._usual_closing: frozenset[str] = frozenset()
        self._held: Fields | None = None
        self._behind: list[Fields] = []  # evaluations that came after the held row

    def add_sample(self, sample: Mapping[str, float], timestamp: float = -math.inf) -> None:
        """Add a sample of the machine; it is joined to the next row that is not older."""
        if timestamp == -math.inf and not self._later_samples:
            self._samples.add(sample)  # at once: a queue could grow for days without rows
        else:
            self._later_samples.append((timestamp, sample))

    def take(self, stream: Stream, step: int, timestamp: float, numbers: Mapping[str, Any]) -> list[Fields]:
        """Take one row of a recorded run; returns the rows that are now complete."""
        head: Fields = {"step": step}
        if not math.isnan(timestamp):
            head["timestamp"] = timestamp
        if stream == "train":
            self._reached = step
            self._count(step)
            return self._take_training({**head, **numbers})
        head["step"] = self._reached = max(step, self._reached)
        logged_names = {}
        for name, number in numbers.items():
            if is_of_whole_training(name):
                continue
            marked = held_out_name(name)
            if marked != name and marked in numbers:  # logged under its held-out name, too
                continue
            head[marked] = number
            if marked != name:
                logged_names[marked] = name
        return self._take_evaluation(head, logged_names)

    def take_foreign(self, row: Fields) -> list[Fields]:
        """Take one row of another tool's log; whether it is an evaluation is inferred from its names alone."""
        if _is_evaluation(row):
            return self._take_evaluation(row, {})
        self._count(row["step"])
        return self._take_training(row)

    def flush(self) -> list[Fields]:
        """Return the row that was held back, if any, and the evaluations after it: its step has no more rows."""
        if self._held is None:
            return []
        done = [self._held, *self._behind]
        self._held, self._behind = None, []
        return done

    def _count(self, step: int) -> None:
        self.rows += 1
        if self.last_step is None or step > self.last_step:
            self.last_step = step
        if self.first_step is None or step < self.first_step:
            self.first_step = step

    def _take_evaluation(self, fields: Fields, logged_names: Mapping[str, str]) -> list[Fields]:
        row = EvaluationRow(self._with_samples(fields), logged_names)
        if self._held is None:
            return [row]
        self._behind.append(row)
        return []

    def _take_training(self, row: Fields) -> list[Fields]:
        if self._parts and row.get("step") == self._step and self._is_part(row):
            return self._take_part(row)
        done = self.flush()
        if self._parts:
            self._usual = (self._usual[1], self._parts)
            self._usual_closing = self._closing
        self._step, self._seen, self._parts, self._closing = row.get("step"), row, 1, frozenset()
        row = self._with_samples(row)
        if min(self._usual) > 1:
            self._held = row
        else:
            done.append(row)
        return done

    def _take_part(self, row: Fields) -> list[Fields]:
        self._parts += 1
        self._seen = self._seen | row
        self._closing = frozenset(row)
        row = self._with_samples(row)
        if self._held is None:
            return [row]
        self._held = self._held | row  # a new dict: the first part belongs to the caller
        is_last = self._parts >= self._usual[1] and self._closing >= self._usual_closing
        return self.flush() if is_last else []

    def _is_part(self, row: Fields) -> bool:
        """Whether a row continues the step before it; one that repeats a metric with another value does not."""
        seen = self._seen
        return all(
            name not in seen or seen[name] == value or name in PLACES or name.startswith("_") or _CLOCK.search(name)
            for name, value in row.items()
        )

    def _with_samples(self, row: Fields) -> Fields:
        later = self._later_samples
        if later:
            now = row.get("timestamp", -math.inf)
            while later and later[0][0] <= now:
                self._samples.add(later.popleft()[1])
        joined = self._samples.take()
        if not joined:
            return row
        self.sampled.update(joined)
        return joined | row


def is_training_row(row: Fields) -> bool:
    """Whether a row has a metric that is neither of held-out data nor of the machine."""
    return not all(name in PLACES or is_held_out(name) or name.startswith(SAMPLED) for name in row)


def _is_evaluation(row: Fields) -> bool:
    """Whether a row has metrics of held-out data and no others."""
    is_any = False
    for name in row:
        if is_held_out(name):
            is_any = True
        elif name not in PLACES and not name.startswith("_") and not _CLOCK.search(name):
            return False
    return is_any


def in_order(train: Iterable[Row], evals: Iterable[Row], *, is_set_back: bool = False) -> Iterator[tuple[Stream, Row]]:
    """The rows of both logs in the order they were logged.

    Their times decide. Within one millisecond, and without times, an evaluation comes after the training rows of its
    step and before those of later ones. So it does everywhere if the clock was set back (`is_set_back`).
    """
    waiting = iter(evals)
    held = next(waiting, None)
    held_at = _time(held, -math.inf)
    now = -math.inf
    for row in train:
        now = _time(row, now)
        while held is not None and (held.step < row.step if is_set_back or held_at == now else held_at < now):
            yield "eval", held
            held = next(waiting, None)
            held_at = _time(held, held_at)
        yield "train", row
    while held is not None:
        yield "eval", held
        held = next(waiting, None)


def _time(row: Row | None, before: float) -> float:
    return max(before, row.timestamp) if row is not None and not math.isnan(row.timestamp) else before


def is_set_back(*logs: Iterable[float]) -> bool:
    """Whether a time in one of these logs is before an earlier one.

    >>> is_set_back([1.0, 2.0, math.nan, 3.0], [1.5]), is_set_back([1.0, 3.0, 2.0])
    (False, True)
    """
    for times in logs:
        latest = -math.inf
        for time in times:
            if time < latest:
                return True
            latest = max(latest, time) if time == time else latest  # noqa: PLR0124 - NaN: no time
    return False


def rows_of_run(
    train: Iterable[Row],
    evals: Iterable[Row],
    samples: Iterable[Row] = (),
    reader: RowReader | None = None,
    *,
    is_set_back: bool = False,
) -> Iterator[Fields]:
    """The rows of a run as the monitor reads them, each with the samples of the machine before it. With a `reader`,
    later samples and a row that is held back wait for the next call. Without one, these are all rows. `is_set_back`:
    the clock was set back while they were logged.
    """
    reading = reader or RowReader()
    waiting = iter(samples)
    sample = next(waiting, None)
    for stream, row in in_order(train, evals, is_set_back=is_set_back):
        while sample is not None and sample.timestamp <= row.timestamp:
            reading.add_sample(sample.numbers, sample.timestamp)
            sample = next(waiting, None)
        yield from reading.take(stream, row.step, row.timestamp, row.numbers)
    if reader is None:
        yield from reading.flush()
    elif sample is not None:
        for later in (sample, *waiting):
            reader.add_sample(later.numbers, later.timestamp)


def rows_of_log(rows: Iterable[Fields], reader: RowReader | None = None) -> Iterator[Fields]:
    """The rows of another tool's log as the monitor reads them."""
    reading = reader or RowReader()
    for row in rows:
        yield from reading.take_foreign(row)
    if reader is None:
        yield from reading.flush()
