"""A gate's report: a table for the terminal, Markdown for a pull request, JUnit XML for CI. All three are made from
the facts of `views.gate.GateReport.to_dict`.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any
from xml.etree import ElementTree

from rich.console import Group, RenderableType
from rich.padding import Padding
from rich.table import Table
from rich.text import Text

from rlvitals.render.numbers import number, setting
from rlvitals.render.report_markdown import code, code_cell, plain
from rlvitals.render.screen import heading
from rlvitals.terminal import sentence, visible

STATE_STYLES = {"pass": "green", "fail": "bold red"}
HEADERS = ("measure", "candidate", "baselines", "change", "fails from", "found from", "")
MARKS = {"pass": "✔", "fail": "✖"}
MOST_SETTINGS = 20
EXPLAINED = (
    "fails from: how much worse the candidate may be before the measure fails. found from: a change this much for the "
    "worse fails in 9 of 10 cases."
)


def render_gate(facts: dict[str, Any]) -> RenderableType:
    """The report on a terminal."""
    return Group(*_parts(facts))


def _parts(facts: dict[str, Any]) -> Iterator[RenderableType]:
    state = facts["state"]
    yield Text.assemble((f"{MARKS[state]} {_word(state)}", STATE_STYLES[state]), f"  {facts['candidate']['path']}")
    yield Padding(Text(facts["reason"]), (0, 0, 0, 2))
    if facts["tests"]:
        yield ""
        yield _table(facts)
        yield Text(f"{EXPLAINED} The whole gate fails a harmless change in at most {facts['alpha']:.0%} of cases.",
                   style="dim")  # fmt: skip
    for title, entries in (("Checks", facts["checks"]), ("Limits", facts["rules"])):
        if entries:
            yield heading(title)
            for one in entries:
                yield Text.assemble(
                    ("  " + MARKS[one["state"]], STATE_STYLES[one["state"]]), f" {one['title']}: {one['text']}"
                )
    if facts["settings"]:
        yield heading("Settings that differ from the first baseline's")
        for key, (own, other) in list(facts["settings"].items())[:MOST_SETTINGS]:
            yield Text(f"  {key}: {setting(own)} (baseline: {setting(other)})")
    remarks = [*facts["notes"], *_missing(facts)]
    if remarks:
        yield heading("Notes")
        for remark in remarks:
            yield Text(f"  {remark}", style="dim")


def _table(facts: dict[str, Any]) -> Table:
    table = Table(box=None, padding=(0, 2, 0, 0), header_style="bold")
    for place, header in enumerate(HEADERS):
        table.add_column(header, justify="left" if place in (0, len(HEADERS) - 1) else "right", overflow="fold")
    for one in facts["tests"]:
        state = one["state"]
        table.add_row(*(Text(cell) for cell in _cells(one)), Text(f"{MARKS[state]} {state}", style=STATE_STYLES[state]))
    return table


def _cells(one: Mapping[str, Any]) -> tuple[str, str, str, str, str, str]:
    lowest, highest = min(one["baselines"]), max(one["baselines"])
    spread = f" ({number(lowest)} to {number(highest)})" if len(one["baselines"]) > 1 else ""
    return (
        one["title"],
        number(one["candidate"]),
        f"{number(one['mean'])}{spread}",
        _amount(one["change"], one, signed=True),
        _amount(one["limit"], one),
        _amount(one["detectable"], one),
    )


def _amount(value: float, one: Mapping[str, Any], *, signed: bool = False) -> str:
    """A difference: a share in per cent (from 10 on as a multiple, `12x`), or an amount in the measure's unit."""
    if not one["is_share"]:
        return f"{value:+.1f}" if signed else f"{value:.1f}"
    if abs(value) >= 10:
        return f"{value:+.0f}x" if signed else f"{value:.0f}x"
    return f"{100 * value:+.1f} %" if signed else f"{100 * value:.1f} %"


def _word(state: str) -> str:
    return "Gate passed" if state == "pass" else "Gate failed"


def _missing(facts: Mapping[str, Any]) -> list[str]:
    return [f"not measured: {name}: {reason}" for name, reason in facts["missing"].items()]


# Markdown


def gate_markdown(facts: dict[str, Any]) -> str:
    """The report as Markdown, as GitHub's step summaries and comments show it."""
    return "\n".join(_markdown(facts)) + "\n"


