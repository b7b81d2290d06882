"""Rollouts as a table to ask, derived from files and safe to delete: of a run `index/rollouts.sqlite`.

Brought up to date when it is opened: files that grew are read on, files that changed otherwise are read again, files
that are gone are forgotten. Texts are not in it: see `rollout_search`. Where its folder cannot be written the table is
made in memory. Which files there are, and how one is read, a `RolloutFiles` says: `RunFiles` for a run.
"""

from __future__ import annotations

import contextlib
import json
import os
import sqlite3
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any, NamedTuple, Protocol

from rlvitals.records import TURN_LIMIT
from rlvitals.store.archive import log_state
from rlvitals.store.layout import RunDir
from rlvitals.store.rollout_search import search
from rlvitals.store.rollouts import RolloutFile, parse_group, read_lines, rollout_files

FORMAT = 3
PROMPT_SHOWN = 200
"""Characters of a prompt that the table holds."""

_SCHEMA = """
CREATE TABLE files (name TEXT PRIMARY KEY, inode, size, changed, upto INTEGER, notes TEXT);
CREATE TABLE groups (
    id INTEGER PRIMARY KEY, file TEXT, offset INTEGER, step INTEGER, attempt INTEGER, rank INTEGER,
    key TEXT, prompt TEXT, mean REAL, std REAL, kept INTEGER, reason TEXT, rollouts INTEGER
);
CREATE TABLE rollouts (
    id INTEGER PRIMARY KEY, group_id INTEGER, number INTEGER, step INTEGER, attempt INTEGER,
    reward REAL, outcome TEXT, stop TEXT, turns INTEGER, early INTEGER, error TEXT, tokens INTEGER
);
CREATE INDEX groups_by_file ON groups (file, offset);
CREATE INDEX groups_by_step ON groups (step, attempt);
CREATE INDEX rollouts_by_group ON rollouts (group_id);
CREATE INDEX rollouts_by_step ON rollouts (step, attempt);
CREATE INDEX rollouts_by_reward ON rollouts (reward);
CREATE INDEX rollouts_by_outcome ON rollouts (outcome);
"""


class Indexed(NamedTuple):
    """One file of rollouts."""

    name: str
    path: Path
    step: int | None
    """The step of all its groups; None where each says its own."""
    rank: int
    state: tuple[int, int, int]
    """Inode, size and time of its last change."""
    grows: bool
    """Whether it is only ever appended to."""


class RolloutFiles(Protocol):
    """Files of rollouts, and how they are read."""

    @property
    def table(self) -> Path | None:
        """Where the table is kept; None: nowhere."""

    @property
    def is_in_parts(self) -> bool:
        """Whether what a file holds at one place is a part of a group: those of one step and key are one."""

    def files(self) -> list[Indexed]:
        """Every file there is."""

    def read(self, file: Indexed, start: int, notes: list[str]) -> Iterator[tuple[int, int, dict[str, Any]]]:
        """The groups of a file from a place on, as plain data: where each begins, where it ends."""

    def search(self, file: Indexed, text: str, step: int | None) -> Iterator[tuple[int, list[int]]]:
        """Where groups with a text begin, and the places (from 1) of the rollouts that have it."""


class RunFiles:
    """The files of a run: one a step and rank, a whole group a line."""

    is_in_parts = False

    def __init__(self, run_dir: RunDir) -> None:
        self._dir = run_dir

    @property
    def table(self) -> Path:
        return self._dir.index / "rollouts.sqlite"

    def files(self) -> list[Indexed]:
        return [_indexed(file) for file in rollout_files(self._dir)]

    def read(self, file: Indexed, start: int, notes: list[str]) -> Iterator[tuple[int, int, dict[str, Any]]]:
        for offset, line in read_lines(file.path, start):
            raw = parse_group(line)
            if raw is not None and raw["step"] == file.step:  # a step's groups are in its own file
                yield offset, offset + len(line) + 1, raw

    def search(self, file: Indexed, text: str, step: int | None) -> Iterator[tuple[int, list[int]]]:
        return search(file.path, text)


def _indexed(file: RolloutFile) -> Indexed:
    return Indexed(file.path.name, file.path, file.step, file.rank, log_state(file.path), grows=True)


