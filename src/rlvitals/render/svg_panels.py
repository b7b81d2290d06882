"""A panel of curves (see `run_plots.Panel`) as SVG for a self-contained page, and a sparkline."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from html import escape

import numpy as np

from rlvitals.render.charts import short
from rlvitals.render.curves import axis_scale, envelope
from rlvitals.render.numbers import band as band_text
from rlvitals.render.numbers import number
from rlvitals.render.run_plots import COLOURS, Array, Mark, Panel, Picture, PlotLine
from rlvitals.render.svg import AxisScale, Frame, Spot, escaped, stretches

WIDTH, HEIGHT, LEFT = 420, 190, 58
BUCKETS = 180
"""Above this number of points, a line is drawn as an envelope that keeps every extreme."""
MOST_LABELS = 4
SPARK_WIDTH, SPARK_HEIGHT = 120, 26

_DASHES = ("", "6 3", "2 2.5", "8 3 2 3", "4 2", "1 3", "")
_DARK = {"#0072B2": "#56B4E9", "#000000": "#E6E7E9", "#56B4E9": "#9AD4F5", "#009E73": "#2CC79B"}
"""Replacements for colours of the palette on a dark page."""


def _line_rules(colours: Sequence[str]) -> str:
    return "\n".join(
        f".s{place} {{ --series: {colour}; stroke-dasharray: {_DASHES[place] or 'none'}; }}"
        for place, colour in enumerate(colours)
    )


STYLE = f"""
.panels {{ display: grid; grid-template-columns: repeat(auto-fit, minmax(min(22rem, 100%), 1fr)); gap: .4rem 1.2rem; }}
.panels figure {{ margin: .6rem 0 0; }}
figcaption b {{ color: var(--ink); display: block; }}
.band {{ fill: var(--faint); opacity: .14; }}
.edge {{ stroke: var(--faint); stroke-dasharray: 4 3; opacity: .7; }}
.ghost {{ fill: none; stroke: var(--faint); stroke-dasharray: 1 2.5; }}
.boundary {{ stroke: var(--faint); stroke-dasharray: 6 2 1 2; opacity: .6; }}
.mark {{ stroke: var(--faint); }}
.mark.critical {{ stroke: var(--act); }}
.mark.warning {{ stroke: var(--watch); stroke-dasharray: 4 3; }}
.mark.hint {{ opacity: .25; }}
svg text.critical, svg text.lost {{ fill: var(--act); font-weight: 600; }}
svg text.warning {{ fill: var(--watch); font-weight: 600; }}
polygon.range {{ stroke: none; }}
.dot {{ fill: var(--series); }}
.key {{ display: inline-block; margin-right: 1em; }}
.key svg {{ display: inline; width: 26px; height: 8px; vertical-align: middle; margin-right: .3em; }}
.spark {{ width: {SPARK_WIDTH}px; height: {SPARK_HEIGHT}px; }}
{_line_rules(COLOURS)}
@media (prefers-color-scheme: dark) {{
{_line_rules([_DARK.get(colour, colour) for colour in COLOURS])}
}}
"""


def panel_figure(panel: Panel, picture: Picture) -> str:
    """One panel with its band, findings, abandoned attempts and the boundaries between attempts."""
    values = np.concatenate([np.zeros(0), *(line.y[np.isfinite(line.y)] for line in panel.lines)])
    places = np.concatenate([np.zeros(0), *(line.x for line in panel.lines)])
    caption = f"<b>{escaped(panel.title)}</b>{escaped(panel.name)}"
    if not len(values):
        lost = sum(len(line.y) for line in panel.lines)
        return f"<figure><figcaption>{caption}<br>no finite value in {number(lost)} points</figcaption></figure>"
    frame = _frame(places, values)
    parts = [*_background(panel, picture, frame), *_axes(frame, picture.x_label, values)]
    for ghost in panel.ghosts:
        parts += (frame.line(((spot.x, spot.middle) for spot in part), "ghost") for part in _spots(ghost))
    for place, line in enumerate(panel.lines):
        parts += _curve(line, f" s{place % len(COLOURS)}", frame)
    parts += _marks(panel.marks, frame)
    parts += _lost(panel.not_finite, frame)
    label = f"{escaped(panel.title)}: {_summary(panel, values)}"
    return (
        f'<figure><figcaption>{caption}</figcaption><svg viewBox="0 0 {WIDTH} {HEIGHT}" role="img" '
        f'aria-label="{label}">{"".join(parts)}</svg><figcaption>{_keys(panel, picture)}{_summary(panel, values)}'
        f"{_thinned(panel)}</figcaption></figure>"
    )


def legend(names: Sequence[str]) -> str:
    """The legend: each line's style and name."""
    return "".join(
        f'<span class="key"><svg viewBox="0 0 26 8" aria-hidden="true"><polyline class="middle s{place % len(COLOURS)}"'
        f' points="1,4 25,4"/></svg>{escaped(name)}</span>'
        for place, name in enumerate(names)
    )


