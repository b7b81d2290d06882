"""What both screens of `rlvitals watch` are built on: a filter that is typed below, two themes, harmless lines."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TypeVar

from textual.app import App
from textual.filter import LineFilter
from textual.widgets import Input

from rlvitals.tui.drawing import Harmless

Answer = TypeVar("Answer")


class FilteringApp(App[Answer]):
    """An app with a field `#filter` that is hidden until it is asked for."""

    ENABLE_COMMAND_PALETTE = False
    AUTO_FOCUS = None  # keys are commands until a filter is asked for

    def get_line_filters(self) -> Sequence[LineFilter]:
        """Every line of every screen passes here on its way to the terminal."""
        return [*super().get_line_filters(), Harmless()]

    def on_resize(self) -> None:
        self._draw()

    def open_filter(self, text: str) -> None:
        """Show the field with what it filters by now."""
        field = self.query_one("#filter", Input)
        field.value = text
        field.display, field.disabled = True, False
        field.focus()

    def close_filter(self) -> None:
        """Hide the field; keys are commands again."""
        field = self.query_one("#filter", Input)
        field.display, field.disabled = False, True
        self.set_focus(None)
        self._draw()

    def action_theme(self) -> None:
        self.theme = "textual-light" if self.theme == "textual-dark" else "textual-dark"

    def _draw(self) -> None:
        raise NotImplementedError
