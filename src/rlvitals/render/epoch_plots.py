"""The three pictures of a run's epochs: loss and reward, KL and entropy, the evaluation scores.

The functions take epochs and return matplotlib figures. They do not use pyplot, so they need no window system and share
no state with the user's own figures. matplotlib is imported when the first figure is made. Each series is drawn over
the epochs at which it was logged. NaN or infinity breaks the line and is marked with a cross at the bottom.
"""

from __future__ import annotations

import io
import math
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

from rlvitals.errors import needs
from rlvitals.render.numbers import number

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

RED, BLUE, GREEN, ORANGE, PURPLE = "#e74c3c", "#3498db", "#2ecc71", "#f39c12", "#9b59b6"
DPI = 150
GREY = "#5f6a6a"

MOST_MARKERS = 30
"""With more points the markers of a line would overlap, so only some points get a marker. The line keeps all points."""

WIDE = 300.0
"""A positive series whose largest value is more than this many times its median gets a logarithmic axis: one spike must
not flatten the other values."""

Epochs = Sequence[tuple[int, Mapping[str, float]]]
"""(epoch, its numbers), in order."""


class EpochSeries(NamedTuple):
    """How one metric is drawn."""

    name: str
    label: str
    colour: str
    marker: str
    best: str = ""
    """`highest` or `lowest`: the point that is marked as the best; empty for none."""


LOSS = EpochSeries("loss", "Loss", RED, "o", "lowest")
REWARD = EpochSeries("reward", "Reward", GREEN, "s", "highest")
KL = EpochSeries("kl_divergence", "KL Divergence", BLUE, "^")
ENTROPY = EpochSeries("entropy", "Entropy", PURPLE, "D")
SCORES = (
    EpochSeries("bertscore", "BERTScore", RED, "o"),
    EpochSeries("codebleu", "CodeBLEU", BLUE, "s"),
    EpochSeries("bleu", "BLEU", GREEN, "^"),
    EpochSeries("rouge", "ROUGE", ORANGE, "D"),
    EpochSeries("ruby", "RUBY", PURPLE, "v"),
)


class EpochPoints(NamedTuple):
    """One metric's points, and the epochs at which it was not finite."""

    epochs: list[int]
    values: list[float]
    """NaN where the line breaks."""
    broken: list[int]


def pictures(epochs: Epochs) -> dict[str, bytes]:
    """Name -> PNG, for the pictures that have data. Raises MissingDependency without matplotlib."""
    return {name: png(figure) for name, figure in figures(epochs).items()}


def figures(epochs: Epochs) -> dict[str, Figure]:
    """Name -> figure, for the figures that have data."""
    found: dict[str, Figure | None] = {
        "training_progress": _two_panels(
            epochs, "Training Progress", {"Loss over Epochs": LOSS, "Reward over Epochs": REWARD}
        ),
        "policy_metrics": _two_panels(epochs, "Policy Metrics", {"KL Divergence": KL, "Entropy": ENTROPY}),
        "evaluation_metrics": _scores(epochs),
    }
    return {name: figure for name, figure in found.items() if figure is not None}


def png(figure: Figure) -> bytes:
    """A figure as a PNG file."""
    picture = io.BytesIO()
    figure.savefig(picture, format="png", dpi=DPI)
    return picture.getvalue()


def points_of(epochs: Epochs, name: str) -> EpochPoints:
    """The points of one metric at the epochs that logged it.

    >>> points_of([(1, {"bleu": 0.1}), (2, {}), (3, {"bleu": float("nan")})], "bleu")
    EpochPoints(epochs=[1, 3], values=[0.1, nan], broken=[3])
    """
    logged = [(epoch, float(numbers[name])) for epoch, numbers in epochs if name in numbers]
    values = [value if math.isfinite(value) else math.nan for _, value in logged]
    return EpochPoints(
        [epoch for epoch, _ in logged], values, [epoch for epoch, value in logged if not math.isfinite(value)]
    )


def _two_panels(epochs: Epochs, title: str, panels: Mapping[str, EpochSeries]) -> Figure | None:
    if not any(series.name in numbers for _, numbers in epochs for series in panels.values()):
        return None
    figure = _figure((12, 8))
    axes = figure.subplots(2, 1, sharex=True)
    for axis, (heading, series) in zip(axes, panels.items(), strict=True):
        points = points_of(epochs, series.name)
        _draw(axis, series, points)
        _note(axis, series, points)
        _dress(axis, heading, series.label)
        if not points.epochs:
            axis.text(0.5, 0.5, "not logged", transform=axis.transAxes, ha="center", va="center", color=GREY)
            axis.set_yticks([])
    _finish(figure, axes[-1], title, epochs)
    return figure


