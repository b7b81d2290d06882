"""Runs that other machines push into a folder: which files a push may write, and the state of each file.

A growing log arrives in pieces, and each piece must begin where the file ends. The sender asks for that offset, so
bytes that were already written are not written again. Other files arrive whole. A push writes only files of a run's
directory and follows no links. It writes only into folders that pushes created; `.pushed.json` names the run of such a
folder.
"""

from __future__ import annotations

import base64
import binascii
import contextlib
import hashlib
import os
import re
import threading
from collections.abc import Iterator, Mapping
from pathlib import Path, PurePosixPath
from typing import Any

from rlvitals.codec import to_json
from rlvitals.errors import ConfigError, RunExists, RunNotFound
from rlvitals.store.files import (
    make_folder,
    open_descriptor,
    open_regular,
    read_json,
    replace_file,
    sync_file,
    sync_folder,
    write_all,
)
from rlvitals.store.layout import RunDir, is_appended, is_run_file

MOST_PIECE = 512 * 1024
"""Largest piece, in bytes."""

MOST_DEPTH = 4
"""Largest number of folders in a run's name."""

MARK = ".pushed.json"
QUOTA = 10 * 2**30

_PART = re.compile(r"\w[\w.+=@-]{0,99}")
_NO_LINK = getattr(os, "O_NOFOLLOW", 0)


class OutOfPlace(ConfigError):
    """A piece does not begin where its file ends. `size` is the correct offset."""

    def __init__(self, file: str, offset: int, size: int) -> None:
        super().__init__(f"{file} has {size} bytes; a piece at offset {offset} does not fit")
        self.size = size


class QuotaUsed(ConfigError):
    """The quota for pushed runs is used up."""


class Inbox:
    """The pushed runs of one folder. Safe to use from several threads."""

    def __init__(self, root: Path, quota: int = QUOTA) -> None:
        self._root = root.resolve()
        self._quota = quota
        self._lock = threading.Lock()
        self._locks: dict[str, threading.Lock] = {}
        self.used = sum(_bytes_below(path.parent) for path in _marks(self._root))

    def take(self, message: Mapping[str, Any]) -> dict[str, Any]:
        """Carry out a push and return the state of its file. Raises ConfigError, RunExists or OSError."""
        run, identity, what = _text(message, "run"), _text(message, "id", ""), _text(message, "what")
        folder = self._folder(run)
        with self._lock:
            lock = self._locks.setdefault(run, threading.Lock())
        with lock:
            if what == "state":
                return {"files": self._state(folder, identity, run), "piece": MOST_PIECE}
            self._claim(folder, identity, run)
            file = _text(message, "file")
            if not is_run_file(file):
                raise ConfigError(f"{file[:200]!r} is not a file of a run's directory")
            path = self._place(folder, file)
            if what == "append":
                return {"size": self._append(path, file, message)}
            if what == "put":
                return {"size": self._put(path, file, message)}
            if what == "remove":
                return {"size": self._remove(path)}
        raise ConfigError(f"{what[:40]!r} is not an operation of a push")

    def _folder(self, run: str) -> Path:
        parts = run.split("/")
        if len(parts) > MOST_DEPTH or not all(map(_PART.fullmatch, parts)):
            raise ConfigError(
                f"{run[:200]!r} is not a name for a pushed run: up to {MOST_DEPTH} parts separated by slashes, each "
                "of letters, digits and _.+=@-"
            )
        return self._root.joinpath(*parts)

    def _state(self, folder: Path, identity: str, run: str) -> dict[str, dict[str, Any]]:
        """Size and hash of every existing file."""
        if not os.path.lexists(folder):
            return {}
        self._check(folder, identity, run)
        found = {}
        for path in _files_below(folder):
            name = path.relative_to(folder).as_posix()
            if is_run_file(name):
                size, digest = hash_of(path)
                found[name] = {"size": size, "sha256": digest}
        return found

    def _claim(self, folder: Path, identity: str, run: str) -> None:
        """Create the run's folder, or check that it belongs to the same run."""
        if os.path.lexists(folder):
            return self._check(folder, identity, run)
        above = self._root
        for part in folder.relative_to(self._root).parts:
            if os.path.lexists(above / MARK) or RunDir(above).holds_run:
                raise RunExists(f"{run} would be inside another run")
            above = above / part
            _refuse_link(above)
            make_folder(above, above=False)
        replace_file(folder / MARK, to_json({"id": identity}))
        sync_folder(folder)
        return None

    def _check(self, folder: Path, identity: str, run: str) -> None:
        for place in [folder, *folder.parents]:
            if place == self._root:
                break
            _refuse_link(place)
        try:
            known = read_json(folder / MARK)
        except (OSError, ValueError):
            raise RunExists(f"{run} already exists and was not pushed. Push under another name: --name NAME") from None
        if not isinstance(known, dict) or known.get("id") != identity:
            raise RunExists(f"{run} holds another run. Push under another name: --name NAME")

    def _place(self, folder: Path, file: str) -> Path:
        place = folder
        for part in PurePosixPath(file).parts[:-1]:
            place = place / part
            _refuse_link(place)
            make_folder(place, above=False)
        path = place / PurePosixPath(file).name
        _refuse_link(path)
        return path

    def _append(self, path: Path, file: str, message: Mapping[str, Any]) -> int:
        if not is_appended(file):
            raise ConfigError(f"{file} cannot be appended to: send the whole file")
        data, offset = _data(message), message.get("offset")
        if type(offset) is not int or offset < 0:
            raise ConfigError("'offset' must be a whole number of at least 0")
        descriptor = open_descriptor(path, os.O_RDWR | os.O_CREAT | _NO_LINK)
        try:
            size = os.fstat(descriptor).st_size
            if message.get("cut") is True and offset <= size:
                os.ftruncate(descriptor, offset)
                self._count(offset - size)
                size = offset
            if offset != size:
                raise OutOfPlace(file, offset, size)
            self._count(len(data))
            os.lseek(descriptor, offset, os.SEEK_SET)
            write_all(descriptor, data)
            os.fsync(descriptor)  # the sender does not send confirmed bytes again
        finally:
            os.close(descriptor)
        if offset == 0:
            sync_folder(path.parent)
        return offset + len(data)

    def _put(self, path: Path, file: str, message: Mapping[str, Any]) -> int:
        """Write a whole file. A long file arrives in pieces, and the last piece carries the hash of the whole file."""
        data, offset = _data(message), message.get("offset", 0)
        draft = path.with_name(f".{path.name}.push")
        _refuse_link(draft)
        if type(offset) is not int or offset < 0:
            raise ConfigError("'offset' must be a whole number of at least 0")
        descriptor = open_descriptor(draft, os.O_RDWR | os.O_CREAT | _NO_LINK)
        try:
            size = os.fstat(descriptor).st_size
            if offset > size:
                raise OutOfPlace(file, offset, size)
            self._count(offset + len(data) - size)
            os.ftruncate(descriptor, offset)
            os.lseek(descriptor, offset, os.SEEK_SET)
            write_all(descriptor, data)
        finally:
            os.close(descriptor)
        wanted = _text(message, "sha256", "")
        if wanted:
            if hash_of(draft)[1] != wanted:
                self._remove(draft)
                raise OutOfPlace(file, offset, 0)
            before = _size(path)
            sync_file(draft)
            os.replace(draft, path)
            sync_folder(path.parent)
            self._count(-before)
        return offset + len(data)

    def _remove(self, path: Path) -> int:
        size = _size(path)
        path.unlink(missing_ok=True)
        self._count(-size)
        return 0

    def _count(self, more: int) -> None:
        with self._lock:
            if more > 0 and self.used + more > self._quota:
                raise QuotaUsed(f"the server's quota for pushed runs, {self._quota:,} bytes, is used up")
            self.used += more


