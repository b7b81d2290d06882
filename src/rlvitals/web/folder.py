"""The served folder: which runs, dumps and logs may be read, and the cached views of those that were opened.

Nothing outside the folder is ever opened. The path of a run is resolved first, and a run that contains a symbolic link
to the outside is refused.
"""

from __future__ import annotations

import math
import os
import threading
import time
from collections import OrderedDict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import partial
from itertools import islice
from pathlib import Path
from typing import Any, NamedTuple, TypeVar, cast

from rlvitals.contract import Headline, ListedRun, Runs, Table, TableRun
from rlvitals.errors import RlvitalsError, RunNotFound
from rlvitals.guard import guarded
from rlvitals.records import Finding
from rlvitals.store.files import unreadable
from rlvitals.store.layout import STREAMS, RunDir
from rlvitals.store.marks import FolderMarks
from rlvitals.views.diagnosis import Diagnosis, diagnose, is_on_record
from rlvitals.views.discovery import find_places, is_dump, is_joined, leads_outside, links_outside, parts_of
from rlvitals.views.dumps import DumpTail, DumpView, Split, dump_line, splits_of
from rlvitals.views.headlines import Headlines, run_state, unreadable_line
from rlvitals.views.raw_logs import RawLogs, RawTail, open_raw, state_of
from rlvitals.views.rollouts import DumpedRollouts
from rlvitals.views.run import RunView, open_run
from rlvitals.views.run_table import CellSource, RunTable
from rlvitals.views.run_tail import RunTail

T = TypeVar("T", bound=Mapping[str, object])

VALIDATION = "#validation"
"""Suffix of the list entry that shows a dump's validation rollouts."""

MOST_OPEN = 48
"""Maximum number of cached views: enough for one comparison and a few more."""

MOST_BYTES = 256 * 2**20
"""Maximum size of the columns in all cached views. Above it, the least recently used view is dropped."""

FRESH_SECONDS = 5.0
"""Seconds after which a running run is checked again. Its files do not show whether the writing process is alive."""

JUDGING_PAUSE = 20
"""A growing log is judged again after this many times the duration of the last judging."""

ANSWERS_FIRST = 1.0
"""Maximum number of seconds that judging waits for pending answers before it reads its next rows."""

PATIENCE = 0.5
"""Seconds a page waits for a diagnosis before it is shown without one."""

LIST_SECONDS = 1.0
"""Seconds for which a list of the folder's runs is reused."""

MOST_RUNS = 5_000


class Served(NamedTuple):
    """One entry of the list: a run's directory, one split of a dump, or a log. A log is a log of another tool, or a
    training with one run per process.
    """

    path: Path
    split: Split | None = None
    is_log: bool = False

    @property
    def is_run(self) -> bool:
        return self.split is None and not self.is_log

    @property
    def state(self) -> object:
        """A value that changes when the entry must be read again."""
        if self.is_log:
            return state_of(self.path)
        return run_state(self.path) if self.split is None else DumpedRollouts(self.path, self.split).state

    def open(self, root: Path) -> RunView:
        if self.split is not None:
            return DumpView(self.path, self.split)
        if self.is_log:
            return open_raw(self.path, root)
        view = open_run(self.path)
        view.dumps_within = root
        return view

    def tail(self, place: str, root: Path) -> RunTail | DumpTail | RawTail:
        """Reads data that is added to the entry after now, or after a given position."""
        if self.is_log:
            return RawTail(self.path, place)
        if self.split is not None:
            return DumpTail(self.path, self.split, place)
        view = self.open(root)
        return RunTail(self.path, place, view.linked_rollouts)


class Turns:
    """Gives answers priority over judging. Otherwise judging would interrupt an answer hundreds of times, for 5 ms
    each.
    """

    def __init__(self) -> None:
        self._answers = 0
        self._changed = threading.Condition()

    @contextmanager
    def answering(self) -> Iterator[None]:
        """Marks that an answer is being computed."""
        self._count(1)
        try:
            yield
        finally:
            self._count(-1)

    @contextmanager
    def waiting(self) -> Iterator[None]:
        """Marks that an answer is waiting for the judging itself."""
        self._count(-1)
        try:
            yield
        finally:
            self._count(1)

    def let_pass(self) -> None:
        """Wait until no answer is being computed, at most ANSWERS_FIRST seconds."""
        with self._changed:
            self._changed.wait_for(lambda: self._answers <= 0, ANSWERS_FIRST)

    def _count(self, change: int) -> None:
        with self._changed:
            self._answers += change
            self._changed.notify_all()


