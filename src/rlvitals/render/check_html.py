"""A report as one self-contained page: no script, no request, charts as SVG, every text of the log escaped.

`report_html` uses its pieces too (the document, verdicts, findings).
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from html import escape
from itertools import groupby
from operator import itemgetter
from typing import Any

from rlvitals.render.charts import ChartSeries, short
from rlvitals.render.check import (
    HINDSIGHT,
    RuleFindings,
    below,
    by_words,
    cases,
    counted,
    details,
    judged_words,
    most_severe_first,
    nearest_rows,
    normal,
    remarks_counted,
    sum_of,
    unseen,
)
from rlvitals.render.svg import Frame, Spot, escaped, stretches
from rlvitals.signs import signed, titled
from rlvitals.terminal import visible

CHART_WIDTH, CHART_HEIGHT, MARGIN = 420, 130, 58
"""As narrow as the panels of a report, so that its text is readable on a phone."""


_STYLE = """
:root { color-scheme: light dark; --ink: #1c1e21; --paper: #fdfdfc; --faint: #6a6f76; --line: #d9dbde; --card: #fff;
  --act: #b3261e; --watch: #8a5a00; --healthy: #1a6b35; --unsure: #6b3fa0; --series: #2467b5; }
@media (prefers-color-scheme: dark) { :root { --ink: #e6e7e9; --paper: #15171a; --faint: #9aa0a8; --line: #34383e;
  --card: #1c1f23; --act: #ff8a80; --watch: #f2c15d; --healthy: #7ddc9a; --unsure: #c6a6f5; --series: #7db4f5; } }
body { font: 15px/1.5 system-ui, sans-serif; color: var(--ink); background: var(--paper); margin: 0 auto;
  max-width: 860px; padding: 1.5rem 1rem 4rem; overflow-wrap: anywhere; }
a { color: inherit; }
h1 { font-size: 1.5rem; margin: 0; }
h1 + p, h2 + p { margin: .1rem 0 .3rem; }
h2 { font-size: 1.1rem; margin: 2rem 0 .5rem; }
h3 { font-size: 1rem; margin: 0 0 .4rem; }
.act, .critical { color: var(--act); }
.watch, .warning { color: var(--watch); }
.healthy { color: var(--healthy); }
.unsure { color: var(--unsure); }
.faint { color: var(--faint); }
article { background: var(--card); border: 1px solid var(--line); border-radius: 8px; padding: 1rem; margin: 1rem 0; }
dl { display: grid; grid-template-columns: 6rem 1fr; gap: .15rem .8rem; margin: .4rem 0; }
dt { color: var(--faint); }
dd { margin: 0; }
dd.do { font-weight: 600; }
table { border-collapse: collapse; width: 100%; }
td { padding: .3rem .6rem .3rem 0; border-bottom: 1px solid var(--line); vertical-align: top; }
td:first-child { white-space: nowrap; }
th { text-align: left; color: var(--faint); font-weight: 400; padding: .2rem .6rem .2rem 0; vertical-align: bottom; }
figure { margin: .8rem 0 0; }
figcaption { color: var(--faint); }
svg { width: 100%; max-width: 40rem; height: auto; display: block; }
svg text { font: 11px system-ui, sans-serif; fill: var(--faint); }
.axis { stroke: var(--line); }
.onset { stroke: var(--act); stroke-dasharray: 4 3; }
.range { fill: var(--series); opacity: .25; }
.middle { fill: none; stroke: var(--series); stroke-width: 1.6; stroke-linecap: round; }
@media (min-width: 40rem) { article svg text { font-size: 9px; } article .middle { stroke-width: 1.2; } }
@media (max-width: 40rem) { td:first-child { white-space: normal; min-width: 8.5rem; }
  dl { grid-template-columns: 1fr; gap: 0; } dd { margin-bottom: .4rem; } }
"""


def page(facts: dict[str, Any]) -> str:
    """The page for one report, or for a folder of reports."""
    parts = _folder(facts) if facts.get("reports") is not None else _report(facts)
    return document(f"{facts['verdict']}: {facts['source']}", parts)


def document(title: str, body: Iterable[str], style: str = "") -> str:
    """An HTML document that loads nothing and runs no script. The parts of `body` are HTML; `title` is plain text."""
    return (
        '<!doctype html>\n<html lang="en">\n<head>\n<meta charset="utf-8">\n'
        "<meta http-equiv=\"Content-Security-Policy\" content=\"default-src 'none'; style-src 'unsafe-inline'\">\n"
        '<meta name="viewport" content="width=device-width, initial-scale=1">\n'
        f"<title>{escape(title)}</title>\n<style>{_STYLE}{style}</style>\n</head>\n"
        "<body>\n<main>\n" + "\n".join(body) + "\n</main>\n</body>\n</html>\n"
    )


def _folder(facts: dict[str, Any]) -> Iterator[str]:
    reports = most_severe_first(facts["reports"])
    yield f"<h1>{verdict_words(facts['verdict'])}</h1>"
    yield f"<p>{escape(counted(reports))}</p>"
    yield f'<p class="faint">{escape(facts["source"])}</p>'
    yield "<table>"
    for place, report in enumerate(reports):
        name = escape(below(report["source"], facts["source"]))
        yield (
            f'<tr><td>{verdict_words(report["verdict"])}</td><td><a href="#log-{place}">{name}</a></td>'
            f"<td>{escape(report['reason'])}</td></tr>"
        )
    yield "</table>"
    for place, report in enumerate(reports):
        yield f'<section id="log-{place}">'
        yield from _report(report, below(report["source"], facts["source"]))
        yield "</section>"
    if facts["passed_over"]:
        yield "<h2>No logs</h2>"
        yield bullets(f"{path}: {reason}" for path, reason in facts["passed_over"].items())


def _report(facts: dict[str, Any], name: str = "") -> Iterator[str]:
    """One report. A `name` is given if the page has several."""
    title = verdict_words(facts["verdict"])
    yield f"<h2>{title} {escape(name)}</h2>" if name else f"<h1>{title}</h1>"
    yield f"<p>{escape(facts['reason'])}</p>"
    yield f'<p class="faint">{escape(" · ".join([facts["source"], *judged_words(facts)]))}</p>'
    if facts["findings"] and not name:
        yield "<h2>Findings</h2>"
    for case in cases(facts["findings"]):
        yield from finding_card(case, facts["series"])
    if facts["hindsight"]:
        yield f"<h2>{HINDSIGHT}</h2>"
        yield from hindsight_parts(facts["hindsight"])
    yield from remarks(facts)


def hindsight_parts(facts: dict[str, Any]) -> Iterator[str]:
    """The cost of continuing, the checkpoint to revert to, and the settings compared with those of the nearest
    healthy run.
    """
    yield bullets(map(visible, facts["told"]))
    rows, note = nearest_rows(facts)
    if not rows:
        return
    cells = [[escaped(cell) for cell in row] for row in rows]
    heads = "".join(f'<th scope="col">{head}</th>' for head in cells[0])
    yield f'<div class="wide"><table><thead><tr>{heads}</tr></thead>'
    yield from (f"<tr>{''.join(f'<td>{cell}</td>' for cell in row)}</tr>" for row in cells[1:])
    yield "</table></div>"
    if note:
        yield f'<p class="faint">{note}</p>'


def remarks(facts: dict[str, Any]) -> Iterator[str]:
    """The rest of a report: harmless remarks, what could not be judged, how names were interpreted, notes."""
    if lines := list(normal(facts["normal"])):
        yield f"<details><summary>{remarks_counted(lines)}</summary>{bullets(lines)}</details>"
    if facts["cannot_judge"]:
        yield "<h2>Could not be judged</h2><table>"
        for item in facts["cannot_judge"]:
            names = " or ".join(f"<code>{escape(name)}</code>" for name in item["names"])
            missing = f"{escape(item['title'])} is not logged ({names})"
            yield f"<tr><td>{escape(unseen(item['kinds']))}</td><td>{missing}</td></tr>"
        yield "</table>"
    if facts["names"]:
        yield "<h2>How the names were interpreted</h2><details><summary>"
        yield f"{escaped(by_words(facts['names'])) or 'The catalogue knows all of them.'}</summary><table>"
        for taken in facts["names"]:
            cells = (taken["signal"], taken["name"], taken["concept"], f"{taken['sureness']}: {taken['why']}")
            yield f"<tr>{''.join(f'<td>{escaped(cell)}</td>' for cell in cells)}</tr>"
        yield "</table></details>"
    if notes := [*sum_of(facts["parts"]), *facts["notes"]]:
        yield "<h2>Worth knowing about the log</h2>"
        yield bullets(notes)


def finding_card(case: RuleFindings, series: dict[str, Any], asked: str = "") -> Iterator[str]:
    """One finding with its evidence. `asked` describes the request to the trainer and its answer."""
    finding = case.finding
    severity = finding["severity"]
    yield "<article>"
    yield (f'<h3><span class="{escape(severity)}">{escape(signed(severity))}</span> {escape(finding["title"])}</h3>')
    yield "<dl>"
    for label, found in groupby(details(case, asked), key=itemgetter(0)):
        style = ' class="do"' if label == "do" else ""
        texts = [escape(text) for _, text in found]
        if label == "more" and finding["more"].startswith("http"):
            texts = [f'<a href="{texts[0]}">{escape(finding["rule"])}</a>']
        yield f"<dt>{label}</dt><dd{style}>{'<br>'.join(texts)}</dd>"
    yield "</dl>"
    for name in finding["metrics"]:
        if name in series:
            drawn = ChartSeries.from_dict(series[name])
            yield svg(drawn, name, finding["onset_step"], drawn.onset(finding["onset_step"], finding["row"]))
    yield "</article>"


def svg(series: ChartSeries, name: str, onset_step: int, onset: float | None) -> str:
    """One series with its range, and a dashed line where the finding began."""
    limits = series.range
    if limits is None:
        return f'<p class="faint">{escape(name)}: no finite value</p>'
    low, high = limits
    frame = Frame(CHART_WIDTH, CHART_HEIGHT, MARGIN, (0.0, 1.0), limits)  # the onset label is above the top edge
    parts = [
        frame.axis(),
        f'<text x="{MARGIN - 6}" y="{frame.top + 4}" text-anchor="end">{short(high)}</text>',
        f'<text x="{MARGIN - 6}" y="{frame.floor}" text-anchor="end">{short(low)}</text>',
        f'<text x="{MARGIN}" y="{CHART_HEIGHT - 6}">step {series.steps[0]}</text>',
        f'<text x="{frame.right}" y="{CHART_HEIGHT - 6}" text-anchor="end">{series.steps[-1]}</text>',
    ]
    ranges = zip(series.low, series.high, strict=True)
    spots = (
        None if lowest is None or highest is None else Spot(series.place(at), lowest, highest, lowest / 2 + highest / 2)
        for at, (lowest, highest) in enumerate(ranges)
    )
    for stretch in stretches(spots):
        parts += frame.curve(stretch)
    if onset is not None:
        at = frame.x(onset)
        anchor = "end" if onset > 0.9 else "start"
        parts.append(f'<line class="onset" x1="{at}" y1="{frame.top - 4}" x2="{at}" y2="{frame.floor}"/>')
        parts.append(f'<text x="{at}" y="{frame.top - 7}" text-anchor="{anchor}">since {onset_step}</text>')
    label = f"{escape(name)} from {short(low)} to {short(high)}, steps {series.steps[0]} to {series.steps[-1]}"
    return (
        f'<figure><figcaption>{escape(name)}</figcaption><svg viewBox="0 0 {CHART_WIDTH} {CHART_HEIGHT}" role="img" '
        f'aria-label="{label}">{"".join(parts)}</svg></figure>'
    )


def verdict_words(verdict: str) -> str:
    """The verdict with its symbol, coloured."""
    style = "unsure" if verdict == "cannot judge" else verdict
    return f'<span class="{style}">{titled(verdict)}</span>'


def bullets(texts: Iterable[str]) -> str:
    """A list of texts."""
    return "<ul>" + "".join(f"<li>{escape(text)}</li>" for text in texts) + "</ul>"
