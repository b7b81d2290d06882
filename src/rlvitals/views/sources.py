"""Where the rows to judge come from: a recorded run, a log another tool wrote, a folder of either."""

from __future__ import annotations

import math
import os
import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from rlvitals.config import flatten
from rlvitals.errors import RlvitalsError
from rlvitals.health import rulebook
from rlvitals.health.entries import is_line
from rlvitals.health.monitor import Monitor
from rlvitals.importers import ForeignLog, is_one_log, not_a_log, read_log
from rlvitals.records import Finding, Row
from rlvitals.store.layout import RunDir, Stream
from rlvitals.store.remote import local_path
from rlvitals.store.samples import Samples
from rlvitals.views.discovery import find_runs, near_directory
from rlvitals.views.labels import is_labels
from rlvitals.views.query import RunView, open_run

Fields = dict[str, Any]

RUN = "run"
"""The format of what rlvitals itself recorded."""

_TOTAL_KEYS = ("total_steps", "max_steps", "total_training_steps")
_HELD_OUT = re.compile(r"^(eval|val|test|valid|validation|heldout|held_out|holdout)[-_/.]", re.IGNORECASE)


@dataclass(frozen=True, slots=True)
class Source:
    """Rows and what is known about them."""

    path: Path
    format: str
    rows: Iterable[Fields]
    """In the order they were written. To be read once."""
    algorithm: str | None = None
    framework: str | None = None
    total_steps: int | None = None
    config: dict[str, Any] = field(default_factory=dict)
    notes: list[str] = field(default_factory=list)
    own_findings: list[Finding] = field(default_factory=list)
    """What the run's own monitor said while it trained."""
    own_rules: rulebook.Rulebook | None = None
    """Those it was watched with, where they differ from the shipped ones: it is judged by them again."""


def open_source(path: str | os.PathLike[str]) -> Source:
    """A run's directory, a foreign log file, or a folder that holds one. Raises NotALog or RunError."""
    place = local_path(path)
    if is_run(place):
        return source_of_run(open_run(place))
    if not os.path.lexists(place):
        raise not_a_log(place, f"there is nothing there.{near_directory(place)}".rstrip("."))
    return source_of_log(read_log(place))


def is_run(path: Path) -> bool:
    """Whether a recorded run is there."""
    return os.path.isdir(path) and RunDir(path).holds_run


def source_of_log(log: ForeignLog) -> Source:
    """A foreign log."""
    return Source(
        path=log.path,
        format=log.format,
        rows=log.rows,
        total_steps=total_steps(log.config),
        config=settings(log.config),
        notes=list(log.notes),
    )


def source_of_run(view: RunView) -> Source:
    """A recorded run: the living line of its rows, training and evaluation together."""
    config = {key: value for key, value in view.config.items() if key != "rlvitals"}
    rules, notes = _own_rules(view.config.get("rlvitals"))
    return Source(
        path=view.path,
        format=RUN,
        rows=with_samples(
            merged(view.iterate(stream="train"), view.iterate(stream="eval")), view.iterate(stream="system")
        ),
        algorithm=view.info.algorithm,
        framework=view.info.framework,
        total_steps=view.info.total_steps or total_steps(config),
        config=settings(config),
        notes=[*view.problems, *notes],
        own_findings=view.findings,
        own_rules=rules,
    )


def _own_rules(own: Any) -> tuple[rulebook.Rulebook | None, list[str]]:
    """The rules in a run's settings, and notes on those that are not taken.

    Presets, one-line rules and entries. Not files: a run may come from anybody, and what it names is not opened.
    """
    given = own.get("rules") if isinstance(own, dict) else None
    entries = [given] if isinstance(given, str) else given if isinstance(given, list) else []
    known = (*rulebook.presets(), rulebook.DEFAULT)
    is_file = [isinstance(entry, str) and entry not in known and not is_line(entry) for entry in entries]
    files = [entry for entry, is_one in zip(entries, is_file, strict=True) if is_one]
    notes = [f"it was watched with the rules of {file}, too: give them with --rules" for file in files]
    rules = [entry for entry, is_one in zip(entries, is_file, strict=True) if not is_one]
    try:
        return Monitor(rules=rules).rulebook if rules else None, notes
    except RlvitalsError as error:
        return None, [*notes, f"the rules it was watched with cannot be used: {error}"]


