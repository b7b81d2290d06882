"""The evaluations of a run over its steps: from their files, and from the log if a file is missing.

Only the living line is shown: evaluations that a resumed attempt superseded are left out. Folders of other trainers
(`eval_logs/eval_step_0010.json` without a recorded run) can be read as well.
"""

from __future__ import annotations

import math
import os
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from rlvitals import catalog
from rlvitals.contract import SliceFacts, StepAccuracy
from rlvitals.errors import ConfigError, RunNotFound, UnknownMetric
from rlvitals.records import Row
from rlvitals.splits import held_out_name, is_held_out, is_of_whole_training
from rlvitals.store.evaluations import read_evaluations
from rlvitals.store.layout import RunDir
from rlvitals.store.remote import local_path
from rlvitals.values import is_number
from rlvitals.views.discovery import near_directory
from rlvitals.views.query import StoredRun
from rlvitals.views.run import RunView
from rlvitals.views.tree import MOST_LISTED, slice_facts

COUNTS = {
    "attempted_answer": "attempted_answer_fraction",
    "found_correct_email": "found_email_fraction",
    "read_correct_email": "read_email_fraction",
}
"""Counts in an evaluation's file, and the fractions of the samples that its row and the trackers have instead."""

_SCORES = ("eval", "reward", "preference", "judging", "textscore")
_COSTS = ("time", "throughput", "progress", "system", "memory")
"""Families of the catalogue: the results of an evaluation, and its costs."""

_SCORE = re.compile(
    r"accurac|score|margin|pass(?:@|_at_|_rate)|success|win_rate|solved|exact_match|\bf1\b", re.IGNORECASE
)
_REWARD = re.compile("reward", re.IGNORECASE)
AGAINST_CONTROL = ("wins", "ties", "losses")
_CHECKPOINT = re.compile(r"checkpoint-(\d+)")


@dataclass(frozen=True, slots=True)
class RunEvaluations:
    """The evaluations of one run."""

    name: str
    path: str
    evaluations: list[dict[str, Any]]
    """Sorted by step: the fields of an evaluation, and `wins`, `ties` and `losses` against the control if there was
    one.
    """
    first: StepAccuracy | None
    best: StepAccuracy | None
    last: StepAccuracy | None
    """Step and accuracy of the first, best and last evaluation; None if there is no accuracy."""
    problems: list[str]


def read_trend(path: str | os.PathLike[str]) -> RunEvaluations:
    """The evaluations of a run or of a folder with `eval_logs`, or the one of a checkpoint (`RUN/checkpoint-50`)."""
    given = local_path(path)
    checkpoint = _CHECKPOINT.fullmatch(given.name)
    if checkpoint and not os.path.isdir(RunDir(given).eval_logs) and not RunDir(given).holds_run:
        return _of_checkpoint(given, int(checkpoint[1]))
    root = given.parent if given.name == "eval_logs" and os.path.isdir(given) else given
    run_dir = RunDir(root)
    if not run_dir.holds_run and not os.path.isdir(run_dir.eval_logs):
        raise RunNotFound(f"there is no run and no eval_logs in {root}.{near_directory(root)}")
    found, problems = read_evaluations(run_dir)
    name = root.resolve().name
    if run_dir.holds_run:
        view = RunView(run_dir)
        name = view.name
        found = _joined(view, found)
    return _trend(name, root, [found[step] for step in sorted(found)], problems)


def evaluated_slices(view: StoredRun, evaluations: Sequence[Mapping[str, Any]]) -> dict[str, SliceFacts]:
    """For each name of a number: the series of slices it belongs to."""
    names = list(dict.fromkeys(name for stats in evaluations for name in stats))[:MOST_LISTED]
    # A name that matches no framework's pattern may have lost its prefix.
    logged = {name: name if view.reader.cut(name) or view.reader.named(name) else held_out_name(name) for name in names}
    found = slice_facts(view.reader.slices(list(logged.values())), view.reader)
    return {name: found[whole] for name, whole in logged.items() if whole in found}


def trend_of_log(view: RunView) -> RunEvaluations:
    """The evaluations in the rows of a log that rlvitals did not record: in rows of their own, and held-out names in
    training rows.
    """
    found = _joined(view, {})
    held_out = set(filter(is_held_out, view.metrics))
    for row in view.iterate() if held_out else ():
        if scores := {name: row.numbers[name] for name in row.numbers if name in held_out}:
            found[row.step] = _from_row(replace(row, numbers=scores)) | found.get(row.step, {})
    return _trend(view.name, view.path, [found[step] for step in sorted(found)], [])


