"""One metric's explanation as one screen of text."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from rich.console import Group, RenderableType
from rich.padding import Padding
from rich.text import Text

from rlvitals.catalog import Explanation, slices
from rlvitals.catalog.entries import DIRECTION_WORDS
from rlvitals.render.numbers import band
from rlvitals.render.screen import heading, two_columns
from rlvitals.terminal import sentence

REDUCTIONS = {
    "mean": "averages weighted by their counts",
    "sum": "added up",
    "min": "the smallest wins",
    "max": "the largest wins",
    "std": "from the merged moments",
    "var": "from the merged moments",
    "median": "from the samples; medians do not merge",
    "quantile": "from the samples; quantiles do not merge",
    "last": "the newest value counts",
    "none": "computed again from its parts",
}


def render_explanation(
    explanation: Explanation, framework_titles: dict[str, str], *, all_names: bool = False
) -> RenderableType:
    """The whole screen. `all_names` lists every framework's name instead of the first few."""
    return Group(*_parts(explanation, framework_titles, all_names))


def _parts(explanation: Explanation, titles: dict[str, str], all_names: bool) -> Iterator[RenderableType]:
    head = Text.assemble((explanation.title, "bold"), "  ", (explanation.id, "cyan"))
    yield head
    if explanation.is_ambiguous:
        others = ", ".join(
            f"{other['id']} ({_users(other['sources'], titles)})" for other in explanation.other_meanings
        )
        yield Text(f"{explanation.name!r} also means: {others}. Say which with --framework.", style="yellow")
    yield ""
    yield Padding(Text(explanation.what), (0, 0, 0, 2))
    yield ""
    facts = two_columns("dim", pad_edge=True)
    if explanation.labels:
        facts.add_row("slice", Text(slices.text(explanation.labels)))
    if explanation.formula:
        facts.add_row("formula", Text(explanation.formula))
    if explanation.estimator:
        facts.add_row("estimator", Text(explanation.estimator))
    facts.add_row("unit", Text(f"{explanation.unit}, {DIRECTION_WORDS[explanation.direction]}"))
    facts.add_row("merging", Text(REDUCTIONS[explanation.reduce]))
    yield facts
    for source in explanation.sources:
        yield from _source(source, titles)
    if explanation.bands:
        yield heading("Typical range")
        bands = two_columns("dim", pad_edge=True)
        for item in explanation.bands:
            text = f"{band(item.low, item.high)}  ({item.source})" if item.source else band(item.low, item.high)
            bands.add_row(item.scope or "any run", Text(f"{text}; {item.note}" if item.note else text))
        yield bands
    if explanation.symptoms:
        yield heading("When it is off")
        for symptom in explanation.symptoms:
            yield Padding(
                Text.assemble(("* ", "yellow"), (sentence(symptom.when), "bold"), " ", sentence(symptom.means)),
                (0, 0, 0, 2),
            )
            yield Padding(Text.assemble(("-> ", "green"), sentence(symptom.do)), (0, 0, 0, 4))
    if explanation.notes:
        yield heading("Notes")
        yield Padding(Text(explanation.notes), (0, 0, 0, 2))
    if explanation.aliases:
        yield heading("Elsewhere called")
        yield _names(explanation.aliases, titles, all_names)


def _source(source: dict[str, Any], titles: dict[str, str]) -> Iterator[RenderableType]:
    """How one framework computes the requested name; nothing if there are no details."""
    rows: list[tuple[str, str]] = [(key, source[key]) for key in ("when", "definition", "trap") if key in source]
    caveat = source.get("caveat")
    if caveat:
        factor = f", multiply by {caveat['factor']:g}" if "factor" in caveat else ""
        rows.append(("caveat", f"{caveat['kind']}{factor}: {caveat.get('note', '')}".rstrip(": ")))
    if not rows:
        return
    yield heading(f"{source['name']} in {titles.get(source['framework'], source['framework'])}")
    grid = two_columns("dim", pad_edge=True)
    for key, text in rows:
        grid.add_row(key, Text(text, style="yellow" if key in ("trap", "caveat") else ""))
    yield grid


def _names(aliases: dict[str, list[str]], titles: dict[str, str], all_names: bool) -> RenderableType:
    grid = two_columns("dim", pad_edge=True)
    shown = list(aliases.items()) if all_names else list(aliases.items())[:8]
    for framework, names in shown:
        grid.add_row(titles.get(framework, framework), Text(", ".join(names)))
    hidden = len(aliases) - len(shown)
    return (
        Group(grid, Padding(Text(f"and {hidden} more; --all lists them", style="dim"), (0, 0, 0, 2)))
        if hidden
        else grid
    )


def _users(sources: list[dict[str, Any]], titles: dict[str, str]) -> str:
    return ", ".join(dict.fromkeys(titles.get(source["framework"], source["framework"]) for source in sources))
