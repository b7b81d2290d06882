"""Rows to judge, what is known about them, and the functions that judge them."""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, TypedDict

from rlvitals import catalog
from rlvitals.config import by_last_name, planned_steps
from rlvitals.errors import ConfigError, RlvitalsError, did_you_mean
from rlvitals.health import rulebook
from rlvitals.health.entries import is_line
from rlvitals.health.monitor import Monitor
from rlvitals.health.rows import RowReader, rows_of_log, rows_of_run
from rlvitals.importers import ForeignLog
from rlvitals.records import Fields, HealthEvent
from rlvitals.views.judge import Judge, RowCount
from rlvitals.views.query import StoredRun
from rlvitals.views.rechecks import events_on_record, when

Rules = str | Path | Sequence[Any] | None


class Known(TypedDict, total=False):
    """What the user passes about a log that is judged; see `check`."""

    rules: Rules
    algorithm: str | None
    framework: str | None
    config: Mapping[str, Any] | None
    mapping: Mapping[str, str] | None


RUN = "run"
"""The format of runs that rlvitals recorded."""


@dataclass(frozen=True, slots=True)
class RowSource:
    """Rows and what is known about them."""

    path: Path
    format: str
    rows: Iterable[Fields]
    """As the monitor reads them, in the order they were written. Can be read once."""
    algorithm: str | None = None
    framework: str | None = None
    total_steps: int | None = None
    config: dict[str, Any] = field(default_factory=dict)
    notes: list[str] = field(default_factory=list)
    recorded: list[HealthEvent] = field(default_factory=list)
    """The run's recorded health events from its training."""
    own_rules: rulebook.Rulebook | None = None
    """The rules that it was monitored with, if they differ from the shipped ones. It is judged by them again."""
    mapping: dict[str, str] = field(default_factory=dict)
    """The mapping of names in its own settings."""
    counted: RowCount | None = None
    """Its training rows as they were logged. None: as the monitor reads them."""
    log: ForeignLog | None = None
    """The log it is read from, if rlvitals did not record it."""
    view: StoredRun | None = None
    """The view it is read from, if one was opened."""


def source_of_run(view: StoredRun) -> RowSource:
    """The source of a recorded run: its living rows, training and evaluation together."""
    config = {key: value for key, value in view.config.items() if key != "rlvitals"}
    rules, notes = _own_rules(view.config.get("rlvitals"))
    mapping, unmapped = _own_mapping(view.config.get("rlvitals"))
    return RowSource(
        path=view.path,
        format=RUN,
        rows=rows_of_run(
            view.iterate(stream="train"),
            view.iterate(stream="eval"),
            view.iterate(stream="system"),
            None if view.has_end else RowReader(),
            is_set_back=view.is_set_back,
        ),
        algorithm=view.info.algorithm,
        framework=view.info.framework,
        total_steps=view.info.total_steps or planned_steps(config),
        config=by_last_name(config),
        notes=[*view.problems, *notes, *unmapped],
        recorded=events_on_record(view, rules),
        own_rules=rules,
        mapping=mapping,
        view=view,
    )


def source_of_log(log: ForeignLog) -> RowSource:
    """The source of a foreign log."""
    return RowSource(
        path=log.path,
        format=log.format,
        rows=rows_of_log(log.rows),
        algorithm=log.algorithm,
        framework=log.framework,
        total_steps=planned_steps(log.config),
        config=by_last_name(log.config),
        notes=list(log.notes),
        log=log,
    )


def source_of(view: StoredRun) -> RowSource:
    """The source of a view: a recorded run's living line, or a foreign log as `check` reads it."""
    if view.foreign is None:
        return source_of_run(view)
    source = replace(source_of_log(view.foreign), view=view)
    if view.parts:
        on_record = [event for part in view.parts for event in events_on_record(part)]
        return replace(source, total_steps=view.info.total_steps, recorded=sorted(on_record, key=when))
    if view.rollout_log is view.own_rollouts:
        return source
    from rlvitals.views.texts import text_events  # compiles the scanners, which most pages do not need

    return replace(source, recorded=text_events(view.rollout_log))


def _own_mapping(own: Any) -> tuple[dict[str, str], list[str]]:
    """The mapping of names in a run's settings, and notes on entries that cannot be used."""
    given = own.get("mapping") if isinstance(own, dict) else None
    mapping, notes = {}, []
    for name, concept in given.items() if isinstance(given, dict) else ():
        try:
            Monitor(mapping={name: str(concept)})
        except ConfigError as error:
            notes.append(f"its settings cannot be used here: {error}")
        else:
            mapping[name] = str(concept)
    return mapping, notes


def _own_rules(own: Any) -> tuple[rulebook.Rulebook | None, list[str]]:
    """The rules in a run's settings, and notes on those that are not used.

    Presets, one-line rules and entries are used. Files are not opened, because a run's settings are not trusted.
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


def judge_source(source: RowSource, monitor: Monitor | None = None) -> Judge:
    """Judge all rows of a source, with the recorded events that cannot be derived from the rows."""
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
    source: RowSource | None,
    rules: Rules = None,
    algorithm: str | None = None,
    framework: str | None = None,
    config: Mapping[str, Any] | None = None,
    *,
    mapping: Mapping[str, str] | None = None,
) -> Monitor:
    """A monitor with the facts from the source and from the user."""
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
        mapping=(source.mapping if source else {}) | dict(mapping or {}),
    )
