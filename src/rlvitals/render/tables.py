"""Runs as text: a list of runs, a summary of one run, several runs side by side."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

from rich.console import Console, ConsoleOptions, Group, RenderableType, RenderResult
from rich.markdown import Markdown
from rich.table import Table
from rich.text import Text

from rlvitals.render.check import asked_line, hindsight_lines
from rlvitals.render.numbers import duration, moment, number, progress
from rlvitals.render.screen import heading, ruled_table
from rlvitals.signs import STYLES
from rlvitals.terminal import cut_middle, plural

STATUS_STYLE = {
    "running": "green", "finished": "blue", "failed": "red", "interrupted": "yellow", "unreadable": "red",
}  # fmt: skip
MARKS = {"up": "max", "down": "min"}
SHOWN_METRICS = 24
LONGEST_PATH = 48


class RunsView:
    """The list of runs. A narrow terminal omits the least important columns, so that names need not be wrapped."""

    def __init__(self, runs: list[dict[str, Any]]) -> None:
        self._runs = runs

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        rows = [_run_cells(run) for run in self._runs]
        left_out: set[str] = set()
        for name in ("", *_TELLING_LEAST):
            left_out.add(name)
            shown = [column for column in _RUN_COLUMNS if column not in left_out]
            widths = [max(len(column), *(len(row[column].plain) for row in rows)) for column in shown]
            if sum(widths) + 3 * len(widths) <= options.max_width:
                break
        table = ruled_table(*shown, right=[place for place, column in enumerate(shown) if column in _NUMBERS])
        for row in rows:
            table.add_row(*(row[column] for column in shown))
        yield table
        for run in self._runs:
            if run["is_stopped"]:
                yield Text(f"  {run['path']}: {run['reason']}", style="yellow")


_RUN_COLUMNS = ("run", "verdict", "status", "algorithm", "step", "reward or margin", "duration", "updated")
_NUMBERS = ("step", "reward or margin")
_TELLING_LEAST = ("updated", "algorithm", "duration", "status", "reward or margin")


def _run_cells(run: dict[str, Any]) -> dict[str, Text]:
    return {
        "run": Text(cut_middle(run["path"], LONGEST_PATH)),
        "verdict": Text(run["verdict"], style=STYLES[run["verdict"]]),
        "status": _status(run["status"]),
        "algorithm": Text(run["algorithm"] or "-"),
        "step": Text(progress(run["step"], run["total_steps"])),
        "reward or margin": Text(number(run["outcome"]["value"]) if run["outcome"] else "-"),
        "duration": Text("-" if run["seconds"] is None else duration(run["seconds"])),
        "updated": Text(moment(run["updated"])),
    }


def render_rules(rules: list[dict[str, Any]]) -> RenderableType:
    """The list of rules."""
    table = ruled_table("rule", "kind", "up to", "says")
    for rule in rules:
        severity = Text(rule["severity"], style=STYLES[rule["severity"]])
        table.add_row(Text(rule["rule"]), Text(rule["kind"]), severity, Text(rule["says"]))
    return table


def render_markdown(text: str) -> RenderableType:
    """Markdown written by rlvitals, for a terminal."""
    return Markdown(text)


def render_run(facts: dict[str, Any], *, all_metrics: bool = False) -> RenderableType:
    """A summary of one run."""
    return Group(*_run_parts(facts, all_metrics))


def _run_parts(facts: dict[str, Any], all_metrics: bool) -> Iterator[RenderableType]:
    yield Text.assemble((facts["name"], "bold"), "  ", _status(facts["status"]), f"  {facts['path']}")
    if facts["status_note"]:
        yield Text(f"  {facts['status_note']}", style="yellow")
    line = [
        f"step {progress(facts['step'], facts['total_steps'])}",
        plural(facts["rows"], "row"),
    ]
    if facts["seconds"] is not None:
        line += [f"started {moment(facts['created'])}", duration(facts["seconds"])]
    if facts["algorithm"]:
        line.insert(0, facts["algorithm"] + (f" ({facts['framework']})" if facts["framework"] else ""))
    if facts["attempts"] > 1:
        line.append(f"{facts['attempts']} attempts, {number(facts['ghost_rows'])} rows superseded")
    if len(facts["ranks"]) > 1:
        line.append(f"{len(facts['ranks'])} ranks")
    yield Text("  " + " | ".join(line), style="dim")
    if facts["metrics"]:
        yield ""
        yield _metrics(facts["metrics"], all_metrics)
    if facts["changes"]:
        yield heading("Change of the vital signs")
        changes = Table.grid(padding=(0, 2))
        for name, change in facts["changes"].items():
            changes.add_row(Text(f"  {name}", overflow="fold"), Text(change))
        yield changes
    if facts["last_rows"]:
        yield heading("Last rows")
        yield _last_rows(facts)
    if facts["trackers"]:
        yield heading("Trackers")
        for tracker in facts["trackers"]:
            yield Text(f"  {_tracker(tracker)}", style="yellow" if tracker["state"] == "failing" else "")
    if facts["problems"]:
        yield heading("Worth knowing")
        for problem in facts["problems"]:
            yield Text(f"  * {problem}", style="yellow")
    if facts["system"]:
        yield _machine(facts["system"])
    if facts["findings"]:
        yield heading("Last findings")
        for finding in facts["findings"]:
            words = f"  {finding['severity']} at step {finding['step']}: {finding['title']}"
            yield Text(words, style=STYLES[finding["severity"]])
    if facts["asked"]:
        yield heading("Requests from people")
        yield from (Text(f"  {asked_line(asked)}") for asked in facts["asked"])
    if facts["hindsight"]:
        yield from hindsight_lines(facts["hindsight"])


def _machine(sample: dict[str, Any]) -> Text:
    """The newest sample of the machine in one line."""
    seen = {name: value for name, value in sample.items() if "/" in name and not isinstance(value, str)}
    readings = [f"{name.removeprefix('System/')} {number(value)}" for name, value in seen.items()]
    return Text.assemble(("\nThe machine", "bold"), f"  at {moment(sample['timestamp'])}: {', '.join(readings)}")


def _tracker(tracker: dict[str, Any]) -> str:
    """One tracker's state as a sentence."""
    held = f"{tracker['name']}: {number(tracker['rows'])} rows"
    if not tracker["behind"]:
        return f"{held}, up to date" if tracker["state"] != "failing" else f"{held}; {tracker['error']}"
    behind = f"{held}, {number(tracker['behind'])} behind since {moment(tracker['since'])}"
    return f"{behind}: {tracker['error']}" if tracker["error"] else behind


