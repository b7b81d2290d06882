"""`rlvitals show RUN`."""

from __future__ import annotations

import argparse
from typing import Any

from rich.text import Text

from rlvitals.cli.output import add_json_flag, print_json, printable, show
from rlvitals.render.check import asked_line, hindsight_lines
from rlvitals.render.epoch_table import render_epochs
from rlvitals.render.numbers import moment, number
from rlvitals.render.tables import render_run
from rlvitals.signs import STYLES
from rlvitals.views.logs import open_any, open_recorded
from rlvitals.views.summary import summarise


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("path", metavar="RUN", help="a run's directory")
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
    facts = summarise(open_recorded(arguments.path), last=max(arguments.last, 0))
    if arguments.json:
        print_json(facts)
    else:
        show(render_run(printable(facts), all_metrics=arguments.all))
        if facts["system"]:
            show(_machine(facts["system"]))
        if facts["findings"]:
            show(_findings(printable(facts["findings"])))
        if facts["asked"]:
            show(_asked(printable(facts["asked"])))
        if facts["hindsight"]:
            for part in hindsight_lines(printable(facts["hindsight"])):
                show(part)
    return 0


def _machine(sample: dict[str, Any]) -> Text:
    seen = {name: value for name, value in sample.items() if "/" in name and not isinstance(value, str)}
    readings = [f"{name.removeprefix('System/')} {number(value)}" for name, value in seen.items()]
    lines = Text("\nThe machine", style="bold")
    return lines.append(f"  at {moment(sample['timestamp'])}: {', '.join(readings)}", style="not bold")


def _findings(findings: list[dict[str, Any]]) -> Text:
    lines = Text("\nLast findings", style="bold")
    for finding in findings:
        text = f"\n  {finding['severity']} at step {finding['step']}: {finding['title']}"
        lines.append(text, style=f"not bold {STYLES[finding['severity']]}")
    return lines


def _asked(requests: list[dict[str, Any]]) -> Text:
    lines = Text("\nRequests from people", style="bold")
    for asked in requests:
        lines.append(f"\n  {asked_line(asked)}", style="not bold")
    return lines
