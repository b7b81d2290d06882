"""Opens, replaces and appends to files, with the guarantees that all files of a run share.

- Only regular files are read. A FIFO, a device or a directory instead of a file raises OSError; opening never waits.
- Files that are read whole have a size limit. A larger file raises OSError and does not fill the memory.
- A file is replaced atomically, and the new bytes are on disk before the rename. After a power cut, a reader finds
  either the old file or the new one.
- Before an old copy is deleted, `sync_folder` writes the new file's name to disk.
- A new folder is synced to disk, so that files synced in it later cannot be lost with it.
- A line is appended in one write, and starts on a new line.
"""

from __future__ import annotations

import contextlib
import errno
import os
import shutil
import stat
import time
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any, BinaryIO

from rlvitals.codec import parse_shallow
from rlvitals.errors import RunUnreadable

MOST_BYTES = 256 * 2**20
"""Largest size of a file that is read whole."""

_STEP_BYTES = 2**16
_BINARY = getattr(os, "O_BINARY", 0)
_NO_WAIT = getattr(os, "O_NONBLOCK", 0) | getattr(os, "O_NOCTTY", 0)
_CANNOT_SYNC = {errno.EINVAL, errno.EBADF, errno.EACCES, errno.EPERM, errno.ENOSYS, errno.ENOTSUP, errno.EOPNOTSUPP}
"""Errors of disks that cannot sync a folder, or of folders that can be written but not read."""


def open_regular(path: Path) -> BinaryIO:
    """Open a file for reading. Raises OSError if it is not a regular file. Opening never waits."""
    return os.fdopen(open_descriptor(path, os.O_RDONLY), "rb")


def open_descriptor(path: Path, flags: int) -> int:
    """`os.open` for regular files only."""
    descriptor = os.open(path, flags | _NO_WAIT | _BINARY, 0o644)
    try:
        if not stat.S_ISREG(os.fstat(descriptor).st_mode):
            raise OSError(errno.EINVAL, "not a regular file", str(path))
    except OSError:
        os.close(descriptor)
        raise
    return descriptor


def read_whole(path: Path) -> bytes:
    """The bytes of a small file. Raises OSError if it cannot be read or is too large."""
    with open_regular(path) as file:
        data = file.read(MOST_BYTES + 1)
    if len(data) > MOST_BYTES:
        raise OSError(errno.EFBIG, f"more than {MOST_BYTES // 2**20} MiB", str(path))
    return data


def read_json(path: Path) -> Any:
    """Read a small file of strict JSON. Raises OSError, or ValueError for any invalid content."""
    return parse_shallow(read_whole(path))


def stamp(path: Path) -> tuple[int, int, int] | None:
    """A value that changes when the file changes; None if there is no file."""
    try:
        found = path.stat()
    except OSError:
        return None
    return found.st_ino, found.st_size, found.st_mtime_ns


def changed_at(path: str | Path) -> float:
    """When a file or folder was last changed; 0 if it does not exist."""
    try:
        return os.stat(path).st_mtime
    except OSError:
        return 0.0


def unreadable(path: Path, error: OSError) -> RunUnreadable:
    """The error for a file of a run that exists but cannot be read: what is wrong, and what to do."""
    if isinstance(error, PermissionError):
        advice = "It belongs to another user, or its folder does: ask its owner for permission to read it"
    elif error.errno == errno.ELOOP:
        advice = "It is a symbolic link that leads back to itself: remove it, or put the file in its place"
    elif error.errno in (errno.EINVAL, errno.EISDIR, errno.ENXIO):
        advice = "Something that is not a file has this name: move it away"
    else:
        advice = "Check the disk and its mount, and try again"
    return RunUnreadable(f"{path} cannot be read: {error.strerror or error}. {advice}.")


DRAFTS = ".*.tmp"
"""The names that `draft_of` returns."""

DRAFT_SECONDS = 120.0
"""An older draft is left over from a process that is gone."""


def draft_of(path: Path) -> Path:
    """A temporary name beside a file or folder, under which its new content is written before it replaces the old."""
    return path.with_name(f".{path.name}.{os.urandom(4).hex()}.tmp")


def remove_old_drafts(folder: Path, *patterns: str) -> None:
    """Remove the drafts that killed processes left in a folder. Recent ones may be in use."""
    for path in [path for pattern in patterns for path in folder.glob(pattern)]:
        with contextlib.suppress(OSError):
            if time.time() - path.stat().st_mtime > DRAFT_SECONDS:
                path.unlink()


def write_all(descriptor: int, data: bytes) -> None:
    """Write all bytes; one `os.write` may write fewer."""
    rest = memoryview(data)
    while rest:
        rest = rest[os.write(descriptor, rest) :]


