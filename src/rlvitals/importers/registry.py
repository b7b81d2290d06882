"""Lists the importers, shipped and plug-ins, and selects the one that reads a given log."""

from __future__ import annotations

import itertools
import os
import shlex
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, replace
from functools import cache, lru_cache, partial
from pathlib import Path
from urllib.parse import urlsplit

from rlvitals import plugins
from rlvitals.errors import MissingDependency, NotALog, RlvitalsError, RunNotFound
from rlvitals.guard import Once, guarded, words_of
from rlvitals.importers.aim import export_of
from rlvitals.importers.base import ForeignLog, Importer, LineImporter, head_of, lines_of, named, text_in
from rlvitals.importers.folders import (
    MOST_FILES,
    LogFolder,
    ends_as_log,
    files_in,
    marked,
    newest_first,
    survey,
    telling,
)
from rlvitals.importers.packed import MOST_BYTES, is_packed, unpacked
from rlvitals.importers.steps import restarts
from rlvitals.importers.trackers.address import address_in
from rlvitals.masking import mask_text
from rlvitals.records import Fields
from rlvitals.store.layout import RunDir
from rlvitals.store.remote import fetch_file, is_url, local_path


class PackedImporter(Importer):
    """A packed log, or an archive that holds one. The content is read as if it had been unpacked."""

    name = "packed"
    description = "any of these packed (.gz, .bz2, .xz, .zst, .zip, .tar)"
    takes_choice = True

    @classmethod
    def recognises(cls, head: bytes, path: Path) -> bool:
        return is_packed(head)

    def rows(self, path: Path) -> list[Fields]:
        with unpacked(path, self.notes) as inside:
            is_archive = os.path.isdir(inside)
            place = inside / self.choice if is_archive and self.choice else inside
            try:
                if is_archive and not place.resolve().is_relative_to(inside.resolve()):
                    raise NotALog(path, f"{self.choice!r} is not in the archive")
                log = read_log(f"{place}#{self.choice}" if self.choice and not is_archive else place)
            except NotALog as error:
                why = error.why.replace(f"{inside}/", f"{path}#")
                remarks = "; ".join(self.notes.texts())
                raise NotALog(path, f"unpacked, {why}{f' ({remarks})' if remarks else ''}") from error
        self.format, self.config = log.format, log.config
        for note in log.notes:
            self.notes.say(note)
        return log.rows


PROBED_ROWS, PROBED_BYTES = 3, 32 * 2**20
"""How far each file of a folder is read to see whether it holds rows."""

MOST_PLACES = 5
"""The most paths that a remark lists."""

MOST_TRIED = 5
"""How many older runs are tried if the newest holds no rows."""

_warn = Once()


@cache
def shipped() -> tuple[type[Importer], ...]:
    """The shipped importers, in the order they are tried. If a folder holds logs of several formats, the same order
    decides which one is read. The last importer accepts any text. They are imported when a log is first looked for, so
    a dashboard of recorded runs starts without them.
    """
    from rlvitals.importers.console import ConsoleImporter, NotebookLogImporter
    from rlvitals.importers.documents import DocumentImporter
    from rlvitals.importers.jsonl import JsonlImporter
    from rlvitals.importers.mlflow import MlflowImporter
    from rlvitals.importers.notebook import NotebookImporter
    from rlvitals.importers.parquet import ParquetImporter
    from rlvitals.importers.sqlite import DatabaseImporter
    from rlvitals.importers.swanlab import SwanLabImporter
    from rlvitals.importers.table import TableImporter
    from rlvitals.importers.tensorboard import TensorBoardImporter
    from rlvitals.importers.trackio import TrackioImporter
    from rlvitals.importers.wandb import WandbImporter

    return (
        WandbImporter,
        NotebookImporter,
        NotebookLogImporter,
        DocumentImporter,
        MlflowImporter,
        SwanLabImporter,
        TrackioImporter,
        JsonlImporter,
        TableImporter,
        ParquetImporter,
        TensorBoardImporter,
        DatabaseImporter,
        PackedImporter,
        ConsoleImporter,
    )


