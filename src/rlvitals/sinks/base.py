"""The interface of a tracker: it takes rows, and reports when it has stored them.

A sink is used by the follower, normally in a separate process. It may raise, hang or be slow: the follower reports the
failure and retries. Rows come at least once. After a crash, rows after the last commit come again, and each sink makes
sure that the second copy does no harm. It may keep data for that in `memory`, which is saved only together with the
cursor.
"""

from __future__ import annotations

import os
import threading
import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from importlib import import_module
from pathlib import Path
from typing import Any, ClassVar

from rlvitals.errors import SinkError, did_you_mean
from rlvitals.guard import value_or
from rlvitals.records import Attempt, HealthEvent, Row
from rlvitals.splits import held_out_name
from rlvitals.store.archive import log_state
from rlvitals.store.cursors import FORWARDED
from rlvitals.store.layout import Forwarded, RunDir, kept_file
from rlvitals.store.reader import read_rows, read_samples


@dataclass(frozen=True, slots=True)
class SinkRow:
    """One row of the log, for a tracker."""

    stream: Forwarded
    row: Row
    """The step of a hardware sample is its position among all samples."""


@dataclass(frozen=True, slots=True)
class SinkEvent:
    """One line of the health log, for a tracker."""

    place: int
    """The offset of its line in the log, which is unique within the run."""
    event: HealthEvent


def metric_name(stream: Forwarded, name: str) -> str:
    """The name of a metric in a tracker. Metrics of evaluations get their own names, the same as in the health rules.

    >>> metric_name("eval", "loss"), metric_name("eval", "eval_loss"), metric_name("train", "loss")
    ('eval/loss', 'eval_loss', 'loss')
    """
    return held_out_name(name) if stream == "eval" else name


def stored_rows(root: Path, stream: Forwarded) -> Iterator[Row]:
    """The rows of a log in the form that `write` gets them, for a sink that must write them again."""
    log = RunDir(root).log(stream)
    return read_samples(log) if stream == "system" else read_rows(log)


def rows_held(facts: RunFacts, attempt: int, held: Mapping[str, int], vendor: str) -> Iterator[SinkRow]:
    """The first rows of an attempt in the logs, as many of each stream as a tracker held, for a tracker that must write
    them again. Raises SinkError at once if a log is missing, or while iterating if rows are missing.
    """

    def lost(stream: Forwarded, missing: int) -> SinkError:
        return SinkError(
            f"{vendor} must write attempt {attempt} again, but the log lacks {missing} of its {held[stream]} rows. "
            f"Restore {RunDir(facts.root).log(stream)}"
        )

    def rows() -> Iterator[SinkRow]:
        for stream in streams:
            left = held[stream]
            for row in stored_rows(facts.root, stream):
                if left and row.attempt == attempt:
                    left -= 1
                    yield SinkRow(stream, row)
                if not left:
                    break
            if left:
                raise lost(stream, left)

    streams = [stream for stream in FORWARDED if held.get(stream)]
    for stream in streams:
        if not any(log_state(RunDir(facts.root).log(stream))):
            raise lost(stream, held[stream])
    return rows()


def import_vendor(module: str, tracker: str) -> Any:
    """Import a vendor's module, or raise SinkError with the command that installs it."""
    try:
        return import_module(module)
    except ImportError as error:
        raise SinkError(f"tracker {tracker!r} needs a package: pip install 'rlvitals[{tracker}]' ({error})") from error


@dataclass(frozen=True, slots=True)
class RunFacts:
    """The facts about a run that trackers get. Secrets are masked."""

    root: Path
    id: str
    name: str
    algorithm: str | None
    config: dict[str, Any]
    attempts: tuple[Attempt, ...] = field(default_factory=tuple)
    framework: str | None = None

    def attempt(self, number: int) -> Attempt | None:
        """The record of one attempt; None if there is none."""
        return next((attempt for attempt in self.attempts if attempt.number == number), None)

    def about(self, number: int) -> dict[str, Any]:
        """The facts that are stored with the vendor's run of one attempt, without host and user."""
        attempt = self.attempt(number)
        from_step = attempt.from_step if attempt is not None else None
        return {"run": self.id, "algorithm": self.algorithm, "attempt": number, "from_step": from_step}


