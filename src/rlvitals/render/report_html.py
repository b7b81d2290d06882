"""A run's report as one self-contained page: no script, no request, curves as SVG, every text of the run escaped."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from html import escape
from typing import Any

from rlvitals.contract import EpochsFacts, StepCell
from rlvitals.render.check import HINDSIGHT, cases
from rlvitals.render.check_html import (
    bullets,
    document,
    finding_card,
    hindsight_parts,
    remarks,
    verdict_words,
)
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
    values_table,
)
from rlvitals.render.run_plots import Picture
from rlvitals.render.svg import escaped
from rlvitals.render.svg_panels import STYLE as PANEL_STYLE
from rlvitals.render.svg_panels import legend, panel_figure, sparkline
from rlvitals.render.transcript import group_heading, rollout_heading
from rlvitals.signs import SYMBOLS
from rlvitals.terminal import visible

_CELLS = {"critical": "act", "warning": "watch", "info": "noticed"}

_STYLE = """
body { max-width: 1080px; }
nav { margin: .8rem 0 0; }
nav a { margin-right: 1em; padding: .15rem 0; display: inline-block; }
section > h3 { margin-top: 1.4rem; }
.tiles { display: grid; grid-template-columns: repeat(auto-fill, minmax(13rem, 1fr)); gap: .6rem; margin: 1rem 0; }
.tile { background: var(--card); border: 1px solid var(--line); border-radius: 8px; padding: .5rem .7rem; }
.tile b { font-size: 1.25rem; margin-right: .4em; }
.tile p { margin: 0; font-size: .85rem; }
.tile span { white-space: nowrap; }
.bar { width: 100%; max-width: none; height: 14px; margin: .6rem 0 0; border-radius: 3px; }
.bar rect { fill: var(--line); }
.bar rect.act { fill: var(--act); }
.bar rect.watch { fill: var(--watch); }
.bar rect.noticed { fill: var(--series); opacity: .6; }
.wide { overflow-x: auto; }
.wide table:not(.config) { width: auto; min-width: min(100%, 24rem); }
th.n, td.n { text-align: right; white-space: nowrap; font-variant-numeric: tabular-nums; }
th.n + .n, td.n + .n { padding-left: 1rem; }
.config td:first-child { white-space: normal; min-width: 12rem; }
details { margin: .5rem 0; }
summary { cursor: pointer; }
pre { white-space: pre-wrap; font-size: .85rem; background: var(--card); border: 1px solid var(--line); padding: .6rem;
  border-radius: 6px; margin: .3rem 0 0; }
footer { margin-top: 3rem; color: var(--faint); }
@media (max-width: 40rem) { .tiles { grid-template-columns: 1fr 1fr; } .spark { max-width: 100%; }
  th.n + .n, td.n + .n { padding-left: 0; } .config td:first-child { min-width: 7rem; } }
"""


def page(report: RunReport) -> str:
    """The report as a complete HTML file."""
    title = f"{report.check['verdict']}: {visible(report.name)}"
    return document(title, _body(report), PANEL_STYLE + _STYLE)


def _body(report: RunReport) -> Iterator[str]:
    sections = [(name, title, parts) for name, title, found in _sections(report) if (parts := list(found))]
    yield from _head(report)
    links = "".join(f'<a href="#{name}">{title}</a>' for name, title, _ in sections)
    yield f"<nav>{links}</nav>"
    yield from _vitals(report)
    for name, title, parts in sections:
        yield f'<section id="{name}"><h2>{title}</h2>'
        yield from parts
        yield "</section>"
    yield (
        f"<footer>{escape(report.written_by)}, {moment(report.made)}. This file holds everything it shows and loads "
        "nothing.</footer>"
    )


def _sections(report: RunReport) -> Iterator[tuple[str, str, Iterator[str]]]:
    yield "findings", "Findings", _findings(report)
    yield "hindsight", HINDSIGHT, _hindsight(report)
    yield "curves", "Curves", _curves(report.curves)
    yield "epochs", "Epochs", _epochs(report.epochs)
    yield "evaluations", "Evaluations", _evaluations(report.evaluations)
    yield "rollouts", "Rollouts", _rollouts(report)
    yield "compared", "Compared", _compared(report)
    yield "values", "Last and best values", _table(values_table(report))
    yield "notes", "What else there is to know", _notes(report)
    yield "config", "Settings", _folded(config_table(report))
    yield "environment", "Environment", _table(environment_table(report), "config")


def _head(report: RunReport) -> Iterator[str]:
    yield f"<h1>{verdict_words(report.check['verdict'])} {escaped(report.name)}</h1>"
    yield f"<p>{escaped(report.check['reason'])}</p>"
    yield f'<p class="faint">{escaped(" · ".join(about_words(report)))}</p>'
    if report.about["status_note"]:
        yield f'<p class="faint">{escaped(report.about["status_note"])}</p>'


def _vitals(report: RunReport) -> Iterator[str]:
    yield from _step_bar(report.step_bar)
    if report.tiles:
        yield '<div class="tiles">'
        for tile in report.tiles:
            status = tile["status"]
            style = "" if status == "ok" else status
            moved = "" if tile["change"] is None else tile["change"]["told"]
            band = "" if tile["band"] is None else f"typical at this stage: {band_text(*tile['band'])}"
            yield (
                f'<div class="tile" title="{escaped(tile["why"])}"><p>{escaped(tile["title"])}</p>'
                f'<span class="{style}">{SYMBOLS[status]} <b>{number(tile["value"])}</b></span>'
                f"{sparkline(tile['spark'], tile['name'])}"
                f'<p class="faint">{escaped(tile["name"])}</p><p class="faint">{escape(moved)}</p>'
                f'<p class="faint">{escape(band)}</p></div>'
            )
        yield "</div>"


def _step_bar(cells: Sequence[StepCell]) -> Iterator[str]:
    """The run's steps from left to right, coloured by the severity of their findings."""
    if not cells:
        return
    troubled = sum(cell["severity"] in ("warning", "critical") for cell in cells)
    label = f"steps {cells[0]['from']} to {cells[-1]['to']}; {troubled} of {len(cells)} parts have findings"
    yield f'<svg class="bar" viewBox="0 0 {len(cells)} 1" preserveAspectRatio="none" role="img" aria-label="{label}">'
    for place, cell in enumerate(cells):
        style = _CELLS.get(cell["severity"] or "", "")
        tooltip = f"steps {cell['from']} to {cell['to']}: {cell['severity'] or 'no finding'}"
        yield f'<rect class="{style}" x="{place}" y="0" width="0.94" height="1"><title>{tooltip}</title></rect>'
    yield "</svg>"


