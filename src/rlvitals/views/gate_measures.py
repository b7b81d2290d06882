"""The measures of a gate: the quality of the goal and how early it is reached, the speed, the memory, and the
stability.

Each measure is one number of a run, with its standard error from the noise within that run. All runs are measured over
the same steps and in the sign and scale of the catalogue. The goal is the reward or the margin of the run, or another
requested metric.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal, NamedTuple

import numpy as np
from numpy.typing import NDArray

from rlvitals import catalog
from rlvitals.errors import ConfigError, NotComparable, UnknownMetric
from rlvitals.health.course import LEAST_POINTS, SIGMA_OF_MEDIAN, Course, error_of_mean, scatter
from rlvitals.views.compare import by_step, partner_of
from rlvitals.views.query import HELD_OUT_OUTCOMES, OUTCOMES
from rlvitals.views.run import RunView
from rlvitals.views.run_clock import clock_of

Array = NDArray[Any]
BetterDirection = Literal["up", "down"]
MeasureGroup = Literal["outcome", "pace", "held-out", "speed", "memory", "stability"]
MeasureKind = Literal["share", "ratio", "count"]
"""How values are compared: by their difference as a share of a scale, by their ratio, or as numbers of events. The
noise of a sample is in the measure's unit, a share of the value, or the noise of the square root of the number of
events.
"""

SPEEDS = (
    "perf.tokens_per_s", "perf.tokens_per_s_per_gpu", "perf.training_tokens_per_s_per_gpu",
    "perf.generation_tokens_per_s", "perf.generation_tokens_per_s_per_gpu", "perf.samples_per_s", "perf.steps_per_s",
    "time.step",
)  # fmt: skip
"""Metrics of a run's speed, the most informative first. The first that all runs log is used."""

WAITING = "sys.cpu_wait"
"""The share of its time in which a training waited for a processor."""

LEAST_RUNNING = 0.05
"""The least share of the time that counts as spent on a processor."""

NOTED_WAIT = 0.05
"""The share of waiting from which a note gives it."""

GPU_MEMORIES = ("mem.gpu.max_allocated", "mem.gpu.max_reserved", "sys.gpu_memory_used")
MEMORIES = (*GPU_MEMORIES, "mem.process.rss")
SPIKY = ("optim.grad_norm", "train.loss", "policy.loss")
"""Series in which an unstable training has single extreme points."""

FEWEST_POINTS = 3
"""Minimum points of a series for a measure."""

FEWEST_EVALUATIONS = 4
"""Minimum evaluations for estimating the scatter of a held-out score."""

MOST_BLOCKS = 64
SETTLING = 0.1
"""The share of a run at its start that is not used for its speed, because caches fill and kernels compile."""

REACHED = 0.8
"""The share of the baselines' gain that defines the level of 'steps to a level'."""

GAIN = 3.0
"""Standard errors that the baselines must have gained for such a level to exist."""

NEAR_ZERO = 0.25
"""A value below this share of its curve's range counts as near 0. Then a share of the value is not meaningful."""

FAST = 90.0
"""The percentile of a run's speeds that shows its speed on an otherwise idle machine."""

SHORTEST = 0.05
"""Minimum seconds between rows for a speed from timestamps, which are rounded to milliseconds."""

OUTLIER = 3.0
"""Standard deviations beyond which a step's speed is an outlier."""

SPIKE, AROUND = 8.0, 4
"""A spike is this many times the usual scatter away from the median of this many points on either side."""


class MeasureSample(NamedTuple):
    """A measure of one run."""

    value: float
    noise: float
    """Its standard error from the noise within the run."""
    note: str = ""


@dataclass(frozen=True, slots=True)
class Measure:
    """One measure of the candidate and the baselines."""

    name: str
    title: str
    group: MeasureGroup
    direction: BetterDirection
    metric: str
    """The name under which the candidate logs it."""
    unit: str
    candidate: MeasureSample
    baselines: list[MeasureSample]
    kind: MeasureKind = "ratio"
    scale: float = 1.0
    """The scale of a difference, if the kind is `share`."""
    notes: list[str] = field(default_factory=list)


