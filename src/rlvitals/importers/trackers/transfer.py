"""Imports a tracker's runs into run directories: one run, or all runs of a project, each in a separate folder.

A killed import continues where it stopped: complete runs are skipped, and the missing rows of the others are fetched.
Later, the same command updates the folder. Attempts that rlvitals forwarded as several runs become one run again.
"""

from __future__ import annotations

import contextlib
import hashlib
import math
import os
import re
import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field, replace
from functools import partial
from importlib import import_module
from pathlib import Path
from typing import Any, Literal

from rlvitals.codec import encode
from rlvitals.config import planned_steps
from rlvitals.errors import ConfigError, RlvitalsError, RunExists, RunLocked, RunUnreadable, SourceError
from rlvitals.importers.base import ForeignLog
from rlvitals.importers.into_run import stream_of
from rlvitals.importers.steps import RestartWatch
from rlvitals.importers.trackers.address import Address
from rlvitals.importers.trackers.base import Page, RemoteRun, RunCard, Source
from rlvitals.importers.trackers.registry import SOURCES
from rlvitals.importers.trackers.rows import counter_name
from rlvitals.masking import mask_text, masked
from rlvitals.records import Attempt, Fields, RunInfo, Status
from rlvitals.store.cards import new_id, write_attempts, write_config, write_info
from rlvitals.store.files import make_folder
from rlvitals.store.imports import ImportLogs, read_import, write_import
from rlvitals.store.layout import RunDir
from rlvitals.store.lines import stored_row
from rlvitals.store.lock import RunLock
from rlvitals.store.marks import LONGEST_NOTE, LONGEST_TAG, MOST_TAGS, FolderMarks
from rlvitals.store.rollouts import group_line

LONGEST_NAME = 60
"""The most characters of a run's name in its folder's name."""

ImportOutcome = Literal["new", "continued", "unchanged", "failed"]

_UNSAFE = re.compile(r"[^A-Za-z0-9._-]+")


@dataclass(slots=True)
class Brought:
    """The result of importing one run."""

    name: str
    id: str
    path: Path
    outcome: ImportOutcome = "unchanged"
    rows: int = 0
    eval_rows: int = 0
    samples: int = 0
    added: int = 0
    """The rows that this import added."""
    attempts: int = 0
    state: str = ""
    why: str = ""
    notes: list[str] = field(default_factory=list)


@dataclass(frozen=True, slots=True)
class _How:
    """The options that all imports of a command share."""

    version: str
    refuse: Callable[[RunDir], None]
    tell: Callable[[str], None]
    name: str | None = None


def open_source(address: Address, tell: Callable[[str], None] = lambda message: None) -> Source:
    """The source of an address. Raises SourceError if it cannot be reached or the address does not exist."""
    module = import_module(f"rlvitals.importers.trackers.{address.scheme}")
    found: Source = getattr(module, SOURCES[address.scheme])(address, tell)
    return found


def bring(
    address: Address,
    to: Path,
    *,
    version: str,
    refuse: Callable[[RunDir], None],
    name: str | None = None,
    tell: Callable[[str], None] = lambda message: None,
) -> list[Brought]:
    """Import the run of an address into the directory `to`, or the runs of a project into folders below it.

    `refuse` raises if a directory holds another run. If a run of a project cannot be imported, its `why` gives the
    reason, and the import continues with the others. Raises SourceError, RunError.
    """
    source = open_source(address, tell)
    with contextlib.closing(source):
        groups = _groups(list(source.runs()))
        if source.is_one_run:
            parts = groups[0]
            return [_Import(source, parts, RunDir(to), _How(version, refuse, tell, name)).run()]
        if name is not None:
            raise ConfigError(f"--name is for one run, and {address} is a project")
        refuse(RunDir(to))
        make_folder(to)
        known = _known(to, address)
        done = []
        for place, parts in enumerate(groups):
            first = parts[0]
            root = known.get(first.identity) or _new_folder(to, first)
            how = _How(version, refuse, partial(_tell_with_place, tell, f"{place + 1} of {len(groups)} runs"))
            try:
                done.append(_Import(source, parts, RunDir(root), how).run())
            except (SourceError, RunExists, RunLocked, RunUnreadable) as error:
                done.append(Brought(first.name, first.id, root, "failed", why=str(error)))
        return done


