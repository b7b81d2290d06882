"""The state of notifications: `notify/NAME.json` for each target, replaced before and after every message.

It records how far the health log has been read, which findings were sent and which were held back. It contains no
address, token or recipient; those are only in the environment.
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
"""waiting: nothing was read yet. following: everything was sent. failing: the last attempt failed. done: the run has
ended and everything was sent."""


@dataclass(slots=True)
class SentMessage:
    """A message that was sent, and the alarms in it that have not recovered."""

    key: str
    alarms: list[str]
    title: str = ""
    severity: Severity = "info"
    reference: str = ""
    """The message's id at the service, if it returns one. An edit or a reply needs it."""


@dataclass(slots=True)
class HeldBack:
    """A finding that was held back because of the message limit. The next digest contains it."""

    alarm: str
    severity: Severity = "info"
    step: int = 0
    title: str = ""
    recovered_step: int | None = None
    is_known: bool = False
    """Whether a message about the finding was already sent, so that only its recovery is new."""


@dataclass(slots=True)
class Outbox:
    """The state of one target: its position in the health log, and the messages sent and held back."""

    name: str
    state: State = "waiting"
    offset: Count = 0
    """Bytes of the health log that have been processed."""
    sent_at: list[Time] = field(default_factory=list)
    """When the messages of the last hour were sent."""
    last_words_at: Time = 0.0
    """When the digest at the end of an attempt was last sent."""
    told: list[SentMessage] = field(default_factory=list)
    held: list[HeldBack] = field(default_factory=list)
    held_more: Count = 0
    """Number of further findings held back that are not listed individually."""
    sending: str = ""
    """The message being sent. A process that finds one here cannot know whether it arrived."""
    sent: Count = 0
    refused: Count = 0
    """Messages that the service rejected permanently."""
    error: str = ""
    since: Time = 0.0
    """When the current state began."""


def outbox_place(run_dir: RunDir, name: str) -> CursorPlace:
    """The lock and heartbeat of one target."""
    return CursorPlace(run_dir.notify, run_dir.notify / f"{name}.lock", run_dir.notify / f"{name}.heartbeat")


def outbox_places(run_dir: RunDir) -> list[tuple[str, CursorPlace]]:
    """The targets that have a lock now, by name."""
    return [(path.stem, outbox_place(run_dir, path.stem)) for path in sorted(run_dir.notify.glob("*.lock"))]


def read_outbox(run_dir: RunDir, name: str) -> Outbox | None:
    """A target's outbox; None if it does not exist or is damaged."""
    try:
        outbox = record_of(Outbox, read_json(run_dir.notify / f"{name}.json"), defaults={"name": name})
    except (OSError, ValueError):
        return None
    outbox.name = name  # the file name identifies the target
    return outbox


def write_outbox(run_dir: RunDir, outbox: Outbox) -> None:
    """Save an outbox, replacing the file."""
    make_folder(run_dir.notify, above=False)
    replace_file(run_dir.notify / f"{outbox.name}.json", to_json(asdict(outbox)))
    sync_folder(run_dir.notify)
