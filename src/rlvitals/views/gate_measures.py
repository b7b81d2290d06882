"""What a gate measures of a run: how good its goal got and how soon, how fast it was, what it took, how calm it was.

Each measure is one number of a run, with how far it would be off by the noise within that run. All runs are measured
over the same steps and in the catalogue's own sign and scale. The goal is the reward or the margin of the run, or
another metric that is asked for.
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
from rlvitals.health.course import LEAST_POINTS, Course, error_of_mean
from rlvitals.views.compare import by_step, partner_of
from rlvitals.views.query import HELD_OUT_OUTCOMES, OUTCOMES
from rlvitals.views.run import RunView
from rlvitals.views.run_clock import clock_of

Array = NDArray[Any]
Direction = Literal["up", "down"]
Group = Literal["outcome", "pace", "held-out", "speed", "memory", "stability"]
Kind = Literal["share", "ratio", "count"]
"""How values are compared: by their difference as a share of a scale, by their ratio, or as numbers of events. The
noise of a sample is in the measure's unit, a share of the value, or of the root of a number of events."""

SPEEDS = (
    "perf.tokens_per_s", "perf.tokens_per_s_per_gpu", "perf.training_tokens_per_s_per_gpu",
    "perf.generation_tokens_per_s", "perf.generation_tokens_per_s_per_gpu", "perf.samples_per_s", "perf.steps_per_s",
    "time.step",
)  # fmt: skip
"""How fast a run is, the most telling first; the first that all runs log is taken."""

MEMORIES = ("mem.gpu.max_allocated", "mem.gpu.max_reserved", "sys.gpu_memory_used", "mem.process.rss")
SPIKY = ("optim.grad_norm", "train.loss", "policy.loss")
"""Series in which an unstable training shows single points far off."""

FEWEST_POINTS = 3
"""Points of a series below which nothing is measured."""

FEWEST_EVALUATIONS = 4
"""Evaluations below which nothing tells how far a held-out score scatters."""

MOST_BLOCKS = 64
SETTLING = 0.1
"""The share of a run at its start, while caches fill and kernels compile, that says nothing of its speed."""

REACHED = 0.8
"""The share of the baselines' gain that is the level of 'steps to a level'."""

GAIN = 3.0
"""Standard errors that the baselines must have gained for there to be such a level."""

NEAR_ZERO = 0.25
"""A value below this share of how far its curve moves is near 0, where a share of the value says nothing."""

FAST = 90.0
"""The percentile of a run's speeds that tells how fast it is where nothing else uses the machine."""

SHORTEST = 0.05
"""Seconds between rows below which their times, which are rounded to milliseconds, tell no speed."""

OUTLIER = 3.0
"""Standard deviations beyond which a step's speed is an outlier."""

SPIKE, AROUND = 8.0, 4
"""How many times the usual scatter a point must be off the median of so many points to either side."""

_SIGMA = 1.4826
"""Median absolute deviation to standard deviation, for a normal law."""

_OF_MEDIAN = 1.2533
"""The standard error of a median beside that of a mean, for a normal law."""


class Sample(NamedTuple):
    """A measure of one run."""

    value: float
    noise: float
    """Its standard error by the noise within the run."""
    note: str = ""


@dataclass(frozen=True, slots=True)
class Measure:
    """One measure over the candidate and the baselines."""

    name: str
    title: str
    group: Group
    direction: Direction
    metric: str
    """What the candidate logs it as."""
    unit: str
    candidate: Sample
    baselines: list[Sample]
    kind: Kind = "ratio"
    scale: float = 1.0
    """What a difference is a share of, where the kind is `share`."""
    notes: list[str] = field(default_factory=list)


class Curve(NamedTuple):
    """One metric of one run over the common steps, finite values alone."""

    steps: Array
    values: Array
    dropped: int
    """Values that were not numbers."""


class Goal(NamedTuple):
    """What the runs are for."""

    names: list[str]
    """What each run logs it as, the candidate's first."""
    direction: Direction
    title: str
    unit: str


@dataclass(frozen=True, slots=True)
class Measured:
    """All measures, and what could not be measured."""

    goal: Goal
    horizon: int
    """The last step that all runs have."""
    measures: list[Measure]
    missing: dict[str, str] = field(default_factory=dict)
    """What is not measured, with the reason."""
    notes: list[str] = field(default_factory=list)


