"""How far each tracker has read: `sinks/NAME.json`, replaced after every commit."""

from __future__ import annotations

import contextlib
import os
import time
from dataclasses import asdict, dataclass, field
from typing import Any

from rlvitals.codec import to_json
from rlvitals.errors import RunUnreadable
from rlvitals.records import Count
from rlvitals.store.archive import log_state, open_log
from rlvitals.store.files import open_descriptor
from rlvitals.store.follower_state import FollowerPlace, FollowerState, read_state, write_state
from rlvitals.store.layout import STREAMS, Followed, Forwarded, RunDir

FORWARDED: tuple[Forwarded, ...] = (*STREAMS, "system")
FOLLOWED: tuple[Followed, ...] = (*FORWARDED, "findings")


@dataclass(slots=True)
class Cursor(FollowerState):
    """One tracker's position in the logs, and the state it needs when it is opened again."""

    offsets: dict[str, Count] = field(default_factory=lambda: dict.fromkeys(STREAMS, 0))
    """Bytes of each log that the back end is known to hold. Machine samples and the health log are included if the
    tracker accepts them."""
    rows: Count = 0
    samples: Count = 0
    """The number of machine samples forwarded so far: the position of the next one."""
    memory: dict[str, Any] = field(default_factory=dict)


def cursor_place(run_dir: RunDir, name: str) -> FollowerPlace:
    """Where the state of one tracker is."""
    return FollowerPlace(run_dir.sinks, name)


def read_cursor(run_dir: RunDir, name: str) -> Cursor:
    """A tracker's cursor; a new one if it is missing or damaged."""
    cursor = read_state(Cursor, cursor_place(run_dir, name)) or Cursor(name)
    given = dict.fromkeys(STREAMS, 0) | cursor.offsets
    cursor.offsets = {stream: given[stream] for stream in FOLLOWED if stream in given}
    return cursor


def write_cursor(run_dir: RunDir, cursor: Cursor) -> None:
    """Write a cursor and replace the old one."""
    write_state(cursor_place(run_dir, cursor.name), cursor)


def announce_tracker(run_dir: RunDir, name: str) -> None:
    """Write a waiting cursor, so that a tracker whose follower is killed before its first commit is known. An existing
    cursor stays unchanged, because an earlier attempt's follower may be writing it.
    """
    with contextlib.suppress(FileExistsError):
        descriptor = open_descriptor(cursor_place(run_dir, name).file, os.O_CREAT | os.O_EXCL | os.O_WRONLY)
        with os.fdopen(descriptor, "wb") as file:
            file.write(to_json(asdict(Cursor(name, since=round(time.time(), 3)))))


def read_cursors(run_dir: RunDir) -> list[Cursor]:
    """Every tracker's cursor, by name."""
    return [read_cursor(run_dir, path.stem) for path in sorted(run_dir.sinks.glob("*.json"))]


def bytes_behind(run_dir: RunDir, cursor: Cursor) -> int:
    """How many bytes of the logs a tracker does not hold yet."""
    behind = 0
    for stream in _logs_of(cursor):
        behind += max(0, log_state(run_dir.log(stream))[1] - cursor.offsets[stream])
    return behind


def _logs_of(cursor: Cursor) -> list[Followed]:
    return [stream for stream in FOLLOWED if stream in cursor.offsets]


def rows_behind(run_dir: RunDir, cursor: Cursor) -> int:
    """How many rows (lines after the cursor) a tracker does not hold yet."""
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
