"""One row, one line: the encoder and the tolerant decoder of the row format.

A line is strict JSON: `{"step":10,"timestamp":1763190000.1,"attempt":1,"loss":0.62,...}`. Keys that begin with `_`
belong to rlvitals: `_m` (metric -> [count, mean, M2, min, max]), `_nonfinite` ("loss=nan kl=inf"; these metrics have no
separate key, so strict parsers and simple scripts both work) and `_gap` (rows lost right before this one).
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from datetime import datetime
from typing import Any

from rlvitals.codec import NEWLINE, NONFINITE, dumps, parse_json, parse_shallow, read_nonfinite, write_nonfinite
from rlvitals.records import MAX_ATTEMPT, MAX_STEP, MAX_TIME, RESERVED, Row
from rlvitals.values import Value

MOMENTS, GAP = "_m", "_gap"


class BadLine(ValueError):
    """A line that is not a row. The message gives the reason in a few words."""


def encode_row(step: int, now: float, attempt: int, metrics: dict[str, Any]) -> bytes:
    r"""A row that is logged now, with its time in milliseconds. `metrics` must be in stored form: see `stored_metrics`.

    >>> encode_row(10, 1763190000.12345, 1, {"loss": 0.5})
    b'{"step":10,"timestamp":1763190000.123,"attempt":1,"loss":0.5}\n'
    """
    # A single call of orjson's own function: every microsecond counts in `Run.log`.
    return dumps({"step": step, "timestamp": now * 1000 // 1 / 1000, "attempt": attempt} | metrics, None, NEWLINE)


def stored_row(row: Row, **further: Any) -> dict[str, Any]:
    """A recorded row in the form that `decode` reads back. `further` fields follow the head.

    >>> stored_row(Row(3, math.nan, 1, {"loss": 0.5, "kl": math.inf}), stream="train")
    {'step': 3, 'attempt': 1, 'stream': 'train', 'loss': 0.5, '_nonfinite': 'kl=inf'}
    """
    line: dict[str, Any] = {"step": row.step, "timestamp": row.timestamp, "attempt": row.attempt, **further}
    if not math.isfinite(row.timestamp):
        del line["timestamp"]
    moments = {name: value.to_list() for name, value in row.values.items()}
    line |= stored_metrics(row.numbers | row.texts, moments)
    if row.gap:
        line[GAP] = {"rows": row.gap}
    return line


def stored_metrics(metrics: Mapping[str, Any], moments: Mapping[str, Any] | None = None) -> dict[str, Any]:
    """Checked metrics in stored form: non-finite numbers and moments have separate keys.

    >>> stored_metrics({"loss": 0.5, "kl": float("nan")})
    {'loss': 0.5, '_nonfinite': 'kl=nan'}
    """
    nonfinite = {
        name: value for name, value in metrics.items() if isinstance(value, float) and not math.isfinite(value)
    }
    line = {name: value for name, value in metrics.items() if name not in nonfinite} if nonfinite else dict(metrics)
    if moments:
        line[MOMENTS] = moments
    if nonfinite:
        line[NONFINITE] = write_nonfinite(nonfinite)
    return line


def metric_key(name: str) -> str:
    """The key of a metric in a line: its name, unless rlvitals uses that name itself.

    >>> metric_key("loss"), metric_key("step"), metric_key("_m")
    ('loss', 'metric/step', 'metric/_m')
    """
    return f"metric/{name}" if name in RESERVED or name.startswith("_") or not name else name


def decode(line: bytes) -> Row:
    """Parse one line. Raises BadLine if it is not a row. A value of a wrong type is left out of a valid row."""
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
            numbers[key] = as_float(value)
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


def as_float(number: float) -> float:
    """A number as a float. An integer that is too large for a float becomes infinite."""
    try:
        return float(number)
    except OverflowError:
        return math.inf if number > 0 else -math.inf


def _time(stamp: Any) -> float:
    """Unix seconds, also from the ISO timestamps that other recorders write."""
    if type(stamp) is int or type(stamp) is float:
        return float(stamp) if -MAX_TIME <= stamp <= MAX_TIME else math.nan
    if type(stamp) is str:
        try:
            return datetime.fromisoformat(stamp).timestamp()
        except (ValueError, OverflowError, OSError):
            return math.nan
    return math.nan


def read_side_line(line: bytes) -> tuple[int, int, dict[str, Any]]:
    """A line of a side log: its step, its attempt and its values by name; no values if the line is torn or foreign."""
    try:
        raw = parse_shallow(line)
    except ValueError:
        return 0, 1, {}
    if not isinstance(raw, dict):
        return 0, 1, {}
    step, attempt = raw.pop("step", None), raw.pop("attempt", 1)
    if type(step) is not int or abs(step) > MAX_STEP or type(attempt) is not int or not 0 < attempt <= MAX_ATTEMPT:
        return 0, 1, {}
    return step, attempt, raw
