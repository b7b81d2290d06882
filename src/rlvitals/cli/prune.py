"""`rlvitals prune RUN|DUMPS/ --rollouts-keep-last N --evals-keep-last N [--keep-every K] [--dry-run]`."""

from __future__ import annotations

import argparse
from pathlib import Path

from rlvitals.cli.compact import run_at_rest
from rlvitals.cli.output import add_json_flag, print_json
from rlvitals.errors import ConfigError, explained
from rlvitals.store.pruning import old_evaluations, old_rollouts
from rlvitals.terminal import say
from rlvitals.views.discovery import is_dump, is_run
from rlvitals.views.dumps import Split, old_dump_files


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("path", metavar="RUN", help="a run's directory, or a folder of a framework's dumped rollouts")
    parser.add_argument(
        "--rollouts-keep-last", type=_count, metavar="N", help="keep the rollouts of the newest N steps"
    )
    parser.add_argument(
        "--evals-keep-last",
        type=_count,
        metavar="N",
        help="keep the files of the newest N evaluations; of a dump: the newest N steps of validation",
    )
    parser.add_argument("--keep-every", type=_count, metavar="K", help="also keep those of every K-th step")
    parser.add_argument("--dry-run", action="store_true", help="print what would be removed, and remove nothing")
    add_json_flag(parser)


def run(arguments: argparse.Namespace) -> int:
    if arguments.rollouts_keep_last is None and arguments.evals_keep_last is None:
        raise ConfigError("choose what to prune: --rollouts-keep-last N or --evals-keep-last N")
    root = Path(arguments.path)
    if not is_run(root) and is_dump(root):
        root = root.absolute()
        old = _old_of_dump(root, arguments)
    else:
        old = _old_of_run(arguments)
    size = sum(path.stat().st_size for path in old)
    if not arguments.dry_run:
        _remove(old)
    if arguments.json:
        names = [str(path.relative_to(root)) for path in old]
        print_json({"files": names, "bytes": size, "removed": not arguments.dry_run})
    else:
        done = "would be removed" if arguments.dry_run else "are removed"
        say(f"{root}: {len(old):,} files, {size:,} bytes {done}")
    return 0


def _old_of_run(arguments: argparse.Namespace) -> list[Path]:
    run_dir, every = run_at_rest(arguments.path, "pruned"), arguments.keep_every
    old: list[Path] = []
    if arguments.rollouts_keep_last is not None:
        old += old_rollouts(run_dir, keep_last=arguments.rollouts_keep_last, keep_every=every)
    if arguments.evals_keep_last is not None:
        old += old_evaluations(run_dir, keep_last=arguments.evals_keep_last, keep_every=every)
    return old


def _old_of_dump(root: Path, arguments: argparse.Namespace) -> list[Path]:
    """The old files of a dump. The newest step must be kept, because a framework may still be writing it."""
    asked: dict[Split, int | None] = {
        "train": arguments.rollouts_keep_last,
        "validation": arguments.evals_keep_last,
    }
    keep = {split: count for split, count in asked.items() if count is not None}
    if 0 in keep.values():
        raise ConfigError("keep at least the newest step of a framework's dump: it may still be written to")
    return old_dump_files(root, keep, arguments.keep_every)


def _remove(paths: list[Path]) -> None:
    for path in paths:
        with explained(f"cannot remove {path}"):
            path.unlink(missing_ok=True)


def _count(word: str) -> int:
    number = int(word)
    if number < 0:
        raise argparse.ArgumentTypeError("must be 0 or more")
    return number
