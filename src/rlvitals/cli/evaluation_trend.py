"""`rlvitals evals RUN...`."""

from __future__ import annotations

import argparse
from dataclasses import asdict

from rlvitals.cli.output import add_json_flag, print_json, printable, show
from rlvitals.render.evaluations import render_evaluations
from rlvitals.terminal import warn
from rlvitals.views.evaluations import metric_for, read_trend

EXIT_NONE = 1


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "paths", metavar="RUN", nargs="+", help="runs, folders with eval_logs, or checkpoints (RUN/checkpoint-50)"
    )
    parser.add_argument("--metric", help="the metric in which several runs are compared (default: accuracy)")
    add_json_flag(parser)


def run(arguments: argparse.Namespace) -> int:
    runs = [read_trend(path) for path in arguments.paths]
    facts = {"metric": metric_for(runs, arguments.metric), "runs": [asdict(each) for each in runs]}
    has_any = any(each.evaluations for each in runs)
    if arguments.json:
        print_json(facts)
    elif has_any:
        show(render_evaluations(printable(facts)))
    else:
        warn(f"no evaluations in {', '.join(arguments.paths)}")
    return 0 if has_any else EXIT_NONE
