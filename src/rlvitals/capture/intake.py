"""Turns the values that a trainer logs into the metrics of one row.

Takes Python and numpy numbers, 0-d arrays, torch scalars (recognised by their methods; torch is not imported),
booleans, mergeable values, short texts, and nested mappings of these (joined with `/`). Unsupported values are dropped
and counted. A warning names the key once and says how to fix it.
"""

from __future__ import annotations

import math
import numbers
from collections.abc import Callable, Mapping
from typing import Any

from rlvitals.errors import BadValue
from rlvitals.guard import Once, value_or
from rlvitals.records import MAX_STEP
from rlvitals.store.lines import as_float, metric_key, stored_metrics
from rlvitals.values import Derived, Value

MAX_TEXT = 1000
"""Longer texts belong to rollouts and evaluation files, not to a metrics row."""

MAX_DEPTH = 16
"""Mappings nested deeper than this are rejected: they are a mistake or contain themselves."""

PLAIN = frozenset({float, int, bool})
"""The types a row can hold as they are."""

_INT64 = 2**63


class Intake:
    """Checks and flattens metrics, and counts the values that it drops.

    >>> intake = Intake(print)
    >>> intake.take({"loss": 0.5, "rewards": {"margins": float("nan")}, "step": 3})
    'step' is reserved by rlvitals; your metric is recorded as 'metric/step'
    {'loss': 0.5, 'metric/step': 3, '_nonfinite': 'rewards/margins=nan'}
    >>> intake.take({"grads": [1, 2]})
    'grads' is dropped: a list is not a number. Log its mean, or rlvitals.values.mean(...) to keep count and spread
    {}
    """

    def __init__(self, warn: Callable[[str], None], *, strict: bool = False) -> None:
        self.left_out: dict[str, dict[str, Any]] = {}
        self._warn_once = Once(warn)
        self._strict = strict
        self._clean_names: set[str] = set()
        self.plain_names: list[str] = []

    def is_plain(self, metrics: Mapping[str, Any]) -> bool:
        """Whether a row can be written as it is: checked names, plain finite numbers. The common and fast case."""
        # The check may raise: the sum is too big, or a name cannot be compared.
        return value_or(False, self._is_plain, metrics)

    def _is_plain(self, metrics: Mapping[str, Any]) -> bool:
        names = list(metrics)
        if names != self.plain_names:  # usually the same objects in the same order: no hashing
            if not metrics.keys() <= self._clean_names:
                return False
            self.plain_names = names
        values = metrics.values()
        # One sum finds any NaN or infinity among them.
        return PLAIN.issuperset(map(type, values)) and math.isfinite(sum(values))

    def whole(self, name: str, value: Any, otherwise: str) -> int | None:
        """An integer such as a step; None for anything else, with one warning that ends in `otherwise`."""
        number = value_or(None, _whole, value)
        if number is None:
            if self._strict:
                raise BadValue(f"{name} must be a whole number of at most 2^53, not {shown(value)}")
            self._warn_once(f"{name} must be a whole number, not {shown(value)}; {otherwise}", f"{name} is not whole")
        return number

    def take(self, metrics: Mapping[str, Any]) -> dict[str, Any]:
        """Flatten and check the metrics of one row; the result can be written."""
        row: dict[str, Any] = {}
        moments: dict[str, list[float | str]] = {}
        if not isinstance(metrics, Mapping):
            self._leave_out("(row)", f"log() takes a mapping of names to values, not {_article(metrics)}")
            return row
        for name, value in flatten(metrics, "", 0):
            try:
                number = scalar(value)
            except CannotTake as reason:
                self._leave_out(name, str(reason))
                continue
            key = self._clean(name)
            moments.pop(key, None)  # if a name is given twice, its last value counts
            if isinstance(value, Value) and value.count:
                moments[key] = value.to_list()  # even without a number: another rank may complete it
            if number is not None:
                row[key] = number
        return stored_metrics(row, moments)

    def summary(self) -> str:
        """The dropped values, in one line."""
        return ", ".join(f"{name} ({entry['count']}x: {entry['reason']})" for name, entry in self.left_out.items())

    def _clean(self, name: str) -> str:
        """A valid name for a row: encodable text that is not a reserved name."""
        if name in self._clean_names:
            return name
        if (kept := metric_key(name)) != name:
            self._warn_once(f"{name!r} is reserved by rlvitals; your metric is recorded as {kept!r}")
            return kept
        try:
            name.encode()
        except UnicodeEncodeError:
            return name.encode("utf-8", "replace").decode()
        self._clean_names.add(name)
        return name

    def _leave_out(self, name: str, reason: str) -> None:
        if self._strict:
            raise BadValue(f"{name!r} cannot be logged: {reason}")
        if name in self.left_out:
            self.left_out[name]["count"] += 1
        else:
            self.left_out[name] = {"count": 1, "reason": reason}
            self._warn_once(f"{name!r} is dropped: {reason}")


class CannotTake(Exception):
    """Raised for a value that is not a number; the message names its type and the fix."""


