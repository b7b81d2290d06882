"""`rlvitals purge DIR`: removes the runs that are marked as deleted, and frees their disk space."""

from __future__ import annotations

import argparse
import contextlib
import sys
from pathlib import Path
from typing import TextIO

from rlvitals.cli.compact import run_at_rest
from rlvitals.cli.output import add_json_flag, print_json
from rlvitals.errors import ConfigError, RlvitalsError, RunNotFound, explained
from rlvitals.store.files import remove_paths
from rlvitals.store.layout import RunDir
from rlvitals.store.marks import FolderMarks
from rlvitals.terminal import say, warn


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("directory", help="the folder of runs in whose dashboard they were deleted")
    parser.add_argument("--yes", action="store_true", help="do not ask")
    parser.add_argument("--dry-run", action="store_true", help="print what would be removed, and remove nothing")
    add_json_flag(parser)


def run(arguments: argparse.Namespace) -> int:
    root = Path(arguments.directory).resolve()
    if not root.is_dir():
        raise RunNotFound(f"{arguments.directory} is not a directory")
    marks = FolderMarks(root)
    wanted = [name for name, mark in sorted(marks.read()["runs"].items()) if mark.get("deleted")]
    found = {name: run_dir for name in wanted if (run_dir := _run_dir(root, name)) is not None}
    sizes = {name: _size(run_dir) for name, run_dir in found.items()}
    is_dry = arguments.dry_run
    is_asking = bool(found) and not is_dry and not arguments.yes
    stream = sys.stderr if arguments.json else sys.stdout  # with --json, stdout holds the answer alone
    if is_asking or not arguments.json:
        for name, size in sizes.items():
            say(f"{root / name}: {size:,} bytes", stream)
    if is_asking and not _is_confirmed(len(found), stream):
        warn("Nothing was removed.")
        return 1
    if not is_dry:
        for name, run_dir in found.items():
            _remove(run_dir)
            if not run_dir.holds_run:
                marks.forget(name)
    if arguments.json:
        print_json({"runs": list(found), "bytes": sum(sizes.values()), "removed": not is_dry})
    else:
        done = "would be removed" if is_dry else "removed"
        say(f"{len(found):,} deleted runs, {sum(sizes.values()):,} bytes {done}. Files of your own are kept.")
    return 0


def _run_dir(root: Path, name: str) -> RunDir | None:
    """The run that a mark names. None, with a warning, if it cannot be removed."""
    path = (root / name).resolve()
    if not path.is_relative_to(root) or not RunDir(path).holds_run:
        warn(f"{name}: there is no run of rlvitals here; nothing is removed")
        return None
    try:
        return run_at_rest(str(path), "removed")
    except RlvitalsError as error:
        warn(f"{name}: {error}")
        return None


def _is_confirmed(runs: int, stream: TextIO) -> bool:
    if not sys.stdin.isatty():
        raise ConfigError("removing runs needs a confirmation, and there is no terminal for it: add --yes")
    say(f"Remove the records of {runs} runs from the disk? This cannot be undone. Type yes:", stream)
    return sys.stdin.readline().strip().casefold() == "yes"


def _size(run_dir: RunDir) -> int:
    files = [file for path in run_dir.written_paths for file in (path, *path.rglob("*")) if file.is_file()]
    return sum(file.lstat().st_size for file in files)


def _remove(run_dir: RunDir) -> None:
    """Remove the files that rlvitals wrote. Checkpoints and other files stay. The folder is removed only if empty."""
    with explained(f"cannot remove {run_dir.root}"):
        remove_paths([*run_dir.written_paths, run_dir.heartbeat, run_dir.lock])
    for folder in (run_dir.logs, run_dir.eval_logs, run_dir.epochs.plots, run_dir.epochs.folder, run_dir.root):
        with contextlib.suppress(OSError):  # it contains the user's own files
            folder.rmdir()
