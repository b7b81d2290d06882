"""How files are opened, replaced and added to: the promises that every file of a run shares.

- Only regular files are read. A FIFO, a device or a directory in a file's place is an OSError, never a wait.
- Small files are small: one that is not is an OSError too, and does not fill the memory.
- A whole file is replaced at once, and the new bytes are on the disk before they take the name: a reader, or a power
  cut, finds the old file or the new one.
- Before an old copy is deleted, `sync_folder` has the disk know the new one's name.
- A line is added in one write, on a line of its own.
"""

from __future__ import annotations

import contextlib
import errno
import os
import stat
from collections.abc import Iterable
from pathlib import Path
from typing import Any, BinaryIO

from rlvitals.codec import parse_shallow
from rlvitals.errors import RunUnreadable

MOST_BYTES = 256 * 2**20
"""Of a file that is read whole."""

_BINARY = getattr(os, "O_BINARY", 0)
_NO_WAIT = getattr(os, "O_NONBLOCK", 0) | getattr(os, "O_NOCTTY", 0)


def open_regular(path: Path) -> BinaryIO:
    """Open a file for reading. Raises OSError for whatever is no regular file; opening one never waits."""
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
    try:
        with open(draft, "wb") as file:
            file.writelines([data] if isinstance(data, bytes) else data)
            if not is_derived:
                file.flush()
                os.fsync(file.fileno())
        os.replace(draft, path)
    except BaseException:
        with contextlib.suppress(OSError):
            draft.unlink()
        raise


def sync_file(path: Path) -> None:
    """Have the disk itself hold a file that somebody else wrote."""
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def sync_folder(folder: Path) -> None:
    """Have the disk know the names in a folder, where folders can be asked for that."""
    with contextlib.suppress(OSError):  # Windows and some network disks refuse
        sync_file(folder)


def append_line(path: Path, line: bytes, *, sync: bool = False) -> None:
    """Add a line in one write. Raises OSError where the disk does not take all of it.

    Several processes may append to one file, so nothing is ever cut off: half a line, left by a kill or a full disk,
    stays, and the next one begins on a line of its own.
    """
    descriptor = open_descriptor(path, os.O_RDWR | os.O_APPEND | os.O_CREAT)
    try:
        if os.lseek(descriptor, 0, os.SEEK_END) > 0:
            os.lseek(descriptor, -1, os.SEEK_END)
            if os.read(descriptor, 1) != b"\n":
                line = b"\n" + line
        if os.write(descriptor, line) < len(line):
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), str(path))
        if sync:
            with contextlib.suppress(OSError):  # the line is there; it must not be written a second time
                os.fsync(descriptor)
    finally:
        os.close(descriptor)
