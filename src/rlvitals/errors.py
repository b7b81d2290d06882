"""Every exception rlvitals raises, and when.

```
RlvitalsError
├── ConfigError          a setting is unknown, contradictory or unreadable
├── MissingDependency    a feature needs a package that is not installed
├── UnknownMetric        a name the catalogue does not know
├── CatalogError         a catalogue entry (ours, a plug-in's or the user's) is malformed
├── RuleError            a health rule (a preset's or the user's) is malformed
├── BadValue             a logged value has an unsupported type (only with strict=True)
├── BadText              a text to score is missing, is not a text, or has no partner
├── NotComparable        two series are not the same quantity
├── NotALog              a file or folder holds no training numbers that can be read
├── SinkError            a tracker cannot start or continue (raised in the follower's process)
├── SourceError          runs cannot be fetched from a tracker: no login, no such run, or its server fails
├── RanksOutOfStep       ranks that reduce together are at different steps: one has skipped a call
└── RunError             something about a run's directory
    ├── RunNotFound      there is no run there
    ├── RunExists        the directory holds a run, and neither resume nor overwrite was given
    ├── RunLocked        another live process writes it
    └── RunUnreadable    it was written by a newer rlvitals, or one of its files is damaged or cannot be read
```

Each message says what happened, which value was seen and how to fix it. During training none of these is raised
into the training loop without `strict=True`. (RanksOutOfStep is: numbers of different steps would be merged
from then on.)

Example:
    ```python
    import rlvitals

    try:
        rlvitals.explain("reward_meen")
    except rlvitals.errors.UnknownMetric as error:
        print(type(error).__name__)  # UnknownMetric
    ```
"""

from __future__ import annotations

import difflib
from collections.abc import Iterable, Iterator
from contextlib import contextmanager


class RlvitalsError(Exception):
    """The base class; catch it to catch every error of rlvitals."""


class ConfigError(RlvitalsError):
    """A setting is unknown, contradictory or unreadable."""


class MissingDependency(RlvitalsError):
    """A feature needs a package that is not installed; the message holds the pip command."""

    def __init__(self, feature: str, extra: str = "", *, package: str = "") -> None:
        wanted = package or f"'rlvitals[{extra}]'"
        super().__init__(f"{feature} needs a package that is not installed. Install it with: pip install {wanted}")


@contextmanager
def needs(feature: str, extra: str = "", *, package: str = "") -> Iterator[None]:
    """Wrap the imports that a feature needs: a failing import raises MissingDependency."""
    try:
        yield
    except ImportError as error:
        raise MissingDependency(feature, extra, package=package) from error


class SinkError(RlvitalsError):
    """A tracker cannot start or continue; the message says how to fix it."""


class SourceError(RlvitalsError):
    """Runs cannot be fetched from a tracker; the message says why and what to do."""


class RanksOutOfStep(RlvitalsError):
    """Ranks that reduce together are at different steps."""


class UnknownMetric(RlvitalsError):
    """No entry of the catalogue has this name; `nearest` holds the closest ones."""

    def __init__(self, name: str, nearest: list[str]) -> None:
        self.name = name
        self.nearest = nearest
        hint = f" Nearest names: {', '.join(nearest)}." if nearest else ""
        super().__init__(f"unknown metric {name!r}.{hint} Register your own metrics with rlvitals.catalog.register().")


class CatalogError(RlvitalsError):
    """A catalogue entry is malformed; the message names the file and the entry."""


class RuleError(RlvitalsError):
    """A health rule is malformed; the message names the file and the line."""


class BadValue(RlvitalsError):
    """A logged value has an unsupported type. Raised with strict=True only; otherwise it is dropped with a warning and
    counted.
    """


class BadText(RlvitalsError):
    """A text to score is missing, is not a text, is too large, or has no partner; the message names the pair."""


class NotComparable(RlvitalsError):
    """Two series have the same name or concept but are not the same quantity."""


class NotALog(RlvitalsError):
    """A file holds no training numbers; the message says why. `rlvitals.importers` adds the readable formats."""

    def __init__(self, path: object, why: str, more: str = "") -> None:
        self.path = path
        self.why = why
        self.more = more
        super().__init__(f"{path} is not a training log: {why}.{more}")


class RunError(RlvitalsError):
    """Base class of problems with a run's directory."""


class RunNotFound(RunError):
    """There is no run in that directory."""


class RunExists(RunError):
    """The directory holds a run, and neither resume nor overwrite was given."""


class RunLocked(RunError):
    """Another live process writes this run."""


class RunUnreadable(RunError):
    """The run was written by a newer rlvitals, or a file of it is damaged or cannot be read; the message says which."""


@contextmanager
def explained(what: str, kind: type[RlvitalsError] = RunError, *, after: str = "") -> Iterator[None]:
    """Wrap the use of files: an OSError becomes an error of this kind, whose message says what failed and why."""
    try:
        yield
    except OSError as error:
        raise kind(f"{what}: {error.strerror or error}{after}") from error


def did_you_mean(word: str, known: Iterable[str], cutoff: float = 0.6) -> str:
    """Return ' Did you mean 'x'?' for the nearest known word, or nothing.

    >>> did_you_mean("totel_steps", ["total_steps", "name"])
    " Did you mean 'total_steps'?"
    >>> did_you_mean("zzz", ["total_steps"])
    ''
    """
    close = difflib.get_close_matches(word, list(known), n=1, cutoff=cutoff)
    return f" Did you mean {close[0]!r}?" if close else ""
