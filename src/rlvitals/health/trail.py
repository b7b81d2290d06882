"""The gap between engine and trainer, and the age of the samples, over a whole run in constant memory.

A row costs one addition, or one append. `gap` and the rules interpret the blocks.

>>> trail = Trail()
>>> for step in range(1, 301):
...     trail.add(step, 0.01 * step)
>>> trail.size, len(trail.gaps), trail.steps[:2], round(trail.gaps[0], 6)
(4, 75, [1, 5], 0.025)
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping

from rlvitals.health.statistics import Signal

MOST_BLOCKS = 128
TINY = 1e-9


class Trail:
    """The gap and the age of the samples over the whole run, in blocks that get longer as the run gets longer."""

    __slots__ = (
        "_age", "_count", "_gap", "_gap_of", "_n_age", "_n_gap", "_sum_age", "_sum_gap", "ages",
        "gaps", "is_bound", "size", "steps",
    )  # fmt: skip

    def __init__(self) -> None:
        self._gap: Signal | None = None
        self._age: Signal | None = None
        self._gap_of: Callable[[float], float] = abs
        self.is_bound = False
        """Whether the run logs a gap or an age."""
        self.reset()

    def reset(self) -> None:
        """Forget the rows, but keep the series it reads."""
        self.size = 1
        """Rows per block."""
        self.steps: list[int] = []
        self.gaps: list[float] = []
        """The typical difference of a log-prob, in nats."""
        self.ages: list[float] = []
        self._count = self._n_gap = self._n_age = 0
        self._sum_gap = self._sum_age = 0.0

    def bind(self, signals: Mapping[str, Signal]) -> None:
        """Choose the logged series that shows the gap most directly. If that is another one than before, the trail is
        reset.
        """
        before = self._gap
        found = next(((signals[name], scale) for name, scale in _GAPS.items() if name in signals), None)
        self._gap, self._gap_of = found or (None, abs)
        self._age = signals.get("staleness")
        self.is_bound = self._gap is not None or self._age is not None
        if self._gap is not before:
            self.reset()

    @property
    def signal(self) -> Signal | None:
        """The series that it reads the gap from."""
        return self._gap

    def take(self, points: int, step: int) -> None:
        """Take the values of one row."""
        gap, age = self._gap, self._age
        has_gap = gap is not None and gap.seen_at == points and gap.n > 0
        has_age = age is not None and age.seen_at == points and age.n > 0
        if has_gap or has_age:
            self.add(
                step,
                self._gap_of(gap.last) if has_gap and gap is not None else math.nan,
                age.last if has_age and age is not None else math.nan,
            )

    def add(self, step: int, gap: float, age: float = math.nan) -> None:
        """Add a gap in nats and an age in versions; NaN where there is none."""
        if not self._count:
            self.steps.append(step)
        self._count += 1
        if not math.isnan(gap):
            self._sum_gap += gap
            self._n_gap += 1
        if not math.isnan(age):
            self._sum_age += age
            self._n_age += 1
        if self._count == self.size:
            self.gaps.append(self._sum_gap / self._n_gap if self._n_gap else math.nan)
            self.ages.append(self._sum_age / self._n_age if self._n_age else math.nan)
            self._count = self._n_gap = self._n_age = 0
            self._sum_gap = self._sum_age = 0.0
            if len(self.gaps) == MOST_BLOCKS:
                self._halve()

    def _halve(self) -> None:
        self.steps = self.steps[::2]
        self.gaps = [0.5 * (a + b) for a, b in zip(self.gaps[::2], self.gaps[1::2], strict=True)]
        self.ages = [0.5 * (a + b) for a, b in zip(self.ages[::2], self.ages[1::2], strict=True)]
        self.size *= 2


def of_kl(value: float) -> float:
    """The gap for a KL: log-probs that differ by d have a KL of about d^2 / 2."""
    return math.sqrt(2.0 * abs(value))


_GAPS: dict[str, Callable[[float], float]] = {
    "mismatch_gap": abs,
    "mismatch_kl": of_kl,
    "mismatch_error": lambda value: abs(value - 1.0),
    "mismatch_weight_std": abs,
    "mismatch_chi2": lambda value: math.sqrt(abs(value)),
    "mismatch_weight": lambda value: abs(math.log(max(value, TINY))),
    "ratio": lambda value: abs(math.log(max(value, TINY))),
}
"""Signals that show the gap, the most direct first, and how each is converted to nats."""
