"""Runs on object storage: every URL that fsspec supports (`s3://`, `gs://`, `az://`, `memory://`, ...).

A run is read from a local copy. Opening a URL fetches what changed since the last time into a cache folder, and the
copy is then read like any other run. Checkpoints, models and trackers' files are not copied. Object storage cannot
append rows, so a run is recorded on a disk and its files are uploaded whole.
"""

from __future__ import annotations

import contextlib
import hashlib
import mimetypes
import os
import re
import time
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path, PurePosixPath
from typing import Any, BinaryIO, Literal
from urllib.parse import urlsplit

from rlvitals.codec import parse_shallow, to_json
from rlvitals.errors import (
    ConfigError,
    RlvitalsError,
    RunError,
    RunExists,
    RunLocked,
    RunNotFound,
    needs,
)
from rlvitals.guard import guarded, words_of
from rlvitals.masking import mask_text
from rlvitals.store.cards import read_info
from rlvitals.store.files import draft_of, make_folder, read_json, replace_file, sync_file, sync_folder
from rlvitals.store.inbox import run_files
from rlvitals.store.layout import RunDir, archive_of, is_appended, is_run_file
from rlvitals.store.lock import is_recorded

_URL = re.compile(r"[a-z][a-z0-9+.-]+(?:::[a-z][a-z0-9+.-]+)*://", re.IGNORECASE)

_VERSION_KEYS = (
    "ETag", "etag", "generation", "md5Hash", "content_md5", "LastModified", "last_modified", "mtime", "created",
)  # fmt: skip
"""The file systems' names for the version mark of a file's content, the most reliable first."""

_Facts = tuple[str | None, int]
"""The version mark of a file's content (None if the system has none), and its size."""

_STATE = ".remote.json"
_PIECE = 2**20

UPLOAD_SECONDS = 5.0
"""Interval between two checks of a run that is being uploaded."""

MIRROR_SECONDS = 4.0
"""Interval between two checks of a bucket."""

_SIGNS = {RunDir(Path()).heartbeat.name, RunDir(Path()).lock.name}
"""Files that show whether a writer is alive."""

OVERLAP = 4096
"""Bytes at the end of a copied log that must match before new bytes are appended."""

MOST_PARTS = 10
"""Folder levels below a bucket's folder that are searched for files of runs."""


def is_url(path: object) -> bool:
    """Whether a path is a URL for fsspec.

    >>> is_url("s3://bucket/run"), is_url("out/kto"), is_url("C:/runs")
    (True, False, False)
    """
    return bool(_URL.match(str(path)))


def local_path(path: str | os.PathLike[str]) -> Path:
    """A path on this machine: the path itself, or the updated local copy if it is a URL."""
    return fetch(str(path)) if is_url(path) else Path(path)


def fetch(url: str) -> Path:
    """Update the local copy of a run and return its folder. Unchanged files are not read again."""
    place = RemotePlace(url)
    copy = _Copy(place, cache_folder() / f"{hashlib.sha256(url.encode()).hexdigest()[:16]}" / (place.name or "run"))
    with place.named_errors("read"):
        there = dict(place.files_of_run())
        if not there:
            raise RunNotFound(f"there is no run in {place.shown}")
        copy.update(there)
    return copy.folder


def fetch_file(url: str, folder: Path, most_bytes: int) -> Path:
    """Copy one file into a folder under its own name, and return the copy. Raises RunError if it cannot be fetched or
    is larger than `most_bytes`.
    """
    place = RemotePlace(url)
    copy = folder / (PurePosixPath(urlsplit(url).path).name or "log")
    with place.named_errors("read"), place.open() as source, open(copy, "wb") as target:
        while data := source.read(_PIECE):
            if target.tell() + len(data) > most_bytes:
                raise RunError(
                    f"{place.shown} is larger than {most_bytes // 2**20:,} MiB, the download limit. Download it "
                    "yourself and pass the file"
                )
            target.write(data)
    return copy


