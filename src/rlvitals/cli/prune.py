"""`rlvitals prune RUN --rollouts-keep-last N --evals-keep-last N [--keep-every K] [--dry-run]`."""

from __future__ import annotations

import argparse
from pathlib import Path

from rlvitals.cli.compact import run_at_rest
from rlvitals.cli.output import add_json_flag, print_json
from rlvitals.errors import ConfigError, RunError
from rlvitals.store.pruning import old_evaluations, old_rollouts
from rlvitals.terminal import say
from rlvitals.views.discovery import is_dump, is_run


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("path", metavar="RUN", help="a run's directory")
    parser.add_argument(
        "--rollouts-keep-last", type=_count, metavar="N", help="keep the rollouts of the newest N steps"
    )
    parser.add_argument(
        "--evals-keep-last", type=_count, metavar="N", help="keep the files of the newest N evaluations"
    )
    parser.add_argument("--keep-every", type=_count, metavar="K", help="and those of every K-th step")
    parser.add_argument("--dry-run", action="store_true", help="print what would be removed, and remove nothing")
    add_json_flag(parser)


def run(arguments: argparse.Namespace) -> int:
    if arguments.rollouts_keep_last is None and arguments.evals_keep_last is None:
        raise ConfigError("say what is to be pruned: --rollouts-keep-last N, --evals-keep-last N")
    if not is_run(Path(arguments.path)) and is_dump(Path(arguments.path)):
        raise RunError(
            f"{arguments.path} is a framework's dump of rollouts. 'rlvitals prune' removes files of rlvitals' own runs "
            "alone; delete the files of old steps yourself"
        )
    run_dir, every = run_at_rest(arguments.path, "pruned"), arguments.keep_every
    old: list[Path] = []
    if arguments.rollouts_keep_last is not None:
        old += old_rollouts(run_dir, keep_last=arguments.rollouts_keep_last, keep_every=every)
    if arguments.evals_keep_last is not None:
        old += old_evaluations(run_dir, keep_last=arguments.evals_keep_last, keep_every=every)
    size = sum(path.stat().st_size for path in old)
    if not arguments.dry_run:
        _remove(old)
    if arguments.json:
        names = [str(path.relative_to(run_dir.root)) for path in old]
        print_json({"files": names, "bytes": size, "removed": not arguments.dry_run})
    else:
        done = "would be removed" if arguments.dry_run else "are removed"
        say(f"{run_dir.root}: {len(old):,} files, {size:,} bytes {done}")
    return 0


def _remove(paths: list[Path]) -> None:
    for path in paths:
        try:
            path.unlink(missing_ok=True)
        except OSError as error:
            raise RunError(f"cannot remove {path}: {error.strerror or error}") from error


def _count(word: str) -> int:
    number = int(word)
    if number < 0:
        raise argparse.ArgumentTypeError("must be 0 or more")
    return number
