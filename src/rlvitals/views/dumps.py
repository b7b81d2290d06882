"""A dump of rollouts, opened like a run. Its metrics are held in memory, and nothing is written into the dump. Also
lists the old files of a dump for `prune`.
"""

from __future__ import annotations

import os
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
from rlvitals.views.discovery import links_outside
from rlvitals.views.headlines import line_of
from rlvitals.views.logs import LogView, status_since
from rlvitals.views.rollouts import DumpedRollouts
from rlvitals.views.run import RunView
from rlvitals.views.run_tail import Added, ChangeTail

REWARD = "reward"
"""The only metric of a dump without a log: the mean reward of each step."""

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
        updated = max(changed, self.info.updated if log else 0.0)
        self.info = replace(self.info, name=name, status=status_since(changed), updated=updated)

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
        if candidate not in dumped and os.path.exists(candidate) and not links_outside(candidate, place):
            try:
                return read_log(candidate)
            except NotALog:
                continue
    return None


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
    return line_of(view, "cannot judge", "a dump of rollouts; open it to check its rewards")


class DumpTail(ChangeTail):
    """Detects changes of a dump."""

    def __init__(self, path: Path, split: Split, place: str = "") -> None:
        self._rollouts = DumpedRollouts(path, split)
        super().__init__(place)

    def look(self) -> Added:
        """Always empty: `look_at_dumps` reports changes."""
        return Added()

    def look_at_dumps(self) -> bool:
        """Whether it has changed since the last look."""
        return self._has_changed()

    def _state(self) -> object:
        return self._rollouts.state

    def status(self) -> NewStatus:
        return {"status": status_since(self._rollouts.changed), "status_note": "", "ended": None}
