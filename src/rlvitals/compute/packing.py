"""Packs many statistics into one tensor, one row of moments each, so a step needs only one copy to the host.

`StatisticSheet` collects rows while a family calculates. `Packed` is the result, still on the device, with the meaning
of each row. Only `Packed.values()` reads numbers from a device.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import wraps
from typing import Any, ParamSpec

from rlvitals.compute.names import FamilyNames, Name
from rlvitals.values import Derived, Kind, Value

P = ParamSpec("P")


@dataclass(frozen=True, slots=True)
class Entry:
    """A named result from rows of a packed tensor: one row as one kind of number, or a formula over several rows."""

    name: Name
    rows: tuple[int, ...]
    kind: Kind = "mean"
    formula: Callable[..., float | None] | None = None


@dataclass(frozen=True, slots=True)
class Packed:
    """Moments of n statistics as one [n, 5] array or tensor (count, mean, M2, min, max), and their names."""

    moments: Any
    entries: tuple[Entry, ...]

    def values(self) -> dict[str, Value | Derived]:
        """The mergeable values by name. Waits for the device once and makes one copy."""
        rows = [_value(row) for row in self.moments.tolist()]
        return {entry.name.text: _shown(entry, [rows[row] for row in entry.rows]) for entry in self.entries}


def reading(pack: Callable[P, Packed]) -> Callable[P, dict[str, Value | Derived]]:
    """Wrap `pack` in a function that reads the result from the device and returns mergeable values."""

    @wraps(pack)
    def stats(*args: P.args, **kwargs: P.kwargs) -> dict[str, Value | Derived]:
        return pack(*args, **kwargs).values()

    return stats


class StatisticSheet:
    """Collects the statistics of one call."""

    def __init__(self, naming: FamilyNames) -> None:
        self._naming = naming
        self._rows: list[Any] = []
        self._entries: list[Entry] = []

    def moments(self, numbers: Any, weights: Any = None, **ids: str) -> int:
        """Add the moments of some numbers and return their row. Keywords map a kind to a metric id, as in
        `mean="advantage.mean"`.
        """
        self._rows.append(moments(numbers, weights))
        row = len(self._rows) - 1
        for kind, metric in ids.items():
            self.show(row, kind, metric)  # type: ignore[arg-type]
        return row

    def show(self, row: int, kind: Kind, metric: str, *, only_if_named: bool = False) -> None:
        """Show a row under one more id; with `only_if_named`, only if the framework has a name for it."""
        name = self._naming.name(metric)
        if name.is_own or not only_if_named:
            self._entries.append(Entry(name, (row,), name.kind or kind))

    def derive(self, metric: str, formula: Callable[..., float | None], *rows: int) -> None:
        """Add a number that is computed from rows, and recomputed after a merge."""
        self._entries.append(Entry(self._naming.name(metric), rows, formula=formula))

    def pack(self) -> Packed:
        """The result. Reads nothing from a device."""
        from rlvitals.compute.arrays import gather, library

        if not self._rows:
            return Packed(gather([])[0].reshape(0, 5), ())
        rows = gather(*self._rows)  # rows computed from lists move to the device of the tensors
        return Packed(library(*rows).stack(rows), tuple(self._entries))


def moments(numbers: Any, weights: Any = None) -> Any:
    """Count, mean, M2, minimum and maximum as one array of five. Numbers with weight 0 are ignored, NaN included.

    >>> moments([1.0, 3.0, float("nan")], [1, 1, 0]).tolist()
    [2.0, 2.0, 2.0, 1.0, 3.0]
    """
    from rlvitals.compute.arrays import library, real

    x = real(numbers).reshape(-1)
    xp = library(x)
    w = xp.ones_like(x) if weights is None else real(weights, x).reshape(-1)
    if not len(x):
        return real([0.0, 0.0, 0.0, float("inf"), float("-inf")], x)
    counts = w > 0
    zero = xp.zeros_like(x)
    count = w.sum()
    mean = (w * xp.where(counts, x, zero)).sum() / xp.where(count > 0, count, xp.ones_like(count))
    off = xp.where(counts, x - mean, zero)
    least = xp.where(counts, x, zero + xp.inf).min()
    greatest = xp.where(counts, x, zero - xp.inf).max()
    return xp.stack([count, mean, (w * off * off).sum(), least, greatest])


def _value(row: list[float]) -> Value:
    count, mean, m2, least, greatest = row
    return Value(count, mean, m2, least, greatest) if count else Value(0.0, 0.0, 0.0, float("inf"), float("-inf"))


def _shown(entry: Entry, parts: list[Value]) -> Value | Derived:
    if entry.formula is not None:
        return Derived(tuple(parts), entry.formula)
    return _converted(replace(parts[0], kind=entry.kind), entry.name)


_MIRRORED: dict[Kind, Kind] = {"max": "min", "min": "max"}


def _converted(value: Value, name: Name) -> Value:
    """The value converted to the sign and scale of its name; a negative scale swaps minimum and maximum."""
    if (name.scale, name.shift) == (1.0, 0.0) or not value.count:
        return value
    ends = sorted((name.scale * value.min + name.shift, name.scale * value.max + name.shift))
    kind = _MIRRORED.get(value.kind, value.kind) if name.scale < 0 else value.kind
    return replace(
        value,
        mean=name.scale * value.mean + name.shift,
        m2=name.scale**2 * value.m2,
        min=ends[0],
        max=ends[1],
        kind=kind,
    )
