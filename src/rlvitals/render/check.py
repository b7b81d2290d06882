"""A report on a terminal: the verdict in one line, then the findings, worst first, then remarks and notes."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sized
from dataclasses import dataclass
from typing import Any

from rich.console import Console, ConsoleOptions, RenderableType, RenderResult
from rich.padding import Padding
from rich.table import Table
from rich.text import Text

from rlvitals.records import alarm_of
from rlvitals.render.charts import ChartSeries, chart, short
from rlvitals.render.evidence import evidence
from rlvitals.render.numbers import number, setting
from rlvitals.render.screen import FactsView, heading, two_columns
from rlvitals.signs import PLAIN_SYMBOLS, STYLES, SYMBOLS
from rlvitals.terminal import plural, visible

WHOLE_FINDINGS = 4
"""Findings printed with evidence, advice and chart; each of the others gets one line."""
SHOWN_MISSING = 8
CHART_WIDTH = 68
MOST_EVENTS = 8
"""Longest list of reports and recoveries of one alarm; a longer one is shortened."""
MOST_SURE = 0.99
"""Highest confidence shown: of findings with confidence 0.95, one in ten is wrong (docs/design/calibration.md)."""
QUOTED = 100
"""Length of a quotation from a rollout, in characters."""

_MOST_SEVERE_FIRST = ("act", "watch", "cannot judge", "healthy")


@dataclass(frozen=True, slots=True)
class RuleFindings:
    """The worst finding of one alarm, and its other findings."""

    finding: dict[str, Any]
    others: tuple[dict[str, Any], ...]

    @property
    def alarm(self) -> str:
        """As `Finding.alarm`."""
        return alarm_of(self.finding["rule"], self.finding["slice"])


def cases(findings: Iterable[dict[str, Any]]) -> list[RuleFindings]:
    """One case for each alarm (a rule, or a rule about one slice), ordered by its worst finding. `findings` must be
    sorted, worst first.
    """
    by_alarm: dict[str, list[dict[str, Any]]] = {}
    for finding in findings:
        by_alarm.setdefault(alarm_of(finding["rule"], finding["slice"]), []).append(finding)
    return [RuleFindings(found[0], tuple(found[1:])) for found in by_alarm.values()]


class ReportView(FactsView):
    """One report. Symbols, charts and widths depend on the console it is printed on."""

    def __init__(self, facts: dict[str, Any], *, verbose: bool = False, names: bool = False) -> None:
        super().__init__(facts)
        self._verbose = verbose
        self._names = names or verbose

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        facts = self._facts
        yield verdict_line(facts, ascii_only=options.ascii_only)
        yield Padding(Text(f"{facts['source']}\n{' | '.join(judged_words(facts))}", style="dim"), (0, 0, 0, 2))
        found = cases(facts["findings"])
        whole = len(found) if self._verbose else WHOLE_FINDINGS
        for case in found[:whole]:
            yield ""
            yield from _case(case, facts["series"], options)
        if found[whole:]:
            yield heading("Other findings (--verbose prints them in full)")
            lines = two_columns()
            for case in found[whole:]:
                since = Text(f"  since step {case.finding['onset_step']}", style="dim")
                lines.add_row(
                    _severity(case.finding["severity"], options.ascii_only), Text(case.finding["title"]) + since
                )
            yield lines
        if facts["hindsight"]:
            yield from hindsight_lines(facts["hindsight"])
        yield from self._rest()

    def _rest(self) -> Iterator[RenderableType]:
        facts = self._facts
        remarks = list(normal(facts["normal"]))
        if remarks and self._verbose:
            yield heading("Noticed, and no reason to worry")
            yield from _bullets(remarks)
        elif remarks:
            yield Text(f"\n{remarks_counted(remarks)} (--verbose lists them)", style="dim")
        missing = facts["cannot_judge"]
        if missing:
            yield heading("Could not be judged")
            # A metric that the run's framework has no name for rarely matters for the run.
            near = [item for item in missing if item["is_in_framework"] or not facts["framework"]]
            shown = missing if self._verbose else near[:SHOWN_MISSING]
            yield from _bullets(_missing(item) for item in shown)
            if len(shown) < len(missing):
                left = f"{len(missing) - len(shown)} more metrics" if shown else f"{len(missing)} metrics are missing"
                yield Text(f"  {'and ' if shown else ''}{left}; --verbose lists them", style="dim")
            yield Text("  logged under another name? --map NAME=CONCEPT", style="dim")
        if self._names and facts["names"]:
            yield heading("How the names were interpreted")
            yield _taken(facts["names"])
        elif by_words(facts["names"]):
            yield heading("Names understood by their words (--names lists all, --map NAME=CONCEPT settles one)")
            yield from _bullets([by_words(facts["names"])])
        if notes := [*sum_of(facts["parts"]), *facts["notes"]]:
            yield heading("Worth knowing about the log")
            yield from _bullets(notes)


HINDSIGHT = "If it had been stopped"
"""The heading above the cost of continuing, in every report and on every screen."""


def hindsight_lines(facts: dict[str, Any]) -> Iterator[RenderableType]:
    """The cost of continuing, the checkpoint to revert to, and the settings compared with those of the nearest
    healthy run.
    """
    yield heading(HINDSIGHT)
    yield from _bullets(facts["told"])
    rows, note = nearest_rows(facts)
    if not rows:
        return
    table = Table(box=None, padding=(0, 2), pad_edge=False, header_style="dim")
    for title in rows[0]:
        table.add_column(Text(title), overflow="fold")
    for row in rows[1:]:
        table.add_row(*map(Text, row))
    yield Padding(table, (0, 0, 0, 4))
    if note:
        yield Text(f"    {note}", style="dim")


def nearest_rows(facts: dict[str, Any]) -> tuple[list[list[str]], str]:
    """A table of the settings that differ from those of the nearest healthy run, header row first, and a note on how
    many are left out.
    """
    nearest = facts["nearest"]
    if nearest is None or not nearest["differences"]:
        return [], ""
    rows = [[key, *map(setting, values)] for key, values in nearest["differences"].items()]
    left_out = nearest["left_out"]
    return [
        ["setting", "this run", nearest["name"]],
        *rows,
    ], f"and {number(left_out)} more settings" if left_out else ""


class SlicesView(FactsView):
    """The verdict on a run, and a line for each of its slices, the most severe first."""

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        facts = self._facts
        yield verdict_line(facts["whole"], ascii_only=options.ascii_only)
        yield Padding(Text(f"{facts['source']}\n{' | '.join(judged_words(facts['whole']))}", style="dim"), (0, 0, 0, 2))
        yield heading(f"By {facts['by']}: findings about the slice's own metrics")
        table = Table(box=None, padding=(0, 2), pad_edge=False, header_style="dim")
        table.add_column("", no_wrap=True)
        table.add_column("slice", overflow="fold")
        table.add_column("last score", justify="right", no_wrap=True)
        table.add_column("worst finding", overflow="fold")
        for one in most_severe_first(facts["slices"]):
            found = next(iter(one["findings"]), None)
            table.add_row(
                _badge(one["verdict"], options.ascii_only),
                Text(one["slice"]),
                Text("-" if one["last_score"] is None else number(one["last_score"])),
                Text(f"{found['title']}, step {found['step']}" if found else ""),
            )
        yield Padding(table, (0, 0, 0, 2))
        if facts["left_out"]:
            yield Text(f"  and {facts['left_out']} more that were not judged", style="dim")
        yield Text("  --slice KEY=VALUE tells all of one", style="dim")


class FolderView(FactsView):
    """Many reports: one line each, the most severe first."""

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        reports = most_severe_first(self._facts["reports"])
        whole = {"verdict": self._facts["verdict"], "reason": counted(reports)}
        yield verdict_line(whole, ascii_only=options.ascii_only)
        yield Text(f"  {self._facts['source']}\n", style="dim")
        table = Table.grid(padding=(0, 2))
        table.add_column(no_wrap=True)
        table.add_column(overflow="fold", ratio=2)
        table.add_column(overflow="fold", ratio=3)
        for report in reports:
            table.add_row(
                _badge(report["verdict"], options.ascii_only),
                Text(below(report["source"], self._facts["source"])),
                Text(report["reason"]),
            )
        yield table
        passed = self._facts["passed_over"]
        if passed:
            names = [below(path, self._facts["source"]) for path in passed]
            listed = ", ".join(names[:6]) + (f" and {len(names) - 6} more" if len(names) > 6 else "")
            yield Text(f"\nno logs: {listed}", style="dim")


def most_severe_first(reports: Iterable[dict[str, Any]]) -> list[dict[str, Any]]:
    """Reports sorted by verdict, the most severe first."""
    return sorted(reports, key=lambda report: _MOST_SEVERE_FIRST.index(report["verdict"]))


def counted(reports: list[dict[str, Any]]) -> str:
    """The number of reports with each verdict."""
    verdicts = [report["verdict"] for report in reports]
    return ", ".join(f"{verdicts.count(verdict)} {verdict}" for verdict in _MOST_SEVERE_FIRST if verdict in verdicts)


def verdict_line(facts: dict[str, Any], *, ascii_only: bool) -> Text:
    """The verdict: symbol, word, reason."""
    return Text.assemble(_badge(facts["verdict"], ascii_only), f"  {facts['reason']}")


def announcement(finding: dict[str, Any], *, ascii_only: bool) -> RenderableType:
    """A new finding of a run that is being followed."""
    grid = two_columns()
    grid.add_row(_severity(finding["severity"], ascii_only), Text(finding["title"], style="bold"))
    grid.add_row("", Text(f"{when(finding)}; {finding['kind']}", style="dim"))
    if finding["advice"]:
        grid.add_row("", Text(f"do: {joined(finding['advice'])}"))
    return grid


def when(finding: dict[str, Any], others: Iterable[dict[str, Any]] = ()) -> str:
    """When a finding started, was reported and recovered, ordered by step. `others` are the other reports of the same
    alarm.
    """
    reports = sorted((finding, *others), key=lambda report: report["step"])
    reported = [(report["step"], report["severity"]) for report in reports]
    ended = sorted({report["recovered_step"] for report in reports if report.get("recovered_step") is not None})
    events: list[str] = []
    severity = ""
    for step, word in sorted([*reported, *((step, "recovered") for step in ended)], key=lambda event: event[0]):
        events.append(f"{'again' if word == severity else word} at {step}")
        severity = severity if word == "recovered" else word
    if reports[-1].get("recovered_step") is None:
        events.append("not recovered")
    if len(events) > MOST_EVENTS:
        events[MOST_EVENTS - 2 : -1] = ["…"]
    return f"started at step {finding['onset_step']}, {', '.join(events)}"


def asked_line(asked: Mapping[str, Any]) -> str:
    """A request to the trainer, and its answer."""
    text = f" ({asked['answer_text']})" if asked["answer_text"] else ""
    what = asked["action"].replace("_", " ")
    return f"step {asked['step']:,}: {what}, {asked['reason']}: {asked['answer'] or 'not answered'}{text}"


def kind(finding: dict[str, Any]) -> str:
    """The kind of a finding, with its slice, rule, cause and confidence."""
    rule = "" if finding["rule"] == finding["kind"] else f" (rule {finding['rule']})"
    of = f" of {finding['slice']}" if finding["slice"] else ""
    cause = f", cause: {finding['cause'].replace('_', ' ')}" if finding["cause"] else ""
    return f"{finding['kind']}{of}{rule}{cause}, {min(finding['confidence'], MOST_SURE):.0%} sure"


def cited_text(place: dict[str, Any], *, ascii_only: bool = False) -> str:
    """A place in a rollout: its location, the rollout's reward and the quoted text."""
    quote = visible(place["quote"])
    quote = quote if len(quote) <= QUOTED else quote[: QUOTED - 1] + ("..." if ascii_only else "…")
    where = f"step {place['step']} group {place['group']} rollout {place['rollout']}"
    if place["turn"] > 1 or place["part"] != "text":
        where += f" turn {place['turn']}{'' if place['part'] == 'text' else ' ' + visible(place['part'])}"
    reward = "" if place["reward"] is None else f" (reward {short(place['reward'])})"
    return f"{where}{reward}: {quote}"


