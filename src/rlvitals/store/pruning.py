"""Selects older files of a run that can be deleted: rollouts and the files of single evaluations.

Logged rows are kept: an evaluation's numbers are also in `logs/eval_metrics.jsonl`. Checkpoints belong to the trainer
and are never selected.
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterable, Mapping
from pathlib import Path

from rlvitals.records import Stream
from rlvitals.store.evaluations import evaluation_files
from rlvitals.store.layout import RunDir, archive_of
from rlvitals.store.rollouts import RolloutFile, rollout_files

THINNED_TO = 0.9
"""Files are thinned to this share of the limit, so that thinning is not needed again at every step."""


def old_rollouts(run_dir: RunDir, *, keep_last: int, keep_every: int | None = None) -> list[Path]:
    """The rollout files except those of the newest steps and of every `keep_every`-th step."""
    files = rollout_files(run_dir)
    old = old_steps({file.step for file in files}, keep_last, keep_every)
    logs = [file.path for file in files if file.step in old]
    return [path for log in logs for path in (log, archive_of(log)) if path.exists()]


def old_evaluations(run_dir: RunDir, *, keep_last: int, keep_every: int | None = None) -> list[Path]:
    """The files of single evaluations selected by `old_steps`. Step 0, the control, is always kept."""
    files = evaluation_files(run_dir)
    return [files[step] for step in sorted(old_steps(files, keep_last, keep_every) - {0})]


def rollouts_beyond(run_dir: RunDir, most_bytes: float, stream: Stream = "train") -> list[RolloutFile]:
    """The rollout files to delete if all together take more than `most_bytes`; otherwise none."""
    files = rollout_files(run_dir, stream)
    sizes: dict[int, int] = {}
    for file in files:
        with contextlib.suppress(FileNotFoundError):  # packed, or just deleted by another rank
            sizes[file.step] = sizes.get(file.step, 0) + os.stat(file.path).st_size
    if sum(sizes.values()) <= most_bytes:
        return []
    kept = thinned(sizes, most_bytes * THINNED_TO)
    return [file for file in files if file.step in sizes and file.step not in kept]


def thinned(sizes: Mapping[int, int], most_bytes: float) -> set[int]:
    """The steps to keep. The newest quarter is kept. Every second older step is dropped until the rest fits.
    The first step is always kept. Each pass doubles the distance between older steps. If this is not enough, the oldest
    steps of the newest quarter are dropped too.

    >>> sorted(thinned({step: 10 for step in range(1, 13)}, 80))
    [1, 3, 5, 7, 9, 10, 11, 12]
    >>> sorted(thinned({step: 10 for step in range(1, 13)}, 30))
    [1, 11, 12]
    """
    kept = sorted(sizes)
    newest = len(kept) - len(kept) // 4
    old, new = kept[:newest], kept[newest:]
    while len(old) > 1 and sum(sizes[step] for step in [*old, *new]) > most_bytes:
        old = old[::2]
    while len(new) > 1 and sum(sizes[step] for step in [*old, *new]) > most_bytes:
        new = new[1:]
    return {*old, *new}


def old_steps(steps: Iterable[int], keep_last: int, keep_every: int | None) -> set[int]:
    """All steps except the newest, and except every `keep_every`-th where that is set.

    >>> sorted(old_steps([1, 2, 10, 20, 21], 2, 10))
    [1, 2]
    """
    ordered = sorted(set(steps))
    old = ordered[: max(len(ordered) - keep_last, 0)]
    return {step for step in old if not keep_every or step % keep_every}
