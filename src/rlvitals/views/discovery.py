"""Finds the runs and dumps below a folder, the runs that belong to one training, the dumps linked to a run, and the
name that is most similar to a missing one.
"""

from __future__ import annotations

import contextlib
import difflib
import errno
import os
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from rlvitals.config import by_last_name
from rlvitals.errors import RlvitalsError, RunNotFound, did_you_mean
from rlvitals.importers.dumps.registry import is_dump as is_dump  # noqa: PLC0414 - used together with the runs
from rlvitals.store.cards import read_info
from rlvitals.store.layout import RunDir

DUMP_SETTINGS = ("rollouts_from", "rollout_data_dir", "rollout_dump_dir", "dump_details", "save_debug_rollout_data")
"""Settings that name a folder of dumps: a general one, verl's, ROLL's, and two of slime and miles."""

PARTS = {"prime_rl": ("orchestrator", "trainer")}
"""For frameworks whose processes record a run each: the folders of these runs. If several log the same name, the values
of the first one are used.
"""

MOST_ENTRIES = 50_000
"""Maximum number of files and folders of a folder log that are checked for links."""

LONGEST_COMPARED, MOST_COMPARED = 200, 2_000
"""Maximum length of a name, and maximum number of names, in the search for a similar name."""


def find_runs(folder: str | os.PathLike[str], depth: int = 6) -> Iterator[Path]:
    """The run directories at or below a folder, sorted by path. A run's own subdirectories are not searched.

    Args:
        folder: Where to start.
        depth: How many levels of folders to search.

    Example:
        ```python
        import rlvitals

        for name in ("a", "b"):
            with rlvitals.start(f"out/{name}", display="none") as run:
                run.log({"loss": 0.5}, step=1)
        print([path.name for path in rlvitals.find_runs("out")])  # ['a', 'b']
        ```
    """
    yield from _search(_directory(folder), depth)


def find_trainings(folder: str | os.PathLike[str]) -> Iterator[Path]:
    """As `find_runs`, but if the processes of a training record a run each, the folder of these runs is returned
    instead.
    """
    yield from _search(_directory(folder), joined=True)


def find_places(folder: Path) -> Iterator[Path]:
    """As `find_trainings`, with the dumps of rollouts. A dump may contain runs."""
    yield from _search(folder, dumps=True, joined=True)


def _directory(folder: str | os.PathLike[str]) -> Path:
    root = Path(folder)
    if not os.path.isdir(root):
        raise RunNotFound(f"{root} is not a directory.{near_directory(root)}")
    return root


def _search(folder: Path, depth: int = 6, *, dumps: bool = False, joined: bool = False) -> Iterator[Path]:
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
    """Whether the path is a recorded run."""
    return os.path.isdir(path) and RunDir(path).holds_run


def joined_framework(folder: Path) -> str | None:
    """The framework whose processes recorded the runs in a folder; None for any other folder. Links to runs are
    ignored, as in a search.
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
    """Whether the folder holds the runs of one training's processes."""
    return joined_framework(folder) is not None


def parts_of(folder: Path) -> list[Path]:
    """The runs of one training's processes; empty for any other folder."""
    framework = joined_framework(folder)
    return [] if framework is None else [folder / part for part in PARTS[framework]]


def linked_dumps(run: Path, config: Mapping[str, Any], within: Path) -> list[Path]:
    """The dumps whose rollouts are shown with a run's own: its own folder, if a framework dumps into it, and the folder
    named by its settings. Settings are not trusted: only folders inside `within` are used.
    """
    named = by_last_name(config)
    found = [run]
    for setting in DUMP_SETTINGS:
        value = named.get(setting)
        if isinstance(value, str) and value and "\0" not in value:
            folder = Path(value)
            if "{" in folder.name:  # slime's template of a file name
                folder = folder.parent
            found += [folder] if folder.is_absolute() else [run / folder, run.parent / folder]
    return [folder for folder in dict.fromkeys(found) if lies_in(folder, within) and is_dump(folder)]


def lies_in(folder: Path, within: Path) -> bool:
    """Whether a path is inside a folder after links are resolved."""
    try:
        return folder.resolve().is_relative_to(within.resolve())
    except (OSError, RuntimeError, ValueError):
        return False


def leads_outside(run: Path, root: Path, *, deep: bool = True) -> bool:
    """Whether a file of a run is a symbolic link to a target outside `root`. Raises OSError if its folders cannot be
    listed. A broken or circular link is not reported, because opening it fails.
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


def links_outside(place: Path, root: Path) -> bool:
    """Whether a file or folder, or anything in the folder, is a symbolic link to a target outside `root`. Also true if
    it has too many entries to check.
    """
    inside = os.path.realpath(root)
    if not Path(os.path.realpath(place)).is_relative_to(inside):
        return True
    looked, waiting = 0, [os.fspath(place)]
    while waiting:
        with contextlib.suppress(OSError), os.scandir(waiting.pop()) as entries:  # a file, or a folder nobody may read
            for entry in entries:
                looked += 1
                if looked > MOST_ENTRIES:
                    return True
                if entry.is_dir(follow_symlinks=False):
                    waiting.append(entry.path)
                elif entry.is_symlink() and not Path(os.path.realpath(entry)).is_relative_to(inside):
                    return True
    return False


def near_metrics(name: str, logged: list[str]) -> list[str]:
    """The logged names most similar to a missing one. Only the first names are compared, because comparing takes
    quadratic time.
    """
    if len(name) > LONGEST_COMPARED:
        return []
    compared = [known for known in logged[:MOST_COMPARED] if len(known) <= LONGEST_COMPARED]
    return difflib.get_close_matches(name, compared, n=5, cutoff=0.4)


def near_directory(path: Path) -> str:
    """A suggestion for a missing directory: the neighbour with the most similar name. Empty if it is not missing."""
    if os.path.lexists(path):
        return ""
    try:
        return did_you_mean(path.name, [entry.name for entry in path.parent.iterdir() if entry.is_dir()])
    except OSError:
        return ""
