"""`rlvitals runs [DIR]`."""

from __future__ import annotations

import argparse

from rlvitals.cli.output import add_json_flag, print_json, printable, show
from rlvitals.errors import RlvitalsError
from rlvitals.render.tables import render_runs
from rlvitals.terminal import warn
from rlvitals.views.discovery import find_runs
from rlvitals.views.run import open_run
from rlvitals.views.summary import headline, unreadable_headline


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("directory", nargs="?", default=".", help="where to look (default: here)")
    add_json_flag(parser)


def run(arguments: argparse.Namespace) -> int:
    found = []
    for path in find_runs(arguments.directory):
        try:
            found.append(headline(open_run(path)))
        except (RlvitalsError, OSError) as error:  # one damaged run must not hide the others
            found.append(unreadable_headline(path, error))
    for line in found:
        if line["note"]:
            warn(f"rlvitals: {line['path']}: {line['note']}")
    if arguments.json:
        print_json(found)
    elif found:
        show(render_runs(printable(found)))
    else:
        warn(f"no runs below {arguments.directory}")
    return 0
