"""What stopping a failed run earlier would have saved: the GPU hours after the onset, the checkpoint to revert to, and
the settings of the nearest healthy run compared with its own. Every command, report and screen uses these numbers and
sentences.

The onset is that of the first critical finding that has not recovered. A run that failed or was killed without one has
no onset: stopping it would have saved nothing, and the newest checkpoint is the one to continue from.
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import islice
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from rlvitals.config import by_last_name
from rlvitals.contract import CheckpointFacts, CostFacts, Hindsight, NearestFacts, OnsetFacts
from rlvitals.errors import RlvitalsError
from rlvitals.health.history import GONE, OF_THE_LOG, is_standing
from rlvitals.records import Finding
from rlvitals.render.numbers import duration, number
from rlvitals.store.checkpoints import checkpoints_in, of_this_run, step_of
from rlvitals.terminal import plural
from rlvitals.views.compare import settings_apart
from rlvitals.views.diagnosis import diagnose_quickly
from rlvitals.views.discovery import find_runs, lies_in
from rlvitals.views.run import RunView, open_run
from rlvitals.views.run_clock import HeldGpus, RunClock, clock_of, gpus_of
from rlvitals.views.series import Series, find_best
from rlvitals.views.settings import is_seed
from rlvitals.views.stopped_run import is_of_transformers

LEVEL_POINTS = 8
"""Points up to a checkpoint whose mean is its outcome, because a single batch is too noisy."""

MOST_READ, MOST_JUDGED = 300, 12
"""Runs of a folder whose settings are read, and the number of nearest runs whose verdict is read."""

MOST_DIFFERENCES = 40

SEARCH_DEPTH = 2
"""Levels of folders below the run's folder that are searched for other runs."""

CHECKPOINT_SETTINGS = (
    "output_dir", "default_local_dir", "checkpoint_dir", "ckpt_path", "save_path", "save_checkpoint_path", "save",
)  # fmt: skip
"""Settings with the folder of checkpoints: those of transformers, verl, NeMo-RL, OpenRLHF and SkyRL, and slime."""

LEAST_HOURS = 0.01

IN_TRAINERS_FOLDER = "rlvitals"
"""The name of a run's folder inside the folder of its trainer."""

SAVED = "checkpoint"
"""The text field of a row that names the checkpoint saved before it."""

_HOUR = 3600.0


class Neighbours:
    """The recorded runs among which a healthy one is searched. Each is opened once."""

    def __init__(self, runs: Iterable[RunView]) -> None:
        self._runs = iter(islice(runs, MOST_READ))
        self._opened: list[RunView] | None = None

    @staticmethod
    def of(path: Path) -> Neighbours:
        """The runs beside a run or log. For a run in the folder `rlvitals` of its trainer: those beside the trainer's
        folder.
        """
        folder = path.absolute().parent
        return Neighbours.below(folder.parent if path.name == IN_TRAINERS_FOLDER else folder)

    @staticmethod
    def below(folder: Path) -> Neighbours:
        """The runs in a folder."""
        return Neighbours(_runs_below(folder))

    def nearest(self, view: RunView) -> tuple[RunView, dict[str, list[Any]]] | None:
        """The healthy run with the fewest different settings, and these settings. Seeds and bookkeeping are not
        counted.
        """
        if self._opened is None:
            self._opened = list(self._runs)
        own = os.path.realpath(view.path)
        ranked: list[tuple[int, float, int, RunView, dict[str, list[Any]]]] = []
        for other in self._opened:
            known = view.info.algorithm, other.info.algorithm
            if os.path.realpath(other.path) == own or not has_settings(other) or (all(known) and known[0] != known[1]):
                continue
            apart, _ = settings_apart([view, other])
            ranked.append((sum(not is_seed(key) for key in apart), -other.info.updated, len(ranked), other, apart))
        for _, _, _, other, apart in islice(sorted(ranked, key=lambda item: item[:3]), MOST_JUDGED):
            try:
                if diagnose_quickly(other).verdict == "healthy" and other.status in ("finished", "running"):
                    return other, apart
            except (RlvitalsError, OSError):  # a damaged run is no reference
                continue
        return None


