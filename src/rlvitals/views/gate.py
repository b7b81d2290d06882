"""Whether a change has made training worse: one run against a few baselines, measure by measure, and a user's limits.

A measure fails if the candidate is worse than the baselines by more than the usual difference between such runs and by
more than a practical margin. The first is a prediction interval (`compute.few_runs`) that also uses the noise within
the runs. The chance of a false failure is divided among the groups of measures and corrected within each, so that it is
at most `alpha` for the whole gate.
"""

from __future__ import annotations

import math
import os
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any, Literal, NamedTuple

from rlvitals.compute.few_runs import hommel, moderated, prediction_error, quantile, tail
from rlvitals.errors import ConfigError, NotComparable, RlvitalsError
from rlvitals.health.history import is_standing
from rlvitals.records import Finding
from rlvitals.terminal import plural
from rlvitals.views.compare import settings_apart
from rlvitals.views.diagnosis import diagnose
from rlvitals.views.gate_measures import BetterDirection, Measure, MeasureGroup, MeasureSample, measure_runs
from rlvitals.views.gate_rules import GateRule, JudgedLimit, judge_rules
from rlvitals.views.logs import open_any
from rlvitals.views.places import one_place, places_in
from rlvitals.views.run import RunView
from rlvitals.views.settings import is_seed

GateState = Literal["pass", "fail"]

ALPHA = 0.05
"""The probability that a change which makes nothing worse fails."""

SHARES: dict[MeasureGroup, float] = {
    "outcome": 0.65, "pace": 0.03, "held-out": 0.04, "speed": 0.2, "memory": 0.03, "stability": 0.03,
}  # fmt: skip
"""The share of this probability for each group. The rest is reserved for findings, which have no test."""

POWER = 0.9
"""The probability of detecting the smallest difference that is reported."""

MOST_BASELINES = 50

ANSCOMBE = 0.375
"""Added to a number of events before its square root is taken, which stabilises the variance of small counts."""


class Prior(NamedTuple):
    """What is known of a measure before any baseline. `benchmarks/gate.py priors` estimates it."""

    factor: float
    """The standard deviation between runs divided by the noise within one."""
    worth: float
    """The degrees of freedom that this prior counts as."""
    least: float
    """The minimum standard deviation between runs, as a share."""
    margin: float
    """The difference that matters, as a share; for spikes, as a number."""


PRIORS = {
    "final": Prior(1.0, 6.0, 0.005, 0.02),
    "best": Prior(0.9, 5.0, 0.005, 0.02),
    "area": Prior(1.5, 5.0, 0.005, 0.02),
    "early": Prior(0.9, 4.5, 0.005, 0.02),
    "steps_to_level": Prior(1.2, 5.0, 0.02, 0.1),
    "held_out": Prior(1.4, 5.0, 0.01, 0.02),
    "speed": Prior(1.15, 8.0, 0.025, 0.05),
    "speed_best": Prior(1.1, 8.0, 0.025, 0.05),
    "memory": Prior(1.0, 3.0, 0.01, 0.05),
    "noise": Prior(1.2, 6.0, 0.05, 0.3),
    "spikes": Prior(0.8, 2.0, 0.4, 3.0),
}


@dataclass(frozen=True, slots=True)
class JudgedMeasure:
    """The result of one measure."""

    name: str
    title: str
    group: str
    metric: str
    unit: str
    direction: str
    candidate: float
    baselines: list[float]
    mean: float
    """The mean of the baselines; the geometric mean if ratios are compared."""
    change: float
    """The candidate compared with the mean: as a share, or in `unit` if `is_share` is False."""
    is_share: bool
    worse: float
    """The same change, positive if the candidate is worse."""
    limit: float
    """How much worse the candidate may be before the measure fails."""
    detectable: float
    """How much worse a candidate must be to fail with a probability of 90 %."""
    spread: float
    """The standard deviation between runs that the test uses."""
    freedom: float
    p: float
    adjusted: float
    """p, corrected for the other measures of its group."""
    alpha: float
    """The limit of `adjusted`."""
    margin: float
    state: GateState
    notes: list[str] = field(default_factory=list)


