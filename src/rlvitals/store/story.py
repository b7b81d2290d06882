"""A run's past as whoever goes on with it must see it: the rows of its living line, in the order they were logged.

Training and evaluation rows are merged by their time. Ghosts (see `lineage`) are left out; so is the middle of a very
long run, because reading it again must not keep a trainer waiting.
"""

from __future__ import annotations

import heapq
import math
from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from rlvitals.records import Row
from rlvitals.store.cards import read_attempts
from rlvitals.store.layout import RunDir, Stream
from rlvitals.store.lineage import Lineage, trace
from rlvitals.store.reader import read_rows

FIRST_ROWS = 500
"""Of a long run: enough for every baseline."""

LAST_ROWS = 9_500
"""Of a long run: two seconds of reading."""


class Told(NamedTuple):
    """One row of the story."""

    stream: Stream
    row: Row


@dataclass(frozen=True, slots=True)
class Story:
    """What came before an attempt's first row."""

    run_dir: RunDir
    attempt: int
    """The attempt that goes on; its own rows are no part of it."""
    lineage: Lineage
    length: int
    """Rows of the living line."""

    def is_ghost(self, attempt: int, step: int) -> bool:
        """Whether a row (or what was said at it) was abandoned."""
        return any(attempt < number and step >= cut for number, cut in self.lineage.cuts.items())

    @property
    def left_out(self) -> int:
        """Rows in the middle that are not told."""
        return max(0, self.length - FIRST_ROWS - LAST_ROWS)

    def rows(self) -> Iterator[Told]:
        """The rows, in the order they were logged."""
        skipped = range(FIRST_ROWS, FIRST_ROWS + self.left_out)
        merged = heapq.merge(self._of("train", 0), self._of("eval", 1), key=lambda item: item[0])
        for number, (_, told) in enumerate(merged):
            if number not in skipped:
                yield told

    def _of(self, stream: Stream, order: int) -> Iterator[tuple[tuple[float, int], Told]]:
        latest = -math.inf
        for row in read_rows(self.run_dir.log(stream)):
            if row.attempt < self.attempt and not self.is_ghost(row.attempt, row.step):
                latest = max(latest, row.timestamp)  # a clock that was set back, or no time: file order decides
                yield (latest, order), Told(stream, row)


def story_before(run_dir: RunDir, attempt: int, stream: Stream, step: int) -> Story:
    """The story up to an attempt whose first row is at `step`."""
    train, evals = _places(run_dir, "train", attempt), _places(run_dir, "eval", attempt)
    first = [(attempt, step)]
    lineage = trace(
        read_attempts(run_dir),
        _columns(train + first if stream == "train" else train),
        _columns(evals + first if stream == "eval" else evals),
    )
    story = Story(run_dir, attempt, lineage, 0)
    return replace(story, length=sum(not story.is_ghost(*place) for place in train + evals))


def _places(run_dir: RunDir, stream: Stream, before: int) -> list[tuple[int, int]]:
    return [(row.attempt, row.step) for row in read_rows(run_dir.log(stream)) if row.attempt < before]


def _columns(places: list[tuple[int, int]]) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    table = np.array(places, dtype=np.int64).reshape(-1, 2)
    return table[:, 0], table[:, 1]
