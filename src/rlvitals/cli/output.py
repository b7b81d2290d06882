"""How verbs print: a table for people on a terminal, JSON for programs. Everything goes through `rlvitals.terminal`."""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import Any

from rich.console import RenderableType

from rlvitals.codec import encode, parse_json, to_json
from rlvitals.errors import explained
from rlvitals.render.screen import standard_output
from rlvitals.store.files import put_file, replace_file
from rlvitals.terminal import cut_middle, put_json, visible

EXIT_CODES = {"healthy": 0, "watch": 1, "act": 2, "cannot judge": 3}
"""By verdict: what `check` and `scan` exit with."""


def add_json_flag(parser: argparse.ArgumentParser) -> None:
    """Add `--json`."""
    parser.add_argument("--json", action="store_true", help="print the facts as JSON")


def print_json(facts: Any) -> None:
    """Print strict JSON on standard output. Non-finite numbers become strings."""
    put_json(to_json(facts).decode())


def print_json_line(facts: Any) -> None:
    """Print strict JSON on one line."""
    put_json(encode(parse_json(to_json(facts))).decode())


def printable(facts: Any) -> Any:
    """The same facts with every text on one line of bounded length. Tables are laid out for the shortened texts."""
    if isinstance(facts, dict):
        return {printable(key): printable(value) for key, value in facts.items()}
    if isinstance(facts, list | tuple):
        return [printable(value) for value in facts]
    return cut_middle(visible(facts)) if isinstance(facts, str) else facts


def write_file(target: Path, data: bytes, *, folder_too: bool = False) -> None:
    """Replace a file atomically. With `folder_too` its folder is created. Raises RunError."""
    with explained(f"cannot write {target}"):
        (put_file if folder_too else replace_file)(target, data)


def show(view: RenderableType) -> None:
    """Print a renderable on standard output; as plain text if it is piped."""
    standard_output().print(view, soft_wrap=False)
