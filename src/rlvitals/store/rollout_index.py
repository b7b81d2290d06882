"""The rollouts of a run as a table to ask: `index/rollouts.sqlite`, derived from the files and safe to delete.

Brought up to date when it is opened: files that grew are read on, files that changed otherwise are read anew, files
that are gone are forgotten. Texts are not in it: see `rollout_search`. Where the folder cannot be written the table is
made in memory.
"""

from __future__ import annotations

import contextlib
import os
import sqlite3
from collections.abc import Iterable, Iterator
from typing import Any, NamedTuple

from rlvitals.records import TURN_LIMIT
from rlvitals.store.archive import log_state
from rlvitals.store.layout import RunDir
from rlvitals.store.rollout_search import search
from rlvitals.store.rollouts import RolloutFile, parse_group, read_lines, rollout_files

FORMAT = 1
PROMPT_SHOWN = 200
"""Characters of a prompt that the table holds."""

_SCHEMA = """
CREATE TABLE files (name TEXT PRIMARY KEY, inode, size, changed, upto INTEGER);
CREATE TABLE groups (
    id INTEGER PRIMARY KEY, file TEXT, offset INTEGER, step INTEGER, attempt INTEGER, rank INTEGER,
    key TEXT, prompt TEXT, mean REAL, std REAL, kept INTEGER, reason TEXT, rollouts INTEGER
);
CREATE TABLE rollouts (
    id INTEGER PRIMARY KEY, group_id INTEGER, number INTEGER, step INTEGER, attempt INTEGER,
    reward REAL, outcome TEXT, stop TEXT, turns INTEGER, early INTEGER, error TEXT
);
CREATE INDEX groups_by_file ON groups (file, offset);
CREATE INDEX groups_by_step ON groups (step, attempt);
CREATE INDEX rollouts_by_group ON rollouts (group_id);
CREATE INDEX rollouts_by_step ON rollouts (step, attempt);
CREATE INDEX rollouts_by_reward ON rollouts (reward);
CREATE INDEX rollouts_by_outcome ON rollouts (outcome);
"""


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


class RolloutIndex:
    """The table of one run's rollouts. Close it, or use it as a context manager."""

    def __init__(self, run_dir: RunDir, *, in_memory: bool = False) -> None:
        """`in_memory`: made anew from the files, and not kept; for a table on disk that turned out to be damaged."""
        self._dir = run_dir
        self._base = _prepared(sqlite3.connect(":memory:")) if in_memory else _open(run_dir)
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

    def groups(self, step: int, attempt: int) -> list[int]:
        """The ids of a step's groups, in the order of the files."""
        asked = "SELECT id FROM groups WHERE step = ? AND attempt = ? ORDER BY rank, file, offset"
        return [row[0] for row in self._base.execute(asked, (step, attempt))]

    def steps(self) -> list[dict[str, Any]]:
        """One line a step and attempt: how many groups and rollouts, how many kept, the mean reward."""
        rows = self._base.execute(
            """
            SELECT step, attempt, COUNT(DISTINCT group_id), COUNT(*), AVG(reward), SUM(early) FROM rollouts
            GROUP BY step, attempt ORDER BY step, attempt
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
        for file in rollout_files(self._dir):
            if step in (None, file.step):
                for offset, numbers in search(file.path, text):
                    rows = self._base.execute(f"{asked} AND {place} ORDER BY number", [*values, file.path.name, offset])
                    yield from (found for found in map(_found, rows) if found.number in numbers)

    def _counted(self, where: str) -> Iterator[tuple[tuple[int, int], int]]:
        asked = f"SELECT step, attempt, COUNT(*) FROM groups WHERE {where} GROUP BY step, attempt"
        for step, attempt, count in self._base.execute(asked):
            yield (step, attempt), count

    def _refresh(self) -> None:
        known = {row[0]: row[1:] for row in self._base.execute("SELECT name, inode, size, changed, upto FROM files")}
        files = {file.path.name: file for file in rollout_files(self._dir)}
        with self._base:
            for name in known.keys() - files.keys():
                self._forget(name)
            for name, file in files.items():
                inode, size, changed = log_state(file.path)
                old = known.get(name)
                if old == (inode, size, changed, old[3] if old else 0):
                    continue
                if old and (old[0] != inode or old[1] >= size):
                    self._forget(name)
                    old = None
                upto = self._take_groups(file, old[3] if old else 0)
                self._base.execute(
                    "INSERT INTO files VALUES (?, ?, ?, ?, ?) ON CONFLICT (name) DO UPDATE SET "
                    "inode = excluded.inode, size = excluded.size, changed = excluded.changed, upto = excluded.upto",
                    (name, inode, size, changed, upto),
                )

    def _forget(self, name: str) -> None:
        gone = "SELECT id FROM groups WHERE file = ?"
        self._base.execute(f"DELETE FROM rollouts WHERE group_id IN ({gone})", (name,))
        self._base.execute("DELETE FROM groups WHERE file = ?", (name,))
        self._base.execute("DELETE FROM files WHERE name = ?", (name,))

    def _take_groups(self, file: RolloutFile, start: int) -> int:
        """Read a file on; returns the offset after its last whole line."""
        end = start
        for offset, line in read_lines(file.path, start):
            end = offset + len(line) + 1
            raw = parse_group(line)
            if raw is None or raw["step"] != file.step:  # a step's groups are in its own file
                continue
            attempt, kept = raw["attempt"], raw.get("kept")
            prompt = str(raw.get("prompt", ""))
            row = (
                file.path.name, offset, raw["step"], attempt, file.rank, str(raw.get("id") or prompt),
                prompt[:PROMPT_SHOWN], _real(raw.get("mean")), _real(raw.get("std")),
                kept if isinstance(kept, bool) else None, str(raw.get("reason", "")), len(raw["rollouts"]),
            )  # fmt: skip
            taken = self._base.execute(
                "INSERT INTO groups (file, offset, step, attempt, rank, key, prompt, mean, std, kept, reason, rollouts)"
                " VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?)",
                row,
            )
            self._base.executemany(
                "INSERT INTO rollouts (group_id, number, step, attempt, reward, outcome, stop, turns, early, error)"
                " VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?)",
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


def _open(run_dir: RunDir) -> sqlite3.Connection:
    path = run_dir.index / "rollouts.sqlite"
    for _ in range(2):
        try:
            run_dir.index.mkdir(exist_ok=True)
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
        return (None, "", "", 0, 0, "")
    turns = rollout.get("turns")
    count = len(turns) if isinstance(turns, list) else 0
    stop = str(rollout.get("stop", ""))
    early = count < max_turns if isinstance(max_turns, int) else bool(stop) and stop not in TURN_LIMIT
    outcome, error = str(rollout.get("outcome", "")), str(rollout.get("error", ""))
    return (_real(rollout.get("reward")), outcome, stop, count, early, error)


def _real(value: Any) -> float | None:
    """A number SQLite can sort; it has no NaN, and neither has a reward that is one a place in an order."""
    return float(value) if isinstance(value, int | float) and abs(value) < 1e300 else None


def _by_reward(found: Found) -> tuple[float, int]:
    return (found.reward or 0.0, found.step)
