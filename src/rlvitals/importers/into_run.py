"""Writes an imported log as a run directory: every point, under its logged name and time."""

from __future__ import annotations

import contextlib
import math
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path

from rlvitals.codec import encode
from rlvitals.config import planned_steps
from rlvitals.importers.base import ForeignLog
from rlvitals.importers.padding import family
from rlvitals.importers.steps import RestartWatch
from rlvitals.masking import masked
from rlvitals.records import Attempt, Row, RunInfo
from rlvitals.store.cards import append_attempt, new_id, write_config, write_info
from rlvitals.store.files import make_folder, replace_file, sync_folder
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
    """Write the run. `refuse` raises if a run already exists. On OSError no files are left behind."""
    refuse(run_dir)
    make_folder(run_dir.root)
    lock = RunLock(run_dir)
    lock.acquire()
    is_whole = False
    try:
        refuse(run_dir)  # again, because a run may have been created before the lock was acquired
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
    changed = log.changed
    began, ended = (min(times), max(times)) if times else (changed, changed)
    origin = {"imported_from": log.path.name, "format": log.format, "notes": log.notes}
    write_config(run_dir, masked({**log.config, "rlvitals": origin}))
    make_folder(run_dir.logs)
    rows = list(stored_rows(log))
    attempt = 0
    for _, row in rows:
        if row.attempt > attempt:
            attempt = row.attempt
            started = row.timestamp if math.isfinite(row.timestamp) else began
            append_attempt(run_dir, Attempt(number=attempt, started=started))
    counts = Counter(stream for stream, _ in rows)
    for stream in counts:
        replace_file(run_dir.log(stream), (encode(stored_row(row)) for kind, row in rows if kind == stream))
    if log.distributions:
        replace_file(run_dir.log("distributions"), (encode(one.stored) for one in log.distributions))
    if log.images:
        replace_file(run_dir.log("images"), (encode(one.stored) for one in log.images))
    sync_folder(run_dir.logs)
    info = RunInfo(
        id=new_id(),
        name=name,
        status="finished",
        created=began,
        updated=ended,
        written_by=version,
        attempt=attempt,
        total_steps=planned_steps(log.config),
        algorithm=log.algorithm,
        framework=log.framework,
        ended=ended,
    )
    write_info(run_dir, info)  # written last: it marks the import as complete
    sync_folder(run_dir.root)
    return Written(counts["train"], counts["eval"], attempt)


def stored_rows(log: ForeignLog) -> Iterator[tuple[Stream, Row]]:
    """Each row in the run's form. A new attempt begins where the file starts over."""
    watch, attempt = RestartWatch(), 1
    for row in log.rows:
        attempt += watch.is_restart(row)
        numbers = {metric_key(name): value for name, value in row.items() if name not in ("step", "timestamp")}
        yield stream_of(row), Row(row["step"], row.get("timestamp", math.nan), attempt, numbers)


def stream_of(names: Iterable[str]) -> Stream:
    """Rows that contain only evaluation metrics go to the evaluation stream; mixed rows stay in the training stream."""
    return "eval" if {family(name) for name in names} <= {"eval", "axis"} else "train"


def _remove(paths: list[Path]) -> None:
    """Remove files, and folders that are empty."""
    for path in paths:
        with contextlib.suppress(OSError):
            path.rmdir() if path.is_dir() else path.unlink(missing_ok=True)