class Found(NamedTuple):
    """One rollout of the table."""

    step: int
    attempt: int
    group_id: int
    number: int
    """Its place in the group, from 1."""
    reward: float | None
    outcome: str
    stop: str
    turns: int
    prompt: str


class Sample(NamedTuple):
    """One rollout in numbers; None for what was not recorded."""

    step: int
    attempt: int
    reward: float | None
    tokens: int | None
    turns: int


class Part(NamedTuple):
    """What a file holds at one place: a group, or a part of one."""

    id: int
    file: str
    offset: int
    key: str
    rollouts: int


class RolloutIndex:
    """The table of some files' rollouts. Close it, or use it as a context manager."""

    def __init__(self, source: RolloutFiles, *, in_memory: bool = False) -> None:
        """`in_memory`: created again from the files, and not kept; for a table on disk that turned out to be
        damaged.
        """
        self._source = source
        self._files: list[Indexed] = []
        is_kept = source.table is not None and not in_memory
        self._base = _open(source.table) if source.table and is_kept else _prepared(sqlite3.connect(":memory:"))
        try:
            self._refresh()
        except sqlite3.DatabaseError:  # locked by another reader for too long, damaged, or no room
            self._base.close()
            self._base = _prepared(sqlite3.connect(":memory:"))
            self._refresh()

    def __enter__(self) -> RolloutIndex:
        return self

    def __exit__(self, *error: object) -> None:
        self._base.close()

    @property
    def attempts(self) -> list[tuple[int, int]]:
        """Every step and attempt that has rollouts."""
        return self._base.execute("SELECT DISTINCT step, attempt FROM groups ORDER BY step, attempt").fetchall()

    @property
    def notes(self) -> list[str]:
        """What had to be passed over in the files, a sentence each."""
        rows = self._base.execute("SELECT name, notes FROM files WHERE notes != '[]' ORDER BY name")
        return [f"{name}: {note}" for name, notes in rows for note in json.loads(notes)]

    def steps_by_file(self) -> dict[Path, set[int]]:
        """The steps that each file has rollouts of; without files of which something had to be passed over."""
        clean = {name for (name,) in self._base.execute("SELECT name FROM files WHERE notes = '[]'")}
        paths = {file.name: file.path for file in self._files if file.name in clean}
        found: dict[Path, set[int]] = {}
        for name, step in self._base.execute("SELECT DISTINCT file, step FROM groups"):
            if name in paths:
                found.setdefault(paths[name], set()).add(step)
        return found

    def parts(self, step: int, attempt: int) -> list[Part]:
        """What a step's groups are made of, in the order of the files."""
        asked = (
            "SELECT id, file, offset, key, rollouts FROM groups WHERE step = ? AND attempt = ? "
            "ORDER BY rank, file, offset"
        )
        return [Part._make(row) for row in self._base.execute(asked, (step, attempt))]

    def places(self, step: int, attempt: int) -> dict[int, tuple[int, int]]:
        """For the id of each part of a step: the number of its group (from 1), and how many rollouts of the group come
        before it.
        """
        found: dict[int, tuple[int, int]] = {}
        numbers: dict[str | int, int] = {}
        counts: dict[int, int] = {}
        for part in self.parts(step, attempt):
            number = numbers.setdefault(part.key if self._source.is_in_parts else part.id, len(numbers) + 1)
            found[part.id] = (number, counts.get(number, 0))
            counts[number] = counts.get(number, 0) + part.rollouts
        return found

    def steps(self) -> list[dict[str, Any]]:
        """One line a step and attempt: how many groups and rollouts, how many kept, the mean reward."""
        told = "groups.key" if self._source.is_in_parts else "group_id"
        rows = self._base.execute(
            f"""
            SELECT rollouts.step, rollouts.attempt, COUNT(DISTINCT {told}), COUNT(*), AVG(reward), SUM(early)
            FROM rollouts JOIN groups ON groups.id = group_id
            GROUP BY rollouts.step, rollouts.attempt ORDER BY rollouts.step, rollouts.attempt
            """
        ).fetchall()
        kept = dict(self._counted("kept = 1"))
        filtered = dict(self._counted("kept = 0"))
        return [
            {
                "step": step, "attempt": attempt, "groups": groups, "kept": kept.get((step, attempt), 0),
                "filtered": filtered.get((step, attempt), 0), "rollouts": rollouts, "mean": mean, "early": early,
            }
            for step, attempt, groups, rollouts, mean, early in rows
        ]  # fmt: skip

    def samples(self) -> Iterator[Sample]:
        """Every rollout in numbers, step by step."""
        asked = "SELECT step, attempt, reward, tokens, turns FROM rollouts ORDER BY step, id"
        for row in self._base.execute(asked):
            if not all(type(cell) in (int, float, type(None)) for cell in row):
                raise sqlite3.DatabaseError("a cell of a wrong type")
            yield Sample._make(row)

    def find(
        self,
        *,
        step: int | None = None,
        outcome: str | None = None,
        text: str | None = None,
        worst: bool = False,
        best: bool = False,
    ) -> Iterator[Found]:
        """Rollouts, those of the lowest or highest reward first or in the order of steps; `text` as in
        `rollout_search`.
        """
        wanted, values = ["1"], list[Any]()
        if step is not None:
            wanted.append("rollouts.step = ?")
            values.append(step)
        if outcome is not None:
            wanted.append("rollouts.outcome = ?")
            values.append(outcome)
        if worst or best:
            wanted.append("rollouts.reward IS NOT NULL")
        asked = f"""
            SELECT rollouts.step, rollouts.attempt, group_id, number, reward, outcome, stop, turns, prompt
            FROM rollouts JOIN groups ON groups.id = group_id WHERE {" AND ".join(wanted)}
        """
        if text:
            found: Iterable[Found] = self._with_text(asked, values, text, step)
            if best:
                found = sorted(found, key=lambda item: (-(item.reward or 0.0), item.step))
            yield from sorted(found, key=_by_reward) if worst else found
        elif text is None:
            first = "rollouts.reward, " if worst else "rollouts.reward DESC, " if best else ""
            order = f"{first}rollouts.step, rollouts.id"
            yield from map(_found, self._base.execute(f"{asked} ORDER BY {order}", values))

    def _with_text(self, asked: str, values: list[Any], text: str, step: int | None) -> Iterator[Found]:
        place = "groups.file = ? AND groups.offset = ?"
        for file in sorted(self._files, key=lambda file: (file.step or 0, file.rank, file.name)):
            if step is None or file.step in (None, step):
                for offset, numbers in self._source.search(file, text, step):
                    rows = self._base.execute(f"{asked} AND {place} ORDER BY number", [*values, file.name, offset])
                    yield from (found for found in map(_found, rows) if found.number in numbers)

    def _counted(self, where: str) -> Iterator[tuple[tuple[int, int], int]]:
        asked = f"SELECT step, attempt, COUNT(*) FROM groups WHERE {where} GROUP BY step, attempt"
        for step, attempt, count in self._base.execute(asked):
            yield (step, attempt), count

    def _refresh(self) -> None:
        known = {row[0]: row[1:] for row in self._base.execute("SELECT name, inode, size, changed, upto FROM files")}
        self._files = self._source.files()
        with self._base:
            for name in known.keys() - {file.name for file in self._files}:
                self._forget(name)
            for file in self._files:
                inode, size, changed = file.state
                old = known.get(file.name)
                if old == (inode, size, changed, old[3] if old else 0):
                    continue
                if old and (not file.grows or old[0] != inode or old[1] >= size):
                    self._forget(file.name)
                    old = None
                notes: list[str] = []
                upto = self._take_groups(file, old[3] if old else 0, notes)
                self._base.execute(
                    "INSERT OR REPLACE INTO files VALUES (?, ?, ?, ?, ?, ?)",
                    (file.name, inode, size, changed, upto, json.dumps(notes)),
                )

    def _forget(self, name: str) -> None:
        gone = "SELECT id FROM groups WHERE file = ?"
        self._base.execute(f"DELETE FROM rollouts WHERE group_id IN ({gone})", (name,))
        self._base.execute("DELETE FROM groups WHERE file = ?", (name,))
        self._base.execute("DELETE FROM files WHERE name = ?", (name,))

    def _take_groups(self, file: Indexed, start: int, notes: list[str]) -> int:
        """Read a file on; returns the offset after its last whole group."""
        end = start
        for offset, after, raw in self._source.read(file, start, notes):
            end = after
            attempt, kept = raw["attempt"], raw.get("kept")
            prompt = str(raw.get("prompt", ""))
            row = (
                file.name, offset, raw["step"], attempt, file.rank, str(raw.get("id") or prompt),
                prompt[:PROMPT_SHOWN], _real(raw.get("mean")), _real(raw.get("std")),
                kept if isinstance(kept, bool) else None, str(raw.get("reason", "")), len(raw["rollouts"]),
            )  # fmt: skip
            taken = self._base.execute(
                "INSERT INTO groups (file, offset, step, attempt, rank, key, prompt, mean, std, kept, reason, rollouts)"
                " VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?)",
                row,
            )
            self._base.executemany(
                "INSERT INTO rollouts (group_id, number, step, attempt, reward, outcome, stop, turns, early, error,"
                " tokens) VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?)",
                [
                    (taken.lastrowid, number, raw["step"], attempt, *_facts(rollout, raw.get("max_turns")))
                    for number, rollout in enumerate(raw["rollouts"], 1)
                ],
            )
        return end


