"""Finds the runs and dumps below a folder, which runs are one training, the dumps a run is linked to, and what comes
nearest to a name that is not there.
"""

from __future__ import annotations

import difflib
import errno
import os
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from rlvitals.config import by_last_name
from rlvitals.errors import RlvitalsError, RunNotFound, did_you_mean
from rlvitals.importers.dumps.registry import is_dump as is_dump  # noqa: PLC0414 - asked with the runs
from rlvitals.store.cards import read_info
from rlvitals.store.layout import RunDir

DUMP_SETTINGS = ("rollouts_from", "rollout_data_dir", "rollout_dump_dir", "dump_details", "save_debug_rollout_data")
"""Settings that name a folder of dumps: anybody's, verl's, ROLL's, and two of slime and miles."""

PARTS = {"prime_rl": ("orchestrator", "trainer")}
"""By framework whose processes record a run each: the folders of their runs. Of a name that several log, the first
one's numbers are taken.
"""

LONGEST_COMPARED, MOST_COMPARED = 200, 2_000
"""Characters of a name, and names, among which a name that is not there is looked for."""


def find_runs(folder: str | os.PathLike[str], depth: int = 6) -> Iterator[Path]:
    """The run directories at or below a folder, sorted by path; a run's own subdirectories are not searched.

    Args:
        folder: Where to begin.
        depth: How many folders deep to search.

    Example:
        ```python
        import rlvitals

        for name in ("a", "b"):
            with rlvitals.start(f"out/{name}", display="none") as run:
                run.log({"loss": 0.5}, step=1)
        print([path.name for path in rlvitals.find_runs("out")])  # ['a', 'b']
        ```
    """
    root = Path(folder)
    if not os.path.isdir(root):
        raise RunNotFound(f"{root} is not a directory.{near_directory(root)}")
    yield from _search(root, depth)


def find_trainings(folder: str | os.PathLike[str], depth: int = 6) -> Iterator[Path]:
    """As `find_runs`; of a training whose processes record a run each, the folder of their runs instead of the runs."""
    root = Path(folder)
    if not os.path.isdir(root):
        raise RunNotFound(f"{root} is not a directory.{near_directory(root)}")
    yield from _search(root, depth, joined=True)


def find_places(folder: str | os.PathLike[str], depth: int = 6) -> Iterator[Path]:
    """As `find_trainings`, with the dumps of rollouts; below a dump there may be runs."""
    yield from _search(Path(folder), depth, dumps=True, joined=True)


def _search(folder: Path, depth: int, *, dumps: bool = False, joined: bool = False) -> Iterator[Path]:
    if RunDir(folder).holds_run or (joined and is_joined(folder)):
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
            yield from _search(Path(child), depth - 1, dumps=dumps, joined=joined)


def is_run(path: Path) -> bool:
    """Whether a recorded run is there."""
    return os.path.isdir(path) and RunDir(path).holds_run


def joined_framework(folder: Path) -> str | None:
    """The framework whose processes' runs are in a folder; None of any other folder. A link to a run is none of them,
    as in a search.
    """
    for framework, parts in PARTS.items():
        runs = [RunDir(folder / part) for part in parts if not os.path.islink(folder / part)]
        try:
            if len(runs) == len(parts) and all(run.holds_run and read_info(run).framework == framework for run in runs):
                return framework
        except (RlvitalsError, OSError):
            continue
    return None


def is_joined(folder: Path) -> bool:
    """Whether the runs of one training's processes are there."""
    return joined_framework(folder) is not None


def parts_of(folder: Path) -> list[Path]:
    """The runs of one training's processes; none of any other folder."""
    framework = joined_framework(folder)
    return [] if framework is None else [folder / part for part in PARTS[framework]]


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


def leads_outside(run: Path, root: Path, *, deep: bool = True) -> bool:
    """Whether some file a run is read from is a symbolic link that leaves the folder. Raises OSError where its folders
    cannot be looked through. A link that leads nowhere or to itself leaves nothing: opening it fails.
    """
    run_dir = RunDir(run)
    folders = [run, run_dir.logs]
    if deep:
        folders += [run_dir.ranks, run_dir.rollouts, run_dir.eval_logs, run_dir.eval_rollouts, run_dir.epochs.folder]
        folders += [run_dir.sinks, run_dir.index]
    for folder in folders:
        try:
            with os.scandir(folder) as entries:
                for entry in entries:
                    if entry.is_symlink() and not Path(os.path.realpath(entry.path)).is_relative_to(root):
                        return True
        except (FileNotFoundError, NotADirectoryError):
            continue
        except OSError as error:
            if error.errno != errno.ELOOP:
                raise
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
