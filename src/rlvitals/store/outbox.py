"""The state of notifications: `notify/NAME.json` for each target, replaced before and after every message.

It records how far the health log has been read, which findings were sent and which were held back. It contains no
address, token or recipient; those are only in the environment.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from rlvitals.records import Count, Severity, Time
from rlvitals.store.files import make_folder
from rlvitals.store.follower_state import FollowerPlace, FollowerState, read_state, write_state
from rlvitals.store.layout import RunDir


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
class Outbox(FollowerState):
    """The state of one target: its position in the health log, and the messages sent and held back."""

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


def outbox_place(run_dir: RunDir, name: str) -> FollowerPlace:
    """Where the state of one target is."""
    return FollowerPlace(run_dir.notify, name)


def read_outbox(run_dir: RunDir, name: str) -> Outbox | None:
    """A target's outbox; None if it does not exist or is damaged."""
    return read_state(Outbox, outbox_place(run_dir, name))


def write_outbox(run_dir: RunDir, outbox: Outbox) -> None:
    """Save an outbox, replacing the file."""
    make_folder(run_dir.notify, above=False)
    write_state(outbox_place(run_dir, outbox.name), outbox)
