"""Writes the docs pages of the rules, by family and preset: `python -m rlvitals.health.pages docs/rules [--check]`.

`index.md` there is written by hand. Every rule has a heading with its name, so a finding's `rule` is its anchor.
"""

from __future__ import annotations

import inspect
import sys
from collections.abc import Iterable
from functools import cache
from pathlib import Path
from typing import Any

from rlvitals.catalog.pages import publish
from rlvitals.codec import parse_json
from rlvitals.errors import RuleError, did_you_mean
from rlvitals.health import conditions
from rlvitals.health.binding import is_about_texts, is_about_tokens
from rlvitals.health.build import DATA, compiled
from rlvitals.health.entries import NO_SIGNALS, parameters
from rlvitals.health.rulebook import FindingTexts, Rule, Rulebook, from_data, load, presets
from rlvitals.health.rules import FUNCTIONS
from rlvitals.health.wording import of_this_run
from rlvitals.records import KINDS
from rlvitals.terminal import sentence
from rlvitals.yaml_reader import read_yaml

NOTE = "<!-- Generated from src/rlvitals/health/data by `make catalog`; edit the data, not this page. -->"
BY_HAND = "index.md"
EXAMPLES = DATA / "examples.json"
"""By rule: a finding of a run; most of the runs are generated. `benchmarks/rule_examples.py` writes the file."""

TITLES = {
    "optimisation": "Numerics and optimisation",
    "preference": "Preference optimisation: KTO, DPO and related algorithms",
    "reward": "Reward and learning signal",
    "policy": "Policy: KL, entropy, clipping, ratios, length, critic",
    "agent": "Agents and tools",
    "system": "The machine, and numbers that cannot be right",
    "tokens": "Logged numbers against recorded tokens",
    "engine": "Engine and trainer",
    "experts": "Mixtures of experts",
    "distillation": "On-policy distillation",
    "judging": "Judges and teachers",
    "texts": "Patterns in the texts of rollouts",
}
_FAMILIES = {"policy": "policy gradient", "preference": "preference", "other": "other"}


def pages() -> dict[str, str]:
    """File name -> page: one per family of rules, one per preset, one that lists the rules of each kind."""
    book = from_data(parse_json(compiled()))  # from the YAML files: the compiled file may be older
    found: dict[str, str] = {}
    homes: dict[str, str] = {}
    for path in sorted((DATA / "rules").glob("*.yaml")):
        names = [entry["rule"] for entry in read_yaml(path, RuleError)]
        title = TITLES.get(path.stem, path.stem.replace("_", " ").capitalize())
        found[f"{path.stem}.md"] = _page(title, _comment(path), [book.rules[name] for name in names], book)
        homes |= dict.fromkeys(names, f"{path.stem}.md")
    all_rules = dict(book.rules)
    for path in sorted((DATA / "presets").glob("*.yaml")):
        changed = book.changed_by(read_yaml(path, RuleError), path.name)
        own = [rule for name, rule in changed.rules.items() if name not in book.rules]
        about = _comment(path) + _switches(book, changed, homes)
        found[f"{path.stem}.md"] = _page(f"Preset {path.stem}", about, own, changed)
        homes |= {rule.rule: f"{path.stem}.md" for rule in own}
        all_rules |= {rule.rule: rule for rule in own}
    found["kinds.md"] = _kinds(all_rules.values(), homes)
    return found


def _comment(path: Path) -> list[str]:
    """The comment at the top of a data file, as paragraphs."""
    lines = []
    for line in path.read_text(encoding="utf-8").splitlines():
        if not line.startswith("#"):
            break
        lines.append(line.removeprefix("#").strip())
    paragraphs = "\n".join(lines).split("\n\n")
    return [text for paragraph in paragraphs for text in (" ".join(paragraph.split()), "")]


def _switches(book: Rulebook, changed: Rulebook, homes: dict[str, str]) -> list[str]:
    """The default rules that a preset switches off."""
    off = [name for name, rule in changed.rules.items() if name in book.rules and not rule.enabled]
    if not off:
        return []
    return [f"It switches off: {', '.join(f'[{name}]({homes[name]}#{name})' for name in off)}.", ""]


def _page(title: str, about: list[str], rules: list[Rule], book: Rulebook) -> str:
    lines = [f"# {title}", "", NOTE, "", *about]
    for rule in rules:
        lines += [*rule_lines(rule, book), *example_lines(rule)]
    return "\n".join(lines).rstrip() + "\n"


def rule_lines(rule: Rule, book: Rulebook) -> list[str]:
    """What a rule looks for, the signals it reads, its texts and its actions, as Markdown."""
    asks = f"{rule.hold[0]} of {rule.hold[1]}"
    if rule.hold_critical:
        asks += f", for a critical {rule.hold_critical[0]} of {rule.hold_critical[1]}"
    facts = [f"kind `{rule.kind}`", f"up to {highest_severity(rule)}", f"must hold at {asks} points"]
    if rule.warm_up:
        facts.append(f"from point {rule.warm_up}")
    if rule.families:
        facts.append(f"for {' and '.join(_FAMILIES[family] for family in rule.families)} training")
    if rule.algorithms:
        facts.append(f"for {', '.join(rule.algorithms)}")
    lines = [f"## {rule.rule}", "", " · ".join(facts), "", _what(rule), ""]
    otherwise = "the run as a whole"
    if is_about_tokens(rule):
        otherwise = "recorded tokens beside the logged numbers"
    elif is_about_texts(rule):
        otherwise = "the texts of recorded rollouts"
    lines += [f"Reads: {', '.join(_reads(rule, book)) or otherwise}.", ""]
    lines += _text_lines(rule.words)
    for name, words in rule.variants.items():
        lines += [f"Variant `{name}`:", "", *_text_lines(words)]
    if rule.numbers:
        lines += ["| number | default |", "|---|---|"]
        lines += [f"| `{name}` | {number:g} |" for name, number in rule.numbers.items()]
        lines.append("")
    asked = []
    if highest_severity(rule) != "info":
        asked.append(f"request of a warning: `{rule.action}`")
    if highest_severity(rule) == "critical":
        certain = " (one such finding is enough to stop)" if rule.certain else ""
        asked.append(f"request of a critical finding: `{rule.action_critical}`{certain}")
    asked.append(f"confidence: {rule.confidence:g}")
    lines += [sentence("; ".join(asked)), ""]
    if rule.sources:
        lines += [f"Sources: {'; '.join(rule.sources)}.", ""]
    return lines


