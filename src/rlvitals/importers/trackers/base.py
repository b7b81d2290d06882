"""The interface of a tracker for imports: a source lists runs, describes each, and returns their rows page by page.

A source calls the vendor's own client. `Source.ask` handles the client's exceptions: it retries after temporary errors,
and converts other errors to a message with a fix. Keys and tokens stay in the client; a source neither reads nor prints
them.
"""

from __future__ import annotations

import hashlib
import io
import random
import re
import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import redirect_stdout
from dataclasses import dataclass, field
from importlib import import_module
from itertools import islice
from typing import Any, ClassVar, TypeVar

from rlvitals.errors import MissingDependency, RlvitalsError, SourceError
from rlvitals.guard import guarded, words_of
from rlvitals.importers.cells import time_of
from rlvitals.importers.trackers.address import Address
from rlvitals.masking import mask_text
from rlvitals.records import Group, Row, Status
from rlvitals.store.distributions import Logged
from rlvitals.values import is_whole
from rlvitals.webhook import may_pass, retry_after

T = TypeVar("T")

TRIES = 7
FIRST_WAIT, LONGEST_WAIT = 1.0, 60.0
"""Seconds between tries. The wait doubles each time, and is longer if the server requests it."""

_UNREACHABLE = frozenset(
    {"ConnectError", "ConnectTimeout", "ReadTimeout", "WriteTimeout", "PoolTimeout", "ReadError", "WriteError",
     "RemoteProtocolError", "ConnectionError", "Timeout", "ChunkedEncodingError", "IncompleteRead", "ProtocolError"}
)  # fmt: skip
"""Exceptions of HTTP clients, by name, because vendors use different clients."""

PAGE_ROWS = 5_000

MOST_TEXT = 20_000
"""The most characters kept of a logged text."""


@dataclass(frozen=True, slots=True)
class Origin:
    """The origin of a run that rlvitals itself forwarded to the tracker: one attempt of an rlvitals run."""

    run: str
    attempt: int
    from_step: int | None = None

    @classmethod
    def of(cls, stored: object) -> Origin | None:
        """Parses the origin that a sink has stored; None if it is something else."""
        if not isinstance(stored, Mapping) or not isinstance(stored.get("run"), str) or not stored["run"]:
            return None
        attempt, step = _whole(stored.get("attempt")), _whole(stored.get("from_step"))
        return cls(stored["run"], attempt, step) if attempt is not None and attempt > 0 else None


@dataclass(frozen=True, slots=True)
class RemoteRun:
    """One run of a list, with the facts that are known without fetching its rows."""

    id: str
    name: str
    project: str
    status: Status
    mark: str = ""
    """Changes whenever the run changes. Empty if unknown; the rows are then fetched."""
    created: float | None = None
    ended: float | None = None
    origin: Origin | None = None
    within: str = ""
    """The scope in which its id is unique, if that is not the whole tracker."""
    handle: Any = field(default=None, compare=False, repr=False)
    """The client's own object."""

    @property
    def identity(self) -> str:
        """Identifies the run, also after it was renamed."""
        return f"{self.within}/{self.id}" if self.within else self.id


@dataclass(frozen=True, slots=True)
class RunCard:
    """The data of a run besides its rows."""

    config: dict[str, Any] = field(default_factory=dict)
    tags: list[str] = field(default_factory=list)
    note: str = ""
    summary: dict[str, Any] = field(default_factory=dict)
    facts: dict[str, Any] = field(default_factory=dict)
    """Other short facts: group, job type, state."""


@dataclass(frozen=True, slots=True)
class Page:
    """Some rows of a run, in order, and the cursor to continue after them."""

    rows: list[Row] = field(default_factory=list)
    """All with attempt 1. The code that writes them sets the attempt."""
    samples: list[Row] = field(default_factory=list)
    """Samples of the machine."""
    distributions: list[Logged] = field(default_factory=list)
    groups: list[Group] = field(default_factory=list)
    """Rollouts, if a table of completions was logged."""
    cursor: dict[str, Any] = field(default_factory=dict)


