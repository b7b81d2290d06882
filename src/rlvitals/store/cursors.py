"""How far each tracker is: `sinks/NAME.json`, written whole after every commit."""

from __future__ import annotations

from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any, Literal

from rlvitals.codec import to_json
from rlvitals.errors import RunUnreadable
from rlvitals.records import Count, Time
from rlvitals.store.archive import log_state, open_log
from rlvitals.store.fields import record_of
from rlvitals.store.files import read_json, replace_file, sync_folder
from rlvitals.store.layout import Followed, Forwarded, RunDir, Stream

State = Literal["waiting", "following", "failing", "done"]
"""waiting: not opened yet. following: rows are handed over. failing: the last try raised. done: the run has ended, all
is there."""

STREAMS: tuple[Stream, Stream] = ("train", "eval")
FORWARDED: tuple[Forwarded, ...] = (*STREAMS, "system")
FOLLOWED: tuple[Followed, ...] = (*FORWARDED, "findings")


@dataclass(slots=True)
class Cursor:
    """One tracker's place in the logs, and what it remembers for its next opening."""

    name: str
    state: State = "waiting"
    offsets: dict[str, Count] = field(default_factory=lambda: dict.fromkeys(STREAMS, 0))
    """Bytes of each log the back end is known to hold. Samples of the machine and the health log are among them
    where it takes them."""
    rows: Count = 0
    samples: Count = 0
    """Samples of the machine handed over: the place of the next one."""
    error: str = ""
    since: Time = 0.0
    """When the present state began."""
    memory: dict[str, Any] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class CursorPlace:
    """Where a tracker's lock and heartbeat are; one live follower for each tracker."""

    root: Path
    lock: Path
    heartbeat: Path


def cursor_place(run_dir: RunDir, name: str) -> CursorPlace:
    """The lock and heartbeat of one tracker."""
    return CursorPlace(run_dir.sinks, run_dir.sinks / f"{name}.lock", run_dir.sinks / f"{name}.heartbeat")


def cursor_places(run_dir: RunDir) -> list[tuple[str, CursorPlace]]:
    """The trackers that have a lock now, by name; a tracker that has taken no row yet has a lock and no cursor."""
    return [(path.stem, cursor_place(run_dir, path.stem)) for path in sorted(run_dir.sinks.glob("*.lock"))]


def read_cursor(run_dir: RunDir, name: str) -> Cursor:
    """A tracker's cursor; a fresh one where there is none or it is damaged."""
    try:
        raw = read_json(run_dir.sinks / f"{name}.json")
        cursor = record_of(Cursor, raw, defaults={"name": name})
    except (OSError, ValueError):
        return Cursor(name)
    given = dict.fromkeys(STREAMS, 0) | cursor.offsets
    offsets: dict[str, int] = {stream: given[stream] for stream in FOLLOWED if stream in given}
    return replace(cursor, name=name, offsets=offsets)  # the file's name says whose it is


def write_cursor(run_dir: RunDir, cursor: Cursor) -> None:
    """Save a cursor, whole."""
    replace_file(run_dir.sinks / f"{cursor.name}.json", to_json(asdict(cursor)))
    sync_folder(run_dir.sinks)


def read_cursors(run_dir: RunDir) -> list[Cursor]:
    """Every tracker's cursor, by name."""
    return [read_cursor(run_dir, path.stem) for path in sorted(run_dir.sinks.glob("*.json"))]


def bytes_behind(run_dir: RunDir, cursor: Cursor) -> int:
    """How much of the logs a tracker does not hold yet."""
    behind = 0
    for stream in _logs_of(cursor):
        behind += max(0, log_state(run_dir.log(stream))[1] - cursor.offsets[stream])
    return behind


def _logs_of(cursor: Cursor) -> list[Followed]:
    return [stream for stream in FOLLOWED if stream in cursor.offsets]


def rows_behind(run_dir: RunDir, cursor: Cursor) -> int:
    """The same in rows: lines beyond the cursor."""
    behind = 0
    for stream in _logs_of(cursor):
        try:
            with open_log(run_dir.log(stream)) as file:
                file.seek(cursor.offsets[stream])
                while block := file.read(2**20):
                    behind += block.count(b"\n")
        except (OSError, RunUnreadable):
            continue
    return behind
