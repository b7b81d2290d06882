"""Finds the runs below a folder, and what comes nearest to a name that is not there."""

from __future__ import annotations

import difflib
import os
from collections.abc import Iterator
from pathlib import Path

from rlvitals.errors import RunNotFound, did_you_mean
from rlvitals.store.layout import RunDir

LONGEST_COMPARED, MOST_COMPARED = 200, 2_000
"""Characters of a name, and names, among which a name that is not there is looked for."""


def find_runs(folder: str | os.PathLike[str], depth: int = 6) -> Iterator[Path]:
    """The run directories at or below a folder, sorted by path; a run's own subdirectories are not searched."""
    root = Path(folder)
    if not os.path.isdir(root):
        raise RunNotFound(f"{root} is no directory.{near_directory(root)}")
    yield from _search(root, depth)


def _search(folder: Path, depth: int) -> Iterator[Path]:
    if RunDir(folder).holds_run:
        yield folder
        return
    if depth == 0:
        return
    try:
        children = sorted(entry.path for entry in os.scandir(folder) if entry.is_dir(follow_symlinks=False))
    except OSError:
        return
    for child in children:
        if not Path(child).name.startswith("."):
            yield from _search(Path(child), depth - 1)


def is_run(path: Path) -> bool:
    """Whether a recorded run is there."""
    return os.path.isdir(path) and RunDir(path).holds_run


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
