"""Explains why engine and trainer disagree: ranks the possible causes by what a run logs about the gap.

A finding about the gap reports that the two disagree. This module ranks the causes. Each feature is one question that
the logs of many frameworks can answer (the course of the gap, whether it follows the age of the samples, how far off
the worst token is ...). Its answer is one of a few readings, and `data/likelihoods.json` holds how often each of the
six causes leads to each reading. A feature that a run does not log does not count. `data/causes.yaml` holds the texts.

The work is done when a finding is raised, from the run's signals and from `trail`: a row costs nothing here.
"""

from __future__ import annotations

import json
import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from itertools import pairwise
from pathlib import Path
from typing import Any, NamedTuple

from rlvitals.health.case import Case
from rlvitals.health.standstill import NO_GAP, squares_of
from rlvitals.health.statistics import Signal
from rlvitals.health.trail import TINY, Trail, of_kl
from rlvitals.health.wording import fill
from rlvitals.records import TokenGap
from rlvitals.values import median

KINDS = frozenset({"logprob_mismatch", "staleness", "ratio_off"})
"""Findings of these kinds are about the gap."""

PLACES = 40
"""About how many places are tried for the start of a growth."""

PACES = (0.05, 0.1, 0.2, 0.4, 0.8, 1.6, 3.2, 6.4, 12.8, 25.6, 51.2)
"""How much a growing gap adds at each block, in units of the gap before the growth."""

LEAST_POINTS = 4

_LIKELIHOODS = Path(__file__).parent / "data" / "likelihoods.json"


class GapCourse(NamedTuple):
    """The course of a gap: level from the start, one jump, or growing."""

    shape: str
    """`level`, `jump` or `grows`; empty where there are too few points."""
    onset: int | None = None
    """The step at which it changed."""
    times: float = 1.0
    """The factor by which it changed."""
    pace: float = 0.0
    """For a growing gap: what a row adds, in units of the level before."""


