"""Writes a foreign log as a run's directory: every point, under the names and times it was logged with."""

from __future__ import annotations

import contextlib
import math
import os
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, BinaryIO

from rlvitals.codec import encode
from rlvitals.masking import masked
from rlvitals.records import Attempt, Row, RunInfo
from rlvitals.store.cards import append_attempt, write_config, write_info
from rlvitals.store.files import make_folder, sync_folder
from rlvitals.store.importers.base import Fields, ForeignLog
from rlvitals.store.importers.padding import family
from rlvitals.store.importers.steps import RestartWatch
from rlvitals.store.layout import RunDir, Stream
from rlvitals.store.lines import metric_key, stored_row
from rlvitals.store.lock import RunLock


@dataclass(frozen=True, slots=True)
class Written:
    """How much of a log became rows."""

    train_rows: int
    eval_rows: int
    attempts: int


def write_run(
    log: ForeignLog, run_dir: RunDir, *, name: str, version: str, refuse: Callable[[RunDir], None]
) -> Written:
    """Make the run. `refuse` raises where a run is there already. OSError: nothing is left behind."""
    refuse(run_dir)
    make_folder(run_dir.root)
    lock = RunLock(run_dir)
    lock.acquire()
    is_whole = False
    try:
        refuse(run_dir)  # once more: a run may have come before the lock was ours
        try:
            written = _write(log, run_dir, name, version)
            is_whole = True
        finally:
            if not is_whole:
                _remove(run_dir.written_paths)
    finally:
        lock.release()
        if not is_whole and not run_dir.holds_run:
            _remove([run_dir.heartbeat, run_dir.logs, run_dir.root])
    return written


def _write(log: ForeignLog, run_dir: RunDir, name: str, version: str) -> Written:
    times = [row["timestamp"] for row in log.rows if "timestamp" in row]
    changed = log.path.stat().st_mtime
    begun, ended = (min(times), max(times)) if times else (changed, changed)
    total = log.config.get("max_steps")
    info = RunInfo(
        id=f"{time.strftime('%Y%m%d-%H%M%S')}-{os.urandom(3).hex()}",
        name=name,
        status="finished",
        created=begun,
        updated=ended,
        written_by=version,
        total_steps=total if isinstance(total, int) and total > 0 else None,
        ended=ended,
    )
    origin = {"imported_from": log.path.name, "format": log.format, "notes": log.notes}
    write_config(run_dir, masked({**log.config, "rlvitals": origin}))
    counts: dict[Stream, int] = {"train": 0, "eval": 0}
    attempt = 0
    make_folder(run_dir.logs)
    with _Files(run_dir) as files:
        for stream, line in stored_lines(log):
            if line["attempt"] > attempt:
                attempt = line["attempt"]
                append_attempt(run_dir, Attempt(number=attempt, started=line.get("timestamp", begun)))
            files.open(stream).write(encode(line))
            counts[stream] += 1
        files.sync()
    sync_folder(run_dir.logs)
    write_info(run_dir, replace(info, attempt=attempt))  # says that all is there, so it comes last
    sync_folder(run_dir.root)
    return Written(counts["train"], counts["eval"], attempt)


class _Files:
    """The logs that have rows."""

    def __init__(self, run_dir: RunDir) -> None:
        self._dir = run_dir
        self._stack = contextlib.ExitStack()
        self._open: dict[Stream, BinaryIO] = {}

    def __enter__(self) -> _Files:
        return self

    def __exit__(self, *error: object) -> None:
        self._stack.close()

    def open(self, stream: Stream) -> BinaryIO:
        if stream not in self._open:
            self._open[stream] = self._stack.enter_context(self._dir.log(stream).open("wb"))
        return self._open[stream]

    def sync(self) -> None:
        """Have the disk hold them."""
        for file in self._open.values():
            file.flush()
            os.fsync(file.fileno())


def stored_lines(log: ForeignLog) -> Iterator[tuple[Stream, dict[str, Any]]]:
    """Each row as a line of a run's logs; where the file starts again, a new attempt begins."""
    watch, number = RestartWatch(), 1
    for row in log.rows:
        number += watch.is_restart(row)
        yield _stream(row), _line(row, number)


def _stream(row: Fields) -> Stream:
    """Rows about nothing but an evaluation are evaluations; mixed ones stay whole among the training's."""
    return "eval" if {family(name) for name in row} <= {"eval", "axis"} else "train"


def _line(row: Fields, attempt: int) -> dict[str, Any]:
    metrics = {metric_key(name): value for name, value in row.items() if name not in ("step", "timestamp")}
    return stored_row(Row(row["step"], row.get("timestamp", math.nan), attempt, metrics))


def _remove(paths: list[Path]) -> None:
    """Files, and folders that are empty."""
    for path in paths:
        with contextlib.suppress(OSError):
            path.rmdir() if path.is_dir() else path.unlink(missing_ok=True)
