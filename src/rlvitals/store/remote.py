"""Runs on object storage: anything fsspec has a URL for (`s3://`, `gs://`, `az://`, `memory://`, ...).

A run is read from a local copy: opening a URL brings what changed since the last time into a cache folder, and from
there on it is a run like any other. Checkpoints, models and trackers' files stay where they are. Writing goes the other
way round, once and whole: a run is recorded on a disk and uploaded when it is over, because object storage cannot
append a row.
"""

from __future__ import annotations

import contextlib
import hashlib
import mimetypes
import os
import re
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path, PurePosixPath
from typing import Any, BinaryIO, Literal
from urllib.parse import urlsplit

from rlvitals.codec import parse_shallow, to_json
from rlvitals.errors import (
    ConfigError,
    MissingDependency,
    RlvitalsError,
    RunError,
    RunExists,
    RunLocked,
    RunNotFound,
)
from rlvitals.guard import guarded, words_of
from rlvitals.masking import mask_text
from rlvitals.store.cards import read_info
from rlvitals.store.files import make_folder, read_json, replace_file, sync_file, sync_folder
from rlvitals.store.inbox import run_files
from rlvitals.store.layout import RunDir, archive_of, is_appended, is_run_file
from rlvitals.store.lock import read_holder

_URL = re.compile(r"[a-z][a-z0-9+.-]+(?:::[a-z][a-z0-9+.-]+)*://", re.IGNORECASE)

_VERSION_KEYS = (
    "ETag", "etag", "generation", "md5Hash", "content_md5", "LastModified", "last_modified", "mtime", "created",
)  # fmt: skip
"""What the file systems call the mark that changes with a file's content, the surest first."""

_STATE = ".remote.json"
_PIECE = 2**20

UPLOAD_SECONDS = 5.0
"""Between two looks at a run that is followed to a bucket."""

MIRROR_SECONDS = 4.0
"""Between two looks at a bucket."""

_SIGNS = {RunDir(Path()).heartbeat.name, RunDir(Path()).lock.name}
"""Files that tell whether a writer lives."""

OVERLAP = 4096
"""Bytes at the end of a copied log by which it is known again."""

MOST_PARTS = 10
"""Folders below a bucket's folder in which files of runs are looked for."""


def is_url(path: object) -> bool:
    """Whether a path is one for fsspec.

    >>> is_url("s3://bucket/run"), is_url("out/kto"), is_url("C:/runs")
    (True, False, False)
    """
    return bool(_URL.match(str(path)))


def local_path(path: str | os.PathLike[str]) -> Path:
    """A path on this machine: the path itself, or the fresh copy of what a URL points to."""
    return fetch(str(path)) if is_url(path) else Path(path)


def fetch(url: str) -> Path:
    """Bring the copy of a run up to date and return its folder. Files that have not changed are not read again."""
    place = _Place(url)
    copy = cache_folder() / f"{hashlib.sha256(url.encode()).hexdigest()[:16]}" / (place.name or "run")
    make_folder(copy)
    state = _read_state(copy)
    with place.told("read"):
        there = dict(place.files())
        if not there:
            raise RunNotFound(f"there is no run in {place.shown}")
        for name, mark in there.items():
            if mark is None or state.get(name) != mark or not os.path.exists(copy / name):
                _download(place, name, copy / name)
    wanted = _Wanted.of(RunDir(copy))
    gone = {name for name in state.keys() - there.keys() if not wanted.leaves(name)}
    for name in gone:  # a log that was packed is an archive now
        (copy / name).unlink(missing_ok=True)
    # The state is believed: the disk has the copies it speaks of first.
    for folder in {(copy / name).parent for name in [*there, *gone]}:
        if folder.is_dir():
            sync_folder(folder)
    replace_file(copy / _STATE, to_json(there))
    return copy