class MetricCurve(NamedTuple):
    """One metric of one run over the common steps, finite values only."""

    steps: Array
    values: Array
    dropped: int
    """Number of values that are not finite."""


class Goal(NamedTuple):
    """The metric that the runs optimise."""

    names: list[str]
    """The name under which each run logs it, the candidate's first."""
    direction: BetterDirection
    title: str
    unit: str


@dataclass(frozen=True, slots=True)
class Measured:
    """All measures, and those that could not be computed."""

    goal: Goal
    horizon: int
    """The last step that all runs have."""
    measures: list[Measure]
    missing: dict[str, str] = field(default_factory=dict)
    """The measures that are missing, with the reason."""
    notes: list[str] = field(default_factory=list)

    def add(
        self,
        samples: Sequence[MeasureSample],
        *,
        name: str,
        title: str,
        group: MeasureGroup,
        direction: BetterDirection,
        metric: str,
        unit: str,
        kind: MeasureKind = "ratio",
        scale: float = 1.0,
        notes: Sequence[str] = (),
    ) -> None:
        """Add a measure, with the sample of the candidate first."""
        first, *others = samples
        self.measures.append(
            Measure(name, title, group, direction, metric, unit, first, others, kind, scale, list(notes))
        )


def measure_runs(
    views: Sequence[RunView], metric: str | None = None, direction: BetterDirection | None = None
) -> Measured:
    """Measure the candidate, which comes first, and the baselines. Raises NotComparable if their goals are different
    quantities.
    """
    goal = goal_of(views, metric, direction)
    whole = [curve_of(view, name) for view, name in zip(views, goal.names, strict=True)]
    for view, curve, name in zip(views, whole, goal.names, strict=True):
        if len(curve.values) < FEWEST_POINTS:
            raise NotComparable(
                f"{view.path} has {len(curve.values)} values of {name!r}: a comparison takes at least {FEWEST_POINTS}"
            )
    horizon = min(int(curve.steps[-1]) for curve in whole)
    curves = [_until(curve, horizon) for curve in whole]
    for view, curve in zip(views, curves, strict=True):
        if len(curve.values) < FEWEST_POINTS:
            raise NotComparable(
                f"{view.path} has {len(curve.values)} values up to step {horizon}, where the shortest run ends: a "
                f"comparison takes at least {FEWEST_POINTS}"
            )
    found = Measured(goal, horizon, [])
    _note_lengths(views, whole, horizon, found.notes)
    _outcome(found, curves)
    _held_out(views, found)
    _speed(views, found)
    _memory(views, found)
    _stability(views, found, curves)
    return found


def goal_of(views: Sequence[RunView], metric: str | None, direction: BetterDirection | None) -> Goal:
    """The goal of all runs, under the name that each run logs. Raises NotComparable or ConfigError."""
    first, *others = views
    if metric is not None:
        name: str | None = first.resolve(metric)
    else:
        name = first.outcome or _only_slice(first) or first.held_out_outcome
    if name is None:
        wanted = ", ".join((*OUTCOMES, *HELD_OUT_OUTCOMES))
        raise NotComparable(
            f"{first.path} logs no metric that says how well it does ({wanted}). Name one with --metric"
        )
    meaning = first.meaning(name)
    known = meaning.metric.direction if meaning else "none"
    if direction is None:
        if known not in ("up", "down"):
            raise ConfigError(
                f"the catalogue does not say whether a higher {name!r} is better: add --direction up or down"
            )
        direction = "up" if known == "up" else "down"
    names = [name, *(_paired(first, name, other) for other in others)]
    title = meaning.metric.title if meaning else name
    return Goal(names, direction, title, meaning.metric.unit if meaning else "")


