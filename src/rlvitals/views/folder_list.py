"""The runs and logs in a folder that can be watched, one line each with its verdict."""

from __future__ import annotations

from pathlib import Path
from typing import NamedTuple

from rlvitals.contract import Headline
from rlvitals.errors import RlvitalsError
from rlvitals.importers import is_one_log
from rlvitals.store.marks import FolderMarks
from rlvitals.views.discovery import find_trainings, is_run
from rlvitals.views.headlines import Headlines
from rlvitals.views.raw_logs import RawLogs, find_logs


def recorded_runs(folder: Path, *, hidden: bool = False) -> list[Path]:
    """The recorded runs at or below a folder. With `hidden`, those that were archived or deleted in the dashboard are
    included. A training whose processes record a run each is listed with the logs.
    """
    found = [path for path in find_trainings(folder) if is_run(path)]
    root = folder.resolve()
    gone = set() if hidden else {root / name for name in FolderMarks(root).put_away()}
    return [path for path in found if not gone or path.resolve() not in gone]


class ListLine(NamedTuple):
    """A run or log in the list."""

    path: Path
    name: str
    """Its path relative to the folder."""
    facts: Headline


class FolderList:
    """The lines of one folder. Runs are read from their small files immediately. Logs appear after they are judged."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self._headlines = Headlines()
        self._runs: list[Path] = []
        self._logs = RawLogs(folder, lambda path: path in self._runs)

    @property
    def holds_several(self) -> bool:
        """Whether the folder has more than one run or log, judged by names only. False for a run and for a folder that
        is one log.
        """
        if not self.folder.is_dir() or is_run(self.folder) or is_one_log(self.folder):
            return False
        return len(self._found_runs()) + len(find_logs(self.folder).logs) > 1

    @property
    def note(self) -> str:
        """A note on the logs that are left out."""
        return self._logs.note

    def lines(self, *, wait: bool = False) -> list[ListLine]:
        """The lines: first those that are being written, then the newest. With `wait`, returns after every log is
        judged.
        """
        self._runs = self._found_runs()
        logs = self._logs.lines()
        if wait:
            self._logs.wait()
            logs = self._logs.lines()
        listed = [(path, self._headlines.of(path)) for path in self._runs] + list(logs.items())
        listed.sort(key=lambda one: (one[1]["status"] != "running", -(one[1]["updated"] or 0.0), str(one[0])))
        return [ListLine(path, self._named(path), facts) for path, facts in listed]

    def _found_runs(self) -> list[Path]:
        try:
            return recorded_runs(self.folder)
        except (RlvitalsError, OSError):  # the folder is missing, or its marks cannot be read
            return []

    def _named(self, path: Path) -> str:
        return path.relative_to(self.folder).as_posix() if path.is_relative_to(self.folder) else str(path)