class Source(ABC):
    """A tracker at an address. An instance is used once, by one thread."""

    scheme: ClassVar[str]
    grammar: ClassVar[str]
    """The form of its addresses, for messages."""
    login: ClassVar[str] = ""
    """What to do if the login is missing or refused: a sentence."""
    goes_on: ClassVar[bool]
    """Whether `pages` can continue from a cursor. Otherwise a changed run is fetched again completely."""

    def __init__(self, address: Address, tell: Callable[[str], None] = lambda message: None) -> None:
        self.address, self._tell = address, tell
        self.notes: dict[str, None] = {}
        """Remarks on the run whose pages were returned last."""

    @property
    @abstractmethod
    def is_one_run(self) -> bool:
        """Whether the address names a run rather than a project."""

    @abstractmethod
    def runs(self) -> Iterator[RemoteRun]:
        """The run that the address names, or all runs of the project, oldest first."""

    @abstractmethod
    def card(self, run: RemoteRun) -> RunCard:
        """The tracker's data on a run besides its rows."""

    @abstractmethod
    def pages(self, run: RemoteRun, cursor: dict[str, Any]) -> Iterator[Page]:
        """The rows of a run: all rows, or those after an earlier page if its cursor is passed."""

    def close(self) -> None:  # noqa: B027 - most have nothing to release
        """Release the client."""

    def wrong_address(self) -> SourceError:
        """The error for a path that names nothing."""
        return SourceError(f"{self.address} is not an address of {self.scheme}. Write {self.grammar}")

    def ask(self, question: Callable[[], T], what: str = "") -> T:
        """The client's answer. Temporary errors are retried; other errors raise SourceError."""
        wait = FIRST_WAIT
        for left in reversed(range(TRIES)):
            met: list[Exception] = []
            with guarded(met.append, but=(RlvitalsError,)), redirect_stdout(_Nowhere()):
                return question()
            error = met[0]
            if not left or not self.may_pass(error):
                raise self._explained(error, what) from error
            pause = max(_asked_wait(error), wait * random.uniform(0.75, 1.25))  # noqa: S311 - so that several imports do not retry at once
            pause = min(pause, 10 * LONGEST_WAIT)
            self._tell(f"{self.scheme} does not answer ({words_of(error)[:80]}): trying again in {pause:.0f} s")
            time.sleep(pause)
            wait = min(2 * wait, LONGEST_WAIT)
        raise AssertionError  # the loop returns or raises

    def may_pass(self, error: Exception) -> bool:
        """Whether an error is temporary, so that a retry may succeed."""
        status = status_of(error)
        if status is not None:
            return may_pass(status)
        return any(
            isinstance(one, ConnectionError | TimeoutError) or type(one).__name__ in _UNREACHABLE
            for one in chain(error)
        )

    def needs_login(self, error: Exception) -> bool:
        """Whether an error means that the login is missing or refused."""
        return status_of(error) in (401, 403)

    def _explained(self, error: Exception, what: str) -> SourceError:
        message = mask_text(" ".join(str(error).split()))[:300] or type(error).__name__
        if self.needs_login(error):
            return SourceError(f"{self.address}: {self.scheme} refuses the login ({message}). {self.login}".rstrip())
        return SourceError(f"{self.address}: {what or 'it'} cannot be fetched: {message}")


class _Nowhere(io.TextIOBase):
    """Discards what clients print: it is not sanitised, may contain signed URLs, and would break JSON output."""

    def write(self, text: str) -> int:
        return len(text)


def in_pages(rows: Iterable[Row]) -> Iterator[list[Row]]:
    """The rows in lists of `PAGE_ROWS`; the last one may be shorter."""
    left = iter(rows)
    while page := list(islice(left, PAGE_ROWS)):
        yield page


def mark_of(facts: object) -> str:
    """A mark that changes with these facts of a run."""
    return hashlib.sha256(repr(facts).encode("utf-8", "replace")).hexdigest()[:32]


def client_module(name: str, scheme: str) -> Any:
    """A vendor's module. Raises MissingDependency with the command that installs it."""
    try:
        return import_module(name)
    except ImportError as error:
        raise MissingDependency(f"Importing from {scheme}", scheme) from error


def chain(error: BaseException) -> Iterator[BaseException]:
    """An exception and its causes, because clients wrap each other's exceptions."""
    seen: set[int] = set()
    waiting: list[object] = [error]
    while waiting:
        one = waiting.pop()
        if isinstance(one, BaseException) and id(one) not in seen:
            seen.add(id(one))
            yield one
            waiting += [one.__cause__, one.__context__, getattr(one, "exc", None)]


def status_of(error: BaseException) -> int | None:
    """The HTTP status that an exception carries, or None."""
    for one in chain(error):
        response = getattr(one, "response", None)
        for holder, name in ((one, "status_code"), (response, "status_code"), (response, "http_status")):
            status = getattr(holder, name, None)
            if isinstance(status, int) and 100 <= status < 600:
                return status
    return None


def _asked_wait(error: BaseException) -> float:
    """The seconds that the server of an error asks to wait; 0 if it does not."""
    for one in chain(error):
        headers = getattr(getattr(one, "response", None), "headers", None)
        header = headers.get("retry-after") if isinstance(headers, Mapping) else None
        if isinstance(header, str) and (seconds := retry_after(header)) is not None:
            return seconds
    return 0.0


def utc_time(value: object) -> float | None:
    """Unix seconds. A text without a time zone is read as UTC, which servers use.

    >>> utc_time("2026-01-01T00:00:00"), utc_time("2026-01-01T00:00:00Z"), utc_time(None)
    (1767225600.0, 1767225600.0, None)
    """
    if isinstance(value, str) and re.fullmatch(r"\d{4}-\d\d-\d\d[T ]\d\d:\d\d(:\d\d(\.\d+)?)?", value):
        value += "+00:00"
    return time_of(value)


def without_nothing(facts: Mapping[str, Any]) -> dict[str, Any]:
    """The facts without empty values."""
    return {name: value for name, value in facts.items() if value not in (None, "", [], {})}


def _whole(value: object) -> int | None:
    if isinstance(value, str) and value.lstrip("-").isdecimal() and len(value) < 16:
        return int(value)
    return value if is_whole(value) else None
