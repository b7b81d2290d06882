"""One line for every run below a folder, at low cost: from small files and the ends of the logs, without reading
columns.

`rows` are the training rows of the living line and `metrics` counts all names, as on the run's own page. A long log
that was never opened is not read for a list of hundreds of runs, so its metrics are not counted.
"""

from __future__ import annotations

import math
import os
import time
from collections.abc import Iterable
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np

from rlvitals.contract import Headline
from rlvitals.errors import RlvitalsError
from rlvitals.health.history import NOT_MONITORED, recorded_verdict, was_monitored_before
from rlvitals.records import HealthEvent, Row, RunInfo, Verdict
from rlvitals.store.archive import open_log
from rlvitals.store.files import stamp
from rlvitals.store.index import indexed_lines
from rlvitals.store.layout import STREAMS, RunDir, archive_of
from rlvitals.store.reader import last_rows
from rlvitals.views.run import RunView, open_run

END_ROWS = 4
"""Rows that are read at either end of a log."""

FRESH_SECONDS = 5.0
"""A running run is read again after this time, because its files do not show whether its writer is alive."""

SHORT_LOG = 256 * 1024
"""Maximum bytes of a log that is read completely for a list."""

COUNTING_SECONDS = 0.03
"""Time that one list may spend on counting metrics, which reads whole logs. The next list continues the count."""

NEWLINE = ord("\n")
_BLOCK = 1 << 18


@dataclass(slots=True)
class Counted:
    """The number of lines of a log at a given size in bytes."""

    inode: int = 0
    size: int = 0
    lines: int = 0


@dataclass(slots=True)
class Headlines:
    """Caches the number of lines of each log, and the headline of each run until its files change."""

    _counted: dict[Path, Counted] = field(default_factory=dict)
    _lines: dict[Path, tuple[object, Headline, float]] = field(default_factory=dict)
    _uncounted: set[Path] = field(default_factory=set)
    """Runs whose metrics could not be counted in time."""
    _counting_time: float = math.inf

    def begin(self) -> None:
        """Start a list of many runs, which limits the time for counting metrics."""
        self._counting_time = COUNTING_SECONDS

    def of(self, path: Path) -> Headline:
        """One run's line. For an unreadable run, the note has the reason."""
        run_dir = RunDir(path)
        state = _state(run_dir)
        known = self._lines.get(path)
        if known is not None and known[0] == state and _is_fresh(known[1], known[2]):
            if path in self._uncounted:
                known[1]["metrics"] = self._metrics(run_dir)
            return known[1]
        try:
            line = self._read_line(run_dir)
        except (RlvitalsError, OSError) as error:
            line = unreadable_line(path, str(error))
        self._lines[path] = (state, line, time.monotonic() + FRESH_SECONDS)
        return line

    def _metrics(self, run_dir: RunDir, view: RunView | None = None) -> int | None:
        self._uncounted.discard(run_dir.root)
        if not _is_quick(run_dir):
            return None
        if self._counting_time <= 0:
            self._uncounted.add(run_dir.root)
            return None
        began = time.monotonic()
        try:
            return len((view or open_run(run_dir.root)).metrics)
        except (RlvitalsError, OSError):  # the run's page shows the reason
            return None
        finally:
            self._counting_time -= time.monotonic() - began

    def _read_line(self, run_dir: RunDir) -> Headline:
        view = open_run(run_dir.root)
        info = view.info
        ends = last_rows(run_dir.train_log, END_ROWS)
        is_resumed = len(view.attempts) > 1  # some rows and events may belong to abandoned attempts
        rows = view.rows if is_resumed else self._rows(run_dir)
        last_step = view.last_step if is_resumed else max((row.step for row in ends), default=None)
        recorded, damage = view.events_and_damage()
        events = view.health_events if is_resumed else view.with_stop(recorded, last_step)
        attempts = view.living_attempts if is_resumed else {row.attempt for row in ends}
        verdict, reason = _verdict(view, events, attempts, rows, last_step)
        updated = last_sign(info, ends)
        return {
            "name": info.name,
            "algorithm": view.algorithm,
            "framework": view.framework,
            "status": view.status,
            "status_note": "; ".join([*filter(None, [view.status_note]), *damage]),
            "verdict": verdict,
            "reason": reason,
            "started": info.created,
            "updated": updated,
            "last_step": last_step,
            "total_steps": info.total_steps,
            "rows": rows,
            "metrics": self._metrics(run_dir, view),
            "host": info.host or None,
            "seconds": lasted(info, updated),
        }

    def _rows(self, run_dir: RunDir) -> int:
        """The number of lines of a log. Reads only the part that neither the index nor an earlier call has counted."""
        log = run_dir.train_log
        try:
            with open_log(log) as file:
                place = log if os.path.exists(log) else archive_of(log)
                inode = place.stat().st_ino
                known = self._counted.get(log, Counted())
                end = file.seek(0, 2)
                if known.inode != inode or known.size > end:
                    lines, size = indexed_lines(log, run_dir.index)
                    known = Counted(inode, size, lines)
                file.seek(known.size)
                while block := file.read(_BLOCK):
                    known.lines += int(np.count_nonzero(np.frombuffer(block, np.uint8) == NEWLINE))
                    known.size += len(block)
        except OSError:
            return 0
        self._counted[log] = known
        return known.lines


