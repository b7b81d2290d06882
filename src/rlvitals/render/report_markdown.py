"""A run's report as Markdown for a pull request. Long parts are folded; texts of the run never act as markup.

Texts of a run are written as code, where GitHub and GitLab neither render nor link them and notify nobody.
Elsewhere every character with a meaning in Markdown is escaped.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from typing import Any

from rlvitals.contract import TileFacts
from rlvitals.render.charts import BLOCKS, blocks
from rlvitals.render.check import HINDSIGHT, by_words, cases, details, sum_of
from rlvitals.render.numbers import band as band_text
from rlvitals.render.numbers import moment, number
from rlvitals.render.report import (
    ReportTable,
    RunReport,
    ShownRollout,
    about_words,
    compared_table,
    config_table,
    cut_transcript,
    differences_table,
    environment_table,
    epochs_table,
    evaluations_table,
    nearest_table,
)
from rlvitals.render.transcript import rollout_heading
from rlvitals.signs import SYMBOLS, signed, titled
from rlvitals.terminal import visible

SPARK_LETTERS = 24
_SPECIAL = re.compile(r"([\\`*_\[\]|~$]|:(?=//|\w+:)|(?<=www)\.|^[-+=>]|(?<=^\d)[.)])")
_NUMBERS = re.compile(rf"(at (most|least) |[!✔✖] )?[-+±]?[\d,.%e+-]*( to [\d,.e+-]+)?|[{BLOCKS} ]+")
_ENTITIES = {"&": "&amp;", "<": "&lt;", "@": "@&#8203;", "#": "#&#8203;"}
"""@ and # get a zero-width space, since mentions and issue numbers are searched for in the rendered text."""

_LABELS = {"when": "", "evidence": "", "seen in": "seen in "}
"""What precedes a detail of a finding in place of its label and a colon."""


def markdown(report: RunReport) -> str:
    """The report as Markdown."""
    return "\n".join(_parts(report)) + "\n"


def _parts(report: RunReport) -> Iterator[str]:
    check = report.check
    yield f"## {titled(check['verdict'])}: {plain(report.name)}\n"
    yield f"{plain(check['reason'])}  "
    yield plain(" · ".join(about_words(report)))
    if report.about["status_note"]:
        yield "\n" + plain(report.about["status_note"])
    yield from _tiles(report.tiles)
    yield from _findings(report)
    if (hindsight := check["hindsight"]) is not None:
        yield f"\n### {HINDSIGHT}\n"
        yield from (f"- {plain(text)}" for text in hindsight["told"])
        if table := nearest_table(hindsight):
            yield ""
            yield from _table(table)
    if report.epochs is not None:
        yield f"\n### Epochs\n\n{plain(report.epochs['verdict'])}: {plain(report.epochs['why'])}\n"
        yield from _table(epochs_table(report.epochs))
    if report.evaluations is not None:
        yield "\n### Evaluations\n"
        yield from _table(evaluations_table(report.evaluations))
    yield from _rollouts("Best rollouts", report.best_rollouts)
    yield from _rollouts("Worst rollouts", report.worst_rollouts)
    yield from _compared(report.compared)
    taken = [f"by the words of their names: {text}"] if (text := by_words(check["names"])) else []
    notes = [*(finding["title"] for finding in check["normal"]), *taken, *sum_of(check["parts"]), *check["notes"]]
    if notes:
        yield from _folded("Worth knowing", [f"- {plain(note)}" for note in dict.fromkeys(notes)])
    for title, table in (("Settings", config_table(report)), ("Environment", environment_table(report))):
        if table is not None:
            yield from _folded(title, list(_table(table)))
    yield f"\n<sub>{plain(report.written_by)}, {moment(report.made)}</sub>"


def _tiles(tiles: Sequence[TileFacts]) -> Iterator[str]:
    if not tiles:
        return
    rows = []
    for tile in tiles:
        moved = "-" if tile["change"] is None else tile["change"]["told"]
        typical = "" if tile["band"] is None else band_text(*tile["band"])
        value = f"{SYMBOLS[tile['status']]} {number(tile['value'])}".strip()
        rows.append([tile["name"], value, moved, typical, spark(tile["spark"])])
    yield ""
    yield from _table(ReportTable(["vital sign", "now", "change", "typical", "course"], rows))