def details(case: RuleFindings, asked: str = "", *, ascii_only: bool = False) -> Iterator[tuple[str, str]]:
    """All that is shown below a finding's title, each text after its label. `asked` describes the request to the
    trainer and its answer.
    """
    finding = case.finding
    found = (
        ("when", when(finding, case.others)),
        ("kind", kind(finding)),
        ("evidence", evidence(finding)),
        ("do", joined(finding["advice"])),
        ("causes", joined(finding["causes"])),
        ("asked", asked),
        ("more", finding.get("more", "")),
        *(("seen in", cited_text(place, ascii_only=ascii_only)) for place in finding.get("cited", ())),
    )
    return ((label, text) for label, text in found if text)


def details_table(found: Iterable[tuple[str, str]]) -> Table:
    """Details with their labels at the left; a label that repeats is shown once."""
    table = two_columns("dim")
    before = ""
    for label, text in found:
        table.add_row("" if label == before else label, Text(text, style="bold" if label == "do" else ""))
        before = label
    return table


def _case(case: RuleFindings, series: dict[str, Any], options: ConsoleOptions) -> Iterator[RenderableType]:
    finding = case.finding
    head = two_columns()
    head.add_row(_severity(finding["severity"], options.ascii_only), Text(finding["title"], style="bold"))
    yield head
    yield Padding(details_table(details(case, ascii_only=options.ascii_only)), (0, 0, 0, 2))
    for name in finding["metrics"]:
        if name in series:
            drawn = ChartSeries.from_dict(series[name])
            lines = chart(
                drawn,
                drawn.onset(finding["onset_step"], finding["row"]),
                f"since {finding['onset_step']}",
                width=min(options.max_width - 4, CHART_WIDTH),
                ascii_only=options.ascii_only,
            )
            for line in lines:
                scale, wall, curve = line.rpartition("|" if options.ascii_only else "│")
                yield Text.assemble((f"    {scale}{wall}", "dim"), (curve, "cyan"), no_wrap=True, overflow="crop")


