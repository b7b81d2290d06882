"""An audit of a judge on a terminal: its errors with intervals, its biases with their tests, its drift."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from rich import box
from rich.console import Console, ConsoleOptions, RenderableType, RenderResult
from rich.padding import Padding
from rich.table import Table
from rich.text import Text

from rlvitals.render.numbers import number
from rlvitals.render.screen import FactsView

_TRENDS = {"all_errors": "errors", "false_positives": "false positives", "false_negatives": "false negatives"}
SURE = 0.01
"""A bias or a drift is reported if its p-value is below this."""


class AuditView(FactsView):
    """One audit."""

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        facts = self._facts
        yield Text.assemble(("Judge", "bold"), f"  {headline(facts)}")
        about = f"{facts['source']}\n{number(facts['items'])} {facts['kind']}, {number(facts['verdicts'])} verdicts"
        yield Padding(Text(about, style="dim"), (0, 0, 1, 2))
        table = Table.grid(padding=(0, 2))
        table.add_column(style="dim", no_wrap=True)
        table.add_column(no_wrap=True, justify="right")
        table.add_column(no_wrap=True, style="dim")
        table.add_column(overflow="fold")
        for name, share, spread, meaning in _lines(facts):
            table.add_row(name, share, spread, meaning)
        yield Padding(table, (0, 0, 0, 2))
        if facts["drift"] is not None:
            yield from _drift(facts["drift"])


def headline(facts: dict[str, Any]) -> str:
    """The audit in one line: agreement with the gold labels, biases and drift."""
    agrees = facts["agreement"]["share"]
    parts = ["no gold labels to compare with" if agrees is None else f"agrees with the gold labels in {agrees:.1%}"]
    for key, words in (("position", "prefers a position"), ("length", "depends on length")):
        p = facts[key]["p"]
        if p is not None and p < SURE:
            parts.append(words)
    for key, words in _TRENDS.items():
        if facts["drift"] is None:
            break
        trend = facts["drift"][key]
        if trend["p"] is not None and trend["p"] < SURE:
            parts.append(f"{words} {'rise' if trend['z'] > 0 else 'fall'} over the run")
    return ", ".join(parts)


def _lines(facts: dict[str, Any]) -> Iterator[tuple[str, str, str, RenderableType]]:
    shares = [
        ("false positives", "false_positives", "of wrong answers, accepted"),
        ("false negatives", "false_negatives", "of right answers, rejected"),
        ("agreement", "agreement", "with the gold labels"),
        ("order flips", "flips", "of pairs, decided otherwise when the order is swapped"),
        ("self-agreement", "self_agreement", "of two verdicts on the same item"),
        ("no verdict", "unread", "of replies could not be read"),
    ]
    for name, key, meaning in shares:
        found = facts[key]
        if found["share"] is not None:
            yield (
                name,
                f"{found['share']:.1%}",
                f"{found['low']:.1%} to {found['high']:.1%}",
                Text(f"{meaning} ({number(found['count'])} items)"),
            )
    if facts["kappa"] is not None:
        yield "kappa", f"{facts['kappa']:.2f}", "", Text("agreement beyond chance: 0 none, 1 full")
    position, length = facts["position"], facts["length"]
    if position["size"] is not None:
        yield (
            "first position",
            f"{position['size']:.1%}",
            _chance(position["p"]),
            Text("of decisions prefer what is shown first", style=_style(position["p"])),
        )
    if length["size"] is not None:
        pairs = facts["kind"] == "pairs"
        size = f"{length['size']:.1%}" if pairs else f"x {length['size']:.2f}"
        meaning = (
            f"of errors favour the longer answer ({number(length['count'])} of unequal length)"
            if pairs
            else "length of accepted answers beside rejected ones of the same gold label"
        )
        yield "length bias", size, _chance(length["p"]), Text(meaning, style=_style(length["p"]))


def _chance(p: float | None) -> str:
    return "" if p is None else "p < 0.0001" if p < 1e-4 else f"p = {p:.2g}"  # fmt: skip


def _style(p: float | None) -> str:
    return "bold yellow" if p is not None and p < SURE else ""


def _drift(drift: dict[str, Any]) -> Iterator[RenderableType]:
    trends = [
        f"{words} {'rise' if drift[key]['z'] > 0 else 'fall'}, {_chance(drift[key]['p'])}"
        for key, words in _TRENDS.items()
        if drift[key]["p"] is not None
    ]
    yield Text.assemble(("\nOver the run", "bold"), (f"  {'; '.join(trends)}" if trends else "", "dim"))
    table = Table(box=box.SIMPLE_HEAD, pad_edge=False)
    for title in ("steps", "items", "errors", "95 % interval", "accepted"):
        table.add_column(title, justify="right", no_wrap=True)
    for part in drift["bins"]:
        errors, accepted = part["errors"], part["accepted"]
        steps = str(part["first_step"])
        if part["last_step"] != part["first_step"]:
            steps += f"-{part['last_step']}"
        table.add_row(
            steps, number(errors["count"]), f"{errors['share']:.1%}", f"{errors['low']:.1%} to {errors['high']:.1%}",
            f"{accepted['share']:.1%}",
        )  # fmt: skip
    yield Padding(table, (0, 0, 0, 2))