def hindsight(view: RunView, findings: Sequence[Finding], neighbours: Neighbours) -> Hindsight | None:
    """The section about a run, from its findings. None if no critical finding is open and the run neither failed nor
    was interrupted.
    """
    onset = _onset(findings)
    is_stopped = view.foreign is None and view.status in ("failed", "interrupted")
    if onset is None and not is_stopped:
        return None
    clock, gpus = clock_of(view), gpus_of(view)
    cost = _cost(view, onset, clock, gpus)
    checkpoint = _checkpoint(view, onset, clock, gpus)
    nearest = _nearest(view, neighbours)
    older = "" if onset is None else f" older than step {number(onset['step'])}"
    return {
        "onset": onset,
        "cost": cost,
        "checkpoint": checkpoint,
        "nearest": nearest,
        "told": [
            cost["told"],
            f"No checkpoint{older} is known." if checkpoint is None else checkpoint["told"],
            "No healthy run with recorded settings is in the folder." if nearest is None else nearest["told"],
        ],
    }


def _onset(findings: Sequence[Finding]) -> OnsetFacts | None:
    """The first critical finding that has not recovered. Findings about a dead process or about the log's form do not
    count.
    """
    standing = [
        found
        for found in findings
        if found.severity == "critical" and is_standing(found) and found.rule != GONE and found.rule not in OF_THE_LOG
    ]
    first = min(standing, key=lambda found: (found.onset_step, found.step), default=None)
    if first is None:
        return None
    return {
        "rule": first.rule, "kind": first.kind, "title": first.title, "step": first.onset_step, "said_step": first.step,
    }  # fmt: skip


def _cost(view: RunView, onset: OnsetFacts | None, clock: RunClock, gpus: HeldGpus) -> CostFacts:
    facts: CostFacts = {
        "hours": None, "gpu_hours": None, "hours_after_said": None, "gpu_hours_after_said": None,
        "gpus": gpus.count, "gpus_from": gpus.source, "measured_by": clock.measured_by, "told": "",
    }  # fmt: skip
    if onset is None:
        facts["told"] = (
            f"No critical finding before the run {_ended(view)}: stopping it earlier would have saved nothing."
        )
        return facts
    after, after_alarm = clock.seconds_since(onset["step"]), clock.seconds_since(onset["said_step"])
    if after is None or after_alarm is None:
        facts["told"] = (
            f"How long the run continued after step {number(onset['step'])} is unknown: the log has neither "
            "timestamps nor step times."
        )
        return facts
    facts["hours"], facts["hours_after_said"] = after / _HOUR, after_alarm / _HOUR
    if gpus.count is not None:
        facts["gpu_hours"], facts["gpu_hours_after_said"] = after / _HOUR * gpus.count, after_alarm / _HOUR * gpus.count
    has_cost = "has cost so far" if view.status == "running" else "cost"
    text = (
        f"Continuing after the onset at step {number(onset['step'])} ({onset['title']}) {has_cost} "
        f"{_spent(after, gpus)}"
    )
    text += f"; {_amount(after_alarm, gpus)} of it after step {number(onset['said_step'])}, where it was critical."
    if gpus.count is None:
        text += " The number of GPUs is not known."
    if clock.measured_by == "step times":
        text += " Measured by the times of the steps; the log has no timestamps."
    if silent := clock.silent_since(onset["step"]):
        text += f" {duration(silent)} without a row are not counted: nothing says whether a process was alive."
    facts["told"] = text
    return facts


def _ended(view: RunView) -> str:
    return "failed" if view.status == "failed" else "stopped"


def _spent(seconds: float, gpus: HeldGpus) -> str:
    """The time, and the GPUs it was spent on."""
    if gpus.count is None:
        return f"{duration(seconds)} of the run's own time"
    cards = plural(gpus.count, "GPU")
    return f"{_amount(seconds, gpus)} ({duration(seconds)} on {cards}, {gpus.source})"


def _amount(seconds: float, gpus: HeldGpus) -> str:
    return duration(seconds) if gpus.count is None else f"{_rounded(seconds / _HOUR * gpus.count)} GPU hours"


