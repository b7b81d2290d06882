"""Converts logged values to numbers: texts such as `np.float64(0.5)`, nested mappings, lists, null."""

from __future__ import annotations

import math
import re
from collections.abc import Iterator, Mapping
from datetime import datetime
from typing import Any

from rlvitals.records import Fields
from rlvitals.values import is_number

MAX_DEPTH = 16

NUMBER = r"[+-]?(?:\d+\.?\d*(?:[eE][+-]?\d+)?|\.\d+(?:[eE][+-]?\d+)?|(?:nan|inf(?:inity)?)\b)"
_BEGINS = frozenset("0123456789+-.")
_WORDS = {"nan": math.nan, "inf": math.inf, "infinity": math.inf, "true": 1, "false": 0}
_WRAPPED = re.compile(
    r"(?:\w+\.)*(?:b?float\d*|u?int\d*|bool_?|tensor|array|Array|Decimal)\(\s*([^\s(),]+)\s*(?:,.*)?\)"
)
_THOUSANDS = re.compile(r"[+-]?\d{1,3}(?:,\d{3})+(?:\.\d+)?")
_PLAIN = r"[+-]?\d++(?:\.\d++)?(?:[eE][+-]?\d++)?"
_WITH_ERROR = re.compile(rf"({_PLAIN})\s?(?:(?:±|\+/-)\s?{_PLAIN}|[\[(]{_PLAIN}(?:,\s?{_PLAIN})?[\])])")
_MARKUP = re.compile(r"\x1b(?:\[[0-9;?]*[ -/]*[@-~]|\][^\x07\x1b]*(?:\x07|\x1b\\)|[()][A-B0-2]|[=>78])")

EARLIEST = 946_684_800.0
"""The year 2000. A smaller number is an elapsed time, not a point in time."""


def without_markup(text: str) -> str:
    """A line without terminal colours and cursor movements."""
    return _MARKUP.sub("", text) if "\x1b" in text else text


def number_in(text: str) -> int | float | None:
    """The number that a text represents, or None.

    >>> number_in("np.float64(0.5)"), number_in("1e-06"), number_in("12"), number_in("nan"), number_in("0.5x")
    (0.5, 1e-06, 12, nan, None)
    """
    text = text.strip()
    if text.endswith(")"):
        wrapped = _WRAPPED.fullmatch(text)
        if wrapped is None:
            return None
        text = wrapped[1].strip("'\"")
    if text[:1] not in _BEGINS or "_" in text or not text.isascii():
        return _WORDS.get(text.lower())
    try:
        return int(text) if len(text) <= 18 and text.lstrip("+-").isdigit() else float(text)
    except ValueError:
        return None


def printed_number(text: str) -> int | float | None:
    """The number in a text formatted for people: a percentage, a number with thousands separators, or one with its
    error.

    >>> printed_number("43.2%"), printed_number("1,234"), printed_number("12.5 ± 0.5"), printed_number("x")
    (0.432, 1234, 12.5, None)
    """
    number = number_in(text)
    if number is not None or text[:1] not in _BEGINS:
        return number
    if text.endswith("%"):
        share = number_in(text[:-1])
        return None if share is None else round(share / 100, 12)
    if _THOUSANDS.fullmatch(text):
        return number_in(text.replace(",", ""))
    with_error = _WITH_ERROR.fullmatch(text)
    return number_in(with_error[1]) if with_error else None


def number_of(value: object) -> int | float | None:
    """The number in a parsed value. None for null, texts that are not numbers and values that are not scalars."""
    if type(value) is float:
        return value
    if isinstance(value, int):
        return int(value) if -(2**63) <= value < 2**63 else float(str(value))  # infinity if it is too large
    if isinstance(value, str) and value and len(value) < 80:
        return number_in(value)
    return float(value) if isinstance(value, float) else None


def unwrapped(raw: dict[Any, Any]) -> dict[Any, Any]:
    """The row inside the envelope that some loggers write: verl's file logger ("data"), ROLL's on stdout ("metrics").

    >>> unwrapped({"step": 3, "data": {"loss": 0.5}})
    {'loss': 0.5, 'step': 3}
    """
    for name in ("data", "metrics"):
        row = raw.get(name)
        if isinstance(row, dict) and raw.keys() <= {"step", name, "timestamp"}:
            return {**row, **{key: value for key, value in raw.items() if key != name}}
    return raw


def flatten(raw: Mapping[Any, Any], left_out: set[str] | None = None) -> Fields:
    """The numbers in nested mappings, with names joined by "/". A list of numbers becomes its mean; null is dropped.

    >>> flatten({"loss": 0.5, "kl": None, "gradients": {"norm": 2}, "rewards": [1.0, 0.0], "note": "x"})
    {'loss': 0.5, 'gradients/norm': 2, 'rewards/mean': 0.5}
    """
    found: Fields = {}
    for name, value in leaves(raw):
        number = number_of(value)
        if number is not None:
            found[name] = number
        elif isinstance(value, list | tuple) and value:
            numbers = [number for item in value if (number := number_of(item)) is not None]
            if len(numbers) == len(value):
                found[f"{name}/mean"] = mean(numbers)
            elif left_out is not None:
                left_out.add(name)
        elif value is not None and value != "" and left_out is not None:
            left_out.add(name)
    return found


def time_of(value: object) -> float | None:
    """Unix seconds from a number or an ISO text; None if it is not a point in time."""
    if isinstance(value, str):
        try:
            return datetime.fromisoformat(value).timestamp()
        except (ValueError, OverflowError, OSError):
            value = number_in(value)
    if not is_number(value) or not math.isfinite(value):
        return None
    while value > EARLIEST * 100:  # milliseconds, microseconds
        value /= 1000
    return float(value) if value >= EARLIEST else None


def leaves(raw: Mapping[Any, Any], prefix: str = "", depth: int = 0) -> Iterator[tuple[str, Any]]:
    """The values in nested mappings, with names joined by "/"."""
    for key, value in raw.items():
        name = f"{prefix}{key}"
        if isinstance(value, Mapping):
            if depth < MAX_DEPTH:
                yield from leaves(value, f"{name}/", depth + 1)
        else:
            yield name, value


def mean(numbers: list[int | float]) -> float:
    """The mean of numbers, which may include infinities and nan."""
    total = math.fsum(numbers) if all(map(math.isfinite, numbers)) else float(sum(numbers))
    return total / len(numbers)
