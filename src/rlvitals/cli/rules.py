"""`rlvitals rules [NAME ...]`: lists all rules, or shows the named ones in full."""

from __future__ import annotations

import argparse
import re

from rlvitals.cli.output import add_json_flag, print_json, show
from rlvitals.documentation import rule_address
from rlvitals.health import rulebook
from rlvitals.health.pages import example_lines, rule_facts, rule_lines, rules_named
from rlvitals.render.screen import standard_output
from rlvitals.render.tables import render_markdown, render_rules
from rlvitals.terminal import say


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("names", nargs="*", metavar="NAME", help="rules or kinds of trouble to show in full")
    parser.add_argument("--rules", metavar="PRESET|FILE", help="also list these rules")
    add_json_flag(parser)


def run(arguments: argparse.Namespace) -> int:
    book = rulebook.load(arguments.rules or rulebook.DEFAULT)
    print_rules(arguments.names, book, as_json=arguments.json)
    return 0


def print_rules(names: list[str], book: rulebook.Rulebook, *, as_json: bool) -> None:
    """Print the rules of these names and kinds in full, or one line for every rule."""
    chosen = [rule for name in names for rule in rules_named(name, book)] or list(book.rules.values())
    if as_json:
        print_json([rule_facts(rule, book) for rule in chosen])
    elif names:
        is_drawn = not standard_output().options.ascii_only  # charts use braille characters
        lines = []
        for rule in chosen:
            lines += [_with_names("\n".join(rule_lines(rule, book))), *example_lines(rule, is_drawn=is_drawn)]
        show(render_markdown("\n".join(lines)))
        for page in filter(None, (rule_address(rule.rule) for rule in chosen)):
            say(page)
    else:
        show(render_rules([{**rule_facts(rule, book), "says": _with_names(rule.words.title)} for rule in chosen]))


def _with_names(template: str) -> str:
    """A sentence with the names of its numbers in place of the values.

    >>> _with_names("{share:.0%} of the tool calls fail")
    'SHARE of the tool calls fail'
    """
    return re.sub(r"\{(\w+)[^{}]*\}", lambda slot: slot[1].upper(), template)