_FOUND = ((int,), (int,), (int,), (int,), (float, type(None)), (str,), (str,), (int,), (str,))


def _found(row: tuple[Any, ...]) -> Found:
    """A row of the table; a cell of another type than was put in is damage that SQLite does not see."""
    if not all(type(cell) in kinds for cell, kinds in zip(row, _FOUND, strict=True)):
        raise sqlite3.DatabaseError("a cell of a wrong type")
    return Found._make(row)


def _open(path: Path) -> sqlite3.Connection:
    for _ in range(2):
        try:
            path.parent.mkdir(exist_ok=True)
            if os.path.lexists(path) and not os.path.isfile(path):
                break  # SQLite would wait for a FIFO
            return _prepared(sqlite3.connect(path, timeout=10))
        except sqlite3.OperationalError:
            break  # no place to write to
        except sqlite3.DatabaseError:
            with contextlib.suppress(OSError):
                path.unlink()
        except OSError:
            break
    return _prepared(sqlite3.connect(":memory:"))


def _prepared(base: sqlite3.Connection) -> sqlite3.Connection:
    try:
        version = base.execute("PRAGMA user_version").fetchone()[0]
        if version not in (0, FORMAT):
            raise sqlite3.DatabaseError("of another format")
        if version == 0:
            with base:
                base.executescript(f"BEGIN;{_SCHEMA}PRAGMA user_version = {FORMAT};COMMIT;")
        base.execute("PRAGMA synchronous = OFF")  # it can be made again
    except sqlite3.Error:
        base.close()
        raise
    return base


