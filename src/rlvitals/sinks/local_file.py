"""The common part of the CSV and the JSON tracker: the path of the file, how it grows, and the names of metrics in it.

A file grows by whole batches. Its committed length is stored with the tracker's cursor; bytes that a crash left beyond
it are removed at the next opening. The two trackers define the format.
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Mapping
from itertools import count
from pathlib import Path
from typing import Any, ClassVar

from rlvitals.errors import SinkError
from rlvitals.sinks.base import RunFacts, Sink, SinkRow, check_settings, metric_name
from rlvitals.store.files import make_folder, open_descriptor, open_regular, replace_file, sync_folder
from rlvitals.store.layout import RunDir, kept_file

FIXED = ("step", "timestamp", "attempt", "stream")
"""The first columns of every row."""


class LocalFile:
    """One open file of a tracker. It can be written and truncated; after `sync` it is on the disk."""

    def __init__(self, path: Path, fix: str) -> None:
        self.path = path
        self._fix = fix
        try:
            self._file = os.fdopen(open_descriptor(path, os.O_RDWR), "r+b", buffering=0)  # open as long as the tracker
        except FileNotFoundError:
            raise self.damaged("is gone") from None
        except OSError as error:
            raise unwritable(path, error) from error

    @property
    def size(self) -> int:
        return os.fstat(self._file.fileno()).st_size

    def byte_at(self, offset: int) -> bytes:
        """One byte, or no byte beyond the end."""
        self._file.seek(offset)
        return self._file.read(1)

    def put(self, offset: int, data: bytes) -> None:
        """Write data at an offset. If the system accepts it in one call, readers see only whole batches."""
        self._file.seek(offset)
        rest = memoryview(data)
        while rest:
            rest = rest[self._file.write(rest) :]

    def cut(self, length: int) -> None:
        """Truncate the file to its committed length. Raises SinkError if it is shorter, because then rows are lost."""
        if self.size < length:
            raise self.damaged("was cut")
        self._file.truncate(length)

    def sync(self) -> None:
        """Return when the file is on the disk. Raises SinkError if it was deleted or replaced: an open file still
        accepts writes then.
        """
        try:
            is_there = os.path.samestat(os.stat(self.path), os.fstat(self._file.fileno()))
        except FileNotFoundError:
            is_there = False
        if not is_there:
            raise self.damaged("is gone")
        os.fsync(self._file.fileno())

    def close(self) -> None:
        with contextlib.suppress(OSError):
            self._file.close()

    def discard(self) -> None:
        """Close and delete a file that has no commit yet."""
        self.close()
        with contextlib.suppress(OSError):
            self.path.unlink()

    def damaged(self, what: str) -> SinkError:
        """The error for a file that has lost committed rows."""
        return SinkError(f"{self.path} {what} after rows were written to it. {self._fix}")


class FileSink(Sink):
    """A tracker that writes one local file: its path, how it is created and how it is closed.

    The path is the setting `path`, or a file in the run's logs. Memory: `path`, `length` in bytes, and keys of the
    subclass.
    """

    tracker: ClassVar[str]
    default_name: ClassVar[str]
    known_settings: ClassVar[frozenset[str]] = frozenset({"path"})
    path_settings: ClassVar[frozenset[str]] = known_settings

    def __init__(self, facts: RunFacts, settings: Mapping[str, Any], memory: dict[str, Any], first: bytes) -> None:
        """`first` is the content of the file before its first row."""
        super().__init__(facts, settings, memory)
        check_settings(self.tracker, settings, self.known_settings)
        self._path = self._chosen_path()
        given = str(settings.get("path") or "")
        self._is_new = not _is_same_path(memory.get("path"), given)
        """True if there is no commit to this file yet; then it has nothing to keep."""
        if self._is_new:
            begin(self._path, first, is_ours=not given)
            self.memory = {"path": given, "length": len(first)}
        self._file = self._open_file()

    def close(self) -> None:
        self._file.close()

    def abandon(self) -> None:
        if self._is_new:
            self._file.discard()
        else:
            self._file.close()

    def _open_file(self) -> LocalFile:
        cursor = RunDir(self.facts.root).sinks / f"{self.tracker}.json"
        return LocalFile(self._path, f"Restore it, or delete {cursor} to write the whole log again")

    def _chosen_path(self) -> Path:
        run_dir, given = RunDir(self.facts.root), self.settings.get("path")
        if given is None:
            return run_dir.logs / self.default_name
        if not isinstance(given, str | Path) or not str(given).strip():
            raise SinkError(f"tracker {self.tracker!r}: path must be a file name, not {given!r}")
        path = Path(given).expanduser()
        if path.resolve() in {owned.resolve() for owned in run_dir.written_paths}:
            raise SinkError(f"tracker {self.tracker!r}: {path} belongs to the run itself; choose another path")
        return path


def _is_same_path(known: Any, given: str) -> bool:
    """Whether a stored path equals the current setting. Earlier versions stored it as it was typed."""
    return known == given or (isinstance(known, str) and bool(known) and str(kept_file(known)) == given)


def begin(path: Path, first: bytes, *, is_ours: bool) -> None:
    """Create a file. An existing file is kept as NAME.1 (or .2, ...), unless it is certainly the tracker's own."""
    try:
        make_folder(path.parent)
        if not is_ours and os.path.exists(path) and not _holds(path, b"", first):
            spare = next(spare for number in count(1) if not (spare := Path(f"{path}.{number}")).exists())
            os.replace(path, spare)
            sync_folder(path.parent)  # before another file gets the name
        replace_file(path, first)
        sync_folder(path.parent)
    except OSError as error:
        raise unwritable(path, error) from error


def _holds(path: Path, *known: bytes) -> bool:
    """Whether the content of a file is one of these."""
    with open_regular(path) as file:
        return file.read(max(map(len, known)) + 1) in known


def unwritable(path: Path, error: OSError) -> SinkError:
    """The error for a file that cannot be written."""
    return SinkError(f"cannot write {path}: {error.strerror or error}. Free the disk, or choose another file with path")


def named(item: SinkRow, name: str) -> str:
    """The name of a metric in the file. Evaluations have their own names, and none equals a fixed column.

    >>> from rlvitals.records import Row
    >>> training, evaluation = SinkRow("train", Row(1, 0.0, 1, {})), SinkRow("eval", Row(1, 0.0, 1, {}))
    >>> named(evaluation, "loss"), named(evaluation, "eval_loss"), named(training, "stream")
    ('eval/loss', 'eval_loss', 'metric/stream')
    """
    key = metric_name(item.stream, name)
    return f"metric/{key}" if key in FIXED else key