def _only_slice(view: RunView) -> str | None:
    """The reward of a run with a single environment, whose framework logs it under that environment's name."""
    found = [name for name in view.metrics if view.concept(name) in OUTCOMES]
    return found[0] if len(found) == 1 else None


def _paired(first: RunView, name: str, other: RunView) -> str:
    """The name under which another run logs the same quantity."""
    try:
        found = partner_of(first, name, other, name, must_exist=True)
    except UnknownMetric:
        found = None
    if found is None:
        own = other.outcome or other.held_out_outcome
        logs = f" It logs {own!r}." if own else ""
        algorithms = f" ({first.algorithm or 'unknown'} and {other.algorithm or 'unknown'})"
        raise NotComparable(
            f"the goal of {first.path} is {name!r}, which {other.path} does not log"
            f"{algorithms if first.algorithm != other.algorithm else ''}.{logs} Name a metric both have with --metric"
        )
    compared = catalog.compare(first.meaning(name), other.meaning(found), same_name=found == name)
    if compared.verdict in ("different", "caution"):
        raise NotComparable(f"{name!r} of {first.path} and {found!r} of {other.path} do not compare: {compared.reason}")
    return found


def curve_of(view: RunView, name: str) -> MetricCurve:
    """A metric by step, in the sign and scale of the concept."""
    steps, values = by_step(view, name)
    finite = np.isfinite(values)
    return MetricCurve(steps[finite], values[finite], int((~finite).sum()))


def _until(curve: MetricCurve, horizon: int) -> MetricCurve:
    kept = curve.steps <= horizon
    return MetricCurve(curve.steps[kept], curve.values[kept], curve.dropped)


def _note_lengths(views: Sequence[RunView], curves: Sequence[MetricCurve], horizon: int, notes: list[str]) -> None:
    for place, (view, curve) in enumerate(zip(views, curves, strict=True)):
        if curve.steps[-1] > horizon:
            who = "the candidate" if place == 0 else view.name
            notes.append(f"{who} has rows up to step {int(curve.steps[-1]):,}; compared up to step {horizon:,}")
        if curve.dropped:
            who = "the candidate" if place == 0 else view.name
            notes.append(f"{who}: {curve.dropped} values of the goal are not finite and are left out")


# The goal


def _outcome(found: Measured, curves: Sequence[MetricCurve]) -> None:
    goal = found.goal
    levels = [Levels(curve, goal.direction) for curve in curves]
    first, *others = levels
    reach = float(np.mean([level.reach for level in others]))

    parts: tuple[tuple[str, str, Callable[[Levels], MeasureSample]], ...] = (
        ("final", "end of the run", lambda level: level.final),
        ("best", "best stretch", lambda level: level.best),
        ("area", "mean over the run", lambda level: level.area),
        ("early", "first third", lambda level: level.early),
    )
    for name, what, pick in parts:
        samples = [pick(level) for level in levels]
        found.add(
            samples, name=name, title=f"{goal.title}, {what}", group="outcome", direction=goal.direction,
            metric=goal.names[0], unit=goal.unit, kind="share", scale=scale_of(samples[1:], reach),
        )  # fmt: skip
    _steps_to_level(found, first, others)


def scale_of(samples: Sequence[MeasureSample], reach: float) -> float:
    """The scale of a difference: the size of the value, or the range of the curve if the value is near 0 compared with
    it.
    """
    size = abs(float(np.mean([sample.value for sample in samples])))
    return (size if size >= NEAR_ZERO * reach else reach) or 1.0