def upload(run: str | os.PathLike[str], url: str, *, overwrite: bool = False) -> int:
    """Copy a finished run to a URL; returns the number of files. The identity card is uploaded last, as the mark of
    completeness.

    Another run at that URL is not touched, unless `overwrite=True`.
    """
    run_dir = RunDir(Path(run))
    if is_recorded(run_dir):
        raise RunLocked(f"{run_dir.root} is still being written; upload it after it has ended")
    return upload_changes(run_dir, url, overwrite=overwrite)


def upload_changes(run_dir: RunDir, url: str, *, follow: bool = False, overwrite: bool = False) -> int:
    """Copy a run's files to a URL whenever they have changed; with `follow`, until the run ends. Object storage cannot
    append, so each file is copied whole. Returns how many files were copied. Another run at that URL is not touched,
    unless `overwrite` is set.
    """
    if not run_dir.holds_run:
        raise RunNotFound(f"there is no run in {run_dir.root}")
    place = RemotePlace(url)
    sent: dict[str, object] = {}
    count = 0
    with place.named_errors("write"):
        there = place.read_card()
        if there is not None and there.get("id") != read_info(run_dir).id and not overwrite:
            raise RunExists(f"{place.shown} holds another run. Choose another place or name, or pass overwrite=True")
    while True:
        is_live, is_first = is_recorded(run_dir), not sent
        before = run_dir.info.stat().st_mtime_ns if os.path.exists(run_dir.info) else 0
        names = run_files(run_dir.root)
        with place.named_errors("write"):
            for name in sorted(names, key=lambda name: (name == run_dir.info.name, name)):
                path = run_dir.root / name
                with contextlib.suppress(FileNotFoundError):
                    facts = path.stat()
                    stamp = facts.st_size, facts.st_mtime_ns
                    # A card that was written during the upload counts rows that are not uploaded yet.
                    is_ahead = path == run_dir.info and facts.st_mtime_ns != before and not is_first
                    if sent.get(name) != stamp and not is_ahead:
                        place.upload(path, name)
                        sent[name] = stamp
                        count += 1
            # Files of an earlier upload that the run no longer has would be read as part of it.
            for name in place.names():
                if is_run_file(name) and name not in names:
                    place.remove(name)
        if not (follow and is_live):
            return count
        time.sleep(UPLOAD_SECONDS)


class _Copy:
    """A local copy of remote files, with their version marks. If a log has grown, only the new end is fetched."""

    def __init__(self, place: RemotePlace, folder: Path) -> None:
        self._place, self.folder = place, folder
        make_folder(folder)
        self._marks = _read_state(folder)

    def update(self, there: Mapping[str, _Facts]) -> int:
        """Fetch changed files and remove deleted ones; returns the number of files fetched."""
        changed = 0
        for name in sorted(there, key=lambda name: (not name.endswith(".json"), name)):  # small ones first
            mark, size = there[name]
            if mark is None or self._marks.get(name) != mark or not os.path.exists(self.folder / name):
                self._fetch(name, size)
                self._marks[name] = mark
                changed += 1
        gone = self._marks.keys() - there.keys()
        for name in gone:  # such as a log that was archived meanwhile
            (self.folder / name).unlink(missing_ok=True)
            del self._marks[name]
        if changed or gone:
            # The state file is trusted, so the copies it lists must be on disk first.
            for folder in {(self.folder / name).parent for name in [*there, *gone]}:
                if folder.is_dir():
                    sync_folder(folder)
            replace_file(self.folder / _STATE, to_json(self._marks))
        return changed

    def _fetch(self, name: str, size: int) -> None:
        target = self.folder / name
        if is_appended(name) and self._append(name, target, size):
            return
        make_folder(target.parent)
        draft = draft_of(target)
        try:
            self._place.download(name, draft)
            sync_file(draft)
            os.replace(draft, target)
        finally:
            draft.unlink(missing_ok=True)
        if name not in self._marks:  # a new copy gets the time stored in it: an old heartbeat must not look fresh
            with contextlib.suppress(OSError, ValueError, TypeError, KeyError):
                stored_time = read_json(target) if PurePosixPath(name).name in _SIGNS else None
                stored_time = stored_time["since"] if isinstance(stored_time, dict) else stored_time
                if stored_time is not None:
                    os.utime(target, (min(float(stored_time), time.time()),) * 2)

    def _append(self, name: str, target: Path, size: int) -> bool:
        """Fetch the new end of a log that was copied before; False if it is not the same log."""
        try:
            known = target.stat().st_size
        except OSError:
            return False
        overlap = min(known, OVERLAP)
        if not 0 < known < size:
            return False
        data = self._place.read_from(name, known - overlap, size)
        with open(target, "r+b") as file:
            file.seek(known - overlap)
            if file.read(overlap) != data[:overlap]:
                return False
            file.write(data[overlap:])
        sync_file(target)
        return True