def fetch_file(url: str, folder: Path, most_bytes: int) -> Path:
    """Copy one file into a folder, under its own name, and return the copy. Raises RunError where it cannot be had, or
    is larger than that.
    """
    place = _Place(url)
    copy = folder / (PurePosixPath(urlsplit(url).path).name or "log")
    with place.told("read"), place.open() as source, open(copy, "wb") as target:
        while data := source.read(_PIECE):
            if target.tell() + len(data) > most_bytes:
                raise RunError(
                    f"{place.shown} is larger than {most_bytes // 2**20:,} MiB, the most that is fetched. Download it "
                    "and pass the file"
                )
            target.write(data)
    return copy


def upload(run: str | os.PathLike[str], url: str, *, overwrite: bool = False) -> int:
    """Copy a run that is over to a URL; the number of files. The identity card goes last: where it is, all is.

    Another run at that URL is left alone, unless `overwrite=True`.
    """
    run_dir = RunDir(Path(run))
    if not run_dir.holds_run:
        raise RunNotFound(f"there is no run in {run_dir.root}")
    holder = read_holder(run_dir)
    if holder is not None and holder.is_live:
        raise RunLocked(f"{run_dir.root} is still being written; upload it when it is over")
    place = _Place(url)
    with place.told("write"):
        there = place.read_card()
        if there is not None and there.get("id") != read_info(run_dir).id and not overwrite:
            raise RunExists(f"{place.shown} holds another run. Choose another place, or pass overwrite=True")
        names = sorted(_names_in(run_dir), key=lambda name: (name == _relative(run_dir, run_dir.info), name))
        for name in names:
            place.upload(run_dir.root / name, name)
        # What an earlier upload left and the run no longer has would be read as part of it.
        for name, _ in list(place.files()):
            if name not in names:
                place.remove(name)
    return len(names)


def upload_changes(run_dir: RunDir, url: str, *, follow: bool = False) -> int:
    """Copy a run's files to a URL whenever they have changed, each whole, as object storage has it; with `follow` until
    the run is over. Returns how many files were copied. Another run at that URL is left alone.
    """
    if not run_dir.holds_run:
        raise RunNotFound(f"there is no run in {run_dir.root}")
    place = _Place(url)
    sent: dict[str, object] = {}
    count = 0
    with place.told("write"):
        there = place.read_card()
        if there is not None and there.get("id") != read_info(run_dir).id:
            raise RunExists(f"{place.shown} holds another run. Choose another place or --name")
    while True:
        holder = read_holder(run_dir)
        is_live = holder is not None and holder.is_live
        before = run_dir.info.stat().st_mtime_ns if os.path.exists(run_dir.info) else 0
        names = run_files(run_dir.root)
        with place.told("write"):
            for name in sorted(names, key=lambda name: (name == run_dir.info.name and bool(sent), name)):
                path = run_dir.root / name
                with contextlib.suppress(FileNotFoundError):
                    facts = path.stat()
                    stamp = facts.st_size, facts.st_mtime_ns
                    # A card that was written meanwhile speaks of rows that are not there yet.
                    is_ahead = path == run_dir.info and sent and facts.st_mtime_ns != before
                    if sent.get(name) != stamp and not is_ahead:
                        place.upload(path, name)
                        sent[name] = stamp
                        count += 1
            for name in place.names():
                if is_run_file(name) and name not in names:
                    place.remove(name)
        if not (follow and is_live):
            return count
        time.sleep(UPLOAD_SECONDS)