class Levels:
    """The start and end of one curve, its best part and its mean, each with its noise."""

    def __init__(self, curve: MetricCurve, direction: BetterDirection) -> None:
        self.curve = curve
        self.sign = 1.0 if direction == "up" else -1.0
        values = self.sign * curve.values
        course = Course()
        for value in values.tolist():
            course.add(value)
        if course.levels:
            self.levels = course.levels
            self.noise = _late_noise(values, len(values) // len(course.levels)) or course.noise
        else:
            self.levels, self.noise = _few_levels(values)
        self.start = self.levels[0]
        """In the direction where up is better, as are the levels."""

    @property
    def final(self) -> MeasureSample:
        return MeasureSample(self.sign * self.levels[-1], self.noise)

    @property
    def best(self) -> MeasureSample:
        return MeasureSample(self.sign * max(self.levels), self.noise)

    @property
    def area(self) -> MeasureSample:
        """The mean over the steps: the area under the curve divided by its width."""
        steps, values = self.curve.steps.astype(float), self.curve.values
        width = float(steps[-1] - steps[0])
        mean = (
            float(np.sum(0.5 * (values[1:] + values[:-1]) * np.diff(steps))) / width
            if width > 0
            else float(values.mean())
        )
        return MeasureSample(mean, mean_error(values))

    @property
    def early(self) -> MeasureSample:
        """The mean of the first third, in which similar runs have not drifted apart yet."""
        first = self.curve.values[: max(len(self.curve.values) // 3, 1)]
        return MeasureSample(float(first.mean()), mean_error(first))

    @property
    def reach(self) -> float:
        """The difference between the lowest and the highest level."""
        return max(self.levels) - min(self.levels)

    def steps_to(self, level: float, horizon: int) -> MeasureSample:
        """The first step at which the mean of a tenth of the run reaches a level (up is better)."""
        steps, values = self.curve.steps, self.sign * self.curve.values
        width = max(len(values) // 10, 1)
        sums = np.concatenate([[0.0], np.cumsum(values)])
        means = (sums[width:] - sums[:-width]) / width
        reached = np.flatnonzero(means >= level)
        is_reached = len(reached) > 0
        step = int(steps[reached[0] + width - 1]) if is_reached else horizon
        gained, passed = max(level - self.start, 1e-300), max(step - int(steps[0]), 1)
        # The precision of the step is at best half the averaged range.
        blur = 0.5 * width * (int(steps[-1]) - int(steps[0])) / max(len(steps) - 1, 1)
        return MeasureSample(
            float(step), math.hypot(self.noise * passed / gained, blur), "" if is_reached else "not reached"
        )


def _few_levels(values: Array) -> tuple[list[float], float]:
    """The means of the quarters of a curve that is too short for `Course`, and their standard error."""
    parts = np.array_split(values, min(4, len(values)))
    jumps = np.diff(values)
    scatter = float(np.sqrt(np.mean(jumps * jumps) / 2.0)) if len(jumps) else 0.0
    return [float(part.mean()) for part in parts], scatter / math.sqrt(len(parts[-1]))


def _late_noise(values: Array, size: int) -> float:
    """The standard error of the mean of `size` points, from the second half of a curve. The first half scatters more,
    because the run learns most there. 0 if the second half is too short.
    """
    late = values[len(values) // 2 :]
    if len(late) < LEAST_POINTS:
        return 0.0
    blocks = [float(part.mean()) for part in np.array_split(late, min(len(late), MOST_BLOCKS))]
    return error_of_mean(blocks, max(round(size * len(blocks) / len(late)), 1))


def mean_error(values: Array) -> float:
    """The standard error of the mean of a whole series, whose values may be autocorrelated."""
    if len(values) < LEAST_POINTS:
        jumps = np.diff(values)
        return float(np.sqrt(np.mean(jumps * jumps) / 2.0) / math.sqrt(len(values))) if len(jumps) else 0.0
    blocks = [float(part.mean()) for part in np.array_split(values, min(len(values), MOST_BLOCKS))]
    return error_of_mean(blocks, len(blocks))


def _steps_to_level(found: Measured, first: Levels, others: Sequence[Levels]) -> None:
    start = float(np.mean([level.start for level in others]))
    gain = float(np.mean([level.levels[-1] for level in others])) - start
    if gain <= GAIN * float(np.mean([level.noise for level in others])):
        found.missing["steps to a level"] = "the baselines gain too little for a level to be set"
        return
    level = start + REACHED * gain
    samples = [one.steps_to(level, found.horizon) for one in (first, *others)]
    if all(sample.note for sample in samples[1:]):
        found.missing["steps to a level"] = "no baseline reaches the level"
        return
    notes = [f"the level is {first.sign * level:.4g}, {REACHED:.0%} of what the baselines gain"]
    if samples[0].note:
        notes.append("the candidate does not reach it: counted as the last step")
    found.add(
        samples, name="steps_to_level", title="Steps to a level", group="pace", direction="down",
        metric=found.goal.names[0], unit="steps", kind="share", scale=float(found.horizon), notes=notes,
    )  # fmt: skip


def _held_out(views: Sequence[RunView], found: Measured) -> None:
    """Measure the score on held-out data at the end, if it is not the goal itself."""
    names = _common(views, HELD_OUT_OUTCOMES)
    if names is None or names[0] == found.goal.names[0]:
        found.missing["held-out score"] = "not every run logs the same one" if names is None else "it is the goal"
        return
    samples = []
    for view, name in zip(views, names, strict=True):
        curve = _until(curve_of(view, name), found.horizon)
        if len(curve.values) < FEWEST_EVALUATIONS:
            found.missing["held-out score"] = f"{view.name} has fewer than {FEWEST_EVALUATIONS} evaluations"
            return
        last = curve.values[-max(len(curve.values) // 4, 1) :]
        jumps = np.diff(curve.values[len(curve.values) // 2 :])
        scatter = float(np.sqrt(np.mean(jumps * jumps) / 2.0)) if len(jumps) else 0.0
        samples.append(MeasureSample(float(last.mean()), scatter / math.sqrt(len(last))))
    meaning = views[0].meaning(names[0])
    scale = abs(float(np.mean([sample.value for sample in samples[1:]]))) or 1.0
    title, unit = (meaning.metric.title, meaning.metric.unit) if meaning else (names[0], "")
    found.add(
        samples, name="held_out", title=f"{title}, end of the run", group="held-out", direction="up",
        metric=names[0], unit=unit, kind="share", scale=scale,
    )  # fmt: skip


def _common(views: Sequence[RunView], concepts: Sequence[str]) -> list[str] | None:
    """The names under which the runs log the first of these concepts that all of them log as the same quantity."""
    for concept in concepts:
        names = []
        for view in views:
            fitting = [name for name in view.metrics if view.concept(name) == concept and not view.labels(name)]
            if not fitting:
                break
            names.append(fitting[0])
        else:
            first = views[0].meaning(names[0])
            judged = (
                catalog.compare(first, view.meaning(name), same_name=name == names[0])
                for view, name in zip(views[1:], names[1:], strict=True)
            )
            if all(one.verdict in ("same", "convert") for one in judged):
                return names
    return None


# Speed and memory


def _speed(views: Sequence[RunView], found: Measured) -> None:
    names = _common(views, SPEEDS)
    unit, title, good = "steps/s", "Steps a second", "up"
    if names is not None:
        meaning = views[0].meaning(names[0])
        assert meaning is not None
        unit, title, good = meaning.metric.unit, meaning.metric.title, meaning.metric.direction
        curves = [_until(curve_of(view, name), found.horizon) for view, name in zip(views, names, strict=True)]
    else:
        curves = [_step_rates(view, found.horizon) for view in views]
    direction: BetterDirection = "up" if good == "up" else "down"
    waits = _common(views, (WAITING,))
    # A GPU works on while the thread that feeds it waits for a processor: the clock is right there.
    uses_gpu = any(_peak(view, concept, found.horizon) is not None for view in views for concept in GPU_MEMORIES)
    if waits is not None and not uses_gpu:
        waited = [curve_of(view, name) for view, name in zip(views, waits, strict=True)]
        curves = [_undisturbed(curve, wait, direction) for curve, wait in zip(curves, waited, strict=True)]
        found.notes.extend(_waiting_notes([float(np.mean(wait.values)) for wait in waited]))
    curves = [_positive_logs(curve) for curve in curves]
    if any(len(curve.values) < FEWEST_POINTS for curve in curves):
        found.missing["speed"] = "no speed, step time or timestamps that all runs log"
        return
    errors = _speed_errors(curves)
    fast = FAST if direction == "up" else 100.0 - FAST
    levels: tuple[tuple[str, str, Callable[[Array], float]], ...] = (
        # Not the median: of a run that evaluates during every second row it would be either of two levels, by chance.
        ("speed", "typical", lambda values: float(_without_outliers(values).mean())),
        ("speed_best", "fastest tenth", lambda values: float(np.percentile(values, fast))),
    )
    for name, what, level in levels:
        samples = [
            MeasureSample(math.exp(level(curve.values)), error) for curve, error in zip(curves, errors, strict=True)
        ]
        found.add(
            samples, name=name, title=f"{title}, {what}", group="speed", direction=direction,
            metric=names[0] if names else "timestamp", unit=unit,
        )  # fmt: skip


def _undisturbed(curve: MetricCurve, wait: MetricCurve, direction: BetterDirection) -> MetricCurve:
    """A speed without the time in which the training waited for a processor, at the steps that have both."""
    steps, own, other = np.intersect1d(curve.steps, wait.steps, return_indices=True)
    running = np.maximum(1.0 - wait.values[other], LEAST_RUNNING)
    values = curve.values[own]
    return MetricCurve(steps, values / running if direction == "up" else values * running, curve.dropped)


def _waiting_notes(shares: Sequence[float]) -> list[str]:
    """A note on how long the runs waited, if it matters; the candidate's share comes first."""
    candidate, *others = shares
    if max(shares) < NOTED_WAIT:
        return []
    return [
        f"the candidate waited for a processor in {candidate:.0%} of its time, the baselines in "
        f"{float(np.mean(others)):.0%}: speeds are compared without that time"
    ]


def _positive_logs(curve: MetricCurve) -> MetricCurve:
    """The logarithms of a speed, without the start of the run."""
    kept = curve.values > 0
    steps, values = curve.steps[kept], np.log(curve.values[kept])
    first = int(SETTLING * len(values))
    return MetricCurve(steps[first:], values[first:], curve.dropped)


def _speed_errors(curves: Sequence[MetricCurve]) -> list[float]:
    """The standard error of each run's mean speed.

    In many trainings all runs become slower together as their answers become longer. That is no noise, so the mean
    curve of the baselines is subtracted first, if there are several and the runs have logged the same steps.
    """
    candidate, *others = curves
    is_same = all(np.array_equal(curve.steps, candidate.steps) for curve in others)
    if not is_same or len(others) < 2:
        return [mean_error(_without_outliers(curve.values)) for curve in curves]
    common = np.mean([curve.values for curve in others], axis=0)
    # A baseline is part of the mean that is subtracted from it, which makes its residuals smaller.
    shrunk = math.sqrt(len(others) / (len(others) - 1))
    return [
        (1.0 if curve is candidate else shrunk) * mean_error(_without_outliers(curve.values - common))
        for curve in curves
    ]


def _without_outliers(values: Array) -> Array:
    """The values with outliers clipped to the limit, so that a pause for an evaluation does not count as noise."""
    middle = float(np.median(values))
    reach = OUTLIER * SIGMA_OF_MEDIAN * float(np.median(np.abs(values - middle)))
    kept: Array = np.clip(values, middle - reach, middle + reach)
    return kept


def _step_rates(view: RunView, horizon: int) -> MetricCurve:
    """Steps per second between rows, from their timestamps."""
    clock = clock_of(view)
    if not clock.measured_by:
        return MetricCurve(np.zeros(0), np.zeros(0), 0)
    kept = clock.steps <= horizon
    steps, times = clock.steps[kept], clock.times[kept]
    passed, taken = np.diff(steps), np.diff(times)
    known = (passed > 0) & (taken > 0)
    if not known.any() or float(np.median(taken[known])) < SHORTEST:
        return MetricCurve(np.zeros(0), np.zeros(0), 0)
    return MetricCurve(steps[1:][known], passed[known] / taken[known], 0)


def _memory(views: Sequence[RunView], found: Measured) -> None:
    for concept in MEMORIES:
        peaks = [_peak(view, concept, found.horizon) for view in views]
        if all(peak is not None for peak in peaks):
            break
    else:
        found.missing["memory"] = "no memory use that all runs log"
        return
    samples = [MeasureSample(peak, 0.0) for peak in peaks if peak is not None]
    entry = catalog.find(concept)[0].metric
    found.add(
        samples, name="memory", title=f"{entry.title}, peak", group="memory", direction="down", metric=concept,
        unit=entry.unit,
    )  # fmt: skip


def _peak(view: RunView, concept: str, horizon: int) -> float | None:
    """The highest memory use in any phase."""
    peaks = []
    for name in view.metrics:
        if view.concept(name) == concept:
            curve = _until(curve_of(view, name), horizon)
            if len(curve.values):
                peaks.append(float(curve.values.max()))
    if not peaks and view.foreign is None:
        samples = view.system()
        for name, values in samples.items():
            if name not in ("timestamp", "step", "attempt") and view.concept(name) == concept:
                kept = values[np.isfinite(values) & (samples["step"] <= horizon)]
                peaks += [float(kept.max())] if len(kept) else []
    return max((peak for peak in peaks if peak > 0), default=None)


# Stability


def _stability(views: Sequence[RunView], found: Measured, curves: Sequence[MetricCurve]) -> None:
    scatters = [scatter_of(curve.values) for curve in curves]
    if all(scatter.value > 0 for scatter in scatters):
        found.add(
            scatters, name="noise", title=f"{found.goal.title}, scatter from step to step", group="stability",
            direction="down", metric=found.goal.names[0], unit=found.goal.unit,
        )  # fmt: skip
    else:
        found.missing["noise"] = f"takes {LEAST_POINTS} points that are not all alike"
    names = _common(views, SPIKY)
    if names is None:
        found.missing["spikes"] = "no gradient norm or loss that all runs log"
        return
    counts = [
        _spikes(_until(curve_of(view, name), found.horizon).values) for view, name in zip(views, names, strict=True)
    ]
    if any(count is None for count in counts):
        found.missing["spikes"] = f"takes {LEAST_POINTS} points"
        return
    # The standard deviation of a count's square root is about 1/2, whatever the count.
    samples = [MeasureSample(float(count), 0.5) for count in counts if count is not None]
    found.add(
        samples, name="spikes", title=f"Spikes in {names[0]}", group="stability", direction="down", metric=names[0],
        unit="points", kind="count",
    )  # fmt: skip


def scatter_of(values: Array) -> MeasureSample:
    """The scatter of a curve's points around the middle of their neighbours, and its relative error. 0 if there are too
    few points.
    """
    if len(values) < LEAST_POINTS:
        return MeasureSample(0.0, 0.0)
    # The relative error of a scatter from the median; neighbouring differences share two of three points.
    return MeasureSample(scatter(values.tolist()), 1.6 / math.sqrt(len(values) - 2))


def _spikes(values: Array) -> int | None:
    """The number of points far from the median of their neighbours; None if there are too few points."""
    if len(values) < LEAST_POINTS:
        return None
    padded = np.pad(values, AROUND, mode="reflect")
    windows = np.lib.stride_tricks.sliding_window_view(padded, 2 * AROUND + 1)
    away = np.abs(values - np.median(windows, axis=1))
    usual = SIGMA_OF_MEDIAN * float(np.median(away))
    return int((away > SPIKE * usual).sum()) if usual > 0 else 0
