"""`rlvitals import LOG --to RUN`."""

from __future__ import annotations

import argparse
from pathlib import Path

from rlvitals.capture.start import refuse_existing
from rlvitals.cli.output import add_json_flag, print_json
from rlvitals.errors import RunError
from rlvitals.importers import read_log
from rlvitals.importers.into_run import write_run
from rlvitals.store.layout import RunDir
from rlvitals.terminal import say
from rlvitals.version import __version__


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("path", metavar="LOG", help="a log file, or a folder that holds one")
    parser.add_argument("--to", required=True, metavar="RUN", help="the run's directory to make")
    parser.add_argument("--name", help="the run's name (default: the log's)")
    add_json_flag(parser)


def run(arguments: argparse.Namespace) -> int:
    run_dir = RunDir(Path(arguments.to))
    refuse_existing(run_dir)  # before a long log is read
    log = read_log(arguments.path)
    try:
        written = write_run(
            log, run_dir, name=arguments.name or log.path.stem, version=__version__, refuse=refuse_existing
        )
    except OSError as error:
        raise RunError(f"cannot write to {run_dir.root}: {error.strerror or error}; nothing was imported") from error
    facts = {
        "path": str(run_dir.root),
        "from": str(log.path),
        "format": log.format,
        "rows": written.train_rows,
        "eval_rows": written.eval_rows,
        "attempts": written.attempts,
        "notes": log.notes,
    }
    if arguments.json:
        print_json(facts)
        return 0
    evaluations = f", {written.eval_rows} evaluations" if written.eval_rows else ""
    say(f"{run_dir.root}: {written.train_rows} rows{evaluations} from {log.path} ({log.format})")
    for note in log.notes:
        say(f"  {note}")
    return 0
