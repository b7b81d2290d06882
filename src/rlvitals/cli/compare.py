"""`rlvitals compare RUN RUN...`."""

from __future__ import annotations

import argparse
from dataclasses import asdict

from rlvitals.cli.output import add_json_flag, print_json, printable, show
from rlvitals.cli.plot import picture_named, write_picture
from rlvitals.render.numbers import number
from rlvitals.render.tables import render_comparison
from rlvitals.terminal import say
from rlvitals.views.compare import TOLERANCE, RunComparison, compare_runs
from rlvitals.views.logs import open_any
from rlvitals.views.plots import comparison as comparison_picture
from rlvitals.views.plots import counts_epochs
from rlvitals.views.run import RunView

PICTURE = "comparison.png"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "paths", metavar="RUN", nargs="+", help="two or more runs or logs; the others are compared with the first"
    )
    parser.add_argument(
        "--metric",
        action="append",
        default=[],
        help="only this metric (repeatable); an error if it cannot be compared",
    )
    parser.add_argument(
        "--tolerance", type=float, default=TOLERANCE, help=f"relative difference that counts (default: {TOLERANCE:g})"
    )
    parser.add_argument("--all", action="store_true", help="every metric")
    parser.add_argument(
        "--plot", nargs="?", const=PICTURE, metavar="FILE", help=f"also plot them in one figure (default: {PICTURE})"
    )
    add_json_flag(parser)


def run(arguments: argparse.Namespace) -> int:
    target = picture_named(arguments.plot, " (runs come before --plot)") if arguments.plot is not None else None
    views = [open_any(path) for path in arguments.paths]
    compared = compare_runs(views, arguments.metric, arguments.tolerance)
    facts = asdict(compared)
    if target is not None:
        write_picture(comparison_picture(views, compared), target)
        facts["plot"] = str(target)
    if arguments.json:
        print_json(facts)
        return 0
    show(render_comparison(printable(facts), all_metrics=arguments.all))
    for line in _best_rewards(views, compared):
        say(line)
    if target is not None:
        say("")
        say(f"{target}")
    return 0


def _best_rewards(views: list[RunView], compared: RunComparison) -> list[str]:
    """The best reward of each run, one line per run. If there are several slices, the reward of one is not used."""
    rewards = [row for row in compared.metrics if row.concept == "reward.total.mean"]
    row = next((row for row in rewards if len(rewards) == 1 or not views[0].labels(row.name)), None)
    if row is None:
        return []
    return [
        f"Run {place} best reward: {number(best.best)} at {'epoch' if counts_epochs(view) else 'step'} "
        f"{number(best.best_step)} ({view.name})"
        for place, (best, view) in enumerate(zip(row.best, views, strict=True), start=1)
        if best is not None
    ]
