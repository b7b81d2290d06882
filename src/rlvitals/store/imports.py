"""Writes the logs of a run that is imported from a tracker page by page. An interrupted import can be resumed without
duplicated or lost rows.

`import.json` records the progress: what the source needs to continue, and how many bytes of each log belong to the
import. It is written after the logs are synced to disk. Before an interrupted import continues, the bytes written after
the last record are cut off. A run that was changed after a finished import is refused.
"""

from __future__ import annotations

import contextlib
import os
from pathlib import Path
from typing import Any, BinaryIO, Literal

from rlvitals.codec import to_json
from rlvitals.errors import RunExists, RunUnreadable
from rlvitals.store.files import (
    make_folder,
    open_descriptor,
    put_file,
    read_json,
    remove_paths,
    replace_file,
    sync_folder,
)
from rlvitals.store.layout import RunDir, Stream

ImportedLog = Stream | Literal["system", "distributions"]
"""The logs that an import writes."""

LOGS: tuple[ImportedLog, ...] = ("train", "eval", "system", "distributions")


def read_import(run_dir: RunDir) -> dict[str, Any] | None:
    """The content of `import.json`; None if there is none. Raises RunUnreadable if it is damaged."""
    try:
        found = read_json(run_dir.imported)
    except (FileNotFoundError, NotADirectoryError):
        return None
    except (OSError, ValueError) as error:
        raise _damaged(run_dir, str(error)) from error
    if not isinstance(found, dict) or not isinstance(found.get("bytes", {}), dict):
        raise _damaged(run_dir, "expected a JSON object")
    return found


def _damaged(run_dir: RunDir, why: str) -> RunUnreadable:
    return RunUnreadable(
        f"{run_dir.imported} is damaged: {why}. Remove the directory {run_dir.root} and import the run again"
    )


class ImportLogs:
    """The logs of one import in progress. The caller holds the run's lock.

    With `is_restart` the whole run is fetched again: the new logs are written to drafts, which `close` puts in place of
    the old logs.
    """

    def __init__(self, run_dir: RunDir, record: dict[str, Any], *, is_restart: bool) -> None:
        self._dir, self._is_restart = run_dir, is_restart
        self._files: dict[ImportedLog, BinaryIO] = {}
        self._rollouts: dict[int, list[bytes]] = {}
        """Groups of rollouts by step, since the last commit."""
        make_folder(run_dir.logs)
        self._refuse_changed(record)
        if is_restart:
            remove_paths(path for log in LOGS if (path := self._draft(log)).exists())
        else:
            self._cut_back(record)

    def add(self, log: ImportedLog, line: bytes) -> None:
        """Append a line. The next commit syncs it to disk."""
        file = self._files.get(log)
        if file is None:
            path = self._draft(log) if self._is_restart else self._dir.log(log)
            file = self._files[log] = os.fdopen(open_descriptor(path, os.O_WRONLY | os.O_APPEND | os.O_CREAT), "ab")
        file.write(line)

    def add_rollouts(self, step: int, line: bytes) -> None:
        """Add a group of rollouts to its step. A commit replaces the step's whole file, so a page that is fetched twice
        does not duplicate groups.
        """
        self._rollouts.setdefault(step, []).append(line)

    def commit(self, record: dict[str, Any]) -> None:
        """Sync every line to disk, then write `import.json`. With `is_restart` only `close` writes `import.json`."""
        for file in self._files.values():
            file.flush()
            os.fsync(file.fileno())
        for step, lines in self._rollouts.items():
            put_file(self._dir.rollout_file(step), b"".join(lines))
        if self._rollouts:
            sync_folder(self._dir.rollouts)
        self._rollouts = {}
        sync_folder(self._dir.logs)
        if not self._is_restart:
            write_import(self._dir, {**record, "bytes": self._sizes()})

    def close(self, record: dict[str, Any]) -> None:
        """Commit, close the files and, with `is_restart`, replace the old logs."""
        self.commit(record)
        self.release()
        if self._is_restart:
            for log in LOGS:
                if self._draft(log).exists():
                    os.replace(self._draft(log), self._dir.log(log))
                else:
                    self._dir.log(log).unlink(missing_ok=True)
            remove_paths([path for path in [self._dir.index] if path.exists()])
            sync_folder(self._dir.logs)
            write_import(self._dir, {**record, "bytes": self._sizes()})

    def release(self) -> None:
        """Close the files without a commit, after an interrupted import."""
        for file in self._files.values():
            with contextlib.suppress(OSError):
                file.close()
        self._files = {}

    def _refuse_changed(self, record: dict[str, Any]) -> None:
        """Raise RunExists if a log changed since the import: cutting it back would lose rows of a resumed run."""
        for log in LOGS:
            path, kept = self._dir.log(log), record.get("bytes", {}).get(log, 0)
            held = path.stat().st_size if path.exists() else 0
            if held != kept and not record.get("is_open"):
                raise RunExists(
                    f"{self._dir.root} was changed after it was imported: {path.name} has {held:,} bytes instead of "
                    f"{kept:,}. It may have been resumed, compacted or edited. Import the run into another directory"
                )

    def _cut_back(self, record: dict[str, Any]) -> None:
        for log in LOGS:
            path, kept = self._dir.log(log), record.get("bytes", {}).get(log, 0)
            if path.exists() and path.stat().st_size > kept:
                os.truncate(path, kept)

    def _sizes(self) -> dict[str, int]:
        return {log: path.stat().st_size for log in LOGS if (path := self._dir.log(log)).exists()}

    def _draft(self, log: ImportedLog) -> Path:
        path = self._dir.log(log)
        return path.with_name(f".{path.name}.import.tmp")


def write_import(run_dir: RunDir, record: dict[str, Any]) -> None:
    """Write `import.json`."""
    replace_file(run_dir.imported, to_json(record))