def attempt_name(name: str, number: int) -> str:
    """The name of an attempt's run in a vendor's tracker.

    >>> attempt_name("kto-7b", 1), attempt_name("kto-7b", 2)
    ('kto-7b', 'kto-7b (attempt 2)')
    """
    return name if number == 1 else f"{name} (attempt {number})"


class Sink(ABC):
    """One destination. The constructor opens it, or raises SinkError with the fix."""

    known_settings: ClassVar[frozenset[str] | None] = None
    """The settings it accepts; None: the settings of the vendor's own `init`."""

    path_settings: ClassVar[frozenset[str]] = frozenset()
    """The settings that name a file or folder on this machine."""

    takes_samples: ClassVar[bool] = False
    """Whether it can store hardware samples on their own axis, separate from steps."""

    takes_findings: ClassVar[bool] = False
    """Whether it receives new events of the health log (`tell`)."""

    def __init__(self, facts: RunFacts, settings: Mapping[str, Any], memory: dict[str, Any]) -> None:
        self.facts = facts
        self.settings = settings
        self.memory = memory

    @classmethod
    def with_kept_paths(cls, settings: Mapping[str, Any]) -> dict[str, Any]:
        """The settings with absolute paths, because the sink may be opened from another working directory."""
        return {
            key: str(kept_file(value)) if key in cls.path_settings and _is_path(value) else value
            for key, value in settings.items()
        }

    @abstractmethod
    def write(self, rows: Sequence[SinkRow]) -> None:
        """Take rows in log order. Steps may be late or out of order, rows may belong to several attempts, and values
        may be NaN or infinite.
        """

    def tell(self, events: Sequence[SinkEvent]) -> None:  # noqa: B027 - most sinks take no findings
        """Take events of the health log, in order; only with `takes_findings`. `commit` covers them."""

    @abstractmethod
    def commit(self) -> None:
        """Return when the back end has stored every row taken so far. Updates `memory` for the next opening."""

    @abstractmethod
    def close(self) -> None:
        """Finish normally: no more rows will come."""

    def abandon(self) -> None:  # noqa: B027 - some sinks have nothing to release
        """Release everything after an error, without finishing; a new sink will be opened from the last commit."""


@contextmanager
def explained(sentence: Callable[[str], str]) -> Iterator[None]:
    """Turn any exception of a vendor into a SinkError. `sentence` builds its message from the vendor's text and adds
    the fix.
    """
    try:
        yield
    except SinkError:
        raise
    except Exception as error:
        raise SinkError(sentence(str(error))) from error


def end_aside(endings: Iterable[Callable[[], object]], seconds: float) -> None:
    """End a vendor's runs in threads, and wait at most `seconds`. Without a network, ending a run may take forever."""
    threads = [threading.Thread(target=value_or, args=(None, ending), daemon=True) for ending in endings]
    for thread in threads:
        thread.start()
    until = time.monotonic() + seconds
    for thread in threads:
        thread.join(max(0.0, until - time.monotonic()))


def _is_path(value: Any) -> bool:
    return isinstance(value, str | os.PathLike) and bool(str(value).strip()) and "://" not in str(value)


def check_settings(name: str, settings: Mapping[str, Any], known: frozenset[str]) -> None:
    """Raise SinkError for an unknown setting of a tracker, with the nearest known one."""
    for key in settings:
        if key not in known:
            raise SinkError(
                f"tracker {name!r} has no setting {key!r}.{did_you_mean(key, known)} Settings: "
                f"{', '.join(sorted(known))}"
            )
