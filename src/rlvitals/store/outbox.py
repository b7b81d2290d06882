"""What people have been sent: `notify/NAME.json` for each target, replaced whole before and after every message.

It holds how far the health log has been read, which findings people know of and which were held back. It holds no
address, no token and no recipient: those are in the environment alone.
"""

from __future__ import annotations

from dataclasses import asdict, dataclass, field
from typing import Literal

from rlvitals.codec import to_json
from rlvitals.records import Count, Severity, Time
from rlvitals.store.cursors import CursorPlace
from rlvitals.store.fields import record_of
from rlvitals.store.files import make_folder, read_json, replace_file, sync_folder
from rlvitals.store.layout import RunDir

State = Literal["waiting", "following", "failing", "done"]
"""waiting: nothing was read yet. following: everything could be sent. failing: the last try failed. done: the run has
ended, and all is sent."""


@dataclass(slots=True)
class Told:
    """A message that people have, and the alarms in it that have not recovered."""

    key: str
    alarms: list[str]
    title: str = ""
    severity: Severity = "info"
    reference: str = ""
    """The message's id at the service, where it gives one: for an edit or a reply."""


@dataclass(slots=True)
class Held:
    """A finding that was held back because of the limit, for the next digest."""

    alarm: str
    severity: Severity = "info"
    step: int = 0
    title: str = ""
    recovered_step: int | None = None
    is_known: bool = False
    """Whether people have a message about the finding, so that only the recovery is news."""


@dataclass(slots=True)
class Outbox:
    """One target's place in the health log, and what it remembers."""

    name: str
    state: State = "waiting"
    offset: Count = 0
    """Bytes of the health log that have been dealt with."""
    sent_at: list[Time] = field(default_factory=list)
    """When the messages of the last hour were sent."""
    last_words_at: Time = 0.0
    """When the digest at the end of an attempt was last sent."""
    told: list[Told] = field(default_factory=list)
    held: list[Held] = field(default_factory=list)
    held_more: Count = 0
    """Findings held back that are counted and no longer listed."""
    sending: str = ""
    """The message on its way: a process that finds one here cannot know whether it has arrived."""
    sent: Count = 0
    refused: Count = 0
    """Messages that the service refused, and would refuse again."""
    error: str = ""
    since: Time = 0.0
    """When the present state began."""


def outbox_place(run_dir: RunDir, name: str) -> CursorPlace:
    """The lock and heartbeat of one target."""
    return CursorPlace(run_dir.notify, run_dir.notify / f"{name}.lock", run_dir.notify / f"{name}.heartbeat")


def outbox_places(run_dir: RunDir) -> list[tuple[str, CursorPlace]]:
    """The targets that have a lock now, by name."""
    return [(path.stem, outbox_place(run_dir, path.stem)) for path in sorted(run_dir.notify.glob("*.lock"))]


def read_outbox(run_dir: RunDir, name: str) -> Outbox | None:
    """A target's outbox; None where there is none, or it is damaged."""
    try:
        outbox = record_of(Outbox, read_json(run_dir.notify / f"{name}.json"), defaults={"name": name})
    except (OSError, ValueError):
        return None
    outbox.name = name  # the file's name says whose it is
    return outbox


def write_outbox(run_dir: RunDir, outbox: Outbox) -> None:
    """Save an outbox, whole."""
    make_folder(run_dir.notify, above=False)
    replace_file(run_dir.notify / f"{outbox.name}.json", to_json(asdict(outbox)))
    sync_folder(run_dir.notify)


def outbox_names(run_dir: RunDir) -> list[str]:
    """The targets that have an outbox."""
    return sorted(path.stem for path in run_dir.notify.glob("*.json"))
