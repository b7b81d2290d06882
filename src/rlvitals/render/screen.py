"""Rich's console for untrusted texts: nothing in them acts as markup, and no control character is printed.

Every table and text that rich draws for rlvitals goes through `Screen`; `watch` has its own filter, in `tui.drawing`.
"""

from __future__ import annotations

import sys
from collections.abc import Container, Iterable
from typing import Any

from rich import box
from rich.console import Console, ConsoleOptions, RenderableType
from rich.segment import Segment
from rich.table import Table
from rich.text import Text

from rlvitals.terminal import visible_lines

PIPED_WIDTH = 120
"""Width in columns if the output is not a terminal."""


class Screen(Console):
    """A console without markup, emoji codes and highlighting, which makes control characters visible."""

    def __init__(self, **how: Any) -> None:
        super().__init__(**{"markup": False, "emoji": False, "highlight": False, **how})

    def render(self, renderable: RenderableType, options: ConsoleOptions | None = None) -> Iterable[Segment]:
        return harmless(super().render(renderable, options))


class FactsView:
    """Plain facts that are drawn for the console they are printed on: its width and its characters."""

    def __init__(self, facts: dict[str, Any]) -> None:
        self._facts = facts


def harmless(segments: Iterable[Segment]) -> Iterable[Segment]:
    """The segments with control characters in texts made visible. Rich's own control segments are not changed."""
    for segment in segments:
        text, style, control = segment
        if control or text == "\n" or text.isprintable():
            yield segment
        else:
            yield Segment(visible_lines(text), style)


def two_columns(labels: str = "", *, pad_edge: bool = False) -> Table:
    """A table of two columns without rules: labels in the style `labels`, and texts, which are wrapped."""
    made = Table.grid(padding=(0, 2), pad_edge=pad_edge)
    made.add_column(style=labels, no_wrap=True)
    made.add_column(overflow="fold")
    return made


def ruled_table(*headers: str, right: Container[int] = ()) -> Table:
    """A table with a rule below its headers. The columns at the positions in `right` are aligned to the right."""
    made = Table(box=box.SIMPLE_HEAD, pad_edge=False, show_edge=False)
    for place, header in enumerate(headers):
        made.add_column(Text(header), justify="right" if place in right else "left", overflow="fold")
    return made


def heading(text: str) -> Text:
    """The title of a section, after a blank line."""
    return Text(f"\n{text}", style="bold")


def standard_output() -> Screen:
    """A screen for stdout, with a fixed width if stdout is not a terminal."""
    return Screen(width=None if sys.stdout.isatty() else PIPED_WIDTH)
