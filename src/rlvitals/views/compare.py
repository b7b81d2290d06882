"""Two or more runs side by side: settings that differ, best and final values, and where they diverge.

Metrics are paired by logged name or by concept. The catalogue checks each pair first: different quantities are refused
or get a warning, and values that differ by a sign or a factor are converted.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import reduce
from typing import Any

import numpy as np

from rlvitals import catalog
from rlvitals.catalog import Comparison
from rlvitals.config import flatten
from rlvitals.errors import ConfigError, NotComparable
from rlvitals.views.divergence import bands_part, parting_step
from rlvitals.views.run import RunView
from rlvitals.views.series import Best
from rlvitals.views.settings import families, is_bookkeeping, plain_settings, varying

TOLERANCE = 1e-6
"""Relative difference above which two values count as different."""


@dataclass(frozen=True, slots=True)
class MetricRow:
    """One metric over all runs."""

    name: str
    concept: str | None
    names: list[str | None]
    """The name under which each run logs it."""
    best: list[Best | None]
    verdict: str
    """The worst verdict among the pairs with the first run."""
    note: str = ""
    first_divergence: int | None = None
    """The first common step at which a run's value differs from the first run's."""
    common_steps: int = 0
    parts: list[int | None] = field(default_factory=list)
    """For each run the step from which it differs from the first run by more than the noise of both."""
    bands: list[int | None] = field(default_factory=list)
    """For each run the step from which the band of its seeds no longer overlaps that of the first run."""

    @property
    def is_background(self) -> bool:
        """Whether it is about the machine, not about the training: never the same twice, and no difference of runs."""
        return self.concept is not None and catalog.find(self.concept)[0].metric.family in catalog.BACKGROUND


@dataclass(frozen=True, slots=True)
class RunComparison:
    """The comparison of all runs."""

    runs: list[dict[str, Any]]
    config_differences: dict[str, list[Any]]
    metrics: list[MetricRow] = field(default_factory=list)
    only_in_one: dict[str, list[str]] = field(default_factory=dict)
    """Path of a run -> metrics that no other run has."""
    first_divergence: int | None = None
    """The earliest step at which a metric of the training differs, or, with only others compared, one of these."""
    bookkeeping: dict[str, list[Any]] = field(default_factory=dict)
    """Settings that differ and only describe who ran it, where and when, or repeat another setting."""


def compare_runs(
    views: Sequence[RunView], metrics: Sequence[str] = (), tolerance: float = TOLERANCE, *, signs_only: bool = False
) -> RunComparison:
    """Compare runs with the first one. `metrics` selects metrics by name; NotComparable is raised if one cannot be
    compared. With `signs_only` and without `metrics`, only the vital signs of the first run are compared, because
    thousands of metrics take seconds.
    """
    if len(views) < 2:
        raise ConfigError("comparing takes at least two runs")
    base = views[0]
    rows = []
    seeds = _seeds(views)
    paired: set[tuple[int, str]] = set()
    for name in metrics or (base.vital_signs if signs_only else base.reader.ordered(base.metrics)):
        base_name = base.resolve(name)
        partners = [partner_of(base, base_name, other, name, bool(metrics)) for other in views[1:]]
        if all(partner is None for partner in partners):
            continue
        rows.append(_metric_row(views, base_name, partners, tolerance, seeds, must_compare=bool(metrics)))
        paired.add((0, base_name))
        paired.update((position, partner) for position, partner in enumerate(partners, 1) if partner is not None)
    only = {}
    if not metrics and not signs_only:
        for position, view in enumerate(views):
            alone = [name for name in view.metrics if (position, name) not in paired]
            if alone:
                only[str(view.path)] = alone
    about_training = [row for row in rows if not row.is_background] or rows
    divergences = [row.first_divergence for row in about_training if row.first_divergence is not None]
    differences, bookkeeping = settings_apart(views)
    return RunComparison(
        runs=[
            {"name": view.name, "path": str(view.path), "status": view.status, "step": view.last_step} for view in views
        ],
        config_differences=differences,
        bookkeeping=bookkeeping,
        metrics=rows,
        only_in_one=only,
        first_divergence=min(divergences, default=None),
    )


def settings_apart(views: Sequence[RunView]) -> tuple[dict[str, list[Any]], dict[str, list[Any]]]:
    """Settings that differ and affect the training, and those that are bookkeeping or repeat another setting."""
    found = config_differences(views)
    kept = {key: values for key, values in found.items() if not is_bookkeeping(key) and not _is_repeated(key, found)}
    return kept, {key: values for key, values in found.items() if key not in kept}


def _is_repeated(key: str, found: Mapping[str, Sequence[Any]]) -> bool:
    """Whether a setting in a section has the same values as the top-level setting of the same name, as far as it is
    set. An example is a recipe beside the arguments that were made from it.
    """
    section, _, name = key.rpartition(".")
    above = found.get(name) if section else None
    return above is not None and all(own is None or own == other for own, other in zip(found[key], above, strict=True))


def config_differences(views: Sequence[RunView]) -> dict[str, list[Any]]:
    """Settings that are not the same in all runs: dotted key -> one value per run (None if it has none)."""
    flat = [flatten(view.config) for view in views]
    keys = [key for key in varying(flat) if key not in ("rlvitals.name", "exp_name")]
    return {key: [settings.get(key) for settings in flat] for key in keys}


def partner_of(base: RunView, name: str, other: RunView, asked: str, must_exist: bool) -> str | None:
    """The other run's metric to compare with this one: the same name, the same concept and slice, or the metric
    requested by name.
    """
    if name in other.metrics:
        return name
    concept = base.concept(name)
    if concept is not None:
        candidates = [candidate for candidate in other.metrics if other.concept(candidate) == concept]
        labels = base.labels(name)
        for candidate in candidates:
            if other.labels(candidate) == labels:
                return candidate
        # A run with a single environment may log it as a slice, which then stands for the whole run.
        if len(candidates) == 1 and (not labels or not other.labels(candidates[0])):
            return candidates[0]
    if must_exist:
        return other.resolve(asked)
    return None


def _metric_row(
    views: Sequence[RunView],
    base_name: str,
    partners: list[str | None],
    tolerance: float,
    seeds: Sequence[Sequence[int]],
    *,
    must_compare: bool,
) -> MetricRow:
    base, *others = views
    names: list[str | None] = [base_name, *partners]
    meaning = base.meaning(base_name)
    judged = [
        catalog.compare(meaning, other.meaning(name), same_name=name == base_name) if name else Comparison("same")
        for other, name in zip(others, partners, strict=True)
    ]
    worst = max(judged, key=lambda comparison: _BADNESS[comparison.verdict])
    if must_compare and worst.verdict == "different":
        place = judged.index(worst)
        raise NotComparable(
            f"{base_name!r} of {base.path} and {partners[place]!r} of {others[place].path} are not the "
            f"same quantity: {worst.reason}"
        )
    convert = worst.verdict == "convert"
    best = [view.best(name) if name else None for view, name in zip(views, names, strict=True)]
    divergences, common = [], 0
    parts: list[int | None] = [None]
    for other, name, comparison in zip(others, partners, judged, strict=True):
        parts.append(None)
        if name is None or comparison.verdict in ("different", "caution"):
            continue
        steps, one, two = _common(base, base_name, other, name)
        step, count = _first_divergence(steps, one, two, tolerance), len(steps)
        parts[-1] = parting_step(steps, one, two)
        common = max(common, count)
        if step is not None:
            divergences.append(step)
    return MetricRow(
        name=base_name,
        concept=meaning.metric.id if meaning else None,
        names=names,
        best=[_converted(item, view, convert) for item, view in zip(best, views, strict=True)],
        verdict=worst.verdict,
        note=worst.reason,
        first_divergence=min(divergences, default=None),
        common_steps=common,
        parts=parts,
        bands=_bands(views, [base_name, *partners], seeds) if worst.verdict in ("same", "convert") else [],
    )


_BADNESS = {"same": 0, "convert": 1, "caution": 2, "different": 3}


def _common(base: RunView, base_name: str, other: RunView, name: str) -> tuple[Any, Any, Any]:
    """The steps that both runs have, and the values at these steps."""
    left, right = by_step(base, base_name), by_step(other, name)
    steps = np.intersect1d(left[0], right[0])
    return steps, left[1][np.searchsorted(left[0], steps)], right[1][np.searchsorted(right[0], steps)]


def _first_divergence(steps: Any, one: Any, two: Any, tolerance: float) -> int | None:
    """The first common step where the values differ."""
    with np.errstate(invalid="ignore"):
        scale = np.maximum(np.abs(one), np.abs(two))
        close = (np.abs(one - two) <= tolerance * scale) & np.isfinite(scale)  # no value is close to infinity
        same = (one == two) | (np.isnan(one) & np.isnan(two)) | close
    where = np.flatnonzero(~same)
    return int(steps[where[0]]) if len(where) else None


def _seeds(views: Sequence[RunView]) -> list[list[int]]:
    """Positions of the runs that differ only in their seed, the first run's family first."""
    labels = list(families({str(place): plain_settings(view.config) for place, view in enumerate(views)}).values())
    return [[place for place, own in enumerate(labels) if own == label] for label in dict.fromkeys(labels)]


