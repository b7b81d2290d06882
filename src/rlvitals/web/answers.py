"""Questions in, JSON out: the typed reading of a query, and facts as bytes."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from dataclasses import fields, is_dataclass
from typing import Any

from rlvitals.codec import encode, to_json
from rlvitals.errors import ConfigError

MOST_NAMES = 200
"""Metrics of one request."""

MOST_RUNS = 32
"""Runs of one comparison."""

LONGEST_NAME = 4096


class Query:
    """What was asked, read strictly: a value that is not a number where one is due raises a ConfigError."""

    def __init__(self, pairs: Iterable[tuple[str, str]]) -> None:
        self._pairs = list(pairs)

    def all(self, key: str, most: int) -> list[str]:
        """Every value given for a key, each once."""
        found = list(dict.fromkeys(value for name, value in self._pairs if name == key))
        if len(found) > most:
            raise ConfigError(f"{len(found)} times {key!r} in one question; {most} are the most")
        if any(len(value) > LONGEST_NAME for value in found):
            raise ConfigError(f"a {key!r} of more than {LONGEST_NAME} characters")
        return found

    def text(self, key: str, default: str | None = None) -> str | None:
        """The last value given for a key."""
        return next(iter(self.all(key, MOST_NAMES)[::-1]), default)

    def needed(self, key: str) -> str:
        found = self.text(key)
        if not found:
            raise ConfigError(f"the question needs {key!r}")
        return found

    def number(self, key: str) -> float | None:
        """A finite number; None where nothing is given."""
        text = self.text(key)
        if not text:
            return None
        try:
            number = float(text)
        except ValueError:
            number = math.nan
        if not math.isfinite(number):
            raise ConfigError(f"{key!r} is a number, not {text[:40]!r}")
        return number

    def whole(self, key: str, default: int | None = None) -> int | None:
        """A whole number; the default where nothing is given."""
        number = self.number(key)
        if number is None:
            return default
        if number != int(number) or abs(number) > 2**53:
            raise ConfigError(f"{key!r} is a whole number, not {number:g}")
        return int(number)


def as_json(facts: Mapping[str, object]) -> bytes:
    """Strict JSON of facts and records. What is not finite is null."""
    try:
        return encode(facts)
    except (TypeError, ValueError, OverflowError):  # odd keys, half characters, no orjson
        return to_json(_plain(facts))


def _plain(value: Any) -> Any:
    if is_dataclass(value):
        return {item.name: _plain(getattr(value, item.name)) for item in fields(value)}
    if isinstance(value, Mapping):
        return {key: _plain(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [_plain(item) for item in value]
    return None if isinstance(value, float) and not math.isfinite(value) else value
