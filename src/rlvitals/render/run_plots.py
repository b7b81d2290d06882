"""Draws panels of curves as an image. Reads and writes no files; matplotlib is imported only when drawing.

Long series are drawn as an envelope that keeps their extremes. NaNs are marked where they were logged. Abandoned rows
are drawn as dotted grey lines. The palette suits colour-blind readers; dashes and markers also distinguish the lines.
"""

from __future__ import annotations

import io
import math
import textwrap
import warnings
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Literal

import numpy as np
from numpy.typing import NDArray

from rlvitals.errors import needs
from rlvitals.render.curves import Envelope, axis_scale, envelope, is_smooth, rolling_mean
from rlvitals.terminal import cut_middle, visible

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

Array = NDArray[np.float64]
Smooth = int | Literal["auto"]
"""Number of points in the moving average; 0 for no smoothing."""

COLOURS = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#E69F00", "#56B4E9", "#000000")
"""Okabe and Ito's palette."""
MARKERS = ("o", "s", "^", "D", "v", "P", "X")
DASHES: tuple[Any, ...] = ("-", (0, (5, 1.5)), (0, (1.5, 1.2)), (0, (6, 1.5, 1.5, 1.5)), (0, (3, 1)), (0, (1, 2)), "-")
SEVERITY = {"critical": ("#B2182B", "-"), "warning": ("#B8860B", "--")}
GREY = "#666666"
TYPICAL = "#7A8B99"
FEW = 60
"""Up to this number of points, each point gets a marker."""
MANY = 1200
"""Above this number of points, the curve is drawn as an envelope."""
SMOOTHED_FROM = 80
DPI = 110
PANEL_SIZE = (4.7, 2.75)
MOST_LEGENDS = 8
LONGEST_NAME = 58

LONGEST_TITLE = 46
"""Characters of a title that fit above a panel. A longer one is drawn smaller."""


@dataclass(frozen=True, slots=True)
class PlotLine:
    """One curve."""

    label: str
    x: Array
    y: Array
    is_sparse: bool = False
    """True for evaluations: every point gets a marker and the line is not smoothed."""


@dataclass(frozen=True, slots=True)
class Mark:
    """A finding's onset."""

    x: float
    severity: str
    number: int
    """Its number in the list below the panels."""
    is_about: bool = True
    """Whether the finding is about the panel's metric; if not, its line is drawn faintly and without a number."""


@dataclass(frozen=True, slots=True)
class Panel:
    """One set of axes."""

    title: str
    name: str
    """The name it was logged under."""
    lines: list[PlotLine]
    ghosts: list[PlotLine] = field(default_factory=list)
    band: tuple[float | None, float | None] | None = None
    marks: list[Mark] = field(default_factory=list)

    @property
    def not_finite(self) -> Array:
        """Where any line is NaN or infinite, in rising order; a point for each value."""
        return np.sort(np.concatenate([line.x[~np.isfinite(line.y)] for line in self.lines] or [np.zeros(0)]))


@dataclass(frozen=True, slots=True)
class Picture:
    """A whole figure."""

    title: str
    about: str
    x_label: str
    panels: list[Panel]
    boundaries: list[tuple[float, str]] = field(default_factory=list)
    """Where each later attempt starts, and its label."""
    remarks: list[tuple[str, str]] = field(default_factory=list)
    """Lines below the panels: a severity (or an empty string) and a text."""
    legend: list[str] = field(default_factory=list)
    """Names of the lines, if a colour means the same run in every panel; otherwise empty."""


