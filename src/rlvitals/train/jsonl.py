"""The user's data sets: a JSONL file with some columns, checked line by line before anything is trained."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from rlvitals.codec import parse_json
from rlvitals.errors import ConfigError, did_you_mean


class JsonLine(NamedTuple):
    """One line of a file."""

    where: str
    values: dict[str, Any]

    def text(self, column: str) -> str:
        """A column that must be a non-empty text."""
        value = self.values[column]
        if not isinstance(value, str) or not value.strip():
            raise ConfigError(f"{self.where}: {column!r} must be a text that is not empty")
        return value


def _near(column: str, row: dict[str, Any]) -> str:
    return did_you_mean(column, map(str, row))


def read_rows(path: str, columns: Sequence[str], hint: Callable[[str, dict[str, Any]], str] = _near) -> list[JsonLine]:
    """The lines of a file, each with these columns. Raises an error that names the first wrong line; `hint` adds a
    sentence about a missing column.
    """
    try:
        lines = Path(path).read_bytes().splitlines()
    except OSError as error:
        raise ConfigError(f"cannot read the dataset {path!r}: {error.strerror or error}") from error
    rows = [_row(f"{path}, line {number}", line, columns, hint) for number, line in enumerate(lines, 1) if line.strip()]
    if not rows:
        raise ConfigError(f"{path} is empty: it needs a JSON object with {', '.join(columns)} on each line")
    return rows


def _row(where: str, line: bytes, columns: Sequence[str], hint: Callable[[str, dict[str, Any]], str]) -> JsonLine:
    try:
        values = parse_json(line)
    except ValueError as error:
        raise ConfigError(f"{where} is not JSON: {error}") from error
    if not isinstance(values, dict):
        raise ConfigError(f"{where} must be a JSON object with {', '.join(columns)}, not {type(values).__name__}")
    for column in columns:
        if column not in values:
            have = ", ".join(values) or "nothing"
            raise ConfigError(f"{where} has no {column!r}; it has {have}.{hint(column, values)}")
    return JsonLine(where, values)
