"""`rlvitals export RUN --to csv|json|parquet`."""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

from rlvitals.cli.output import add_json_flag, print_json
from rlvitals.errors import RunError
from rlvitals.store.cards import replace_file
from rlvitals.views.export import export
from rlvitals.views.query import open_run


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("path", metavar="RUN", help="a run's directory")
    parser.add_argument("--to", required=True, choices=("csv", "json", "parquet"), help="the format")
    parser.add_argument(
        "--output", metavar="FILE", help="where to write it; - for standard output (default: RUN's name here)"
    )
    parser.add_argument(
        "--stream", choices=("train", "eval"), default="train", help="training or evaluation rows (default: train)"
    )
    parser.add_argument(
        "--ghosts", action="store_true", help="the rows that a resumed attempt overtook, instead of the living line"
    )
    add_json_flag(parser)


def run(arguments: argparse.Namespace) -> int:
    view = open_run(arguments.path)
    data, rows = export(view, arguments.to, stream=arguments.stream, ghosts=arguments.ghosts)
    if arguments.output == "-":
        sys.stdout.buffer.write(data)
        return 0
    target = Path(arguments.output or f"{view.path.resolve().name}.{arguments.to}")
    try:
        replace_file(target, data)
    except OSError as error:
        raise RunError(f"cannot write {target}: {error.strerror or error}") from error
    facts = {"path": str(target), "format": arguments.to, "rows": rows, "bytes": len(data)}
    if arguments.json:
        print_json(facts)
    else:
        print(f"{target}: {rows} rows, {len(data):,} bytes")  # noqa: T201
    return 0