def hash_of(path: Path, end: int | None = None) -> tuple[int, str]:
    """Size and SHA-256 of a file, or of its first bytes."""
    digest, size = hashlib.sha256(), 0
    with open_regular(path) as file:
        while data := file.read(2**20 if end is None else min(2**20, end - size)):
            digest.update(data)
            size += len(data)
    return size, digest.hexdigest()


def run_files(folder: Path) -> list[str]:
    """The names of a run's files below its folder, sorted; links are skipped."""
    names = (path.relative_to(folder).as_posix() for path in _files_below(folder))
    return sorted(name for name in names if is_run_file(name))


def _files_below(folder: Path) -> Iterator[Path]:
    """The files that a run may have: those in its folder and in its subfolders."""
    run = RunDir(folder)
    for place in (folder, run.logs, run.ranks, run.rollouts, run.eval_logs, run.eval_rollouts, run.epochs.folder):
        if place.is_symlink():
            continue
        with contextlib.suppress(FileNotFoundError, NotADirectoryError), os.scandir(place) as entries:
            yield from [Path(entry.path) for entry in entries if entry.is_file(follow_symlinks=False)]


def _marks(root: Path, depth: int = MOST_DEPTH) -> Iterator[Path]:
    """The mark files of pushed runs below a folder."""
    if os.path.lexists(root / MARK):
        yield root / MARK
    if depth:
        with contextlib.suppress(OSError), os.scandir(root) as entries:
            for entry in [entry for entry in entries if entry.is_dir(follow_symlinks=False)]:
                yield from _marks(Path(entry.path), depth - 1)


def _bytes_below(folder: Path) -> int:
    return sum(_size(path) for path in _files_below(folder) if path.name != MARK)


def _size(path: Path) -> int:
    try:
        return path.lstat().st_size
    except OSError:
        return 0


def _refuse_link(path: Path) -> None:
    if os.path.islink(path):
        raise RunNotFound("the path of this file contains a link, and pushes do not follow links")


def _data(message: Mapping[str, Any]) -> bytes:
    try:
        data = base64.b64decode(_text(message, "data", ""), validate=True)
    except (binascii.Error, ValueError):
        raise ConfigError("'data' is not base64") from None
    if len(data) > MOST_PIECE:
        raise ConfigError(f"a piece has at most {MOST_PIECE:,} bytes")
    return data


def _text(message: Mapping[str, Any], key: str, default: str | None = None) -> str:
    found = message.get(key, default)
    if not isinstance(found, str):
        raise ConfigError(f"{key!r} must be a text")
    return found