class Mirror:
    """A local copy of the runs below a URL, brought up to date again and again: what a server over a bucket reads.

    Of a log that has grown only the new end is fetched. Whether a run's writer lives is decided by its heartbeat: one
    that has changed since the last look is fresh.
    """

    def __init__(self, url: str) -> None:
        self._place = _Place(url)
        self.shown = self._place.shown
        name = re.sub(r"[^\w.-]+", "_", self._place.name) or "runs"
        self.folder = cache_folder() / f"mirror-{hashlib.sha256(url.encode()).hexdigest()[:16]}" / name
        make_folder(self.folder)
        self._marks: dict[str, Any] = _read_state(self.folder)

    def refresh(self) -> int:
        """Fetch what has changed; the number of files. Raises RunError where the storage cannot be read."""
        with self._place.told("read"):
            return self._refresh()
        return 0

    def keep_fresh(self, is_ending: Callable[[], bool], told: Callable[[Exception], None]) -> None:
        """Refresh until the end. Errors are reported, and the refresh is retried."""
        while not is_ending():
            with guarded(told):
                self.refresh()
            time.sleep(MIRROR_SECONDS)

    def _refresh(self) -> int:
        there = dict(self._place.run_files())
        changed = 0
        for name in sorted(there, key=lambda name: (not name.endswith(".json"), name)):  # small ones first
            mark, size = there[name]
            if mark is None or self._marks.get(name) != mark or not os.path.exists(self.folder / name):
                self._fetch(name, size)
                self._marks[name] = mark
                changed += 1
        gone = self._marks.keys() - there.keys()
        for name in gone:
            (self.folder / name).unlink(missing_ok=True)
            del self._marks[name]
        if changed or gone:
            replace_file(self.folder / _STATE, to_json(self._marks))
        return changed

    def _fetch(self, name: str, size: int) -> None:
        target = self.folder / name
        if is_appended(name) and self._append(name, target, size):
            return
        _download(self._place, name, target)
        if name not in self._marks:  # how old a sign of life is when it is first met, is what it says
            with contextlib.suppress(OSError, ValueError, TypeError, KeyError):
                said = read_json(target) if PurePosixPath(name).name in _SIGNS else None
                said = said["since"] if isinstance(said, dict) else said
                if said is not None:
                    os.utime(target, (min(float(said), time.time()),) * 2)

    def _append(self, name: str, target: Path, size: int) -> bool:
        """Fetch the end of a log whose beginning is here; False where it is not the same log."""
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
        return True


def cache_folder(kind: Literal["runs", "dumps"] = "runs") -> Path:
    """Where copies of runs and tables of dumps are kept; safe to delete. `RLVITALS_CACHE` names another."""
    own = os.environ.get("RLVITALS_CACHE")
    if own:
        return Path(own) if kind == "runs" else Path(own) / kind
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "rlvitals" / kind


class _Place:
    """A folder of a file system that fsspec knows."""

    def __init__(self, url: str) -> None:
        self.shown = mask_text(url)
        try:
            import fsspec  # type: ignore[import-untyped]
        except ImportError:
            raise MissingDependency(f"opening {self.shown}", "remote") from None
        try:
            self._system, root = fsspec.core.url_to_fs(url)
        except (ImportError, ValueError) as error:  # no such protocol, or its package is missing: fsspec says which
            raise ConfigError(f"{self.shown} cannot be opened: {mask_text(str(error))}") from error
        self._system.invalidate_cache()
        self._root = root.rstrip("/")  # a text: of a path, https:// would lose a slash
        self.name = self._root.rpartition("/")[2]

    def files(self) -> Iterator[tuple[str, str | None]]:
        """The run's files below the folder, each with the mark of its content, None where the system gives none."""
        wanted = _Wanted.of(RunDir(Path()))
        for file in wanted.files:
            with contextlib.suppress(FileNotFoundError):
                yield file, _mark(self._system.info(self._at(file)))
        for folder in wanted.folders:
            found: Mapping[str, Any] = {}
            with contextlib.suppress(FileNotFoundError):
                found = self._system.find(self._at(folder), detail=True)
            for path, facts in found.items():
                name = path.removeprefix(self._root).lstrip("/")
                if not wanted.leaves(name):
                    yield name, _mark(facts)

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
        try:
            found: list[str] = self._system.find(self._root)
        except FileNotFoundError:
            return set()
        return {path.removeprefix(self._root).lstrip("/") for path in found}

    def run_files(self) -> Iterator[tuple[str, tuple[str | None, int]]]:
        """The files of all runs below the folder, each with its mark and its size."""
        try:
            found: Mapping[str, Any] = self._system.find(self._root, detail=True)
        except FileNotFoundError:
            return
        names = {path.removeprefix(self._root).lstrip("/"): facts for path, facts in found.items()}
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
                yield name, (_mark(facts), int(facts.get("size") or 0))

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
        # A browser runs a script only as one: S3 needs the type of a file. Not by this machine's own table, where
        # a script may be plain text.
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
    def told(self, what: str) -> Iterator[None]:
        """What the network, its back end or the disk does is raised as one error with the URL."""
        met: list[Exception] = []
        with guarded(met.append, but=(RlvitalsError,)):  # each back end of fsspec raises its own errors
            yield
        if met:
            said = str(met[0]) if isinstance(met[0], OSError) else words_of(met[0])
            raise RunError(f"cannot {what} {self.shown}: {mask_text(said)}") from met[0]

    def _at(self, name: str) -> str:
        return f"{self._root}/{name}"


