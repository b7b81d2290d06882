"""What is at a path: a recorded run, a log another tool wrote, a dump of rollouts, a folder of these."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterable, Iterator
from pathlib import Path

from rlvitals.errors import ConfigError, RlvitalsError
from rlvitals.importers import (
    NotALog,
    find_log,
    is_one_log,
    is_plainly_other,
    logs_below,
    not_a_log,
)
from rlvitals.importers.dumps.base import Split
from rlvitals.importers.dumps.registry import dump_files
from rlvitals.importers.trackers.address import address_in
from rlvitals.store.layout import EpochDir, RunDir
from rlvitals.views.discovery import find_trainings, is_dump, is_joined, is_run
from rlvitals.views.labels import is_labels
from rlvitals.views.logs import open_joined, repeats_epochs, run_or_log
from rlvitals.views.rollouts import RolloutSource, open_dump
from rlvitals.views.run import RunView, open_run
from rlvitals.views.sources import RowSource, source_of, source_of_log


def open_source(path: str | os.PathLike[str]) -> RowSource:
    """The source of what `open_any` opens. Raises NotALog or RunError."""
    found = run_or_log(path)
    return source_of(found) if isinstance(found, RunView) else source_of_log(found[0])


def places_in(path: str | os.PathLike[str]) -> list[Path] | None:
    """The runs and logs in a folder, sorted; None if the path itself is one run or one log.

    The list may contain files that are not logs, because this is known only after reading them.
    """
    folder = Path(path)
    if not os.path.isdir(folder) or is_run(folder) or is_one_log(folder) or is_joined(folder):
        return None
    runs = list(find_trainings(folder))
    files = [
        child
        for child in _children(folder)
        if not child.name.startswith(".") and os.path.isfile(child) and not is_labels(child) and not _is_double(child)
    ]
    logs = logs_below(folder)
    likely = [file for file in files if not is_plainly_other(file.name) and not repeats_epochs(file)]
    if not runs and not likely and len(logs) < 2:
        find_log(folder)  # raises if there is none
        return None
    if likely == [EpochDir(folder).record] and not runs and not logs:
        return None
    return sorted({*runs, *likely, *logs})


def one_place(path: Path, what: str, *, dumps: bool = False) -> Path:
    """The one run or log to follow at a path. It may not exist yet, and an empty folder may become a run. With `dumps`,
    also a dump of rollouts without a log beside it.

    Of several logs in a folder, the one that `read_log` reads is used. Several recorded runs raise ConfigError.
    """
    address = address_in(path)
    if address is not None:
        raise ConfigError(
            f"{address} is on a tracker's server, which {what} does not follow. Fetch it now and then with 'rlvitals "
            f"import {address} --to DIR', and pass DIR"
        )
    try:
        places = places_in(path)
    except NotALog:
        places = None
    if places is None:
        return path
    if is_dump(path):
        dumped = {file.path for file in dump_files(path)}
        places = [place for place in places if place not in dumped]
        if not places and dumps:
            return path
        if not places:
            raise ConfigError(
                f"{path} is a framework's dump of rollouts, with no log of metrics beside it. Look at it with "
                f"'rlvitals rollouts {path}', 'rlvitals watch {path}' or 'rlvitals serve {path}'"
            )
    if len(places) == 1:
        return places[0]
    if not any(map(is_run, places)):
        with contextlib.suppress(NotALog):
            return find_log(path)
    named = ", ".join(str(place) for place in places[:6]) + (" ..." if len(places) > 6 else "")
    raise ConfigError(f"{what} takes one run or log, and {path} holds {len(places)}: name one of them ({named})")


def _is_double(child: Path) -> bool:
    """Whether a file is a link to a file in the same folder or below, such as W&B's `debug.log`."""
    return child.is_symlink() and child.resolve().is_relative_to(child.parent.resolve())


def _children(folder: Path) -> list[Path]:
    try:
        return list(folder.iterdir())
    except OSError as error:
        raise not_a_log(folder, f"it cannot be read ({error.strerror or error})") from error


def open_all(places: Iterable[Path]) -> Iterator[RowSource | tuple[Path, Exception]]:
    """Open each place, or return the reason why it failed, so that one bad file does not hide the others."""
    for place in places:
        try:
            yield open_source(place)
        except (RlvitalsError, OSError) as error:
            yield place, error


def open_rollouts(path: str | os.PathLike[str], split: Split | None = None) -> RolloutSource:
    """The rollouts of a run with those of its linked dumps, of a training whose processes record a run each, or of a
    dump. `split` selects those of a dump. The default is training, or validation if there is no other.
    """
    place = Path(path)
    if split is None and (RunDir(place).holds_run or not os.path.exists(place)):
        return open_run(path).rollout_log
    if split is None and (joined := open_joined(place)) is not None:
        return joined.rollout_log
    return open_dump(place, split)