@dataclass(frozen=True, slots=True)
class Check:
    """A condition that is checked without a statistical test."""

    name: str
    title: str
    state: GateState
    text: str


Judged = JudgedMeasure | Check | JudgedLimit


@dataclass(frozen=True, slots=True)
class GateReport:
    """The result of the gate, with its reasons."""

    state: GateState
    reason: str
    candidate: dict[str, Any]
    baselines: list[dict[str, Any]]
    goal: dict[str, Any]
    horizon: int
    alpha: float
    tests: list[JudgedMeasure]
    checks: list[Check]
    rules: list[JudgedLimit]
    missing: dict[str, str]
    notes: list[str]
    settings: dict[str, list[Any]]
    """Settings other than seeds in which the candidate differs from the first baseline: its value, the baseline's."""

    @property
    def failed(self) -> list[Judged]:
        """The measures, checks and limits that failed."""
        return _failed(self.tests, self.checks, self.rules)

    def to_dict(self) -> dict[str, Any]:
        """Plain data with stable keys."""
        return asdict(self)


@dataclass(frozen=True, slots=True)
class GateLimits:
    """The limits that a gate applies."""

    alpha: float = ALPHA
    rules: Sequence[GateRule] = ()
    margins: Mapping[str, float] = field(default_factory=dict)
    tested: bool = True
    """False: only the user's rules apply."""

    def __post_init__(self) -> None:
        if not 0 < self.alpha < 0.5:
            raise ConfigError(f"alpha is a probability above 0 and below 0.5, not {self.alpha:g}")
        unknown = [name for name in self.margins if name not in PRIORS]
        if unknown:
            raise ConfigError(f"there is no measure {unknown[0]!r} to set a margin for. Measures: {', '.join(PRIORS)}")
        if not self.tested and not self.rules:
            raise ConfigError("with the tests switched off there must be at least one rule")


def gate(
    candidate: RunView,
    baselines: Sequence[RunView],
    limits: GateLimits | None = None,
    *,
    metric: str | None = None,
    direction: BetterDirection | None = None,
) -> GateReport:
    """Judge a run against its baselines. Raises NotComparable if they cannot be compared."""
    limits = limits or GateLimits()
    if not baselines:
        raise NotComparable("there is no baseline to compare with")
    views = [candidate, *baselines]
    measured = measure_runs(views, metric, direction)
    tests = judge_measures(measured.measures, limits) if limits.tested else []
    checks = [_finished(candidate), _findings(candidate, baselines)] if limits.tested else []
    rules = judge_rules(limits.rules, candidate, baselines, measured)
    notes = [*measured.notes, *_remarks(candidate, baselines)]
    return GateReport(
        state="fail" if _failed(tests, checks, rules) else "pass",
        reason=_reason(tests, checks, rules, len(baselines)),
        candidate=_about(candidate),
        baselines=[_about(view) for view in baselines],
        goal={"metric": measured.goal.names[0], "title": measured.goal.title, "direction": measured.goal.direction},
        horizon=measured.horizon,
        alpha=limits.alpha,
        tests=tests,
        checks=checks,
        rules=rules,
        missing=measured.missing,
        notes=notes,
        settings={
            key: values for key, values in settings_apart([candidate, baselines[0]])[0].items() if not is_seed(key)
        },
    )


def open_runs(candidate: str | os.PathLike[str], baselines: Sequence[str]) -> tuple[RunView, list[RunView]]:
    """Open the candidate and the baselines. A baseline may be a folder of runs or logs. Raises what `open_any` raises,
    and ConfigError if there is no baseline.
    """
    place = one_place(Path(candidate), "the gate")
    places: dict[str, Path] = {}
    for given in baselines:
        for found in _expanded(given):
            if os.path.realpath(found) != os.path.realpath(place):
                places.setdefault(os.path.realpath(found), found)
    if not places:
        raise ConfigError(f"{', '.join(map(str, baselines))}: there is no baseline besides the candidate")
    if len(places) > MOST_BASELINES:
        raise ConfigError(f"{len(places)} baselines: at most {MOST_BASELINES} are compared with, and ten are plenty")
    return open_any(place), [open_any(found) for found in places.values()]