def importers() -> tuple[type[Importer], ...]:
    """All importers. Plug-ins are tried first."""
    return (*plug_ins(), *shipped())


@cache
def plug_ins() -> tuple[type[Importer], ...]:
    """The importers that other packages name in the entry point group `rlvitals.importers`."""
    found: list[type[Importer]] = []
    for where, loaded in plugins.load("importers", handle=_pass_over):
        if isinstance(loaded, type) and issubclass(loaded, Importer) and hasattr(loaded, "name"):
            found.append(loaded)
        else:
            _pass_over(where, TypeError("it is not a subclass of rlvitals.importers.Importer with a name"))
    return tuple(found)


def _pass_over(where: str, error: Exception) -> None:
    _warn(f"the importer {where} cannot be used and is skipped: {words_of(error)}", key=where)


def readable() -> str:
    """The readable formats, for messages."""
    return "; ".join(importer.description or importer.name for importer in importers())


def not_a_log(path: object, why: str, tried: str = "") -> NotALog:
    """The error for a path that holds no training numbers. It lists the readable formats."""
    sentence = f" Tried: {tried}." if tried else ""
    return NotALog(path, why, f"{sentence} What can be read: {readable()}.")


@dataclass(frozen=True, slots=True)
class FoundLog:
    """The log that is read for a path, and the other logs it was chosen from."""

    place: Path
    notes: tuple[str, ...] = ()
    older: tuple[Path, ...] = ()
    """Other runs of the same format, the newest first."""


def find_log(path: Path) -> Path:
    """The log that a folder holds or is. A file is returned unchanged."""
    return locate(path).place


def locate(path: Path) -> FoundLog:
    """The log that a folder holds or is. Looks for, in this order: importers' marks, a file with the name of a log, the
    newest run in a subfolder, a file in a subfolder. Raises NotALog if there is no log, or if several fit equally well;
    the message then lists them.
    """
    if not os.path.exists(path):
        raise NotALog(path, "there is nothing there")
    if not os.path.isdir(path):
        return FoundLog(path)
    if RunDir(path).holds_run:
        return FoundLog(RunDir(path).train_log)
    kinds = importers()
    known = marked(path, kinds)
    if known is not None:
        return FoundLog(known.log)
    files = files_in(path, kinds)
    beside = _readable_files([file for file in files if telling(file.name) >= 0])
    if beside:
        return _chosen_file(path, beside)
    runs, folders = survey(path, kinds)
    if runs:
        return _chosen_run(path, runs)
    below = (file for folder in folders for file in files_in(folder, kinds))
    others = _readable_files([*itertools.islice(below, MOST_FILES), *files])
    if others:
        return _chosen_file(path, others)
    raise not_a_log(path, export_of(path) or _nothing_in(path))


def _nothing_in(folder: Path) -> str:
    """Describes the content of a folder without a log."""
    try:
        seen = os.listdir(folder)
    except OSError as error:
        return f"it cannot be read ({error.strerror or error})"
    if not seen:
        return "the folder is empty"
    return f"it holds nothing that can be read ({named(seen)})"


def _chosen_run(folder: Path, runs: list[LogFolder]) -> FoundLog:
    """The newest run of the format that is tried first."""
    kinds = importers()
    best = min((run.kind for run in runs), key=kinds.index)
    newest, *older = newest_first([run for run in runs if run.kind is best])
    others = [*older, *(run for run in runs if run.kind is not best)]
    notes = []
    if others:
        shown = named_places([run.folder for run in others], folder)
        name = newest.folder.relative_to(folder).as_posix()
        notes.append(
            f"the folder holds {len(runs)} runs: read {name}, the newest{_of_format(best, others)}. "
            f"Others, to be passed by their path: {shown}"
        )
    return FoundLog(newest.log, tuple(notes), tuple(run.log for run in older))


def _of_format(best: type[Importer], others: list[LogFolder]) -> str:
    return f" of format {best.name}" if any(run.kind is not best for run in others) else ""