def _markdown(facts: dict[str, Any]) -> Iterator[str]:
    state = facts["state"]
    yield f"## {MARKS[state]} {_word(state)}: {plain(facts['candidate']['name'])}\n"
    yield f"{plain(sentence(facts['reason']))}\n"
    if facts["tests"]:
        yield "| | " + " | ".join(HEADERS[:-1]) + " |"
        yield "|---|---|" + "---:|" * (len(HEADERS) - 2)
        for one in facts["tests"]:
            title, *amounts = _cells(one)
            yield f"| {MARKS[one['state']]} | {plain(title)} | " + " | ".join(amounts) + " |"
        yield f"\n{EXPLAINED} The whole gate fails a harmless change in at most {facts['alpha']:.0%} of cases."
    for title, entries in (("Checks", facts["checks"]), ("Limits", facts["rules"])):
        if entries:
            yield f"\n### {title}\n"
            for one in entries:
                name = code(visible(one["title"])) if title == "Limits" else plain(one["title"])
                yield f"- {MARKS[one['state']]} {name}: {plain(one['text'])}"
    if facts["settings"]:
        yield "\n### Settings that differ from the first baseline's\n"
        yield "| setting | candidate | baseline |\n|---|---|---|"
        for key, (own, other) in list(facts["settings"].items())[:MOST_SETTINGS]:
            yield f"| {code_cell(key)} | {code_cell(setting(own))} | {code_cell(setting(other))} |"
    yield "\n<details><summary>Runs and notes</summary>\n"
    yield f"- candidate: {code(visible(facts['candidate']['path']))}, compared up to step {facts['horizon']:,}"
    for view in facts["baselines"]:
        yield f"- baseline: {code(visible(view['path']))}"
    for remark in (*facts["notes"], *_missing(facts)):
        yield f"- {plain(remark)}"
    yield "\n</details>"


def gate_error_markdown(error: str) -> str:
    """The Markdown for runs that could not be compared."""
    return f"## ✖ The runs could not be compared\n\n{plain(error)}\n"


# JUnit


def gate_junit(facts: dict[str, Any]) -> bytes:
    """A JUnit test case for each measure, check and limit, readable by Jenkins, GitLab and GitHub's reporters."""
    cases: list[tuple[str, str, str, str]] = []
    for one in facts["tests"]:
        _, own, mean, change, limit, found = _cells(one)
        message = (
            f"candidate {own}, baselines {mean}, change {change}; fails from {limit} worse "
            f"(p {one['p']:.2g}, corrected {one['adjusted']:.2g}, compared with {one['alpha']:.2g}); "
            f"found from {found}"
        )
        cases.append((f"measure.{one['group']}", one["title"], one["state"], message))
    cases += [("check", one["title"], one["state"], one["text"]) for one in facts["checks"]]
    cases += [("limit", one["title"], one["state"], one["text"]) for one in facts["rules"]]
    cases += [("measure", name, "skipped", reason) for name, reason in facts["missing"].items()]
    return _junit(cases)


def gate_error_junit(error: str) -> bytes:
    """A single test case with the reason why the runs could not be compared."""
    return _junit([("gate", "the runs can be compared", "error", error)])


_ELEMENTS = {"fail": "failure", "error": "error", "skipped": "skipped"}


def _junit(cases: list[tuple[str, str, str, str]]) -> bytes:
    counts = {
        "tests": len(cases),
        "failures": sum(state == "fail" for _, _, state, _ in cases),
        "errors": sum(state == "error" for _, _, state, _ in cases),
        "skipped": sum(state == "skipped" for _, _, state, _ in cases),
    }
    numbers = {name: str(count) for name, count in counts.items()}
    root = ElementTree.Element("testsuites", {"name": "rlvitals gate", "time": "0", **numbers})
    suite = ElementTree.SubElement(root, "testsuite", {"name": "rlvitals gate", "time": "0", **numbers})
    for kind, name, state, message in cases:
        place = {"classname": f"rlvitals.gate.{kind}", "name": visible(name), "time": "0"}
        case = ElementTree.SubElement(suite, "testcase", place)
        if state in _ELEMENTS:
            found = ElementTree.SubElement(case, _ELEMENTS[state], {"message": visible(message)})
            if state != "skipped":
                found.set("type", "worse" if state == "fail" else "not comparable")
                found.text = visible(message)
        else:
            ElementTree.SubElement(case, "system-out").text = visible(message)
    ElementTree.indent(root)
    data: bytes = ElementTree.tostring(root, encoding="utf-8", xml_declaration=True)
    return data + b"\n"
