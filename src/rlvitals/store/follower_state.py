"""What the trackers and the notification targets of a run have in common: each has a process that follows the run's
logs. A folder of the run holds the follower's state, `NAME.json`, and its lock, so that each has at most one live
follower.
"""

from __future__ import annotations

import time
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Literal, TypeVar

from rlvitals.codec import to_json
from rlvitals.records import Time
from rlvitals.store.fields import record_of
from rlvitals.store.files import read_json, replace_file, sync_folder

FollowerStage = Literal["waiting", "following", "failing", "done"]
"""waiting: nothing was sent yet. following: what the logs hold is sent. failing: the last attempt raised an error.
done: the run has ended and everything was sent."""


@dataclass(frozen=True, slots=True)
class FollowerPlace:
    """The location of one follower's state, lock and heartbeat."""

    root: Path
    """The folder: `RunDir.sinks` for trackers, `RunDir.notify` for notification targets."""
    name: str

    @property
    def file(self) -> Path:
        return self.root / f"{self.name}.json"

    @property
    def lock(self) -> Path:
        return self.root / f"{self.name}.lock"

    @property
    def heartbeat(self) -> Path:
        return self.root / f"{self.name}.heartbeat"


def locked_places(folder: Path) -> list[FollowerPlace]:
    """The followers of a folder that have a lock now, by name. One that has sent nothing has no state yet."""
    return [FollowerPlace(folder, path.stem) for path in sorted(folder.glob("*.lock"))]


@dataclass(slots=True)
class FollowerState:
    """The state of one follower. Trackers and targets add how far they have come."""

    name: str
    state: FollowerStage = "waiting"
    error: str = ""
    since: Time = 0.0
    """When the current state began."""

    def enter(self, state: FollowerStage, error: str = "") -> None:
        """Set the state, and the time if it is another one."""
        if (state, error) != (self.state, self.error):
            self.since = round(time.time(), 3)
        self.state, self.error = state, error


S = TypeVar("S", bound=FollowerState)


def read_state(kind: type[S], place: FollowerPlace) -> S | None:
    """A follower's state; None if it does not exist or is damaged."""
    try:
        found = record_of(kind, read_json(place.file), defaults={"name": place.name})
    except (OSError, ValueError):
        return None
    found.name = place.name  # the file's name decides
    return found


def write_state(place: FollowerPlace, state: FollowerState) -> None:
    """Save a follower's state, replacing the file."""
    replace_file(place.file, to_json(asdict(state)))
    sync_folder(place.root)