def _findings(report: RunReport) -> Iterator[str]:
    for case in cases(report.check["findings"]):
        yield from finding_card(case, report.check["series"], report.asked.get(case.alarm, ""))


def _hindsight(report: RunReport) -> Iterator[str]:
    if report.check["hindsight"]:
        yield from hindsight_parts(report.check["hindsight"])


def _curves(picture: Picture | None) -> Iterator[str]:
    if picture is None:
        return
    if picture.legend:
        yield f"<p>{legend(picture.legend)}</p>"
    if picture.remarks:
        yield "<ul>"
        yield from (f'<li class="{escape(severity)}">{escaped(text)}</li>' for severity, text in picture.remarks)
        yield "</ul>"
    if any(panel.band for panel in picture.panels):
        yield '<p class="faint">Shaded: the catalogue\'s typical range.</p>'
    yield '<div class="panels">'
    yield from (panel_figure(panel, picture) for panel in picture.panels)
    yield "</div>"


def _epochs(facts: EpochsFacts | None) -> Iterator[str]:
    if facts is not None:
        yield f"<p><b>{escape(facts['verdict'])}</b>: {escaped(facts['why'])}</p>"
        yield from _table(epochs_table(facts))


def _evaluations(facts: dict[str, Any] | None) -> Iterator[str]:
    if facts is None:
        return
    best, last = facts["best"], facts["last"]
    if best is not None:
        yield (
            f"<p>Best accuracy {best['accuracy']:.1%} at step {number(best['step'])}, last {last['accuracy']:.1%} "
            f"at step {number(last['step'])}</p>"
        )
    yield from _table(evaluations_table(facts))
    if facts["problems"]:
        yield bullets(map(visible, facts["problems"]))


def _rollouts(report: RunReport) -> Iterator[str]:
    for title, listed in (("Best", report.best_rollouts), ("Worst", report.worst_rollouts)):
        if listed:
            yield f"<h3>{title}</h3>"
            yield from map(_rollout, listed)


def _rollout(shown: ShownRollout) -> str:
    head = rollout_heading(shown.number, shown.rollout).strip()
    group = group_heading(shown.group_number, shown.group)
    answer = f"\nreference answer: {_escaped_lines(shown.group.answer)}" if shown.group.answer else ""
    return (
        f"<details><summary>step {number(shown.step)}, {escape(head)}</summary>"
        f'<p class="faint">{escape(group)}</p><pre>{_escaped_lines(shown.group.prompt)}{answer}</pre>'
        f"<pre>{escape(cut_transcript(shown.rollout))}</pre></details>"
    )


def _notes(report: RunReport) -> Iterator[str]:
    if parts := list(remarks(report.check)):
        yield "<details><summary>harmless things, what could not be judged, what was odd about the log</summary>"
        yield from parts
        yield "</details>"


def _compared(report: RunReport) -> Iterator[str]:
    facts = report.compared
    if facts is None:
        return
    runs = [f"{run['name']}: {run['status']}, step {number(run['step'])} ({run['path']})" for run in facts["runs"]]
    yield bullets(map(visible, runs))
    if facts["first_divergence"] is not None:
        yield f"<p>The values differ from step {number(facts['first_divergence'])} on.</p>"
    differences = differences_table(facts)
    yield "<h3>Settings that differ</h3>"
    yield from _table(differences, "config") if differences else ("<p>None.</p>",)
    yield from _curves(report.compared_curves)
    if table := compared_table(facts):
        yield "<h3>Last values</h3>"
        yield from _table(table)


def _table(table: ReportTable | None, style: str = "") -> Iterator[str]:
    if table is None:
        return
    kinds = ["" if place < table.words else ' class="n"' for place in range(len(table.headers))]
    # Focusable, so that a table wider than the window can also be scrolled with the keyboard.
    label = escaped(", ".join(filter(None, table.headers)))
    reach = "" if style else f' tabindex="0" role="group" aria-label="table of {label}"'
    yield f'<div class="wide"{reach}><table class="{style}">'
    if any(table.headers):
        cells = "".join(
            f'<th{kind} scope="col">{escaped(name)}</th>' for kind, name in zip(kinds, table.headers, strict=True)
        )
        yield f"<thead><tr>{cells}</tr></thead>"
    for row in table.rows:
        yield (
            "<tr>" + "".join(f"<td{kind}>{escaped(cell)}</td>" for kind, cell in zip(kinds, row, strict=True)) + "</tr>"
        )
    yield "</table></div>"
    if table.note:
        yield f'<p class="faint">{escaped(table.note)}</p>'


def _folded(table: ReportTable | None) -> Iterator[str]:
    if table is not None:
        yield f"<details><summary>{number(len(table.rows))} settings</summary>"
        yield from _table(table, "config")
        yield "</details>"


def _escaped_lines(text: str) -> str:
    return "\n".join(escaped(line) for line in text.split("\n"))