class FileTree:
    """Any files below a URL, by their names from there on."""

    def __init__(self, url: str) -> None:
        self._place = _Place(url)

    def names(self) -> set[str]:
        with self._place.told("read"):
            return self._place.names()

    def read(self, name: str) -> bytes | None:
        """A file's bytes; None where there is none."""
        with self._place.told("read"):
            return self._place.read(name)
        return None

    def write(self, name: str, data: bytes) -> None:
        with self._place.told("write"):
            self._place.write(name, data)

    def remove(self, name: str) -> None:
        with self._place.told("write"):
            self._place.remove(name)


@dataclass(frozen=True, slots=True)
class _Wanted:
    """What belongs to a run's story. The index is derived, locks are of this machine, checkpoints are the user's."""

    files: list[str]
    folders: list[str]

    @classmethod
    def of(cls, run_dir: RunDir) -> _Wanted:
        files = run_dir.info, run_dir.config, run_dir.attempts
        folders = run_dir.logs, run_dir.eval_logs, run_dir.epochs.folder
        return cls([_relative(run_dir, path) for path in files], [_relative(run_dir, path) for path in folders])

    def leaves(self, name: str) -> bool:
        """Whether a file in these folders is not ours: a tracker's, a draft, or a name that leads out of the folder."""
        path = PurePosixPath(name)
        return path.name.startswith(".") or "tfevents" in path.name or ".." in path.parts or path.is_absolute()


def _protocols(system: Any) -> tuple[str, ...]:
    known = system.protocol
    return (known,) if isinstance(known, str) else tuple(known)


def _names_in(run_dir: RunDir) -> list[str]:
    wanted = _Wanted.of(run_dir)
    names = [name for name in wanted.files if (run_dir.root / name).is_file()]
    for folder in wanted.folders:
        below = (path for path in (run_dir.root / folder).rglob("*") if path.is_file())
        names += [name for path in below if not wanted.leaves(name := _relative(run_dir, path))]
    return names


def _relative(run_dir: RunDir, path: Path) -> str:
    return path.relative_to(run_dir.root).as_posix()


def _mark(facts: Mapping[str, Any]) -> str | None:
    mark = next((facts[key] for key in _VERSION_KEYS if facts.get(key) is not None), None)
    return None if mark is None else f"{facts.get('size')} {mark}"


def _download(place: _Place, name: str, target: Path) -> None:
    make_folder(target.parent)
    draft = target.with_name(f".{target.name}.{os.urandom(4).hex()}.tmp")
    try:
        place.download(name, draft)
        sync_file(draft)
        os.replace(draft, target)
    finally:
        draft.unlink(missing_ok=True)


def _read_state(copy: Path) -> dict[str, Any]:
    try:
        found = read_json(copy / _STATE)
    except (OSError, ValueError):
        return {}
    return found if isinstance(found, dict) else {}
