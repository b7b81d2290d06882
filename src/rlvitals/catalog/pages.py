"""Writes the docs pages of the catalogue, one per family: `python -m rlvitals.catalog.pages docs/metrics [--check]`."""

from __future__ import annotations

import sys
from pathlib import Path

from rlvitals.catalog.build import read_data
from rlvitals.catalog.entries import DIRECTION_WORDS, Alias, Family, Framework, Metric
from rlvitals.catalog.lookup import Catalog
from rlvitals.catalog.source import parse

NOTE = "<!-- Generated from src/rlvitals/catalog/data by `make catalog`; edit the data, not this page. -->"


def load() -> Catalog:
    """The entries of the YAML files alone, without the plug-ins installed where the docs are built."""
    catalog = Catalog()
    for where, document in read_data():
        catalog.add(parse(document, where), where)
    return catalog


def pages(catalog: Catalog) -> dict[str, str]:
    """File name -> page, for every family and the overview."""
    found = {"README.md": _overview(catalog)}
    for family in catalog.families.values():
        metrics = [metric for metric in catalog.metrics.values() if metric.family == family.id]
        found[f"{family.id}.md"] = _family(family, metrics, catalog.frameworks)
    return found


def _overview(catalog: Catalog) -> str:
    lines = [
        "# Metrics", "", NOTE, "",
        f"{len(catalog.metrics)} concepts, {sum(len(metric.names) for metric in catalog.metrics.values())} names in "
        f"{len(catalog.frameworks)} frameworks, trainers and documents. In a terminal: `rlvitals explain NAME`.", "",
        "| family | concepts | about |", "|---|---|---|",
    ]  # fmt: skip
    for family in sorted(catalog.families.values(), key=lambda family: family.title):
        count = sum(metric.family == family.id for metric in catalog.metrics.values())
        lines.append(f"| [{family.title}]({family.id}.md) | {count} | {_cell(family.about)} |")
    lines += [
        "",
        "## Groups",
        "",
        "Metrics people look at together.",
        "",
        "| group | metrics | about |",
        "|---|---|---|",
    ]
    for group in catalog.groups.values():
        members = ", ".join(f"`{name}`" for name in group.metrics)
        lines.append(f"| {group.title} (`{group.id}`) | {members} | {_cell(group.about)} |")
    lines += ["", "## Algorithms", "", "| id | what | kind | vital signs |", "|---|---|---|---|"]
    for algorithm in catalog.known_algorithms:
        variant = f", a variant of `{algorithm.parent}`" if algorithm.parent else ""
        signs = ", ".join(f"`{sign}`" for sign in algorithm.vitals)
        lines.append(f"| `{algorithm.id}` | {algorithm.title}{variant} | {algorithm.kind} | {signs} |")
    lines += ["", "## Sources of names", "", "| id | what | read from |", "|---|---|---|"]
    for framework in catalog.frameworks.values():
        lines.append(f"| `{framework.id}` | {framework.title} | {_cell(framework.source) or '-'} |")
    return "\n".join(lines) + "\n"


def _family(family: Family, metrics: list[Metric], frameworks: dict[str, Framework]) -> str:
    lines = [f"# {family.title}", "", NOTE, "", family.about.strip(), ""]
    for metric in metrics:
        lines += _metric(metric, frameworks)
    return "\n".join(lines).rstrip() + "\n"


def _metric(metric: Metric, frameworks: dict[str, Framework]) -> list[str]:
    lines = [
        f"## {metric.title}",
        "",
        f"`{metric.id}` · {metric.unit} · {DIRECTION_WORDS[metric.direction]}",
        "",
        metric.what,
        "",
    ]
    if metric.formula:
        lines += [f"Formula: `{metric.formula}`", ""]
    if metric.estimator:
        lines += [f"Estimator: {metric.estimator}", ""]
    if metric.bands:
        lines += ["| typical for | low | high | source |", "|---|---|---|---|"]
        for band in metric.bands:
            source = f"{band.source}: {band.note}" if band.source and band.note else band.source or band.note
            low, high = ("" if edge is None else f"{edge:g}" for edge in (band.low, band.high))
            lines.append(f"| {band.scope or 'any run'} | {low} | {high} | {_cell(source)} |")
        lines.append("")
    if metric.symptoms:
        lines += ["| when | it means | do |", "|---|---|---|"]
        lines += [f"| {_cell(item.when)} | {_cell(item.means)} | {_cell(item.do)} |" for item in metric.symptoms]
        lines.append("")
    if metric.notes:
        lines += [metric.notes, ""]
    if metric.names:
        lines += ["| called | by | what to know |", "|---|---|---|"]
        lines += [_alias(alias, frameworks) for alias in metric.names]
        lines.append("")
    return lines


def _alias(alias: Alias, frameworks: dict[str, Framework]) -> str:
    parts = [f"when {alias.when}" if alias.when else "", alias.definition]
    if alias.caveat:
        factor = f" (multiply by {alias.caveat.factor:g})" if alias.caveat.factor is not None else ""
        parts.append(f"{alias.caveat.kind}{factor}: {alias.caveat.note}")
    if alias.trap:
        parts.append(f"**Trap:** {alias.trap}")
    title = frameworks[alias.framework].title if alias.framework in frameworks else alias.framework
    sentences = [text if text.endswith((".", "!", "?")) else f"{text}." for text in parts if text]
    return f"| `{alias.name.replace('|', chr(92) + '|')}` | {title} | {_cell(' '.join(sentences))} |"


def _cell(text: str) -> str:
    return " ".join(text.split()).replace("|", "\\|")


def publish(wanted: dict[str, str], arguments: list[str], by_hand: str = "") -> int:
    """Write the pages into the folder given in the arguments, or with --check only compare; returns the exit code. The
    page `by_hand` is left as it is.
    """
    folder = Path(next(word for word in arguments if not word.startswith("-")))
    present = {path.name: path for path in folder.glob("*.md") if path.name != by_hand}
    if "--check" in arguments:
        if {name: path.read_text(encoding="utf-8") for name, path in present.items()} != wanted:
            print(f"{folder} is out of date; run: make catalog", file=sys.stderr)
            return 1
        return 0
    folder.mkdir(parents=True, exist_ok=True)
    for name in present.keys() - wanted.keys():
        present[name].unlink()
    for name, text in wanted.items():
        (folder / name).write_text(text, encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(publish(pages(load()), sys.argv[1:]))
