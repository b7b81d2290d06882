"""`rlvitals export RUN --to csv|json|parquet`, and `rlvitals export DIR --to parquet` for all runs below a folder."""

from __future__ import annotations

import argparse
from dataclasses import asdict
from pathlib import Path

from rlvitals.cli.output import add_json_flag, print_json, write_file
from rlvitals.errors import RunError
from rlvitals.store.layout import STREAMS, RunDir
from rlvitals.terminal import put_data, say
from rlvitals.views.dataset import export_runs
from rlvitals.views.export import export
from rlvitals.views.logs import open_recorded


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("path", metavar="RUN", help="a run's directory; for Parquet also a folder of runs")
    parser.add_argument("--to", required=True, choices=("csv", "json", "parquet"), help="the format")
    parser.add_argument(
        "--output",
        metavar="FILE",
        help="where to write it; - for standard output (default: RUN's name here); for a folder of runs a directory",
    )
    parser.add_argument(
        "--stream", choices=STREAMS, default="train", help="training or evaluation rows (default: train)"
    )
    parser.add_argument(
        "--ghosts", action="store_true", help="the rows that a resume discarded, instead of those that count"
    )
    add_json_flag(parser)


def run(arguments: argparse.Namespace) -> int:
    if arguments.to == "parquet" and Path(arguments.path).is_dir() and not RunDir(Path(arguments.path)).holds_run:
        return _export_all(arguments)
    view = open_recorded(arguments.path)
    data, rows = export(view, arguments.to, stream=arguments.stream, ghosts=arguments.ghosts)
    if arguments.output == "-":
        put_data(data)
        return 0
    target = Path(arguments.output or f"{view.path.resolve().name}.{arguments.to}")
    write_file(target, data)
    facts = {"path": str(target), "format": arguments.to, "rows": rows, "bytes": len(data)}
    if arguments.json:
        print_json(facts)
    else:
        say(f"{target}: {rows} rows, {len(data):,} bytes")
    return 0


def _export_all(arguments: argparse.Namespace) -> int:
    if not arguments.output or arguments.output == "-":
        raise RunError(f"{arguments.path} is a folder of runs: name a folder for the data set, as in --output lake/")
    lake = export_runs(arguments.path, arguments.output, stream=arguments.stream, ghosts=arguments.ghosts)
    if arguments.json:
        print_json({**asdict(lake), "path": str(lake.path), "format": "parquet"})
        return 0
    say(f"{lake.path}: {lake.runs} runs, {lake.rows} rows, {lake.bytes:,} bytes")
    for reason in lake.passed_over:
        say(f"skipped: {reason}")
    return 0