def flatten(metrics: Mapping[Any, Any], prefix: str, depth: int) -> list[tuple[str, Any]]:
    """Names and values, nested mappings joined with `/`."""
    found: list[tuple[str, Any]] = []
    for key, value in metrics.items():
        name = f"{prefix}{key if type(key) is str else _text(key)}"
        if type(value) in PLAIN or depth >= MAX_DEPTH or not value_or(False, isinstance, value, Mapping):
            found.append((name, value))
            continue
        # If a nested mapping cannot be read, only that mapping is dropped.
        problem: list[Exception] = []
        found += value_or([], flatten, value, f"{name}/", depth + 1, handle=problem.append)
        found += [(name, _Unreadable(f"{_article(value)} cannot be read ({_message(error)})")) for error in problem]
    return found


def without_sequences(stats: Mapping[str, Any]) -> dict[str, Any]:
    """The values of an evaluation that its row holds. Only its file holds lists and arrays."""
    row: dict[str, Any] = {}
    for key, value in stats.items():
        if not value_or(False, _is_sequence, value):
            is_group = value_or(False, isinstance, value, Mapping)
            row[key] = value_or(value, without_sequences, value) if is_group else value
    return row


def _is_sequence(value: Any) -> bool:
    return isinstance(value, list | tuple) or getattr(value, "ndim", 0) > 0


def scalar(value: Any) -> float | int | bool | str | None:
    """One plain value; None for None and for a mergeable value without data. Raises only CannotTake."""
    try:
        return _scalar(value)
    except CannotTake:
        raise
    except Exception as error:  # a user's type may raise anything; only this value is dropped
        raise CannotTake(f"{_article(value)} cannot be converted to a number ({_message(error)})") from error


def _scalar(value: Any) -> float | int | bool | str | None:
    kind = type(value)
    if kind is float or kind is bool or value is None:
        return value  # type: ignore[no-any-return]
    if isinstance(value, float):  # numpy's float64
        return float(value)
    if kind is int:
        return value if -_INT64 <= value < _INT64 else as_float(value)
    if isinstance(value, Value | Derived):
        number = value.number
        return number if number is None or type(number) in PLAIN else float(number)
    if kind is _Unreadable:
        raise CannotTake(value.reason)
    if isinstance(value, str):
        if len(value) > MAX_TEXT:
            raise CannotTake(f"a text of {len(value)} characters is too long for a metrics row (at most {MAX_TEXT})")
        return str.encode(value, "utf-8", "replace").decode()
    if isinstance(value, Mapping):
        raise CannotTake(f"mappings are nested more than {MAX_DEPTH} deep")
    if callable(getattr(value, "item", None)):
        return _from_array(value)
    if isinstance(value, int):  # an IntEnum
        return _scalar(int(value))
    if hasattr(value, "__float__"):
        return float(value)
    raise CannotTake(f"{_article(value)} is not a number. {_FIX}")


_FIX = "Log its mean, or rlvitals.values.mean(...) to keep count and spread"


def _from_array(value: Any) -> float | int | bool | str | None:
    """A numpy or torch scalar, or an array with one element."""
    size = getattr(value, "numel", None) or getattr(value, "size", None)
    count = size() if callable(size) else size
    if count is not None and count != 1:
        raise CannotTake(f"{_article(value)} of {count} elements is not a number. {_FIX}")
    mask = getattr(value, "mask", None)
    if mask is not None and not callable(mask) and bool(mask):
        return None  # numpy's masked value has no number, but item() would return 0.0
    item = value.item()
    if isinstance(item, str):
        return _scalar(item)
    if isinstance(item, numbers.Real):  # item() of numpy's longdouble returns a longdouble
        return _scalar(item if isinstance(item, int) else float(item))
    raise CannotTake(f"{_article(value)} holds {_article(item)}, which is not a number")


class _Unreadable:
    """Replaces a nested mapping that raised when it was read."""

    def __init__(self, reason: str) -> None:
        self.reason = reason


def _text(key: object) -> str:
    """A name as plain text."""
    return str.__str__(key) if isinstance(key, str) else value_or(f"({type(key).__name__})", str, key)


def _whole(value: Any) -> int | None:
    number = int(value)
    return number if math.isclose(number, float(value)) and abs(number) <= MAX_STEP else None


def _message(error: BaseException) -> str:
    """The message of an exception, or its type's name if the message is empty or raises."""
    return value_or("", str, error) or type(error).__name__


def shown(value: object) -> str:
    """A value's `repr` for a message, or its type if `repr` raises."""
    return value_or(_article(value), repr, value)


def _article(value: object) -> str:
    name = type(value).__name__
    return f"an {name}" if name[:1].lower() in "aeiou" else f"a {name}"


def flat_numbers(values: Any) -> list[float]:
    """The numbers of a list, array or tensor of any shape, in order. Raises TypeError or ValueError for anything else.

    >>> flat_numbers([[1, 2.5], [True]])
    [1.0, 2.5, 1.0]
    """
    if hasattr(values, "detach"):  # a tensor: tolist() does not support half precision everywhere
        values = values.detach().float().cpu()
    if hasattr(values, "tolist"):
        values = values.tolist()
    found: list[float] = []
    waiting = [values]
    while waiting:
        one = waiting.pop()
        if isinstance(one, list | tuple):
            waiting.extend(reversed(one))
        else:
            found.append(float(one))
    return found
