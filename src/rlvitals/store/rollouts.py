"""`logs/rollouts/step-000010.jsonl`: one file per step, one line per group.

A file per step, because users look at single steps: finding one needs no index, `jq` and `wc -l` work on it, and old
files can be deleted. A resumed attempt that reaches a step again appends to its file; every line has its attempt. Lines
are written by the same writer as rows: the operating system has them on return, and they are kept in memory while the
disk cannot be written.
"""

from __future__ import annotations

import contextlib
import re
import threading
from collections import deque
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, NamedTuple

from rlvitals.codec import encodable, parse_shallow
from rlvitals.records import MAX_ATTEMPT, MAX_STEP, RESERVED, Group, Stream
from rlvitals.store.files import sync_file, sync_folder
from rlvitals.store.layout import RunDir
from rlvitals.store.lines import BadLine, encode_row
from rlvitals.store.reader import Problems, read_blocks, read_records
from rlvitals.store.rollout_forms import group_of, is_rollout, plain
from rlvitals.store.writer import BUFFER_BYTES, LogWriter

MAX_OPEN = 32
"""Largest number of open files of earlier steps."""

_FILE = re.compile(r"step-(-?\d+)(?:-rank-(\d+))?\.jsonl")


def group_line(group: Group, step: int, attempt: int, timestamp: float) -> bytes:
    """One group as its file stores it."""
    fields = {key: value for key, value in plain(group).items() if key not in RESERVED}
    try:
        return encode_row(step, timestamp, attempt, fields)
    except (TypeError, ValueError):  # a lone surrogate, or an integer beyond 64 bits
        return encode_row(step, timestamp, attempt, encodable(fields))


class RolloutWriter:
    """The files of one recording process: the current step's, and earlier ones that are not closed yet.

    It has `append` and the methods that a run needs of every writer: `tend`, `sync`, `close`, `rows_dropped`. `tend`
    closes earlier files in a background thread, because they are synced to disk first.
    """

    def __init__(
        self,
        open_writer: Callable[[Callable[[], Path]], LogWriter],
        run_dir: RunDir,
        rank: int,
        stream: Stream = "train",
        *,
        sync: bool,
    ) -> None:
        self._open_writer = open_writer
        self._dir = run_dir
        self._rank = rank
        self._stream: Stream = stream
        self._syncs = sync
        self._lock = threading.RLock()
        self._step = 0
        self._current: LogWriter | None = None
        self._earlier: list[LogWriter] = []
        self._unsynced: list[Path] = []  # files that were closed before they were synced
        self._homeless: deque[tuple[int, bytes]] = deque()
        self._dropped = 0
        self.bytes_written = 0

    @property
    def open_paths(self) -> set[Path]:
        """Files that are not closed yet. If such a file is deleted, its writer recreates it."""
        with self._lock:
            return {writer.path for writer in self._writers}

    @property
    def rows_dropped(self) -> int:
        """Groups that were dropped because the disk could not be written for too long."""
        return self._dropped + sum(writer.rows_dropped for writer in self._writers)

    def append(self, lines: list[bytes], step: int) -> None:
        """Append the groups of a step. Raises OSError if its file cannot be opened; the groups are kept and retried."""
        with self._lock:
            self._homeless += [(step, line) for line in lines]
            self.bytes_written += sum(map(len, lines))
            self._house()

    def _house(self) -> None:
        """Write the lines that have no file yet."""
        try:
            while self._homeless:
                step, line = self._homeless[0]
                if self._current is None or step != self._step:
                    self._let_go()
                    self._current, self._step = self._open(step), step
                self._current.append(line)
                self._homeless.popleft()
        except OSError:
            while sum(len(line) for _, line in self._homeless) > BUFFER_BYTES:
                self._homeless.popleft()
                self._dropped += 1
            raise

    def tend(self) -> None:
        """Retry waiting lines and close finished files. For a background thread."""
        with self._lock:
            with contextlib.suppress(OSError):
                self._house()
            for writer in self._writers:
                writer.tend()
            done = [writer for writer in self._earlier if writer.is_settled]
            self._earlier = [writer for writer in self._earlier if writer not in done]
        for writer in done:
            self._close(writer)
        self._sync_closed()

    def catch_up(self, seconds: float | None = None) -> bool:
        """`LogWriter.catch_up` for every open file."""
        waited = [writer.catch_up(seconds) for writer in self._writers]
        return all(waited)

    def sync(self) -> None:
        for writer in self._writers:
            writer.sync()
        self._sync_closed()

    def close(self) -> None:
        with self._lock:
            with contextlib.suppress(OSError):
                self._house()
            for writer in self._writers:
                self._close(writer)
            self._earlier, self._current = [], None

    @property
    def _writers(self) -> list[LogWriter]:
        return [*self._earlier, *([self._current] if self._current is not None else [])]

    def _open(self, step: int) -> LogWriter:
        path = self._dir.rollout_file(step, self._rank, self._stream)
        known = next((writer for writer in self._earlier if writer.path == path), None)
        if known is not None:
            self._earlier.remove(known)
            return known
        return self._open_writer(lambda: self._dir.rollout_file(step, self._rank, self._stream))

    def _let_go(self) -> None:
        if self._current is not None:
            self._earlier.append(self._current)
            self._current = None
        settled = [writer for writer in self._earlier if writer.is_settled]
        for writer in settled[:-MAX_OPEN]:  # very short steps would run out of descriptors before the next `tend`
            self._earlier.remove(writer)
            self._unsynced.append(writer.path)
            self._close(writer, sync=False)

    def _sync_closed(self) -> None:
        """Sync files that were closed without a sync."""
        if not self._syncs:
            return
        with self._lock:
            paths, self._unsynced = self._unsynced, []
        with contextlib.suppress(OSError):  # moved or deleted since
            for path in paths:
                sync_file(path)
            for folder in {path.parent for path in paths}:
                sync_folder(folder)

    def _close(self, writer: LogWriter, *, sync: bool = True) -> None:
        if self._syncs and sync:
            writer.sync()
        writer.close()
        self._dropped += writer.rows_dropped