def read_address(address: Address) -> ForeignLog:
    """Read the rows of the run that an address names, without writing files. Raises SourceError."""
    source = open_source(address)
    with contextlib.closing(source):
        if not source.is_one_run:
            raise SourceError(
                f"{address} is a project, and one run is needed. Name one of it: {source.grammar}. 'rlvitals import "
                f"{address} --to DIR' brings in all of them"
            )
        run = next(iter(source.runs()))
        card = source.card(run)
        rows: list[Fields] = []
        for page in source.pages(run, {}):
            for row in page.rows:
                moment = {"timestamp": row.timestamp} if math.isfinite(row.timestamp) else {}
                rows.append({"step": row.step, **moment, **row.numbers})
        if not rows:
            raise SourceError(f"{address}: the run holds no rows")
        notes = [f"fetched from {address}", *source.notes]
        return ForeignLog(Path(folder_name(run.name, run.id)), address.scheme, rows, masked(card.config), notes)


def folder_name(name: str, run_id: str) -> str:
    """A safe folder name for a run: its name without unsafe characters, and its id. The id is hashed if it is unsafe.

    >>> folder_name("grpo 7b", "3f2a77ab"), folder_name("../../etc/passwd", "x/../y")
    ('grpo_7b-3f2a77ab', 'etc_passwd-fec01a9e')
    """
    shown = _UNSAFE.sub("_", name)[:LONGEST_NAME].strip("._-") or "run"
    is_plain = re.fullmatch(r"[A-Za-z0-9_-]{1,40}", run_id) is not None
    return f"{shown}-{run_id if is_plain else hashlib.sha256(run_id.encode('utf-8', 'replace')).hexdigest()[:8]}"


def _tell_with_place(tell: Callable[[str], None], place: str, message: str) -> None:
    tell(f"{place}: {message}")


def _new_folder(folder: Path, run: RemoteRun) -> Path:
    """A folder for a new run. Runs of two projects may have the same name and id."""
    wanted = folder / folder_name(run.name, run.id)
    if not os.path.lexists(wanted):
        return wanted
    return wanted.with_name(f"{wanted.name}-{hashlib.sha256(run.identity.encode('utf-8', 'replace')).hexdigest()[:6]}")


def _groups(runs: Iterable[RemoteRun]) -> list[list[RemoteRun]]:
    """Groups the runs: attempts of one rlvitals run together, other runs alone."""
    found: dict[str, list[RemoteRun]] = {}
    for run in runs:
        found.setdefault(f"rlvitals {run.origin.run}" if run.origin else f"id {run.id}", []).append(run)
    groups = []
    for parts in found.values():
        numbers = [part.origin.attempt if part.origin else 1 for part in parts]
        if len(set(numbers)) == len(numbers):
            groups.append(sorted(parts, key=lambda part: part.origin.attempt if part.origin else 1))
        else:  # an attempt was forwarded twice: import each run separately
            groups += [[part] for part in parts]
    return groups


def _known(folder: Path, address: Address) -> dict[str, Path]:
    """The runs that are already in a folder, by identity, because a run may have been renamed."""
    found: dict[str, Path] = {}
    for child in sorted(folder.iterdir()):
        with contextlib.suppress(RlvitalsError):
            record = read_import(RunDir(child))
            if record and record.get("scheme") == address.scheme and record.get("place") == address.place_mark:
                found.setdefault(str(record.get("id")), child)
    return found


