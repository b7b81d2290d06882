"""A backtest as text: a line for each log, then the totals."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from rich import box
from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

from rlvitals.render.numbers import number

TOTALS = {
    "failed_critical_in_time": "failed runs with a critical in time",
    "failed_from_the_start_in_time": "  of those dead from the start",
    "failed_later_in_time": "  of those that failed later",
    "failed_critical": "failed runs with a critical at all",
    "failed_warned": "failed runs with at least a warning",
    "failed_kind_right": "failed runs named rightly",
    "watch_warned": "runs to watch with at least a warning",
    "healthy_quiet": "healthy runs left in peace",
    "healthy_warned": "healthy runs warned (false alarms)",
    "healthy_critical": "healthy runs with a critical (would have been stopped)",
    "unlabelled_warned": "runs without a label with at least a warning",
    "unlabelled_critical": "runs without a label with a critical",
}
_STYLES = {"in time": "green", "late": "yellow", "missed": "red", "quiet": "green", "false alarm": "red"}


def render_backtest(facts: dict[str, Any]) -> RenderableType:
    """The whole screen."""
    return Group(*_parts(facts))


def outcome(result: dict[str, Any]) -> str:
    """The outcome for one log, such as `in time` or `false alarm`; empty for a log without a label."""
    if result["label"] == "healthy":
        return "quiet" if result["first_warning"] is None else "false alarm"
    if result["in_time"] is not None:
        return "in time" if result["in_time"] else "late" if result["first_critical"] else "missed"
    if result["label"] is None:
        return ""
    return "warned" if result["first_warning"] else "silent"


def _parts(facts: dict[str, Any]) -> Iterator[RenderableType]:
    labelled = any(result["label"] for result in facts["results"])
    table = Table(box=box.SIMPLE_HEAD, pad_edge=False, show_edge=False, padding=(0, 1, 0, 0))
    table.add_column("log", overflow="fold")
    for name in ("rows", *(("onset",) if labelled else ()), "warned", "critical"):
        table.add_column(name, justify="right", no_wrap=True)
    table.add_column("kinds", overflow="fold")
    if labelled:
        table.add_column("outcome", overflow="fold")
    for result in facts["results"]:
        cells: list[str | Text] = [Text(result["file"]), number(result["points"])]
        cells += [number(result["onset_point"])] if labelled else []
        cells += [_point(result["first_warning"]), _point(result["first_critical"]), _kinds(result["kinds"])]
        cells += [_outcome(result)] if labelled else []
        table.add_row(*cells)
    yield table
    yield Text("  onset, warned and critical are rows, counted from 1\n", style="dim")
    yield _totals(facts["totals"])
    for path, reason in facts["passed_over"].items():
        yield Text(f"  skipped: {path}: {reason}", style="yellow")


def _kinds(kinds: list[str]) -> Text:
    """The first kind and the number of others; `--json` lists them all."""
    return Text(f"{kinds[0]}{f' +{len(kinds) - 1}' if len(kinds) > 1 else ''}" if kinds else "")


def _outcome(result: dict[str, Any]) -> Text:
    word = outcome(result)
    return Text(f"{result['label']}, {word}" if result["label"] else "-", style=_STYLES.get(word, ""))


def _totals(totals: dict[str, Any]) -> RenderableType:
    grid = Table.grid(padding=(0, 2))
    grid.add_column(overflow="fold")
    grid.add_column(justify="right", no_wrap=True)
    grid.add_column(style="dim", no_wrap=True)
    for name, title in TOTALS.items():
        share = totals[name]
        if share is not None:
            interval = f"95% interval {share['low']:.0%} to {share['high']:.0%}"
            grid.add_row(title, f"{share['count']} of {share['of']}", interval)
    if totals["median_delay_points"] is not None:
        grid.add_row("median delay of the critical", f"{number(totals['median_delay_points'])} points", "")
    return grid


def _point(first: dict[str, Any] | None) -> str:
    return "-" if first is None else number(first["point"])
