"""Finds the runs and dumps below a folder, the dumps a run is linked to, and what comes nearest to a name that is not
there.
"""

from __future__ import annotations

import difflib
import os
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from rlvitals.config import by_last_name
from rlvitals.errors import RunNotFound, did_you_mean
from rlvitals.importers.dumps.registry import is_dump as is_dump  # noqa: PLC0414 - asked with the runs
from rlvitals.store.layout import RunDir

DUMP_SETTINGS = ("rollouts_from", "rollout_data_dir", "rollout_dump_dir", "dump_details", "save_debug_rollout_data")
"""Settings that name a folder of dumps: anybody's, verl's, ROLL's, and two of slime and miles."""

LONGEST_COMPARED, MOST_COMPARED = 200, 2_000
"""Characters of a name, and names, among which a name that is not there is looked for."""


def find_runs(folder: str | os.PathLike[str], depth: int = 6) -> Iterator[Path]:
    """The run directories at or below a folder, sorted by path; a run's own subdirectories are not searched."""
    root = Path(folder)
    if not os.path.isdir(root):
        raise RunNotFound(f"{root} is no directory.{near_directory(root)}")
    yield from _search(root, depth, dumps=False)


def find_places(folder: str | os.PathLike[str], depth: int = 6) -> Iterator[Path]:
    """The run directories at or below a folder, and the dumps of rollouts; below a dump there may be runs."""
    yield from _search(Path(folder), depth, dumps=True)


def _search(folder: Path, depth: int, *, dumps: bool) -> Iterator[Path]:
    if RunDir(folder).holds_run:
        yield folder
        return
    if dumps and is_dump(folder):
        yield folder
        dumps = False
    if depth == 0:
        return
    try:
        children = sorted(entry.path for entry in os.scandir(folder) if entry.is_dir(follow_symlinks=False))
    except OSError:
        return
    for child in children:
        if not Path(child).name.startswith("."):
            yield from _search(Path(child), depth - 1, dumps=dumps)


def is_run(path: Path) -> bool:
    """Whether a recorded run is there."""
    return os.path.isdir(path) and RunDir(path).holds_run


def linked_dumps(run: Path, config: Mapping[str, Any], within: Path) -> list[Path]:
    """The dumps whose rollouts are shown with a run's own: its own folder, where a framework dumps into it, and the one
    that its settings name. Settings are somebody's text: only a folder that lies in `within` is taken.
    """
    named = by_last_name(config)
    found = [run]
    for setting in DUMP_SETTINGS:
        value = named.get(setting)
        if isinstance(value, str) and value and "\0" not in value:
            folder = Path(value)
            if "{" in folder.name:  # slime's template of a file's name
                folder = folder.parent
            found += [folder] if folder.is_absolute() else [run / folder, run.parent / folder]
    return [folder for folder in dict.fromkeys(found) if lies_in(folder, within) and is_dump(folder)]


def lies_in(folder: Path, within: Path) -> bool:
    """Whether a path stays in a folder, links followed."""
    try:
        return folder.resolve().is_relative_to(within.resolve())
    except (OSError, RuntimeError, ValueError):
        return False


def near_metrics(name: str, logged: list[str]) -> list[str]:
    """The logged names most like one that is not there, among the first: comparing takes the square of the length."""
    if len(name) > LONGEST_COMPARED:
        return []
    compared = [known for known in logged[:MOST_COMPARED] if len(known) <= LONGEST_COMPARED]
    return difflib.get_close_matches(name, compared, n=5, cutoff=0.4)


def near_directory(path: Path) -> str:
    """A suggestion for a directory that is not there: its neighbour with the nearest name."""
    try:
        return did_you_mean(path.name, [entry.name for entry in path.parent.iterdir() if entry.is_dir()])
    except OSError:
        return ""
