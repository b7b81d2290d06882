"""Evaluations of an agent as text: statistics of one evaluation, the trend over a run, several runs side by side."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

from rlvitals.render.numbers import number
from rlvitals.render.screen import ruled_table
from rlvitals.render.tables import letters_of
from rlvitals.values import is_number

SHOWN_FIELDS = 8
"""Columns besides `step` for evaluations without an agent's statistics."""


def rubric_lines(stats: Mapping[str, Any]) -> list[str]:
    r"""The statistics of one evaluation as lines of text. A missing average is a dash.

    >>> stats = dict(total_samples=4, attempted_answer=3, found_correct_email=2, read_correct_email=1,
    ...     total_repeated_searches=1, total_searches=9, total_unique_searches=8, avg_turns_correct=3.0,
    ...     avg_turns_idk=None, num_idk=0, avg_search_attempts=2.25)
    >>> print("\n".join(rubric_lines(stats)[1:]))
       Attempted answers: 3/4 (75.0%)
       Found correct email: 2/4 (50.0%)
       Read correct email: 1/4 (25.0%)
       Repeated searches: 1 (total: 9, unique: 8)
       Avg turns (correct): 3.00 turns
       Avg turns (I don't know): - (count: 0)
       Avg search attempts: 2.25
    """
    total = stats["total_samples"]

    def share(count: int) -> str:
        return f"{count}/{total} ({100 * count / total:.1f}%)" if total else f"{count}/{total} (-)"

    def turns(mean: float | None) -> str:
        return "-" if mean is None else f"{mean:.2f} turns"

    searches = stats["avg_search_attempts"]
    return [
        "Detailed Rubric Statistics:",
        f"   Attempted answers: {share(stats['attempted_answer'])}",
        f"   Found correct email: {share(stats['found_correct_email'])}",
        f"   Read correct email: {share(stats['read_correct_email'])}",
        f"   Repeated searches: {stats['total_repeated_searches']} "
        f"(total: {stats['total_searches']}, unique: {stats['total_unique_searches']})",
        f"   Avg turns (correct): {turns(stats['avg_turns_correct'])}",
        f"   Avg turns (I don't know): {turns(stats['avg_turns_idk'])} (count: {stats['num_idk']})",
        f"   Avg search attempts: {'-' if searches is None else f'{searches:.2f}'}",
    ]


def trend_line(stats: Mapping[str, Any]) -> str:
    """One evaluation as a line of the trend.

    >>> trend_line({"step": 10, "accuracy": 0.85, "found_correct_email": 87, "read_correct_email": 82,
    ...     "total_samples": 100, "total_repeated_searches": 15})
    'Step   10: Acc= 85.0%, Found=87/100, Read=82/100, Repeats=15'
    """
    accuracy: Any = stats.get("accuracy")
    total = _whole(stats.get("total_samples"))
    found, read = _whole(stats.get("found_correct_email")), _whole(stats.get("read_correct_email"))
    share = f"{accuracy * 100:5.1f}" if is_number(accuracy) else "    -"
    return (
        f"Step {stats['step']:4d}: Acc={share}%, "
        f"Found={found}/{total}, Read={read}/{total}, Repeats={_whole(stats.get('total_repeated_searches'))}"
    )


def render_evaluations(facts: Mapping[str, Any]) -> RenderableType:
    """The trend of one run, or several runs side by side."""
    return Group(*(_one(facts["runs"][0]) if len(facts["runs"]) == 1 else _many(facts)))


def _one(run: Mapping[str, Any]) -> Iterator[RenderableType]:
    listed = run["evaluations"]
    if any("accuracy" in stats and "found_correct_email" in stats for stats in listed):
        for stats in listed:
            yield Text(trend_line(stats))
        yield ""
        yield from _ends(run)
    else:
        yield _plain_table(listed)
    yield from _problems(run)


def _ends(run: Mapping[str, Any]) -> Iterator[RenderableType]:
    """The first, best and last accuracy, and the newest comparison with the control."""
    first, best, last = run["first"], run["best"], run["last"]
    if best is not None:
        yield Text(
            f"Accuracy: {first['accuracy']:.1%} at step {first['step']}, best {best['accuracy']:.1%} at step "
            f"{best['step']}, last {last['accuracy']:.1%} at step {last['step']}"
        )
    newest = run["evaluations"][-1]
    if newest.get("wins") is not None:
        yield Text(
            f"Against the control at step {newest['step']}: {newest['wins']} wins, {newest['ties']} ties, "
            f"{newest['losses']} losses"
        )


def _plain_table(listed: list[dict[str, Any]]) -> Table:
    names = list(dict.fromkeys(name for stats in listed for name, value in stats.items() if is_number(value)))
    names = ["step", *[name for name in names if name != "step"][:SHOWN_FIELDS]]
    table = ruled_table(*names, right=range(len(names)))
    for stats in listed:
        table.add_row(*[number(value) if is_number(value := stats.get(name)) else "-" for name in names])
    return table


def _many(facts: Mapping[str, Any]) -> Iterator[RenderableType]:
    runs, metric = facts["runs"], facts["metric"]
    letters = letters_of(runs)
    for letter, run in zip(letters, runs, strict=True):
        yield Text.assemble((f"{letter}  ", "bold"), f"{run['name']}  {run['path']}")
    is_single = all(len(run["evaluations"]) == 1 for run in runs)
    yield Text("" if is_single else f"\n{metric}", style="bold")
    yield _fields_table(letters, runs) if is_single else _steps_table(letters, runs, metric)
    yield ""
    for letter, run in zip(letters, runs, strict=True):
        if run["best"] is not None and not is_single:
            yield Text(f"{letter}  best accuracy {run['best']['accuracy']:.1%} at step {run['best']['step']}")
        yield from _problems(run)


def _steps_table(letters: list[str], runs: list[dict[str, Any]], metric: str) -> Table:
    """One metric of several runs, a row for every step."""
    table = ruled_table("step", *letters, right=range(len(letters) + 1))
    by_step = [{stats["step"]: stats.get(metric) for stats in run["evaluations"]} for run in runs]
    for step in sorted({step for each in by_step for step in each}):
        table.add_row(str(step), *[_cell(metric, each.get(step)) for each in by_step])
    return table


def _fields_table(letters: list[str], runs: list[dict[str, Any]]) -> Table:
    """Runs with one evaluation each, as checkpoints have: a row for every number."""
    table = ruled_table("", *letters, right=range(1, len(letters) + 1))
    single = [run["evaluations"][0] for run in runs]
    for name in dict.fromkeys(name for stats in single for name, value in stats.items() if is_number(value)):
        table.add_row(Text(name), *[_cell(name, stats.get(name)) for stats in single])
    return table


def _cell(metric: str, value: Any) -> str:
    if not is_number(value):
        return "-"
    return f"{value:.1%}" if metric == "accuracy" else number(value)


def _problems(run: Mapping[str, Any]) -> Iterator[RenderableType]:
    for sentence in run["problems"]:
        yield Text(f"  * {sentence}", style="yellow")


def _whole(value: Any) -> str:
    return "-" if value is None else str(value)
