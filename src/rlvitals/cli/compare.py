"""`rlvitals compare RUN RUN...`."""

from __future__ import annotations

import argparse
from dataclasses import asdict

from rlvitals.cli.output import add_json_flag, print_json, printable, show
from rlvitals.render.tables import render_comparison
from rlvitals.views.compare import TOLERANCE, compare_runs
from rlvitals.views.query import open_run


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "paths", metavar="RUN", nargs="+", help="two or more run directories; the others are compared with the first"
    )
    parser.add_argument(
        "--metric",
        action="append",
        default=[],
        help="only this metric (may be given again); refuses what does not compare",
    )
    parser.add_argument(
        "--tolerance", type=float, default=TOLERANCE, help=f"relative difference that counts (default: {TOLERANCE:g})"
    )
    parser.add_argument("--all", action="store_true", help="every metric")
    add_json_flag(parser)


def run(arguments: argparse.Namespace) -> int:
    comparison = compare_runs([open_run(path) for path in arguments.paths], arguments.metric, arguments.tolerance)
    facts = asdict(comparison)
    if arguments.json:
        print_json(facts)
    else:
        show(render_comparison(printable(facts), all_metrics=arguments.all))
    return 0
