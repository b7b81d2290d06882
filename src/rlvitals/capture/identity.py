"""The identity card of a run that is being recorded, and the facts on it: versions, git commit, platform, command.
Secrets are masked.
"""

from __future__ import annotations

import contextlib
import os
import platform
import sys
import threading
import time
from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any, NamedTuple

from rlvitals.config import Settings, resolved
from rlvitals.guard import Once
from rlvitals.masking import Masking
from rlvitals.records import Attempt, RunInfo
from rlvitals.store.cards import append_attempt, read_attempts, write_config, write_info
from rlvitals.store.files import read_json, sync_folder
from rlvitals.store.layout import RunDir
from rlvitals.store.lock import RunLock, read_holder
from rlvitals.store.process import renew_after_fork

REPORTED_PACKAGES = (
    "torch",
    "transformers",
    "trl",
    "accelerate",
    "peft",
    "datasets",
    "vllm",
    "sglang",
    "deepspeed",
    "ray",
    "verl",
    "openrlhf",
    "roll",
    "jax",
    "flax",
    "mlx",
    "numpy",
    "unsloth",
)


class Identity:
    """The identity card, settings and list of attempts of one run, saved when they change. Only the holder of the run's
    lock writes them; other ranks keep their card in memory.
    """

    def __init__(
        self,
        run_dir: RunDir,
        settings: Settings,
        info: RunInfo,
        attempt: Attempt,
        *,
        lock: RunLock | None,
        counts: Callable[[], dict[str, Any]],
        warn_once: Once,
    ) -> None:
        """`counts` returns the current `left_out` and `rows_dropped`."""
        self.info = info
        self._dir, self._settings, self._attempt = run_dir, settings, attempt
        self._file_lock, self._counts, self._warn_once = lock, counts, warn_once
        self._lock = threading.RLock()  # the background thread, a signal handler and finish all save it
        renew_after_fork(self, "_lock")
        self._saved: tuple[int, int] = (0, 0)

    def begin(self) -> None:
        """Write the card and the settings, and record the attempt."""
        if self._file_lock is not None:
            self._write()
            append_attempt(self._dir, self._attempt)
            self.sync()

    def sync(self) -> None:
        """Sync the run's directory to disk. The contents of its small files are synced when they are written."""
        if self._file_lock is not None:
            with contextlib.suppress(OSError):
                sync_folder(self._dir.root)

    def is_strangers(self) -> bool:
        """Whether the directory belongs to another run: it has that run's card, or its lock and no card yet."""
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
        """Update the card with the counts and these changes, and write it."""
        with self._lock:
            self.info = replace(self.info, updated=round(time.time(), 3), **self._counts(), **changes)
            if self._file_lock is None:
                return
            try:
                write_info(self._dir, self.info)
            except OSError as error:
                self._warn_once(f"cannot write {self._dir.info}: {error.strerror or error}", "info")

    def save_counts(self) -> None:
        """Save the card if the counts have changed."""
        counts = self._counts()
        now = (sum(entry["count"] for entry in counts["left_out"].values()), counts["rows_dropped"])
        if now != self._saved:
            self._saved = now
            self.save()

    def restore(self) -> bool:
        """Write the small files again, the lock first, after the directory was deleted and recreated. If another run
        has taken the directory, returns False and writes nothing.
        """
        if self._file_lock is None:
            return True
        try:
            if not self._file_lock.restore() and self.is_strangers():
                return False
            self._write()
            # Called for each restored log; perhaps only the log was deleted, and the attempt is still recorded.
            if self._attempt.number not in {attempt.number for attempt in read_attempts(self._dir)}:
                append_attempt(self._dir, self._attempt)
        except OSError as error:
            self._warn_once(f"cannot write {self._dir.root}: {error.strerror or error}", "restore")
        return True

    def _write(self) -> None:
        write_info(self._dir, self.info)
        write_config(self._dir, resolved(self._settings))


def packages() -> dict[str, str]:
    """Versions of the reported packages that this process has already imported; nothing is imported for this."""
    found = {}
    for name in REPORTED_PACKAGES:
        version = getattr(sys.modules.get(name), "__version__", None)
        if isinstance(version, str):
            found[name] = version
    return found


def python_version() -> str:
    """The version of the running interpreter."""
    return platform.python_version()


def platform_name() -> str:
    """Operating system and processor."""
    return f"{sys.platform} {platform.machine()}"


def command(settings: Mapping[str, Any]) -> str:
    """The command line, with secrets masked, including those of the settings."""
    return Masking.of(settings).command(getattr(sys, "argv", []))[:2000]


def git() -> dict[str, str]:
    """Commit and branch of the repository that contains the working directory; empty outside a repository.

    Git's files are read directly. The git program may be missing, slow on a network disk, or refuse another user's
    repository.
    """
    try:
        folder = Path.cwd().resolve()
        for candidate in (folder, *folder.parents):
            if (candidate / ".git").exists():
                return _head(candidate / ".git")
    except (OSError, ValueError):
        pass
    return {}


def _head(git_path: Path) -> dict[str, str]:
    if git_path.is_file():  # a worktree or submodule points at its directory
        target = git_path.read_text(encoding="utf-8").partition("gitdir:")[2].strip()
        git_path = (git_path.parent / target).resolve()
    common = git_path / "commondir"
    shared = (git_path / common.read_text(encoding="utf-8").strip()).resolve() if common.exists() else git_path
    head = (git_path / "HEAD").read_text(encoding="utf-8").strip()
    if not head.startswith("ref:"):
        return {"commit": head}
    reference = head.removeprefix("ref:").strip()
    branch = reference.removeprefix("refs/heads/")
    for base in (git_path, shared):
        if (base / reference).exists():
            return {"commit": (base / reference).read_text(encoding="utf-8").strip(), "branch": branch}
    packed = shared / "packed-refs"
    for line in packed.read_text(encoding="utf-8").splitlines() if packed.exists() else []:
        commit, _, name = line.partition(" ")
        if name == reference:
            return {"commit": commit, "branch": branch}
    return {"branch": branch}


class Launched(NamedTuple):
    """The rank of this process among those that a launcher started, and their number."""

    rank: int
    processes: int | None
    """None if no launcher started several processes."""


def launched() -> Launched:
    """The rank that a launcher (torchrun, Slurm, MPI) set in the environment; rank 0 for a single process."""
    for world, rank in (
        ("WORLD_SIZE", "RANK"),
        ("SLURM_NTASKS", "SLURM_PROCID"),
        ("OMPI_COMM_WORLD_SIZE", "OMPI_COMM_WORLD_RANK"),
    ):
        size, number = os.environ.get(world, ""), os.environ.get(rank, "")
        if size.isdecimal() and number.isdecimal() and int(size) > 1:
            return Launched(int(number), int(size))
    return Launched(0, None)
