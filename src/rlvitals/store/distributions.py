"""Distributions over the steps, `logs/distributions.jsonl`: one line per call, with a sketch of the values for each
name.

A sketch holds the count, the mean and 21 evenly spaced quantiles from the minimum to the maximum. It has the same size
for ten values and for a million. Lines are written by the same writer as rows.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

from rlvitals.store.lines import read_side_line
from rlvitals.store.reader import read_blocks
from rlvitals.values import quantile

LEVELS = tuple(level / 20 for level in range(21))
MOST_VALUES = 50_000
"""If there are more values, an even sample is used: sorting all of them would delay the step too long."""

MOST_NAMES = 200
"""Limit on the distributions of one call."""


@dataclass(frozen=True, slots=True)
class Sketch:
    """The summary that is kept of many values."""

    count: int
    mean: float
    quantiles: tuple[float, ...]
    """At LEVELS."""
    nonfinite: int = 0
    """The number of NaN or infinite values. The other fields do not include them."""

    @property
    def stored(self) -> dict[str, Any]:
        fields: dict[str, Any] = {"count": self.count, "mean": self.mean, "quantiles": list(self.quantiles)}
        return fields | ({"nonfinite": self.nonfinite} if self.nonfinite else {})


class Logged(NamedTuple):
    """One distribution of one step."""

    step: int
    attempt: int
    name: str
    sketch: Sketch

    @property
    def stored(self) -> dict[str, Any]:
        """The distribution as a line of the log stores it."""
        return {"step": self.step, "attempt": self.attempt, self.name: self.sketch.stored}


def sketch_of(values: Iterable[float]) -> Sketch | None:
    """The sketch of some values; None if no value is finite.

    >>> made = sketch_of([3.0, 1.0, 2.0, float("nan")])
    >>> made.count, made.mean, made.quantiles[0], made.quantiles[10], made.quantiles[20], made.nonfinite
    (3, 2.0, 1.0, 2.0, 3.0, 1)
    """
    given = [float(value) for value in values]
    finite = [value for value in given if math.isfinite(value)]
    if not finite:
        return None
    least, most = min(finite), max(finite)
    ordered = sorted(finite[:: -(-len(finite) // MOST_VALUES)])
    inner = [quantile(ordered, level) for level in LEVELS[1:-1]]
    mean = min(max(math.fsum(value / len(finite) for value in finite), least), most)
    return Sketch(len(finite), mean, (least, *inner, most), len(given) - len(finite))


def sketch_of_histogram(
    least: float, most: float, mean: float, buckets: Iterable[tuple[float, float, float]]
) -> Sketch:
    """The sketch of values that are known only as a histogram: (from, to, count) for each bucket, in order. Values are
    assumed to be evenly spread within a bucket. Raises ValueError if the histogram is invalid.

    >>> sketch_of_histogram(0.0, 4.0, 2.0, [(-1e9, 2.0, 10), (2.0, 4.0, 10)]).quantiles[::5]
    (0.0, 1.0, 2.0, 3.0, 4.0)
    """
    known = [(max(low, least), min(high, most), count) for low, high, count in buckets if count > 0]
    total = sum(count for _, _, count in known)
    if not total or not all(map(_is_number, (least, most, mean, total))) or any(low > high for low, high, _ in known):
        raise ValueError("no histogram")
    found: list[float] = []
    before = 0.0
    for low, high, count in known:
        while len(found) < len(LEVELS) and LEVELS[len(found)] * total <= before + count:
            found.append(low + (high - low) * (LEVELS[len(found)] * total - before) / count)
        before += count
    found += [most] * (len(LEVELS) - len(found))
    inner = [min(max(value, least), most) for value in found[1:-1]]
    return Sketch(max(round(total), 1), min(max(mean, least), most), (least, *inner, most))


def sketch_of_buckets(buckets: Sequence[tuple[float, float, float]]) -> Sketch:
    """The sketch of a histogram of which only the buckets are known. The values lie between the first and the last
    bucket that is not empty. Their mean is computed from the buckets' midpoints. Raises ValueError if the histogram is
    invalid.

    >>> sketch_of_buckets([(0.0, 1.0, 0), (1.0, 2.0, 3), (2.0, 4.0, 1)]).mean
    1.875
    """
    known = [bucket for bucket in buckets if bucket[2] > 0]
    if not known:
        raise ValueError("no histogram")
    total = sum(count for _, _, count in known)
    mean = sum((low + high) / 2 * count for low, high, count in known) / total
    return sketch_of_histogram(known[0][0], known[-1][1], mean, known)


def read_distributions(log: Path) -> Iterator[Logged]:
    """Every valid sketch of a log, in order. Torn and foreign lines are skipped."""
    for lines, _ in read_blocks(log, 0):
        for line in lines:
            yield from _parsed(line)


def _parsed(line: bytes) -> Iterator[Logged]:
    step, attempt, raw_by_name = read_side_line(line)
    for name, raw in raw_by_name.items():
        if (sketch := _sketch(raw)) is not None:
            yield Logged(step, attempt, name, sketch)


def _sketch(raw: Any) -> Sketch | None:
    if not isinstance(raw, dict):
        return None
    count, mean, quantiles = raw.get("count"), raw.get("mean"), raw.get("quantiles")
    nonfinite = raw.get("nonfinite", 0)
    if type(count) is not int or count < 1 or type(nonfinite) is not int or mean is None or not _is_number(mean):
        return None
    if not isinstance(quantiles, list) or len(quantiles) != len(LEVELS) or not all(map(_is_number, quantiles)):
        return None
    if any(later < earlier for earlier, later in itertools.pairwise(quantiles)):
        return None
    return Sketch(count, float(mean), tuple(map(float, quantiles)), nonfinite)


def _is_number(value: Any) -> bool:
    return type(value) in (int, float) and abs(value) < 1e300
