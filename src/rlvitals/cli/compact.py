"""`rlvitals compact RUN [--undo]`."""

from __future__ import annotations

import argparse
from pathlib import Path

from rlvitals.cli.output import add_json_flag, print_json
from rlvitals.errors import RunError, RunLocked
from rlvitals.store.archive import compact_logs, expand_logs
from rlvitals.store.layout import RunDir
from rlvitals.store.remote import is_url
from rlvitals.terminal import say
from rlvitals.views.query import open_run


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("path", metavar="RUN", help="a run's directory")
    parser.add_argument("--undo", action="store_true", help="bring the logs back as they were")
    add_json_flag(parser)


def run(arguments: argparse.Namespace) -> int:
    if is_url(arguments.path):
        raise RunError("a run is compacted on the disk where it lies; upload it afterwards")
    view = open_run(arguments.path)
    if view.status == "running":
        raise RunLocked(f"{view.path} is being recorded; compact it when it has ended")
    run_dir = RunDir(Path(arguments.path))
    try:
        if arguments.undo:
            facts: dict[str, object] = {"logs_restored": expand_logs(run_dir)}
            said = f"{facts['logs_restored']} logs are back"
        else:
            before, after = compact_logs(run_dir)
            facts = {"bytes_before": before, "bytes_after": after}
            said = (
                f"{before:,} bytes are {after:,} now ({after / before:.0%})" if before else "there is nothing to pack"
            )
    except OSError as error:
        raise RunError(f"cannot compact {view.path}: {error.strerror or error}; nothing is lost") from error
    if arguments.json:
        print_json(facts)
    else:
        say(f"{view.path}: {said}")
    return 0
