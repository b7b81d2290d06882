"""`rlvitals explain NAME`."""

from __future__ import annotations

import argparse

from rlvitals import catalog
from rlvitals.cli.output import add_json_flag, print_json, show
from rlvitals.render.explanation import render_explanation


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("name", metavar="METRIC", help="a metric's name in any framework, or a concept id")
    parser.add_argument("--framework", help="whose name it is: trl, trl_kto, verl, openrlhf, roll, ...")
    parser.add_argument(
        "--catalog", action="append", default=[], metavar="FILE", help="a YAML file with metrics of your own"
    )
    parser.add_argument("--all", action="store_true", help="list every framework's name for it")
    add_json_flag(parser)


def run(arguments: argparse.Namespace) -> int:
    for file in arguments.catalog:
        catalog.register(file)
    explanation = catalog.explain(arguments.name, arguments.framework)
    if arguments.json:
        print_json(explanation.to_dict())
    else:
        titles = {framework.id: framework.title for framework in catalog.frameworks()}
        show(render_explanation(explanation, titles, all_names=arguments.all))
    return 0