def _metrics(metrics: list[dict[str, Any]], all_metrics: bool) -> RenderableType:
    table = ruled_table("metric", "last", "best", "at step", "points", right=range(1, 5))
    shown = metrics if all_metrics else metrics[:SHOWN_METRICS]
    for metric in shown:
        best = f"{number(metric['best'])} ({MARKS[metric['direction']]})" if metric["best"] is not None else "-"
        table.add_row(
            Text(metric["name"]), number(metric["last"]), best, number(metric["best_step"]), number(metric["points"])
        )
    hidden = len(metrics) - len(shown)
    return Group(table, Text(f"  and {hidden} more; --all shows them", style="dim")) if hidden else table


def _last_rows(facts: dict[str, Any]) -> RenderableType:
    logged = dict.fromkeys(name for row in facts["last_rows"] for name in row)
    ranked = [metric["name"] for metric in facts["metrics"] if metric["name"] in logged]
    names = ["step", *ranked[:5]]
    table = ruled_table(*names, right=range(len(names)))
    for row in facts["last_rows"]:
        table.add_row(
            *[
                number(row[name]) if isinstance(row.get(name), int | float) else Text(str(row.get(name, "")))
                for name in names
            ]
        )
    return table


def letters_of(runs: Sequence[Any]) -> list[str]:
    """A letter for each of several runs, which stands for its name in the headers of a table."""
    return [chr(ord("A") + place) if place < 26 else f"R{place}" for place in range(len(runs))]


def render_comparison(facts: dict[str, Any], *, all_metrics: bool = False) -> RenderableType:
    """Several runs side by side."""
    return Group(*_comparison_parts(facts, all_metrics))


def _comparison_parts(facts: dict[str, Any], all_metrics: bool) -> Iterator[RenderableType]:
    letters = letters_of(facts["runs"])
    for letter, run in zip(letters, facts["runs"], strict=True):
        yield Text.assemble(
            (f"{letter}  ", "bold"),
            run["name"],
            "  ",
            _status(run["status"]),
            f"  step {number(run['step'])}  {run['path']}",
        )
    differences = facts["config_differences"]
    yield heading("Settings that differ" if differences else "Settings: no difference")
    if differences:
        table = ruled_table("setting", *letters)
        for key, values in differences.items():
            table.add_row(Text(key), *[Text("-" if value is None else str(value)) for value in values])
        yield table
    yield heading("Best and last values")
    titles = [f"{letter} {which}" for letter in letters for which in ("best", "last")]
    table = ruled_table("metric", *titles, "differs from step", right=range(1, len(titles) + 2))
    shown = facts["metrics"] if all_metrics else facts["metrics"][:SHOWN_METRICS]
    for metric in shown:
        cells = []
        for item in metric["best"]:
            cells += [number(item["best"]) if item else "", number(item["last"]) if item else ""]
        mark = {"caution": " (!)", "different": " (x)", "convert": " (~)"}.get(metric["verdict"], "")
        parts = (
            number(metric["first_divergence"])
            if metric["first_divergence"] is not None
            else ("never" if metric["common_steps"] else "-")
        )
        table.add_row(Text(metric["name"] + mark), *cells, parts)
    yield table
    if len(shown) < len(facts["metrics"]):
        yield Text(f"  and {len(facts['metrics']) - len(shown)} more; --all shows them", style="dim")
    if facts["first_divergence"] is not None:
        yield Text(f"\nThe values differ from step {number(facts['first_divergence'])} on.")
    for metric in shown:
        if metric["verdict"] != "same":
            word = {"caution": "compare with care", "different": "not the same quantity", "convert": "converted"}[
                metric["verdict"]
            ]
            yield Text(f"  {metric['name']}: {word}: {metric['note']}", style="yellow")
    for path, names in facts["only_in_one"].items():
        listed = ", ".join(names[:8]) + (f" and {len(names) - 8} more" if len(names) > 8 else "")
        yield Text(f"  only in {path}: {listed}", style="dim")


def _status(status: str) -> Text:
    return Text(status, style=STATUS_STYLE.get(status, ""))
