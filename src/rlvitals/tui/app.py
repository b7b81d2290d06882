"""`rlvitals watch` on a terminal: Vitals, Metrics, Health and Rollouts of a run or log that may still be written.

A thread reads and judges the rows. The shown screen is drawn from the rows judged so far. Works from 80x24 characters.
"""

from __future__ import annotations

import time
from typing import ClassVar

from rich.console import Group, RenderableType
from rich.padding import Padding
from rich.text import Text
from textual import work
from textual.app import ComposeResult
from textual.binding import Binding, BindingType
from textual.containers import VerticalScroll
from textual.screen import ModalScreen
from textual.widgets import ContentSwitcher, Input, Static
from textual.worker import get_current_worker

from rlvitals import catalog
from rlvitals.render.explanation import render_explanation
from rlvitals.render.numbers import duration, number, progress
from rlvitals.render.screen import two_columns
from rlvitals.signs import STYLES, SYMBOLS
from rlvitals.terminal import plural, visible
from rlvitals.tui.drawing import FAINT, cut, hint_line, step_bar
from rlvitals.tui.filter_screen import FilteringApp
from rlvitals.tui.panes import ChartsPane, FindingsPane, Pane, VitalsPane
from rlvitals.tui.rollouts import RolloutsPane
from rlvitals.tui.watched import Watched, status_line

SCREENS = ("vitals", "metrics", "health", "rollouts")
"""In the dashboard's order, so that the digit keys are the same."""

KEYS = {
    "everywhere": [
        ("1 2 3 4", "Vitals, Metrics, Health, Rollouts"),
        ("Tab", "the next of them"),
        ("j k", "next, previous; arrows too"),
        ("J K", "down and up in the details; page down and page up too"),
        ("/", "filter by a regular expression; search the rollouts' texts"),
        ("e", "explain the metric that is selected"),
        ("t", "light or dark"),
        ("l", "back to the list of the folder's runs, where it was chosen from one"),
        ("Esc", "close, clear the filter"),
        ("?", "this list"),
        ("q", "leave; nothing is stopped, nothing was changed"),
    ],
    "Metrics": [("y", "log scale"), ("Enter", "one chart alone, and back")],
    "Rollouts": [
        ("[ ]", "previous group, next group"),
        (", .", "previous step, next step"),
        ("w", "lowest rewards"),
        ("Enter", "open the one that is selected in a list"),
    ],
}

FOOT_KEYS = ("? help", "/ filter", "e explain", "y log", "t theme", "j/k move", "q quit")
"""The keys named below a screen."""


class ReadingSheet(ModalScreen[None]):
    """A sheet of text over the screens: the keys, or an explanation."""

    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("escape,q,question_mark,e,enter", "dismiss", "close"),
        Binding("j,down", "down", show=False),
        Binding("k,up", "up", show=False),
    ]

    def __init__(self, content: object) -> None:
        super().__init__()
        self._content = content

    def compose(self) -> ComposeResult:
        with VerticalScroll():
            yield Static(self._content)  # type: ignore[arg-type]  # a rich renderable

    def action_down(self) -> None:
        self.query_one(VerticalScroll).scroll_down()

    def action_up(self) -> None:
        self.query_one(VerticalScroll).scroll_up()


