"""The folder that is served: which runs may be read, and the views of those that are looked at.

Nothing outside the folder is ever opened: a run's path is resolved first, and a run that holds a symbolic link to the
outside is refused whole.
"""

from __future__ import annotations

import errno
import math
import os
import threading
import time
from collections import OrderedDict
from collections.abc import Callable, Mapping
from itertools import islice
from pathlib import Path
from typing import Any, TypeVar, cast

from rlvitals.contract import Headline, ListedRun, Runs
from rlvitals.errors import RunNotFound
from rlvitals.guard import guarded
from rlvitals.records import Finding
from rlvitals.store.files import unreadable
from rlvitals.store.layout import RunDir, archive_of
from rlvitals.views.diagnosis import Diagnosis, diagnose, is_on_record
from rlvitals.views.discovery import find_runs
from rlvitals.views.headlines import Headlines, stamp, unreadable_line
from rlvitals.views.run import RunView, open_run
from rlvitals.views.tree import STREAMS

T = TypeVar("T", bound=Mapping[str, object])

MOST_OPEN = 12
"""Views that are kept."""

MOST_BYTES = 256 * 2**20
"""Columns that all views together may hold before the one that was not looked at for longest is let go."""

FRESH_SECONDS = 5.0
"""A run that is being written is looked at anew after so long: whether its writer lives is not in its files."""

JUDGING_PAUSE = 20
"""A log that is judged while it grows is judged again after so many times as long as judging took."""

PATIENCE = 0.5
"""Seconds a page waits for a diagnosis before it is shown without one."""

LIST_SECONDS = 1.0
"""How long a list of the runs in the folder is good for."""

MOST_RUNS = 5_000


class Judging:
    """The doctor at work on a run, in a thread of its own: a long log that nobody watched takes seconds."""

    def __init__(self, view: RunView) -> None:
        self.diagnosis: Diagnosis | None = None
        self.good_until = math.inf
        """How long it is good for when rows are added meanwhile."""
        self._view = view
        self._error: Exception | None = None
        self._thread = threading.Thread(target=self._judge, name="rlvitals-judge", daemon=True)
        self._thread.start()

    def wait(self) -> Diagnosis:
        """The diagnosis; after PATIENCE that there is none yet."""
        self._thread.join(PATIENCE)
        if self._error is not None:
            raise self._error
        rows = f"{self._view.rows:,} rows are being judged; this page will tell"
        return self.diagnosis or Diagnosis("cannot judge", rows, [], is_pending=True)

    def _judge(self) -> None:
        began = time.monotonic()
        with guarded(self._fail):
            found = diagnose(self._view)
            pause = 0.0 if is_on_record(self._view) else JUDGING_PAUSE * (time.monotonic() - began)
            self.good_until = time.monotonic() + pause
            self.diagnosis = found

    def _fail(self, error: Exception) -> None:
        self._error = error


class Open:
    """One run as it was opened, and what was worked out of it."""

    def __init__(self, state: object, view: RunView) -> None:
        self.state = state
        self.view = view
        self.opened = time.monotonic()
        self._judging: Judging | None = None
        self._answers: dict[str, Any] = {}
        self._locks: dict[str, threading.Lock] = {}

    @property
    def diagnosis(self) -> Diagnosis | None:
        """What the doctor said, if he has been asked and has answered."""
        return None if self._judging is None else self._judging.diagnosis

    def diagnosed(self) -> Diagnosis:
        """What the doctor says of it, worked out once."""
        with self._lock_of("the diagnosis"):
            if self._judging is None:
                self._judging = Judging(self.view)
        return self._judging.wait()

    def answer(self, name: str, make: Callable[[Open], T]) -> T:
        """Facts of some name: several of a page's questions come at once, and only one is to do the work. What is said
        before the doctor has come to an end is not kept.
        """
        with self._lock_of(name):
            if (known := self._answers.get(name)) is not None:
                return cast(T, known)
            made = make(self)
            if not made.get("judging"):
                self._answers[name] = made
            return made

    def take_over(self, before: Open) -> None:
        """Keep what was said of the same rows; of a log that grows and is judged row by row, also a little longer."""
        judging = before._judging
        if judging is not None and (before.state == self.state or time.monotonic() < judging.good_until):
            self._judging = judging

    def is_current(self, state: object) -> bool:
        """Whether it need not be opened anew: for a row, or for a writer that may have died."""
        is_old = self.view.info.status == "running" and time.monotonic() - self.opened > FRESH_SECONDS
        return self.state == state and not is_old

    def _lock_of(self, name: str) -> threading.Lock:
        return self._locks.setdefault(name, threading.Lock())


