"""Tracks the directory of a run that is being recorded while it may be renamed, deleted or replaced.

The directory is identified by an open descriptor and not only by its name. If it was renamed, all files of the run
follow it. If it was deleted, it is recreated under its name. If another run was started there meanwhile, this run
continues in a directory next to it and does not touch the other run's files.
"""

from __future__ import annotations

import contextlib
import os
import sys
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Literal

from rlvitals.store.files import make_folder
from rlvitals.store.layout import LiveRunDir
from rlvitals.store.process import renew_after_fork

Found = Literal["here", "lost"]
"""here: missing files may be recreated under the run's name. lost: the directory exists under an unknown name; nothing
may be created until it is back."""


class Home:
    """The directory of one recording process. Safe from several threads."""

    def __init__(
        self,
        run_dir: LiveRunDir,
        run_id: str,
        *,
        is_strangers: Callable[[], bool],
        restore: Callable[[], bool],
        notify: Callable[[str], None],
    ) -> None:
        """`is_strangers` returns whether the directory now belongs to another run. `restore` writes the run's lock and
        small files into a recreated directory; it returns False if another run was started there first. `notify`
        receives each message.
        """
        self._dir, self._id = run_dir, run_id
        self._is_strangers, self._restore, self._notify = is_strangers, restore, notify
        self._lock = threading.RLock()
        renew_after_fork(self, "_lock")
        self._handle = -1
        self._hold()

    def find(self) -> Found:
        """Update the run's paths. Called by a writer whose file is no longer under its name."""
        with self._lock:
            if self._is_at_its_name():
                if self._is_strangers():
                    self._move_out()
                return "here"
            place = _path_of(self._handle)
            if place is not None:
                old = self._dir.root
                self._dir.move_to(place)
                self._notify(
                    f"{old} was renamed while the run was being recorded. The run continues in {place} with all its "
                    f"files"
                )
                return "here"
            if not _is_deleted(self._handle):
                return "lost"
            if self._is_strangers():
                self._move_out()
            return "here"

    def make(self, folder: Path) -> None:
        """Create a folder of the run, and the run's directory if it is gone. Raises OSError if the parent directory is
        gone too, for example after a lost mount; the caller retries later.
        """
        with self._lock:
            root = self._dir.root
            if not root.is_dir() and not root.parent.is_dir():
                raise FileNotFoundError(2, "the directory no longer exists", str(root))
            make_folder(folder)
            if not self._is_at_its_name():
                self._hold()

    def reclaim(self) -> None:
        """Recreate the run's directory if it is gone. The lock is written first, so that no other run can start there.
        Raises OSError as `make` does.
        """
        with self._lock:
            self.make(self._dir.root)
            if not self._restore():
                self._move_out()
                self.make(self._dir.root)
                self._restore()

    def close(self) -> None:
        with self._lock:
            if self._handle >= 0:
                os.close(self._handle)
                self._handle = -1

    def _move_out(self) -> None:
        old = Path(os.path.abspath(self._dir.root))
        self._dir.move_to(old.with_name(f"{old.name}-{self._id}"))
        self._notify(
            f"{old} was deleted while run {self._id} was being recorded, and another run was started there. This run "
            f"continues in {self._dir.root} with all its rows; the other run is not touched. Stop this process if the "
            f"old run is no longer needed"
        )

    def _hold(self) -> None:
        self.close()
        with contextlib.suppress(OSError):  # Windows cannot open folders, and does not rename a folder with open files
            self._handle = os.open(self._dir.root, os.O_RDONLY | getattr(os, "O_DIRECTORY", 0))

    def _is_at_its_name(self) -> bool:
        if self._handle < 0:
            return self._dir.root.is_dir()
        return _is_same(self._dir.root, self._handle)


def _path_of(handle: int) -> Path | None:
    """The current path of an open directory; None if it has none or the system does not provide it."""
    if handle < 0:
        return None
    with contextlib.suppress(OSError, ImportError, ValueError):
        if sys.platform == "darwin":
            import fcntl

            path = os.fsdecode(fcntl.fcntl(handle, 50, bytes(1024)).rstrip(b"\0"))  # F_GETPATH
        else:
            path = os.readlink(f"/proc/self/fd/{handle}")
        if _is_same(Path(path), handle):
            return Path(path)
    return None


def _is_same(path: Path, handle: int) -> bool:
    try:
        return os.path.samestat(os.stat(path), os.fstat(handle))
    except OSError:
        return False


def _is_deleted(handle: int) -> bool:
    """Whether an open directory was deleted. A directory that cannot be checked counts as deleted."""
    try:
        if os.fstat(handle).st_nlink == 0:
            return True
        return os.readlink(f"/proc/self/fd/{handle}").endswith(" (deleted)")
    except OSError:
        return handle < 0
