"""Reads typed values from a query string, and writes facts as JSON."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from dataclasses import fields, is_dataclass
from typing import Any

from rlvitals.codec import encode, to_json
from rlvitals.errors import ConfigError, RlvitalsError, RunNotFound, RunUnreadable, UnknownMetric

MOST_NAMES = 200
"""Maximum number of metrics in one request."""

MOST_RUNS = 32
"""Maximum number of runs in one comparison."""

LONGEST_NAME = 4096


class Query:
    """The parameters of a request. A value of the wrong type raises ConfigError."""

    def __init__(self, pairs: Iterable[tuple[str, str]]) -> None:
        self._pairs = list(pairs)

    def all(self, key: str, most: int) -> list[str]:
        """All values of a key, without duplicates."""
        found = list(dict.fromkeys(value for name, value in self._pairs if name == key))
        if len(found) > most:
            raise ConfigError(f"{len(found)} times {key!r} in one question; at most {most} are allowed")
        if any(len(value) > LONGEST_NAME for value in found):
            raise ConfigError(f"a {key!r} of more than {LONGEST_NAME} characters")
        return found

    def text(self, key: str, default: str | None = None) -> str | None:
        """The last value of a key."""
        return next(iter(self.all(key, MOST_NAMES)[::-1]), default)

    def needed(self, key: str) -> str:
        found = self.text(key)
        if not found:
            raise ConfigError(f"the question needs {key!r}")
        return found

    def number(self, key: str) -> float | None:
        """A finite number, or None if the key is missing."""
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
        """A whole number, or the default if the key is missing."""
        number = self.number(key)
        if number is None:
            return default
        if number != int(number) or abs(number) > 2**53:
            raise ConfigError(f"{key!r} is a whole number, not {number:g}")
        return int(number)


def status_of(error: RlvitalsError) -> int:
    """The HTTP status of an answer that failed."""
    if isinstance(error, RunNotFound | UnknownMetric):
        return 404
    return 503 if isinstance(error, RunUnreadable) else 400


def as_json(facts: Mapping[str, object]) -> bytes:
    """Facts and records as strict JSON. Non-finite numbers become null."""
    try:
        return encode(facts)
    except (TypeError, ValueError, OverflowError):  # unusual keys, lone surrogates, or no orjson
        return to_json(_plain(facts))


def _plain(value: Any) -> Any:
    if is_dataclass(value):
        return {item.name: _plain(getattr(value, item.name)) for item in fields(value)}
    if isinstance(value, Mapping):
        return {key: _plain(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [_plain(item) for item in value]
    return None if isinstance(value, float) and not math.isfinite(value) else value