@cache
def examples() -> dict[str, dict[str, Any]]:
    """By rule: a run that raised it, when, and the text of the finding. Rules that no run raised have no entry."""
    found: dict[str, dict[str, Any]] = parse_json(EXAMPLES.read_bytes())["examples"]
    return found


def example_lines(rule: Rule, *, is_drawn: bool = True) -> list[str]:
    """An example of the rule as `check` prints it, as Markdown, with or without the chart; empty without an example."""
    example = examples().get(rule.rule)
    if example is None:
        return []
    names = f" with the metric names of {example['framework']}" if example["framework"] else ""
    run = f"Example, {example['origin']} {example['algorithm'].upper()} run{names}, {example['length']}"
    when = f"{example['severity']} at step {example['step']}, started at step {example['onset_step']}"
    texts = [text for text in (example["title"], example["evidence"]) if text]
    drawn = ["", *example["chart"]] if example["chart"] and is_drawn else []
    if drawn and not example["evidence"].startswith(example["metric"]):
        drawn.insert(1, example["metric"])
    return [f"{run}: {when}.", "", "```text", *texts, *drawn, "```", ""]


def rule_facts(rule: Rule, book: Rulebook) -> dict[str, Any]:
    """The main facts of a rule as plain data; `told` holds its Markdown."""
    return {
        "rule": rule.rule,
        "kind": rule.kind,
        "severity": highest_severity(rule),
        "says": rule.words.title,
        "advice": [of_this_run(text, {}) for text in rule.words.advice],
        "numbers": dict(rule.numbers),
        "told": "\n".join(rule_lines(rule, book)),
    }


def book_of(name: str) -> Rulebook | None:
    """The rulebook that has this rule or kind: that of a run without presets, or that of a preset; None if none has
    it.
    """
    usual = load()
    if name in KINDS or name in usual.rules:
        return usual
    books = (load(preset) for preset in presets())
    return next((book for book in books if name in book.rules), None)


def rules_named(name: str, book: Rulebook) -> list[Rule]:
    """The rule of this name, or the rules of this kind. Raises RuleError where there are none."""
    if name in book.rules:
        return [book.rules[name]]
    if name in KINDS:
        return [rule for rule in book.rules.values() if rule.kind == name]
    known = [*book.rules, *KINDS]
    raise RuleError(f"there is no rule and no kind {name!r}.{did_you_mean(name, known)} 'rlvitals rules' lists them")


def highest_severity(rule: Rule) -> str:
    """The highest severity a rule can reach: its entry's, or the highest that its function calls."""
    if rule.when:
        return rule.severity
    named = FUNCTIONS[rule.function].__code__.co_names
    return "critical" if "critical" in named else "warning" if "warning" in named else "info"


def _what(rule: Rule) -> str:
    if rule.when:
        return f"Condition: `{rule.when}`."
    return " ".join((inspect.getdoc(FUNCTIONS[rule.function]) or "").split())


def _reads(rule: Rule, book: Rulebook) -> list[str]:
    """The signals, with the first concept each is read from."""
    concepts = {source.name: source.concepts for source in book.sources}
    if rule.when:
        asked = [(name, False) for name in dict.fromkeys(term.signal for term in conditions.parse(rule.when))]
    else:
        asked = [(rule.reads.get(name, name), less) for name, less in parameters(rule.function).signals]
    found = []
    for name, optional in asked:
        if name not in NO_SIGNALS:
            known = f" ({concepts[name][0]})" if concepts.get(name) else ""
            found.append(f"`{name}`{known}{' where logged' if optional else ''}")
    return found


def _text_lines(words: FindingTexts) -> list[str]:
    lines = [f"> {words.title}", ""] if words.title else []
    if words.causes:
        lines += [f"Likely causes: {of_this_run('; '.join(words.causes), {})}.", ""]
    if words.advice:
        lines += [f"What to do: {of_this_run('; '.join(words.advice), {})}.", ""]
    return lines


def _kinds(rules: Iterable[Rule], homes: dict[str, str]) -> str:
    by_kind: dict[str, list[str]] = {kind: [] for kind in KINDS}
    for rule in rules:
        by_kind[rule.kind].append(f"[{rule.rule}]({homes[rule.rule]}#{rule.rule})")
    lines = ["# From kinds to rules", "", NOTE, "", "Every finding names one of these kinds; the list is closed.", ""]
    lines += ["| kind | rules |", "|---|---|"]
    lines += [
        f"| `{kind}` | {', '.join(links) or 'see the variants of other rules'} |" for kind, links in by_kind.items()
    ]
    return "\n".join(lines) + "\n"


def main(arguments: list[str]) -> int:
    """Write the pages, or with --check only compare; returns the exit code."""
    return publish(pages(), arguments, BY_HAND)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
