"""`rlvitals show RUN`."""

from __future__ import annotations

import argparse

from rlvitals.cli.output import add_json_flag, print_json, printable, show
from rlvitals.render.epoch_table import render_epochs
from rlvitals.render.tables import render_run
from rlvitals.views.logs import open_any
from rlvitals.views.summary import summarise


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("path", metavar="RUN", help="a run or any log")
    parser.add_argument("--last", type=int, default=5, metavar="N", help="the number of last rows to show (default: 5)")
    parser.add_argument("--all", action="store_true", help="every metric")
    parser.add_argument("--epochs", action="store_true", help="show epochs instead, of a run or any log")
    parser.add_argument(
        "--steps-per-epoch", type=int, metavar="N", help="steps per epoch, if the rows do not contain it"
    )
    add_json_flag(parser)


def run(arguments: argparse.Namespace) -> int:
    if arguments.epochs or arguments.steps_per_epoch is not None:
        epochs = open_any(arguments.path).epochs(arguments.steps_per_epoch).to_dict()
        print_json(epochs) if arguments.json else show(render_epochs(printable(epochs)))
        return 0
    facts = summarise(open_any(arguments.path), last=max(arguments.last, 0))
    if arguments.json:
        print_json(facts)
    else:
        show(render_run(printable(facts), all_metrics=arguments.all))
    return 0