def measure_runs(views: Sequence[RunView], metric: str | None = None, direction: Direction | None = None) -> Measured:
    """Measure the candidate, which comes first, and the baselines. Raises NotComparable where their goal is not the
    same quantity.
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


def goal_of(views: Sequence[RunView], metric: str | None, direction: Direction | None) -> Goal:
    """What all runs are for, under each run's own name. Raises NotComparable or ConfigError."""
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
    """The reward of a run with a single environment, whose framework logs it as that environment's."""
    found = [name for name in view.metrics if view.concept(name) in OUTCOMES]
    return found[0] if len(found) == 1 else None


def _paired(first: RunView, name: str, other: RunView) -> str:
    """What another run logs the same quantity as."""
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


def curve_of(view: RunView, name: str) -> Curve:
    """A metric step by step, in the concept's own sign and scale."""
    steps, values = by_step(view, name)
    finite = np.isfinite(values)
    return Curve(steps[finite], values[finite], int((~finite).sum()))


def _until(curve: Curve, horizon: int) -> Curve:
    kept = curve.steps <= horizon
    return Curve(curve.steps[kept], curve.values[kept], curve.dropped)


def _note_lengths(views: Sequence[RunView], curves: Sequence[Curve], horizon: int, notes: list[str]) -> None:
    for place, (view, curve) in enumerate(zip(views, curves, strict=True)):
        if curve.steps[-1] > horizon:
            who = "the candidate" if place == 0 else view.name
            notes.append(f"{who} has rows up to step {int(curve.steps[-1]):,}; compared up to step {horizon:,}")
        if curve.dropped:
            who = "the candidate" if place == 0 else view.name
            notes.append(f"{who}: {curve.dropped} values of the goal are not finite and are left out")


# The goal


def _outcome(found: Measured, curves: Sequence[Curve]) -> None:
    goal = found.goal
    levels = [Levels(curve, goal.direction) for curve in curves]
    first, *others = levels
    reach = float(np.mean([level.reach for level in others]))

    def add(name: str, title: str, pick: Callable[[Levels], Sample]) -> None:
        samples = [pick(level) for level in others]
        found.measures.append(
            Measure(
                name,
                title,
                "outcome",
                goal.direction,
                goal.names[0],
                goal.unit,
                pick(first),
                samples,
                "share",
                scale_of(samples, reach),
            )
        )

    add("final", f"{goal.title}, end of the run", lambda level: level.final)
    add("best", f"{goal.title}, best stretch", lambda level: level.best)
    add("area", f"{goal.title}, mean over the run", lambda level: level.area)
    add("early", f"{goal.title}, first third", lambda level: level.early)
    _steps_to_level(found, first, others)


def scale_of(samples: Sequence[Sample], reach: float) -> float:
    """What a difference is a share of: the size of the value itself, or how far the curve moves where the value is
    near 0 beside that.
    """
    size = abs(float(np.mean([sample.value for sample in samples])))
    return (size if size >= NEAR_ZERO * reach else reach) or 1.0