def last_sign(info: RunInfo, rows: Iterable[Row]) -> float:
    """When a run was last written, by its card and its newest rows, which may be stamped by a clock that is ahead."""
    return min(max([info.updated, *(row.timestamp for row in rows if math.isfinite(row.timestamp))]), time.time())


def lasted(info: RunInfo, last: float) -> float:
    """Seconds from a run's start to its end, or to its last sign of life."""
    return round(max((info.ended or last) - info.created, 0.0), 3)


def _is_fresh(line: Headline, until: float) -> bool:
    return line["status"] != "running" or time.monotonic() < until


def _is_quick(run_dir: RunDir) -> bool:
    """Whether all names of a run can be read quickly: its logs are short, or the run was opened before."""
    return os.path.isdir(run_dir.index) or all(
        (found := stamp(log)) is None or found[1] <= SHORT_LOG for log in (run_dir.train_log, run_dir.eval_log)
    )


def _verdict(
    view: RunView, events: list[HealthEvent], attempts: set[int], rows: int, last_step: int | None
) -> tuple[Verdict, str]:
    """The verdict from recorded events only. No row is judged for a list."""
    found = recorded_verdict(
        events, attempts, rows, last_step, was_monitored=lambda: was_monitored_before(view.info, lambda: view.config)
    )
    return found or ("cannot judge", f"{NOT_MONITORED}; open the run to check it")


def _state(run_dir: RunDir) -> object:
    files = (run_dir.info, run_dir.train_log, archive_of(run_dir.train_log), run_dir.findings, run_dir.attempts)
    return tuple(map(stamp, files))


def run_state(path: Path) -> tuple[object, ...]:
    """A value that changes when a run must be read again."""
    run_dir = RunDir(path)
    logs = [run_dir.train_log, run_dir.eval_log]
    beside = [run_dir.log("distributions"), run_dir.log("images")]
    files = [
        *beside,
        run_dir.info,
        run_dir.config,
        run_dir.attempts,
        run_dir.findings,
        run_dir.ranks,
        run_dir.lock,
        *logs,
    ]
    return tuple(stamp(file) for file in [*files, *map(archive_of, logs), *_rank_logs(run_dir)])


def _rank_logs(run_dir: RunDir) -> list[Path]:
    return [run_dir.log(stream, rank) for stream in STREAMS for rank in run_dir.rank_numbers(stream)]


def line_of(view: RunView, verdict: Verdict, reason: str, note: str = "") -> Headline:
    """The line of a log or a dump that was read completely. It has a start and a duration only if rlvitals recorded
    it, as it does a training whose processes record a run each.
    """
    info, is_ours = view.info, bool(view.parts)
    updated = last_sign(info, view.last_rows(1))
    return {
        "name": info.name, "status": view.status, "status_note": note, "verdict": verdict, "reason": reason,
        "algorithm": view.algorithm, "framework": view.framework, "started": info.created if is_ours else None,
        "updated": updated, "last_step": view.last_step, "total_steps": info.total_steps, "rows": view.rows,
        "metrics": len(view.metrics), "host": info.host or None, "seconds": lasted(info, updated) if is_ours else None,
    }  # fmt: skip


def unreadable_line(path: Path, reason: str) -> Headline:
    """The line of a run that cannot be read."""
    return {
        "name": path.name, "status": "unreadable", "status_note": reason, "verdict": "cannot judge", "reason": reason,
        "algorithm": None, "framework": None, "started": None, "updated": None, "last_step": None, "total_steps": None,
        "rows": None, "metrics": None, "host": None, "seconds": None,
    }  # fmt: skip
