"""The facts of one run: which logged name feeds which signal, the algorithm, the settings, the rows so far.

`naming` lists the possible meanings of a name. A signal that several names could feed takes the best one the run logs.
A name that was recognised only by its words is dropped if its first values contradict them.

A slice (`reward/env=math`) feeds a signal only where the run does not log the metric over all slices. Then the signal
is the mean over the slices. A single slice would hide a collapse in all others, and its level would depend on the
alphabetical order. How many samples each slice has is not known here, so all have the same weight. The slices of an
outcome also have their own series (`slices`), whether or not the whole is logged.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Literal, NamedTuple

from rlvitals import catalog
from rlvitals.catalog import Caveat, Sureness
from rlvitals.catalog.recognition import ENOUGH_VALUES
from rlvitals.catalog.slices import Round
from rlvitals.codec import NONFINITE, read_nonfinite
from rlvitals.guard import guarded
from rlvitals.health.naming import TRUST, Claim, Naming, SignalSource, Taken
from rlvitals.health.origins import Origins
from rlvitals.health.parts import Parts
from rlvitals.health.slices import Slices
from rlvitals.health.statistics import Signal
from rlvitals.health.trail import Trail
from rlvitals.records import RESERVED, OpenPhase
from rlvitals.values import is_number

__all__ = ["Case", "RuleFamily", "SignalSource", "Taken"]

RuleFamily = Literal["policy", "preference", "other"]
_FAMILIES: dict[str, RuleFamily] = {"online": "policy", "distillation": "policy", "preference": "preference"}
"""By kind of algorithm. For the other kinds, and for an unknown algorithm, the family is inferred from the signals."""

_IN_RATIOS = frozenset({"grad_norm", "kl"})
_OF_SAMPLES = ("zero_variance", "clip", "turns", "length", "truncated")
"""Signals that only a trainer that samples logs."""

_CORE = ("loss", "reward", "policy_loss", "margin")

BEYOND_PLAN = 1.1
"""A run beyond this share of its planned steps is treated as a run without a plan."""

MOST_NAMED = 8
"""The most slices that a finding names."""

_GROUP_SIZES = (
    "num_generations", "group_size", "n", "rollout_n", "n_samples_per_prompt", "num_generations_per_prompt",
)  # fmt: skip
_PAIRED = ("chosen", "reject", "margin")
"""Words in the names of a log of preference pairs."""


class FailedAttempt(NamedTuple):
    """An attempt in the same log that ended while a critical finding was active."""

    points: int
    """How many rows it had."""
    step: int
    """Its last step."""
    kind: str
    onset_step: int
    title: str


class _Increase:
    """Turns a count since the start into the increase since the previous value."""

    __slots__ = ("_before",)

    def __init__(self) -> None:
        self._before = math.nan

    def to_concept(self, value: float) -> float:
        """The increase; 0 for the first value and where the count restarted."""
        before, self._before = self._before, value
        return value - before if value >= before else 0.0


class _Reading:
    """How one logged key is read: into which signal, after which conversion."""

    __slots__ = ("caveat", "is_one_of_several", "is_plain", "rank", "round", "signal")

    def __init__(
        self,
        signal: Signal,
        rank: int,
        caveat: Caveat | _Increase | None = None,
        *,
        is_one_of_several: bool = False,
        round: Round | None = None,
    ) -> None:
        self.signal = signal
        self.rank = rank
        self.caveat = caveat
        self.is_one_of_several = is_one_of_several or round is not None
        """Whether other names of the row feed the signal as well; it takes their highest value, or their mean."""
        self.round = round
        self.is_plain = caveat is None and not self.is_one_of_several
        """Whether the signal takes the value unchanged, as nearly all do."""


class Case:
    """A run's facts and signals."""

    def __init__(  # noqa: PLR0915 - one statement for each fact
        self,
        sources: Iterable[SignalSource],
        *,
        algorithm: str | None = None,
        framework: str | None = None,
        total_steps: int | None = None,
        config: Mapping[str, Any] | None = None,
        mapping: Mapping[str, str] | None = None,
    ) -> None:
        self.algorithm = algorithm.lower() if algorithm else None
        self.framework = framework
        self.config: dict[str, Any] = dict(config or {})
        self._numbers: dict[tuple[str, ...], float | None] = {}
        self.total_steps = total_steps
        self.points = 0
        """Rows seen since the last (re)start."""
        self.step = 0
        self.first_step: int | None = None
        self.restarts = 0
        self.failed_attempt: FailedAttempt | None = None
        """The last attempt before this one that failed, until another has logged more rows than it."""
        self.backward_steps = 0
        """Rows whose step was lower than the previous row's."""
        self.duplicates = 0
        """Rows with a second value of a core series for the same step."""
        self._core: list[Signal] = []
        self._core_steps: dict[str, int] = {}
        self.timestamp = math.nan
        self.signals: dict[str, Signal] = {}
        self.nonfinite_others: dict[str, int] = {}
        self.kl_is_sum = False
        """Whether the KL is summed over a sequence's tokens instead of averaged."""
        self.reward_at_evals: list[float] = []
        """The reward's fast level at the last five evaluations."""
        self.kl_estimator = ""
        """The concept the KL is an estimate of, where the framework is known."""
        self.now = math.nan
        """The time, where `Monitor.tick` passes it."""
        self.noticed_at = math.nan
        """When the last row was noticed, for rows without a time."""
        self.open_phases: Sequence[OpenPhase] = ()
        """The phases the trainer is in, where `Monitor.tick` passes them."""
        self.lost_pid: int | None = None
        """The trainer's process id, where the process is known to be gone."""
        self.interval = Signal("interval", "timestamp")
        """Seconds between rows."""
        self.raised: dict[str, tuple[str, int]] = {}
        """Active alarms (rules, and rules about one slice): their severity and the point each began at."""
        self._given_algorithm, self._given_framework = self.algorithm is not None, framework is not None
        self._recogniser = catalog.recogniser()
        self._sources = {source.name: source for source in sources}
        self._asked = {source.key.casefold(): source.name for source in self._sources.values() if source.key}
        self._naming = Naming(self._sources.values(), mapping)
        self._taken: dict[tuple[str, str], Taken] = {}
        self._has_pairs = False
        self._trials: dict[str, list[float]] = {}  # the first values of names that were recognised only by their words
        self._parts, self.trail = Parts(), Trail()  # what adds up to the reward; the gap to the engine
        self._readings: dict[str, list[_Reading] | None] = {}
        self._feeding: dict[str, tuple[int, int, str]] = {}  # by signal: the place of the claim it is read by
        self._rounds: dict[str, Round] = {}  # by signal that is read from slices
        self.slices = Slices()
        """The slices of outcomes, which are judged one by one."""
        self.origins = Origins()
        """The failures that the run logs, and since when they are above their usual level."""
        self.changed = True
        """Whether signals or facts have changed since the rules were last bound to them."""
        self._read_as()

    def take(self, row: Mapping[str, Any]) -> None:
        """Read one row: pass each value to its signals."""
        step = self._take_place(row)
        points = self.points
        if points <= catalog.RECOGNISED_ROWS and not (self._given_algorithm and self._given_framework):
            self._recognise(row)
        if points <= 3:
            self._has_pairs = self._has_pairs or any(word in key.casefold() for key in row for word in _PAIRED)
        self._take_values(row, step)
        if self._trials:
            self._hear(row)
        if self.changed:
            self.trail.bind(self.signals)
        if self.trail.is_bound:
            self.trail.take(points, step)
        if not self._parts.is_decided:
            self._look_for_parts(row)
        if self.changed:
            self._core = [self.signals[name] for name in _CORE if name in self.signals]
            self.origins.bind(self.signals, points)
        self._count_duplicate(step)
        held_out = self.signals.get("eval_score")
        if held_out is not None and held_out.seen_at == points:
            reward = self.signals.get("reward")
            if reward is not None and reward.n:
                self.reward_at_evals = [*self.reward_at_evals[-4:], reward.fast]
        self.origins.take(points, step)
        marked = row.get(NONFINITE)
        if marked:
            self._take_marked(str(marked), step)

    def _count_duplicate(self, step: int) -> None:
        """Count the row if it has a second value of a core series for its step."""
        is_duplicate = False
        points, steps = self.points, self._core_steps
        for core in self._core:
            if core.seen_at == points:
                name = core.name
                is_duplicate = is_duplicate or steps.get(name) == step
                steps[name] = step
        self.duplicates += is_duplicate

    def _take_place(self, row: Mapping[str, Any]) -> int:
        """Read the row's step and time. A step back to the beginning is a restart."""
        step = row.get("step")
        if type(step) is not int:
            step = int(step) if isinstance(step, int | float) and math.isfinite(step) else self.step + 1
        if self.first_step is None:
            self.first_step = step
        elif step < self.step:
            self.backward_steps += 1
            if step <= self.first_step + 1 and self.points > 3:
                self.restart(step)
        self.step = step
        self.points += 1
        stamp = _number(row.get("timestamp"))
        if stamp is not None and math.isfinite(stamp):
            if stamp > self.timestamp:
                self.interval.update(stamp - self.timestamp, step)
            self.timestamp = stamp
        return step

    def _take_values(self, row: Mapping[str, Any], step: int) -> None:
        readings, points = self._readings, self.points
        highest: dict[Signal, tuple[int, float, str]] = {}
        rounds: dict[Signal, Round] = {}
        for key, value in row.items():
            targets = readings[key] if key in readings else self._resolve(key, value)
            if targets is None:
                if type(value) is float and value - value != 0.0 and not self._is_meaningless(key, value):
                    self.nonfinite_others[key] = self.nonfinite_others.get(key, 0) + 1
                continue
            if type(value) is not float:
                number = _number(value)
                if number is None:
                    continue
            else:
                number = value
            if number - number != 0.0:  # NaN and both infinities, for the cost of one subtraction
                self._take_nonfinite(key, number, targets, step)
                continue
            for reading in targets:
                signal = reading.signal
                if reading.is_plain:
                    signal.seen_at = points
                    signal.update(number, step)
                    continue
                meant = reading.caveat.to_concept(number) if reading.caveat is not None else number
                if reading.is_one_of_several:
                    if reading.round is not None:
                        reading.round.take(key, meant)
                        rounds[signal] = reading.round
                        continue
                    claim = (-reading.rank, meant, key)
                    if signal not in highest or claim > highest[signal]:
                        highest[signal] = claim
                    continue
                signal.seen_at = points
                signal.update(meant, step)
        for signal, (_, meant, key) in highest.items():
            signal.key = key
            signal.seen_at = points
            signal.update(meant, step)
        for signal, shared in rounds.items():
            is_still = self._rounds.get(signal.name) is shared  # the row may have had a better name after them
            if is_still and (mean := shared.mean()) is not None:
                signal.seen_at = points
                signal.update(mean, step)

    def _is_meaningless(self, key: str, value: float) -> bool:
        """Whether a non-finite value has no meaning, such as the mean of a slice without samples in this batch."""
        return key.startswith("_") or (math.isnan(value) and self.reader.cut(key) is not None)

    def restart(self, step: int) -> None:
        """Start again with the same names: the log holds a second run, which needs new baselines."""
        self.restarts += 1
        self.points = 0
        self.first_step = step
        self.raised.clear()
        self.origins.reset()
        self.nonfinite_others.clear()
        self.trail.reset()
        for shared in self._rounds.values():
            shared.clear()
        for signal in (*self.signals.values(), *self.parts.values(), *self.others.values(), *self.slices.signals):
            signal.reset()

    @property
    def names_seen(self) -> int:
        """How many logged names have been looked up so far."""
        return len(self._readings)

    @property
    def mapping(self) -> dict[str, str]:
        """The meanings of names that the user gave."""
        return self._naming.mapping

    @property
    def names(self) -> list[str]:
        """The logged names that came with a number."""
        return [key for key in self._readings if key not in RESERVED and not key.startswith("_")]

    @property
    def read_names(self) -> list[str]:
        """The logged names that feed a signal."""
        return [key for key, readings in self._readings.items() if readings]

    @property
    def family(self) -> RuleFamily:
        """Policy gradient, preference optimisation, or something else."""
        if self._family is not None:
            return self._family
        pairs = "margin" in self.signals or {"chosen", "rejected"} <= self.signals.keys()
        sampled = any(name in self.signals for name in _OF_SAMPLES)
        if pairs and not sampled:
            return "preference"
        if sampled or "reward" in self.signals or "kl" in self.signals:
            return "policy"
        return "other"

    @property
    def progress(self) -> float | None:
        """The share of the planned steps that is done. None without a plan, and for a run well beyond its plan: then
        the plan belongs to another training, or counts something else.
        """
        if not self.total_steps or self.first_step is None:
            return None
        done = self.step / self.total_steps
        return done if done <= BEYOND_PLAN else None

    @property
    def planned_points(self) -> float | None:
        """How many rows the whole run will have, estimated from its plan and the rows so far; None without a plan."""
        progress = self.progress
        return self.points / progress if progress and progress > 0 else None

    def number(self, *names: str) -> float | None:
        """A number of the run's settings: the first of these names that has one."""
        if names not in self._numbers:
            values = (self.config.get(name) for name in names)
            self._numbers[names] = next(
                (float(value) for value in values if is_number(value)),
                None,
            )
        return self._numbers[names]

    @property
    def group_size(self) -> float | None:
        """How many answers to one prompt are compared; None where the settings do not give it."""
        return self.number(*_GROUP_SIZES)

    @property
    def lowest_reward(self) -> float | None:
        """The lowest possible reward that the settings declare; None where they do not."""
        return self.number("reward_min", "min_reward")

    @property
    def highest_reward(self) -> float | None:
        """The highest possible reward that the settings declare; None where they do not."""
        return self.number("reward_max", "max_reward")

    def _read_as(self) -> None:
        """Read names according to the framework and algorithm known so far."""
        self.reader = catalog.reader(self.framework, self.algorithm)
        kind = self.reader.algorithm.kind if self.reader.algorithm else ""
        self._family = _FAMILIES.get(kind)

    def _recognise(self, row: Mapping[str, Any]) -> None:
        found = self._recogniser.take(row)
        if not self._given_framework and found.framework and found.framework != self.framework:
            self.framework = found.framework
            self.changed = True
            # Names that had no meaning without the framework may have one now.
            self._readings = {key: targets for key, targets in self._readings.items() if targets is not None}
        if not self._given_algorithm and found.algorithm != self.algorithm:
            self.algorithm = found.algorithm
            self.changed = True
        self._read_as()

    def _resolve(self, key: str, value: Any) -> list[_Reading] | None:
        """Decide which signals a new key feeds."""
        if key in RESERVED or key.startswith("_"):
            self._readings[key] = None
            return None
        if _number(value) is None:
            return None  # no number yet; it may have one in a later row
        number = _number(value)
        first = [] if number is None or not math.isfinite(number) else [number]
        claims = self._naming.claims(key, first, self.reader, pairs=self._has_pairs)
        readings = [reading for claim in claims if (reading := self._feed(key, claim))]
        of_slices = [claim for claim in claims or self._naming.verifier(key, self.reader) if claim.slice is not None]
        readings += [reading for claim in of_slices if (reading := self._slice(key, claim))]
        if readings and claims and claims[0].is_by_words:
            self._trials.setdefault(key, [])
        may_be_part = self.reader.cut(key) is None and all(_is_like_a_reward(claim) for claim in claims)
        if may_be_part and (part := self._part(key, is_free=not readings)):
            readings.append(_Reading(part, 0))
        # A user's rule reads the key in addition: a part of the reward stays a part.
        if name := self._asked.get(key.casefold()):
            asked = Claim(0, Taken(name, key, "", "given", "a rule asks for it"))
            if reading := self._feed(key, asked):
                readings.append(reading)
        self._readings[key] = readings or None
        return self._readings[key]

    def _feed(self, key: str, claim: Claim) -> _Reading | None:
        """Let a key feed a signal, unless a better one does already."""
        name, place = claim.taken.signal, claim.place
        feeding = self._feeding.get(name)
        takes_highest = self._sources[name].takes_highest
        if feeding is not None:
            signal = self.signals[name]
            if takes_highest and claim.rank == feeding[0]:
                return self._reading(key, claim, signal)
            # Names of one rank are taken in alphabetical order: the order within a row must not matter.
            is_joining = claim.slice is not None and feeding == place
            if (feeding <= place and not is_joining) or (signal.n > 3 and claim.rank >= 0):
                return None
            signal.reset()
            if is_joining:
                self._rounds[name].reopen()
            else:
                signal.key = key
                self._rounds.pop(name, None)
                self._let_go([signal])
        else:
            signal = self.signals[name] = Signal(name, key)
            signal.in_ratios = name in _IN_RATIOS
            signal.keeps_course = signal.keeps_course or bool(self._sources[name].key)
        self._feeding[name] = place
        self.changed = True
        return self._reading(key, claim, signal)

    def _slice(self, key: str, claim: Claim) -> _Reading | None:
        """Let a slice feed its own series, unless a better spelling does already. A label that names a metric is not a
        label: `eval/mean_reward` is not the score of a data set of that name.
        """
        labels = claim.slice.labels.values() if claim.slice is not None and "=" not in key else ()
        if any(catalog.vocabulary().recognise(label, [], pairs=False) is not None for label in labels):
            return None
        signal, over = self.slices.take(key, claim)
        if over:
            self._let_go(over)
        if signal is None:
            return None
        self.changed = True
        self._taken[signal.name, key] = claim.taken
        return _Reading(signal, claim.rank, claim.caveat)

    def _let_go(self, signals: list[Signal]) -> None:
        """Stop feeding these signals."""
        for fed, readings in self._readings.items():
            if readings:
                self._readings[fed] = [one for one in readings if one.signal not in signals] or None

    def _reading(self, key: str, claim: Claim, signal: Signal) -> _Reading:
        self._taken[claim.taken.signal, key] = claim.taken
        match = claim.match
        if claim.taken.signal == "kl" and match is not None:
            self.kl_is_sum = self.kl_is_sum or (match.caveat is not None and match.caveat.kind == "per_sequence")
            self.kl_estimator = match.metric.id if self.framework else ""
        if self._sources[claim.taken.signal].takes_highest:
            return _Reading(signal, claim.rank, claim.caveat, is_one_of_several=True)
        shared = self._rounds.setdefault(claim.taken.signal, Round()) if claim.slice is not None else None
        return _Reading(signal, claim.rank, _Increase() if claim.is_total else claim.caveat, round=shared)

    def _hear(self, row: Mapping[str, Any]) -> None:
        """Collect the first values of names on trial, and decide once there are enough."""
        for key, values in list(self._trials.items()):
            number = _number(row.get(key))
            if number is None or not math.isfinite(number):
                continue
            values.append(number)
            if len(values) == ENOUGH_VALUES:
                del self._trials[key]
                self._decide(key, values)

    def _decide(self, key: str, values: list[float]) -> None:
        """Keep the meaning of a name, or drop it where its values contradict it; others may then claim its signal."""
        readings = self._readings.get(key) or []
        claims = self._naming.claims(key, values, self.reader, pairs=self._has_pairs)
        self._naming.settle(key, values)
        by_signal = {claim.taken.signal: claim for claim in claims}
        refuted = [
            reading.signal.name for reading in readings
            if (reading.signal.name, key) in self._taken
            and (
                (claim := by_signal.get(reading.signal.name)) is None
                or (claim.caveat is None) != (reading.caveat is None)
            )
        ]  # fmt: skip
        for claim in claims:
            if (claim.taken.signal, key) in self._taken:
                self._taken[claim.taken.signal, key] = claim.taken
        if not refuted:
            return
        self.slices.forget(key)
        for name in refuted:
            self._taken.pop((name, key), None)
            if any(reading.signal is self.signals.get(name) for reading in readings):
                del self._feeding[name], self.signals[name]
                self._rounds.pop(name, None)
        self._readings = {name: read for name, read in self._readings.items() if read is not None and name != key}
        self.changed = True

    def _part(self, key: str, *, is_free: bool) -> Signal | None:
        """The series of a key that is named as a part of the reward and feeds nothing else. Other possible parts are
        noted: a key that is read as the reward may be a part of another one.
        """
        name = self._naming.part(key)
        if name is not None and is_free:
            self.changed = True
            return self._parts.add(key, name)
        if self._naming.may_be_part(key):
            self._parts.note(key)
        return None

    def _look_for_parts(self, row: Mapping[str, Any]) -> None:
        """Find the series that add up to the reward. Weights in the settings, one for each part, end the search."""
        reward = self.signals.get("reward")
        if reward is None or reward.seen_at != self.points or not (candidates := self._parts.candidates()):
            return
        weights = self.config.get("reward_weights")
        if isinstance(weights, list | tuple) and len(weights) == len(self.parts):
            self._parts.is_decided = True
            return
        numbers = {key: number for key in candidates if (number := _number(row.get(key))) is not None}
        for signal in self._parts.look(reward, {key: value for key, value in numbers.items() if math.isfinite(value)}):
            self._readings[signal.key] = [*(self._readings.get(signal.key) or []), _Reading(signal, 0)]
        self.changed = self.changed or self._parts.is_decided

    @property
    def parts(self) -> dict[str, Signal]:
        """The parts of the reward, by the name the run gives them: those that add up to it, or if none do, those that
        are named as parts.
        """
        return self._parts.series

    @property
    def part_weights(self) -> dict[str, float]:
        """The weight of each part, where they add up."""
        return self._parts.weights

    @property
    def others(self) -> dict[str, Signal]:
        """Scores beside the reward that are named as its parts and do not add to it."""
        return self._parts.beside

    @property
    def taken(self) -> list[Taken]:
        """Which name each signal is read from, and how sure that is."""
        return [
            taken for (name, key), taken in self._taken.items()
            if any(reading.signal is self.signals.get(name) for reading in self._readings.get(key) or ())
        ]  # fmt: skip

    def names_of(self, signal: Signal) -> tuple[str, ...]:
        """The logged names that a finding about a signal is about."""
        shared = self._rounds.get(signal.name)
        return tuple(list(shared.latest)[:MOST_NAMED]) if shared is not None else (signal.key,)

    def sureness(self, signal: Signal | None) -> Sureness:
        """How sure the reading of a signal is."""
        taken = self._taken.get((signal.name, signal.key)) if signal is not None else None
        return taken.sureness if taken is not None else "known"

    def trust(self, signal: Signal | None) -> float:
        """The same as a number to multiply a confidence with."""
        return TRUST[self.sureness(signal)]

    def doubt(self, signal: Signal | None) -> dict[str, str]:
        """The evidence that a finding adds where the series is a mean over slices, or where its meaning is a guess."""
        shared = self._rounds.get(signal.name) if signal is not None else None
        averaged = {"mean_of": f"{len(shared.latest)} slices"} if shared is not None and len(shared.latest) > 1 else {}
        if signal is None or self.sureness(signal) != "guess":
            return averaged
        return averaged | {
            "a_guess": f"{signal.key} was read as {signal.name}; --map {signal.key}=CONCEPT settles what it is"
        }

    def _take_nonfinite(self, key: str, value: float, targets: list[_Reading], step: int) -> None:
        if self._is_meaningless(key, value):
            return
        for reading in targets:
            reading.signal.seen_at = self.points
            reading.signal.update_nonfinite(step)
        self.nonfinite_others[key] = self.nonfinite_others.get(key, 0) + 1

    def _take_marked(self, marked: str, step: int) -> None:
        """Read non-finite values in the form of a run's own log: `loss=nan kl=inf`."""
        for key, value in read_nonfinite(marked).items():
            targets = self._readings[key] if key in self._readings else self._resolve(key, math.nan)
            self._take_nonfinite(key, value, targets or [], step)


def _is_like_a_reward(claim: Claim) -> bool:
    return claim.is_by_words and claim.taken.signal in ("reward", "true_score")


def _number(value: Any) -> float | None:
    """A logged value as a plain float, or None if it is not a number."""
    if isinstance(value, float):
        return float(value)
    if isinstance(value, bool | int):
        try:
            return float(value)
        except OverflowError:
            return math.inf if value > 0 else -math.inf
    if value is None or isinstance(value, str | bytes | list | tuple | dict):
        return None
    with guarded():  # a foreign object may raise anything; the rest of the row must be read
        number = getattr(value, "number", None)
        return float(number if isinstance(number, float | int) else value)
    return None
