"""Finds the series that are parts of a run's reward: those that add up to it, each times a fixed weight.

The first rows are kept, up to a fixed number. A weighted sum is searched for in them a few times.

>>> columns = {"ndcg": [0.1, 0.2, 0.3] * 3, "bonus": [0.0, 0.1] * 4 + [0.0], "noise": [0.3, 0.1, 0.2, 0.5] * 2 + [0.1]}
>>> totals = [ndcg + 2 * bonus for ndcg, bonus in zip(columns["ndcg"], columns["bonus"])]
>>> {name: round(weight, 6) for name, weight in add_up(totals, columns, slack=0.01).items()}
{'ndcg': 1.0, 'bonus': 2.0}
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence

from rlvitals.health.naming import part_name
from rlvitals.health.statistics import Signal

MOST_PARTS = 24
"""The most series that are named as parts, and the most others that are tried."""

LOOK_AT = (12, 24, 48)
"""Numbers of rows at which a sum is searched for. After the last one, the names decide."""

MOST_ROWS = 200
"""Rows after which the search ends, even if too few of them were complete."""

TOLERANCE = 0.02
"""The largest residual of a sum of series that are named as parts, as a share of the reward's spread."""

STRICT = 0.002
"""The same for a sum with other series, which may follow the reward by chance."""

FITTED = 2 / 3
"""The share of the rows used to fit their weights; the other rows must then add up as well."""

SPARE_ROWS = 4
"""Rows required in addition to one for each part."""

NEGLIGIBLE = 0.005
"""A series that moves the reward by less than this share of its spread and of its size is not part of it."""


class Parts:
    """The parts of one run's reward: at first by their names, later those that add up to it."""

    def __init__(self) -> None:
        self.series: dict[str, Signal] = {}
        """The parts, by the name the run gives them."""
        self.weights: dict[str, float] = {}
        """The weight of each, where they add up."""
        self.beside: dict[str, Signal] = {}
        """Series that are named as parts and do not add to the reward."""
        self.is_decided = False
        """Whether the search has ended."""
        self._named: list[str] = []
        self._possible: list[str] = []
        self._rows = _Rows("", [], [])

    def add(self, key: str, name: str) -> Signal | None:
        """Add a key that is named as a part; returns its series, or None where there are too many."""
        if len(self.series) >= MOST_PARTS:
            return None
        self._named.append(key)
        return self.series.setdefault(name, Signal(name, key))

    def note(self, key: str) -> None:
        """Note a key that is a part only if it adds up."""
        if len(self._possible) < MOST_PARTS and key not in self._possible:
            self._possible.append(key)

    def candidates(self) -> list[str]:
        """The keys whose values are needed from each row until the parts are found."""
        return [*self._named, *self._possible]

    def look(self, reward: Signal, row: Mapping[str, float]) -> list[Signal]:
        """Take a row that has the reward. Returns newly found parts, which must be fed from now on."""
        if self._rows.reward != reward.key:
            self._rows = _Rows(reward.key, self._named, [key for key in self._possible if key != reward.key])
        weights = self._rows.take(reward.step, reward.last, row)
        self.is_decided = weights is not None or self._rows.is_over
        return self._found(weights, reward.seen_at) if weights is not None else []

    def _found(self, weights: Mapping[str, float], point: int) -> list[Signal]:
        named = {signal.key: signal for signal in self.series.values()}
        parts: dict[str, Signal] = {}
        new: list[Signal] = []
        for key, weight in weights.items():
            signal = named.get(key)
            if signal is None:
                name = part_name(key)
                signal = Signal(key if name in parts else name, key)
                for step, value in self._rows.column(key):
                    signal.update(value, step)
                signal.seen_at = point
                new.append(signal)
            parts[signal.name] = signal
            self.weights[signal.name] = weight
        self.beside = {name: signal for name, signal in self.series.items() if name not in parts}
        self.series = parts
        return new