def draw(picture: Picture, smooth: Smooth = "auto", image_format: str = "png") -> bytes:
    """The picture as the bytes of an image file. Raises MissingDependency if matplotlib is not installed."""
    with needs("drawing a run", "plots"):
        from matplotlib.backends.backend_agg import FigureCanvasAgg
        from matplotlib.figure import Figure
    columns = _columns(len(picture.panels))
    rows = math.ceil(len(picture.panels) / columns)
    remarks = [(severity, line) for severity, text in picture.remarks for line in _wrapped(text, columns)]
    head, foot = 0.62, 0.1 + 0.19 * len(remarks)
    width = PANEL_SIZE[0] * (1.6 if columns == 1 else columns if columns < 4 else 3.6)
    height = PANEL_SIZE[1] * rows + head + foot
    figure = Figure(figsize=(width, height), dpi=DPI, layout="constrained")
    FigureCanvasAgg(figure)
    layout = figure.get_layout_engine()
    assert layout is not None
    layout.set(rect=(0.003, foot / height, 0.994, 1 - (head + foot) / height), h_pad=0.09, w_pad=0.07)  # type: ignore[call-arg]
    axes = figure.subplots(rows, columns, squeeze=False).flatten()
    limits = _x_limits(picture.panels)
    for place, (panel, ax) in enumerate(zip(picture.panels, axes, strict=False)):
        _draw_panel(ax, panel, picture, smooth, limits)
        if place + columns >= len(picture.panels):
            ax.set_xlabel(picture.x_label, fontsize=8, color=GREY)
    for ax in axes[len(picture.panels) :]:
        ax.set_visible(False)
    _draw_words(figure, picture, remarks, foot / height)
    out = io.BytesIO()
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", message="Glyph")  # names may contain characters that the font lacks
        figure.savefig(out, format=image_format)
    return out.getvalue()


def _columns(panels: int) -> int:
    """The number of columns: at most four, chosen to leave few empty places."""
    return {1: 1, 2: 2, 4: 2, 7: 4, 8: 4}.get(panels, 3 if panels < 10 else 4)


def _wrapped(text: str, columns: int) -> list[str]:
    return textwrap.wrap(_plain(text), 62 * min(max(columns, 2), 3), subsequent_indent="     ") or [""]


def _plain(text: str) -> str:
    """A text with control characters made visible and $ escaped, since matplotlib would read it as mathematics."""
    return visible(text).replace("$", r"\$")


def _x_limits(panels: Sequence[Panel]) -> tuple[float, float]:
    ends = [(float(line.x.min()), float(line.x.max())) for panel in panels for line in panel.lines if len(line.x)]
    if not ends:
        return 0.0, 1.0
    low, high = min(end[0] for end in ends), max(end[1] for end in ends)
    margin = 0.02 * (high - low) or 0.5
    return low - margin, high + margin


def _draw_words(figure: Figure, picture: Picture, remarks: list[tuple[str, str]], foot: float) -> None:
    inches = figure.get_size_inches()[1]
    figure.text(0.01, 1 - 0.12 / inches, _plain(picture.title), fontsize=12.5, weight="bold", va="top")
    figure.text(0.01, 1 - 0.40 / inches, _plain(picture.about), fontsize=8, color=GREY, va="top")
    if picture.legend:
        from matplotlib.lines import Line2D

        handles = [
            Line2D(
                [], [], color=_colour(place), linestyle=_dash(place), marker=_marker(place), markersize=4, label=name
            )
            for place, name in enumerate(map(_plain, picture.legend[:MOST_LEGENDS]))
        ]
        figure.legend(
            handles=handles, loc="upper right", bbox_to_anchor=(0.995, 1.0), ncols=min(len(handles), 3), fontsize=8,
            frameon=False,
        )  # fmt: skip
    for place, (severity, text) in enumerate(remarks):
        colour = SEVERITY[severity][0] if severity in SEVERITY else GREY
        down = foot - (0.1 + 0.19 * place) / inches
        figure.text(0.01, down, text, fontsize=8, color=colour, va="top")


