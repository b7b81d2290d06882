"""Which of a run's older files may go, by rule: rollouts and the files of single evaluations.

Rows stay: an evaluation's numbers are in `logs/eval_metrics.jsonl` too. Checkpoints are the trainer's, not ours.
"""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path

from rlvitals.store.evaluations import evaluation_files
from rlvitals.store.layout import RunDir, archive_of
from rlvitals.store.rollouts import rollout_files


def old_rollouts(run_dir: RunDir, *, keep_last: int, keep_every: int | None = None) -> list[Path]:
    """The files of rollouts but those of the newest steps, and of every so many-th step if that is said."""
    files = rollout_files(run_dir)
    old = _old({file.step for file in files}, keep_last, keep_every)
    logs = [file.path for file in files if file.step in old]
    return [path for log in logs for path in (log, archive_of(log)) if path.exists()]


def old_evaluations(run_dir: RunDir, *, keep_last: int, keep_every: int | None = None) -> list[Path]:
    """The files of single evaluations but the newest; that of step 0, the control, is kept in any case."""
    files = evaluation_files(run_dir)
    return [files[step] for step in sorted(_old(files, keep_last, keep_every) - {0})]


def _old(steps: Iterable[int], keep_last: int, keep_every: int | None) -> set[int]:
    ordered = sorted(set(steps))
    old = ordered[: max(len(ordered) - keep_last, 0)]
    return {step for step in old if not keep_every or step % keep_every}