def _expanded(given: str) -> list[Path]:
    """The runs and logs at a path. In a folder, only those that can be read."""
    if "://" in given:
        return [Path(given)]
    places = places_in(given)
    if places is None:
        return [Path(given)]
    found = []
    for place in places:
        try:
            open_any(place)
        except RlvitalsError:
            continue
        found.append(place)
    if not found:
        raise ConfigError(f"{given} holds no run or log that can be read")
    return found


# The tests


def judge_measures(measures: Sequence[Measure], limits: GateLimits) -> list[JudgedMeasure]:
    """Test every measure. Each group gets its share of alpha."""
    present = {measure.group for measure in measures}
    whole = sum(SHARES.values())
    used = sum(SHARES[group] for group in present)
    found: list[JudgedMeasure] = []
    for group, share in SHARES.items():
        own = [measure for measure in measures if measure.group == group]
        if own:
            # The shares of absent groups go to the other groups. The share of the findings is not used.
            found += _tested_group(own, limits.alpha * whole * share / used, limits.margins)
    return found


def _tested_group(measures: Sequence[Measure], alpha: float, margins: Mapping[str, float]) -> list[JudgedMeasure]:
    compared = [_Compared(measure, margins.get(measure.name)) for measure in measures]
    adjusted = hommel([one.p for one in compared])
    return [one.tested(chance, alpha, len(measures)) for one, chance in zip(compared, adjusted, strict=True)]


class _Compared:
    """One measure of the candidate and the baselines, on the tested scale, where higher is worse."""

    def __init__(self, measure: Measure, margin: float | None) -> None:
        self.measure = measure
        prior = PRIORS[measure.name]
        self.margin = prior.margin if margin is None else margin
        candidate, *others = (_turned(measure, sample) for sample in (measure.candidate, *measure.baselines))
        values = [other.value for other in others]
        noise = math.sqrt(sum(other.noise * other.noise for other in others) / len(others))
        self.mean = sum(values) / len(values)
        self.spread = moderated(values, max(prior.factor * noise, prior.least), prior.worth)
        self.error = prediction_error(self.spread, len(others))
        self.worse = candidate.value - self.mean
        self.p = tail(self.worse / self.error, self.spread.freedom) if self.error > 0 else float(self.worse <= 0)

    def tested(self, adjusted: float, alpha: float, among: int) -> JudgedMeasure:
        """The verdict, with all numbers in the unit of the measure."""
        measure = self.measure
        beyond = quantile(1.0 - alpha / among, self.spread.freedom)
        worse = self._as_change(self.worse)
        return JudgedMeasure(
            name=measure.name,
            title=measure.title,
            group=measure.group,
            metric=measure.metric,
            unit=measure.unit,
            direction=measure.direction,
            candidate=measure.candidate.value,
            baselines=[sample.value for sample in measure.baselines],
            mean=self._back(self.mean),
            change=-worse if measure.direction == "up" else worse,
            is_share=measure.kind != "count",
            worse=worse,
            limit=max(self._as_change(beyond * self.error), self.margin),
            detectable=max(self._as_change((beyond + quantile(POWER, self.spread.freedom)) * self.error), self.margin),
            spread=self.spread.deviation,
            freedom=self.spread.freedom,
            p=self.p,
            adjusted=adjusted,
            alpha=alpha,
            margin=self.margin,
            state="fail" if adjusted <= alpha and worse > self.margin else "pass",
            notes=list(measure.notes),
        )

    def _back(self, value: float) -> float:
        """Convert a value from the tested scale to the measure's unit."""
        measure = self.measure
        if measure.kind == "count":
            return max(value * value - ANSCOMBE, 0.0)
        sign = -1.0 if measure.direction == "up" else 1.0
        return math.exp(sign * value) if measure.kind == "ratio" else sign * value * measure.scale

    def _as_change(self, worse: float) -> float:
        """How much worse: as a share, or as a number of events."""
        kind = self.measure.kind
        if kind == "share":
            return worse
        if kind == "count":
            return self._back(self.mean + worse) - self._back(self.mean)
        return 1.0 - math.exp(-worse) if self.measure.direction == "up" else math.expm1(min(worse, 700.0))