def _draw_panel(ax: Axes, panel: Panel, picture: Picture, smooth: Smooth, limits: tuple[float, float]) -> None:
    size = 9.5 * min(1.0, LONGEST_TITLE / max(len(panel.title), 1))
    ax.set_title(_plain(panel.title), loc="left", fontsize=size, weight="bold", pad=14)
    if len(panel.lines) < 2 or picture.legend:
        ax.text(
            0,
            1.02,
            _plain(cut_middle(panel.name, LONGEST_NAME)),
            transform=ax.transAxes,
            fontsize=7,
            color=GREY,
            va="bottom",
        )
    ax.grid(visible=True, color="#E4E4E4", linewidth=0.6)
    ax.set_axisbelow(True)
    for side in ("top", "right"):
        ax.spines[side].set_visible(False)
    for ghost in panel.ghosts:
        ax.plot(*_thinned(ghost), color="#888888", linewidth=0.9, linestyle=":", zorder=2.5)
    values = np.concatenate([np.zeros(0), *(line.y[np.isfinite(line.y)] for line in panel.lines)])
    scale = axis_scale(values)
    for place, line in enumerate(panel.lines):
        _draw_line(ax, _Curve(line, place, 26 if len(panel.lines) < 3 else 17), smooth, is_log=scale == "log")
    _set_axes(ax, values, scale, limits)
    if panel.band is not None:
        _draw_band(ax, panel.band)
    for x, words in picture.boundaries:
        ax.axvline(x, color="#AAAAAA", linewidth=0.8, linestyle="-.", zorder=1)
        ax.text(
            x, 0.015, f" {words}", transform=ax.get_xaxis_transform(), fontsize=6, color="#999999", va="bottom",
            clip_on=True,
        )  # fmt: skip
    _draw_marks(ax, panel.marks, limits)
    _note_missing(ax, panel.not_finite)
    if len(panel.lines) > 1 and not picture.legend:
        legend = ax.legend(
            loc="lower left", bbox_to_anchor=(-0.01, 0.985), ncols=len(panel.lines), fontsize=6.5, frameon=False,
            borderaxespad=0.0, borderpad=0.1, handlelength=1.8, handletextpad=0.4, columnspacing=1.0,
        )  # fmt: skip
        legend.set_in_layout(False)


class _Curve:
    """A line of a panel. Its position among the panel's lines selects its colour, dash and marker."""

    def __init__(self, line: PlotLine, place: int, letters: int) -> None:
        self.x = line.x
        self.y = np.where(np.isfinite(line.y), line.y, np.nan)
        self.has_points = len(line.y) <= FEW or line.is_sparse
        label = line.label if len(line.label) <= letters else f"…{line.label[1 - letters :]}"
        self.style: dict[str, Any] = {"color": _colour(place), "linestyle": _dash(place), "label": _plain(label)}
        self.mark = _marker(place)


