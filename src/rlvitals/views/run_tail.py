"""New rows and findings of a run since the last look. Byte offsets mark the position, so that any client can continue
from it.
"""

from __future__ import annotations

import contextlib
import hashlib
import math
import re
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path

from rlvitals.contract import FindingFacts, NewStatus, finding_facts
from rlvitals.errors import RlvitalsError
from rlvitals.store.cards import read_info
from rlvitals.store.findings import event_of
from rlvitals.store.layout import RunDir
from rlvitals.store.lines import BadLine, decode
from rlvitals.store.tail import RowTail, file_size
from rlvitals.views.rollouts import DumpedRollouts
from rlvitals.views.run import open_run
from rlvitals.views.thinning import plain_number

LONGEST_CATCH_UP = 4 * 2**20
"""Maximum bytes of a log read in one look. A client that is further behind gets the newest rows."""

MOST_VALUES = 5_000
_PLACE = re.compile(r"([0-9]{1,18})-([0-9]{1,18})-([0-9]{1,18})")


@dataclass(slots=True)
class Added:
    """The result of one look."""

    rows: int = 0
    step: int | None = None
    updated: float | None = None
    values: dict[str, float | None] = field(default_factory=dict)
    """The newest value of each metric."""
    findings: list[FindingFacts] = field(default_factory=list)
    is_news_of_health: bool = False
    """Whether the health log has new events. A recovered alarm has no finding."""


class ChangeTail:
    """Detects changes of files as a whole. `place` is a digest of their state at the last look, from which to continue
    later.
    """

    def __init__(self, place: str = "") -> None:
        self.place = place or digest(self._state())

    def _state(self) -> object:
        """A value that changes with the files."""
        raise NotImplementedError

    def _has_changed(self) -> bool:
        before, self.place = self.place, digest(self._state())
        return self.place != before


def digest(value: object) -> str:
    """A short text that changes with a value."""
    return hashlib.sha256(repr(value).encode("utf-8", "surrogateescape")).hexdigest()[:16]


class RunTail:
    """Reads a run from a position on. `place` is the current position as text, from which to continue later."""

    def __init__(self, path: Path, place: str = "", dumps: Sequence[DumpedRollouts] = ()) -> None:
        self._dumps = dumps
        self._dumped = [dump.state for dump in dumps]
        self._dir = RunDir(path.absolute())
        logs = (self._dir.train_log, self._dir.eval_log, self._dir.findings)
        known = _PLACE.fullmatch(place)
        offsets = [int(part) for part in known.groups()] if known else [file_size(log) or 0 for log in logs]
        self._tails = [RowTail(log, offset) for log, offset in zip(logs, offsets, strict=True)]

    @property
    def place(self) -> str:
        return "-".join(str(tail.offset) for tail in self._tails)

    def look(self) -> Added:
        """The new rows and findings."""
        added = Added()
        for tail in self._tails:
            for line in self._new_lines(tail):
                if tail.path == self._dir.findings:
                    _take_finding(added, line)
                else:
                    _take_row(added, line, is_training=tail.path == self._dir.train_log)
        return added

    def look_at_dumps(self) -> bool:
        """Whether a dump that the run is linked to has changed since the last look."""
        before, self._dumped = self._dumped, [dump.state for dump in self._dumps]
        return self._dumped != before

    def status(self) -> NewStatus:
        """The current status of the run."""
        try:
            view = open_run(self._dir.root)
            return {"status": view.status, "status_note": view.status_note, "ended": read_info(self._dir).ended}
        except RlvitalsError as error:
            return {"status": "unreadable", "status_note": str(error), "ended": None}

    def _new_lines(self, tail: RowTail) -> list[bytes]:
        with contextlib.suppress(RlvitalsError, OSError):  # `status` reports the error
            return tail.lines(LONGEST_CATCH_UP)
        return []


def _take_row(added: Added, line: bytes, *, is_training: bool) -> None:
    try:
        row = decode(line)
    except BadLine:
        return
    added.rows += 1
    if is_training:
        added.step = row.step
    if math.isfinite(row.timestamp):
        added.updated = max(added.updated or 0.0, row.timestamp)
    for name, number in row.numbers.items():
        if name in added.values or len(added.values) < MOST_VALUES:
            added.values[name] = plain_number(number)


def _take_finding(added: Added, line: bytes) -> None:
    event = event_of(line)
    if event is None:
        return
    if event.finding is not None:
        added.findings.append(finding_facts(event.finding))
    added.is_news_of_health = added.is_news_of_health or event.type != "monitor"
