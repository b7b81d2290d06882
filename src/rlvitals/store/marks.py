"""User marks for the runs in a folder: names, tags, notes, archived or deleted runs, and boards of panels.

All marks are in one small file of the folder, `.rlvitals-marks.json`; a mark never changes the run itself. The file is
replaced atomically, under a lock that also excludes other servers. The number and length of marks are limited. This
module does not check which runs exist.
"""

from __future__ import annotations

import contextlib
import os
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any, TypedDict

from rlvitals.codec import encode, parse_shallow, to_json
from rlvitals.errors import ConfigError, RunLocked, RunUnreadable
from rlvitals.records import RunMarks
from rlvitals.store.fields import checked
from rlvitals.store.files import open_descriptor, replace_file
from rlvitals.store.lock import RunLock

FILE = ".rlvitals-marks.json"

LONGEST_NAME, LONGEST_TAG, LONGEST_NOTE = 200, 60, 10_000
"""Characters."""

MOST_TAGS, MOST_RUNS, MOST_BOARDS = 20, 5_000, 200
LONGEST_BOARD = 32 * 1024
"""Bytes of a board as JSON."""

MOST_BYTES = 16 * 2**20
"""Size limit of the file."""

LOCK_SECONDS = 5.0
"""How long to wait for another server, which normally holds the lock for milliseconds."""


class AllMarks(TypedDict):
    """Everything in the file."""

    runs: dict[str, RunMarks]
    boards: dict[str, Any]


class _Place:
    """Where the lock of a folder's marks is."""

    def __init__(self, folder: Path) -> None:
        self.root = folder
        self.lock = folder / ".rlvitals-marks.lock"
        self.heartbeat = folder / ".rlvitals-marks.heartbeat"


class FolderMarks:
    """The marks of one folder. Safe from several threads and several servers."""

    def __init__(self, folder: Path) -> None:
        self._place = _Place(folder)
        self._file = folder / FILE
        self._lock = threading.Lock()
        self._read: tuple[object, AllMarks] | None = None

    def read(self) -> AllMarks:
        """All marks, or none if there is no file. Raises RunUnreadable if the file does not hold valid marks."""
        try:
            descriptor = open_descriptor(self._file, os.O_RDONLY | getattr(os, "O_NOFOLLOW", 0))
        except FileNotFoundError:
            return {"runs": {}, "boards": {}}
        except OSError as error:
            raise self._unreadable(error.strerror or str(error)) from error
        with os.fdopen(descriptor, "rb") as file:
            state = os.fstat(descriptor)
            stamp = (state.st_ino, state.st_size, state.st_mtime_ns)
            known = self._read
            if known is None or known[0] != stamp:
                known = (stamp, self._parsed(file.read(MOST_BYTES + 1)))
                self._read = known
        return known[1]

    def put_away(self) -> set[str]:
        """The archived and deleted runs, which lists omit. Empty if the marks cannot be read."""
        try:
            runs = self.read()["runs"]
        except RunUnreadable:  # `read` reports it; a list of runs must not fail because of the marks
            return set()
        return {run for run, marks in runs.items() if marks.get("archived") or marks.get("deleted")}

    def mark(self, run: str, changes: Mapping[str, Any]) -> AllMarks:
        """Change the marks of a run; an empty value removes the mark. Raises ConfigError."""
        wanted = _checked_changes(changes)

        def change(marks: AllMarks) -> None:
            merged = {**marks["runs"].get(run, {}), **wanted}
            kept = {key: value for key, value in merged.items() if value}
            _put(marks["runs"], run, kept or None, MOST_RUNS, "runs with marks")

        return self._change(change)

    def keep_board(self, name: str, board: Mapping[str, Any] | None) -> AllMarks:
        """Save a board under a name; None removes it. Raises ConfigError."""
        name = _one_line("a board's name", name, LONGEST_NAME)
        if not name:
            raise ConfigError("a board needs a name")
        if board is not None and len(encode(board)) > LONGEST_BOARD:
            raise ConfigError(f"a board has at most {LONGEST_BOARD:,} bytes")
        return self._change(lambda marks: _put(marks["boards"], name, board, MOST_BOARDS, "boards"))

    def forget(self, run: str) -> AllMarks:
        """Remove all marks of a run that no longer exists."""
        return self._change(lambda marks: _put(marks["runs"], run, None, MOST_RUNS, "runs with marks"))

    def _change(self, change: Callable[[AllMarks], None]) -> AllMarks:
        with self._locked():
            known = self.read()
            marks: AllMarks = {"runs": dict(known["runs"]), "boards": dict(known["boards"])}
            change(marks)
            data = to_json(marks)
            if len(data) > MOST_BYTES:
                raise ConfigError(f"the marks of this folder would take more than {MOST_BYTES // 2**20} MiB")
            replace_file(self._file, data)
        return marks

    @contextmanager
    def _locked(self) -> Iterator[None]:
        lock = RunLock(self._place)
        until = time.monotonic() + LOCK_SECONDS
        with self._lock:
            while True:
                try:
                    lock.acquire()
                    break
                except RunLocked:
                    if time.monotonic() > until:
                        raise RunUnreadable("another server is writing the marks of this folder; try again") from None
                    time.sleep(0.02)
            try:
                yield
            finally:
                lock.release()
                with contextlib.suppress(OSError):
                    self._place.heartbeat.unlink()

    def _parsed(self, data: bytes) -> AllMarks:
        if len(data) > MOST_BYTES:
            raise self._unreadable(f"it has more than {MOST_BYTES // 2**20} MiB")
        try:
            raw = parse_shallow(data)
        except ValueError as error:
            raise self._unreadable("it is not JSON") from error
        if not isinstance(raw, dict) or not all(isinstance(raw.get(key, {}), dict) for key in ("runs", "boards")):
            raise self._unreadable("it does not hold marks")
        runs: dict[str, RunMarks] = {}
        for run, marks in raw.get("runs", {}).items():
            if isinstance(marks, dict) and (known := checked(RunMarks, marks)):
                runs[run] = known  # type: ignore[assignment]
        boards = {name: board for name, board in raw.get("boards", {}).items() if isinstance(board, dict)}
        return {"runs": runs, "boards": boards}

    def _unreadable(self, what: str) -> RunUnreadable:
        return RunUnreadable(
            f"{self._file.name} cannot be read: {what}. Names, tags and notes are not shown, and nothing is changed. "
            f"Restore the file from a backup, or move it away to start again."
        )