class RolloutFile(NamedTuple):
    """One file of rollouts."""

    path: Path
    """The path of the log; the file may be replaced by its archive."""
    step: int
    rank: int


def rollout_files(run_dir: RunDir, stream: Stream = "train") -> list[RolloutFile]:
    """Every file of rollouts, by step and rank."""
    found = []
    for log in run_dir.rollout_logs(stream):
        if match := _FILE.fullmatch(log.name):
            found.append(RolloutFile(log, int(match[1]), int(match[2] or 0)))
    return sorted(found, key=lambda file: (file.step, file.rank))


def read_lines(path: Path, start: int = 0) -> Iterator[tuple[int, bytes]]:
    """Every whole line from an offset on, with the offset it begins at."""
    offset = start
    for lines, _ in read_blocks(path, start):
        for line in lines:
            yield offset, line
            offset += len(line) + 1


def read_groups(path: Path, problems: Problems | None = None) -> Iterator[Group]:
    """Every valid group of a file, in order. Torn and foreign lines are counted and skipped."""
    return read_records(path, decode_group, problems if problems is not None else Problems())


def has_tokens(path: Path) -> bool:
    """Whether any rollout of a file has a token trace. A text with the same key is a harmless false positive."""
    return any(b'"trace":{' in line for _, line in read_lines(path))


def decode_group(line: bytes) -> Group:
    """One line as a group; raises BadLine if it is not a group."""
    raw = parse_group(line)
    group = None if raw is None else group_of(raw, _ignore)
    if group is None:
        raise BadLine("not a group of rollouts")
    return group


def parse_group(line: bytes) -> dict[str, Any] | None:
    """One line as plain data; None if it is not a group."""
    try:
        raw = parse_shallow(line)
    except ValueError:
        return None
    if not isinstance(raw, dict) or type(raw.get("step")) is not int or abs(raw["step"]) > MAX_STEP:
        return None
    attempt = raw.setdefault("attempt", 1)
    if type(attempt) is not int or not 0 < attempt <= MAX_ATTEMPT:
        return None
    if not isinstance(raw.setdefault("rollouts", []), list):
        return None
    raw["rollouts"] = [item for item in raw["rollouts"] if is_rollout(item)]  # all readers number them the same
    return raw


def _ignore(_: str) -> None:
    """Ignore notes: missing fields of a stored line were reported when it was written."""