def replace_file(path: Path, data: bytes | Iterable[bytes], *, is_derived: bool = False) -> None:
    """Write a whole file atomically, in place of an old one if there is one.

    `is_derived`: the file can be made again and detects its own damage, so it is not synced to disk.
    """
    draft = draft_of(path)
    with contextlib.ExitStack() as undo:
        undo.callback(_discard, draft)
        with open(draft, "wb") as file:
            file.writelines([data] if isinstance(data, bytes) else data)
            if not is_derived:
                file.flush()
                os.fsync(file.fileno())
        os.replace(draft, path)
        undo.pop_all()


def _discard(path: Path) -> None:
    with contextlib.suppress(OSError):
        path.unlink()


def sync_file(path: Path) -> None:
    """Sync to disk a file that other code wrote."""
    descriptor = os.open(path, (os.O_RDWR if os.name == "nt" else os.O_RDONLY) | _BINARY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def sync_folder(folder: Path) -> None:
    """Sync the names in a folder to disk, where the system supports it. Raises OSError if the disk fails; the caller
    should then keep the old copy.
    """
    if os.name == "nt":
        return
    try:
        sync_file(folder)
    except OSError as error:
        if error.errno not in _CANNOT_SYNC:
            raise


def make_folder(folder: Path, *, above: bool = True) -> None:
    """Create a folder and sync it to disk, with its missing parents unless `above` is False."""
    if folder.is_dir():
        return
    if above and folder.parent != folder:
        make_folder(folder.parent)
    folder.mkdir(exist_ok=True)
    sync_folder(folder.parent)


def put_file(path: Path, data: bytes) -> None:
    """`replace_file` in a folder that may not exist yet."""
    make_folder(path.parent)
    replace_file(path, data)


def replace_folder(draft: Path, place: Path) -> None:
    """Put a whole folder in place of another, if there is one. The old folder is deleted when the new one is on disk
    under its name. Until then `bring_back` can restore it.
    """
    for path in [draft, *draft.rglob("*")]:
        sync_folder(path) if path.is_dir() else sync_file(path)
    if place.exists():
        shutil.rmtree(_before(place), ignore_errors=True)
        place.rename(_before(place))
        sync_folder(place.parent)
    draft.rename(place)
    sync_folder(place.parent)
    shutil.rmtree(_before(place), ignore_errors=True)


def bring_back(place: Path) -> None:
    """Undo the replacement of a folder that was interrupted while no folder had the name."""
    with contextlib.suppress(OSError):
        if not place.exists():
            _before(place).rename(place)


def _before(place: Path) -> Path:
    return place.with_name(f".{place.name}.before")


def remove_paths(paths: Iterable[Path]) -> None:
    """Remove files and whole folders, and sync that to disk: a power cut must not restore them."""
    gone = list(paths)
    for path in gone:
        if path.is_dir() and not path.is_symlink():
            shutil.rmtree(path, ignore_errors=True)
        else:
            path.unlink(missing_ok=True)
    for folder in {path.parent for path in gone}:
        if folder.is_dir():
            sync_folder(folder)


def lines_from_end(file: BinaryIO) -> Iterator[bytes]:
    """The lines of a file from the last to the first, without their newlines. The first item is the text after the last
    newline, which is usually empty.
    """
    position = file.seek(0, os.SEEK_END)
    pieces: list[bytes] = []  # parts of the current line, its end first
    while position > 0:
        start = max(0, position - _STEP_BYTES)
        file.seek(start)
        first, *later = file.read(position - start).split(b"\n")
        position = start
        if later:
            yield b"".join([later.pop(), *reversed(pieces)])
            yield from reversed(later)
            pieces = []
        pieces.append(first)
    yield b"".join(reversed(pieces))


def append_line(path: Path, line: bytes, *, sync: bool = False) -> None:
    """Append a line in one write. Raises OSError if the disk does not accept all of it.

    Several processes may append to one file, so nothing is ever cut off. A partial line left by a kill or a full disk
    stays, and the next line begins on a new line.
    """
    descriptor = open_descriptor(path, os.O_RDWR | os.O_APPEND | os.O_CREAT)
    try:
        is_first = os.lseek(descriptor, 0, os.SEEK_END) == 0
        if not is_first:
            os.lseek(descriptor, -1, os.SEEK_END)
            if os.read(descriptor, 1) != b"\n":
                line = b"\n" + line
        if os.write(descriptor, line) < len(line):
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), str(path))
        if sync:
            with contextlib.suppress(OSError):  # the line was written; a second write would duplicate it
                os.fsync(descriptor)
                if is_first:
                    sync_folder(path.parent)
    finally:
        os.close(descriptor)