def _checked_changes(changes: Mapping[str, Any]) -> dict[str, Any]:
    unknown = changes.keys() - RunMarks.__annotations__.keys()
    if unknown:
        raise ConfigError(f"no such mark: {sorted(unknown)[0][:40]!r}. Marks: {', '.join(RunMarks.__annotations__)}")
    wrong: list[str] = []
    taken = checked(RunMarks, changes, wrong)
    if wrong:
        raise ConfigError(f"the mark {wrong[0][:40]!r} has an invalid value, or is too long")
    if "name" in taken:
        taken["name"] = _one_line("a name", taken["name"], LONGEST_NAME)
    if "tags" in taken:
        taken["tags"] = list(dict.fromkeys(_one_line("a tag", tag, LONGEST_TAG) for tag in taken["tags"]))
        taken["tags"] = [tag for tag in taken["tags"] if tag]
        if len(taken["tags"]) > MOST_TAGS:
            raise ConfigError(f"a run has at most {MOST_TAGS} tags")
    if len(taken.get("note", "")) > LONGEST_NOTE:
        raise ConfigError(f"a note has at most {LONGEST_NOTE:,} characters")
    return taken


def _one_line(what: str, text: str, longest: int) -> str:
    """The text on one line, with single spaces. Raises ConfigError if it is too long or not printable."""
    line = " ".join(text.split())
    if len(line) > longest:
        raise ConfigError(f"{what} has at most {longest} characters")
    if not line.isprintable():
        raise ConfigError(f"{what} must not contain control characters")
    return line


def _put(marks: dict[str, Any], key: str, value: Any, most: int, what: str) -> None:
    if value is None:
        marks.pop(key, None)
        return
    if key not in marks and len(marks) >= most:
        raise ConfigError(f"there are already {most:,} {what}, the maximum")
    marks[key] = value
