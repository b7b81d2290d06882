"""`rlvitals rules [NAME ...]`: what the doctor goes by."""

from __future__ import annotations

import argparse
import re
from typing import Any

from rlvitals.cli.output import add_json_flag, print_json, show
from rlvitals.errors import RuleError, did_you_mean
from rlvitals.health import rulebook
from rlvitals.health.entries import Rule
from rlvitals.health.pages import gravest, rule_lines
from rlvitals.health.wording import of_this_run
from rlvitals.records import KINDS
from rlvitals.render.tables import render_markdown, render_rules


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("names", nargs="*", metavar="NAME", help="rules or kinds of trouble, told in full")
    parser.add_argument("--rules", metavar="PRESET|FILE", help="with these rules on top of the shipped ones")
    add_json_flag(parser)


def run(arguments: argparse.Namespace) -> int:
    book = rulebook.load(arguments.rules) if arguments.rules else rulebook.shipped()
    tell(arguments.names, book, as_json=arguments.json)
    return 0


def tell(names: list[str], book: rulebook.Rulebook, *, as_json: bool) -> None:
    """Print the rules of these names and kinds in full, or a line for every rule."""
    chosen = [rule for name in names for rule in named(name, book)] or list(book.rules.values())
    if as_json:
        print_json([_facts(rule, book) for rule in chosen])
    elif names:
        show(render_markdown(_spoken("\n".join(line for rule in chosen for line in rule_lines(rule, book)))))
    else:
        show(render_rules([{**_facts(rule, book), "says": _spoken(rule.words.title)} for rule in chosen]))


def _spoken(template: str) -> str:
    """A sentence with its numbers left open.

    >>> _spoken("{share:.0%} of the tool calls fail")
    '(share) of the tool calls fail'
    """
    return re.sub(r"\{(\w+)[^{}]*\}", r"(\1)", template)


def is_known(name: str) -> bool:
    """Whether it is a shipped rule or a kind."""
    return name in KINDS or name in rulebook.shipped().rules


def named(name: str, book: rulebook.Rulebook) -> list[Rule]:
    """The rule of this name, or the rules that find this kind of trouble. Raises RuleError where there are none."""
    if name in book.rules:
        return [book.rules[name]]
    if name in KINDS:
        return [rule for rule in book.rules.values() if rule.kind == name]
    known = [*book.rules, *KINDS]
    raise RuleError(f"there is no rule and no kind {name!r}.{did_you_mean(name, known)} 'rlvitals rules' lists them")


def _facts(rule: Rule, book: rulebook.Rulebook) -> dict[str, Any]:
    return {
        "rule": rule.rule,
        "kind": rule.kind,
        "severity": gravest(rule),
        "says": rule.words.title,
        "advice": [of_this_run(text, {}) for text in rule.words.advice],
        "numbers": dict(rule.numbers),
        "told": "\n".join(rule_lines(rule, book)),
    }