class _Import:
    """The import of one run into a directory."""

    def __init__(self, source: Source, parts: list[RemoteRun], run_dir: RunDir, how: _How) -> None:
        self._source, self._parts, self._dir, self._how = source, parts, run_dir, how
        self._record: dict[str, Any] = {}
        self._watch = RestartWatch()
        self._attempts: list[Attempt] = []
        self._counts = {"train": 0, "eval": 0, "system": 0}
        self._notes: dict[str, None] = {}
        self._last = math.nan

    def run(self) -> Brought:
        known = self._known_record()
        if known is not None and not known.get("is_open") and self._is_unchanged(known):
            return self._brought("unchanged", known, 0)
        make_folder(self._dir.root)
        lock = RunLock(self._dir)
        lock.acquire()
        try:
            known = self._known_record()  # again, because another import may have changed it
            return self._bring(known)
        finally:
            lock.release()

    def _known_record(self) -> dict[str, Any] | None:
        found = read_import(self._dir)
        if found is None:
            self._how.refuse(self._dir)
        elif (found.get("scheme"), found.get("id")) != (self._source.scheme, self._parts[0].identity):
            raise RunExists(
                f"{self._dir.root} holds another run, imported from {found.get('address')}. Choose another directory"
            )
        return found

    def _is_unchanged(self, record: dict[str, Any]) -> bool:
        parts = record.get("parts", {})
        return all(part.mark and parts.get(part.id, {}).get("mark") == part.mark for part in self._parts)

    def _bring(self, known: dict[str, Any] | None) -> Brought:
        goes_on = known is not None and self._source.goes_on
        self._record = dict(known or {}) if goes_on else {}
        if goes_on:
            self._recall()
        before = sum((known or {}).get("memory", {}).get("counts", {}).values())
        run_id = (known or {}).get("run_id") or new_id()
        self._record |= {
            "address": self._source.address.shown,
            "scheme": self._source.scheme,
            "place": self._source.address.place_mark,
            "id": self._parts[0].identity,
            "run_id": run_id,
            "is_open": True,
        }
        logs = ImportLogs(self._dir, known or {"is_open": True}, is_restart=not self._source.goes_on)
        try:
            write_import(self._dir, {**(known or {}), **self._record})
            card = self._source.card(self._parts[0])
            if known is None:
                self._write_cards(card, run_id, "interrupted")
            parts = self._record.setdefault("parts", {})
            for part in self._parts:
                held = parts.get(part.id, {})
                if self._source.goes_on and part.mark and held.get("mark") == part.mark:
                    continue
                for page in self._source.pages(part, dict(held.get("cursor", {}))):
                    self._add(logs, part, page)
                    parts[part.id] = {"cursor": page.cursor}
                    self._remember()
                    logs.commit(self._record)
                    self._how.tell(f"{part.name}: {sum(self._counts.values()):,} rows")
                parts[part.id] = {**parts.get(part.id, {}), "mark": part.mark}
                self._notes |= self._source.notes
            self._remember()
            if self._attempts:
                write_attempts(self._dir, self._attempts)
            self._write_cards(card, run_id, self._parts[-1].status)
            self._record["is_open"] = False
            logs.close(self._record)
        finally:
            logs.release()
        if known is None:
            self._mark(card)
        added = max(0, sum(self._counts.values()) - before)
        return self._brought("new" if known is None else "continued", self._record, added)

    def _recall(self) -> None:
        memory = self._record.get("memory")
        if memory:
            self._watch.recall(memory["watch"])
            self._attempts = [Attempt(**one) for one in memory["attempts"]]
            self._counts = dict(memory["counts"])
            self._notes = dict.fromkeys(memory["notes"])
            self._last = math.nan if memory["last"] is None else memory["last"]

    def _remember(self) -> None:
        attempts = [
            {"number": one.number, "started": one.started, "from_step": one.from_step} for one in self._attempts
        ]
        self._record["memory"] = {
            "watch": self._watch.memory(),
            "attempts": attempts,
            "counts": dict(self._counts),
            "notes": list(self._notes),
            "last": self._last if math.isfinite(self._last) else None,
        }

    def _add(self, logs: ImportLogs, part: RemoteRun, page: Page) -> None:
        for row in page.rows:
            number = self._attempt_of(part, {"step": row.step, **row.numbers}, row.timestamp)
            stream = stream_of({*row.numbers, *row.texts} - {counter_name(self._source.scheme)})
            logs.add(stream, encode(stored_row(replace(row, attempt=number))))
            self._counts[stream] += 1
            if math.isfinite(row.timestamp):
                self._last = row.timestamp if math.isnan(self._last) else max(row.timestamp, self._last)
        for row in page.samples:
            number = part.origin.attempt if part.origin else 1
            logs.add("system", encode(stored_row(replace(row, attempt=number))))
            self._counts["system"] += 1
        for one in page.distributions:
            logs.add("distributions", encode(one.stored))
        number = self._attempts[-1].number if self._attempts else 1
        moment = self._last if math.isfinite(self._last) else part.created or time.time()
        for group in page.groups:
            logs.add_rollouts(group.step, group_line(group, group.step, number, moment))

    def _attempt_of(self, part: RemoteRun, fields: Fields, moment: float) -> int:
        if part.origin is not None:
            number, from_step = part.origin.attempt, part.origin.from_step
        else:
            is_restart = self._watch.is_restart(fields)
            number = len(self._attempts) + is_restart if self._attempts else 1
            from_step = None
        if not self._attempts or self._attempts[-1].number < number:
            started = moment if math.isfinite(moment) else part.created or time.time()
            self._attempts.append(Attempt(number=number, started=started, from_step=from_step))
        return number

    def _write_cards(self, card: RunCard, run_id: str, status: Status) -> None:
        first, last = self._parts[0], self._parts[-1]
        is_running = last.status == "running"
        notes = list(self._notes)
        if is_running:
            notes.append("it was still running when it was imported: the same command fetches what has come since")
        origin = {
            "imported_from": self._source.address.shown,
            "format": self._source.scheme,
            "notes": notes,
            "tracker": {
                "id": first.id,
                "name": first.name,
                "project": first.project,
                "tags": card.tags,
                "note": card.note,
                **card.facts,
                "summary": card.summary,
            },
        }
        write_config(self._dir, masked({**card.config, "rlvitals": origin}))
        created = first.created or (self._attempts[0].started if self._attempts else time.time())
        ended = last.ended or (self._last if math.isfinite(self._last) else created)
        info = RunInfo(
            id=run_id,
            name=self._how.name or first.name,
            status="interrupted" if is_running else status,  # no process on this machine writes it
            created=created,
            updated=max(ended, created),
            written_by=self._how.version,
            attempt=self._attempts[-1].number if self._attempts else 1,
            total_steps=planned_steps(card.config),
            ended=None if is_running else max(ended, created),
        )
        write_info(self._dir, info)

    def _mark(self, card: RunCard) -> None:
        """Store the tags and the note where the dashboard reads them."""
        tags = [" ".join(mask_text(tag).split())[:LONGEST_TAG] for tag in card.tags]
        wanted: dict[str, Any] = {
            "tags": [tag for tag in tags if tag.isprintable() and tag][:MOST_TAGS],
            "note": mask_text(card.note)[:LONGEST_NOTE],
        }
        wanted = {name: value for name, value in wanted.items() if value}
        if wanted:
            with contextlib.suppress(ConfigError, RunLocked, RunUnreadable, OSError):  # the settings hold them, too
                FolderMarks(self._dir.root.absolute().parent).mark(self._dir.root.absolute().name, wanted)

    def _brought(self, outcome: ImportOutcome, record: dict[str, Any], added: int) -> Brought:
        memory = record.get("memory", {})
        counts = memory.get("counts", {})
        return Brought(
            name=self._parts[0].name,
            id=self._parts[0].id,
            path=self._dir.root,
            outcome=outcome,
            rows=counts.get("train", 0),
            eval_rows=counts.get("eval", 0),
            samples=counts.get("system", 0),
            added=added,
            attempts=len(memory.get("attempts", [])),
            state=self._parts[-1].status,
            notes=list(memory.get("notes", [])),
        )