def _draw_line(ax: Axes, curve: _Curve, smooth: Smooth, *, is_log: bool) -> None:
    """Draw few points with markers, more points faintly below their moving average, and very many as an envelope."""
    if curve.has_points:
        ax.plot(curve.x, curve.y, marker=curve.mark, markersize=3, linewidth=1.2, **curve.style)
        return
    window = _window(curve.y, smooth)
    if len(curve.y) > MANY:
        shape: Envelope = envelope(curve.x, curve.y)
        ax.fill_between(shape.x, shape.low, shape.high, color=curve.style["color"], alpha=0.28, linewidth=0.4)
        means = rolling_mean(shape.mean, window * len(shape.x) // len(curve.y))
        ax.plot(shape.x, means, linewidth=1.4, **curve.style)
        return
    if window <= 1:
        ax.plot(curve.x, curve.y, linewidth=1.1, **curve.style)
        return
    ax.plot(curve.x, curve.y, color=curve.style["color"], linewidth=0.8, alpha=0.35)
    # On a logarithmic axis the geometric mean lies in the visual middle of the points.
    means = np.exp(rolling_mean(np.log(curve.y), window)) if is_log else rolling_mean(curve.y, window)
    ax.plot(curve.x, means, linewidth=1.6, **curve.style)


def _window(y: Array, smooth: Smooth) -> int:
    if smooth != "auto":
        return smooth
    return max(5, len(y) // 25) if len(y) >= SMOOTHED_FROM and not is_smooth(y) else 0


def _thinned(line: PlotLine) -> tuple[Array, Array]:
    if len(line.y) <= MANY:
        return line.x, np.where(np.isfinite(line.y), line.y, np.nan)
    shape = envelope(line.x, line.y)
    return shape.x, shape.mean


def _set_axes(ax: Axes, values: Array, scale: str, limits: tuple[float, float]) -> None:
    from matplotlib.ticker import FuncFormatter, MaxNLocator

    ax.set_xlim(*limits)
    if scale == "log":
        ax.set_yscale("log")
    elif scale == "symlog":
        ax.set_yscale("symlog", linthresh=float(np.percentile(np.abs(values), 90)) or 1.0)
    elif len(values):
        low, high = float(values.min()), float(values.max())
        margin = 0.07 * (high - low) or 0.07 * abs(high) or 0.5
        ax.set_ylim(low - margin, high + margin)
        if low == high:
            ax.set_yticks([low])
        else:
            ax.yaxis.set_major_locator(MaxNLocator(5))
        ax.yaxis.set_major_formatter(FuncFormatter(_ValueTick(low, high)))
    else:
        ax.text(0.5, 0.5, "no finite value", transform=ax.transAxes, ha="center", fontsize=8, color=GREY)
        ax.set_yticks([])
    ax.set_ylim(*ax.get_ylim())  # what is drawn later must not change the limits
    if scale != "linear":
        ax.text(1.0, 1.02, f"{scale} axis", transform=ax.transAxes, fontsize=6.5, color=GREY, ha="right", va="bottom")
    ax.xaxis.set_major_locator(MaxNLocator(6, integer=limits[1] - limits[0] > 6))
    ax.xaxis.set_major_formatter(FuncFormatter(_step_tick))
    ax.tick_params(which="both", labelsize=7, colors="#333333", length=2.5)


class _ValueTick:
    """Formats a value with enough digits to distinguish neighbouring ticks."""

    def __init__(self, low: float, high: float) -> None:
        largest = max(abs(low), abs(high))
        self._digits = 4 if high == low else min(9, max(3, math.ceil(math.log10(largest / (high - low))) + 2))
        self._zero = 1e-9 * largest

    def __call__(self, value: float, _: int | None = None) -> str:
        if abs(value) <= self._zero:
            return "0"
        return f"{value:,.0f}" if 1000 <= abs(value) < 1e6 and self._digits < 5 else f"{value:.{self._digits}g}"


def _step_tick(value: float, _: int | None = None) -> str:
    for size, unit, word in ((1e9, 1e9, "G"), (1e6, 1e6, "M"), (1e4, 1e3, "k")):
        if abs(value) >= size:
            return f"{value / unit:g}{word}"
    return f"{value:g}"


def _draw_band(ax: Axes, band: tuple[float | None, float | None]) -> None:
    """Draw the typical range, cut to the axis limits so that it does not stretch the axis."""
    bottom, top = ax.get_ylim()
    low = bottom if band[0] is None else max(band[0], bottom)
    high = top if band[1] is None else min(band[1], top)
    if low < high:
        ax.axhspan(low, high, color=TYPICAL, alpha=0.13, linewidth=0, zorder=0.5)
    for edge in band:
        if edge is not None and bottom < edge < top:
            ax.axhline(edge, color=TYPICAL, linewidth=0.8, linestyle=(0, (4, 3)), zorder=0.6)


def _draw_marks(ax: Axes, marks: list[Mark], limits: tuple[float, float]) -> None:
    """Draw onsets as lines. Those about this panel's metric have a number, on up to three levels if they are close."""
    before, level = -math.inf, 0
    for mark in sorted(marks, key=lambda mark: mark.x):
        if not limits[0] <= mark.x <= limits[1]:
            continue
        colour, dash = SEVERITY.get(mark.severity, (GREY, ":"))
        faint = not mark.is_about
        ax.axvline(mark.x, color=colour, linestyle=dash, linewidth=0.6 if faint else 1.1, alpha=0.25 if faint else 0.9)
        if faint:
            continue
        level = (level + 1) % 3 if mark.x - before < 0.05 * (limits[1] - limits[0]) else 0
        before = mark.x
        ax.text(
            mark.x, 0.97 - 0.115 * level, str(mark.number), transform=ax.get_xaxis_transform(), fontsize=6.5,
            color="white", ha="center", va="top",
            bbox={"boxstyle": "round,pad=0.18", "facecolor": colour, "edgecolor": "none"}, clip_on=True,
        )  # fmt: skip


def _note_missing(ax: Axes, broken: Array) -> None:
    """Count NaNs and infinities, and mark up to `FEW` of them with red crosses."""
    if not len(broken):
        return
    shown = broken[:: math.ceil(len(broken) / FEW)]
    ax.plot(
        shown, np.full(len(shown), 0.02), transform=ax.get_xaxis_transform(), linestyle="none", marker="x",
        markersize=3.5, color=SEVERITY["critical"][0], clip_on=False, zorder=4,
    )  # fmt: skip
    words = f"{len(broken):,} not finite"
    ax.text(0.995, 0.05, words, transform=ax.transAxes, fontsize=6.5, color=SEVERITY["critical"][0], ha="right")


def _colour(place: int) -> str:
    return COLOURS[place % len(COLOURS)]


def _marker(place: int) -> str:
    return MARKERS[place % len(MARKERS)]


def _dash(place: int) -> Any:
    return DASHES[place % len(DASHES)]
