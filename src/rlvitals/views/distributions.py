"""Distributions over the steps: percentiles and histograms of logged distributions, and of the rewards, lengths and
turns of recorded rollouts, which need no separate logging.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Sequence
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from rlvitals.contract import Distribution, Distributions, LoggedText
from rlvitals.store.distributions import LEVELS, Sketch
from rlvitals.views.run import RunView

Array = NDArray[np.float64]

SHOWN_LEVELS = (0.0, 0.05, 0.25, 0.5, 0.75, 0.95, 1.0)
PLACES = 120
"""Columns of a chart. With more steps, neighbouring steps share a column."""

BINS = 32
PIECES = 100
"""Number of values that represent a sketch."""

EDGE = 0.005
"""Share of the values on each side that is put into the outermost bin, whatever their size."""

MOST_DISTRIBUTIONS, MOST_TEXTS = 200, 200

OF_ROLLOUTS = {
    "reward": "Reward of each rollout",
    "tokens": "Tokens of each rollout",
    "turns": "Turns of each rollout",
}


class WeightedPoints(NamedTuple):
    """Values with their steps, in order, and the weight of each."""

    steps: NDArray[np.int64]
    values: Array
    weights: Array


def distributions(view: RunView) -> Distributions:
    """The response of `/api/distributions`."""
    found = [*_of_rollouts(view), *_logged(view)]
    return {"distributions": found[:MOST_DISTRIBUTIONS], "texts": _texts(view)}


def _of_rollouts(view: RunView) -> list[Distribution]:
    samples = view.rollout_log.samples()
    found = []
    for name, title in OF_ROLLOUTS.items():
        known = [(sample.step, getattr(sample, name)) for sample in samples if getattr(sample, name) is not None]
        if not known or (name == "turns" and all(turns == known[0][1] for _, turns in known)):
            continue
        steps = np.array([step for step, _ in known], dtype=np.int64)
        values = np.array([value for _, value in known], dtype=np.float64)
        found.append(_spread(name, title, "rollouts", WeightedPoints(steps, values, np.ones(len(values)))))
    return found


def _logged(view: RunView) -> list[Distribution]:
    by_name: dict[str, list[tuple[int, Sketch]]] = {}
    for one in view.logged_distributions:
        by_name.setdefault(one.name, []).append((one.step, one.sketch))
    return [
        _spread(name, view.reader.title(name), "logged", _pieces(known), sorted(known, key=lambda one: one[0]))
        for name, known in by_name.items()
    ]


def _pieces(known: Iterable[tuple[int, Sketch]]) -> WeightedPoints:
    """Sketches as values. Each sketch becomes PIECES values, spaced by its quantiles, with its total weight."""
    ordered = sorted(known, key=lambda one: one[0])
    levels = np.linspace(0, 1, PIECES)
    values = [np.interp(levels, LEVELS, sketch.quantiles) for _, sketch in ordered]
    return WeightedPoints(
        np.repeat(np.array([step for step, _ in ordered], dtype=np.int64), PIECES),
        np.concatenate(values),
        np.repeat(np.array([sketch.count / PIECES for _, sketch in ordered]), PIECES),
    )


def _spread(
    name: str, title: str, source: str, points: WeightedPoints, sketches: Sequence[tuple[int, Sketch]] = ()
) -> Distribution:
    """`sketches` are the sketches that the points represent, if any, in the same order."""
    steps, starts = np.unique(points.steps, return_index=True)
    chosen = starts[:: -(-len(steps) // PLACES)]
    bounds = [*chosen.tolist(), len(points.values)]
    edges = _edges(points)
    inside = np.clip(points.values, edges[0], edges[-1])
    columns = [slice(begin, end) for begin, end in itertools.pairwise(bounds)]
    quantiles = [weighted_quantiles(points.values[at], points.weights[at], SHOWN_LEVELS) for at in columns]
    if sketches:
        histograms = [_counts(sketches[at.start // PIECES : at.stop // PIECES], edges) for at in columns]
    else:
        histograms = [np.histogram(inside[at], edges, weights=points.weights[at])[0] for at in columns]
    return {
        "name": name,
        "title": title,
        "source": "rollouts" if source == "rollouts" else "logged",
        "steps": points.steps[chosen].tolist(),
        "counts": [round(float(points.weights[at].sum())) for at in columns],
        "levels": list(SHOWN_LEVELS),
        "quantiles": np.array(quantiles).T.tolist(),
        "edges": edges.tolist(),
        "shares": [(counts / counts.sum()).round(5).tolist() for counts in histograms],
    }


def _counts(sketches: Iterable[tuple[int, Sketch]], edges: Array) -> Array:
    """Values of the sketches in each bin. Values are spread evenly between two quantiles, so that no bin between is
    empty.
    """
    counts = np.zeros(len(edges) - 1)
    for _, sketch in sketches:
        below = np.interp(edges, sketch.quantiles, LEVELS)
        below[0], below[-1] = 0.0, 1.0  # values beyond the edges belong to the outermost bins
        counts += np.diff(below) * sketch.count
    return counts


def _edges(points: WeightedPoints) -> Array:
    """The edges of the bins that all steps share."""
    low, high = weighted_quantiles(points.values, points.weights, (EDGE, 1 - EDGE))
    if low == high:
        low, high = low - 0.5, high + 0.5
    return np.linspace(low, high, BINS + 1)


def weighted_quantiles(values: Array, weights: Array, levels: Sequence[float]) -> Array:
    """Quantiles of weighted values. With equal weights they are those of numpy.

    >>> weighted_quantiles(np.array([3.0, 1.0, 2.0]), np.ones(3), (0.0, 0.5, 1.0)).tolist()
    [1.0, 2.0, 3.0]
    """
    order = np.argsort(values, kind="stable")
    ordered, counts = values[order], weights[order]
    middles = np.cumsum(counts) - counts / 2
    reach = middles[-1] - middles[0]
    places = (middles - middles[0]) / reach if reach > 0 else np.zeros(len(ordered))
    return np.interp(levels, places, ordered)


def _texts(view: RunView) -> list[LoggedText]:
    """The newest texts in the rows."""
    columns, lives = view.columns("train")[0]
    found: list[LoggedText] = [
        {"name": name, "step": int(columns.steps[row]), "text": text}
        for name in columns.text_names
        for row, text in columns.texts(name).items()
        if lives[row]
    ]
    return sorted(found, key=lambda one: -one["step"])[:MOST_TEXTS]