class Judging:
    """Judges a run in a separate thread, because a long log that was not monitored takes seconds."""

    def __init__(self, view: RunView, turns: Turns) -> None:
        self.diagnosis: Diagnosis | None = None
        self.good_until = math.inf
        """Until when the result is reused although rows were added."""
        self._view, self._turns = view, turns
        self._error: Exception | None = None
        self._thread = threading.Thread(target=self._judge, name="rlvitals-judge", daemon=True)
        self._thread.start()

    def wait(self) -> Diagnosis:
        """The diagnosis; if it is not ready after PATIENCE seconds, a pending one."""
        with self._turns.waiting():
            self._thread.join(PATIENCE)
        if self._error is not None:
            raise self._error
        rows = f"{self._view.rows:,} rows are being judged; the page updates when this is done"
        return self.diagnosis or Diagnosis("cannot judge", rows, [], is_pending=True)

    def _judge(self) -> None:
        began = time.monotonic()
        with guarded(self._fail):
            found = diagnose(self._view, self._turns.let_pass)
            pause = 0.0 if is_on_record(self._view) else JUDGING_PAUSE * (time.monotonic() - began)
            self.good_until = time.monotonic() + pause
            self.diagnosis = found

    def _fail(self, error: Exception) -> None:
        self._error = error


class Open:
    """An opened run and the results computed from it."""

    def __init__(self, state: object, view: RunView, turns: Turns) -> None:
        self.state = state
        self.view = view
        self._turns = turns
        self.opened = time.monotonic()
        self._judging: Judging | None = None
        self._answers: dict[str, Any] = {}
        self._locks: dict[str, threading.Lock] = {}

    @property
    def diagnosis(self) -> Diagnosis | None:
        """The diagnosis, if it was requested and is ready."""
        return None if self._judging is None else self._judging.diagnosis

    def diagnosed(self) -> Diagnosis:
        """The diagnosis of the run, computed once."""
        with self._lock_of("the diagnosis"):
            if self._judging is None:
                self._judging = Judging(self.view, self._turns)
        return self._judging.wait()

    def answer(self, name: str, make: Callable[[Open], T]) -> T:
        """Facts under a name, computed once even if several requests of a page need them at the same time. Results made
        before the diagnosis is complete are not cached.
        """
        with self._lock_of(name):
            if (known := self._answers.get(name)) is not None:
                return cast(T, known)
            made = make(self)
            if not made.get("judging"):
                self._answers[name] = made
            return made

    def take_over(self, before: Open) -> None:
        """Keep the diagnosis of the same rows. For a growing log, keep it until `good_until`."""
        judging = before._judging
        if judging is not None and (before.state == self.state or time.monotonic() < judging.good_until):
            self._judging = judging

    def is_current(self, state: object) -> bool:
        """Whether the run need not be reopened: no new rows, and its process was checked recently."""
        is_old = self.view.info.status == "running" and time.monotonic() - self.opened > FRESH_SECONDS
        return self.state == state and not is_old

    def _lock_of(self, name: str) -> threading.Lock:
        return self._locks.setdefault(name, threading.Lock())


