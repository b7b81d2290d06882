"""Logs of other tools in a folder of runs, and trainings whose processes record a run each. They are judged and listed
among the runs, one line each with its verdict.

Logs are found by their names, as `check` finds them, and distinguished from other files by reading them. Both are
limited, and the number of omitted files is reported. For a server, a separate thread reads and judges them.
"""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Callable
from dataclasses import replace
from itertools import islice
from pathlib import Path
from typing import NamedTuple

from rlvitals.contract import Headline, NewStatus
from rlvitals.errors import RlvitalsError
from rlvitals.guard import guarded
from rlvitals.importers import is_one_log, is_plainly_other
from rlvitals.importers.base import last_write
from rlvitals.importers.folders import files_in, survey, telling
from rlvitals.importers.registry import importers
from rlvitals.store.files import stamp
from rlvitals.store.layout import RunDir
from rlvitals.views.diagnosis import diagnose
from rlvitals.views.discovery import find_trainings, is_dump, is_joined, leads_outside, links_outside, parts_of
from rlvitals.views.headlines import line_of, run_state
from rlvitals.views.joined_runs import joined_end, joined_status, open_parts
from rlvitals.views.labels import is_labels
from rlvitals.views.logs import LogView, log_at, open_joined, repeats_epochs, status_since
from rlvitals.views.run_tail import Added, ChangeTail

MOST_LOGS = 50
"""Maximum logs that are read for a list. The others are counted."""

LARGEST = 64 * 2**20
"""Maximum bytes of a log that is read for a list."""

AGAIN_SECONDS, AGAIN_TIMES = 5.0, 10
"""A folder is searched again after this many seconds, and at least this many times the duration of the last search."""

FIRST_LOOK = 0.3
"""Seconds before the first search, so that the first page is served before it."""

MOST_FILES = 200
"""Maximum files of a folder log that are checked for changes."""


_MOSTLY_LOGS = frozenset({".csv", ".jsonl", ".log", ".ipynb"})


class FoundFiles(NamedTuple):
    """Files and folders whose names look like logs, and the number of omitted ones."""

    logs: list[Path]
    left_out: int

    @property
    def note(self) -> str:
        """A note on the omitted ones."""
        if not self.left_out:
            return ""
        return f"{self.left_out} more files that may be logs are not shown: 'rlvitals check' reads any of them"


def find_logs(folder: Path) -> FoundFiles:
    """The logs of other tools at or below a folder, found by name, after the trainings whose processes record a run
    each. Files inside a run or a dump belong to it and are left out.
    """
    if RunDir(folder).holds_run:
        return FoundFiles([], 0)
    if is_one_log(folder) or is_joined(folder):
        return FoundFiles([folder], 0)
    joined = [place for place in _trainings_in(folder) if is_joined(place) and stays_in(place, folder)]
    known = importers()
    runs, others = survey(folder, known)
    places = [run.folder for run in runs]
    for place in (folder, *others):
        if not is_dump(place):
            places += [file for file in files_in(place, known) if _may_be_log(file, is_top=place == folder)]
    inside = [place for place in places if not is_joined(place.parent) and stays_in(place, folder)]
    return FoundFiles([*joined, *inside[:MOST_LOGS]], len(inside[MOST_LOGS:]))


def _trainings_in(folder: Path) -> list[Path]:
    try:
        return list(find_trainings(folder))
    except RlvitalsError:  # not a folder
        return []


def _may_be_log(file: Path, *, is_top: bool) -> bool:
    """Judged by its name. Below the top folder, a neutral name counts only with a suffix that is usual for logs,
    because folders contain many JSON files.
    """
    least = 0 if is_top or file.suffix in _MOSTLY_LOGS else 1
    is_likely = telling(file.name) >= least and not is_plainly_other(file.name)
    return is_likely and not is_labels(file) and not repeats_epochs(file)


def stays_in(place: Path, folder: Path) -> bool:
    """Whether no link of a log leads out of the folder."""
    if runs := parts_of(place):
        return not any(leads_outside(run, Path(os.path.realpath(folder))) for run in runs)
    return not links_outside(place, folder)


def _files_of(place: Path) -> list[Path]:
    if not os.path.isdir(place):
        return [place]
    found = (Path(folder) / name for folder, _, names in os.walk(place) for name in sorted(names))
    return list(islice(found, MOST_FILES))


def _read_files(place: Path) -> list[Path]:
    """The files that are read for a list."""
    runs = [RunDir(run) for run in parts_of(place)]
    logs = [log for run in runs for log in (run.train_log, run.eval_log) if log.exists()]
    return logs if runs else _files_of(place)


