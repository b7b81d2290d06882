"""A table of rollouts for queries, derived from files and safe to delete: `index/rollouts.sqlite` of a run.

Opening the table updates it. The new part of files that grew is read, files that changed otherwise are read again, and
files that are gone are removed from the table. Texts are not in it: see `rollout_search`. If its folder cannot be
written, the table is made in memory. A `RolloutFiles` lists the files and reads them: `RunFiles` for a run.
"""

from __future__ import annotations

import contextlib
import json
import os
import sqlite3
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any, NamedTuple, Protocol, TypedDict, Unpack

from rlvitals.records import TURN_LIMIT
from rlvitals.store.archive import log_state
from rlvitals.store.layout import RunDir
from rlvitals.store.rollout_search import search
from rlvitals.store.rollouts import RolloutFile, parse_group, read_lines, rollout_files

FORMAT = 3
PROMPT_SHOWN = 200
"""Characters of a prompt that the table stores."""

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
    """The step of all its groups; None if each group has its own step."""
    rank: int
    state: tuple[int, int, int]
    """Inode, size and time of its last change."""
    grows: bool
    """Whether it is only ever appended to."""


class RolloutFiles(Protocol):
    """Files of rollouts, and how they are read."""

    @property
    def table(self) -> Path | None:
        """Where the table is stored; None if it is not stored."""

    @property
    def is_in_parts(self) -> bool:
        """Whether an entry of a file is only a part of a group. Parts with the same step and key form one group."""

    def files(self) -> list[Indexed]:
        """Every file there is."""

    def read(self, file: Indexed, start: int, notes: list[str]) -> Iterator[tuple[int, int, dict[str, Any]]]:
        """The groups of a file from an offset on, as plain data, each with its start and end offset."""

    def search(self, file: Indexed, text: str, step: int | None) -> Iterator[tuple[int, list[int]]]:
        """The offsets of groups that contain a text, and the numbers (from 1) of the matching rollouts."""


class RunFiles:
    """The files of a run: one per step and rank, with one whole group per line."""

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
            if raw is not None and raw["step"] == file.step:  # a step's groups are in the file of that step
                yield offset, offset + len(line) + 1, raw

    def search(self, file: Indexed, text: str, step: int | None) -> Iterator[tuple[int, list[int]]]:
        return search(file.path, text)


def _indexed(file: RolloutFile) -> Indexed:
    return Indexed(file.path.name, file.path, file.step, file.rank, log_state(file.path), grows=True)


class FoundRollout(NamedTuple):
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


class RolloutNumbers(NamedTuple):
    """The numbers of one rollout; None for values that were not recorded."""

    step: int
    attempt: int
    reward: float | None
    tokens: int | None
    turns: int


class FilePart(NamedTuple):
    """A group, or a part of one, at one position of a file."""

    id: int
    file: str
    offset: int
    key: str
    rollouts: int


class RolloutQuery(TypedDict, total=False):
    """A query for rollouts by step, outcome or text. `worst` returns the lowest rewards first, `best` the highest."""

    step: int | None
    outcome: str | None
    text: str | None
    worst: bool
    best: bool


