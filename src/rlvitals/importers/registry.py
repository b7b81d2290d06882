"""The importers there are, ours and those of plug-ins, and which of them reads a given log."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from functools import cache, partial
from pathlib import Path

from rlvitals import plugins
from rlvitals.errors import NotALog, RlvitalsError
from rlvitals.guard import Once, guarded, words_of
from rlvitals.importers.base import Fields, ForeignLog, Importer, head_of, text_in
from rlvitals.importers.console import ConsoleImporter, NotebookLogImporter
from rlvitals.importers.documents import DocumentImporter
from rlvitals.importers.jsonl import JsonlImporter
from rlvitals.importers.notebook import NotebookImporter
from rlvitals.importers.steps import restarts
from rlvitals.importers.table import TableImporter
from rlvitals.importers.tensorboard import TensorBoardImporter
from rlvitals.importers.wandb import WandbImporter
from rlvitals.store.layout import RunDir

IMPORTERS: tuple[type[Importer], ...] = (
    WandbImporter,
    NotebookImporter,
    NotebookLogImporter,
    DocumentImporter,
    JsonlImporter,
    TableImporter,
    TensorBoardImporter,
    ConsoleImporter,
)
"""In the order they are asked. The last takes any text."""

_warn = Once()


def importers() -> tuple[type[Importer], ...]:
    """All of them; those of plug-ins are asked first."""
    return (*plug_ins(), *IMPORTERS)


@cache
def plug_ins() -> tuple[type[Importer], ...]:
    """The importers that other packages name in the entry point group `rlvitals.importers`."""
    found: list[type[Importer]] = []
    for where, loaded in plugins.load("importers", handle=_pass_over):
        if isinstance(loaded, type) and issubclass(loaded, Importer) and hasattr(loaded, "name"):
            found.append(loaded)
        else:
            _pass_over(where, TypeError("it is no subclass of rlvitals.importers.Importer with a name"))
    return tuple(found)


def _pass_over(where: str, error: Exception) -> None:
    _warn(f"the importer {where} cannot be used and is passed over: {words_of(error)}", key=where)


def readable() -> str:
    """What can be read, for messages."""
    return "; ".join(importer.description or importer.name for importer in importers())


def not_a_log(path: object, why: str, tried: str = "") -> NotALog:
    """The error for a path that holds no training numbers, with what can be read."""
    said = f" Tried: {tried}." if tried else ""
    return NotALog(path, why, f"{said} What can be read: {readable()}.")


def find_log(path: Path) -> Path:
    """The log a folder holds, or is. A file is itself."""
    if not os.path.exists(path):
        raise not_a_log(path, "there is nothing there")
    if not os.path.isdir(path):
        return path
    if RunDir(path).holds_run:
        return RunDir(path).train_log
    for importer in importers():
        found = importer.log_in(path)
        if found is not None:
            return found
    patterns = [pattern for importer in importers() for pattern in importer.names]
    beside = [file for pattern in patterns if "/" not in pattern for file in sorted(path.glob(pattern))]
    below = [file for pattern in patterns if "/" in pattern for file in sorted(path.glob(pattern))]
    for files in (beside, below):
        if len(files) == 1:
            return files[0]
    shown = ", ".join(str(file.relative_to(path)) for file in (beside or below)[:4])
    why = f"the folder holds several, name one of them: {shown}" if shown else "the folder holds none that is known"
    raise not_a_log(path, why)


def is_one_log(folder: Path) -> bool:
    """Whether a folder is one log rather than a folder of logs."""
    return any(importer.is_one_log(folder) for importer in importers())


def importer_for(path: Path) -> type[Importer]:
    """The importer that reads what `find_log` found. Raises NotALog where none does."""
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
    """The rows of a log file, or of a folder that holds one. Raises NotALog where there are no numbers."""
    base, choice = split_choice(Path(path))
    place = find_log(base)
    importer = importer_for(place)()
    try:
        choose_run(importer, choice, place)
        with failures_named(importer, place):
            rows = importer.rows(place)
    except NotALog as error:
        raise not_a_log(error.path, error.why, importer.format) from error
    return ForeignLog(
        place,
        importer.format,
        rows,
        importer.config,
        [*importer.notes.texts(), *_restart_notes(rows)],
        algorithm=importer.algorithm,
        framework=importer.framework,
    )


def split_choice(path: Path) -> tuple[Path, str]:
    """A path and the run that is chosen in it: `train.ipynb#2`. Nothing is where a file has that name."""
    before, mark, choice = str(path).partition("#")
    if mark and not os.path.lexists(path) and os.path.isfile(before):
        return Path(before), choice
    return path, ""


def choose_run(importer: Importer, choice: str, place: Path) -> None:
    """Have an importer read one of several runs. Raises NotALog where its files hold one alone."""
    if choice and not importer.takes_choice:
        raise NotALog(place, f"a {importer.name} file holds one run: {choice!r} chooses none. Leave out '#{choice}'")
    importer.choice = choice


@contextmanager
def failures_named(importer: Importer, path: Path) -> Iterator[None]:
    """Whatever a plug-in raises becomes a NotALog with its name: it must not hide the other logs of a folder."""
    met: list[Exception] = []
    with guarded(met.append, but=_let_pass(type(importer))):
        yield
    if met:
        raise NotALog(path, f"the importer {importer.name!r} failed on it ({words_of(met[0])})") from met[0]


def _let_pass(importer: type[Importer]) -> tuple[type[Exception], ...]:
    """What is not contained: errors of ours are told, and defects of ours are not hidden."""
    return (Exception,) if importer in IMPORTERS else (RlvitalsError, OSError)


def _restart_notes(rows: list[Fields]) -> list[str]:
    found = restarts(rows)
    if len(found) > 3:
        shown = ", ".join(str(position + 1) for position in found[:5])
        more = ", …" if len(found) > 5 else ""
        return [f"steps start again at rows {shown}{more}: {len(found)} restarts inside the file"]
    return [f"steps start again at row {position + 1}: a restart inside the file" for position in found]