def sparkline(points: Sequence[Sequence[float | None]], label: str) -> str:
    """A tile's points as a small line; an empty string if there are none."""
    known = [(x, y) for x, y in points if x is not None and y is not None]
    if not known:
        return ""
    xs, ys = [x for x, _ in known], [y for _, y in known]
    frame = Frame(SPARK_WIDTH + 6, SPARK_HEIGHT + 20, 2, (min(xs), max(xs)), (min(ys), max(ys)), top=3)
    return (
        f'<svg class="spark" viewBox="0 0 {SPARK_WIDTH} {SPARK_HEIGHT}" role="img" aria-label="{escaped(label)}">'
        f"{frame.line(known, 'middle')}</svg>"
    )


def _frame(places: Array, values: Array) -> Frame:
    scale: AxisScale = axis_scale(values)
    low, high = float(values.min()), float(values.max())
    threshold = float(np.percentile(np.abs(values), 90)) or 1.0
    if scale == "linear":  # a margin, so that the line does not touch the frame
        margin = 0.05 * (high - low) or 0.05 * abs(high) or 0.5
        low, high = max(low - margin, -1.7e308), min(high + margin, 1.7e308)
    x_range = (float(places.min()), float(places.max()))
    return Frame(WIDTH, HEIGHT, LEFT, x_range, (low, high), scale=scale, threshold=threshold)


def _axes(frame: Frame, x_label: str, values: Array) -> Iterator[str]:
    yield frame.axis()
    low, high = float(values.min()), float(values.max())
    for value in dict.fromkeys((high, low)):
        at = frame.y(value)
        yield f'<line class="axis" x1="{frame.left}" y1="{at}" x2="{frame.right}" y2="{at}"/>'
        yield f'<text x="{frame.left - 5}" y="{at + 4}" text-anchor="end">{short(value)}</text>'
    first, last = frame.x_range
    under = HEIGHT - 6
    if first < last:
        yield f'<text x="{frame.left}" y="{under}">{escape(x_label)} {short(first)}</text>'
    yield f'<text x="{frame.right}" y="{under}" text-anchor="end">{short(last)}</text>'
    if frame.scale != "linear":
        yield f'<text x="{(frame.left + frame.right) // 2}" y="{under}" text-anchor="middle">{frame.scale} axis</text>'


def _background(panel: Panel, picture: Picture, frame: Frame) -> Iterator[str]:
    """The typical range, cut to the axis, and the boundaries between attempts."""
    if panel.band is not None:
        bottom, top = frame.y_range
        low = bottom if panel.band[0] is None else max(panel.band[0], bottom)
        high = top if panel.band[1] is None else min(panel.band[1], top)
        if low < high:
            y, width = frame.y(high), frame.right - frame.left
            height = round(frame.y(low) - y, 1)
            yield f'<rect class="band" x="{frame.left}" y="{y}" width="{width}" height="{height}"/>'
        for edge in panel.band:
            if edge is not None and bottom < edge < top:
                at = frame.y(edge)
                yield f'<line class="edge" x1="{frame.left}" y1="{at}" x2="{frame.right}" y2="{at}"/>'
    for x, words in picture.boundaries:
        if frame.x_range[0] <= x <= frame.x_range[1]:
            yield _upright(frame, x, "boundary")
            yield f'<text x="{frame.x(x) + 2}" y="{frame.floor - 3}">{escaped(words)}</text>'