class WatchApp(FilteringApp[bool]):
    """The terminal view. It returns True if the user wants to return to the list of runs."""

    CSS = """
    #head { height: 3; padding: 0 1; }
    #tabs { height: 1; padding: 0 1; }
    ContentSwitcher { height: 1fr; }
    Pane { width: 1fr; height: 1fr; padding: 0 1; }
    #filter { height: 1; border: none; padding: 0 1; display: none; }
    #foot { height: 1; padding: 0 1; }
    ReadingSheet { align: center middle; }
    ReadingSheet > VerticalScroll { width: 90%; max-width: 110; height: 90%; border: round $primary;
        background: $surface; padding: 0 1; }
    """
    BINDINGS: ClassVar[list[BindingType]] = [
        *(Binding(str(place), f"show('{name}')", show=False) for place, name in enumerate(SCREENS, 1)),
        Binding("tab", "next_screen", show=False, priority=True),
        Binding("j,down", "move(1)", show=False),
        Binding("k,up", "move(-1)", show=False),
        Binding("J,pagedown", "details(8)", show=False),
        Binding("K,pageup", "details(-8)", show=False),
        Binding("slash", "filter", show=False),
        Binding("e", "explain", show=False),
        Binding("y", "log_scale", show=False),
        Binding("t", "theme", show=False),
        Binding("enter", "open", show=False),
        Binding("right_square_bracket", "group(1)", show=False),
        Binding("left_square_bracket", "group(-1)", show=False),
        Binding("full_stop", "step(1)", show=False),
        Binding("comma", "step(-1)", show=False),
        Binding("w", "worst", show=False),
        Binding("escape", "leave", show=False),
        Binding("question_mark", "help", show=False),
        Binding("l", "list", show=False),
        Binding("q", "quit", show=False),
    ]

    def __init__(self, watched: Watched, interval: float = 1.0, *, has_list: bool = False) -> None:
        super().__init__()
        self._has_list = has_list
        self.watched = watched
        self._interval = interval
        self._status = ""

    def compose(self) -> ComposeResult:
        yield Static(id="head")
        yield Static(id="tabs")
        with ContentSwitcher(initial="vitals"):
            yield VitalsPane(self.watched, "vitals")
            yield ChartsPane(self.watched, "metrics")
            yield FindingsPane(self.watched, "health")
            yield RolloutsPane(self.watched, "rollouts")
        yield Input(id="filter", placeholder="filter", select_on_focus=False, disabled=True)
        yield Static(id="foot")

    def on_mount(self) -> None:
        self.title = f"rlvitals watch {visible(self.watched.name)}"
        self.theme = "textual-dark"
        self._draw()
        self.set_interval(1.0, self._draw_head)
        self._follow()

    @property
    def pane(self) -> Pane:
        """The screen that is shown."""
        return self.query_one(f"#{self.query_one(ContentSwitcher).current}", Pane)

    @work(thread=True, exclusive=True)
    def _follow(self) -> None:
        """Poll until the app closes. A run that has ended stays on the screen."""
        worker = get_current_worker()
        while not worker.is_cancelled:
            changed = self.watched.poll()
            self._status = status_line(self.watched)
            if worker.is_cancelled:
                return
            if changed:
                self.call_from_thread(self._draw)
            waited = time.monotonic() + self._interval
            while time.monotonic() < waited and not worker.is_cancelled:
                time.sleep(min(0.05, self._interval))

    def _draw(self) -> None:
        if not self.is_running or not self.query("#foot"):
            return
        pane = self.pane
        if isinstance(pane, RolloutsPane):
            pane.read()
        pane.refresh()
        self._draw_head()
        self._draw_edges()

    def _draw_head(self) -> None:
        if not self.query("#head"):
            return
        watched, width = self.watched, self.size.width - 2
        with watched.lock:
            verdict, reason = watched.diagnosis.verdict, watched.diagnosis.reason
            symbol, style = SYMBOLS[verdict], STYLES[verdict]
            first = Text.assemble((f"{symbol} {verdict.upper()}", style), f"  {visible(reason)}", no_wrap=True)
            second = Text("  ".join(self._now(width)), style=FAINT, no_wrap=True)
            bar = step_bar(watched.facts, watched.judge.first_step, watched.judge.last_step, width)
        first.truncate(width, overflow="ellipsis")
        self.query_one("#head", Static).update(Text("\n").join([first, second, bar]))

    def _now(self, width: int) -> list[str]:
        """The line below the verdict: name, step, rows, time left, speed, age of the last row, as far as they fit."""
        watched = self.watched
        done = f"step {progress(watched.judge.last_step, watched.total_steps)}"
        parts = [cut(watched.name, max(12, width // 4)), done]
        parts.append(plural(watched.rows, "row"))
        parts += [cut(word, 40) for word in (watched.algorithm, self._status) if word]
        if (left := watched.seconds_left) is not None:
            parts.append(f"{duration(left)} left")
        if (speed := watched.tokens_per_second) is not None:
            parts.append(f"{number(speed)} tokens/s")
        if not watched.ending and watched.judge.points:
            parts.append(f"last row {duration(time.monotonic() - watched.last_row_at)} ago")
        while len("  ".join(parts)) > width and len(parts) > 2:
            del parts[3 if len(parts) > 3 else 2]
        return parts

    def _draw_edges(self) -> None:
        current = self.query_one(ContentSwitcher).current
        count = len({found.alarm for found in self.watched.findings if found.severity != "info"})
        tabs = Text(no_wrap=True)
        for place, name in enumerate(SCREENS, 1):
            words = f" {place} {name.capitalize()}{f' ({count})' if name == 'health' and count else ''} "
            tabs.append(words, "reverse" if name == current else "")
            tabs.append(" ")
        if self.watched.left_out:
            tabs.append(f"  {number(self.watched.left_out)} values of further names left out", FAINT)
        self.query_one("#tabs", Static).update(tabs)
        pane = self.pane
        hints = [f"filter {pane.filter!r}" if pane.filter else "", self.watched.problem or self.watched.ending]
        keys = [*(["l list"] if self._has_list else []), *FOOT_KEYS]
        words = hint_line([visible(hint) for hint in hints], keys, self.size.width - 2)
        self.query_one("#foot", Static).update(Text(words, style=FAINT, no_wrap=True))

    def action_list(self) -> None:
        if self._has_list:
            self.exit(True)

    def action_show(self, name: str) -> None:
        self.query_one(ContentSwitcher).current = name
        self.call_after_refresh(self._draw)

    def action_next_screen(self) -> None:
        current = self.query_one(ContentSwitcher).current or SCREENS[0]
        self.action_show(SCREENS[(SCREENS.index(current) + 1) % len(SCREENS)])

    def action_move(self, by: int) -> None:
        self.pane.move(by)

    def action_details(self, by: int) -> None:
        pane = self.pane
        if isinstance(pane, FindingsPane | RolloutsPane):
            pane.scroll_details(by)
        else:
            pane.move(by)

    def action_filter(self) -> None:
        self.open_filter(self.pane.filter)

    def on_input_changed(self, event: Input.Changed) -> None:
        pane = self.pane
        if self.query_one("#filter", Input).display and not isinstance(pane, RolloutsPane):  # those search on Enter
            pane.filter, pane.selected = event.value, 0
            self._draw()

    def on_input_submitted(self, event: Input.Submitted) -> None:
        self.pane.filter, self.pane.selected = event.value, 0
        self.close_filter()

    def action_leave(self) -> None:
        pane = self.pane
        pane.filter = ""
        if isinstance(pane, ChartsPane):
            pane.is_single = False
        if isinstance(pane, RolloutsPane):
            pane.is_worst = False
        self.close_filter()

    def action_explain(self) -> None:
        name = self.pane.metric
        if name is None:
            return
        found = self.watched.explanation(name)
        if found is None:
            self.push_screen(
                ReadingSheet(Text(f"{visible(name)} is in no catalogue: a name of your own, or a new one."))
            )
            return
        titles = {framework.id: framework.title for framework in catalog.frameworks()}
        self.push_screen(ReadingSheet(render_explanation(found, titles)))

    def action_log_scale(self) -> None:
        charts = self.query_one(ChartsPane)
        charts.is_log = not charts.is_log
        self._draw()

    def action_open(self) -> None:
        pane = self.pane
        if isinstance(pane, ChartsPane):
            pane.is_single = not pane.is_single
        if isinstance(pane, RolloutsPane):
            pane.open()
        self._draw()

    def action_group(self, by: int) -> None:
        self.query_one(RolloutsPane).walk_groups(by)

    def action_step(self, by: int) -> None:
        self.query_one(RolloutsPane).walk_steps(by)

    def action_worst(self) -> None:
        pane = self.query_one(RolloutsPane)
        pane.is_worst, pane.selected = not pane.is_worst, 0
        self._draw()

    def action_help(self) -> None:
        parts: list[RenderableType] = [Text("Keys", style="bold")]
        widest = max(len(key) for keys in KEYS.values() for key, _ in keys)
        for place, keys in KEYS.items():
            table = two_columns("cyan")
            table.columns[0].min_width = widest
            for key, meaning in keys:
                table.add_row(key, Text(meaning))
            parts += ["", Text(place, style="bold"), Padding(table, (0, 0, 0, 2))]
        self.push_screen(ReadingSheet(Group(*parts)))