def _turned(measure: Measure, sample: MeasureSample) -> MeasureSample:
    """Convert a sample to the tested scale."""
    sign = -1.0 if measure.direction == "up" else 1.0
    if measure.kind == "count":  # the variance of a count's square root does not depend on the count
        return MeasureSample(math.sqrt(sample.value + ANSCOMBE), sample.noise)
    if measure.kind == "ratio":
        return MeasureSample(sign * math.log(sample.value), sample.noise)
    return MeasureSample(sign * sample.value / measure.scale, sample.noise / measure.scale)


# Conditions without a statistical test


def _finished(candidate: RunView) -> Check:
    status, note = candidate.status, candidate.status_note
    is_bad = status in ("failed", "interrupted")
    return Check("finished", "Training finished", "fail" if is_bad else "pass", f"{status}: {note}" if note else status)


def _findings(candidate: RunView, baselines: Sequence[RunView]) -> Check:
    """Critical findings that have not recovered and that no baseline has."""
    known = {finding.rule for view in baselines for finding in _critical(view)}
    new = [finding for finding in _critical(candidate) if finding.rule not in known]
    text = "; ".join(dict.fromkeys(finding.title for finding in new)) or "no critical finding that no baseline has"
    return Check("findings", "No new critical finding", "fail" if new else "pass", text)


def _critical(view: RunView) -> list[Finding]:
    found = diagnose(view).findings
    return [finding for finding in found if finding.severity == "critical" and is_standing(finding)]


def _remarks(candidate: RunView, baselines: Sequence[RunView]) -> list[str]:
    """Notes that limit how far the comparison can be trusted."""
    notes = []
    algorithms = {view.algorithm for view in (candidate, *baselines) if view.algorithm}
    if len(algorithms) > 1:
        notes.append(f"the runs are of different algorithms: {', '.join(sorted(algorithms))}")
    if len(baselines) == 1:
        notes.append(
            "with one baseline the spread between runs is unknown: the limits use the noise within it. Use 3 or more"
        )
    else:
        apart = [key for key in settings_apart(baselines)[0] if not is_seed(key)]
        if apart:
            notes.append(f"the baselines differ in settings other than their seed: {', '.join(apart[:5])}")
    if candidate.status == "running":
        notes.append("the candidate is still running: what it has logged so far is compared")
    return notes


def _about(view: RunView) -> dict[str, Any]:
    return {
        "name": view.name,
        "path": str(view.path),
        "status": view.status,
        "step": view.last_step,
        "algorithm": view.algorithm,
    }


def _failed(tests: Sequence[JudgedMeasure], checks: Sequence[Check], rules: Sequence[JudgedLimit]) -> list[Judged]:
    judged: list[Judged] = [*tests, *checks, *rules]
    return [one for one in judged if one.state == "fail"]


def _reason(
    tests: Sequence[JudgedMeasure], checks: Sequence[Check], rules: Sequence[JudgedLimit], baselines: int
) -> str:
    beside = plural(baselines, "baseline")
    kinds: dict[str, Sequence[Judged]] = {
        f"worse than {beside}": tests,
        "failed checks": checks,
        "limits not kept": rules,
    }
    failed = {kind: "; ".join(one.title for one in judged if one.state == "fail") for kind, judged in kinds.items()}
    if any(failed.values()):
        return " | ".join(f"{kind}: {titles}" for kind, titles in failed.items() if titles)
    if not tests:
        return f"all {len(rules)} limits are kept"
    best = min((one for one in tests if one.group == "outcome"), key=lambda one: one.detectable)
    return f"not worse than {beside}; a change for the worse of {best.detectable:.0%} would be found ({best.title})"
