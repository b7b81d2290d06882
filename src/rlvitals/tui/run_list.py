"""`rlvitals watch FOLDER`: on a terminal, a list of its runs and logs with their verdicts, from which the user chooses
one. In a pipe, the same list as lines.
"""

from __future__ import annotations

import time
from pathlib import Path
from typing import ClassVar

from rich.text import Text
from textual import work
from textual.app import ComposeResult
from textual.binding import Binding, BindingType
from textual.widget import Widget
from textual.widgets import Input, Static
from textual.worker import get_current_worker

from rlvitals.render.numbers import progress
from rlvitals.signs import STYLES, SYMBOLS
from rlvitals.terminal import visible
from rlvitals.tui.drawing import FAINT, cut, hint_line, window
from rlvitals.tui.filter_screen import FilteringApp
from rlvitals.tui.lists import fitting, moment_ago
from rlvitals.views.folder_list import FolderList, ListLine

AGAIN_SECONDS = 2.0
FOOT_KEYS = ("Enter watch", "j/k move", "/ filter", "t theme", "q quit")
WIDTHS = {"status": 11, "algorithm": 10, "step": 13, "updated": 9}
LEAST_NAME, LEAST_REASON = 18, 60


class RunList(Widget):
    """The list. The app handles the keys."""

    def __init__(self) -> None:
        super().__init__(id="choices")
        self.lines: list[ListLine] = []
        self.filter = ""
        self._chosen: Path | None = None

    @property
    def shown(self) -> list[ListLine]:
        return fitting(self.lines, self.filter)

    @property
    def selected(self) -> int:
        """The index of the selected line. The same line stays selected when others are added before it."""
        places = [place for place, line in enumerate(self.shown) if line.path == self._chosen]
        return places[0] if places else 0

    @property
    def chosen(self) -> Path | None:
        shown = self.shown
        return shown[self.selected].path if shown else None

    @property
    def reason(self) -> str:
        """The reason for the verdict of the selected line."""
        shown = self.shown
        return shown[self.selected].facts["reason"] if shown else ""

    def move(self, by: int) -> None:
        shown = self.shown
        if shown:
            self._chosen = shown[max(0, min(self.selected + by, len(shown) - 1))].path
        self.refresh()

    def render(self) -> Text:
        width, height = self.size
        shown = self.shown
        if not shown:
            return Text("nothing fits the filter" if self.lines else "looking for runs and logs ...", style=FAINT)
        if self._chosen is None:
            self._chosen = shown[0].path
        columns = _columns(width)
        drawn = [Text(" ".join(f"{name:<{room}}" for name, room in columns.items()), style=FAINT, no_wrap=True)]
        for place in window(len(shown), self.selected, height - 1):
            drawn.append(_row(shown[place], columns, is_selected=place == self.selected))
        return Text("\n").join(drawn)


