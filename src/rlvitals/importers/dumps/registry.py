"""The forms of dumps there are, and which files of a folder are of them.

A folder is a dump by the places its files have in it (`DumpForm.places`), not by looking into every file: a folder of a
framework's run counts as one, with all its steps. Nothing outside the folder is read: a link that leads out of it is
skipped.
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
from rlvitals.importers.dumps.base import DumpForm, Split, document, first_row
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
"""In the order in which they are asked."""

PLACES = tuple(dict.fromkeys(pattern for form in FORMS for pattern in form.places))
MOST_TRIED = 3
"""Files of a folder that are looked into before it is read as something else."""

_LOOSE = ("completions/*.parquet", "rollouts/*.jsonl", "*.jsonl", "*.parquet", "*.json", "*.ndjson")
"""Where rollouts of no framework's layout may be, when somebody names the folder."""


class DumpFile(NamedTuple):
    """One file of a dump."""

    path: Path
    name: str
    """Its path in the dump's folder."""


def form_of(path: Path) -> DumpForm:
    """The form of a file. Raises NotALog where it is of none."""
    row = _first(path)
    for form in FORMS:
        if form.recognises(path, row):
            return form
    raise NotALog(path, "no row of it is a rollout: a prompt and a completion, or messages")


def _first(path: Path) -> Any:
    if path.suffix in (".pt", ".parquet", ".eval"):
        return None
    return document(path) if path.suffix == ".json" else first_row(path)


def is_dump(folder: Path) -> bool:
    """Whether a folder is the dump of some framework: a file in the right place that its form recognises."""
    for path in islice(_matches(folder, PLACES), MOST_TRIED):
        name = path.relative_to(folder).as_posix()
        if any(_is_of(form, path) for form in forms_by_name(name)):
            return True
    return False


def forms_by_name(name: str) -> list[DumpForm]:
    """The forms whose files have such a place in a dump."""
    return [form for form in FORMS if any(fnmatchcase(name, pattern) for pattern in form.places)]


def _is_of(form: DumpForm, path: Path) -> bool:
    try:
        return form.recognises(path, _first(path))
    except (NotALog, MissingDependency, OSError):
        return False


def dump_files(place: Path) -> list[DumpFile]:
    """The files of a dump, by name: a file is one itself. Where there are no others, also those of which nothing but
    their rows says what they are. Raises NotALog where there are none.
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
    """Which splits a dump's files may hold, as far as their names say."""
    found: set[Split] = set()
    for file in dump_files(folder):
        for form in forms_by_name(file.name)[:1]:
            said = form.split_of(file.path)
            found |= {"train", "validation"} if said is None else {said}
        if len(found) > 1:
            break
    return found


def _matches(folder: Path, patterns: tuple[str, ...]) -> Iterator[Path]:
    """The plain files that one of the patterns finds, level by level, without following a link."""
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
    """Whether a name fits one of the patterns."""
    return re.compile("|".join(map(translate, patterns)) if patterns else r"(?!)").match
