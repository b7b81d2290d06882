"""What every reader of a foreign log gives back, and what it says when there is nothing to read."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Protocol

from rlvitals.errors import NotALog

__all__ = ["Fields", "ForeignLog", "LineReader", "NotALog", "Notes", "named"]

Fields = dict[str, Any]
"""One row: "step", perhaps "timestamp", and numbers by the names they were logged with."""


@dataclass(frozen=True, slots=True)
class ForeignLog:
    """A log that somebody else wrote, as rows in the order of the file."""

    path: Path
    format: str
    """"trainer_state", "jsonl", "json", "csv", "tensorboard", "wandb", "verl" or "console"."""
    rows: list[Fields]
    config: dict[str, Any] = field(default_factory=dict)
    """What the file itself says of the training's settings."""
    notes: list[str] = field(default_factory=list)
    """What was skipped or repaired, in plain words."""


class Notes:
    """Remarks on what was skipped or repaired: each kind once, with a count."""

    def __init__(self) -> None:
        self._counts: Counter[tuple[str, str]] = Counter()
        self._said: list[str] = []

    def count(self, one: str, many: str, by: int = 1) -> None:
        """Count one more of a kind; `many` holds a {} for the number."""
        self._counts[one, many] += by

    def say(self, remark: str) -> None:
        """Say something once."""
        if remark not in self._said:
            self._said.append(remark)

    def take_back(self, remark: str) -> None:
        """What was said has turned out otherwise."""
        self._said.remove(remark)

    def texts(self) -> list[str]:
        counted = [one if number == 1 else many.format(number) for (one, many), number in self._counts.items()]
        return [*self._said, *counted]


def named(names: Iterable[str], most: int = 5) -> str:
    """A few of many names, for a remark."""
    ordered = sorted(names)
    return ", ".join(ordered[:most]) + (f" and {len(ordered) - most} more" if len(ordered) > most else "")


class LineReader(Protocol):
    """A reader that is fed line by line, so that a file can be read while it grows."""

    config: dict[str, Any]
    notes: Notes

    def feed(self, line: str) -> list[Fields]:
        """The rows that one more line completes."""
        ...

    def finish(self) -> list[Fields]:
        """The rows that were waiting for a line that does not come."""
        ...
