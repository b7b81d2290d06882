"""Lists and reads the files of a dump for the table of rollouts.

Nothing is written to the dump's folder. The table is in the user's cache (`store.remote.cache_folder`). Tables that
were not used for 30 days are removed when a new one is created.
"""

from __future__ import annotations

import contextlib
import hashlib
import os
import time
from collections import defaultdict
from collections.abc import Iterable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

from rlvitals.errors import MissingDependency, NotALog
from rlvitals.importers.base import Notes
from rlvitals.importers.dumps.base import DumpForm, Split, group_in, with_part
from rlvitals.importers.dumps.registry import dump_files, form_of, forms_by_name
from rlvitals.records import Group
from rlvitals.store.files import stamp
from rlvitals.store.remote import cache_folder
from rlvitals.store.rollout_forms import plain
from rlvitals.store.rollout_index import FilePart, Indexed
from rlvitals.store.rollout_search import as_written, places

KEPT_SECONDS = 30 * 86_400
MOST_NOTES = 20
"""The most notes of one file."""


class DumpFiles:
    """One split of a dump: a folder of a framework's files, or a single file."""

    is_in_parts = True

    def __init__(self, place: Path, split: Split) -> None:
        self._place = place.absolute()
        self._split = split
        self._forms: dict[tuple[Path, tuple[int, int, int]], DumpForm] = {}

    @property
    def table(self) -> Path | None:
        return _table(self._place, self._split)

    @property
    def state(self) -> tuple[object, ...]:
        """A value that changes when a file is added or changed."""
        return tuple((file.name, file.state) for file in self.files())

    def files(self) -> list[Indexed]:
        found = []
        for file in dump_files(self._place):
            forms = forms_by_name(file.name)
            if forms and all(form.split_of(file.path) not in (None, self._split) for form in forms):
                continue
            if (state := stamp(file.path)) is not None:  # else it was deleted meanwhile
                grows = bool(forms) and all(form.grows for form in forms)
                found.append(Indexed(file.name, file.path, None, 0, state, grows))
        return found

    def read(self, file: Indexed, start: int, notes: list[str]) -> Iterator[tuple[int, int, dict[str, Any]]]:
        for offset, end, group in self._groups(file, start, notes):
            yield offset, end, {**_facts(group), "step": group.step, "attempt": 1}

    def search(self, file: Indexed, text: str, step: int | None) -> Iterator[tuple[int, list[int]]]:
        wanted = text.lower()
        # Another program may have escaped characters that are not ASCII. Every row is then searched.
        needle = as_written(wanted) if wanted.isascii() else b""
        for offset, _, group in self._groups(file, 0, [], needle):
            if step in (None, group.step) and (found := places(_texts(group), wanted)):
                yield offset, found

    def groups(self, parts: Iterable[FilePart], notes: list[str]) -> list[Group]:
        """The complete groups of these parts, in order."""
        wanted: dict[str, list[int]] = defaultdict(list)
        for part in parts:
            wanted[part.file].append(part.offset)
        files = {file.name: file for file in self.files()}
        found: dict[str, Group] = {}
        for name, offsets in wanted.items():
            if name not in files:
                continue
            file_notes = Notes()
            with self._errors_as_notes(notes, file_notes):
                for piece in self._form(files[name]).pick(files[name].path, set(offsets), file_notes):
                    group = group_in(piece.contents, file_notes)
                    if group is not None and piece.contents.split == self._split:
                        found[group.key] = with_part(found.get(group.key), group)
        return list(found.values())

    def _groups(
        self, file: Indexed, start: int, notes: list[str], needle: bytes = b""
    ) -> Iterator[tuple[int, int, Group]]:
        file_notes = Notes()
        with self._errors_as_notes(notes, file_notes):
            for piece in self._form(file).read(file.path, start, file_notes, needle):
                if piece.contents.split != self._split:
                    continue
                group = group_in(piece.contents, file_notes)
                if group is not None:
                    yield piece.offset, piece.end, group

    @contextlib.contextmanager
    def _errors_as_notes(self, notes: list[str], file_notes: Notes) -> Iterator[None]:
        """Converts errors on reading a file to a note, so that the other files are still read."""
        try:
            yield
        except NotALog as error:
            file_notes.say(error.why)
        except (MissingDependency, OSError) as error:
            file_notes.say(str(error))
        finally:
            notes += file_notes.texts()[:MOST_NOTES]

    def _form(self, file: Indexed) -> DumpForm:
        key = (file.path, file.state)
        if key not in self._forms:
            self._forms[key] = form_of(file.path)
        return self._forms[key]


def _facts(group: Group) -> dict[str, Any]:
    """The fields of a group that the table stores."""
    rollouts = [
        {
            "turns": [None] * len(rollout.turns), "reward": rollout.reward, "outcome": rollout.outcome,
            "stop": rollout.stop, "error": rollout.error,
        }
        for rollout in group.rollouts
    ]  # fmt: skip
    return {
        "id": group.id, "prompt": group.prompt, "kept": group.kept, "reason": group.reason, "mean": group.mean,
        "std": group.std, "max_turns": group.max_turns, "rollouts": rollouts,
    }  # fmt: skip


def _texts(group: Group) -> dict[str, Any]:
    """A group without its tokens."""
    bare = tuple(replace(rollout, trace=None) for rollout in group.rollouts)
    fields: dict[str, Any] = plain(replace(group, rollouts=bare))
    return {**fields, "rollouts": [plain(rollout) for rollout in bare]}


def _table(place: Path, split: Split) -> Path | None:
    """The path of a dump's table; None if the cache folder is not writable."""
    try:
        folder = cache_folder("dumps")
        if not folder.is_dir():
            folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        name = hashlib.sha256(f"{os.path.realpath(place)}\0{split}".encode("utf-8", "surrogateescape")).hexdigest()[:32]
        table = folder / f"{name}.sqlite"
        if table.exists():
            os.utime(table)
        else:
            _forget_old(folder)
    except (OSError, RuntimeError):
        return None
    return table


def _forget_old(folder: Path) -> None:
    long_ago = time.time() - KEPT_SECONDS
    with contextlib.suppress(OSError):
        for entry in os.scandir(folder):
            if entry.name.endswith(".sqlite") and entry.stat().st_mtime < long_ago:
                os.unlink(entry.path)
