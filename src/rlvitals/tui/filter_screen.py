"""The base of both apps of `rlvitals watch`: a filter field, two themes, and lines without control characters."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TypeVar

from textual.app import App
from textual.filter import LineFilter
from textual.widgets import Input

from rlvitals.tui.drawing import Harmless

Answer = TypeVar("Answer")


class FilteringApp(App[Answer]):
    """An app with a field `#filter` that is hidden until the user opens it."""

    ENABLE_COMMAND_PALETTE = False
    AUTO_FOCUS = None  # keys are commands until the filter is opened

    def get_line_filters(self) -> Sequence[LineFilter]:
        """The filters through which every line of every screen goes before it is drawn."""
        return [*super().get_line_filters(), Harmless()]

    def on_resize(self) -> None:
        self._draw()

    def open_filter(self, text: str) -> None:
        """Show the field with the current filter."""
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
