"""The scores of a file of pairs as text: a table with one row per score, then the meaning of each score."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from rich.console import Group, RenderableType
from rich.padding import Padding
from rich.table import Table
from rich.text import Text

from rlvitals.render.numbers import number
from rlvitals.render.screen import heading, ruled_table

SHOWN_BAD_LINES = 5
"""The most bad lines that are listed; further ones are only counted."""


def render_scores(facts: dict[str, Any]) -> RenderableType:
    """The table, the meanings of the scores, and what was left out."""
    return Group(*_parts(facts))


def _parts(facts: dict[str, Any]) -> Iterator[RenderableType]:
    yield Text.assemble((facts["path"], "bold"), f"  {number(facts['pairs'])} pairs")
    yield ""
    yield _table(facts["details"])
    yield ""
    for name, detail in facts["details"].items():
        yield Text.assemble((name, "bold"), f": {detail['name']}. {detail['what']}")
        for line in _remarks(detail):
            yield Padding(Text(line, style="yellow" if line == detail["note"] else ""), (0, 0, 0, 2))
    if facts["left_out"] or facts["bad_lines"]:
        yield heading("Left out")
    for why in facts["left_out"].values():
        yield Text(f"  {why}")
    bad = facts["bad_lines"]
    for why in bad[:SHOWN_BAD_LINES]:
        yield Text(f"  {why}", style="yellow")
    if len(bad) > SHOWN_BAD_LINES:
        yield Text(f"  and {len(bad) - SHOWN_BAD_LINES} more lines that are not pairs", style="yellow")


def _table(details: dict[str, Any]) -> Table:
    table = ruled_table("score", "value", "lowest", "at line", "median", "highest", right=range(1, 6))
    for name, detail in details.items():
        spread = detail["pairs"]
        table.add_row(
            Text(name),
            Text(f"{detail['score']:.4f}", style="bold"),
            *([f"{spread['lowest']:.4f}", str(spread["lowest_line"])] if spread else ["-", "-"]),
            *([f"{spread['median']:.4f}", f"{spread['highest']:.4f}"] if spread else ["-", "-"]),
        )
    return table


def _remarks(detail: dict[str, Any]) -> Iterator[str]:
    if detail["parts"]:
        yield ", ".join(f"{part} {number(value)}" for part, value in detail["parts"].items())
    if detail["levels"]:
        yield "pairs by level: " + ", ".join(f"{level} {number(count)}" for level, count in detail["levels"].items())
    if detail["note"]:
        yield detail["note"]
