"""One row, one line: the encoder and the tolerant decoder of the row format.

A line is strict JSON: `{"step":10,"timestamp":1763190000.1,"attempt":1,"loss":0.62,...}`. Keys that begin with `_` are
ours: `_m` (metric -> [count, mean, M2, min, max]), `_nonfinite` ("loss=nan kl=inf"; those metrics have no key of their
own, so strict parsers and naive scripts both work) and `_gap` (rows lost right before this one).
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from datetime import datetime
from typing import Any

from rlvitals.codec import parse_json
from rlvitals.records import MAX_ATTEMPT, MAX_STEP, MAX_TIME, Row
from rlvitals.values import Value

MOMENTS, NONFINITE, GAP = "_m", "_nonfinite", "_gap"
RESERVED = frozenset({"step", "timestamp", "attempt"})


class BadLine(ValueError):
    """A line that is not a row; the message says why in a few words."""


def decode(line: bytes) -> Row:
    """One line to one row. Raises BadLine on what is no row; a value of a wrong type is left out of a good row."""
    try:
        raw = parse_json(line)
    except ValueError as error:
        raise BadLine("not JSON") from error
    if type(raw) is not dict:
        raise BadLine("not a JSON object")
    step = raw.pop("step", None)
    if type(step) is float and step.is_integer():
        step = int(step)
    if type(step) is not int:
        raise BadLine("no whole number as step")
    if not -MAX_STEP <= step <= MAX_STEP:
        raise BadLine("step out of range")
    attempt = raw.pop("attempt", 1)
    if type(attempt) is not int or not 0 < attempt <= MAX_ATTEMPT:
        raise BadLine("no whole number as attempt")
    timestamp = _time(raw.pop("timestamp", None))
    moments, nonfinite, gap = raw.pop(MOMENTS, None), raw.pop(NONFINITE, None), raw.pop(GAP, None)
    numbers: dict[str, float] = {}
    texts: dict[str, str] = {}
    for key, value in raw.items():
        kind = type(value)
        if kind is float:
            numbers[key] = value
        elif kind is int or kind is bool:
            numbers[key] = _as_float(value)
        elif kind is str:
            texts[key] = value
    if type(nonfinite) is str:
        numbers.update(read_nonfinite(nonfinite))
    return Row(
        step=step,
        timestamp=timestamp,
        attempt=attempt,
        numbers=numbers,
        texts=texts,
        values=_values(moments) if moments is not None else {},
        gap=_gap(gap),
    )


def write_nonfinite(numbers: Mapping[str, float]) -> str:
    """The stored form of non-finite numbers.

    >>> write_nonfinite({"loss": float("nan"), "kl": float("-inf")})
    'loss=nan kl=-inf'
    """
    return " ".join(f"{_escaped(name)}={_WORDS[_sign(number)]}" for name, number in numbers.items())


def read_nonfinite(text: str) -> dict[str, float]:
    """Read it back; words that are no such pair are left out.

    >>> read_nonfinite("loss=nan grad%20norm=inf oops")
    {'loss': nan, 'grad norm': inf}
    """
    found = {}
    for word in text.split(" "):
        name, _, value = word.rpartition("=")
        if name and value in ("nan", "inf", "-inf"):
            found[name.replace("%20", " ").replace("%25", "%")] = float(value)
    return found


_WORDS = {0: "nan", 1: "inf", -1: "-inf"}


def _escaped(name: str) -> str:
    return name.replace("%", "%25").replace(" ", "%20")


def _sign(number: float) -> int:
    return 0 if math.isnan(number) else (1 if number > 0 else -1)


def _values(moments: Any) -> dict[str, Value]:
    if type(moments) is not dict:
        return {}
    found = {}
    for name, stored in moments.items():
        try:
            found[name] = Value.from_list(stored)
        except (ValueError, TypeError, OverflowError):
            continue
    return found


def _gap(mark: Any) -> int:
    rows = mark.get("rows") if type(mark) is dict else None
    return rows if type(rows) is int and 0 < rows <= MAX_STEP else 0


def _as_float(number: int) -> float:
    try:
        return float(number)
    except OverflowError:
        return math.inf if number > 0 else -math.inf


def _time(stamp: Any) -> float:
    """Unix seconds, also from the ISO texts other recorders write."""
    if type(stamp) is int or type(stamp) is float:
        return float(stamp) if -MAX_TIME <= stamp <= MAX_TIME else math.nan
    if type(stamp) is str:
        try:
            return datetime.fromisoformat(stamp).timestamp()
        except (ValueError, OverflowError, OSError):
            return math.nan
    return math.nan
