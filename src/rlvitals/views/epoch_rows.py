"""The living training rows of a run, each with its epoch, and the aggregation of a metric's rows to one number per
epoch.

Values that carry their counts are merged over rows and ranks as if one process had seen all samples. Plain numbers are
weighted by the samples of their row, if the run logs them.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import Literal

import numpy as np
from numpy.typing import NDArray

from rlvitals.config import by_last_name
from rlvitals.errors import ConfigError
from rlvitals.records import MAX_STEP
from rlvitals.store.chunks import MOMENT_PARTS, FieldArray, is_present
from rlvitals.store.index import Columns
from rlvitals.store.ranks import finish
from rlvitals.values import is_whole
from rlvitals.views.query import StoredRun

Weight = Literal["counts", "samples", "rows"]
"""The weight of an average, from exact to rough: the counts of its values, the samples of a row, or none."""

REWARD = "reward.total.mean"

SAMPLE_NAMES = ("num_samples", "n_samples", "samples", "batch_size", "global_batch_size")
"""Common names for the samples of a row that the catalogue does not contain."""

ENOUGH_ROWS = 4
"""Minimum rows of an epoch for estimating the noise from their scatter."""

_FINISHED_AS = {"median": "mean", "quantile": "mean", "none": "mean"}
"""Reductions that cannot be computed from aggregated numbers. The plain mean of the rows is used instead, and its
weight is reported as `rows`.
"""


@dataclass(frozen=True, slots=True)
class Sums:
    """One metric over the epochs, by the position of the epoch in the list."""

    values: dict[int, float]
    weight: Weight
    nonfinite: dict[int, int]


class EpochRows:
    """The living training rows, each with its epoch."""

    def __init__(self, view: StoredRun, steps_per_epoch: int | None, by: str | None) -> None:
        self.view = view
        self._ranks = [(columns, _by_step(columns, alive)) for columns, alive in view.columns("train")]
        self.columns, self._alive = self._ranks[0]
        if not len(self._alive):
            raise ConfigError(f"{view.path} has no training rows, so it has no epochs")
        self.steps = self.columns.steps[self._alive]
        self.labels, self.derived_from = self._label(steps_per_epoch, by)
        self.epochs = np.array(sorted(set(self.labels.tolist())))

    def named(self, concept: str) -> str | None:
        """The logged training metric of a concept. A metric that measures exactly the concept is preferred."""
        return min(self._by_concept.get(concept, ()), key=self._is_odd, default=None)

    @cached_property
    def _by_concept(self) -> dict[str | None, list[str]]:
        found: dict[str | None, list[str]] = {}
        for name in self.columns.names:
            found.setdefault(self.view.concept(name), []).append(name)
        return found

    def cells(self, name: str) -> FieldArray:
        """A metric in the living rows of rank 0."""
        return self.columns.column(name)[self._alive]

    def sum_up(self, name: str) -> Sums:
        """A metric's aggregate for every epoch."""
        merged = self._mergeable(name)
        if merged is not None:
            return self._finished(*merged, self.columns.kind(name), "counts")
        values = self.cells(name)
        meaning = self.view.meaning(name)
        reduction = meaning.metric.reduce if meaning else "mean"
        kind = _FINISHED_AS.get(reduction, reduction)
        weights, weight = self._weights(reduction, values)
        return self._finished(_as_moments(values, weights, kind), self._places(self.labels), kind, weight)

    def variance(self, reward: str | None) -> tuple[dict[int, float], str]:
        """The variance of the rewards in each epoch, and a text that names its source."""
        if reward is None:
            return {}, ""
        merged = self._mergeable(reward)
        if merged is not None:
            counted = self.count_samples(reward)
            spreads = self._finished(*merged, "var", "counts").values.items()
            several = {place: spread for place, spread in spreads if counted[place] > 1}
            return several, "every sample (within rows and between them)"
        means = self.cells(reward)
        spread = self.named("reward.total.std")
        moments = _as_moments(means, self._weights("mean", means)[0], "mean")
        if spread is not None and (is_present(self.cells(spread)) >= is_present(means)).all():
            moments["m2"] = self._within(self.cells(spread), moments["count"])
            made_from = f"{spread} within rows and {reward} between them"
        else:
            made_from = f"{reward} between rows; what varies within a row is not known"
            rows = np.bincount(self._places(self.labels)[np.isfinite(means)], minlength=len(self.epochs))
            moments["count"] = np.where(rows[self._places(self.labels)] > 1, moments["count"], 0.0)  # one row has none
        return self._finished(moments, self._places(self.labels), "var", "rows").values, made_from

    @cached_property
    def samples(self) -> FieldArray | None:
        """The number of samples of each living row; None if it is unknown for a row."""
        reward = self.named(REWARD)
        moments = self.columns.moments(reward) if reward is not None else None
        candidates = [] if moments is None else [moments["count"][self._alive]]
        for name in self.columns.names:
            concept = self.view.concept(name)
            if concept == "progress.samples_total":
                candidates.append(_increments(self.cells(name), self.steps))
            elif concept == "optim.global_batch_size" or name.lower() in SAMPLE_NAMES:
                cells = self.cells(name)
                candidates.append(_increments(cells, self.steps) if _is_running_total(cells) else cells)
        return next((found for found in candidates if np.isfinite(found).all() and (found > 0).all()), None)

    def count_samples(self, reward: str | None) -> dict[int, float]:
        """The number of samples of each epoch."""
        merged = self._mergeable(reward) if reward is not None else None
        if merged is not None:
            return self._finished(*merged, "count", "counts").values
        if self.samples is None:
            return {}
        return self._finished(
            _as_moments(self.samples, None, "sum"), self._places(self.labels), "sum", "samples"
        ).values

    def errors(self, name: str, variance: dict[int, float]) -> FieldArray:
        """The standard error of each epoch's mean: from the scatter of its rows, or of its samples if there are few
        rows.
        """
        values, places = self.cells(name), self._places(self.labels)
        counted = self.count_samples(name)
        found = np.full(len(self.epochs), np.nan)
        for place in range(len(self.epochs)):
            rows = values[(places == place) & np.isfinite(values)]
            if len(rows) >= ENOUGH_ROWS:
                # Differences between rows are used, so that a trend within the epoch does not count as noise.
                with np.errstate(over="ignore", invalid="ignore"):
                    found[place] = np.sqrt((np.diff(rows) ** 2).mean() / 2 / len(rows))
            elif place in variance and counted.get(place, 0) > 1 and self._mergeable(name) is not None:
                found[place] = np.sqrt(variance[place] / counted[place])
        return found

    def _label(self, steps_per_epoch: int | None, by: str | None) -> tuple[NDArray[np.int64], str]:
        if by is not None:
            return _from_metric(self.cells(self.view.resolve(by)), by)
        if steps_per_epoch is None:
            name = self.named("progress.epoch")
            if name is not None:
                return _from_metric(self.cells(name), name)
            steps_per_epoch = by_last_name(self.view.config).get("steps_per_epoch")
        if steps_per_epoch is None:
            raise ConfigError(
                f"the end of an epoch of {self.view.path} is unknown: no row has an epoch. "
                f"Give steps_per_epoch (on the command line: --steps-per-epoch N)."
            )
        if not is_whole(steps_per_epoch) or steps_per_epoch < 1:
            raise ConfigError(f"steps_per_epoch is a whole number of at least 1, not {steps_per_epoch!r}")
        labels = np.maximum((self.steps - self._first_step()) // steps_per_epoch, 0) + 1
        return labels, f"steps_per_epoch = {steps_per_epoch}"

    def _first_step(self) -> int:
        """The first step of the training: 0 or 1. A row at step 0 whose metrics never occur again, such as the result
        of a warm-up, is not counted.
        """
        if self.steps.min() > 0:
            return 1
        at_start = self.steps == self.steps.min()
        present = (is_present(self.cells(name)) for name in self.columns.names)
        return (
            int(self.steps.min()) if any((has & at_start).any() and (has & ~at_start).any() for has in present) else 1
        )

    def _is_odd(self, name: str) -> bool:
        meaning = self.view.meaning(name)
        caveat = meaning.alias.caveat if meaning and meaning.alias else None
        return caveat is not None and not caveat.is_convertible

    def _places(self, labels: NDArray[np.int64]) -> NDArray[np.intp]:
        return np.searchsorted(self.epochs, labels)

    def _weights(self, reduction: str, values: FieldArray) -> tuple[FieldArray | None, Weight]:
        if reduction in _FINISHED_AS or self.samples is None or len(self.samples) != len(values):
            return None, "rows"
        return self.samples, "samples"

    def _within(self, spread: FieldArray, counts: FieldArray) -> FieldArray:
        """The second moment inside each row, from its standard deviation (which divides by the count minus one)."""
        inside: FieldArray = spread**2 * (counts - 1 if self.samples is not None else counts)
        return inside

    def _mergeable(self, name: str) -> tuple[dict[str, FieldArray], NDArray[np.intp]] | None:
        """The moments of all ranks' rows and the positions of their epochs; None if a row has only a plain number."""
        parts, places = [], []
        for columns, alive in self._ranks:
            moments, plain = columns.moments(name), is_present(columns.column(name))[alive]
            if moments is None:
                if plain.any():
                    return None
                continue
            has_moments = is_present(moments["count"])[alive]
            if (plain & ~has_moments).any():
                return None
            parts.append({part: column[alive][has_moments] for part, column in moments.items()})
            places.append(self._places(self._labels_of(columns, alive))[has_moments])
        if not parts:
            return None
        return {part: np.concatenate([found[part] for found in parts]) for part in MOMENT_PARTS}, np.concatenate(places)

    def _labels_of(self, columns: Columns, alive: NDArray[np.intp]) -> NDArray[np.int64]:
        """The epochs of a rank's rows: the epoch of rank 0 at the same step."""
        if columns is self.columns:
            return self.labels
        near = np.searchsorted(self.steps, columns.steps[alive], side="right") - 1
        return self.labels[np.clip(near, 0, None)]

    def _finished(self, moments: dict[str, FieldArray], places: NDArray[np.intp], kind: str, weight: Weight) -> Sums:
        logged = is_present(moments["mean"]) & (moments["count"] > 0)
        usable = logged & np.isfinite(moments["mean"]) & np.isfinite(moments["m2"])
        broken = np.bincount(places[logged & ~usable], minlength=len(self.epochs))
        order = np.lexsort((moments["order"][usable], places[usable]))
        data = {part: column[usable][order] for part, column in moments.items()}
        found, starts = np.unique(places[usable][order], return_index=True)
        with np.errstate(invalid="ignore", divide="ignore", over="ignore"):
            numbers = finish(data, starts, kind)
        values = {int(place): float(number) for place, number in zip(found, numbers, strict=True)}
        return Sums(
            values={place: number for place, number in values.items() if np.isfinite(number)},
            weight=weight,
            nonfinite={int(place): int(broken[place]) for place in np.flatnonzero(broken)},
        )


def _by_step(columns: Columns, alive: NDArray[np.bool_]) -> NDArray[np.intp]:
    """The indices of the living rows, sorted by step, because rows may be written late."""
    rows = np.flatnonzero(alive)
    return rows[np.argsort(columns.steps[rows], kind="stable")]


def _from_metric(cells: FieldArray, name: str) -> tuple[NDArray[np.int64], str]:
    """Epochs from a logged metric. If all values are whole numbers, they are labels. Otherwise they are shares of the
    data: values up to 1.0 are in the first epoch. A row without a value belongs to the epoch of the row before it.
    """
    known = np.abs(cells) < MAX_STEP  # excludes NaN and infinity too
    if not known.any():
        raise ConfigError(f"{name!r} holds no number that could be an epoch")
    places = np.maximum.accumulate(np.where(known, np.arange(len(cells)), -1))
    places[places < 0] = np.argmax(known)
    numbers = cells[places]
    if (numbers == np.rint(numbers)).all():
        return numbers.astype(np.int64), f"the metric {name!r}"
    labels = np.maximum(np.ceil(numbers - 1e-6), 1).astype(np.int64)
    return labels, f"the metric {name!r}, a share of the data gone through"


def _as_moments(values: FieldArray, weights: FieldArray | None, kind: str) -> dict[str, FieldArray]:
    """Plain numbers in the form of mergeable ones. `weights` are the samples of each."""
    counts = np.ones(len(values)) if weights is None or kind in ("sum", "last") else weights
    moments = {
        "count": counts,
        "mean": values,
        "m2": np.zeros(len(values)),
        "min": values,
        "max": values,
        "order": np.arange(len(values), dtype=np.float64),
    }
    if kind in ("std", "var"):  # spreads are pooled by their squares; the distance between the means is unknown here
        moments["m2"] = counts * (values**2 if kind == "std" else values)
        moments["mean"] = np.where(is_present(values), 0.0, values)
    return moments


def _increments(cells: FieldArray, steps: NDArray[np.int64]) -> FieldArray:
    """The increments of a running total. A total that falls has restarted. If a log begins in the middle of a run, its
    first row gets the median increment.
    """
    grown = np.diff(cells, prepend=0.0)
    grown = np.where(grown < 0, cells, grown)
    if len(steps) > 1 and steps[0] > 1.5 * np.median(np.diff(steps)):
        grown[0] = np.median(grown[1:])
    return grown


def _is_running_total(cells: FieldArray) -> bool:
    return len(cells) > 1 and bool((np.diff(cells) > 0).all())
