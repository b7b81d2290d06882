"""The metrics of a run as a list: what each one is, its group, and its last value."""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import lru_cache
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from rlvitals import catalog
from rlvitals.catalog import slices
from rlvitals.contract import Described, ListedMetric, Metrics, SliceFacts
from rlvitals.splits import is_held_out, without_held_out_prefix
from rlvitals.store.chunks import is_present
from rlvitals.store.index import Columns
from rlvitals.store.layout import STREAMS, RunDir, Stream
from rlvitals.store.reader import last_rows
from rlvitals.views.query import StoredRun
from rlvitals.views.thinning import plain_number

MOST_LISTED = 20_000
"""Maximum metrics that are listed."""

MOST_COUNTED = 4_000_000
"""Maximum cells for which points are counted. The columns of a larger run are read only when they are shown."""

GLIMPSED_ROWS = 64

READ_FIRST = (
    "reward", "preference", "eval", "judging", "group", "agent", "policy", "kl_ref", "entropy", "advantage", "value",
    "length", "optim", "sft", "textscore", "off_policy", "engine", "moe",
)  # fmt: skip
"""Chapters in the order of interest. Names that are not in the catalogue follow."""

TRAINED = re.compile(r"^train[/_]")
"""A common prefix of training metrics."""

READ_LAST = ("progress", "throughput", "time", "memory", "system")


def metric_list(view: StoredRun, essentials: Sequence[str] = ()) -> Metrics:
    """All metrics of both streams by chapter. In each chapter the essentials come first, then the others in logged
    order. `left_out` counts those beyond MOST_LISTED.
    """
    listed: list[ListedMetric] = []
    count = 0
    for stream in STREAMS:
        columns, lives = view.columns(stream)[0]  # other ranks' values are merged into those of rank 0
        count += len(columns.names)
        names = columns.names[: MOST_LISTED - len(listed)]
        ending = _counted(columns, lives) if len(columns) * len(names) <= MOST_COUNTED else _glimpsed(view, stream)
        listed += [_facts(view, name, stream, ending(name)) for name in names]
    facts_of = slice_facts(view.sliced, view.reader)
    trained = training_names(facts["name"] for facts in listed)
    for facts in listed:
        name = facts["name"]
        facts["slice"] = facts_of.get(name)
        facts["held_out_of"] = trained.get(without_held_out_prefix(name)) if is_held_out(name) else None
    places, first = _places(), frozenset(essentials)
    listed.sort(key=lambda facts: (places.get(facts["group"], 0), facts["group"], facts["name"] not in first))
    return {
        "metrics": listed,
        "essentials": list(essentials),
        "texts": view.texts[:MOST_LISTED],
        "has_distributions": view.has_distributions,
        "has_images": view.has_images,
        "left_out": count - len(listed),
    }


def training_names(names: Iterable[str]) -> dict[str, str]:
    """The names of training metrics, by their name without the training prefix.

    >>> training_names(["train/loss", "train_runtime", "kl", "eval/loss"])
    {'loss': 'train/loss', 'runtime': 'train_runtime', 'kl': 'kl'}
    """
    return {TRAINED.sub("", name): name for name in names if not is_held_out(name)}


def streams_of(view: StoredRun, name: str) -> list[Stream]:
    """The streams that have a metric."""
    found = [stream for stream in STREAMS if any(columns.has(name) for columns, _ in view.columns(stream))]
    return found or ["train"]


def band_of(view: StoredRun, name: str, stage: catalog.Stage = "any") -> catalog.Limits | None:
    """The typical range of a metric at a stage or for the whole run; None if none applies."""
    size = view.config.get("model_parameters")
    parameters = size if isinstance(size, int | float) else None
    band = view.reader.band(name, stage=stage, parameters=parameters, evaluated=view.is_evaluated(name))
    return band.limits if band else None


class MetricTail(NamedTuple):
    """The number of points of a metric (None if not counted), the last value, and whether all values are equal."""

    points: int | None
    last: float | None
    is_constant: bool = False