def course_of(gaps: Sequence[float], steps: Sequence[int], size: int = 1) -> GapCourse:
    """Which of three shapes fits best: a level, a jump, or a growth in proportion to the steps (or to their square
    root) on top of the gap before. The fit uses least squares of the logarithm, with Schwarz's penalty (BIC) for the
    two additional parameters.

    >>> course_of([1.0, 1.1, 0.9, 1.0, 1.1, 1.0], range(1, 7)).shape
    'level'
    >>> course_of([1.0, 1.1, 0.9, 5.0, 5.2, 4.9], range(1, 7))[:2]
    ('jump', 4)
    >>> course_of([0.01, 0.011, 0.02, 0.031, 0.039, 0.052], range(1, 7))[:2]
    ('grows', 3)
    """
    n = len(gaps)
    if n < LEAST_POINTS:
        return GapCourse("")
    logs = [math.log(max(gap, NO_GAP)) for gap in gaps]
    best = (_score(squares_of(logs), n, 1), GapCourse("level"))
    for at in range(2, n):
        before, after = logs[:at], logs[at:]
        times = math.exp(sum(after) / len(after) - sum(before) / len(before))
        if times > 1.0:
            score = _score(squares_of(before) + squares_of(after), n, 3)
            best = min(best, (score, GapCourse("jump", steps[at], times)), key=_by_score)
    coarse = max(1, n // PLACES)
    grown, pace, place = min(
        ((grown, pace, at) for pace in PACES for grown in _growths(n, pace) for at in range(0, n, coarse)),
        key=lambda tried: squares_of(_without(logs, tried[0], tried[2])),
    )
    near = range(max(0, place - coarse + 1), min(n, place + coarse))
    squares, place = min((squares_of(_without(logs, grown, at)), at) for at in near)
    found = GapCourse("grows", steps[place], math.exp(grown[n - place]), pace / size)
    return min(best, (_score(squares, n, 3), found), key=_by_score)[1]


def _by_score(pair: tuple[float, GapCourse]) -> float:
    return pair[0]


def _without(logs: Sequence[float], grown: Sequence[float], at: int) -> list[float]:
    """The logarithms of the gaps, without a growth that starts at this place."""
    return [*logs[:at], *(value - grown[after] for after, value in enumerate(logs[at:], 1))]


@cache
def _growths(n: int, pace: float) -> tuple[tuple[float, ...], tuple[float, ...]]:
    """The logarithm of the factor of a growing gap after each block. The added part is independent of the gap before,
    so the squares add up. A drift in one direction grows in proportion, a random one with the square root.
    """
    straight = tuple(0.5 * math.log1p((pace * after) ** 2) for after in range(n + 1))
    rooted = tuple(0.5 * math.log1p(pace * pace * after) for after in range(n + 1))
    return straight, rooted


ROUNDING = 0.02
"""The least scatter of the logarithm of a gap: a fit to a few points may be perfect by chance."""


def _score(squares: float, n: int, numbers: int) -> float:
    return n * math.log(squares / n + ROUNDING**2) + numbers * math.log(n)


def correlation(xs: Iterable[float], ys: Iterable[float]) -> float | None:
    """The correlation over the pairs that have both values; None where one does not vary or there are too few."""
    pairs = [(x, y) for x, y in zip(xs, ys, strict=True) if not math.isnan(x + y)]
    n = len(pairs)
    if n < 2 * LEAST_POINTS:
        return None
    mean_x, mean_y = sum(x for x, _ in pairs) / n, sum(y for _, y in pairs) / n
    xx, yy = sum((x - mean_x) ** 2 for x, _ in pairs), sum((y - mean_y) ** 2 for _, y in pairs)
    xy = sum((x - mean_x) * (y - mean_y) for x, y in pairs)
    return xy / math.sqrt(xx * yy) if xx > TINY * n and yy > 0 else None


class FeatureReading(NamedTuple):
    """The result of a feature: a number to be sorted into a reading, or the reading itself, and facts for the texts."""

    value: float | str
    facts: dict[str, float | str] = {}  # noqa: RUF012 - a tuple's default, never changed


class Evidence:
    """The features of a run's rows. Each public method is a feature; it returns None where the run does not log it."""

    def __init__(self, case: Case) -> None:
        self._case, self._trail = case, case.trail

    def _level(self, *names: str) -> float | None:
        """The median of the last five values of the first of these signals that is logged, in the signal's own unit."""
        for name in names:
            signal = self._case.signals.get(name)
            if signal is not None and signal.n and not self._is_another(signal):
                return signal.median5
        return None

    def _is_another(self, signal: Signal) -> bool:
        """Whether the logged values are differences of probabilities instead of log-probs, or another statistic."""
        found = self._case.reader.meaning(signal.key)
        return found is not None and found.caveat is not None and found.caveat.kind in ("space", "statistic")

    def _gap(self) -> float | None:
        """The typical gap in nats."""
        gap = self._level("mismatch_gap")
        if gap is not None:
            return gap or None
        kl = self._level("mismatch_kl")
        return of_kl(kl) if kl else None

    def went(self) -> FeatureReading | None:
        """The course of the gap."""
        return _went(self._trail)

    def age(self) -> FeatureReading | None:
        """Whether the gap follows the age of the samples."""
        ages = [age for age in self._trail.ages if not math.isnan(age)]
        if not ages:
            return FeatureReading("not_logged") if self._trail.gaps else None
        link = correlation(self._trail.ages, self._trail.gaps)
        rise = [later - earlier for earlier, later in pairwise(ages)][-LEAST_POINTS:]
        if (
            len(rise) == LEAST_POINTS
            and self._trail.size == 1
            and all(abs(each - 1.0) < _number("one_version") for each in rise)
        ):
            return FeatureReading("one_a_step", {"age": ages[-1]})
        lately = ages[-LEAST_POINTS:]
        if max(lately) < _number("just_written"):
            return FeatureReading("fresh", {"age": ages[-1]})
        old = ages[-1] > _number("old")
        if link is not None and link > _number("linked"):
            return FeatureReading("old_and_linked" if old else "linked", {"age": ages[-1], "link": link})
        return FeatureReading("old" if old else "young", {"age": ages[-1]})

    def rested(self) -> FeatureReading | None:
        """The gap at points with almost fresh samples, divided by the gap at points with the oldest samples."""
        known = [
            (age, gap)
            for age, gap in zip(self._trail.ages, self._trail.gaps, strict=False)
            if not math.isnan(age + gap)
        ]
        oldest = max((age for age, _ in known), default=0.0)
        young = [gap for age, gap in known if age < _number("fresh_age")]
        old = [gap for age, gap in known if age > oldest / 2]
        if oldest < _number("aged") or len(young) < _number("fresh_points") or len(old) < LEAST_POINTS:
            return None
        usual = median(old)
        return FeatureReading(median(young) / usual, {"fresh": median(young), "gap": usual}) if usual > 0 else None

    def fresh(self) -> FeatureReading | None:
        """The gap on tokens of the newest weights, divided by the gap on all tokens."""
        fresh, gap = self._level("sync_gap"), self._level("mismatch_gap")
        if fresh is None or not gap:
            return None
        signal = self._case.signals["sync_gap"]
        return (
            FeatureReading(fresh / gap, {"fresh": fresh, "gap": gap}) if signal.seen_at == self._case.points else None
        )

    def changed(self) -> FeatureReading | None:
        """How many weights a sync changes, divided by the number for the first syncs of the run."""
        signal = self._case.signals.get("sync_changed")
        if signal is None or not signal.n:
            return None
        usual = max(median(list(signal.head[1:] or signal.head)), signal.base)
        now = median(list(signal.window[-2:]))
        return FeatureReading(now / usual if usual > 0 else 0.0, {"now": now, "usual": usual})

    def verified(self) -> FeatureReading | None:
        """The share of weights that differ in a comparison after a sync."""
        level = self._level("sync_mismatch")
        return None if level is None else FeatureReading(level, {"share": level})

    def routes(self) -> FeatureReading | None:
        """How many experts are chosen differently, or how many routes have no record."""
        level = self._level("routing_mismatch", "replay_fallback")
        return None if level is None else FeatureReading(level, {"share": level})

    def experts(self) -> FeatureReading | None:
        """Whether the model is a mixture of experts."""
        logged = any(name in self._case.signals for name in _OF_EXPERTS)
        named = any("expert" in name.casefold() or "moe" in name.casefold() for name in self._case.config)
        return FeatureReading("yes" if logged or named else "none_seen")

    def worst(self) -> FeatureReading | None:
        """How far off the worst token is, in nats."""
        found = [
            level for level in (
                self._level("gap_max"),
                _log(self._level("weight_max")),
                _log(self._level("weight_min")),
                self._level("mismatch_kl_max"),
            ) if level is not None
        ]  # fmt: skip
        return FeatureReading(max(map(abs, found)), {"worst": max(map(abs, found))}) if found else None

    def spread(self) -> FeatureReading | None:
        """Whether few tokens make up the gap: the KL divided by the square of the mean gap."""
        gap, kl = self._level("mismatch_gap"), self._level("mismatch_kl")
        if not gap or kl is None:
            return None
        return FeatureReading(abs(kl) / (gap * gap), {"kl": kl, "gap": gap})

    def peak(self) -> FeatureReading | None:
        """The gap of the worst token divided by the typical gap."""
        gap, worst = self._gap(), self.worst()
        if not gap or worst is None:
            return None
        return FeatureReading(float(worst.value) / gap, {"worst": worst.value, "gap": gap})

    def burst(self) -> FeatureReading | None:
        """The mean error factor, which rare large gaps dominate, divided by the typical gap."""
        error, gap = self._level("mismatch_error"), self._gap()
        return FeatureReading((error - 1.0) / gap, {"error": error}) if error is not None and gap else None

    def side(self) -> FeatureReading | None:
        """Whether the gaps have one sign: k1 keeps the sign, the mean gap does not. A true KL is never below 0."""
        k1, gap = self._level("mismatch_k1"), self._level("mismatch_gap")
        k3 = self._level("mismatch_k3")
        if k1 is not None and gap:
            return FeatureReading(k1 / gap, {"k1": k1, "gap": gap})
        return FeatureReading(k1 / of_kl(k3), {"k1": k1, "gap": of_kl(k3)}) if k1 is not None and k3 else None

    def weight(self) -> FeatureReading | None:
        """The mean importance weight: 1 where the engine reports the log-probs that it samples from."""
        level, gap = self._level("mismatch_weight"), self._gap()
        return FeatureReading((level - 1.0) / gap, {"weight": level}) if level is not None and gap else None

    def skew(self) -> FeatureReading | None:
        """Whether the trainer gives rare tokens a higher probability: chi-square divided by the KL."""
        chi2, kl = self._level("mismatch_chi2"), self._level("mismatch_kl")
        return FeatureReading(chi2 / kl, {"chi2": chi2, "kl": kl}) if chi2 is not None and kl else None

    def bounded(self) -> FeatureReading | None:
        """The distance of weights from 1 divided by the gap: an impossible token counts 1, however far off it is."""
        away, gap = self._level("weight_deviation"), self._level("mismatch_gap")
        return FeatureReading(away / gap, {"away": away, "gap": gap}) if away is not None and gap else None

    def agreement(self) -> FeatureReading | None:
        """1 minus the correlation of the two probabilities, divided by the KL."""
        together, kl = self._level("prob_correlation"), self._level("mismatch_kl")
        return FeatureReading((1.0 - together) / kl, {"corr": together}) if together is not None and kl else None

    def extremes(self) -> FeatureReading | None:
        """The share of tokens beyond a factor of two, divided by the gap."""
        share, gap = self._level("extreme_ratios"), self._gap()
        return FeatureReading(share / gap, {"share": share}) if share is not None and gap else None

    def temperature(self) -> FeatureReading | None:
        """Whether the settings name a temperature other than 1."""
        set_to = self._case.number(*_TEMPERATURES)
        if set_to is None:
            return None
        return FeatureReading("one" if set_to == 1.0 else "other", {"temperature": set_to})

    def precision(self) -> FeatureReading | None:
        """Whether the settings name a low precision for the engine."""
        if not self._case.config:
            return None
        for name, value in self._case.config.items():
            is_about = any(word in name.casefold() for word in ("quant", "dtype", "precision"))
            if is_about and isinstance(value, str) and any(word in value.casefold() for word in _LOW):
                return FeatureReading("low", {"setting": f"{name}={value}"})
        return FeatureReading("none_named")

    def turns(self) -> FeatureReading | None:
        """Whether the model and its environment take turns."""
        turns = self._level("turns", "tool_calls")
        return None if turns is None else FeatureReading("several" if turns > 1.0 else "one", {"turns": turns})


_OF_EXPERTS = ("routing_mismatch", "replay_fallback", "expert_load", "expert_idle", "router_loss")
_TEMPERATURES = ("temperature", "rollout_temperature", "sampling_temperature")
_LOW = ("fp8", "float8", "int8", "int4", "fp4", "awq", "gptq", "e4m3", "e5m2", "w8a8")


def _went(trail: Trail) -> FeatureReading | None:
    known = [(gap, step) for gap, step in zip(trail.gaps, trail.steps, strict=False) if not math.isnan(gap)]
    course = course_of([gap for gap, _ in known], [step for _, step in known], trail.size)
    if not course.shape:
        return None
    facts: dict[str, float | str] = {"times": course.times}
    if course.onset is not None:
        facts["from"] = float(course.onset)
    is_slow = course.shape == "grows" and course.pace < _number("fast_growth")
    return FeatureReading("creeps" if is_slow else course.shape, facts)


def _log(value: float | None) -> float | None:
    return None if value is None else math.log(max(value, math.exp(-30.0)))


@dataclass(frozen=True, slots=True)
class Ranked:
    """One cause, its probability among the causes, and its evidence."""

    cause: str
    share: float
    """Its probability; those of all causes add up to 1."""
    reasons: tuple[str, ...]
    """The strongest first."""


@dataclass(frozen=True, slots=True)
class NamedCause:
    """The cause of a finding, and the texts about it."""

    cause: str
    causes: tuple[str, ...]
    advice: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class GapAnswer:
    """The explanation of a gap: all causes, the likeliest first."""

    ranked: tuple[Ranked, ...]
    cause: str
    """The likeliest one, if it is likely enough; else empty."""
    onset: int | None
    """Where the gap changed, if it was not there from the start."""

    def about(self, shown: str = "") -> NamedCause:
        """The texts of a finding: the likeliest causes with their evidence, and advice. A cause that the rule itself
        has shown (`shown`) comes first. Without a clear cause, the advice is what to log.
        """
        words = _words()
        ranked = sorted(self.ranked, key=lambda each: each.cause != shown)
        cause = shown or self.cause
        lines = []
        for number, each in enumerate(ranked[: int(_number("most_told"))]):
            if number and each.share < _number("told"):
                break
            why = f": {'; '.join(each.reasons)}" if each.reasons else ""
            how = "" if each.cause == shown else f" ({each.share:.0%} likely)"
            lines.append(f"{words['causes'][each.cause]['says']}{how}{why}")
        return NamedCause(cause, tuple(lines), tuple(words["causes"][cause]["advice"] if cause else words["unclear"]))


class TokenEvidence:
    """The features of a step's recorded tokens. Each public method is a feature."""

    def __init__(self, gap: TokenGap, trail: Trail) -> None:
        self._seen, self._trail = gap, trail

    def went(self) -> FeatureReading | None:
        """The course of the gap over the recorded steps."""
        return _went(self._trail)

    def experts(self) -> FeatureReading | None:
        """Always `none_seen`: tokens do not show experts, because other causes also leave a few tokens far off."""
        return FeatureReading("none_seen")

    def tokens_scaled(self) -> FeatureReading | None:
        """Whether the gap is proportional to the log-prob, which a temperature causes."""
        seen = self._seen
        if seen.scaling is None or seen.slope is None:
            return None
        return FeatureReading(abs(seen.scaling), {"link": seen.scaling, "slope": seen.slope})

    def tokens_worst(self) -> FeatureReading | None:
        """How far off the worst token is."""
        return FeatureReading(self._seen.worst, {"worst": self._seen.worst})

    def tokens_few(self) -> FeatureReading | None:
        """The share of the gap in one hundredth of the tokens."""
        return FeatureReading(self._seen.in_few, {"share": self._seen.in_few})

    def tokens_at_edges(self) -> FeatureReading | None:
        """The share of the far-off tokens that are the first or last token of a turn."""
        share = self._seen.at_edges
        return None if share is None else FeatureReading(share, {"share": share})

    def tokens_side(self) -> FeatureReading | None:
        """Whether the gaps have one sign."""
        seen = self._seen
        return FeatureReading(seen.k1 / seen.mean, {"k1": seen.k1, "gap": seen.mean}) if seen.mean else None

    def tokens_fresh(self) -> FeatureReading | None:
        """The gap on tokens of the newest weights, divided by the gap on older ones."""
        share = self._seen.fresh
        return None if share is None else FeatureReading(share, {"share": share})

    def tokens_age(self) -> FeatureReading | None:
        """How old the tokens are."""
        age = self._seen.age
        return None if age is None else FeatureReading(age, {"age": age})

    def tokens_later(self) -> FeatureReading | None:
        """Whether the gap grows along a rollout."""
        ratio = self._seen.later
        return None if ratio is None else FeatureReading(ratio, {"times": ratio})


FEATURES, TOKEN_FEATURES = (
    tuple(name for name, value in vars(each).items() if callable(value) and not name.startswith("_"))
    for each in (Evidence, TokenEvidence)
)
"""The public methods of `Evidence` and of `TokenEvidence`."""

Readings = dict[str, tuple[str, FeatureReading]]
"""By feature: the reading, and what was seen."""


def readings(case: Case) -> Readings:
    """The readings of the rows so far."""
    return _read(Evidence(case), FEATURES)


def token_readings(gap: TokenGap, trail: Trail) -> Readings:
    """The readings of a step's tokens; `trail` also has the gaps of the steps before it."""
    return _read(TokenEvidence(gap, trail), TOKEN_FEATURES)


def _read(evidence: Evidence | TokenEvidence, names: Iterable[str]) -> Readings:
    found: Readings = {}
    features = _words()["features"]
    for name in names:
        seen = getattr(evidence, name)()
        if seen is None or (isinstance(seen.value, float) and math.isnan(seen.value)):
            continue
        if isinstance(seen.value, str):
            found[name] = seen.value, seen
        else:
            at = sum(seen.value >= edge for edge in features[name]["edges"])
            found[name] = list(features[name]["readings"])[at], seen
    return found


def explain(found: Readings) -> GapAnswer | None:
    """Rank the causes of the gap by these readings; None without any."""
    if not found:
        return None
    words = _words()
    table = likelihoods()
    causes = list(words["causes"])
    weights: dict[str, dict[str, float]] = {}
    for feature, (reading, _) in found.items():
        chances = table.get(feature, {}).get(reading)
        if chances:
            middle = sum(math.log(chances[cause]) for cause in causes) / len(causes)
            weights[feature] = {cause: math.log(chances[cause]) - middle for cause in causes}
    trust = _number("trust")
    scores = {cause: trust * sum(each[cause] for each in weights.values()) for cause in causes}
    for feature, (reading, _) in found.items():
        if cause := words["features"][feature].get("rules_out", {}).get(reading):
            scores[cause] = -math.inf
    top = max(scores.values())
    total = sum(math.exp(score - top) for score in scores.values())
    ranked = []
    for cause in sorted(causes, key=lambda each: -scores[each]):
        supporting = sorted((each[cause], name) for name, each in weights.items() if each[cause] > _number("speaks"))
        reasons = (
            fill(words["features"][feature]["readings"][found[feature][0]], found[feature][1].facts)
            for _, feature in supporting[::-1][: int(_number("most_reasons"))]
        )
        ranked.append(Ranked(cause, math.exp(scores[cause] - top) / total, tuple(reasons)))
    first = ranked[0]
    course = found.get("went")
    onset = course[1].facts.get("from") if course else None
    named = first.cause if first.share >= _number("named") else ""
    return GapAnswer(tuple(ranked), named, int(onset) if isinstance(onset, float) else None)


@cache
def _words() -> dict[str, Any]:
    from rlvitals.health import rulebook

    found: dict[str, Any] = rulebook.causes()
    return found


def _number(name: str) -> float:
    return float(_words()["numbers"][name])


@cache
def likelihoods() -> Mapping[str, Mapping[str, Mapping[str, float]]]:
    """By feature and reading: how often each cause leads to it. `benchmarks/causes.py --fit` writes the table."""
    found: dict[str, dict[str, dict[str, float]]] = json.loads(_LIKELIHOODS.read_bytes())["likelihoods"]
    return found