def _findings(report: RunReport) -> Iterator[str]:
    found = cases(report.check["findings"])
    if found:
        yield "\n### Findings\n"
    for case in found:
        finding = case.finding
        yield f"- **{signed(finding['severity'])}**: {plain(finding['title'])}"
        for label, text in details(case, report.asked.get(case.alarm, "")):
            if label != "kind":
                yield f"  - {plain(_LABELS.get(label, f'{label}: ') + text)}"


def _rollouts(title: str, listed: Sequence[ShownRollout]) -> Iterator[str]:
    for shown in listed:
        head = f"step {number(shown.step)}, {rollout_heading(shown.number, shown.rollout).strip()}"
        prompt = "\n".join(visible(line) for line in shown.group.prompt.split("\n"))
        yield from _folded(f"{title}: {head}", [_block(f"{prompt}\n\n{cut_transcript(shown.rollout)}")])


def _compared(facts: dict[str, Any] | None) -> Iterator[str]:
    if facts is None:
        return
    yield "\n### Compared\n"
    if facts["first_divergence"] is not None:
        yield f"The values differ from step {number(facts['first_divergence'])} on.\n"
    differences = differences_table(facts)
    yield from _table(differences) if differences else ("No setting differs.",)
    if table := compared_table(facts):
        yield ""
        yield from _table(table)


def _table(table: ReportTable) -> Iterator[str]:
    words = max(table.words, 1)
    yield "| " + " | ".join(map(plain, table.headers)) + " |"
    yield "|" + "|".join("---" if place < words else "---:" for place in range(len(table.headers))) + "|"
    for row in table.rows:
        yield "| " + " | ".join(_cell(cell) for cell in row) + " |"
    if table.note:
        yield f"\n{plain(table.note)}"


def _folded(title: str, lines: Sequence[str]) -> Iterator[str]:
    yield f"\n<details><summary>{_entities(visible(title))}</summary>\n"
    yield from lines
    yield "\n</details>"


def _cell(text: str) -> str:
    """A table's cell: numbers as they are, words as code."""
    shown = visible(" ".join(text.split()))
    return shown if not shown or _NUMBERS.fullmatch(shown) else code_cell(shown)


def plain(text: str) -> str:
    r"""A text on one line, escaped so that no part of it acts as markup.

    >>> plain("*kl* <b> @you #1")
    '\\*kl\\* &lt;b> @&#8203;you #&#8203;1'
    """
    return _entities(_SPECIAL.sub(r"\\\1", visible(" ".join(text.split()))))


def code(text: str) -> str:
    """A text as inline code, with a fence longer than any run of backticks in it.

    >>> code("kl"), code("a`b")
    ('`kl`', '``a`b``')
    """
    fence = "`" * (1 + max((len(run) for run in re.findall("`+", text)), default=0))
    space = " " if text.startswith("`") or text.endswith("`") else ""
    return f"{fence}{space}{text}{space}{fence}"


def code_cell(text: str) -> str:
    """A text on one line as code in a table, where a bar would end the cell."""
    return code(visible(" ".join(text.split()))).replace("|", r"\|")


def spark(points: Sequence[Sequence[float | None]]) -> str:
    """A sparkline of at most `SPARK_LETTERS` blocks; a space stands for missing values.

    >>> spark([[1, 0.0], [2, 1.0], [3, None], [4, 0.5]])
    '▁█ ▅'
    """
    values = [point[1] for point in points]
    size = -(-len(values) // SPARK_LETTERS) or 1
    means = []
    for place in range(0, len(values), size):
        known = [value for value in values[place : place + size] if value is not None]
        means.append(sum(known) / len(known) if known else None)
    finite = [mean for mean in means if mean is not None]
    if not finite:
        return ""
    return blocks(means, min(finite), max(finite))


def _block(text: str) -> str:
    fence = "`" * max(3, 1 + max((len(run) for run in re.findall("`+", text)), default=0))
    return f"{fence}text\n{text}\n{fence}"


def _entities(text: str) -> str:
    return re.sub("[&<@#]", lambda found: _ENTITIES[found[0]], text)