def judged_words(facts: dict[str, Any]) -> list[str]:
    """What was judged: rows, steps, format, algorithm and framework, as far as they are known."""
    parts = [plural(facts["rows"], "row")]
    if facts["first_step"] is not None:
        parts.append(f"steps {facts['first_step']} to {facts['last_step']}")
    parts.append("a recorded run" if facts["format"] == "run" else f"{facts['format']} log")
    known = [f"algorithm {facts['algorithm']}"] if facts["algorithm"] else []
    known += [f"names of {facts['framework']}"] if facts["framework"] else []
    return parts + known


def remarks_counted(remarks: Sized) -> str:
    """The line shown in place of remarks that are hidden."""
    return f"{plural(len(remarks), 'remark')}, no reason to worry"


def normal(findings: list[dict[str, Any]]) -> Iterator[str]:
    """Each remark once, with the step of its first finding in the list."""
    seen = set()
    for finding in findings:
        alarm = alarm_of(finding["rule"], finding["slice"])
        if alarm not in seen:
            seen.add(alarm)
            yield f"{finding['title']} (step {finding['step']})"


def _missing(item: dict[str, Any]) -> str:
    return f"{unseen(item['kinds'])}: {item['title']} is not logged ({' or '.join(item['names'])})"


def unseen(kinds: Iterable[str]) -> str:
    """The kinds of failure that cannot be detected, in words."""
    return ", ".join(kind.replace("_", " ") for kind in kinds)


