"""`rlvitals backtest RULES LOGS... [--labels INDEX.tsv]`."""

from __future__ import annotations

import argparse
from pathlib import Path

from rlvitals.cli.output import add_json_flag, print_json, printable, show
from rlvitals.render.backtest import render_backtest
from rlvitals.views.backtest import backtest
from rlvitals.views.labels import read_labels


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "rules", metavar="RULES", help="'default', a preset, a rule file, or a rule such as 'kl > 0.5 for 5: warning'"
    )
    parser.add_argument("paths", metavar="LOG", nargs="+", help="runs, logs, or folders of them")
    parser.add_argument(
        "--labels",
        metavar="TABLE",
        help="a TSV with the columns file, verdict (healthy, watch, fail), onset_step, kind",
    )
    add_json_flag(parser)


def run(arguments: argparse.Namespace) -> int:
    labels = read_labels(Path(arguments.labels)) if arguments.labels else None
    facts = backtest([arguments.rules], arguments.paths, labels).to_dict()
    if arguments.json:
        print_json(facts)
    else:
        show(render_backtest(printable(facts)))
    return 0
