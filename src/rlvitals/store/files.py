"""How files are opened, replaced and added to: the promises that every file of a run shares.

- Only regular files are read. A FIFO, a device or a directory in a file's place is an OSError, never a wait.
- Small files are small: one that is not is an OSError too, and does not fill the memory.
- A whole file is replaced at once, and the new bytes are on the disk before they take the name: a reader, or a power
  cut, finds the old file or the new one.
- Before an old copy is deleted, `sync_folder` has the disk know the new one's name.
- A folder that is made is known to the disk: what is synced in it later cannot vanish with it.
- A line is added in one write, on its own line.
"""

from __future__ import annotations

import contextlib
import errno
import os
import shutil
import stat
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any, BinaryIO

from rlvitals.codec import parse_shallow
from rlvitals.errors import RunUnreadable

MOST_BYTES = 256 * 2**20
"""Of a file that is read whole."""

_STEP_BYTES = 2**16
_BINARY = getattr(os, "O_BINARY", 0)
_NO_WAIT = getattr(os, "O_NONBLOCK", 0) | getattr(os, "O_NOCTTY", 0)
_CANNOT_SYNC = {errno.EINVAL, errno.EBADF, errno.EACCES, errno.EPERM, errno.ENOSYS, errno.ENOTSUP, errno.EOPNOTSUPP}
"""What disks that cannot sync a folder say, or folders that may be written and not read."""


def open_regular(path: Path) -> BinaryIO:
    """Open a file for reading. Raises OSError for whatever is not a regular file; opening one never waits."""
    return os.fdopen(open_descriptor(path, os.O_RDONLY), "rb")


def open_descriptor(path: Path, flags: int, mode: int = 0o644) -> int:
    """`os.open` that takes regular files only."""
    descriptor = os.open(path, flags | _NO_WAIT | _BINARY, mode)
    try:
        if not stat.S_ISREG(os.fstat(descriptor).st_mode):
            raise OSError(errno.EINVAL, "not a regular file", str(path))
    except OSError:
        os.close(descriptor)
        raise
    return descriptor


def read_whole(path: Path) -> bytes:
    """The bytes of a small file. Raises OSError, also where it is none."""
    with open_regular(path) as file:
        data = file.read(MOST_BYTES + 1)
    if len(data) > MOST_BYTES:
        raise OSError(errno.EFBIG, f"more than {MOST_BYTES // 2**20} MiB", str(path))
    return data


def read_json(path: Path) -> Any:
    """A small file of strict JSON. Raises OSError, or ValueError on anything that is none, however deep or odd."""
    return parse_shallow(read_whole(path))


def stamp(path: Path) -> tuple[int, int, int] | None:
    """What changes when a file does; None where there is none."""
    try:
        found = path.stat()
    except OSError:
        return None
    return found.st_ino, found.st_size, found.st_mtime_ns


def unreadable(path: Path, error: OSError) -> RunUnreadable:
    """What to tell of a file of a run that is there and cannot be read: what is wrong with it, and what to do."""
    if isinstance(error, PermissionError):
        advice = "It belongs to another user, or its folder does: ask its owner for permission to read it"
    elif error.errno == errno.ELOOP:
        advice = "It is a symbolic link that leads back to itself: remove it, or put the file in its place"
    elif error.errno in (errno.EINVAL, errno.EISDIR, errno.ENXIO):
        advice = "Something else stands in the file's place: move it away"
    else:
        advice = "Check the disk and its mount, and try again"
    return RunUnreadable(f"{path} cannot be read: {error.strerror or error}. {advice}.")


def replace_file(path: Path, data: bytes | Iterable[bytes], *, is_derived: bool = False) -> None:
    """Put a whole file in place of another, or of nothing, at once.

    `is_derived`: it can be made again and says itself whether it is whole, so the disk is not waited for.
    """
    draft = path.with_name(f".{path.name}.{os.urandom(4).hex()}.tmp")
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
    """Have the disk itself hold a file that somebody else wrote."""
    descriptor = os.open(path, (os.O_RDWR if os.name == "nt" else os.O_RDONLY) | _BINARY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def sync_folder(folder: Path) -> None:
    """Have the disk know the names in a folder, where folders can be asked for that. Raises OSError where the disk
    fails at it: an old copy is then better kept.
    """
    if os.name == "nt":
        return
    try:
        sync_file(folder)
    except OSError as error:
        if error.errno not in _CANNOT_SYNC:
            raise


def make_folder(folder: Path, *, above: bool = True) -> None:
    """Make a folder and have the disk know it; and those above it that are missing, unless `above` is False."""
    if folder.is_dir():
        return
    if above and folder.parent != folder:
        make_folder(folder.parent)
    folder.mkdir(exist_ok=True)
    sync_folder(folder.parent)


def put_file(path: Path, data: bytes) -> None:
    """`replace_file` in a folder that may be missing."""
    make_folder(path.parent)
    replace_file(path, data)


def replace_folder(draft: Path, place: Path) -> None:
    """Put a whole folder in place of another, or of nothing. The old one goes when the disk has the new one under its
    name; until then `bring_back` finds it.
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
    """Undo a replacement of a folder that was cut short while nothing had its name."""
    with contextlib.suppress(OSError):
        if not place.exists():
            _before(place).rename(place)


def _before(place: Path) -> Path:
    return place.with_name(f".{place.name}.before")


def remove_paths(paths: Iterable[Path]) -> None:
    """Remove files and whole folders, and have the disk know it: a power cut must not bring them back."""
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
    """The lines of a file from the last to the first, without their newlines. The first that is given is what stands
    after the last newline, mostly nothing.
    """
    position = file.seek(0, os.SEEK_END)
    pieces: list[bytes] = []  # of the line that is being put together, its end first
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
    """Add a line in one write. Raises OSError where the disk does not take all of it.

    Several processes may append to one file, so nothing is ever cut off: half a line, left by a kill or a full disk,
    stays, and the next one begins on its own line.
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
            with contextlib.suppress(OSError):  # the line is there; it must not be written a second time
                os.fsync(descriptor)
                if is_first:
                    sync_folder(path.parent)
    finally:
        os.close(descriptor)
