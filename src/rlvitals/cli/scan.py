"""`rlvitals scan RUN|DUMPS [--scanner FILE] [--rules RULES] [--validation] [--verbose] [--json]`."""

from __future__ import annotations

import argparse

from rlvitals.cli.output import add_json_flag, print_json, show
from rlvitals.health import rulebook
from rlvitals.render.scan import ScanView
from rlvitals.scan import load_scanners
from rlvitals.terminal import warn
from rlvitals.views.places import open_rollouts
from rlvitals.views.texts import scan_facts, scan_rollouts

EXIT_CODES = {"healthy": 0, "watch": 1, "act": 2, "cannot judge": 3}
"""As `check`'s."""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("path", metavar="RUN", help="a run's directory, or a framework's dump of rollouts")
    parser.add_argument(
        "--scanner", action="append", default=[], metavar="FILE",
        help="scanners of your own: a YAML file with patterns, or a Python file with functions; may be given again",
    )  # fmt: skip
    parser.add_argument(
        "--rules", action="append", default=[], metavar="FILE", help="a rule file that changes or switches off rules"
    )
    parser.add_argument(
        "--validation", action="store_true", help="the rollouts of evaluations, which a dump keeps apart"
    )
    parser.add_argument("--limit", type=int, metavar="N", help="read at most about N rollouts, of steps spread evenly")
    parser.add_argument("--verbose", action="store_true", help="every pattern and remark")
    add_json_flag(parser)


def run(arguments: argparse.Namespace) -> int:
    scanners = load_scanners(*arguments.scanner)
    rules = rulebook.load(*arguments.rules)
    source = open_rollouts(arguments.path, "validation" if arguments.validation else None)
    found = scan_rollouts(source, scanners=scanners, rules=rules, most=arguments.limit)
    facts = scan_facts(arguments.path, found)
    if arguments.json:
        print_json(facts)
    else:
        show(ScanView(facts, verbose=arguments.verbose))
    for problem in source.problems:
        warn(problem)
    return EXIT_CODES[facts["verdict"]]
