"""How verbs print: a table for people on a terminal, JSON for programs."""

from __future__ import annotations

import argparse
import sys
from typing import Any

from rich.console import Console, RenderableType

from rlvitals.codec import to_json
from rlvitals.render.text import visible

PIPED_WIDTH = 120
"""Columns when the output is no terminal."""


def add_json_flag(parser: argparse.ArgumentParser) -> None:
    """The flag every verb has."""
    parser.add_argument("--json", action="store_true", help="print the facts as JSON")


def print_json(facts: Any) -> None:
    """Strict JSON on standard output; non-finite numbers are texts."""
    sys.stdout.write(to_json(facts).decode())


def printable(facts: Any) -> Any:
    """The same facts with control characters made visible: names in a log may be anybody's."""
    if isinstance(facts, dict):
        return {key: printable(value) for key, value in facts.items()}
    if isinstance(facts, list):
        return [printable(value) for value in facts]
    return visible(facts) if isinstance(facts, str) else facts


def show(view: RenderableType) -> None:
    """A renderable on standard output; plain text when it is piped."""
    console = Console(highlight=False, width=None if sys.stdout.isatty() else PIPED_WIDTH)
    console.print(view, soft_wrap=False)
