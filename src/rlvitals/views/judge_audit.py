"""Reads a held-out set from a file: rows with a gold label or preference and the answer of a judge."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any, NamedTuple

from rlvitals.codec import parse_json
from rlvitals.compute.judge_audit import Audit, HeldAnswer, HeldPair, audit, audit_pairs
from rlvitals.errors import ConfigError, did_you_mean, explained
from rlvitals.store.files import read_whole
from rlvitals.values import is_number

COLUMNS = (
    "gold", "verdict", "preferred", "preferred_swapped", "score", "length", "length_a", "length_b", "answer", "a", "b",
    "step",
)  # fmt: skip
"""The columns that are read. A user can give other names."""

_YES = frozenset(
    {"true", "yes", "y", "1", "correct", "right", "accept", "accepted", "pass", "passed", "good", "c", "valid"}
)
_NO = frozenset(
    {"false", "no", "n", "0", "wrong", "incorrect", "reject", "rejected", "fail", "failed", "bad", "i", "invalid"}
)
_SIDES = {
    "a": "a",
    "b": "b",
    "tie": "tie",
    "first": "a",
    "second": "b",
    "0": "a",
    "1": "b",
    "same": "tie",
    "equal": "tie",
}
MOST_ROWS = 1_000_000


class _At(NamedTuple):
    """A row, its position, and the names of its columns."""

    path: str | os.PathLike[str]
    line: int
    row: Mapping[str, Any]
    named: Mapping[str, str]


def audit_file(
    path: str | os.PathLike[str], *, columns: Mapping[str, str] | None = None, threshold: float | None = None
) -> Audit:
    """Audit a judge on the rows of a JSONL file or a JSON list. `columns` maps columns to their names in the file.
    `threshold` is the lowest score of an accepted answer. Raises ConfigError that names the line.
    """
    named = _named(columns or {})
    rows = _rows(path)
    first = rows[0][1]
    if named["preferred"] in first:
        return audit_pairs([_pair(_At(path, place, row, named)) for place, row in rows])
    given = "score" if named["verdict"] not in first and named["score"] in first else "verdict"
    if named[given] not in first:
        raise ConfigError(_missing(path, rows[0][0], first, ("verdict", "preferred"), named))
    if given == "score" and threshold is None:
        raise ConfigError(
            f"{path}: it has scores, not verdicts: say from which one an answer is accepted, --threshold 0.5"
        )
    return audit([_answer(_At(path, place, row, named), given, threshold) for place, row in rows])


def audit_facts(path: str, found: Audit) -> dict[str, Any]:
    """An audit as plain data with stable keys."""
    return {"source": path, **asdict(found)}


def _named(columns: Mapping[str, str]) -> dict[str, str]:
    for key in columns:
        if key not in COLUMNS:
            raise ConfigError(f"there is no column {key!r}.{did_you_mean(key, COLUMNS)} Columns: {', '.join(COLUMNS)}")
    return {name: columns.get(name, name) for name in COLUMNS}


def _rows(path: str | os.PathLike[str]) -> list[tuple[int, dict[str, Any]]]:
    """The rows, each with its line number."""
    with explained(f"cannot read {path}", ConfigError):
        data = read_whole(Path(path))
    found: list[tuple[int, dict[str, Any]]] = []
    if data.lstrip()[:1] == b"[":
        listed: Any = _parsed(data, path, 1)
        found = [(place, row) for place, row in enumerate(listed, 1)]
    else:
        found = [(place, _parsed(line, path, place)) for place, line in enumerate(data.split(b"\n"), 1) if line.strip()]
    for place, row in found:
        if not isinstance(row, dict):
            raise ConfigError(f"{path}, line {place}: a row is a JSON object, not {str(row)[:40]!r}")
    if not found:
        raise ConfigError(f"{path} has no rows: a held set has one JSON object a line, with 'gold' and 'verdict'")
    if len(found) > MOST_ROWS:
        raise ConfigError(f"{path} has {len(found):,} rows; at most {MOST_ROWS:,} are allowed")
    return found


def _parsed(data: bytes, path: str | os.PathLike[str], line: int) -> Any:
    try:
        return parse_json(data)
    except ValueError as error:
        raise ConfigError(f"{path}, line {line}: it is not JSON: {error}") from error


def _missing(
    path: str | os.PathLike[str], line: int, row: Mapping[str, Any], wanted: Sequence[str], named: Mapping[str, str]
) -> str:
    words = " or ".join(f"{named[name]!r}" for name in wanted)
    there = ", ".join(map(repr, list(row)[:12])) or "none"
    return (
        f"{path}, line {line}: the column {words} is missing. Columns there: {there}. "
        f"If it has another name: --column {wanted[0]}=NAME"
    )


def _answer(at: _At, given: str, threshold: float | None) -> HeldAnswer:
    path, line, row, named = at
    for name in ("gold", given):
        if named[name] not in row:
            raise ConfigError(_missing(path, line, row, (name,), named))
    gold = _yes_or_no(row[named["gold"]], threshold if given == "score" else None)
    if gold is None:
        raise ConfigError(
            f"{path}, line {line}: the gold label {row[named['gold']]!r} is neither yes nor no; write true or false"
        )
    value = row[named[given]]
    listed = value if isinstance(value, list) else [value]
    verdicts = tuple(_yes_or_no(one, threshold) for one in listed)
    return HeldAnswer(gold, verdicts, _length(at, "length", "answer"), _step(at))


def _pair(at: _At) -> HeldPair:
    path, line, row, named = at
    if named["preferred"] not in row:
        raise ConfigError(_missing(path, line, row, ("preferred",), named))
    gold = row.get(named["gold"])
    side = None if gold is None else _SIDES.get(str(gold).strip().lower())
    if gold is not None and side is None:
        raise ConfigError(f"{path}, line {line}: the gold preference {gold!r} is none of a, b and tie")
    sizes = [_length(at, f"length_{which}", which) for which in "ab"]
    lengths = (sizes[0], sizes[1]) if sizes[0] is not None and sizes[1] is not None else None
    return HeldPair(
        side, _sides(row[named["preferred"]]), _sides(row.get(named["preferred_swapped"], [])), lengths,
        _step(at),
    )  # fmt: skip


def _sides(value: Any) -> tuple[str | None, ...]:
    listed = value if isinstance(value, list) else [value]
    return tuple(None if one is None else _SIDES.get(str(one).strip().lower()) for one in listed)


def _yes_or_no(value: Any, threshold: float | None) -> bool | None:
    """True, False, or None for any other value."""
    if isinstance(value, bool):
        return value
    if threshold is not None and isinstance(value, int | float):
        return value >= threshold
    word = str(value).strip().lower().removesuffix(".0")
    return True if word in _YES else False if word in _NO else None


def _length(at: _At, number: str, text: str) -> float | None:
    """The given length, or the length of the text."""
    path, line, row, named = at
    given = row.get(named[number])
    if given is None:
        content = row.get(named[text])
        return float(len(content)) if isinstance(content, str) else None
    if not is_number(given) or given < 0:
        raise ConfigError(f"{path}, line {line}: {named[number]} is a length, not {given!r}")
    return float(given)


def _step(at: _At) -> int | None:
    path, line, row, named = at
    step = row.get(named["step"])
    if step is None:
        return None
    if not is_number(step) or step != int(step):
        raise ConfigError(f"{path}, line {line}: {named['step']} is a whole number, not {step!r}")
    return int(step)
