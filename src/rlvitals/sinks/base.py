"""What a tracker is to the follower: something that takes rows, and says when it really holds them.

A sink lives in the follower's process, never in the trainer's. It may raise, hang or be slow: the follower counts,
retries and moves on. Rows come at least once: after a crash, those after the last commit come again, and each sink sees
to it that the second copy does no harm (`memory` is what it may keep for that; it is saved together with the cursor,
and only then).
"""

from __future__ import annotations

import os
from abc import ABC, abstractmethod
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from importlib import import_module
from pathlib import Path
from typing import Any, ClassVar

from rlvitals.errors import RlvitalsError, did_you_mean
from rlvitals.records import Attempt, Row
from rlvitals.store.layout import Forwarded, RunDir, kept_file
from rlvitals.store.reader import read_rows
from rlvitals.store.samples import read_samples


class SinkError(RlvitalsError):
    """A tracker cannot start or go on; the message says how to fix it."""


@dataclass(frozen=True, slots=True)
class SinkRow:
    """One row of the log on its way to a tracker."""

    stream: Forwarded
    row: Row
    """A sample of the machine has its place among all samples as its step."""


def metric_name(stream: Forwarded, name: str) -> str:
    """What a tracker calls a metric: evaluations are kept apart from training.

    >>> metric_name("eval", "loss"), metric_name("eval", "eval_loss"), metric_name("train", "loss")
    ('eval/loss', 'eval_loss', 'loss')
    """
    return f"eval/{name}" if stream == "eval" and not name.startswith("eval") else name


def stored_rows(root: Path, stream: Forwarded) -> Iterator[Row]:
    """A log's rows as they are handed over, for a sink that must write them once more."""
    log = RunDir(root).log(stream)
    return read_samples(log) if stream == "system" else read_rows(log)


def import_vendor(module: str, tracker: str) -> Any:
    """Import a vendor's module, or raise SinkError with the command that installs it."""
    try:
        return import_module(module)
    except ImportError as error:
        raise SinkError(f"tracker {tracker!r} needs a package: pip install 'rlvitals[{tracker}]' ({error})") from error


@dataclass(frozen=True, slots=True)
class RunFacts:
    """What a tracker may tell of the run. Secrets are masked; host and user are left out."""

    root: Path
    id: str
    name: str
    algorithm: str | None
    config: dict[str, Any]
    attempts: tuple[Attempt, ...] = field(default_factory=tuple)
    framework: str | None = None

    def attempt(self, number: int) -> Attempt | None:
        """The record of one (re)start."""
        return next((attempt for attempt in self.attempts if attempt.number == number), None)


class Sink(ABC):
    """One destination. Constructing it opens it, and raises SinkError with the fix where that cannot be."""

    known_settings: ClassVar[frozenset[str] | None] = None
    """The settings it takes; None: whatever the vendor's own init takes."""

    path_settings: ClassVar[frozenset[str]] = frozenset()
    """Those that name a file or folder on this machine."""

    takes_samples: ClassVar[bool] = False
    """Whether it has a place for samples of the machine, apart from the axis of the steps."""

    def __init__(self, facts: RunFacts, settings: Mapping[str, Any], memory: dict[str, Any]) -> None:
        self.facts = facts
        self.settings = settings
        self.memory = memory

    @classmethod
    def with_kept_paths(cls, settings: Mapping[str, Any]) -> dict[str, Any]:
        """The settings with paths from the root on: it is opened later, perhaps from another working directory."""
        return {
            key: str(kept_file(value)) if key in cls.path_settings and _is_path(value) else value
            for key, value in settings.items()
        }

    @abstractmethod
    def write(self, rows: Sequence[SinkRow]) -> None:
        """Take rows, in log order. They may be late, out of order, of several attempts, and hold NaN and infinities."""

    @abstractmethod
    def commit(self) -> None:
        """Return when the back end is known to hold every row taken so far; update `memory` for the next opening."""

    @abstractmethod
    def close(self) -> None:
        """Finish in an orderly way: no more rows will come."""

    def abandon(self) -> None:  # noqa: B027 - most have nothing to let go of
        """Let go after an error, without finishing; another one will be opened from the last commit."""


def _is_path(value: Any) -> bool:
    return isinstance(value, str | os.PathLike) and bool(str(value).strip()) and "://" not in str(value)


def check_settings(name: str, settings: Mapping[str, Any], known: frozenset[str]) -> None:
    """Raise SinkError on a setting a tracker does not take, with the nearest one it does."""
    for key in settings:
        if key not in known:
            raise SinkError(
                f"tracker {name!r} has no setting {key!r}.{did_you_mean(key, known)} Settings: "
                f"{', '.join(sorted(known))}"
            )
