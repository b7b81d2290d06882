"""Numbers that merge without bias: over micro-batches, ranks, steps and restarts.

A mean of means is wrong if the parts differ in size, so a value that will be averaged stores what it needs to
be merged again: count, mean, second moment, minimum, maximum. Any split of the data and any order of merges gives the
result of one pass (to rounding). A value without data is undefined, never 0.0.

Examples:
    >>> a, b = mean([1.0, 2.0, 3.0]), mean([10.0])
    >>> (a + b).number
    4.0
    >>> merge([total([3]), total([4, 5])]).number
    12.0
    >>> mean([]).number is None
    True
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from functools import reduce
from reprlib import repr as short
from typing import Any, Literal, TypeGuard, get_args

Kind = Literal["mean", "sum", "min", "max", "std", "sample_std", "var", "count", "last"]
"""What the finished number is. `std` and `var` divide by the count (population), `sample_std` by the count less one."""

KINDS: tuple[str, ...] = get_args(Kind)

NONFINITE_WORDS = ("nan", "inf", "-inf")
"""How numbers that JSON cannot hold are written."""


def is_number(value: object) -> TypeGuard[int | float]:
    """Whether a value is a number. True and False are none."""
    return isinstance(value, int | float) and not isinstance(value, bool)


def is_whole(value: object) -> TypeGuard[int]:
    """Whether a value is an integer. True and False are none."""
    return isinstance(value, int) and not isinstance(value, bool)


def median(values: Iterable[float]) -> float:
    """The median of at least one number (importing the stdlib's would cost the training process time)."""
    ordered = sorted(values)
    middle = len(ordered) // 2
    return ordered[middle] if len(ordered) % 2 else 0.5 * (ordered[middle - 1] + ordered[middle])


def quantile(ordered: Sequence[float], level: float) -> float:
    """A quantile of sorted numbers, linear between neighbours (numpy's default).

    >>> quantile([10.0, 20.0, 30.0, 40.0], 0.5), quantile([10.0, 20.0], 0.01)
    (25.0, 10.1)
    """
    place = level * (len(ordered) - 1)
    below = int(place)
    if below + 1 >= len(ordered):
        return ordered[-1]
    share = place - below
    return ordered[below] * (1 - share) + ordered[below + 1] * share


@dataclass(frozen=True, slots=True)
class Value:
    """A mergeable number: its moments, and which number is shown in the end.

    `count` is a number of samples, or a sum of weights. `order` is only used by `last`: the greatest wins.
    """

    count: float
    mean: float
    m2: float
    min: float
    max: float
    kind: Kind = "mean"
    order: float = 0.0

    @property
    def number(self) -> float | None:
        """The finished number, or None if it is undefined (nothing counted; one sample for sample_std)."""
        if self.count == 0:
            return None
        match self.kind:
            case "mean" | "last":
                return self.mean
            case "sum":
                return self.mean * self.count
            case "min":
                return self.min
            case "max":
                return self.max
            case "count":
                return self.count
            case "var":
                return self.m2 / self.count
            case "std":
                return math.sqrt(self.m2 / self.count)
            case "sample_std":
                return math.sqrt(self.m2 / (self.count - 1)) if self.count > 1 else None

    def __float__(self) -> float:
        """The finished number. Raises ValueError if it is undefined.

        >>> float(mean([1.0, 2.0]))
        1.5
        """
        return _defined(self.number, self.kind)

    def __add__(self, other: Value) -> Value:
        """Merge two values of one kind (Chan's parallel update of the moments)."""
        if not isinstance(other, Value):
            return NotImplemented
        if self.kind != other.kind:
            raise ValueError(f"cannot merge a {self.kind} with a {other.kind}: they finish as different numbers")
        if self.kind == "last":
            return max(self, other, key=_recency)
        if self.count == 0:
            return other
        if other.count == 0:
            return self
        count = self.count + other.count
        delta = other.mean - self.mean
        return Value(
            count=count,
            # The symmetric form keeps a merge of equal halves exact and does not depend on the order.
            mean=(self.mean * self.count + other.mean * other.count) / count,
            m2=self.m2 + other.m2 + delta * delta * (self.count * other.count / count),
            min=_least(self.min, other.min),
            max=-_least(-self.max, -other.max),
            kind=self.kind,
        )

    def showing(self, kind: Kind) -> Value:
        """The same data with another finished number: `rewards.showing("std")`."""
        if (kind == "last") != (self.kind == "last"):
            raise ValueError(f"a value of kind {self.kind} cannot be shown as {kind}")
        return replace(self, kind=kind)

    def to_list(self) -> list[float | str]:
        """The stored form: [count, mean, M2, min, max], and the kind if it is not a mean. Non-finite ones are texts."""
        numbers: list[float | str] = [
            _stored_part(part) for part in (self.count, self.mean, self.m2, self.min, self.max)
        ]
        if self.kind == "mean":
            return numbers
        return [*numbers, self.kind, _stored_part(self.order)] if self.kind == "last" else [*numbers, self.kind]

    @classmethod
    def from_list(cls, stored: Sequence[Any]) -> Value:
        """Read the stored form back; raises ValueError on anything else."""
        if not isinstance(stored, list | tuple) or not 5 <= len(stored) <= 7:
            raise ValueError(f"not a stored value: {short(stored)}")
        count, average, m2, least, greatest = (_read_part(part) for part in stored[:5])
        kind: Any = stored[5] if len(stored) > 5 else "mean"
        order = _read_part(stored[6]) if len(stored) > 6 else 0.0
        if kind not in KINDS or not 0 <= count < math.inf:
            raise ValueError(f"not a stored value: {short(stored)}")
        return cls(count, average, m2, least, greatest, kind, order)


@dataclass(frozen=True, slots=True)
class Derived:
    """A number computed from several values, such as an explained variance: the parts merge, and it is computed again.

    >>> gap = Derived((mean([3.0]), mean([1.0])), lambda high, low: high.mean - low.mean)
    >>> (gap + Derived((mean([5.0]), mean([1.0])), gap.formula)).number
    3.0
    """

    parts: tuple[Value, ...]
    formula: Callable[..., float | None]
    """Receives the parts. Returns None if the number is undefined."""

    @property
    def number(self) -> float | None:
        """The finished number, or None if it is undefined (a part without data, or undefined by the formula)."""
        return None if any(part.count == 0 for part in self.parts) else self.formula(*self.parts)

    def __float__(self) -> float:
        """The finished number. Raises ValueError if it is undefined."""
        return _defined(self.number, "number")

    def __add__(self, other: Derived) -> Derived:
        if not isinstance(other, Derived):
            return NotImplemented
        if self.formula is not other.formula:
            raise ValueError("cannot merge numbers derived by different formulas")
        return Derived(tuple(map(Value.__add__, self.parts, other.parts)), self.formula)


def of(numbers: Iterable[float], kind: Kind = "mean", weights: Iterable[float] | None = None) -> Value:
    """Combine numbers into one value, with weights if given (token counts, class counts).

    >>> of([1.0, 3.0], weights=[3, 1]).number
    1.5
    """
    if kind == "last":
        raise ValueError("use last(number, order) for the last value")
    data = [float(number) for number in numbers]
    shares = [1.0] * len(data) if weights is None else [float(weight) for weight in weights]
    if len(shares) != len(data):
        raise ValueError(f"{len(data)} numbers came with {len(shares)} weights; give one weight for each number")
    if any(not weight >= 0 for weight in shares):
        raise ValueError("weights must be zero or more")
    pairs = [(number, weight) for number, weight in zip(data, shares, strict=True) if weight > 0]
    if not pairs:
        return Value(0.0, 0.0, 0.0, math.inf, -math.inf, kind)
    count = _sum(weight for _, weight in pairs)
    average = _sum(number * weight for number, weight in pairs) / count
    return Value(
        count=count,
        mean=average,
        m2=_sum(weight * (number - average) * (number - average) for number, weight in pairs),
        min=reduce(_least, (number for number, _ in pairs)),
        max=-reduce(_least, (-number for number, _ in pairs)),
        kind=kind,
    )


def mean(numbers: Iterable[float], weights: Iterable[float] | None = None) -> Value:
    """A mean that can be merged with other means."""
    return of(numbers, "mean", weights)


def total(numbers: Iterable[float]) -> Value:
    """A sum."""
    return of(numbers, "sum")


def smallest(numbers: Iterable[float]) -> Value:
    """A minimum."""
    return of(numbers, "min")


def largest(numbers: Iterable[float]) -> Value:
    """A maximum."""
    return of(numbers, "max")


def spread(numbers: Iterable[float], *, sample: bool = False) -> Value:
    """A standard deviation: of the population, or the sample's with `sample=True`."""
    return of(numbers, "sample_std" if sample else "std")


def last(number: float, order: float) -> Value:
    """The newest of several values. `order` is a step or a time; the greatest wins."""
    return Value(1.0, float(number), 0.0, float(number), float(number), "last", float(order))


def merge(values: Iterable[Value]) -> Value:
    """Merge any number of values of one kind; at least one is needed."""
    items = list(values)
    if not items:
        raise ValueError("nothing to merge")
    return reduce(lambda left, right: left + right, items)


def _defined(number: float | None, what: str) -> float:
    if number is None:
        raise ValueError(f"this {what} is undefined: nothing, or too little, was counted. Its `number` is None")
    return float(number)


def _recency(value: Value) -> tuple[bool, float, bool, float]:
    # Ties on order are broken by the number itself (NaN first), so that the order of merging has no effect.
    broken = math.isnan(value.mean)
    return (value.count > 0, value.order, broken, 0.0 if broken else value.mean)


def _least(left: float, right: float) -> float:
    # Python's min() depends on the order if one number is NaN. A NaN must win on either side.
    return left if left < right or math.isnan(left) else right


def _sum(numbers: Iterable[float]) -> float:
    items = list(numbers)
    try:
        return math.fsum(items)
    except (OverflowError, ValueError):  # inf - inf, or out of range: plain addition gives nan or inf
        return sum(items)


def _stored_part(number: float) -> float | str:
    return number if math.isfinite(number) else str(number)


def _read_part(part: Any) -> float:
    if part in NONFINITE_WORDS if isinstance(part, str) else type(part) in (int, float):
        try:
            return float(part)
        except OverflowError:
            pass
    raise ValueError(f"not a stored value: {short(part)} is not a number")
