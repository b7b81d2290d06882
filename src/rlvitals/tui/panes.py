"""The screens of the terminal view. Each draws only the lines that fit, however many metrics there are."""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache
from typing import Any

from rich.text import Text
from textual.widget import Widget

from rlvitals.errors import ConfigError
from rlvitals.render.charts import ChartSeries
from rlvitals.render.check import RuleFindings, cases, details
from rlvitals.render.numbers import band as band_text
from rlvitals.render.numbers import number
from rlvitals.signs import STYLES, SYMBOLS
from rlvitals.terminal import plural, visible
from rlvitals.tui.drawing import (
    CURVE,
    FAINT,
    chart_lines,
    course,
    cut,
    joined_columns,
    panel_title,
    window,
    wrapped,
)
from rlvitals.tui.watched import Watched
from rlvitals.views.expressions import Expression

PANEL_WIDTH, PANEL_HEIGHT = 38, 8
"""The minimum columns and lines of one chart."""
LIST_SHARE = 3
"""The list of findings takes one in this many lines."""


class Pane(Widget):
    """One screen. The app handles the keys: it moves the selection and asks for the selected metric."""

    def __init__(self, watched: Watched, name: str) -> None:
        super().__init__(id=name)
        self.watched = watched
        self.selected = 0
        self.filter = ""
        self.scrolled_away = 0
        """The number of lines of the details above the shown part."""

    @property
    def count(self) -> int:
        """The number of items that can be selected."""
        return 0

    @property
    def metric(self) -> str | None:
        """The selected metric."""
        return None

    def move(self, by: int) -> None:
        """Move the selection by this many items."""
        self.selected = max(0, min(self.selected + by, self.count - 1))
        self.scrolled_away = 0
        self.refresh()

    def scroll_details(self, by: int) -> None:
        """Scroll the details by this many lines."""
        self.scrolled_away = max(0, self.scrolled_away + by)
        self.refresh()

    def render(self) -> Text:
        width, height = self.size
        if width < 1 or height < 1:
            return Text("")
        with self.watched.lock:
            lines = self.lines(width, height)
        return Text("\n").join(lines[:height])

    def lines(self, width: int, height: int) -> list[Text]:
        """The lines to draw."""
        raise NotImplementedError

    def page(self, details: list[Text], height: int) -> list[Text]:
        """The shown part of the details. Its last line gives the number of lines below."""
        self.scrolled_away = max(0, min(self.scrolled_away, len(details) - height))
        shown = details[self.scrolled_away : self.scrolled_away + height]
        left = len(details) - self.scrolled_away - len(shown)
        if left > 0 and shown:
            shown[-1] = Text(f"... {left + 1} more lines: J and K, or page down", style=FAINT)
        return shown


def matching(names: Sequence[str], pattern: str) -> list[str]:
    """The names that a regular expression matches, ignoring case. An invalid expression is searched as plain text.

    >>> matching(["loss", "kl", "KL/ref"], "^kl"), matching(["a(b"], "a(")
    (['kl', 'KL/ref'], ['a(b'])
    """
    return [name for name in names if _fits(pattern, name)]


@lru_cache(maxsize=20_000)
def _fits(pattern: str, name: str) -> bool:
    """Cached, because a screen repeats the same matches several times a second."""
    expression = _expression(pattern)
    return pattern.lower() in name.lower() if expression is None else expression.is_found_in(name)


@lru_cache(maxsize=64)
def _expression(pattern: str) -> Expression | None:
    try:
        return Expression(pattern)
    except ConfigError:
        return None


class MetricsPane(Pane):
    """A screen of metrics, selected by the filter."""

    @property
    def all_names(self) -> list[str]:
        """The metrics before the filter."""
        return self.watched.names

    @property
    def _names(self) -> list[str]:
        return matching(self.all_names, self.filter)

    @property
    def count(self) -> int:
        return len(self._names)

    @property
    def metric(self) -> str | None:
        names = self._names
        return names[min(self.selected, len(names) - 1)] if names else None