class Mirror:
    """A local copy of the runs below a URL, updated regularly. A server for a bucket reads it.

    A run's writer counts as alive if its heartbeat has changed since the last check.
    """

    def __init__(self, url: str) -> None:
        self._place = RemotePlace(url)
        self.shown = self._place.shown
        name = re.sub(r"[^\w.-]+", "_", self._place.name) or "runs"
        self.folder = cache_folder() / f"mirror-{hashlib.sha256(url.encode()).hexdigest()[:16]}" / name
        self._copy = _Copy(self._place, self.folder)

    def refresh(self) -> int:
        """Fetch changed files; returns their number. Raises RunError if the storage cannot be read."""
        with self._place.named_errors("read"):
            return self._copy.update(dict(self._place.files_of_runs()))
        return 0

    def keep_fresh(self, is_ending: Callable[[], bool], on_error: Callable[[Exception], None]) -> None:
        """Refresh until `is_ending` returns True. Errors are reported, and the refresh is retried."""
        while not is_ending():
            with guarded(on_error):
                self.refresh()
            time.sleep(MIRROR_SECONDS)


def cache_folder(kind: Literal["runs", "dumps"] = "runs") -> Path:
    """The folder for copies of runs and tables of dumps; safe to delete. `RLVITALS_CACHE` sets another folder."""
    own = os.environ.get("RLVITALS_CACHE")
    if own:
        return Path(own) if kind == "runs" else Path(own) / kind
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "rlvitals" / kind


