"""Which of a run's series are parts of its reward: those that, each times a fixed weight, add up to it.

The first rows are kept (a bounded number of numbers), and a few times a weighted sum is looked for among them.

>>> parts = Parts("reward")
>>> for n in range(12):
...     row = {"ndcg": 0.1 * (n % 3), "bonus": 0.05 * (n % 4), "noise": 1.0 / (n + 1)}
...     found = parts.take(n, row["ndcg"] + 2 * row["bonus"], row, named=["bonus"], others=["ndcg", "noise"])
>>> {name: round(weight, 6) for name, weight in found.items()}
{'bonus': 2.0, 'ndcg': 1.0}
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence

MOST_PARTS = 24
"""Series that are looked at."""

LOOK_AT = (12, 24, 48)
"""Rows after which a sum is looked for. After the last one the names have to do."""

MOST_ROWS = 200
"""Rows after which nothing is looked for any more: most of them lack something."""

TOLERANCE = 0.02
"""The spread of what is left over, as a share of the reward's, in a sum of series that are named as parts."""

STRICT = 0.002
"""The same where other series take part: they might follow the reward by chance."""

ROWS_EACH = 3
"""Rows for each of them, for the same reason."""

NEGLIGIBLE = 0.005
"""A series that moves the reward by less than this share of its spread and of its size is no part of it."""


class Parts:
    """The first rows of a reward and of what may be its parts."""

    def __init__(self, reward: str) -> None:
        self.reward = reward
        """The logged name of the reward."""
        self._steps: list[int] = []
        self._totals: list[float] = []
        self._named: list[str] = []
        self._offered = 0
        self._columns: dict[str, list[float]] = {}
        self.is_decided = False
        """Whether there is nothing more to look for."""

    def take(
        self, step: int, total: float, row: Mapping[str, float], named: Iterable[str], others: Iterable[str]
    ) -> dict[str, float] | None:
        """Take a row: the reward, and what may be its parts, by name or for no better reason than being there. Returns
        the weights of those that add up to it, once such are found.
        """
        if not self._totals:
            self._named = [name for name in named if name in row][:MOST_PARTS]
            rest = [name for name in others if name in row][: MOST_PARTS - len(self._named)]
            self._columns = {name: [] for name in (*self._named, *rest)}
        self._offered += 1
        if self._offered > MOST_ROWS:
            self.is_decided = True
        if any(name not in row for name in self._named):
            return None  # a row of another kind
        for name in [name for name in self._columns if name not in row]:
            del self._columns[name]
        self._steps.append(step)
        self._totals.append(total)
        for name, column in self._columns.items():
            column.append(row[name])
        if len(self._totals) not in LOOK_AT:
            return None
        found = self._look()
        self.is_decided = found is not None or len(self._totals) == LOOK_AT[-1]
        return found

    def column(self, name: str) -> list[tuple[int, float]]:
        """The steps and values that were kept of a series."""
        return list(zip(self._steps, self._columns[name], strict=True))

    def _look(self) -> dict[str, float] | None:
        totals = self._totals
        if max(totals) - min(totals) <= 1e-9 * max(abs(value) for value in totals):
            return None  # a constant is the sum of anything
        again = {name for name in self._columns if _is_again(self._columns[name], totals)}
        named = {name: self._columns[name] for name in self._named}
        fresh = {name: column for name, column in named.items() if name not in again}
        found = add_up(totals, fresh, TOLERANCE) or add_up(totals, named, TOLERANCE)
        if found is not None:
            return found
        moving = [
            name for name, column in self._columns.items()
            if name not in named and name not in again and min(column) < max(column)
        ]  # fmt: skip
        most = len(totals) // ROWS_EACH - len(fresh)
        return add_up(totals, fresh | {name: self._columns[name] for name in moving[: max(0, most)]}, STRICT)


def add_up(totals: Sequence[float], columns: Mapping[str, Sequence[float]], slack: float) -> dict[str, float] | None:
    """The weights with which columns add up to the totals; None where they do not, or where there are too few rows to
    tell. A series that is 0 throughout is kept with weight 1: it may be a part that nobody has earned yet.
    """
    silent = {name for name, column in columns.items() if not any(column)}
    names = [name for name in columns if name not in silent]
    middle = sum(totals) / len(totals)
    spread = math.sqrt(sum((total - middle) ** 2 for total in totals) / len(totals))
    while names:
        if len(totals) < len(names) + 4:
            return None
        weights = _weights(totals, [columns[name] for name in names])
        if weights is None:
            return None
        left = [
            total - sum(weight * columns[name][row] for name, weight in zip(names, weights, strict=True))
            for row, total in enumerate(totals)
        ]
        if math.sqrt(sum(rest * rest for rest in left) / len(left)) > slack * spread:
            return None
        kept = [
            name for name, weight in zip(names, weights, strict=True)
            if not _is_negligible(weight, columns[name], spread, max(map(abs, totals)))
        ]  # fmt: skip
        if len(kept) == len(names):
            return dict(zip(names, weights, strict=True)) | dict.fromkeys(silent, 1.0)
        names = kept
    return None


def _is_again(column: Sequence[float], totals: Sequence[float]) -> bool:
    """Whether a column is the reward itself, logged a second time or the only part there is."""
    return all(abs(value - total) <= 1e-6 * max(abs(total), 1e-6) for value, total in zip(column, totals, strict=True))


def _is_negligible(weight: float, column: Sequence[float], spread: float, size: float) -> bool:
    middle = sum(column) / len(column)
    moved = abs(weight) * math.sqrt(sum((value - middle) ** 2 for value in column) / len(column))
    return moved < NEGLIGIBLE * spread and abs(weight * middle) < NEGLIGIBLE * size


def _weights(totals: Sequence[float], columns: Sequence[Sequence[float]]) -> list[float] | None:
    """Least squares by the normal equations, columns scaled to one size; what the rows leave open is drawn to 0."""
    scales = [math.sqrt(sum(value * value for value in column)) for column in columns]
    scaled = [[value / scale for value in column] for column, scale in zip(columns, scales, strict=True)]
    rows = [
        [sum(x * y for x, y in zip(one, other, strict=True)) + (1e-9 if one is other else 0.0) for other in scaled]
        + [sum(x * total for x, total in zip(one, totals, strict=True))]
        for one in scaled
    ]
    solved = _solve(rows)
    return None if solved is None else [value / scale for value, scale in zip(solved, scales, strict=True)]


def _solve(rows: list[list[float]]) -> list[float] | None:
    """Gauss with pivots, in place: the coefficients and the right side of each row."""
    count = len(rows)
    for place in range(count):
        pivot = max(range(place, count), key=lambda row: abs(rows[row][place]))
        if abs(rows[pivot][place]) < 1e-14:
            return None
        rows[place], rows[pivot] = rows[pivot], rows[place]
        for other in range(count):
            if other != place and rows[other][place]:
                factor = rows[other][place] / rows[place][place]
                rows[other] = [x - factor * y for x, y in zip(rows[other], rows[place], strict=True)]
    return [rows[place][count] / rows[place][place] for place in range(count)]
