"""`rlvitals import LOG --to RUN`, `rlvitals import TRACKER:PROJECT --to DIR`."""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import Any

from rich.table import Table

from rlvitals.capture.start import refuse_existing
from rlvitals.cli.output import add_json_flag, print_json, printable, show
from rlvitals.errors import ConfigError, explained
from rlvitals.importers import read_log
from rlvitals.importers.into_run import write_run
from rlvitals.importers.trackers.address import Address, address_in
from rlvitals.importers.trackers.transfer import Brought, bring
from rlvitals.store.layout import RunDir
from rlvitals.terminal import clear_status, plural, say, show_status, warn
from rlvitals.version import __version__

EXIT_FAILED = 1
"""Some runs of a project could not be imported."""

MOST_SHOWN = 200
"""The maximum number of runs in the table; `--json` prints all."""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "path", metavar="LOG",
        help="a log file, a folder that holds one, or runs of a tracker: wandb:ENTITY/PROJECT[/RUN], "
        "mlflow:EXPERIMENT[/RUN], trackio:PROJECT[/RUN], swanlab:USER/PROJECT[/RUN], neptune:EXPORT",
    )  # fmt: skip
    parser.add_argument(
        "--to", required=True, metavar="DIR",
        help="the directory of the new run; for a tracker's project, the folder in which each run gets its directory",
    )  # fmt: skip
    parser.add_argument("--name", help="the run's name (default: the log's)")
    add_json_flag(parser)


def run(arguments: argparse.Namespace) -> int:
    address = address_in(arguments.path)
    if address is not None:
        return _from_tracker(address, arguments)
    run_dir = RunDir(Path(arguments.to))
    refuse_existing(run_dir)  # before a long log is read
    log = read_log(arguments.path)
    with explained(f"cannot write to {run_dir.root}", after="; nothing was imported"):
        written = write_run(
            log, run_dir, name=arguments.name or log.path.stem, version=__version__, refuse=refuse_existing
        )
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


def _from_tracker(address: Address, arguments: argparse.Namespace) -> int:
    to = Path(arguments.to)
    with explained(f"cannot write to {to}", after=". The same command continues where this one stopped"):
        try:
            done = bring(
                address, to, version=__version__, refuse=refuse_existing, name=arguments.name, tell=show_status
            )
        finally:
            clear_status()
    if not done:
        raise ConfigError(f"{address}: there are no runs")
    if arguments.json:
        print_json({"from": str(address), "runs": [_facts(one) for one in done]})
    else:
        show(_table(done))
        for one in done[:MOST_SHOWN]:
            for note in one.notes:
                say(f"{one.name}: {note}")
        _sum_up(address, done)
    failed = [one for one in done if one.outcome == "failed"]
    for one in failed:
        warn(f"rlvitals: {one.name} ({one.id}) was not imported: {one.why}")
    return EXIT_FAILED if failed else 0


def _table(done: list[Brought]) -> Table:
    table = Table(box=None, pad_edge=False)
    for title in ("run", "result", "rows", "evaluations", "samples", "new", "directory"):
        table.add_column(title, justify="right" if title in ("rows", "evaluations", "samples", "new") else "left")
    for one in done[:MOST_SHOWN]:
        result = f"{one.outcome}, still running" if one.state == "running" else one.outcome
        numbers = (f"{number:,}" for number in (one.rows, one.eval_rows, one.samples, one.added))
        table.add_row(printable(one.name), result, *numbers, printable(str(one.path)))
    return table


def _sum_up(address: Address, done: list[Brought]) -> None:
    rows = sum(one.rows + one.eval_rows for one in done)
    kinds = ", ".join(
        f"{count} {outcome}"
        for outcome in ("new", "continued", "unchanged", "failed")
        if (count := sum(one.outcome == outcome for one in done))
    )
    left_out = f" (the first {MOST_SHOWN} are shown)" if len(done) > MOST_SHOWN else ""
    added = sum(one.added for one in done)
    say(f"{address}: {plural(len(done), 'run')}{left_out}: {kinds}; {rows:,} rows, {added:,} new")


def _facts(one: Brought) -> dict[str, Any]:
    return {
        "name": one.name,
        "id": one.id,
        "path": str(one.path),
        "result": one.outcome,
        "state": one.state,
        "rows": one.rows,
        "eval_rows": one.eval_rows,
        "samples": one.samples,
        "added": one.added,
        "attempts": one.attempts,
        "notes": one.notes,
        **({"why": one.why} if one.why else {}),
    }