class Folder:
    """The runs below one folder. Safe to ask from several threads."""

    def __init__(self, root: str | os.PathLike[str]) -> None:
        self.root = Path(root).resolve()
        if not self.root.is_dir():
            raise RunNotFound(f"{root} is no directory")
        self._lock = threading.Lock()
        self._listing = threading.Lock()
        self._opening: dict[Path, threading.Lock] = {}
        self._open: OrderedDict[Path, Open] = OrderedDict()
        self._headlines = Headlines()
        self._listed: list[Path] = []
        self._list_until = 0.0

    @property
    def name(self) -> str:
        return self.root.name

    def runs(self) -> Runs:
        """What `/api/runs` answers: the newest first."""
        with self._listing:
            told: list[ListedRun] = [{**self._headline(path), "run": self._relative(path)} for path in self._paths()]
        for line in told:
            path = self.root / line["run"]
            known = self._open.get(path)
            if known is not None and known.diagnosis is not None and known.state == _state(path):
                line["verdict"], line["reason"] = known.diagnosis.verdict, known.diagnosis.reason  # as on its own page
        return {"folder": self.name, "runs": sorted(told, key=lambda line: -(line["updated"] or 0.0))}

    def place(self, run: str) -> Path:
        """The directory of a run by its path below the folder. Raises RunNotFound for anything that is not one."""
        refusal = RunNotFound(f"there is no run {run[:200]!r} in this folder")
        if "\0" in run or run.startswith("/") or ".." in Path(run).parts:
            raise refusal
        try:
            path = (self.root / run).resolve()
            if not path.is_relative_to(self.root) or not os.path.isdir(path):
                raise refusal
            if not RunDir(path).holds_run or leads_outside(path, self.root):
                raise refusal
        except PermissionError as error:
            raise unreadable(path, error) from error
        except (OSError, ValueError, RuntimeError):
            raise refusal from None
        return path

    def view(self, run: str) -> RunView:
        """A run as it is now. Raises RunNotFound or RunUnreadable."""
        return self._opened(self.place(run)).view

    def remembered(self, run: str, answer: str, make: Callable[[Open], T]) -> T:
        """What was worked out of a run by name, as long as its files are as they were."""
        return self._opened(self.place(run)).answer(answer, make)

    def known_findings(self, run: str) -> list[Finding]:
        """What was said of a run, as far as it is known without judging rows."""
        opened = self._opened(self.place(run))
        return opened.view.findings if opened.diagnosis is None else opened.diagnosis.findings

    def _opened(self, path: Path) -> Open:
        with self._lock:
            lock = self._opening.setdefault(path, threading.Lock())
        with lock:
            state = _state(path)
            known = self._open.get(path)
            if known is None or not known.is_current(state):
                fresh = Open(state, open_run(path))
                if known is not None:
                    fresh.take_over(known)
                for stream in STREAMS:
                    fresh.view.columns(stream)  # reads the logs, once for all who ask
                known = fresh
            with self._lock:
                self._open[path] = known
                self._open.move_to_end(path)
                self._let_go()
            return known

    def _let_go(self) -> None:
        """Keep the views that were asked for last, as many as there is room for, and that one in any case."""
        held = {path: opened.view.held_bytes for path, opened in self._open.items()}
        while len(held) > 1 and (len(held) > MOST_OPEN or sum(held.values()) > MOST_BYTES):
            gone = next(iter(held))
            del held[gone], self._open[gone]
            self._opening.pop(gone, None)

    def _paths(self) -> list[Path]:
        if time.monotonic() >= self._list_until:
            began = time.monotonic()
            self._listed = [path for path in islice(find_runs(self.root), MOST_RUNS) if not self._is_refused(path)]
            ended = time.monotonic()
            # A home directory takes long to search: most of the time is not to go into searching it.
            self._list_until = ended + max(LIST_SECONDS, 10 * (ended - began))
        return self._listed

    def _is_refused(self, path: Path) -> bool:
        try:
            return leads_outside(path, self.root, deep=False)
        except OSError:  # a line of the list will say so
            return False

    def _headline(self, path: Path) -> Headline:
        try:
            leads_outside(path, self.root, deep=False)
        except OSError as error:  # what cannot be looked through is not opened
            return unreadable_line(path, str(unreadable(path, error)))
        return self._headlines.of(path)

    def _relative(self, path: Path) -> str:
        return path.relative_to(self.root).as_posix()


def leads_outside(run: Path, root: Path, *, deep: bool = True) -> bool:
    """Whether some file a run is read from is a symbolic link that leaves the folder. Raises OSError where its folders
    cannot be looked through. A link that leads nowhere or to itself leaves nothing: opening it fails.
    """
    run_dir = RunDir(run)
    folders = [run, run_dir.logs]
    if deep:
        folders += [run_dir.ranks, run_dir.rollouts, run_dir.eval_logs, run_dir.eval_rollouts, run_dir.epochs.folder]
        folders += [run_dir.sinks, run_dir.index]
    for folder in folders:
        try:
            with os.scandir(folder) as entries:
                for entry in entries:
                    if entry.is_symlink() and not Path(os.path.realpath(entry.path)).is_relative_to(root):
                        return True
        except (FileNotFoundError, NotADirectoryError):
            continue
        except OSError as error:
            if error.errno != errno.ELOOP:
                raise
    return False


def _state(path: Path) -> tuple[object, ...]:
    """What changes when a run is to be read anew."""
    run_dir = RunDir(path)
    logs = [run_dir.train_log, run_dir.eval_log]
    files = [run_dir.info, run_dir.config, run_dir.attempts, run_dir.findings, run_dir.ranks, run_dir.lock, *logs]
    return tuple(stamp(file) for file in [*files, *map(archive_of, logs), *_rank_logs(run_dir)])


def _rank_logs(run_dir: RunDir) -> list[Path]:
    return [run_dir.log(stream, rank) for stream in STREAMS for rank in run_dir.rank_numbers(stream)]