class Levels:
    """Where one curve begins and ends, its best stretch and its mean, each with its noise."""

    def __init__(self, curve: Curve, direction: Direction) -> None:
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
        """In the sense in which up is better, as are the levels."""

    @property
    def final(self) -> Sample:
        return Sample(self.sign * self.levels[-1], self.noise)

    @property
    def best(self) -> Sample:
        return Sample(self.sign * max(self.levels), self.noise)

    @property
    def area(self) -> Sample:
        """The mean over the steps: the area under the curve by its width."""
        steps, values = self.curve.steps.astype(float), self.curve.values
        width = float(steps[-1] - steps[0])
        mean = (
            float(np.sum(0.5 * (values[1:] + values[:-1]) * np.diff(steps))) / width
            if width > 0
            else float(values.mean())
        )
        return Sample(mean, mean_error(values))

    @property
    def early(self) -> Sample:
        """The mean of the first third, when runs of one kind have not drifted apart yet."""
        first = self.curve.values[: max(len(self.curve.values) // 3, 1)]
        return Sample(float(first.mean()), mean_error(first))

    @property
    def reach(self) -> float:
        """How far apart the lowest and the highest level are."""
        return max(self.levels) - min(self.levels)

    def steps_to(self, level: float, horizon: int) -> Sample:
        """The step from which the mean of a tenth of the run has reached a level (up is better)."""
        steps, values = self.curve.steps, self.sign * self.curve.values
        width = max(len(values) // 10, 1)
        sums = np.concatenate([[0.0], np.cumsum(values)])
        means = (sums[width:] - sums[:-width]) / width
        reached = np.flatnonzero(means >= level)
        is_reached = len(reached) > 0
        step = int(steps[reached[0] + width - 1]) if is_reached else horizon
        gained, passed = max(level - self.start, 1e-300), max(step - int(steps[0]), 1)
        # A step is known at best to half of what is averaged.
        blur = 0.5 * width * (int(steps[-1]) - int(steps[0])) / max(len(steps) - 1, 1)
        return Sample(float(step), math.hypot(self.noise * passed / gained, blur), "" if is_reached else "not reached")


def _few_levels(values: Array) -> tuple[list[float], float]:
    """The means of quarters of a curve that is too short for a course, and their standard error."""
    parts = np.array_split(values, min(4, len(values)))
    jumps = np.diff(values)
    scatter = float(np.sqrt(np.mean(jumps * jumps) / 2.0)) if len(jumps) else 0.0
    return [float(part.mean()) for part in parts], scatter / math.sqrt(len(parts[-1]))


def _late_noise(values: Array, size: int) -> float:
    """The standard error of the mean of `size` points by the second half of a curve: while it learns most, at the
    start, it scatters more. 0 where that half is too short.
    """
    late = values[len(values) // 2 :]
    if len(late) < LEAST_POINTS:
        return 0.0
    blocks = [float(part.mean()) for part in np.array_split(late, min(len(late), MOST_BLOCKS))]
    return error_of_mean(blocks, max(round(size * len(blocks) / len(late)), 1))


def mean_error(values: Array) -> float:
    """The standard error of the mean of a whole series, which may have a memory."""
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
    found.measures.append(
        Measure(
            "steps_to_level",
            "Steps to a level",
            "pace",
            "down",
            found.goal.names[0],
            "steps",
            samples[0],
            samples[1:],
            "share",
            float(found.horizon),
            notes,
        )
    )


def _held_out(views: Sequence[RunView], found: Measured) -> None:
    """The score on held-out data at the end, where that is not the goal itself."""
    names = _common(views, HELD_OUT_OUTCOMES)
    if names is None or names[0] == found.goal.names[0]:
        found.missing["held-out score"] = "not every run logs the same one"
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
        samples.append(Sample(float(last.mean()), scatter / math.sqrt(len(last))))
    meaning = views[0].meaning(names[0])
    scale = abs(float(np.mean([sample.value for sample in samples[1:]]))) or 1.0
    found.measures.append(
        Measure(
            "held_out",
            f"{meaning.metric.title if meaning else names[0]}, end of the run",
            "held-out",
            "up",
            names[0],
            meaning.metric.unit if meaning else "",
            samples[0],
            samples[1:],
            "share",
            scale,
        )
    )


def _common(views: Sequence[RunView], concepts: Sequence[str], *, slices: bool = False) -> list[str] | None:
    """What each run logs the first of these concepts as that all of them log alike."""
    for concept in concepts:
        names = []
        for view in views:
            fitting = [name for name in view.metrics if view.concept(name) == concept]
            fitting = [name for name in fitting if not view.labels(name)] or (fitting if slices else [])
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
    unit, title, direction = "steps/s", "Steps a second", "up"
    if names is not None:
        meaning = views[0].meaning(names[0])
        assert meaning is not None
        unit, title, direction = meaning.metric.unit, meaning.metric.title, meaning.metric.direction
        curves = [_until(curve_of(view, name), found.horizon) for view, name in zip(views, names, strict=True)]
        values = [curve.values[curve.values > 0] for curve in curves]
    else:
        values = [_step_rates(view, found.horizon) for view in views]
    values = [own[int(SETTLING * len(own)) :] for own in values]
    if any(len(own) < FEWEST_POINTS for own in values):
        found.missing["speed"] = "no speed, step time or timestamps that all runs log"
        return
    good: Direction = "up" if direction == "up" else "down"
    logs = [np.log(own) for own in values]
    errors = [_OF_MEDIAN * mean_error(_without_outliers(own)) for own in logs]
    share = FAST if good == "up" else 100.0 - FAST
    for name, what, percentile in (("speed", "typical", 50.0), ("speed_best", "fastest tenth", share)):
        samples = [
            Sample(float(np.exp(np.percentile(own, percentile))), error)
            for own, error in zip(logs, errors, strict=True)
        ]
        metric = names[0] if names else "timestamp"
        found.measures.append(Measure(name, f"{title}, {what}", "speed", good, metric, unit, samples[0], samples[1:]))


def _without_outliers(values: Array) -> Array:
    """The same with what is far off moved to the edge: a pause for an evaluation moves no median."""
    middle = float(np.median(values))
    reach = OUTLIER * _SIGMA * float(np.median(np.abs(values - middle)))
    kept: Array = np.clip(values, middle - reach, middle + reach)
    return kept


def _step_rates(view: RunView, horizon: int) -> Array:
    """Steps a second between rows, by the times they were logged at."""
    clock = clock_of(view)
    if not clock.measured_by:
        return np.zeros(0)
    kept = clock.steps <= horizon
    steps, times = clock.steps[kept], clock.times[kept]
    passed, taken = np.diff(steps), np.diff(times)
    known = (passed > 0) & (taken > 0)
    if not known.any() or float(np.median(taken[known])) < SHORTEST:
        return np.zeros(0)
    rates: Array = passed[known] / taken[known]
    return rates


def _memory(views: Sequence[RunView], found: Measured) -> None:
    for concept in MEMORIES:
        peaks = [_peak(view, concept, found.horizon) for view in views]
        if all(peak is not None for peak in peaks):
            break
    else:
        found.missing["memory"] = "no memory use that all runs log"
        return
    samples = [Sample(peak, 0.0) for peak in peaks if peak is not None]
    entry = catalog.find(concept)[0].metric
    found.measures.append(
        Measure(
            "memory",
            f"{entry.title}, peak",
            "memory",
            "down",
            concept,
            entry.unit,
            samples[0],
            samples[1:],
        )
    )


def _peak(view: RunView, concept: str, horizon: int) -> float | None:
    """The most memory in any phase."""
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


def _stability(views: Sequence[RunView], found: Measured, curves: Sequence[Curve]) -> None:
    scatters = [scatter_of(curve.values) for curve in curves]
    if all(scatter.value > 0 for scatter in scatters):
        found.measures.append(
            Measure(
                "noise",
                f"{found.goal.title}, scatter from step to step",
                "stability",
                "down",
                found.goal.names[0],
                found.goal.unit,
                scatters[0],
                scatters[1:],
            )
        )
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
    # The square root of a count has about the same scatter, 1/2, whatever the count.
    samples = [Sample(float(count), 0.5) for count in counts if count is not None]
    found.measures.append(
        Measure(
            "spikes", f"Spikes in {names[0]}", "stability", "down", names[0], "points", samples[0], samples[1:], "count"
        )
    )


def scatter_of(values: Array) -> Sample:
    """How far a curve's points are off the middle of their neighbours, and how well that is known; 0 where there are
    too few.
    """
    if len(values) < LEAST_POINTS:
        return Sample(0.0, 0.0)
    away = np.abs(values[:-2] - 2.0 * values[1:-1] + values[2:])
    usual = _SIGMA * float(np.median(away)) / math.sqrt(6.0)
    # Of a scatter by the median, as a share of it; neighbours share two of three points.
    return Sample(usual, 1.6 / math.sqrt(len(away)))


def _spikes(values: Array) -> int | None:
    """Points far off the median of their neighbours."""
    if len(values) < LEAST_POINTS:
        return None
    padded = np.pad(values, AROUND, mode="reflect")
    windows = np.lib.stride_tricks.sliding_window_view(padded, 2 * AROUND + 1)
    away = np.abs(values - np.median(windows, axis=1))
    usual = _SIGMA * float(np.median(away))
    return int((away > SPIKE * usual).sum()) if usual > 0 else 0
