"""Where a run that is being recorded is, while people rename, delete and replace directories under it.

The directory is known by a descriptor, not by its name alone: one that was renamed is followed, with every file of the
run. One that was deleted is made again under its name, unless another run has been started there meanwhile: then this
run continues beside it, and touches nothing of the other's.
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
"""here: what is missing may be made again under the run's name. lost: the directory is somewhere, and where cannot be
found out; nothing may be made until it is back."""


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
        """`is_strangers` tells whether the directory is another run's now. `restore` puts the run's lock and small
        files back into a directory that was made again, or says False: another run was quicker. `notify` gets a
        sentence.
        """
        self._dir, self._id = run_dir, run_id
        self._is_strangers, self._restore, self._notify = is_strangers, restore, notify
        self._lock = threading.RLock()
        renew_after_fork(self, "_lock")
        self._handle = -1
        self._hold()

    def find(self) -> Found:
        """Bring the run's paths up to date. For a writer whose file is not under its name any more."""
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
        """Make a folder of the run, and the run's own where it is gone. Raises OSError where even the directory above
        the run is gone, as with a lost mount: then it is waited for.
        """
        with self._lock:
            root = self._dir.root
            if not root.is_dir() and not root.parent.is_dir():
                raise FileNotFoundError(2, "the directory has vanished", str(root))
            make_folder(folder)
            if not self._is_at_its_name():
                self._hold()

    def reclaim(self) -> None:
        """Make the run's directory again where it is gone, its lock before anything else: no other run can begin in it
        then. Raises OSError as `make` does.
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
        with contextlib.suppress(OSError):  # Windows opens no folders, and renames none that has an open file
            self._handle = os.open(self._dir.root, os.O_RDONLY | getattr(os, "O_DIRECTORY", 0))

    def _is_at_its_name(self) -> bool:
        if self._handle < 0:
            return self._dir.root.is_dir()
        return _is_same(self._dir.root, self._handle)


def _path_of(handle: int) -> Path | None:
    """The present name of an open directory; None where it has none or the system does not tell."""
    if handle < 0:
        return None
    with contextlib.suppress(OSError, ImportError, ValueError):
        if sys.platform == "darwin":
            import fcntl

            told = os.fsdecode(fcntl.fcntl(handle, 50, bytes(1024)).rstrip(b"\0"))  # F_GETPATH
        else:
            told = os.readlink(f"/proc/self/fd/{handle}")
        if _is_same(Path(told), handle):
            return Path(told)
    return None


def _is_same(path: Path, handle: int) -> bool:
    try:
        return os.path.samestat(os.stat(path), os.fstat(handle))
    except OSError:
        return False


def _is_deleted(handle: int) -> bool:
    """Whether no name leads to an open directory; one that cannot be asked counts as deleted."""
    try:
        if os.fstat(handle).st_nlink == 0:
            return True
        return os.readlink(f"/proc/self/fd/{handle}").endswith(" (deleted)")
    except OSError:
        return handle < 0