def _rounded(hours: float) -> str:
    """Hours as text.

    >>> [_rounded(hours) for hours in (0, 0.004, 0.125, 1.23456, 123.456)]
    ['0', 'less than 0.01', '0.125', '1.23', '123.5']
    """
    if 0 < hours < LEAST_HOURS:
        return f"less than {LEAST_HOURS}"
    return number(round(hours, 1) if hours >= 10 else float(f"{hours:.3g}"))


# The checkpoint to revert to


class _Known(NamedTuple):
    name: str
    path: Path | None


def best_checkpoint(view: RunView, findings: Sequence[Finding]) -> CheckpointFacts | None:
    """The checkpoint with the best outcome, for any run. If a critical finding has not recovered: of those before its
    onset.
    """
    return _checkpoint(view, _onset(findings), clock_of(view), gpus_of(view), by_outcome=True)


def _checkpoint(
    view: RunView, onset: OnsetFacts | None, clock: RunClock, gpus: HeldGpus, *, by_outcome: bool = False
) -> CheckpointFacts | None:
    """The checkpoint with the best outcome of those before the onset, or the newest if no outcome is known. Without an
    onset: the newest, or with `by_outcome` the best of all.
    """
    known = {step: found for step, found in checkpoints_of(view).items() if onset is None or step < onset["step"]}
    # A checkpoint that is only recorded may have been deleted by its trainer: prefer existing ones.
    known = {step: found for step, found in known.items() if found.path is not None} or known
    if not known:
        return None
    is_ranked = by_outcome or onset is not None
    step, metric, value = _best_of(view, sorted(known)) if is_ranked else (max(known), None, None)
    seconds = clock.seconds_since(step)
    facts: CheckpointFacts = {
        "step": step,
        "name": known[step].name,
        "path": str(known[step].path or ""),
        "metric": metric,
        "value": value,
        "last_value": None if metric is None else _level(view, metric, None),
        "hours_since": None if seconds is None else seconds / _HOUR,
        "gpu_hours_since": None if seconds is None or gpus.count is None else seconds / _HOUR * gpus.count,
        "told": "",
    }
    before = "" if onset is None else f" before step {number(onset['step'])}"
    which = "the only checkpoint" if len(known) == 1 else "the newest checkpoint"
    if metric is not None and len(known) > 1:
        which = f"the best of {len(known)} checkpoints"
    to_do = "Revert to" if onset is not None else "Use" if by_outcome else "Resume from"
    sentences = [f"{to_do} {facts['name']} (step {number(step)}), {which}{before}"]
    if metric is not None:
        sentences[0] += f": {metric} is {_short(value)} there and {_short(facts['last_value'])} at the end"
    if seconds is not None:
        sentences.append(f"Training continued for {_amount(seconds, gpus)} after it")
    if not facts["path"]:
        sentences.append("It is on record, and not in the folder")
    return facts | {"told": "".join(f"{sentence}. " for sentence in sentences).rstrip()}


def _best_of(view: RunView, steps: Sequence[int]) -> tuple[int, str | None, float | None]:
    """The step with the best outcome, the metric and its value; the newest step if no outcome is known."""
    metric, levels = _levels(view, steps)
    if metric is None:
        return max(steps), None, None
    newest_first = sorted(steps, reverse=True)  # the newest of equal ones
    series = Series(np.array(newest_first), np.array([levels[step] for step in newest_first]))
    best = find_best(metric, series, view.meaning(metric))
    if best is None or best.best_step is None:
        return max(steps), None, None
    return best.best_step, metric, levels[best.best_step]


def _short(value: float | None) -> str:
    return number(None if value is None else float(f"{value:.4g}"))


def checkpoints_of(view: RunView) -> dict[int, _Known]:
    """The checkpoints of the living line: folders of the run and of its trainer, and those that are only recorded."""
    found = {step: _Known(path.name, path) for step, path in _on_disk(view)}
    for step, name in _on_record(view):
        found.setdefault(step, _Known(name, None))
    return found