class Folder:
    """The runs below one folder. Safe to use from several threads."""

    def __init__(self, root: str | os.PathLike[str]) -> None:
        self.root = Path(root).resolve()
        if not self.root.is_dir():
            raise RunNotFound(f"{root} is not a directory")
        self.turns = Turns()
        self._lock = threading.Lock()
        self._listing = threading.Lock()
        self._reading = threading.Lock()
        self._opening: dict[Served, threading.Lock] = {}
        self._open: OrderedDict[Served, Open] = OrderedDict()
        self._headlines = Headlines()
        self._listed: list[Served] = []
        self._dump_lines: dict[Served, tuple[object, Headline]] = {}
        self._list_until = 0.0
        self._table = RunTable()
        self.marks = FolderMarks(self.root)
        self.is_editable = False
        """Whether pages may change the marks."""
        self.logs = RawLogs(self.root, lambda path: any(entry.path == path for entry in self._listed))
        """The logs of other tools, which appear in the list as they are judged."""

    @property
    def name(self) -> str:
        return self.root.name

    def runs(self, *, hidden: bool = False) -> Runs:
        """The response of `/api/runs`, newest first. With `hidden`, archived and deleted runs are included."""
        gone = set() if hidden else self.marks.put_away()
        with self._listing:
            entries = [entry for entry in self._entries() if not gone or self._named(entry) not in gone]
            self._headlines.begin()
            lines: list[ListedRun] = [{**self._headline(entry), "run": self._named(entry)} for entry in entries]
        for entry, line in zip(entries, lines, strict=True):
            known = self._open.get(entry)
            if known is not None and known.diagnosis is not None and known.state == entry.state:
                line["verdict"], line["reason"] = known.diagnosis.verdict, known.diagnosis.reason  # as on its own page
                line["rows"], line["metrics"] = known.view.rows, len(known.view.metrics)
        logs: list[ListedRun] = [{**line, "run": self._named(Served(path))} for path, line in self.logs.lines().items()]
        lines += [line for line in logs if line["run"] not in gone]
        return {
            "folder": self.name,
            "runs": sorted(lines, key=lambda line: -(line["updated"] or 0.0)),
            "note": self.logs.note,
        }

    def table(self, columns: Sequence[str], *, hidden: bool = False, choices: bool = False) -> Table:
        """The response of `/api/table`."""
        listed = self.runs(hidden=hidden)
        cells: dict[str, list[Any]] = {}
        pending, offered = 0, None
        if columns or choices:  # the list alone needs none of the logs
            sources = self._sources(line["run"] for line in listed["runs"] if line["status"] != "unreadable")
            with self._reading:
                cells, pending = self._table.cells(sources, columns)
                offered = self._table.choices(sources) if choices else None
        nothing = [None] * len(columns)
        runs: list[TableRun] = [{**line, "cells": cells.get(line["run"], nothing)} for line in listed["runs"]]
        return {
            "folder": self.name, "columns": list(columns), "runs": runs, "pending": pending, "choices": offered,
            "note": listed["note"],
        }  # fmt: skip

    def cells(
        self, runs: Sequence[str], columns: Sequence[str]
    ) -> tuple[dict[str, list[Any]], dict[str, dict[str, Any]]]:
        """Values and settings of a sweep's runs. Waits until all are read. Raises RunNotFound."""
        sources = self._sources([self.listed_name(run) for run in runs])
        with self._reading:
            return self._table.cells(sources, columns, math.inf)[0], self._table.settings(sources)

    def _sources(self, runs: Iterable[str]) -> dict[str, CellSource]:
        """The sources of the listed runs among these."""
        logs = [Served(path, is_log=True) for path in self.logs.lines()]
        entries = {self._named(entry): entry for entry in [*self._entries(), *logs]}
        return {
            run: CellSource(entry.path, partial(self._whole, entry), None if entry.is_run else entry.state)
            for run in runs
            if (entry := entries.get(run)) is not None
        }

    def recorded(self) -> Iterator[RunView]:
        """The recorded runs that can be read, opened one by one."""
        for entry in self._entries():
            if entry.is_run:
                try:
                    yield self._whole(entry)
                except (RlvitalsError, OSError):
                    continue

    def recorded_places(self) -> dict[str, Path]:
        """The directories of the recorded runs by their names in the list, without archived and deleted runs."""
        gone = self.marks.put_away()
        with self._listing:
            places = {self._named(entry): entry.path for entry in self._entries() if entry.is_run}
        return {run: path for run, path in places.items() if run not in gone}

    def shown(self, path: str) -> str:
        """A path relative to the folder, or an empty string if it is outside."""
        try:
            return Path(path).resolve().relative_to(self.root).as_posix() if path else ""
        except (OSError, ValueError, RuntimeError):
            return ""

    def _whole(self, entry: Served) -> RunView:
        """Open a listed run to read all of it. The list checked only the links of its small files."""
        runs = [entry.path] if entry.is_run else parts_of(entry.path) if entry.is_log else []
        if any(leads_outside(run, self.root) for run in runs):
            raise RunNotFound(f"{entry.path.name} holds a link that leaves the folder")
        return entry.open(self.root)

    def place(self, run: str) -> Path:
        """The directory of a run or dump. Raises RunNotFound for anything that is not one."""
        return self.served(run).path

    def served(self, run: str) -> Served:
        """A run or dump by its path below the folder. Raises RunNotFound for anything that is not one."""
        refusal = RunNotFound(f"there is no run {run[:200]!r} in this folder")
        if _leads_away(run):
            raise refusal
        try:
            path = (self.root / run.removesuffix(VALIDATION)).resolve()
            if self.logs.holds(path) and path.is_relative_to(self.root):
                if any(leads_outside(part, self.root) for part in parts_of(path)):
                    raise refusal
                return Served(path, is_log=True)
            if not path.is_relative_to(self.root) or not os.path.isdir(path):
                raise refusal
            if not RunDir(path).holds_run:
                return self._dump(path, run, refusal)
            if run.endswith(VALIDATION) or leads_outside(path, self.root):
                raise refusal
        except PermissionError as error:
            raise unreadable(path, error) from error
        except (OSError, ValueError, RuntimeError):
            raise refusal from None
        return Served(path)

    def any_place(self, path: str) -> Path:
        """Any file or folder below the served folder, listed or not, to be read as a log. Raises RunNotFound if there
        is none, or if it is or contains a link that leaves the folder.
        """
        refusal = RunNotFound(f"there is nothing at {path[:200]!r} in this folder; the path is relative to it")
        if _leads_away(path):
            raise refusal
        try:
            place = (self.root / path).resolve()
            if not place.is_relative_to(self.root) or not place.exists():
                raise refusal
        except (OSError, ValueError, RuntimeError):
            raise refusal from None
        if links_outside(place, self.root):
            raise RunNotFound(f"{path[:200]!r} holds a link that leaves the folder, or too many files to look at")
        return place

    def _dump(self, path: Path, run: str, refusal: RunNotFound) -> Served:
        if not is_dump(path):
            raise refusal
        splits = splits_of(path)
        wanted: Split = "validation" if run.endswith(VALIDATION) or splits == ["validation"] else "train"
        if wanted not in splits:
            raise refusal
        return Served(path, wanted)

    def listed_name(self, run: str) -> str:
        """The name under which a run is listed, for any path of it. Raises RunNotFound."""
        return self._named(self.served(run))

    def tail(self, run: str, place: str) -> RunTail | DumpTail | RawTail:
        """Reads data that is added to a run, dump or log after now, or after a given position."""
        return self.served(run).tail(place, self.root)

    def view(self, run: str) -> RunView:
        """A run as it is now. Raises RunNotFound or RunUnreadable."""
        return self._opened(self.served(run)).view

    def remembered(self, run: str, answer: str, make: Callable[[Open], T]) -> T:
        """A result computed from a run, cached by name while its files are unchanged."""
        return self._opened(self.served(run)).answer(answer, make)

    def known_findings(self, run: str) -> list[Finding]:
        """The findings of a run, as far as they are known without judging rows."""
        opened = self._opened(self.served(run))
        return opened.view.findings if opened.diagnosis is None else opened.diagnosis.findings

    def _opened(self, entry: Served) -> Open:
        with self._lock:
            lock = self._opening.setdefault(entry, threading.Lock())
        with lock:
            state = entry.state
            known = self._open.get(entry)
            if known is None or not known.is_current(state):
                fresh = Open(state, entry.open(self.root), self.turns)
                if known is not None:
                    fresh.take_over(known)
                for stream in STREAMS:
                    fresh.view.columns(stream)  # reads the logs, once for all requests
                known = fresh
            with self._lock:
                self._open[entry] = known
                self._open.move_to_end(entry)
                self._let_go()
            return known

    def _let_go(self) -> None:
        """Keep the most recently used views within the limits; the newest is always kept."""
        held = {entry: opened.view.held_bytes for entry, opened in self._open.items()}
        while len(held) > 1 and (len(held) > MOST_OPEN or sum(held.values()) > MOST_BYTES):
            gone = next(iter(held))
            del held[gone], self._open[gone]
            self._opening.pop(gone, None)

    def _entries(self) -> list[Served]:
        if time.monotonic() >= self._list_until:
            began = time.monotonic()
            found = [path for path in islice(find_places(self.root), MOST_RUNS) if not self._is_refused(path)]
            self._listed = [entry for path in found for entry in _entries_of(path)]
            ended = time.monotonic()
            # A search of a home directory takes long. It must not take most of the server's time.
            self._list_until = ended + max(LIST_SECONDS, 10 * (ended - began))
        return self._listed

    def _is_refused(self, path: Path) -> bool:
        try:
            return RunDir(path).holds_run and leads_outside(path, self.root, deep=False)
        except OSError:  # a line of the list reports it
            return False

    def _headline(self, entry: Served) -> Headline:
        path = entry.path
        if entry.split is not None:
            return self._dump_line(entry)
        try:
            leads_outside(path, self.root, deep=False)
        except OSError as error:  # not opened, because its links cannot be checked
            return unreadable_line(path, str(unreadable(path, error)))
        return self._headlines.of(path)

    def _dump_line(self, entry: Served) -> Headline:
        known = self._dump_lines.get(entry)
        try:
            state = entry.state
            if known is None or known[0] != state or known[1]["status"] == "running":
                known = (state, dump_line(entry.open(self.root)))
        except (RlvitalsError, OSError) as error:
            return unreadable_line(entry.path, str(error))
        self._dump_lines[entry] = known
        return known[1]

    def _named(self, entry: Served) -> str:
        name = entry.path.relative_to(self.root).as_posix()
        is_one_of_two = entry.split == "validation" and "train" in splits_of(entry.path)
        return f"{name}{VALIDATION}" if is_one_of_two else name


def _leads_away(path: str) -> bool:
    """Whether a path cannot be one below a folder, judged by its text."""
    return "\0" in path or path.startswith("/") or ".." in Path(path).parts


def _entries_of(path: Path) -> list[Served]:
    if is_joined(path):
        return []  # the logs list it: its rows are joined and judged
    return [Served(path)] if RunDir(path).holds_run else [Served(path, split) for split in splits_of(path)]
