"""How numbers, times, durations and settings are written, the same everywhere."""

from __future__ import annotations

import json
import math
from datetime import datetime
from typing import Any

from rlvitals.terminal import visible

LONGEST_SETTING = 200


def number(value: float | int | None) -> str:
    """A number to about four significant digits, whole numbers in full up to 15 digits; a dash for None.

    >>> [number(x) for x in (0.61999, 5e-7, 12345678, 3.0, None, float("nan"), -1e300)]
    ['0.62', '5e-07', '12,345,678', '3', '-', 'nan', '-1e+300']
    """
    if value is None:
        return "-"
    if not math.isfinite(value):
        return str(value)
    if abs(value) >= 1e15:
        return f"{value:.4g}"
    if value == int(value):
        return f"{int(value):,}"
    if abs(value) >= 1000:
        return f"{value:,.1f}" if abs(value) < 1e5 else f"{value:,.0f}"
    return f"{value:.4g}"


def progress(step: int | None, total: int | None) -> str:
    """The last step of a run, and the total if it is known.

    >>> progress(100, 2000), progress(100, None), progress(None, 2000)
    ('100/2,000', '100', '-/2,000')
    """
    return f"{number(step)}/{number(total)}" if total else number(step)


def duration(seconds: float) -> str:
    """A length of time in its two largest units.

    >>> [duration(x) for x in (0.25, 59, 61, 3725, 90000)]
    ['0.2 s', '59 s', '1 min 1 s', '1 h 2 min', '1 d 1 h']
    """
    if seconds < 10:
        return f"{seconds:.1f} s"
    whole = round(seconds)
    for size, word, small, small_word in ((86400, "d", 3600, "h"), (3600, "h", 60, "min"), (60, "min", 1, "s")):
        if whole >= size:
            rest = whole % size // small
            return f"{whole // size} {word}" + (f" {rest} {small_word}" if rest else "")
    return f"{whole} s"


def moment(timestamp: float) -> str:
    """A point in time, local, to the minute; a dash if there is none or no calendar date exists for it."""
    if not timestamp or not math.isfinite(timestamp):
        return "-"
    try:
        return datetime.fromtimestamp(timestamp).strftime("%Y-%m-%d %H:%M")
    except (ValueError, OverflowError, OSError):
        return "-"


def band(low: float | None, high: float | None) -> str:
    """A range.

    >>> band(0.3, 2), band(None, 1), band(0.5, None)
    ('0.3 to 2', 'at most 1', 'at least 0.5')
    """
    if low is None:
        return f"at most {number(high)}"
    return f"at least {number(low)}" if high is None else f"{number(low)} to {number(high)}"


def setting(value: Any) -> str:
    """A setting's value on one line.

    >>> setting(5e-7), setting("a"), setting([1, 2]), setting(None)
    ('5e-07', 'a', '[1, 2]', '-')
    """
    if value is None:
        return "-"
    text = value if isinstance(value, str) else json.dumps(value, ensure_ascii=False, default=str)
    text = visible(text)
    return (
        text if len(text) <= LONGEST_SETTING else f"{text[:LONGEST_SETTING]} [+{number(len(text) - LONGEST_SETTING)}]"
    )