def merged(train: Iterable[Row], evals: Iterable[Row], step: int | None = None) -> Iterator[Fields]:
    """Rows of both streams in the order of time; in that of steps where rows carry no time. `step` is the last one
    before them.
    """
    waiting = iter(evals)
    held = next(waiting, None)
    for row in train:
        while held is not None and _is_before(held, row):
            yield judged(held, "eval", step)
            held = next(waiting, None)
        yield judged(row, "train")
        step = row.step
    while held is not None:
        yield judged(held, "eval", step)
        held = next(waiting, None)


def with_samples(rows: Iterable[Fields], samples: Iterable[Row]) -> Iterator[Fields]:
    """Rows with what was seen of the machine since the row before each, as the monitor of a live run has it. A row's
    own values win.
    """
    joined, waiting = Samples(), iter(samples)
    held = next(waiting, None)
    for row in rows:
        while held is not None and held.timestamp <= row.get("timestamp", -math.inf):
            joined.add(held.numbers)
            held = next(waiting, None)
        seen = joined.take()
        yield seen | row if seen else row


def judged(row: Row, stream: Stream, step: int | None = None) -> Fields:
    """A row as the monitor takes it. What an evaluation logged under a training name is marked as held out; its step
    never falls below that of the training, which would look like a restart.
    """
    fields: Fields = {"step": row.step if step is None else max(step, row.step)}
    if row.timestamp == row.timestamp:
        fields["timestamp"] = row.timestamp
    if stream == "train":
        return fields | row.numbers
    return fields | {name if is_held_out(name) else f"eval/{name}": number for name, number in row.numbers.items()}


def is_held_out(name: str) -> bool:
    """Whether a name itself says that it is an evaluation's."""
    return _HELD_OUT.match(name) is not None


def _is_before(evaluation: Row, training: Row) -> bool:
    if evaluation.timestamp < training.timestamp or evaluation.timestamp > training.timestamp:
        return evaluation.timestamp < training.timestamp
    # Without times, or within one millisecond: an evaluation of step s comes after the row of step s.
    return evaluation.step < training.step


def settings(config: dict[str, Any]) -> dict[str, Any]:
    """A run's settings by their own names: nested ones by their last name, where only one has it."""
    found: dict[str, Any] = {}
    twice = set()
    for path, value in flatten(config).items():
        name = path.rpartition(".")[2]
        if name in found and found[name] != value:
            twice.add(name)
        found[name] = value
    for name in twice:
        del found[name]
    return found | {name: value for name, value in config.items() if not isinstance(value, dict)}


def total_steps(config: dict[str, Any]) -> int | None:
    """How many steps the settings plan."""
    named = settings(config)
    for key in _TOTAL_KEYS:
        value = named.get(key)
        if isinstance(value, int) and not isinstance(value, bool) and value > 0:
            return value
    return None


def places_in(path: str | os.PathLike[str]) -> list[Path] | None:
    """The runs and logs of a folder, sorted; None where the path is one run or one log itself.

    Files that are no logs are left to the caller to meet: telling needs reading.
    """
    folder = Path(path)
    if not os.path.isdir(folder) or is_run(folder) or is_one_log(folder):
        return None
    runs = list(find_runs(folder))
    logs = [
        child
        for child in _children(folder)
        if not child.name.startswith(".")
        and (
            (os.path.isfile(child) and not is_labels(child))
            or (os.path.isdir(child) and not is_run(child) and is_one_log(child))
        )
    ]
    found = sorted({*runs, *logs})
    if not found:
        raise not_a_log(folder, "the folder holds neither runs nor logs")
    return found


def _children(folder: Path) -> list[Path]:
    try:
        return list(folder.iterdir())
    except OSError as error:
        raise not_a_log(folder, f"it cannot be read ({error.strerror or error})") from error


def open_all(places: Iterable[Path]) -> Iterator[Source | tuple[Path, Exception]]:
    """Each place opened, or the reason why it could not be: one bad file must not hide the others."""
    for place in places:
        try:
            yield open_source(place)
        except (RlvitalsError, OSError) as error:
            yield place, error
