"""The forms of dumps there are, and which files of a folder are of them.

A folder is a dump by the places its files have in it (`Form.places`), not by looking into every file: a folder of a
framework's run counts as one, with all its steps. Nothing outside the folder is read: a link that leads out of it is
passed over.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from fnmatch import fnmatch
from pathlib import Path
from typing import Any, NamedTuple

from rlvitals.errors import MissingDependency, NotALog
from rlvitals.importers.dumps.base import Form, Split, document, first_row
from rlvitals.importers.dumps.inspect_ai import Inspect
from rlvitals.importers.dumps.messages import Documents, Lines, OwnLines
from rlvitals.importers.dumps.nemo_rl import NemoRl
from rlvitals.importers.dumps.openrlhf import OpenRlhf
from rlvitals.importers.dumps.roll import Roll
from rlvitals.importers.dumps.skyrl import SkyRl
from rlvitals.importers.dumps.slime import Slime
from rlvitals.importers.dumps.tinker import Summaries, Trajectories
from rlvitals.importers.dumps.trl import Trl
from rlvitals.importers.dumps.verifiers import Episodes, Results
from rlvitals.importers.dumps.verl import Verl

FORMS: tuple[Form, ...] = (
    Episodes(), NemoRl(), Roll(), Slime(), Summaries(), SkyRl(), Verl(), OpenRlhf(), Trl(), Results(), Trajectories(),
    Inspect(), OwnLines(), Lines(), Documents(),
)  # fmt: skip
"""In the order in which they are asked."""

_LOOSE = ("completions/*.parquet", "rollouts/*.jsonl", "*.jsonl", "*.parquet", "*.json", "*.ndjson")
"""Where rollouts of no framework's layout may be, when somebody names the folder."""


class DumpFile(NamedTuple):
    """One file of a dump."""

    path: Path
    name: str
    """Its path in the dump's folder."""


def form_of(path: Path) -> Form:
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
    for form in FORMS:
        for pattern in form.places:
            found = next(_matches(folder, pattern), None)
            if found is not None and _is_of(form, found):
                return True
    return False


def _is_of(form: Form, path: Path) -> bool:
    try:
        return form.recognises(path, _first(path))
    except (NotALog, MissingDependency, OSError):
        return False


def dump_files(place: Path, *, loose: bool = True) -> list[DumpFile]:
    """The files of a dump, by name: a file is one itself. `loose`: also where nothing but their rows says what they
    are, if there are no others. Raises NotALog where there are none.
    """
    if os.path.isfile(place):
        return [DumpFile(place, place.name)]
    patterns = [pattern for form in FORMS for pattern in form.places]
    found = {path.relative_to(place).as_posix(): path for pattern in patterns for path in _matches(place, pattern)}
    for pattern in _LOOSE if loose and not found else ():
        found |= {path.relative_to(place).as_posix(): path for path in _matches(place, pattern)}
        if found:
            break
    doubles = {name for name, path in found.items() if any(form.is_double(path) for form in FORMS)}
    if found:
        return [DumpFile(found[name], name) for name in sorted(found.keys() - doubles)]
    raise NotALog(place, "the folder holds no rollouts" if os.path.exists(place) else "there is nothing there")


def splits_in(folder: Path) -> set[Split]:
    """Which splits a dump's files may hold, as far as their names say."""
    found: set[Split] = set()
    for file in dump_files(folder):
        for form in FORMS:
            if any(fnmatch(file.name, pattern) for pattern in form.places):
                said = form.split_of(file.path)
                found |= {"train", "validation"} if said is None else {said}
                break
        if len(found) == 2:
            break
    return found


def _matches(folder: Path, pattern: str) -> Iterator[Path]:
    """The plain files that a pattern finds, level by level, without following a link."""
    first, _, rest = pattern.partition("/")
    try:
        with os.scandir(folder) as entries:
            names = sorted(
                entry.name
                for entry in entries
                if fnmatch(entry.name, first)
                and (entry.is_dir(follow_symlinks=False) if rest else entry.is_file(follow_symlinks=False))
            )
    except OSError:
        return
    for name in names:
        if rest:
            yield from _matches(folder / name, rest)
        else:
            yield folder / name
