"""The results of a scan of rollouts: one line per pattern, then each finding with the passages that show it."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from rich import box
from rich.console import Console, ConsoleOptions, RenderableType, RenderResult
from rich.padding import Padding
from rich.table import Table
from rich.text import Text

from rlvitals.records import SEVERITIES
from rlvitals.render.check import RuleFindings, cases, cited_text, details, details_table, remarks_counted, verdict_line
from rlvitals.render.numbers import number
from rlvitals.render.screen import FactsView, two_columns
from rlvitals.signs import STYLES
from rlvitals.terminal import plural, visible

SHOWN_HITS = 6
SURE = 3.0
"""From this number of standard deviations on, a trend is shown, and a gain is not marked as chance."""


class ScanView(FactsView):
    """The results of one scan."""

    def __init__(self, facts: dict[str, Any], *, verbose: bool = False) -> None:
        super().__init__(facts)
        self._verbose = verbose

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        facts = self._facts
        yield verdict_line({"verdict": facts["verdict"], "reason": _reason(facts)}, ascii_only=options.ascii_only)
        about = f"{facts['source']}\n{number(facts['rollouts'])} rollouts of {number(facts['steps'])} steps were read"
        yield Padding(Text(about, style="dim"), (0, 0, 0, 2))
        seen = [row for row in facts["patterns"] if row["hits"] or self._verbose]
        if seen:
            yield ""
            yield _table(seen)
        absent = [row["pattern"] for row in facts["patterns"] if not row["hits"]]
        if absent and not self._verbose:
            yield Padding(Text(f"not found: {', '.join(absent)}", style="dim"), (0, 0, 0, 2))
        findings = sorted(facts["findings"], key=lambda found: (-SEVERITIES.index(found["severity"]), -found["step"]))
        for case in cases(findings):
            if case.finding["severity"] != "info" or self._verbose:
                yield ""
                yield from _finding(case, facts["source"], ascii_only=options.ascii_only)
        remarks = [case for case in cases(findings) if case.finding["severity"] == "info"]
        if remarks and not self._verbose:
            yield Text(f"\n{remarks_counted(remarks)} (--verbose)", style="dim")
        for name, problem in facts["problems"].items():
            yield Text(f"the scanner {name} failed and was disabled: {problem}", style="yellow")


def _reason(facts: dict[str, Any]) -> str:
    grave = {found["rule"] for found in facts["findings"] if found["severity"] != "info"}
    if not facts["rollouts"]:
        return "there are no rollouts to read"
    if not grave:
        return "no pattern in the texts to act on"
    return f"{plural(len(grave), 'pattern')} in the texts: {', '.join(sorted(grave))}"


def _table(rows: list[dict[str, Any]]) -> RenderableType:
    table = Table(box=box.SIMPLE_HEAD, pad_edge=False)
    table.add_column("pattern")
    for title in ("rollouts", "recently", "at the start", "their reward", "others'"):
        table.add_column(title, justify="right", no_wrap=True)
    table.add_column("same prompt", justify="right")
    table.add_column("trend")
    gravity = (None, *SEVERITIES)
    for row in sorted(rows, key=lambda row: (-gravity.index(row["severity"]), -row["share"])):
        grows = "rising" if row["growth_z"] >= SURE else "falling" if row["growth_z"] <= -SURE else ""
        gain = "" if row["gain"] is None else f"{row['gain']:+.3g}"
        if gain and abs(row["gain_z"]) < SURE:
            gain += " (chance)"
        table.add_row(
            Text(visible(row["pattern"]), style=STYLES[row["severity"] or "ok"]), number(row["hits"]),
            f"{row['share']:.1%}", f"{row['start_share']:.1%}", _reward(row["reward_of_hits"]),
            _reward(row["reward_of_others"]), gain, grows,
        )  # fmt: skip
    return Padding(table, (0, 0, 0, 2))


def _reward(value: float | None) -> str:
    return "-" if value is None else f"{value:.3g}"


def _finding(case: RuleFindings, source: str, *, ascii_only: bool) -> Iterator[RenderableType]:
    finding = case.finding
    yield Text.assemble((finding["severity"], STYLES[finding["severity"]]), "  ", (finding["title"], "bold"))
    short = f"{finding['kind']} (rule {finding['rule']})"
    facts = details_table(
        (label, short if label == "kind" else text)
        for label, text in details(case, ascii_only=ascii_only)
        if label != "evidence"  # the table of patterns has these numbers
    )
    if finding["cited"]:
        first = finding["cited"][0]
        command = f"rlvitals rollouts {source} --step {first['step']} --group {first['group']} --full"
        facts.add_row("read", Text(command, style="cyan"))
    yield Padding(facts, (0, 0, 0, 2))


class RubricView(FactsView):
    """A model's answers to a rubric: hits, agreement with the scanners, and cost."""

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        facts = self._facts
        yield Text.assemble((f"\nRubric {facts['name']}", "bold"), f"  {facts['question']}")
        table = two_columns("dim")
        table.add_row("model", Text(facts["model"]))
        table.add_row("hits", Text(f"{len(facts['hits'])} of {facts['judged']} rollouts that were judged"))
        share = facts["share"]
        if share["share"] is not None:
            kappa = "" if facts["kappa"] is None else f", kappa {facts['kappa']:.2f}"
            agrees = f"{share['share']:.0%} ({share['low']:.0%} to {share['high']:.0%}){kappa}"
            parts = (
                f"both {facts['both']}, the model alone {facts['only_model']}, the scanners alone "
                f"{facts['only_scanners']}, neither {facts['neither']}"
            )
            table.add_row("agrees", Text(f"with the scanners of exploits in {agrees}: {parts}"))
        cost = f"{number(facts['prompt_tokens'])} tokens read, {number(facts['completion_tokens'])} written"
        if facts["dollars"] is not None:
            cost += f", ${facts['dollars']:.4f}"
        if facts["unaccounted"]:
            cost += f"; {facts['unaccounted']} answers came without a count"
        table.add_row("cost", Text(cost))
        if facts["failures"]:
            table.add_row("no answer", Text(f"{len(facts['failures'])} times, first: {facts['failures'][0]}"))
        for place, hit in enumerate(facts["hits"][:SHOWN_HITS]):
            why = f" ({hit['why']})" if hit["why"] else ""
            citation = cited_text(hit, ascii_only=options.ascii_only) + why
            table.add_row("" if place else "seen in", Text(citation))
        yield Padding(table, (0, 0, 0, 2))