def joined(texts: Iterable[str]) -> str:
    """Several phrases joined by commas, or by semicolons if a phrase contains a comma or semicolon."""
    phrases = [text.rstrip(".;, ") for text in texts]
    return ("; " if any("," in phrase or ";" in phrase for phrase in phrases) else ", ").join(phrases)


def by_words(names: Iterable[dict[str, Any]]) -> str:
    """The names whose meaning was inferred, not given by the catalogue or the user, on one line."""
    parts = (
        f"{taken['signal'].replace('_', ' ')} is {taken['name']}{_HOW_SURE[taken['sureness']]}"
        for taken in names
        if taken["sureness"] in _HOW_SURE
    )
    return ", ".join(parts)


_HOW_SURE = {"high": "", "fair": " (probably)", "guess": " (a guess)"}


def sum_of(parts: dict[str, float | None]) -> Iterator[str]:
    """The reward as the weighted sum of its parts, if the weights are known."""
    terms = [name if weight == 1 else f"{short(weight)} * {name}" for name, weight in parts.items() if weight]
    if terms:
        yield f"the reward adds up: {' + '.join(terms)}"


def _taken(names: Iterable[dict[str, Any]]) -> Table:
    table = Table.grid(padding=(0, 2))
    for _ in range(4):
        table.add_column(overflow="fold")
    for taken in names:
        sure = Text(f"{taken['sureness']}: {taken['why']}", style="dim")
        table.add_row(f"  {taken['signal']}", Text(taken["name"]), Text(taken["concept"], style="dim"), sure)
    return table


def _bullets(texts: Iterable[str]) -> Iterator[RenderableType]:
    for text in texts:
        grid = Table.grid(padding=(0, 1))
        grid.add_column(no_wrap=True)
        grid.add_column(overflow="fold")
        grid.add_row("  *", Text(text))
        yield grid


def _badge(verdict: str, ascii_only: bool) -> Text:
    return Text(f"{(PLAIN_SYMBOLS if ascii_only else SYMBOLS)[verdict]} {verdict.upper()}", style=STYLES[verdict])


def _severity(severity: str, ascii_only: bool) -> Text:
    symbol = (PLAIN_SYMBOLS if ascii_only else SYMBOLS)[severity]
    return Text(f"{symbol} {severity}", style=STYLES[severity])


def below(path: str, folder: str) -> str:
    """A path relative to its folder."""
    return path.removeprefix(folder).lstrip("/\\") or path
