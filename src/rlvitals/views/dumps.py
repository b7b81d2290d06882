"""A dump of rollouts, opened like a run. Its metrics are held in memory, and nothing is written into the dump. Also
lists the old files of a dump for `prune`.
"""

from __future__ import annotations

import hashlib
import os
import time
from collections.abc import Mapping
from dataclasses import replace
from functools import cached_property
from pathlib import Path
from typing import Any, get_args

from rlvitals.contract import Headline, NewStatus
from rlvitals.importers import ForeignLog, NotALog, read_log
from rlvitals.importers.dumps.base import Split as Split  # noqa: PLC0414 - the splits of a dump
from rlvitals.importers.dumps.registry import dump_files, form_of, splits_in
from rlvitals.importers.folders import files_in, telling
from rlvitals.importers.registry import importers
from rlvitals.store.pruning import old_steps
from rlvitals.views.logs import LogView
from rlvitals.views.rollouts import DumpedRollouts
from rlvitals.views.run import RunView
from rlvitals.views.run_tail import Added

BEING_WRITTEN = 300.0
"""Seconds after its last change in which a dump counts as being written, because dumps have no end marker."""

REWARD = "reward"
"""The only metric of a dump without a log: the mean reward of each step."""

MOST_FILES = 5_000
"""Maximum files of a log that are checked for links. A log with more is not used."""

_LOGS = ("monitors/file/metrics.jsonl", "metrics.jsonl", "tensorboard", "wandb")
"""Where frameworks log their metrics, relative to the folder of a dump."""


class DumpView(LogView):
    """One split of a dump as a run view: with the metrics of the log beside it, or with the mean reward."""

    def __init__(self, place: Path, split: Split = "train") -> None:
        self._rollouts = DumpedRollouts(place, split)
        log = _log_beside(place) if split == "train" else None
        super().__init__(log or _log_of(place, self._rollouts), place)
        changed = self._rollouts.changed
        name = f"{self.info.name} (validation)" if split == "validation" else self.info.name
        is_running = time.time() - changed < BEING_WRITTEN
        updated = max(changed, self.info.updated if log else 0.0)
        self.info = replace(self.info, name=name, status="running" if is_running else "finished", updated=updated)

    @cached_property
    def rollout_log(self) -> DumpedRollouts:
        return self._rollouts

    @property
    def has_distributions(self) -> bool:
        return True


def _log_of(place: Path, rollouts: DumpedRollouts) -> ForeignLog:
    files = dump_files(place)
    return ForeignLog(place, form_of(files[0].path).name, reward_rows(rollouts), notes=rollouts.problems)


def reward_rows(rollouts: DumpedRollouts) -> list[dict[str, Any]]:
    """The mean reward of each step."""
    return [{"step": row["step"], REWARD: row["mean"]} for row in rollouts.overview() if row["mean"] is not None]


def _log_beside(place: Path) -> ForeignLog | None:
    """The metrics that were logged beside a dump."""
    dumped = {file.path for file in dump_files(place)}
    named = [file for file in files_in(place, importers()) if telling(file.name) > 0]
    for candidate in dict.fromkeys([*(place / name for name in _LOGS), *named]):
        if candidate not in dumped and os.path.exists(candidate) and _stays_in(candidate, place):
            try:
                return read_log(candidate)
            except NotALog:
                continue
    return None


def _stays_in(candidate: Path, place: Path) -> bool:
    """Whether no link of a log leads out of the folder."""
    here = os.path.realpath(place)
    files = [str(candidate)]
    for folder, folders, names in os.walk(candidate):
        files += [os.path.join(folder, name) for name in (*folders, *names)]
        if len(files) > MOST_FILES:
            return False
    return all(Path(os.path.realpath(file)).is_relative_to(here) for file in files)


def splits_of(folder: Path) -> list[Split]:
    """The splits of a dump. Validation is a separate one."""
    found = splits_in(folder)
    return [split for split in ("train", "validation") if split in found] or ["train"]


def old_dump_files(place: Path, keep_last: Mapping[Split, int], keep_every: int | None = None) -> list[Path]:
    """The files of a dump that contain only old steps, by the same rule as for a run's own files. A split that is not
    in `keep_last` is kept completely, and so is a file that could not be read completely.
    """
    is_old: dict[Path, bool] = {}
    for split in get_args(Split):
        rollouts = DumpedRollouts(place, split)
        old = old_steps(rollouts.steps, keep_last[split], keep_every) if split in keep_last else set()
        for path, steps in rollouts.steps_by_file.items():
            is_old[path] = is_old.get(path, True) and steps <= old
    return sorted(path for path, may_go in is_old.items() if may_go)


def dump_line(view: RunView) -> Headline:
    """A dump as one line of a list."""
    rows, info = view.rows, view.info
    return {
        "name": info.name, "status": view.status, "status_note": "", "verdict": "cannot judge",
        "reason": "a dump of rollouts; open it to check its rewards", "algorithm": view.algorithm,
        "framework": view.framework, "started": None, "updated": info.updated, "last_step": view.last_step,
        "total_steps": info.total_steps, "rows": rows, "metrics": len(view.metrics),
        "host": None, "seconds": None,
    }  # fmt: skip


class DumpTail:
    """Detects changes of a dump. `place` is the state of its files at the last look, from which to continue later."""

    def __init__(self, path: Path, split: Split, place: str = "") -> None:
        self._rollouts = DumpedRollouts(path, split)
        self.place = place or self._now()

    def look(self) -> Added:
        """Always empty: `look_at_dumps` reports changes."""
        return Added()

    def look_at_dumps(self) -> bool:
        """Whether it has changed since the last look."""
        before, self.place = self.place, self._now()
        return self.place != before

    def _now(self) -> str:
        return hashlib.sha256(repr(self._rollouts.state).encode("utf-8", "surrogateescape")).hexdigest()[:16]

    def status(self) -> NewStatus:
        is_running = time.time() - self._rollouts.changed < BEING_WRITTEN
        return {"status": "running" if is_running else "finished", "status_note": "", "ended": None}