def _columns(width: int) -> dict[str, int]:
    """The columns that fit, each with its width. The reason takes the remaining width."""
    taken = {"verdict": 14}
    room = width - 15 - LEAST_NAME
    further = dict[str, int]()
    for name in ("status", "step", "updated", "algorithm"):
        if room - WIDTHS[name] - 1 >= 0:
            further[name] = WIDTHS[name]
            room -= WIDTHS[name] + 1
    has_reason = room > LEAST_REASON
    name_room = LEAST_NAME + (min(20, room // 3) if has_reason else max(room, 0))
    taken |= {"name": name_room} | {name: further[name] for name in WIDTHS if name in further}
    left = width - sum(taken.values()) - len(taken)
    return taken | ({"reason": left} if has_reason else {})


def _row(line: ListLine, columns: dict[str, int], *, is_selected: bool) -> Text:
    facts = line.facts
    symbol, style = SYMBOLS[facts["verdict"]], STYLES[facts["verdict"]]
    cells = {
        "name": line.name,
        "status": facts["status_note"] if facts["status_note"].endswith(" log") else facts["status"],
        "algorithm": facts["algorithm"] or "-",
        "step": progress(facts["last_step"], facts["total_steps"]),
        "updated": moment_ago(facts["updated"]),
        "reason": facts["reason"],
    }
    row = Text(no_wrap=True, overflow="crop", style="reverse" if is_selected else "")
    row.append(f"{symbol + ' ' + facts['verdict']:<{columns['verdict']}} ", style)
    for name, room in columns.items():
        if name != "verdict":
            row.append(f"{cut(cells[name], room):<{room}} ", "bold" if name == "name" else "")
    return row


class ChoosingApp(FilteringApp[Path]):
    """The app of the list. It returns the chosen path, or None if the user leaves it."""

    CSS = """
    #head { height: 2; padding: 0 1; }
    RunList { width: 1fr; height: 1fr; padding: 0 1; }
    #filter { height: 1; border: none; padding: 0 1; display: none; }
    #foot { height: 1; padding: 0 1; }
    """
    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("j,down", "move(1)", show=False),
        Binding("k,up", "move(-1)", show=False),
        Binding("pagedown", "move(10)", show=False),
        Binding("pageup", "move(-10)", show=False),
        Binding("home", "move(-100000)", show=False),
        Binding("end", "move(100000)", show=False),
        Binding("enter", "choose", show=False),
        Binding("slash", "filter", show=False),
        Binding("escape", "leave", show=False),
        Binding("t", "theme", show=False),
        Binding("q", "quit", show=False),
    ]

    def __init__(self, listed: FolderList, selected: Path | None = None) -> None:
        super().__init__()
        self._listed = listed
        self._choices = RunList()
        self._choices._chosen = selected

    def compose(self) -> ComposeResult:
        yield Static(id="head")
        yield self._choices
        yield Input(id="filter", placeholder="filter", select_on_focus=False, disabled=True)
        yield Static(id="foot")

    def on_mount(self) -> None:
        self.title = f"rlvitals watch {visible(str(self._listed.folder))}"
        self.theme = "textual-dark"
        self._draw()
        self._look()

    @work(thread=True, exclusive=True)
    def _look(self) -> None:
        worker = get_current_worker()
        while not worker.is_cancelled:
            lines = self._listed.lines()
            if worker.is_cancelled:
                return
            self.call_from_thread(self._take, lines)
            # Logs are judged in the background: an empty list is read again soon.
            until = time.monotonic() + (AGAIN_SECONDS if lines else 0.2)
            while time.monotonic() < until and not worker.is_cancelled:
                time.sleep(0.05)

    def _take(self, lines: list[ListLine]) -> None:
        self._choices.lines = lines
        self._draw()

    def _draw(self) -> None:
        if not self.is_running or not self.query("#foot"):
            return
        self._choices.refresh()
        lines, width = self._choices.lines, self.size.width - 2
        parts = [f"{len(lines)} runs and logs in {self._listed.folder}"]
        for verdict in ("act", "watch", "healthy"):
            count = sum(line.facts["verdict"] == verdict for line in lines)
            parts += [f"{SYMBOLS[verdict]} {count} {verdict}"] if count else []
        running = sum(line.facts["status"] == "running" for line in lines)
        parts += [f"{running} running"] if running else []
        head = Text(cut("  ".join(parts), width), style="bold", no_wrap=True)
        reason = Text(visible(self._choices.reason), no_wrap=True)
        reason.truncate(width, overflow="ellipsis")
        self.query_one("#head", Static).update(Text("\n").join([head, reason]))
        hints = [f"filter {self._choices.filter!r}" if self._choices.filter else "", self._listed.note]
        words = hint_line([visible(hint) for hint in hints], FOOT_KEYS, width)
        self.query_one("#foot", Static).update(Text(words, style=FAINT, no_wrap=True))

    def action_move(self, by: int) -> None:
        self._choices.move(by)
        self._draw()

    def action_choose(self) -> None:
        if (chosen := self._choices.chosen) is not None:
            self.exit(chosen)

    def action_filter(self) -> None:
        self.open_filter(self._choices.filter)

    def on_input_changed(self, event: Input.Changed) -> None:
        if self.query_one("#filter", Input).display:
            self._choices.filter = event.value
            self._draw()

    def on_input_submitted(self, event: Input.Submitted) -> None:
        self._choices.filter = event.value
        self.close_filter()

    def action_leave(self) -> None:
        self._choices.filter = ""
        self.close_filter()