def _on_disk(view: RunView) -> Iterator[tuple[int, Path]]:
    own = view.path if os.path.isdir(view.path) else view.path.parent
    named = by_last_name(view.config)
    given = [named.get(name) for name in CHECKPOINT_SETTINGS]
    others = [Path(value) for value in given if isinstance(value, str) and value]
    if own.name == IN_TRAINERS_FOLDER or is_of_transformers(view.info):
        others.append(own.parent)  # the run is inside its trainer's folder
    started = 0.0 if view.foreign is not None else view.info.created
    seen: set[int] = set()
    for place, strangers_until in [(own, 0.0), *((other, started) for other in others)]:
        if view.dumps_within is not None and not lies_in(place, view.dumps_within):
            continue  # settings are not trusted
        for step, path in of_this_run(checkpoints_in(place), view.cuts, strangers_until).items():
            if step not in seen:
                seen.add(step)
                yield step, path


def _on_record(view: RunView) -> Iterator[tuple[int, str]]:
    """Checkpoints that rows report as saved, that a request named, and that later attempts started from."""
    columns, lives = view.columns("train")[0]
    if SAVED in columns.text_names:
        for row, name in columns.texts(SAVED).items():
            step = step_of(Path(name).name)
            if lives[row] and step is not None:
                yield step, Path(name).name
    for event in view.health_events:
        step, path = event.facts.get("checkpoint_step"), event.facts.get("checkpoint")
        if event.type == "request" and isinstance(step, int) and isinstance(path, str) and path:
            yield step, Path(path).name
    for attempt in view.attempts:
        if attempt.from_checkpoint:
            name = Path(attempt.from_checkpoint).name
            step = attempt.from_step if attempt.from_step is not None else step_of(name)
            if step is not None and not any(step >= cut and attempt.started < started for cut, started in view.cuts):
                yield step, name


def _levels(view: RunView, steps: Sequence[int]) -> tuple[str | None, dict[int, float]]:
    """The value of each checkpoint: the held-out score if every checkpoint has one, else the reward or the margin."""
    for name in (view.held_out_outcome, view.outcome):
        levels = {} if name is None else {at: level for at in steps if (level := _level(view, name, at)) is not None}
        if name is not None and len(levels) == len(steps):
            return name, levels
    return None, {}


def _level(view: RunView, name: str, step: int | None) -> float | None:
    """A metric at a step, or at the end without a step: its last evaluation, or the mean of its last points."""
    steps, values = view.series(name)
    known = np.isfinite(values) & (True if step is None else steps <= step)
    points = values[known][-1 if name == view.held_out_outcome else -LEVEL_POINTS :]
    return float(points.mean()) if len(points) else None


# The nearest healthy run


def _nearest(view: RunView, neighbours: Neighbours) -> NearestFacts | None:
    if not has_settings(view):
        return None
    found = neighbours.nearest(view)
    if found is None:
        return None
    other, apart = found
    keys = sorted(apart, key=is_seed)  # seeds last, because they explain least
    shown = {key: apart[key] for key in keys[:MOST_DIFFERENCES]}
    name = other.path.name if other.name == view.name else other.name
    return {
        "run": str(other.path),
        "name": name,
        "status": other.status,
        "differences": shown,
        "left_out": len(apart) - len(shown),
        "told": f"The nearest healthy run is {name}: {_apart(apart)}.",
    }


def has_settings(view: RunView) -> bool:
    """Whether settings of a trainer are recorded, not only those of the recorder."""
    return bool(view.config.keys() - {"rlvitals"})


def _apart(apart: Mapping[str, Any]) -> str:
    if not apart:
        return "no recorded setting differs"
    if all(map(is_seed, apart)):
        return "only the seed differs"
    return "1 setting differs" if len(apart) == 1 else f"{len(apart)} settings differ"


def _runs_below(folder: Path) -> Iterator[RunView]:
    try:
        for place in find_runs(folder, depth=SEARCH_DEPTH):
            with contextlib.suppress(RlvitalsError, OSError):
                yield open_run(place)
    except (RlvitalsError, OSError):
        return
