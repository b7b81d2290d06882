"""Where the rows to judge come from: a recorded run, a log another tool wrote, a folder of either."""

from __future__ import annotations

import math
import os
from collections import deque
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from rlvitals import catalog
from rlvitals.config import by_last_name, planned_steps
from rlvitals.errors import ConfigError, RlvitalsError, did_you_mean
from rlvitals.health import rulebook
from rlvitals.health.entries import is_line
from rlvitals.health.monitor import Monitor
from rlvitals.health.rows import Fields, rows_of_log, rows_of_run
from rlvitals.importers import ForeignLog, is_one_log, not_a_log, read_log
from rlvitals.records import HealthEvent
from rlvitals.store.layout import RunDir
from rlvitals.store.remote import local_path
from rlvitals.views.discovery import find_runs, near_directory
from rlvitals.views.judge import Judge
from rlvitals.views.labels import is_labels
from rlvitals.views.query import RunView, open_run

Rules = str | Path | Sequence[Any] | None

RUN = "run"
"""The format of what rlvitals itself recorded."""


@dataclass(frozen=True, slots=True)
class Source:
    """Rows and what is known about them."""

    path: Path
    format: str
    rows: Iterable[Fields]
    """As the monitor reads them, in the order they were written. To be read once."""
    algorithm: str | None = None
    framework: str | None = None
    total_steps: int | None = None
    config: dict[str, Any] = field(default_factory=dict)
    notes: list[str] = field(default_factory=list)
    recorded: list[HealthEvent] = field(default_factory=list)
    """What is on record of the run's health, from the time it trained."""
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
        rows=rows_of_log(log.rows),
        total_steps=planned_steps(log.config),
        config=by_last_name(log.config),
        notes=list(log.notes),
    )


def source_of_run(view: RunView) -> Source:
    """A recorded run: the living line of its rows, training and evaluation together."""
    config = {key: value for key, value in view.config.items() if key != "rlvitals"}
    rules, notes = _own_rules(view.config.get("rlvitals"))
    return Source(
        path=view.path,
        format=RUN,
        rows=rows_of_run(view.iterate(stream="train"), view.iterate(stream="eval"), view.iterate(stream="system")),
        algorithm=view.info.algorithm,
        framework=view.info.framework,
        total_steps=view.info.total_steps or planned_steps(config),
        config=by_last_name(config),
        notes=[*view.problems, *notes],
        recorded=view.health_events,
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


def judge_source(source: Source, monitor: Monitor | None = None) -> Judge:
    """Have all rows of a source judged, with what only its own clock and epochs could see."""
    judge = Judge(monitor or new_monitor(source))
    outside = deque(event for event in source.recorded if event.seen_in != "rows")
    for row in source.rows:
        while outside and outside[0].timestamp < row.get("timestamp", -math.inf):
            judge.take_recorded(outside.popleft())
        judge.take(row)
    for event in outside:
        judge.take_recorded(event)
    return judge


def new_monitor(
    source: Source | None,
    rules: Rules = None,
    algorithm: str | None = None,
    framework: str | None = None,
    config: Mapping[str, Any] | None = None,
) -> Monitor:
    """A monitor that knows what the source and the user say of the run."""
    if framework is not None and framework not in (known := [item.id for item in catalog.frameworks()]):
        raise ConfigError(
            f"no framework is called {framework!r}.{did_you_mean(framework, known)} Known: {', '.join(known)}"
        )
    given = dict(config or {})
    total = given.get("total_steps") or given.get("max_steps")
    if not isinstance(total, int):
        total = source.total_steps if source else None
    return Monitor(
        algorithm=algorithm or (source.algorithm if source else None),
        framework=framework or (source.framework if source else None),
        total_steps=total,
        config=(source.config if source else {}) | given,
        rules=source.own_rules if rules is None and source else rules,
    )


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
