"""Which of a run's older files may go, by rule: rollouts and the files of single evaluations.

Rows stay: an evaluation's numbers are in `logs/eval_metrics.jsonl` too. Checkpoints are the trainer's, not ours.
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
"""The share of the limit that is left after thinning, so that not every step is one too many."""


def old_rollouts(run_dir: RunDir, *, keep_last: int, keep_every: int | None = None) -> list[Path]:
    """The files of rollouts but those of the newest steps, and of every so many-th step if that is given."""
    files = rollout_files(run_dir)
    old = old_steps({file.step for file in files}, keep_last, keep_every)
    logs = [file.path for file in files if file.step in old]
    return [path for log in logs for path in (log, archive_of(log)) if path.exists()]


def old_evaluations(run_dir: RunDir, *, keep_last: int, keep_every: int | None = None) -> list[Path]:
    """The files of single evaluations but the newest; that of step 0, the control, is kept in any case."""
    files = evaluation_files(run_dir)
    return [files[step] for step in sorted(old_steps(files, keep_last, keep_every) - {0})]


def rollouts_beyond(run_dir: RunDir, most_bytes: float, stream: Stream = "train") -> list[RolloutFile]:
    """The files of rollouts that must go so that the rest takes no more than this; none while it does not."""
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
    """The steps to keep: the newest quarter whole, of the older ones every second until all fit, the first one among
    them. What was thinned before gets thinner, so the distance between old steps doubles.

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