def state_of(place: Path) -> object:
    """A value that changes when a log changes."""
    if runs := parts_of(place):
        return [(run_state(run), stamp(RunDir(run).rollouts)) for run in runs]
    states = []
    for file in _files_of(place):
        try:
            found = file.stat()
        except OSError:
            continue
        states.append((str(file), found.st_size, found.st_mtime_ns))
    return states


class RawLogView(LogView):
    """A log that may still be written, opened like a run."""

    def __init__(self, place: Path) -> None:
        """Raises NotALog."""
        super().__init__(log_at(place), place)
        self.info = replace(self.info, status=status_since(self.log.changed))


def open_raw(place: Path, within: Path | None = None) -> LogView:
    """Open a log, or a training whose processes record a run each. `within` is the folder in which dumps named by its
    settings must be. Raises NotALog or RunError.
    """
    return open_joined(place, within) or RawLogView(place)


def log_line(view: LogView) -> Headline:
    """A log as one line of a list."""
    judged = diagnose(view)
    parts = [view.log.format, view.status_note] if view.parts else [f"{view.log.format} log"]
    return line_of(view, judged.verdict, judged.reason, "; ".join(filter(None, parts)))


def read_raw(place: Path) -> LogView | None:
    """Open a log; None if it is not a log or too large for a list."""
    try:
        if sum(file.stat().st_size for file in _read_files(place)) > LARGEST:
            return None
        view = open_raw(place)
    except (RlvitalsError, OSError):
        return None
    return view if view.rows or view.metrics else None


class RawLogs:
    """The logs of one served folder, read and judged in the background. Thread-safe."""

    def __init__(self, folder: Path, is_taken: Callable[[Path], bool]) -> None:
        """`is_taken`: whether a path is a run or dump that is already listed."""
        self._folder, self._is_taken = folder, is_taken
        self._lock = threading.Lock()
        self._lines: dict[Path, tuple[object, Headline | None]] = {}
        self._thread: threading.Thread | None = None
        self._due = 0.0
        self.note = ""

    def lines(self) -> dict[Path, Headline]:
        """The logs judged so far. Starts another search if one is due."""
        with self._lock:
            if time.monotonic() >= self._due and (self._thread is None or not self._thread.is_alive()):
                self._thread = threading.Timer(0.0 if self._due else FIRST_LOOK, self._look)
                self._thread.daemon = True
                self._thread.start()
            return {place: line for place, (_, line) in self._lines.items() if line is not None}

    def holds(self, place: Path) -> bool:
        """Whether a path is one of these logs. No other path of the folder is opened as a log."""
        known = self._lines.get(place)
        return known is not None and known[1] is not None

    def wait(self, seconds: float | None = None) -> bool:
        """Wait for the current search, at most `seconds`. Returns whether it has ended."""
        if self._thread is not None:
            self._thread.join(seconds)
        return self._thread is None or not self._thread.is_alive()

    def _look(self) -> None:
        began = time.monotonic()
        with guarded(lambda error: None):  # the folder may disappear during the search
            found = find_logs(self._folder)
            logs = [place for place in found.logs if not self._is_taken(place)]
            for place in logs:
                state = state_of(place)
                before, line = self._lines.get(place, ("", None))
                if before != state or (line is not None and line["status"] == "running"):
                    view = read_raw(place)
                    with self._lock:
                        self._lines[place] = state, None if view is None else log_line(view)
            with self._lock:
                self._lines = {place: self._lines[place] for place in logs}
                self.note = found.note
        self._due = time.monotonic() + max(AGAIN_SECONDS, AGAIN_TIMES * (time.monotonic() - began))


class RawTail(ChangeTail):
    """Detects changes of a log."""

    def __init__(self, path: Path, place: str = "") -> None:
        self._path = path
        super().__init__(place)

    def look(self) -> Added:
        """Whether there are new rows. The page then requests them."""
        return Added(rows=1, updated=time.time()) if self._has_changed() else Added()

    def _state(self) -> object:
        return state_of(self._path)

    def look_at_dumps(self) -> bool:
        return False

    def status(self) -> NewStatus:
        """`running` if it was written recently; for recorded runs, their own status."""
        try:
            if runs := open_parts(self._path):
                status, note = joined_status(runs)
                return {"status": status, "status_note": note, "ended": joined_end(runs)}
            changed = last_write(self._path)
        except (OSError, RlvitalsError):
            changed = 0.0
        if not changed:
            return {"status": "unreadable", "status_note": f"{self._path.name} is gone", "ended": None}
        return {"status": status_since(changed), "status_note": "", "ended": None}