class VitalsPane(MetricsPane):
    """The vital signs, one per line: status, value, change, typical range and a one-line curve."""

    @property
    def all_names(self) -> list[str]:
        return self.watched.vital_names

    def lines(self, width: int, height: int) -> list[Text]:
        names = set(self._names)
        tiles = [tile for tile in self.watched.tiles() if tile.name in names]
        if not tiles:
            words = "no vital sign is called so" if self.filter else "no rows yet"
            return [Text(words, style=FAINT)]
        self.selected = min(self.selected, len(tiles) - 1)
        label = min(34, max(18, width // 4 + 3))
        typical = 22 if width >= 100 else 16 if width >= 76 else 0
        room = width - label - 2 - 11 - 13 - typical - 3
        lines = [
            Text(
                f"  {'vital sign':<{label}}{'now':>11}{'since start':>13}  {'typical':<{typical}}"[:width], style=FAINT
            )
        ]
        for place in window(len(tiles), self.selected, height - 3):
            tile = tiles[place]
            symbol, style = SYMBOLS[tile.status] or "·", STYLES[tile.status]
            moved = tile.change["since_start"] if tile.change else None
            change = "-" if moved is None else f"{'+' if moved > 0 else ''}{number(moved)}" if moved else "steady"
            band = cut("" if tile.band is None else band_text(*tile.band), typical - 1) if typical else ""
            series = self.watched.series(tile.name)
            lines.append(
                Text.assemble(
                    (f"{symbol} ", style),
                    (f"{cut(tile.title, label - 1):<{label}}", "reverse" if place == self.selected else ""),
                    (f"{cut(number(tile.value), 11):>11}", style),
                    (f"{cut(change, 12):>13}", FAINT),
                    f"  {band:<{typical}}",
                    (course(series, room) if series else "", CURVE),
                    no_wrap=True,
                )
            )
        chosen = tiles[self.selected]
        lines.append(Text(""))
        summary = f"{chosen.name}: {chosen.why or 'no finding'}"
        lines.append(Text(cut(summary, width), style=STYLES[chosen.status] or FAINT))
        if chosen.change:
            lines.append(Text(cut(chosen.change["told"], width), style=FAINT))
        return [*lines, *self._large(chosen.name, width, height - len(lines))]

    def _large(self, name: str, width: int, room: int) -> list[Text]:
        """The chart of the selected vital sign, if there is room for it below the list."""
        if room < 7:
            return []
        size = (min(width, 120), min(room - 1, 16))
        return [Text(""), *chart_lines(self.watched.series(name), size, band=self.watched.band(name))]


class ChartsPane(MetricsPane):
    """A grid with a chart of every metric. An opened chart fills the screen."""

    def __init__(self, watched: Watched, name: str) -> None:
        super().__init__(watched, name)
        self.is_log = False
        self.is_single = False
        self._grave: list[dict[str, Any]] = []

    def lines(self, width: int, height: int) -> list[Text]:
        names = self._names
        if not names:
            return [Text("no metric matches the filter" if self.filter else "no rows yet", style=FAINT)]
        self.selected = min(self.selected, len(names) - 1)
        self._grave = [found for found in self.watched.facts if found["severity"] != "info"]
        if self.is_single:
            return self._panel(self.selected, names, width, height)
        columns = max(1, (width + 2) // (PANEL_WIDTH + 2))
        rows = max(1, height // PANEL_HEIGHT)
        size = (width + 2) // columns - 2, height // rows
        shown = window(-(-len(names) // columns), self.selected // columns, rows)
        lines: list[Text] = []
        for row in shown:
            places = range(row * columns, min(len(names), (row + 1) * columns))
            lines += joined_columns([self._panel(place, names, *size) for place in places], size[0])
        return lines

    def _panel(self, place: int, names: list[str], width: int, height: int) -> list[Text]:
        name = names[place]
        watched = self.watched
        band, series = watched.band(name), watched.series(name)
        title = panel_title(name, watched.title(name), watched.latest.get(name), band, width - 2)
        title.stylize("reverse" if place == self.selected and not self.is_single else "")
        head = Text.assemble(("▶ " if place == self.selected else "  ", CURVE), title)
        room = max(3, height - 2)
        mark = self._mark(name, series)
        return [head, *chart_lines(series, (width, room), band=band, mark=mark, log=self.is_log), Text("")]

    def _mark(self, name: str, series: ChartSeries | None) -> tuple[float, str] | None:
        """The onset of the most severe finding about a metric, with its label."""
        found = next((found for found in self._grave if name in found["metrics"]), None)
        if found is None or series is None:
            return None
        at = series.onset(found["onset_step"], found["row"])
        return None if at is None else (at, f"since {found['onset_step']}")


class FindingsPane(Pane):
    """The findings, one per line, and the selected one with its evidence, advice, causes and chart."""

    @property
    def count(self) -> int:
        return len(cases(self.watched.facts))

    @property
    def metric(self) -> str | None:
        found = cases(self.watched.facts)
        names = found[min(self.selected, len(found) - 1)].finding["metrics"] if found else ()
        return names[0] if names else None

    def lines(self, width: int, height: int) -> list[Text]:
        found = cases(self.watched.facts)
        if not found:
            return [Text(f"nothing was found in {plural(self.watched.judge.points, 'row')}", style=FAINT)]
        self.selected = min(self.selected, len(found) - 1)
        lines = []
        for place in window(len(found), self.selected, max(3, height // LIST_SHARE)):
            finding = found[place].finding
            symbol, style = SYMBOLS[finding["severity"]], STYLES[finding["severity"]]
            title = cut(f"step {finding['onset_step']}: {finding['title']}", width - 4)
            lines.append(Text.assemble((f"{symbol} ", style), (title, "reverse" if place == self.selected else "")))
        lines.append(Text("─" * width, style=FAINT))
        return [*lines, *self.page(self._details(found[self.selected], width), height - len(lines))]

    def _details(self, case: RuleFindings, width: int) -> list[Text]:
        finding = case.finding
        symbol, style = SYMBOLS[finding["severity"]], STYLES[finding["severity"]]
        head = Text.assemble((f"{symbol} {finding['severity']}  ", style), (visible(finding["title"]), "bold"))
        paragraphs = [head]
        for label, text in details(case):
            is_plain = label in ("when", "kind")
            paragraphs.append(
                Text(visible(text), style=FAINT) if is_plain else Text.assemble((f"{label}: ", FAINT), visible(text))
            )
        lines = wrapped(paragraphs, width, self.app.console)
        for name in finding["metrics"]:
            series = self.watched.series(name)
            if series is not None:
                at = series.onset(finding["onset_step"], finding["row"])
                mark = None if at is None else (at, f"since {finding['onset_step']}")
                lines += [
                    Text(""),
                    Text(cut(name, width), style="bold"),
                    *chart_lines(series, (min(width, 100), 8), band=self.watched.band(name), mark=mark),
                ]
        return lines