def described(view: StoredRun, name: str) -> Described:
    """What a metric is: its name, concept, title, unit and direction."""
    meaning, metric = view.meaning(name), view.reader.named(name, evaluated=view.is_evaluated(name))
    label = slices.text(meaning.labels) if meaning else ""
    title = view.reader.title(name, evaluated=view.is_evaluated(name))
    return {
        "name": name,
        "concept": meaning.metric.id if meaning else None,
        "title": f"{title} · {label}" if metric and label else title,
        "unit": metric.unit if metric else "",
        "direction": metric.direction if metric else "none",
    }


def _facts(view: StoredRun, name: str, stream: Stream, ending: MetricTail) -> ListedMetric:
    meaning = view.meaning(name)
    return {
        **described(view, name),
        "stream": stream,
        "group": _group(name, meaning.metric if meaning else None),
        "has_band": band_of(view, name) is not None,
        "points": ending.points,
        "last": ending.last,
        "is_constant": ending.is_constant,
        "slice": None,
        "held_out_of": None,
    }


def slice_facts(groups: Sequence[catalog.Sliced], reader: catalog.Reader) -> dict[str, SliceFacts]:
    """For each logged name: its series of slices and its label. Only series with several slices count. A label that all
    slices share is left out.
    """
    found: dict[str, SliceFacts] = {}
    for group in groups:
        cuts = {name: cut for name in group.names.values() if (cut := reader.cut(name))}
        telling = telling_keys(cut.labels for cut in cuts.values())
        if not telling:
            continue
        metric = reader.named(next(iter(cuts)))
        plain = metric.title if metric else next(iter(cuts.values())).name
        title = f"{plain} by {' and '.join(telling)}"
        for name, cut in cuts.items():
            label = ", ".join(cut.labels[key] for key in telling)
            found[name] = {"series": group.stem, "label": label, "title": title}
    return found


def telling_keys(labels: Iterable[Mapping[str, str]]) -> list[str]:
    """The keys by which slices differ."""
    values: dict[str, set[str]] = {}
    for one in labels:
        for key, value in one.items():
            values.setdefault(key, set()).add(value)
    return [key for key, seen in values.items() if len(seen) > 1]


def _group(name: str, metric: catalog.Metric | None) -> str:
    """The catalogue's chapter, or the part of the name before the first slash.

    >>> _group("mine/one/two", None), _group("mine", None)
    ('mine', 'Other metrics')
    """
    if metric is not None:
        return _chapters().get(metric.family, metric.family)
    head, slash, _ = name.partition("/")
    return head if slash and head else "Other metrics"


@lru_cache(maxsize=1)
def _chapters() -> dict[str, str]:
    return {family.id: family.title for family in catalog.families()}


@lru_cache(maxsize=1)
def _places() -> dict[str, int]:
    """The position of each chapter by its title: below 0, 0 for unknown ones, or above 0."""
    order = {family: place - len(READ_FIRST) for place, family in enumerate(READ_FIRST)}
    order |= {family: place for place, family in enumerate(READ_LAST, 1)}
    return {title: order.get(family, 0) for family, title in _chapters().items()}


def _counted(columns: Columns, lives: NDArray[np.bool_]) -> Callable[[str], MetricTail]:
    """Returns the number of points of a metric, and its last value."""

    def ending(name: str) -> MetricTail:
        values = columns.column(name)
        places = np.flatnonzero(is_present(values) & lives)
        last = float(values[places[-1]]) if len(places) else math.nan
        is_constant = len(places) > 1 and bool((values[places] == last).all())
        return MetricTail(len(places), plain_number(last), is_constant)

    return ending


def _glimpsed(view: StoredRun, stream: Stream) -> Callable[[str], MetricTail]:
    """Returns the last value in the newest rows, without the number of points."""
    newest: dict[str, float] = {}
    for row in last_rows(RunDir(view.path).log(stream), GLIMPSED_ROWS):
        newest |= row.numbers

    def ending(name: str) -> MetricTail:
        return MetricTail(None, plain_number(newest.get(name)))

    return ending
