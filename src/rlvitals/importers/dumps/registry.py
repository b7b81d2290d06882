"""Lists the dump forms and finds the files of a folder that belong to one.

The paths of its files (`DumpForm.places`) make a folder a dump, so not every file is opened. The folder of a
framework's run is one dump with all its steps. Links are not followed, so nothing outside the folder is read.
"""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Iterator
from fnmatch import fnmatchcase, translate
from functools import lru_cache
from itertools import islice
from pathlib import Path
from typing import Any, NamedTuple

from rlvitals.errors import MissingDependency, NotALog
from rlvitals.importers.dumps.areal import Areal
from rlvitals.importers.dumps.base import NO_ROLLOUTS, DumpForm, Split, document, first_row
from rlvitals.importers.dumps.inspect_ai import Inspect
from rlvitals.importers.dumps.messages import Documents, MessageLines, OwnLines
from rlvitals.importers.dumps.nemo_rl import NemoRl
from rlvitals.importers.dumps.openrlhf import OpenRlhf
from rlvitals.importers.dumps.roll import Roll
from rlvitals.importers.dumps.skyrl import SkyRl
from rlvitals.importers.dumps.slime import Slime
from rlvitals.importers.dumps.tinker import Summaries, Trajectories
from rlvitals.importers.dumps.trl import Trl
from rlvitals.importers.dumps.verifiers import Episodes, Results
from rlvitals.importers.dumps.verl import Verl

FORMS: tuple[DumpForm, ...] = (
    Episodes(), NemoRl(), Roll(), Slime(), Summaries(), SkyRl(), Areal(), Verl(), OpenRlhf(), Trl(), Results(),
    Trajectories(), Inspect(), OwnLines(), MessageLines(), Documents(),
)  # fmt: skip
"""In the order in which they are tried."""

PLACES = tuple(dict.fromkeys(pattern for form in FORMS for pattern in form.places))
MOST_TRIED = 3
"""How many files of a folder are checked to decide whether it is a dump."""

_LOOSE = ("completions/*.parquet", "rollouts/*.jsonl", "*.jsonl", "*.parquet", "*.json", "*.ndjson")
"""Where rollouts may be in a folder without a framework's layout, if the user passes the folder."""


class DumpFile(NamedTuple):
    """One file of a dump."""

    path: Path
    name: str
    """Its path relative to the dump's folder."""


def form_of(path: Path) -> DumpForm:
    """The form of a file. Raises NotALog if there is none."""
    row = _first(path)
    for form in FORMS:
        if form.recognises(path, row):
            return form
    raise NotALog(path, NO_ROLLOUTS)


def _first(path: Path) -> Any:
    if path.suffix in (".pt", ".parquet", ".eval"):
        return None
    return document(path) if path.suffix == ".json" else first_row(path)


def is_dump(folder: Path) -> bool:
    """Whether a folder is a framework's dump: a form's pattern matches one of its files, and the form recognises it."""
    for path in islice(_matches(folder, PLACES), MOST_TRIED):
        name = path.relative_to(folder).as_posix()
        if any(_is_of(form, path) for form in forms_by_name(name)):
            return True
    return False


def forms_by_name(name: str) -> list[DumpForm]:
    """The forms with a pattern that matches this path in a dump."""
    return [form for form in FORMS if any(fnmatchcase(name, pattern) for pattern in form.places)]


def _is_of(form: DumpForm, path: Path) -> bool:
    try:
        return form.recognises(path, _first(path))
    except (NotALog, MissingDependency, OSError):
        return False


def dump_files(place: Path) -> list[DumpFile]:
    """The files of a dump, by name. A file is its own dump. If no form's pattern matches a file, files with more
    general names are listed. Raises NotALog if there are none.
    """
    if os.path.isfile(place):
        return [DumpFile(place, place.name)]
    found = {path.relative_to(place).as_posix(): path for path in _matches(place, PLACES)}
    for pattern in _LOOSE if not found else ():
        found = {path.relative_to(place).as_posix(): path for path in _matches(place, (pattern,))}
        if found:
            break
    left_out = {name for name, path in found.items() if any(form.is_left_out(path) for form in FORMS)}
    if found:
        return [DumpFile(found[name], name) for name in sorted(found.keys() - left_out)]
    raise NotALog(place, "the folder holds no rollouts" if os.path.exists(place) else "there is nothing there")


def splits_in(folder: Path) -> set[Split]:
    """The splits that a dump's files may hold, judged by their names."""
    found: set[Split] = set()
    for file in dump_files(folder):
        for form in forms_by_name(file.name)[:1]:
            split = form.split_of(file.path)
            found |= {"train", "validation"} if split is None else {split}
        if len(found) > 1:
            break
    return found


def _matches(folder: Path, patterns: tuple[str, ...]) -> Iterator[Path]:
    """The regular files that match one of the patterns. Links are not followed."""
    here = tuple(pattern for pattern in patterns if "/" not in pattern)
    below = [pattern.partition("/")[::2] for pattern in patterns if "/" in pattern]
    is_wanted, is_folder = _any_of(here), _any_of(tuple(first for first, _ in below))
    try:
        with os.scandir(folder) as entries:
            found = sorted(
                (entry.name, is_file)
                for entry in entries
                if (is_file := bool(is_wanted(entry.name)) and entry.is_file(follow_symlinks=False))
                or (is_folder(entry.name) and entry.is_dir(follow_symlinks=False))
            )
    except OSError:
        return
    for name, is_file in found:
        if is_file:
            yield folder / name
        else:
            yield from _matches(folder / name, tuple(rest for first, rest in below if fnmatchcase(name, first)))


@lru_cache(maxsize=256)
def _any_of(patterns: tuple[str, ...]) -> Callable[[str], object]:
    """A function that checks whether a name matches one of the patterns."""
    return re.compile("|".join(map(translate, patterns)) if patterns else r"(?!)").match
