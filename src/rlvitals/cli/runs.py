"""`rlvitals runs [DIR]`."""

from __future__ import annotations

import argparse
from pathlib import Path

from rlvitals.cli.output import add_json_flag, print_json, printable, show
from rlvitals.errors import RlvitalsError
from rlvitals.render.tables import RunsView
from rlvitals.terminal import warn
from rlvitals.views.folder_list import recorded_runs
from rlvitals.views.raw_logs import find_logs, read_raw
from rlvitals.views.run import open_run
from rlvitals.views.summary import headline, unreadable_headline


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("directory", nargs="?", default=".", help="where to look (default: here)")
    parser.add_argument(
        "--all", action="store_true", help="also list runs that were archived or deleted in the dashboard"
    )
    add_json_flag(parser)


def run(arguments: argparse.Namespace) -> int:
    found = []
    folder = Path(arguments.directory)
    for path in recorded_runs(folder, hidden=arguments.all):
        try:
            found.append(headline(open_run(path)))
        except (RlvitalsError, OSError) as error:  # one damaged run must not hide the others
            found.append(unreadable_headline(path, error))
    logs = find_logs(folder)
    found += [headline(view) for place in logs.logs if (view := read_raw(place)) is not None]
    for line in found:
        if line["note"]:
            warn(f"rlvitals: {line['path']}: {line['note']}")
    if arguments.json:
        print_json(found)
    elif found:
        show(RunsView(printable(found)))
    else:
        warn(f"no runs and no logs below {arguments.directory}")
    if logs.note:
        warn(logs.note)
    return 0