def _curve(line: PlotLine, style: str, frame: Frame) -> Iterator[str]:
    for stretch in _spots(line):
        yield from frame.curve(stretch, style)
    if line.is_sparse:
        for x, y in zip(line.x.tolist(), line.y.tolist(), strict=True):
            if math.isfinite(y):
                tooltip = f"<title>{short(x)}: {short(y)}</title>"
                yield f'<circle class="dot{style}" cx="{frame.x(x)}" cy="{frame.y(y)}" r="2.6">{tooltip}</circle>'


def _spots(line: PlotLine) -> Iterator[list[Spot]]:
    """The parts of a line between its gaps, downsampled if the line is long."""
    drawn = envelope(line.x, line.y, BUCKETS)
    spots = map(Spot._make, zip(*(part.tolist() for part in drawn), strict=True))
    yield from stretches(None if math.isnan(spot.middle) else spot for spot in spots)


def _marks(marks: Sequence[Mark], frame: Frame) -> Iterator[str]:
    """Onsets of findings. Those about this panel's metric have a number, on two levels if they are close."""
    before, level = -math.inf, 0
    for mark in sorted(marks, key=lambda mark: mark.x):
        if not frame.x_range[0] <= mark.x <= frame.x_range[1]:
            continue
        yield _upright(frame, mark.x, f"mark {escape(mark.severity)}{'' if mark.is_about else ' hint'}")
        if mark.is_about:
            at = frame.x(mark.x)
            level = 1 - level if at - before < 14 else 0
            before = at
            y = frame.top - 5 - 9 * level
            yield f'<text class="{escape(mark.severity)}" x="{at}" y="{y}" text-anchor="middle">{mark.number}</text>'


def _upright(frame: Frame, x: float, style: str) -> str:
    at = frame.x(x)
    return f'<line class="{style}" x1="{at}" y1="{frame.top - 3}" x2="{at}" y2="{frame.floor}"/>'


def _lost(broken: Array, frame: Frame) -> Iterator[str]:
    """The number of values that are not finite, and a cross for some of them."""
    if len(broken):
        for x in broken[:: math.ceil(len(broken) / 60)].tolist():
            yield f'<text class="lost" x="{frame.x(x)}" y="{frame.floor + 3}" text-anchor="middle">✕</text>'
        words = f"{number(len(broken))} not finite"
        yield f'<text class="lost" x="{frame.right}" y="{frame.floor - 5}" text-anchor="end">{words}</text>'


def _keys(panel: Panel, picture: Picture) -> str:
    if len(panel.lines) < 2 or picture.legend:
        return ""
    return legend([line.label for line in panel.lines[:MOST_LABELS]]) + "<br>"


def _summary(panel: Panel, values: Array) -> str:
    """The last, lowest and highest values, and the typical range."""
    lasts = [number(float(line.y[-1])) for line in panel.lines if len(line.y)]
    lowest, highest = number(float(values.min())), number(float(values.max()))
    parts = [f"last {' / '.join(lasts)}", f"{lowest} to {highest}" if lowest != highest else f"always {lowest}"]
    if lasts == [lowest] == [highest]:
        parts = parts[1:]
    if panel.band is not None:
        parts.append(f"typical: {band_text(*panel.band)}")
    return " · ".join(parts)


def _thinned(panel: Panel) -> str:
    most = max(len(line.y) for line in panel.lines)
    return f" · {BUCKETS} of {number(most)} points, every extreme kept" if most > BUCKETS else ""