class RemotePlace:
    """A folder of a file system that fsspec supports."""

    def __init__(self, url: str) -> None:
        self.shown = mask_text(url)
        with needs(f"opening {self.shown}", "remote"):
            import fsspec  # type: ignore[import-untyped]
        try:
            self._system, root = fsspec.core.url_to_fs(url)
        except (ImportError, ValueError) as error:  # unknown protocol or missing package: fsspec's message names it
            raise ConfigError(f"{self.shown} cannot be opened: {mask_text(str(error))}") from error
        self._system.invalidate_cache()
        self._root = root.rstrip("/")  # a text: as a path, https:// would lose a slash
        self.name = self._root.rpartition("/")[2]

    def files_of_run(self) -> Iterator[tuple[str, _Facts]]:
        """The files of the run in this folder. Checkpoints are not listed."""
        run_dir = RunDir(Path())
        for path in (run_dir.info, run_dir.config, run_dir.attempts, run_dir.lock, run_dir.heartbeat):
            with contextlib.suppress(FileNotFoundError):
                yield path.as_posix(), _facts(self._system.info(self._at(path.as_posix())))
        for folder in (run_dir.logs, run_dir.eval_logs, run_dir.epochs.folder):
            for name, facts in self._found(folder.as_posix()).items():
                if is_run_file(name):
                    yield name, _facts(facts)

    def open(self) -> BinaryIO:
        """The file that the URL itself names."""
        if self._system.info(self._root).get("type") == "directory":
            raise RunError(f"{self.shown} is a folder without a run. Name the log in it, or copy it to this machine")
        opened: BinaryIO = self._system.open(self._root, "rb")
        return opened

    def read_card(self) -> dict[str, Any] | None:
        card = RunDir(Path()).info.as_posix()
        try:
            found = parse_shallow(self._system.cat_file(self._at(card)))
        except FileNotFoundError:
            return None
        except ValueError:
            return {}
        return found if isinstance(found, dict) else {}

    def names(self) -> set[str]:
        """Every file below the folder."""
        return set(self._found())

    def _found(self, below: str = "") -> dict[str, Mapping[str, Any]]:
        """The file system's entry for every file below the folder (or a subfolder), by its name below the folder."""
        try:
            found: Mapping[str, Any] = self._system.find(self._at(below).rstrip("/"), detail=True)
        except FileNotFoundError:
            return {}
        return {path.removeprefix(self._root).lstrip("/"): facts for path, facts in found.items()}

    def files_of_runs(self) -> Iterator[tuple[str, _Facts]]:
        """The files of all runs below the folder."""
        names = self._found()
        card, log = RunDir(Path()).info.as_posix(), RunDir(Path()).train_log.as_posix()
        ends = (f"/{card}", f"/{log}", f"/{archive_of(Path(log)).as_posix()}")
        runs = {
            name.removesuffix(end) for name in names for end in ends if f"/{name}".endswith(end) and name != end[1:]
        }
        runs |= {""} if any(end[1:] in names for end in ends) else set()
        for name, facts in names.items():
            parts = PurePosixPath(name).parts
            if ".." in parts or len(parts) > MOST_PARTS or any(part.startswith(".") for part in parts):
                continue
            places = [("/".join(parts[:cut]), "/".join(parts[cut:])) for cut in range(len(parts))]
            if any(above in runs and is_run_file(below) for above, below in places):
                yield name, _facts(facts)

    def read_from(self, name: str, start: int, end: int) -> bytes:
        data: bytes = self._system.cat_file(self._at(name), start=start, end=end)
        return data

    def read(self, name: str) -> bytes | None:
        try:
            data: bytes = self._system.cat_file(self._at(name))
        except FileNotFoundError:
            return None
        return data

    def write(self, name: str, data: bytes) -> None:
        self._system.makedirs(self._at(name).rpartition("/")[0], exist_ok=True)
        # Browsers run a script only if it has the right content type, which S3 must be given. The table of this machine
        # is not used, because it may list scripts as plain text.
        kind = mimetypes.MimeTypes().guess_type(name)[0] if not name.endswith(".gz") else None
        named = {"ContentType": kind or "application/octet-stream"} if "s3" in _protocols(self._system) else {}
        self._system.pipe_file(self._at(name), data, **named)

    def download(self, name: str, target: Path) -> None:
        self._system.get_file(self._at(name), str(target))

    def upload(self, source: Path, name: str) -> None:
        self._system.makedirs(self._at(name).rpartition("/")[0], exist_ok=True)
        self._system.put_file(str(source), self._at(name))

    def remove(self, name: str) -> None:
        self._system.rm_file(self._at(name))

    @contextlib.contextmanager
    def named_errors(self, what: str) -> Iterator[None]:
        """Raise errors of the network, the back end or the disk as one error with the URL."""
        met: list[Exception] = []
        with guarded(met.append, but=(RlvitalsError,)):  # each back end of fsspec raises its own errors
            yield
        if met:
            error = met[0]
            message = str(error) if isinstance(error, OSError) else words_of(error)
            if mask_text(message) == self.shown:  # the message of some back ends is the URL
                message = words_of(error.__cause__) if error.__cause__ else "there is nothing there"
            raise RunError(f"cannot {what} {self.shown}: {mask_text(message)}") from error

    def _at(self, name: str) -> str:
        return f"{self._root}/{name}"


def _protocols(system: Any) -> tuple[str, ...]:
    known = system.protocol
    return (known,) if isinstance(known, str) else tuple(known)


def _facts(info: Mapping[str, Any]) -> _Facts:
    mark = next((info[key] for key in _VERSION_KEYS if info.get(key) is not None), None)
    size = int(info.get("size") or 0)
    return None if mark is None else f"{size} {mark}", size


def _read_state(copy: Path) -> dict[str, Any]:
    try:
        found = read_json(copy / _STATE)
    except (OSError, ValueError):
        return {}
    return found if isinstance(found, dict) else {}