def named_places(places: list[Path], folder: Path) -> str:
    """A few of many paths, relative to a folder."""
    shown = ", ".join(place.relative_to(folder).as_posix() for place in places[:MOST_PLACES])
    return shown + (f" and {len(places) - MOST_PLACES} more" if len(places) > MOST_PLACES else "")


def _readable_files(files: list[Path]) -> list[Path]:
    return [file for file in files if _format_of(file) is not None]


def _format_of(file: Path) -> type[Importer] | None:
    """The importer of a file that holds rows; None if it holds none."""
    try:
        stat = os.stat(file)
    except OSError:
        return None
    return _probed(file, stat.st_size, stat.st_mtime_ns)


@lru_cache(maxsize=512)
def _probed(file: Path, size: int, changed: int) -> type[Importer] | None:
    """Like `_format_of`, cached by size and modification time. Reads up to the first rows."""
    try:
        kind = importer_for(file)
        importer = kind()
        with failures_named(importer, file):
            if isinstance(importer, LineImporter):
                rows = _first_rows(importer, file)
            else:
                rows = importer.rows(file) if size <= PROBED_BYTES else [{}]
    except (NotALog, OSError):
        return None
    except MissingDependency:
        return kind  # it is a log; the error on reading it names the package to install
    return kind if rows else None


def _first_rows(importer: LineImporter, file: Path) -> list[Fields]:
    read, rows = 0, []
    for line in lines_of(file):
        rows += importer.feed(line)
        read += len(line)
        if len(rows) >= PROBED_ROWS or read > PROBED_BYTES:
            return rows
    return importer.settled(rows + importer.finish())


def _chosen_file(folder: Path, files: list[Path]) -> FoundLog:
    """Ranks files by: a log's name, few parent folders, the importers' order, a training log's name. Returns the first.
    Raises NotALog if several are first.
    """
    kinds = importers()

    def rank(file: Path) -> tuple[int, int, int, int]:
        kind, score = _format_of(file), telling(file.name)
        return -min(score, 1), len(file.parents), kinds.index(kind) if kind in kinds else len(kinds), -score

    ranked = sorted(files, key=rank)
    best = [file for file in ranked if rank(file) == rank(ranked[0])]
    if len(best) > 1:
        commands = "; ".join(f"rlvitals check {shlex.quote(str(file))}" for file in best[:4])
        raise not_a_log(folder, f"the folder holds {len(best)} logs that may be meant. Name one of them: {commands}")
    others = ranked[1:]
    notes = (f"read {best[0].name}; other logs beside it: {named_places(others, folder)}",) if others else ()
    return FoundLog(best[0], notes)


def is_one_log(folder: Path) -> bool:
    """Whether a folder is one log rather than a folder of logs."""
    return any(importer.is_one_log(folder) for importer in importers())


def logs_below(folder: Path) -> list[Path]:
    """The folders below a folder that are one log each."""
    return [run.folder for run in survey(folder, importers())[0]]


def split_choice(path: Path) -> tuple[Path, str]:
    """Splits `mlflow.db#kto-7b` into the path and the selected run. The run is empty if a file has the whole name."""
    before, mark, choice = str(path).partition("#")
    if mark and not os.path.lexists(path) and os.path.isfile(before):
        return Path(before), choice
    return path, ""


def importer_for(path: Path) -> type[Importer]:
    """The importer that reads the log `find_log` found. Raises NotALog if no importer does."""
    if os.path.isdir(path):
        return next(importer for importer in importers() if importer.log_in(path) == path)
    try:
        head = head_of(path)
    except FileNotFoundError as error:
        raise not_a_log(path, f"it cannot be read ({error.strerror})") from error
    for importer in importers():
        with guarded(partial(_pass_over, repr(importer.name)), but=_let_pass(importer)):
            if importer.recognises(head, path):
                return importer
    is_binary = bool(head.strip()) and not text_in(head)
    raise not_a_log(path, "it is a binary file of another kind" if is_binary else "it is empty")


