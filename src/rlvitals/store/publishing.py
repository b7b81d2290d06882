"""Publishes a set of files to a folder or to a URL supported by fsspec.

The file that refers to the others (`mark`) is written last, and files that only the old mark referred to are removed
after that. A reader therefore sees either the old set or the new one. A folder that holds other files is refused,
unless `overwrite` is set.
"""

from __future__ import annotations

import contextlib
import shutil
from collections.abc import Mapping
from pathlib import Path

from rlvitals.codec import leaves, parse_shallow
from rlvitals.errors import RunError, RunExists
from rlvitals.store.files import draft_of, make_folder, put_file, read_whole, replace_folder
from rlvitals.store.remote import RemotePlace, is_url

KEPT = "data/"
"""A file name below this folder always stands for the same content."""


def publish(files: Mapping[str, bytes], to: str, mark: str, *, overwrite: bool = False) -> int:
    """Write files to a folder or URL; returns how many were written. Raises RunExists if it holds something else."""
    if is_url(to):
        there = RemotePlace(to)
        with there.named_errors("write"):
            return _publish(files, there, to, mark, overwrite)
    folder = Path(to).absolute()
    try:
        if not folder.exists() or (folder.is_dir() and not any(folder.iterdir())):
            return _put_new(files, folder)
        if not folder.is_dir():
            raise RunExists(f"{to} is a file: name a folder")
        return _publish(files, _Local(folder), to, mark, overwrite)
    except OSError as error:
        raise RunError(f"cannot write {to}: {error.strerror or error}") from error


def _put_new(files: Mapping[str, bytes], folder: Path) -> int:
    """Write all files or none."""
    make_folder(folder.parent)
    draft = draft_of(folder)
    try:
        for name, data in files.items():
            make_folder((draft / name).parent)
            (draft / name).write_bytes(data)
        with contextlib.suppress(OSError):
            folder.rmdir()
        replace_folder(draft, folder)
    finally:
        shutil.rmtree(draft, ignore_errors=True)
    return len(files)


class _Local:
    """A folder on this machine."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder

    def names(self) -> set[str]:
        return {path.relative_to(self._folder).as_posix() for path in self._folder.rglob("*") if path.is_file()}

    def read(self, name: str) -> bytes | None:
        try:
            return read_whole(self._folder / name)
        except OSError:
            return None

    def write(self, name: str, data: bytes) -> None:
        put_file(self._folder / name, data)

    def remove(self, name: str) -> None:
        (self._folder / name).unlink(missing_ok=True)


def _publish(files: Mapping[str, bytes], place: _Local | RemotePlace, to: str, mark: str, overwrite: bool) -> int:
    there = place.names()
    before = _known(place.read(mark)) if mark in there else None
    if there and before is None and not overwrite:
        raise RunExists(f"{to} holds other files. Choose another place, or pass --overwrite to write there anyway")
    written = 0
    for name in sorted(files, key=lambda name: (name == mark, name == "index.html", name)):
        is_same = name in there and (name.startswith(KEPT) or place.read(name) == files[name])
        if not is_same:
            place.write(name, files[name])
            written += 1
    for name in sorted((before or set()) - set(files)):
        if name in there:
            place.remove(name)
    return written


def _known(mark: bytes | None) -> set[str] | None:
    """The files below `KEPT` that a mark refers to; None if rlvitals did not write the mark."""
    try:
        parsed = parse_shallow(mark or b"")
    except ValueError:
        return None
    if not isinstance(parsed, dict) or "addresses" not in parsed:
        return None
    return {leaf for leaf in leaves(parsed) if isinstance(leaf, str) and leaf.startswith(KEPT) and ".." not in leaf}