class RolloutIndex:
    """The table of the rollouts in some files. Close it, or use it as a context manager."""

    def __init__(self, source: RolloutFiles, *, in_memory: bool = False) -> None:
        """`in_memory`: build the table from the files without storing it. Used if the table on disk is damaged."""
        self._source = source
        self._files: list[Indexed] = []
        is_kept = source.table is not None and not in_memory
        self._base = _open(source.table) if source.table and is_kept else _prepared(sqlite3.connect(":memory:"))
        try:
            self._refresh()
        except sqlite3.DatabaseError:  # locked by another reader for too long, damaged, or no disk space
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
        """What was skipped in the files, one sentence each."""
        rows = self._base.execute("SELECT name, notes FROM files WHERE notes != '[]' ORDER BY name")
        return [f"{name}: {note}" for name, notes in rows for note in json.loads(notes)]

    def steps_by_file(self) -> dict[Path, set[int]]:
        """The steps of each file's rollouts. Files with skipped parts are left out."""
        clean = {name for (name,) in self._base.execute("SELECT name FROM files WHERE notes = '[]'")}
        paths = {file.name: file.path for file in self._files if file.name in clean}
        found: dict[Path, set[int]] = {}
        for name, step in self._base.execute("SELECT DISTINCT file, step FROM groups"):
            if name in paths:
                found.setdefault(paths[name], set()).add(step)
        return found

    def parts(self, step: int, attempt: int) -> list[FilePart]:
        """The parts of a step's groups, in the order of the files."""
        asked = (
            "SELECT id, file, offset, key, rollouts FROM groups WHERE step = ? AND attempt = ? "
            "ORDER BY rank, file, offset"
        )
        return [FilePart._make(row) for row in self._base.execute(asked, (step, attempt))]

    def places(self, step: int, attempt: int) -> dict[int, tuple[int, int]]:
        """For the id of each part of a step: the number of its group (from 1), and how many rollouts of the group come
        before this part.
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
        """One entry per step and attempt: number of groups and rollouts, how many were kept, the mean reward."""
        group_column = "groups.key" if self._source.is_in_parts else "group_id"
        rows = self._base.execute(
            f"""
            SELECT rollouts.step, rollouts.attempt, COUNT(DISTINCT {group_column}), COUNT(*), AVG(reward), SUM(early)
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

    def samples(self) -> Iterator[RolloutNumbers]:
        """The numbers of every rollout, step by step."""
        asked = "SELECT step, attempt, reward, tokens, turns FROM rollouts ORDER BY step, id"
        for row in self._base.execute(asked):
            if not all(type(cell) in (int, float, type(None)) for cell in row):
                raise sqlite3.DatabaseError("a cell of a wrong type")
            yield RolloutNumbers._make(row)

    def find(self, **asked_for: Unpack[RolloutQuery]) -> Iterator[FoundRollout]:
        """Matching rollouts, ordered by reward or by step. `text` is searched as in `rollout_search`."""
        step, outcome, text = asked_for.get("step"), asked_for.get("outcome"), asked_for.get("text")
        worst, best = asked_for.get("worst", False), asked_for.get("best", False)
        wanted, values = ["1"], list[Any]()
        for column, value in (("step", step), ("outcome", outcome)):
            if value is not None:
                wanted.append(f"rollouts.{column} = ?")
                values.append(value)
        if worst or best:
            wanted.append("rollouts.reward IS NOT NULL")
        asked = f"""
            SELECT rollouts.step, rollouts.attempt, group_id, number, reward, outcome, stop, turns, prompt
            FROM rollouts JOIN groups ON groups.id = group_id WHERE {" AND ".join(wanted)}
        """
        if text:
            found: Iterable[FoundRollout] = self._with_text(asked, values, text, step)
            if best:
                found = sorted(found, key=lambda item: (-(item.reward or 0.0), item.step))
            yield from sorted(found, key=_by_reward) if worst else found
        elif text is None:
            first = "rollouts.reward, " if worst else "rollouts.reward DESC, " if best else ""
            order = f"{first}rollouts.step, rollouts.id"
            yield from map(_found, self._base.execute(f"{asked} ORDER BY {order}", values))

    def _with_text(self, asked: str, values: list[Any], text: str, step: int | None) -> Iterator[FoundRollout]:
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
        """Read the rest of a file; returns the offset after its last whole group."""
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


def _found(row: tuple[Any, ...]) -> FoundRollout:
    """A row of the table. A cell of a wrong type means damage that SQLite does not detect."""
    if not all(type(cell) in kinds for cell, kinds in zip(row, _FOUND, strict=True)):
        raise sqlite3.DatabaseError("a cell of a wrong type")
    return FoundRollout._make(row)


def _open(path: Path) -> sqlite3.Connection:
    for _ in range(2):
        try:
            path.parent.mkdir(exist_ok=True)
            if os.path.lexists(path) and not os.path.isfile(path):
                break  # SQLite would block on a FIFO
            return _prepared(sqlite3.connect(path, timeout=10))
        except sqlite3.OperationalError:
            break  # the folder cannot be written
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
        base.execute("PRAGMA synchronous = OFF")  # the table can be rebuilt
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
    """All tokens of a rollout; None if neither the rollout nor every turn has a count."""
    parts = [rollout.get("tokens")]
    if parts[0] is None and isinstance(turns, list):
        parts = [turn.get("tokens") if isinstance(turn, dict) else None for turn in turns]
    known = [part for part in parts if type(part) is int and 0 <= part < 2**53]
    return sum(known) if known and len(known) == len(parts) else None


def _real(value: Any) -> float | None:
    """A number that SQLite can sort; None for NaN, which has no place in an order."""
    return float(value) if isinstance(value, int | float) and abs(value) < 1e300 else None


def _by_reward(found: FoundRollout) -> tuple[float, int]:
    return (found.reward or 0.0, found.step)
