"""Rich's console for texts of anybody: nothing in them is taken for markup, and no control character leaves it.

Every table and text that rich draws for rlvitals goes through `Screen`; `watch` has its own filter, in `tui.app`.
"""

from __future__ import annotations

import sys
from collections.abc import Iterable
from typing import Any

from rich.console import Console, ConsoleOptions, RenderableType
from rich.segment import Segment

from rlvitals.terminal import visible_lines

PIPED_WIDTH = 120
"""Columns when the output is not a terminal."""


class Screen(Console):
    """A console without markup, emoji codes and highlighting, whose segments are harmless."""

    def __init__(self, **how: Any) -> None:
        super().__init__(**{"markup": False, "emoji": False, "highlight": False, **how})

    def render(self, renderable: RenderableType, options: ConsoleOptions | None = None) -> Iterable[Segment]:
        return harmless(super().render(renderable, options))


def harmless(segments: Iterable[Segment]) -> Iterable[Segment]:
    """The same segments with control characters made visible; rich's own cursor moves are segments of another kind."""
    for segment in segments:
        text, style, control = segment
        if control or text == "\n" or text.isprintable():
            yield segment
        else:
            yield Segment(visible_lines(text), style)


def standard_output() -> Screen:
    """The screen of stdout, of a fixed width where that is not a terminal."""
    return Screen(width=None if sys.stdout.isatty() else PIPED_WIDTH)
