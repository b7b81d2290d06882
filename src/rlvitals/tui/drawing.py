"""What the screens draw, as lines of text: a metric's chart, a one-line curve, the bar of steps, text cut to a width.

Every text of a log goes through `visible` and into `Text`, which does not interpret markup.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

from rich.cells import cell_len
from rich.console import Console
from rich.segment import Segment
from rich.text import Text
from textual.color import Color
from textual.filter import LineFilter

from rlvitals.catalog import Limits
from rlvitals.records import SEVERITIES
from rlvitals.render.charts import ChartSeries, blocks, chart
from rlvitals.render.numbers import band as band_text
from rlvitals.render.numbers import number
from rlvitals.signs import STYLES, SYMBOLS
from rlvitals.terminal import cut_middle, visible

CURVE = "cyan"
FAINT = "dim"


class Harmless(LineFilter):
    """Replaces unprintable characters in drawn lines, for texts that did not go through `visible`. The line keeps its
    width, because the layout of the screen depends on it.
    """

    def apply(self, segments: list[Segment], background: Color) -> list[Segment]:
        return [
            part if part.control or part.text.isprintable() else Segment(_drawn(part.text), part.style)
            for part in segments
        ]


def _drawn(text: str) -> str:
    return "".join(letter if letter.isprintable() else "\ufffd" * cell_len(letter) for letter in text)


def cut(text: str, width: int) -> str:
    """A text cut to a width: the middle of a longer text is left out.

    >>> cut("critic/rewards/mean", 11), cut("loss", 8), cut("loss", 0)
    ('criti…/mean', 'loss', '')
    """
    return cut_middle(visible(text), width) if width > 0 else ""


def hint_line(words: Sequence[str], keys: Sequence[str], width: int) -> str:
    """The words that are not empty and the keys that fit: the last key (how to quit) and as many of the first ones.

    >>> hint_line(["", "ended"], ["? help", "t theme", "q quit"], 22)
    'ended  ? help  q quit'
    """
    shown = [word for word in words if word]
    for count in range(len(keys) - 1, -1, -1):
        line = "  ".join([*shown, *keys[:count], keys[-1]])
        if len(line) <= width:
            return line
    return cut("  ".join([*shown, keys[-1]]), width)


def course(series: ChartSeries, width: int) -> str:
    """A series as one line of block characters, the newest at the right. A missing value is a space.

    >>> course(ChartSeries([1, 2, 3], [1, 2, 3], [0.0, None, 1.0], [0.0, None, 1.0]), 3)
    '▁ █'
    """
    count = len(series.rows)
    limits = series.range
    if limits is None or width < 1:
        return ""
    means: list[float | None] = []
    for place in range(min(width, count)):
        start, end = place * count // min(width, count), (place + 1) * count // min(width, count)
        known = [
            (lowest + highest) / 2
            for lowest, highest in zip(series.low[start:end], series.high[start:end], strict=True)
            if lowest is not None and highest is not None
        ]
        means.append(sum(known) / len(known) if known else None)
    return blocks(means, *limits)


def chart_lines(
    series: ChartSeries | None,
    size: tuple[int, int],
    *,
    band: Limits | None = None,
    mark: tuple[float, str] | None = None,
    log: bool = False,
) -> list[Text]:
    """A chart of this width and height, including the axis and the steps. The axis line at the left is bold in the
    typical range.
    """
    width, height = size
    drawn: list[str] = []
    if series is not None:
        drawn = chart(series, *(mark or (None, "")), width=width, height=max(1, height - 2), log=log, ascii_only=False)
    if not drawn or series is None:
        why = "no value above 0 for a log scale" if log and series and series.range else "no finite value yet"
        return [Text(cut(why, width), style=FAINT)] + [Text("")] * (height - 1)
    wall = "│"
    lines = []
    for place, line in enumerate(drawn):
        scale, found, curve = line.partition(wall) if place < len(drawn) - 2 else (line, "", "")
        style = "bold" if found and _is_typical(series, band, place, len(drawn) - 2, log) else FAINT
        lines.append(Text.assemble((scale, FAINT), (found, style), (curve, CURVE), no_wrap=True, overflow="crop"))
    return lines


def _is_typical(series: ChartSeries, band: Limits | None, row: int, rows: int, log: bool) -> bool:
    """Whether a row of the chart overlaps the typical range."""
    limits = series.logarithms().range if log else series.range
    if band is None or limits is None:
        return False
    low, high = limits
    top = high - (high - low) * row / rows
    bottom = high - (high - low) * (row + 1) / rows
    if log:
        top, bottom = 10**top, 10**bottom
    return (band[0] is None or top >= band[0]) and (band[1] is None or bottom <= band[1])


def panel_title(name: str, title: str, value: float | None, band: Limits | None, width: int) -> Text:
    """The title of a chart: the metric, its last value and its typical range."""
    now = number(value)
    typical = f"  [{band_text(*band)}]" if band else ""
    room = width - len(now) - len(typical) - 1
    if room < 8:
        typical, room = "", width - len(now) - 1
    words = name if title == name else f"{title}  {name}"
    label = cut(words if len(words) <= room else name, room)
    return Text.assemble((label, "bold"), " ", now, (typical, FAINT))


def step_bar(findings: Iterable[dict[str, Any]], first: int | None, last: int | None, width: int) -> Text:
    """The steps so far, from left to right. A symbol shows the highest severity of the findings active there."""
    if first is None or last is None or width < 1:
        return Text("")
    gravity = [""] * width
    span = max(last - first, 1)
    order = ("", *SEVERITIES)
    for found in findings:
        end = last if found["recovered_step"] is None else found["recovered_step"]
        start = max(0, min(width - 1, int((found["onset_step"] - first) / span * (width - 1))))
        stop = max(start, min(width - 1, int((end - first) / span * (width - 1))))
        for place in range(start, stop + 1):
            gravity[place] = max(gravity[place], found["severity"], key=order.index)
    bar = Text(no_wrap=True)
    for severity in gravity:
        bar.append(SYMBOLS[severity] if severity else "─", STYLES[severity] if severity else FAINT)
    return bar


def wrapped(texts: Iterable[Text], width: int, console: Console) -> list[Text]:
    """Texts as lines of at most this width."""
    lines: list[Text] = []
    for text in texts:
        lines += text.wrap(console, max(width, 1)) or [Text("")]
    return lines


def window(count: int, selected: int, room: int) -> range:
    """Which of `count` lines to show in `room` so that the selected one is among them.

    >>> window(10, 9, 4), window(3, 0, 4), window(10, 5, 4)
    (range(6, 10), range(0, 3), range(3, 7))
    """
    if room <= 0:
        return range(0)
    start = max(0, min(selected - room // 2, count - room))
    return range(start, min(count, start + room))


def joined_columns(columns: Sequence[list[Text]], width: int) -> list[Text]:
    """Blocks of lines side by side, each padded to one width."""
    height = max(map(len, columns), default=0)
    lines = []
    for row in range(height):
        line = Text(no_wrap=True)
        for column in columns:
            cell = column[row].copy() if row < len(column) else Text("")
            cell.truncate(width, pad=True)
            line.append_text(cell)
            line.append("  ")
        lines.append(line)
    return lines