def metric_for(runs: Sequence[RunEvaluations], asked: str | None) -> str:
    """The metric by which several runs are compared: the requested one, accuracy, or the first that they have."""
    names = _with_numbers(stats for run in runs for stats in run.evaluations)
    if asked is None:
        return "accuracy" if "accuracy" in names else next(iter(names), "accuracy")
    if asked not in names:
        raise UnknownMetric(asked, names[:8])
    return asked


def _of_checkpoint(given: Path, step: int) -> RunEvaluations:
    whole = read_trend(given.parent)
    chosen = [stats for stats in whole.evaluations if stats["step"] == step]
    if not chosen:
        steps = ", ".join(str(stats["step"]) for stats in whole.evaluations) or "none"
        raise ConfigError(f"{given.parent} has no evaluation of step {step}; it has those of {steps}")
    return _trend(f"{whole.name} {given.name}", given, chosen, whole.problems)


def _joined(view: RunView, files: dict[int, dict[str, Any]]) -> dict[int, dict[str, Any]]:
    """The files of the living line, with the values that only their rows have. Rows replace missing files."""
    rows = {row.step: row for row in view.iterate(stream="eval") if not _sums_up(row)}
    overtaken = {row.step for row in view.iterate(stream="eval", ghosts=True)} - rows.keys()
    found = {step: stats for step, stats in files.items() if step not in overtaken}
    for step, row in rows.items():
        stats = found.get(step)
        against = {
            name: int(count) for name in AGAINST_CONTROL if math.isfinite(count := row.numbers.get(name, math.nan))
        }
        found[step] = (_from_row(row) if stats is None else stats) | against
    return found


def _sums_up(row: Row) -> bool:
    return any(map(is_of_whole_training, row.numbers)) and all(
        name == "epoch" or is_of_whole_training(name) for name in row.numbers
    )


def _from_row(row: Row) -> dict[str, Any]:
    stats: dict[str, Any] = {"step": row.step}
    stats |= {name.removeprefix("eval/"): value for name, value in row.numbers.items()}
    total = stats.get("total_samples")
    for count, fraction in COUNTS.items():
        if total is not None and fraction in stats:
            stats[count] = round(stats.pop(fraction) * total)
    return {
        name: int(value) if isinstance(value, float) and _is_count(name) else value for name, value in stats.items()
    }


def _is_count(name: str) -> bool:
    return name.startswith(("total_", "num_")) or name in ("correct_answers", *COUNTS)


def scores_first(names: Iterable[str]) -> list[str]:
    """Sort names by interest: scores, rewards, other metrics, then times and counts.

    >>> scores_first(["runtime", "loss", "epoch", "logits/chosen", "accuracy", "my_number", "avg_reward", "pass_at_4"])
    ['accuracy', 'pass_at_4', 'avg_reward', 'my_number', 'loss', 'logits/chosen', 'runtime', 'epoch']
    """
    reader = catalog.reader(None, None)

    def rank(name: str) -> int:
        meaning = reader.meaning(name, evaluated=True) or reader.meaning(f"eval_{name}", evaluated=True)
        family = meaning.metric.family if meaning else ""
        if family in _COSTS or name.startswith(("total_", "num_")):
            return 4
        if "loss" in name or not (family in _SCORES or meaning is None or _SCORE.search(name) or _REWARD.search(name)):
            return 3
        return 0 if _SCORE.search(name) else 1 if _REWARD.search(name) else 2

    return sorted(names, key=rank)


def numbers_of(evaluations: Sequence[Mapping[str, Any]]) -> list[str]:
    """The names of all numbers in some evaluations, the scores first."""
    return scores_first(_with_numbers(evaluations))


def _with_numbers(evaluations: Iterable[Mapping[str, Any]]) -> list[str]:
    numbers = (name for stats in evaluations for name, value in stats.items() if is_number(value) and name != "step")
    return list(dict.fromkeys(numbers))


def _trend(name: str, root: Path, listed: list[dict[str, Any]], problems: list[str]) -> RunEvaluations:
    scored: list[StepAccuracy] = [
        {"step": stats["step"], "accuracy": stats["accuracy"]}
        for stats in listed
        if isinstance(stats.get("accuracy"), int | float) and math.isfinite(stats["accuracy"])
    ]
    best = max(scored, key=lambda each: each["accuracy"], default=None)  # the first of equal ones
    return RunEvaluations(
        name, str(root), listed, scored[0] if scored else None, best, scored[-1] if scored else None, problems
    )
