"""`rlvitals explain NAME`: explains a metric, a rule or a kind of trouble."""

from __future__ import annotations

import argparse

from rlvitals import catalog
from rlvitals.cli import rules
from rlvitals.cli.output import add_json_flag, print_json, show
from rlvitals.documentation import metric_address
from rlvitals.errors import UnknownMetric
from rlvitals.health.pages import book_of
from rlvitals.render.explanation import render_explanation
from rlvitals.terminal import say


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("name", metavar="NAME", help="a metric's name in any framework, a concept id, a rule or a kind")
    parser.add_argument("--framework", help="the framework of the name: trl, trl_kto, verl, openrlhf, roll, ...")
    parser.add_argument(
        "--catalog", action="append", default=[], metavar="FILE", help="a YAML file with metrics of your own"
    )
    parser.add_argument("--all", action="store_true", help="list every framework's name for it")
    add_json_flag(parser)


def run(arguments: argparse.Namespace) -> int:
    for file in arguments.catalog:
        catalog.register(file)
    try:
        explanation = catalog.explain(arguments.name, arguments.framework)
    except UnknownMetric:
        book = book_of(arguments.name)
        if book is None:
            raise
        rules.print_rules([arguments.name], book, as_json=arguments.json)
        return 0
    if arguments.json:
        print_json(explanation.to_dict() | {"page": metric_address(explanation.id)})
    else:
        titles = {framework.id: framework.title for framework in catalog.frameworks()}
        show(render_explanation(explanation, titles, all_names=arguments.all))
        if page := metric_address(explanation.id):
            say(f"\n{page}")
    return 0