def _bands(views: Sequence[RunView], names: list[str | None], seeds: Sequence[Sequence[int]]) -> list[int | None]:
    partings: list[int | None] = [None] * len(views)
    first, *others = ([place for place in family if names[place] is not None] for family in seeds)
    for family in others:
        if len(first) < 2 or len(family) < 2:
            continue
        curves = {place: by_step(views[place], names[place] or "") for place in (*first, *family)}
        steps = reduce(np.intersect1d, [own for own, _ in curves.values()])
        table = {place: values[np.searchsorted(own, steps)] for place, (own, values) in curves.items()}
        parted = bands_part(steps, *(np.array([table[place] for place in group]) for group in (first, family)))
        for place in family:
            partings[place] = parted
    return partings


def by_step(view: RunView, name: str) -> tuple[Any, Any]:
    """One value per step (the last logged one), in the sign and scale of the concept."""
    steps, values = view.series(name)
    keep = np.append(np.diff(steps) != 0, True) if len(steps) else np.zeros(0, dtype=bool)
    meaning = view.meaning(name)
    if meaning is None or meaning.caveat is None:  # most names need no conversion
        return steps[keep], values[keep]
    return steps[keep], np.array([catalog.to_concept(meaning, float(value)) for value in values[keep]])


def _converted(best: Best | None, view: RunView, convert: bool) -> Best | None:
    if best is None or not convert:
        return best
    meaning = view.meaning(best.name)
    return Best(
        name=best.name,
        last=catalog.to_concept(meaning, best.last),
        last_step=best.last_step,
        best=None if best.best is None else catalog.to_concept(meaning, best.best),
        best_step=best.best_step,
        direction=meaning.metric.direction if meaning else best.direction,
        points=best.points,
    )