def read_log(path: str | Path) -> ForeignLog:
    """Read a log: a file, a folder that holds one, a URL, or the address of a tracker's run.

    Raises NotALog if it holds no numbers, and SourceError if a tracker does not return them.
    """
    address = address_in(path)
    if address is not None:
        from rlvitals.importers.trackers.transfer import read_address  # late: it imports the code that writes runs

        return read_address(address)
    if is_url(path):
        return _read_url(str(path))
    base, choice = split_choice(Path(path))
    found = locate(base)
    try:
        return _read_place(found.place, choice, found.notes)
    except NotALog as error:
        for older in found.older[:MOST_TRIED]:
            read, newest = (place.relative_to(base).as_posix() for place in (older, found.place))
            note = f"read {read}, an older run of the folder: the newest, {newest}, has no rows ({error.why})"
            with suppress(NotALog):
                return _read_place(older, choice, (note,))
        raise


def _read_place(place: Path, choice: str, notes: tuple[str, ...]) -> ForeignLog:
    importer = importer_for(place)()
    try:
        choose_run(importer, choice, place)
        with failures_named(importer, place):
            rows = importer.rows(place)
    except NotALog as error:
        raise not_a_log(error.path, error.why, importer.format) from error
    all_notes = [*notes, *importer.notes.texts(), *_restart_notes(rows)]
    algorithm, framework = importer.algorithm, importer.framework
    return ForeignLog(
        place, importer.format, rows, importer.config, all_notes, algorithm, framework,
        distributions=importer.distributions, images=importer.images,
    )  # fmt: skip


def choose_run(importer: Importer, choice: str, place: Path) -> None:
    """Make an importer read one of several runs. Raises NotALog if files of this format hold only one run."""
    if choice and not importer.takes_choice:
        raise NotALog(place, f"a {importer.name} file holds one run: {choice!r} chooses none. Leave out '#{choice}'")
    importer.choice = choice


def local_or_log(path: str | os.PathLike[str]) -> Path | ForeignLog:
    """A path on this machine, or the log at a URL or a tracker's address. A URL without the ending of a log is first
    tried as a run's folder.
    """
    if address_in(path) is None and not (is_url(path) and ends_as_log(urlsplit(str(path)).path)):
        with suppress(RunNotFound):
            return local_path(path)
    return read_log(os.fspath(path))


def _read_url(url: str) -> ForeignLog:
    """Read a log through fsspec, from a temporary copy."""
    address, _, choice = url.partition("#")
    with tempfile.TemporaryDirectory(prefix="rlvitals-") as folder:
        copy = fetch_file(address, Path(folder), MOST_BYTES)
        shown = mask_text(url)
        try:
            log = read_log(f"{copy}#{choice}" if choice else copy)
        except NotALog as error:
            raise NotALog(shown, error.why, error.more) from error
    return replace(log, path=Path(copy.name), notes=[f"read from {shown}", *log.notes])


@contextmanager
def failures_named(importer: Importer, path: Path) -> Iterator[None]:
    """Converts any error of a plug-in to a NotALog with its name, so one plug-in cannot hide a folder's other logs."""
    met: list[Exception] = []
    with guarded(met.append, but=_let_pass(type(importer))):
        yield
    if met:
        raise NotALog(path, f"the importer {importer.name!r} failed on it ({words_of(met[0])})") from met[0]


def _let_pass(importer: type[Importer]) -> tuple[type[Exception], ...]:
    """The exceptions that are not converted: rlvitals' own errors and OSError. A shipped importer's exceptions are
    never converted, so bugs stay visible.
    """
    return (Exception,) if importer in shipped() else (RlvitalsError, OSError)


def _restart_notes(rows: list[Fields]) -> list[str]:
    found = restarts(rows)
    if len(found) > 3:
        shown = ", ".join(str(position + 1) for position in found[:5])
        more = ", …" if len(found) > 5 else ""
        return [f"steps start again at rows {shown}{more}: {len(found)} restarts inside the file"]
    return [f"steps start again at row {position + 1}: a restart inside the file" for position in found]
