"""Puts a set of files where others look at them: a folder, or a URL that fsspec knows.

A file that a reader follows names to (`mark`) is written last, and files that only the old one named are removed after
it: whoever looks meanwhile sees the old set or the new one. A folder with other files in it is left alone.
"""

from __future__ import annotations

import contextlib
import os
import shutil
from collections.abc import Mapping
from pathlib import Path

from rlvitals.codec import parse_shallow
from rlvitals.errors import RunError, RunExists
from rlvitals.store.files import make_folder, put_file, read_whole, replace_folder
from rlvitals.store.remote import FileTree, is_url

KEPT = "data/"
"""Below it, a name stands for one content."""


def publish(files: Mapping[str, bytes], to: str, mark: str, *, overwrite: bool = False) -> int:
    """Write files to a folder or URL; how many were written. Raises RunExists where something else is there."""
    if is_url(to):
        return _publish(files, _Remote(to), to, mark, overwrite)
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
    """Whole or not at all."""
    make_folder(folder.parent)
    draft = folder.with_name(f".{folder.name}.{os.urandom(4).hex()}.tmp")
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
    """A folder of this machine."""

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


class _Remote(FileTree):
    """A folder of a file system that fsspec knows."""


def _publish(files: Mapping[str, bytes], place: _Local | _Remote, to: str, mark: str, overwrite: bool) -> int:
    there = place.names()
    before = _known(place.read(mark)) if mark in there else None
    if there and before is None and not overwrite:
        raise RunExists(f"{to} holds other files. Choose another place, or pass --overwrite to write among them")
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
    """The files below `KEPT` that a mark names; None where it is none of ours."""
    try:
        told = parse_shallow(mark or b"")
    except ValueError:
        return None
    if not isinstance(told, dict) or "addresses" not in told:
        return None
    names: set[str] = set()
    waiting = [told]
    while waiting:
        item = waiting.pop()
        if isinstance(item, str):
            names |= {item} if item.startswith(KEPT) and ".." not in item else set()
        elif isinstance(item, dict | list):
            waiting += item.values() if isinstance(item, dict) else item
    return names