def _facts(rollout: Any, max_turns: Any) -> tuple[Any, ...]:
    if not isinstance(rollout, dict):
        return (None, "", "", 0, 0, "", None)
    turns = rollout.get("turns")
    count = len(turns) if isinstance(turns, list) else 0
    stop = str(rollout.get("stop", ""))
    early = count < max_turns if isinstance(max_turns, int) else bool(stop) and stop not in TURN_LIMIT
    outcome, error = str(rollout.get("outcome", "")), str(rollout.get("error", ""))
    return (_real(rollout.get("reward")), outcome, stop, count, early, error, _tokens(rollout, turns))


def _tokens(rollout: dict[str, Any], turns: Any) -> int | None:
    """All tokens of a rollout; None where neither it nor every one of its turns tells them."""
    parts = [rollout.get("tokens")]
    if parts[0] is None and isinstance(turns, list):
        parts = [turn.get("tokens") if isinstance(turn, dict) else None for turn in turns]
    known = [part for part in parts if type(part) is int and 0 <= part < 2**53]
    return sum(known) if known and len(known) == len(parts) else None


def _real(value: Any) -> float | None:
    """A number SQLite can sort; it has no NaN, and neither has a reward that is one a place in an order."""
    return float(value) if isinstance(value, int | float) and abs(value) < 1e300 else None


def _by_reward(found: Found) -> tuple[float, int]:
    return (found.reward or 0.0, found.step)
