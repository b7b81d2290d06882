"""What was added to a run since the last look: rows and findings, from byte offsets, so that anyone can go on from
where somebody else stopped.
"""

from __future__ import annotations

import contextlib
import math
import re
from dataclasses import dataclass, field
from pathlib import Path

from rlvitals.contract import FindingFacts, NewStatus, finding_facts
from rlvitals.errors import RlvitalsError
from rlvitals.store.cards import read_info
from rlvitals.store.findings import event_of, findings_in
from rlvitals.store.layout import RunDir
from rlvitals.store.lines import BadLine, decode
from rlvitals.store.reader import read_blocks
from rlvitals.views.query import open_run

LONGEST_CATCH_UP = 4 * 2**20
"""Bytes of a log read at one look; whoever is further behind gets the newest."""

MOST_VALUES = 5_000
_PLACE = re.compile(r"([0-9]{1,18})-([0-9]{1,18})-([0-9]{1,18})")


@dataclass(slots=True)
class Added:
    """What one look brought."""

    rows: int = 0
    step: int | None = None
    updated: float | None = None
    values: dict[str, float | None] = field(default_factory=dict)
    """The newest value of every metric that has one."""
    findings: list[FindingFacts] = field(default_factory=list)


class RunTail:
    """A run from some place on. `place` is where it is now, as text, for going on later."""

    def __init__(self, path: Path, place: str = "") -> None:
        self._dir = RunDir(path.absolute())
        self._logs = (self._dir.train_log, self._dir.eval_log, self._dir.findings)
        known = _PLACE.fullmatch(place)
        self._offsets = [int(part) for part in known.groups()] if known else [_size(log) for log in self._logs]

    @property
    def place(self) -> str:
        return "-".join(map(str, self._offsets))

    def look(self) -> Added:
        """Whatever is new."""
        added = Added()
        for position, log in enumerate(self._logs):
            for line in self._new_lines(position, log):
                if log == self._dir.findings:
                    _take_finding(added, line)
                else:
                    _take_row(added, line, is_training=log == self._dir.train_log)
        return added

    def status(self) -> NewStatus:
        """Whether the run goes on."""
        try:
            view = open_run(self._dir.root)
            return {"status": view.status, "status_note": view.status_note, "ended": read_info(self._dir).ended}
        except RlvitalsError as error:
            return {"status": "unreadable", "status_note": str(error), "ended": None}

    def _new_lines(self, position: int, log: Path) -> list[bytes]:
        size, start = _size(log), self._offsets[position]
        if size < start:  # another run in the same place, or an archive now
            start = self._offsets[position] = 0
        if size == start:
            return []
        if size - start > LONGEST_CATCH_UP:
            start = size - LONGEST_CATCH_UP  # in the middle of a line, which is then no row and is passed over
        found: list[bytes] = []
        with contextlib.suppress(RlvitalsError, OSError):  # `status` says that it cannot be read
            for lines, after in read_blocks(log, start, size):
                found += lines
                self._offsets[position] = after
        return found


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
            added.values[name] = number if math.isfinite(number) else None


def _take_finding(added: Added, line: bytes) -> None:
    if (event := event_of(line)) is not None:
        added.findings += [finding_facts(found) for _, found in findings_in([event])]


def _size(log: Path) -> int:
    try:
        return log.stat().st_size
    except OSError:
        return 0
