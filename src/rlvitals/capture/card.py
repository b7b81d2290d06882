"""A recording process's hand on its run's identity card, settings and list of attempts. Only who holds the run's lock
has one to write; the other ranks' is kept in memory.
"""

from __future__ import annotations

import contextlib
import threading
import time
from collections.abc import Callable
from dataclasses import replace
from typing import Any

from rlvitals.config import Settings, resolved
from rlvitals.records import Attempt, RunInfo
from rlvitals.store.cards import append_attempt, read_attempts, write_config, write_info
from rlvitals.store.files import read_json, sync_folder
from rlvitals.store.layout import RunDir
from rlvitals.store.lock import RunLock, read_holder
from rlvitals.store.process import renew_after_fork


class Card:
    """The card of one run, saved when it changes. `say` gets a problem's name and a sentence."""

    def __init__(
        self,
        run_dir: RunDir,
        settings: Settings,
        info: RunInfo,
        attempt: Attempt,
        *,
        lock: RunLock | None,
        counts: Callable[[], dict[str, Any]],
        say: Callable[[str, str], None],
    ) -> None:
        """`counts` gives what is counted while the run goes on: `left_out` and `rows_dropped`."""
        self.info = info
        self._dir, self._settings, self._attempt = run_dir, settings, attempt
        self._file_lock, self._counts, self._say = lock, counts, say
        self._lock = threading.RLock()  # the background thread, a signal handler and finish all save it
        renew_after_fork(self, "_lock")
        self._saved: tuple[int, int] = (0, 0)

    def begin(self) -> None:
        """The attempt is on record from now on."""
        if self._file_lock is not None:
            self._write()
            append_attempt(self._dir, self._attempt)
            self.sync()

    def sync(self) -> None:
        """Have the disk know the names of the run's small files; what is in them it knows already."""
        if self._file_lock is not None:
            with contextlib.suppress(OSError):
                sync_folder(self._dir.root)

    def is_strangers(self) -> bool:
        """Whether the directory is another run's: it has that run's card, or its lock and no card yet."""
        try:
            named = read_json(self._dir.info).get("id")
        except (OSError, ValueError, AttributeError):
            named = None
        if isinstance(named, str) and named:
            return named != self.info.id
        holder = read_holder(self._dir)
        if holder is None:
            return False
        if self._file_lock is not None:
            return not self._file_lock.is_ours()
        return (holder.process.host, holder.process.pid) != (self._attempt.host, self._attempt.pid)

    def save(self, **changes: Any) -> None:
        """Bring it up to date with the counts and these changes."""
        with self._lock:
            self.info = replace(self.info, updated=round(time.time(), 3), **self._counts(), **changes)
            if self._file_lock is None:
                return
            try:
                write_info(self._dir, self.info)
            except OSError as error:
                self._say("info", f"cannot write {self._dir.info}: {error.strerror or error}")

    def save_counts(self) -> None:
        """Save it if the counts are no longer what it says."""
        counts = self._counts()
        now = (sum(entry["count"] for entry in counts["left_out"].values()), counts["rows_dropped"])
        if now != self._saved:
            self._saved = now
            self.save()

    def restore(self) -> bool:
        """The directory was deleted under us and is there again: put the small files back, the lock first. False, and
        nothing is touched, where another run was quicker.
        """
        if self._file_lock is None:
            return True
        try:
            if not self._file_lock.restore() and self.is_strangers():
                return False
            self._write()
            # Each log that comes back asks for this, and perhaps the log alone was deleted.
            if self._attempt.number not in {attempt.number for attempt in read_attempts(self._dir)}:
                append_attempt(self._dir, self._attempt)
        except OSError as error:
            self._say("restore", f"cannot write {self._dir.root}: {error.strerror or error}")
        return True

    def _write(self) -> None:
        write_info(self._dir, self.info)
        write_config(self._dir, resolved(self._settings))