class _Rows:
    """The first rows of a reward and of its possible parts."""

    def __init__(self, reward: str, named: Sequence[str], possible: Sequence[str]) -> None:
        self.reward = reward
        """The logged name of the reward."""
        self.is_over = False
        """Whether no more rows are of use."""
        self._steps: list[int] = []
        self._totals: list[float] = []
        self._named = named
        self._possible = sorted(possible)
        self._columns: dict[str, list[float]] = {}
        self._offered = 0

    def take(self, step: int, total: float, row: Mapping[str, float]) -> dict[str, float] | None:
        """Take a row; return the weights of the series that add up to the reward, once they are found."""
        self._offered += 1
        if not self._totals:
            self._columns = {name: [] for name in (*self._named, *self._possible) if name in row}
        self.is_over = self._offered >= MOST_ROWS
        if any(name in self._columns and name not in row for name in self._named):
            return None  # a row of another kind
        self._columns = {name: column for name, column in self._columns.items() if name in row}
        self._steps.append(step)
        self._totals.append(total)
        for name, column in self._columns.items():
            column.append(row[name])
        if len(self._totals) not in LOOK_AT:
            return None
        self.is_over = self.is_over or len(self._totals) == LOOK_AT[-1]
        return self._look()

    def column(self, name: str) -> list[tuple[int, float]]:
        """The steps and values that were kept of a series."""
        return list(zip(self._steps, self._columns[name], strict=True))

    def _look(self) -> dict[str, float] | None:
        totals = self._totals
        if max(totals) - min(totals) <= 1e-9 * max(abs(value) for value in totals):
            return None  # anything adds up to a constant
        again = {name for name, column in self._columns.items() if _is_again(column, totals)}
        named = {name: self._columns[name] for name in self._named if name in self._columns}
        fresh = {name: column for name, column in named.items() if name not in again}
        found = add_up(totals, fresh, TOLERANCE) or add_up(totals, named, TOLERANCE)
        if found is not None:
            return found
        moving = [
            name for name, column in self._columns.items()
            if name not in named and name not in again and min(column) < max(column)
        ]  # fmt: skip
        first = round(FITTED * len(totals))
        columns = fresh | {name: self._columns[name] for name in moving[: max(0, first - SPARE_ROWS - len(fresh))]}
        found = add_up(totals[:first], {name: column[:first] for name, column in columns.items()}, STRICT)
        return found if found is not None and _left_over(totals, columns, found) <= STRICT * _spread(totals) else None


def add_up(totals: Sequence[float], columns: Mapping[str, Sequence[float]], slack: float) -> dict[str, float] | None:
    """The weights with which columns add up to the totals; None where they do not, or where there are too few rows.
    A series that is always 0 is kept with weight 1: it may be a part that no sample has earned yet.
    """
    silent = {name for name, column in columns.items() if not any(column)}
    names = [name for name in columns if name not in silent]
    spread = _spread(totals)
    while names:
        if len(totals) < len(names) + SPARE_ROWS:
            return None
        weights = _weights(totals, [columns[name] for name in names])
        if weights is None or _left_over(totals, columns, dict(zip(names, weights, strict=True))) > slack * spread:
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
    """Whether a column equals the reward: it is logged twice, or it has only one part."""
    return all(abs(value - total) <= 1e-6 * max(abs(total), 1e-6) for value, total in zip(column, totals, strict=True))


def _is_negligible(weight: float, column: Sequence[float], spread: float, size: float) -> bool:
    middle = sum(column) / len(column)
    return abs(weight) * _spread(column) < NEGLIGIBLE * spread and abs(weight * middle) < NEGLIGIBLE * size


def _spread(values: Sequence[float]) -> float:
    middle = sum(values) / len(values)
    return math.sqrt(sum((value - middle) ** 2 for value in values) / len(values))


def _left_over(totals: Sequence[float], columns: Mapping[str, Sequence[float]], weights: Mapping[str, float]) -> float:
    """The residual of a weighted sum, as its root mean square."""
    left = (
        total - sum(weight * columns[name][row] for name, weight in weights.items()) for row, total in enumerate(totals)
    )
    return math.sqrt(sum(rest * rest for rest in left) / len(totals))


def _weights(totals: Sequence[float], columns: Sequence[Sequence[float]]) -> list[float] | None:
    """Least squares by the normal equations, with scaled columns; weights that the rows do not determine tend to 0."""
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
    """Gauss-Jordan elimination with pivots, in place. Each row has its coefficients, then its right side."""
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
