"""`rlvitals audit-judge HELD.jsonl [--column NAME=THEIRS] [--threshold X] [--max-error X] [--json]`."""

from __future__ import annotations

import argparse

from rlvitals.cli.output import add_json_flag, print_json, printable, show
from rlvitals.errors import ConfigError
from rlvitals.render.judge_audit import AuditView
from rlvitals.views.judge_audit import COLUMNS, audit_facts, audit_file

EXIT_NO = 1


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("path", metavar="HELD", help="a JSONL file: a gold label and the judge's verdicts on each line")
    parser.add_argument(
        "--column", action="append", default=[], metavar="NAME=THEIRS",
        help=f"the name of a column in the file (repeatable): {', '.join(COLUMNS)}",
    )  # fmt: skip
    parser.add_argument(
        "--threshold", type=float, metavar="X", help="for scores: an answer is accepted if its score is at least X"
    )
    parser.add_argument(
        "--max-error", type=float, metavar="X",
        help="exit with 1 if the share of false positives, false negatives or order flips exceeds X",
    )  # fmt: skip
    add_json_flag(parser)


def run(arguments: argparse.Namespace) -> int:
    if arguments.max_error is not None and not 0 <= arguments.max_error <= 1:
        raise ConfigError(f"--max-error is a share between 0 and 1, not {arguments.max_error:g}")
    columns = {}
    for word in arguments.column:
        name, equals, theirs = word.partition("=")
        if not name or not equals or not theirs:
            raise ConfigError(f"--column {word}: write NAME=THEIRS, as in --column gold=label")
        columns[name] = theirs
    found = audit_file(arguments.path, columns=columns, threshold=arguments.threshold)
    facts = audit_facts(arguments.path, found)
    if arguments.json:
        print_json(facts)
    else:
        show(AuditView(printable(facts)))
    shares = (found.false_positives.share, found.false_negatives.share, found.flips.share)
    is_over = arguments.max_error is not None and any(
        share is not None and share > arguments.max_error for share in shares
    )
    return EXIT_NO if is_over else 0
