"""What a folder holds that can be watched: recorded runs and logs of other tools, each in a line with its verdict."""

from __future__ import annotations

from pathlib import Path
from typing import NamedTuple

from rlvitals.contract import Headline
from rlvitals.errors import RlvitalsError
from rlvitals.importers import is_one_log
from rlvitals.store.marks import Marks
from rlvitals.views.discovery import find_trainings, is_run
from rlvitals.views.headlines import Headlines
from rlvitals.views.raw_logs import RawLogs, find_logs


class Line(NamedTuple):
    """A run or log of the list."""

    path: Path
    name: str
    """Its place in the folder."""
    facts: Headline


class FolderList:
    """The lines of one folder. Runs are read from their small files immediately; logs appear as they are judged."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self._headlines = Headlines()
        self._runs: list[Path] = []
        self._logs = RawLogs(folder, lambda path: path in self._runs)

    @property
    def holds_several(self) -> bool:
        """Whether there is something to choose from, by names alone. A run, and a folder that is one log, is none."""
        if not self.folder.is_dir() or is_run(self.folder) or is_one_log(self.folder):
            return False
        return len(self._found_runs()) + len(find_logs(self.folder).logs) > 1

    @property
    def note(self) -> str:
        """The note on logs that are left out."""
        return self._logs.note

    def lines(self, *, wait: bool = False) -> list[Line]:
        """Those that are being written first, then the newest. With `wait`, when every log is judged."""
        self._runs = self._found_runs()
        logs = self._logs.lines()
        if wait:
            self._logs.wait()
            logs = self._logs.lines()
        told = [(path, self._headlines.of(path)) for path in self._runs] + list(logs.items())
        told.sort(key=lambda one: (one[1]["status"] != "running", -(one[1]["updated"] or 0.0), str(one[0])))
        return [Line(path, self._named(path), facts) for path, facts in told]

    def _found_runs(self) -> list[Path]:
        try:
            gone = {self.folder.resolve() / name for name in Marks(self.folder.resolve()).put_away()}
            found = [path for path in find_trainings(self.folder) if is_run(path)]  # the others are among the logs
            return [path for path in found if not gone or path.resolve() not in gone]
        except (RlvitalsError, OSError):  # the folder is gone, or its marks cannot be read
            return []

    def _named(self, path: Path) -> str:
        return path.relative_to(self.folder).as_posix() if path.is_relative_to(self.folder) else str(path)