def _scores(epochs: Epochs) -> Figure | None:
    shown = {series: points_of(epochs, series.name) for series in SCORES}
    shown = {series: points for series, points in shown.items() if points.epochs}
    if not shown:
        return None
    figure = _figure((12, 6))
    axis = figure.subplots()
    for series, points in shown.items():
        _draw(axis, series, points)
    _dress(axis, "", "Score")
    if any(points.broken for points in shown.values()):
        axis.set_title("x: no number", loc="right", fontsize=11, color=GREY)
    # Beside the panel: with five lines, no corner inside is sure to be free.
    axis.legend(loc="upper left", bbox_to_anchor=(1.01, 1.0), frameon=False, fontsize=11, borderaxespad=0.0)
    _finish(figure, axis, "Evaluation Metrics", epochs)
    return figure


def _figure(size: tuple[float, float]) -> Figure:
    with needs("drawing plots", "plots"):
        from matplotlib.backends.backend_agg import FigureCanvasAgg
        from matplotlib.figure import Figure
        from matplotlib.layout_engine import ConstrainedLayoutEngine

    edges = ConstrainedLayoutEngine(w_pad=0.15, h_pad=0.12)
    figure = Figure(figsize=size, layout=edges, facecolor="white")
    FigureCanvasAgg(figure)
    return figure


def _draw(axis: Axes, series: EpochSeries, points: EpochPoints) -> None:
    count = len(points.epochs)
    finite = [value for value in points.values if not math.isnan(value)]
    axis.plot(
        points.epochs,
        points.values,
        color=series.colour,
        marker=series.marker,
        markersize=7 if count <= MOST_MARKERS else 5,
        markevery=_marked(points.values),
        markeredgecolor="white",
        markeredgewidth=0.6 if count <= MOST_MARKERS else 0.0,
        linewidth=2 if count <= 100 else 1.4,
        label=f"{series.label}  {_score(finite[-1])}" if finite else series.label,
    )
    if points.broken:
        # In axes coordinates, so that the cross is at the bottom whatever the values are.
        axis.plot(
            points.broken,
            [0.03] * len(points.broken),
            transform=axis.get_xaxis_transform(),
            linestyle="none",
            marker="x",
            markersize=8,
            markeredgewidth=2,
            color=series.colour,
            label="_no number",  # the underscore keeps it out of the legend
        )
    if _is_wide(finite):
        axis.set_yscale("log")


def _score(value: float) -> str:
    return f"{value:.4f}" if abs(value) < 1000 else number(value)


def _marked(values: list[float]) -> list[int]:
    """The positions that get a marker: all of a few points, some of many, and always a point between two gaps."""
    every = max(1, math.ceil(len(values) / MOST_MARKERS))
    walled = [math.nan, *values, math.nan]
    return [
        place
        for place in range(len(values))
        if place % every == 0 or (math.isnan(walled[place]) and math.isnan(walled[place + 2]))
    ]


def _is_wide(values: list[float]) -> bool:
    ordered = sorted(values)
    return len(ordered) > 2 and ordered[0] > 0 and ordered[-1] > WIDE * ordered[len(ordered) // 2]


def _note(axis: Axes, series: EpochSeries, points: EpochPoints) -> None:
    """Mark the best point. Its value is in the title line: a label at the point would cover the curve."""
    finite = [
        (value, epoch) for epoch, value in zip(points.epochs, points.values, strict=True) if not math.isnan(value)
    ]
    notes = ["x: no number"] if points.broken else []
    if finite and series.best:
        best = (min if series.best == "lowest" else max)(value for value, _ in finite)
        epoch = next(epoch for value, epoch in finite if value == best)
        axis.plot(
            [epoch],
            [best],
            linestyle="none",
            marker=series.marker,
            markersize=12,
            markerfacecolor="none",
            markeredgecolor="black",
            markeredgewidth=1.6,
        )
        notes.append(f"{series.best} {number(best)} at epoch {epoch}")
    if finite:
        notes.append(f"last {number(finite[-1][0])}")
    axis.set_title("   ".join(notes), loc="right", fontsize=11, color=GREY)


def _dress(axis: Axes, heading: str, label: str) -> None:
    axis.set_title(heading, loc="left", fontsize=13, fontweight="bold")
    axis.set_ylabel(label, fontsize=11)
    axis.grid(visible=True, alpha=0.3)
    axis.spines[["top", "right"]].set_visible(False)
    axis.tick_params(labelsize=10, labelbottom=True)
    axis.margins(x=0.02, y=0.1)


def _finish(figure: Figure, lowest: Axes, title: str, epochs: Epochs) -> None:
    from matplotlib.ticker import MaxNLocator

    lowest.set_xlabel("Epoch", fontsize=11)
    lowest.xaxis.set_major_locator(MaxNLocator(nbins=12, integer=True, min_n_ticks=1))
    first, last = epochs[0][0], epochs[-1][0]
    pad: Any = 0.5 if first == last else 0.02 * (last - first)
    lowest.set_xlim(first - pad, last + pad)
    figure.suptitle(title, fontsize=16, fontweight="bold")
