"""`rlvitals compact RUN [--undo]`."""

from __future__ import annotations

import argparse
from pathlib import Path

from rlvitals.cli.output import add_json_flag, print_json
from rlvitals.errors import RunError, RunLocked, explained
from rlvitals.store.archive import compact_logs, expand_logs
from rlvitals.store.layout import RunDir
from rlvitals.store.remote import is_url
from rlvitals.terminal import say
from rlvitals.views.run import open_run


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("path", metavar="RUN", help="a run's directory")
    parser.add_argument("--undo", action="store_true", help="restore the logs")
    add_json_flag(parser)


def run(arguments: argparse.Namespace) -> int:
    run_dir = run_at_rest(arguments.path, "compacted")
    with explained(f"cannot compact {run_dir.root}", after="; nothing is lost"):
        if arguments.undo:
            facts: dict[str, object] = {"logs_restored": expand_logs(run_dir)}
            message = f"{facts['logs_restored']} logs are back"
        else:
            before, after = compact_logs(run_dir)
            facts = {"bytes_before": before, "bytes_after": after}
            message = (
                f"{before:,} bytes are {after:,} now ({after / before:.0%})" if before else "there is nothing to pack"
            )
    if arguments.json:
        print_json(facts)
    else:
        say(f"{run_dir.root}: {message}")
    return 0


def run_at_rest(path: str, done: str) -> RunDir:
    """A local run that is not being recorded. Raises RunError for any other; `done` is the verb of its message."""
    if is_url(path):
        raise RunError(f"only a run on this machine can be {done}: do it before you upload the run")
    if open_run(path).status == "running":
        raise RunLocked(f"{path} is being recorded; it can be {done} when it has ended")
    return RunDir(Path(path))
