"""Recomputes a step's statistics from recorded tokens and compares them with the logged numbers.

If the tokens of all rollouts of the update were recorded, every number must agree up to rounding. If only some rollouts
were recorded, two checks remain: none of their tokens may exceed a logged extreme, and a logged mean must be within the
sampling error of their mean. If numbers differ, known faults of trainers are tried one after the other. The result
names the fault that reproduces the logged numbers.

The definitions are those of `policy.stats`. A logged number agrees if any possible definition of its name reproduces
it: this module looks for wrong numbers, not for other conventions.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, NamedTuple

import numpy as np

from rlvitals import catalog
from rlvitals.compute import policy
from rlvitals.compute.advantage import group_relative
from rlvitals.compute.arrays import Array
from rlvitals.compute.token_gap import token_gap
from rlvitals.records import TRAINED_ROLLOUTS, Difference, Group, Recheck, RecheckCause, Rollout, TokenTrace
from rlvitals.values import Value

MOST_TOKENS = 200_000
"""Tokens of a step that are checked. Rollouts beyond this limit are ignored, and the step counts as partly recorded."""

PRECISION = 2.0**-8
"""Tolerance relative to the typical size of the averaged numbers: losses are computed in bfloat16 at worst."""

ROUNDING = 2e-5
"""Absolute tolerance, for two numbers of five decimals."""

LEAST_ROLLOUTS = 16
"""Rollouts needed to check a mean."""

MOST_ERRORS = 8.0
"""Standard errors allowed between a logged mean and that of the recorded rollouts: samples are small, and their errors
are not normal."""

SCALE_ROOM = 0.02
"""A loss counts as scaled by a whole factor if it is within this relative distance."""

OPPOSITE = -0.99
"""The sign of the advantages is wrong if their correlation with the rewards within groups is at most this."""

SUM_NORM = "seq-mean-token-sum-norm"
MODES = ("token-mean", "seq-mean-token-mean", SUM_NORM)

_MODE_NAMES = {
    "grpo": "seq-mean-token-mean", "bnpo": "token-mean", "dapo": "token-mean", "dr_grpo": SUM_NORM,
    **{mode: mode for mode in MODES},
}  # fmt: skip
"""Aggregation modes by the names that trainers use."""

_LOSSES = ("policy.loss", "train.loss")
_MEANS_OF_FEW = (*_LOSSES, "entropy.mean", "policy.logp.mean")
"""Means without heavy tails, which a sample would miss."""

_EXTREMES = {
    "policy.ratio.max", "policy.ratio.min", "entropy.max", "entropy.min", "mismatch.logp_abs_diff.max",
    "mismatch.prob_abs_diff.max", "mismatch.is_weight.max", "mismatch.is_weight.min",
}  # fmt: skip

_SAME = {
    metric: metrics
    for metrics in (
        ("kl_ref.k1", "kl_ref.k2", "kl_ref.k3"),
        ("policy.kl_old.k1", "policy.kl_old.k2", "policy.kl_old.k3"),
        ("mismatch.kl.k1", "mismatch.kl.k2", "mismatch.kl.k3"),
        ("policy.clip_fraction", "policy.ratio_outside"),
        ("policy.clip_fraction.upper", "policy.ratio_outside.upper"),
        ("policy.clip_fraction.lower", "policy.ratio_outside.lower"),
    )
    for metric in metrics
}
"""Metrics that frameworks log under the same name."""

_COMPARED = {
    *_LOSSES, *_SAME, *_EXTREMES, "policy.ratio.mean", "entropy.mean", "policy.logp.mean",
    "mismatch.logp_abs_diff.mean", "mismatch.prob_abs_diff.mean",
}  # fmt: skip

_OF_THE_GAP = "mismatch."


@dataclass(frozen=True, slots=True)
class LossSettings:
    """How the trainer computes its loss, as far as its settings are known."""

    modes: tuple[str, ...] = MODES
    """The aggregation modes that it may use."""
    clip_low: float | None = None
    clip_high: float | None = None
    dual_clip: float | None = None
    kl_coef: float | None = None
    entropy_coef: float | None = None
    horizon: float | None = None
    """The divisor of sums."""
    passes: int = 1
    """Passes over each batch."""
    microbatch_size: int | None = None
    counts: dict[str, int] = field(default_factory=dict)
    """Numbers by which a loss may be multiplied or divided in error."""

    @staticmethod
    def of(config: Mapping[str, Any]) -> LossSettings:
        """Read a trainer's settings, keyed by the last part of their names."""

        def number(*names: str) -> float | None:
            found = (config.get(name) for name in names)
            numbers = (value for value in found if isinstance(value, int | float) and not isinstance(value, bool))
            return next(map(float, numbers), None)

        both = number("clip_ratio", "epsilon", "cliprange", "clip_range", "eps_clip")
        low = number("clip_low", "clip_ratio_low", "epsilon_low")
        high = number("clip_high", "clip_ratio_high", "epsilon_high")
        named = (config.get(name) for name in ("aggregation", "loss_agg_mode", "loss_type"))
        mode = next((_MODE_NAMES[name] for name in named if isinstance(name, str) and name in _MODE_NAMES), None)
        size = number("microbatch_size", "per_device_train_batch_size", "ppo_micro_batch_size_per_gpu")
        counted = {
            "steps of gradient accumulation": number("gradient_accumulation_steps"),
            "processes": number("world_size", "num_processes"),
            "rollouts of a group": number("rollouts_per_group", "num_generations"),
        }
        return LossSettings(
            modes=(mode,) if mode else MODES,
            clip_low=both if low is None else low,
            clip_high=both if high is None else high,
            dual_clip=number("dual_clip", "clip_ratio_c"),
            kl_coef=number("kl_coef", "kl_loss_coef", "beta"),
            entropy_coef=number("entropy_coef", "entropy_coeff"),
            horizon=number("max_context", "max_completion_length", "max_response_length"),
            passes=int(number("grpo_epochs", "ppo_epochs", "num_iterations") or 1),
            microbatch_size=int(size) if size and size >= 1 else None,
            counts={what: int(count) for what, count in counted.items() if count is not None},
        )


def recheck(
    groups: Sequence[Group],
    logged: Mapping[str, float],
    *,
    config: Mapping[str, Any] | None = None,
    framework: str | None = None,
    algorithm: str | None = None,
) -> Recheck | None:
    """Compare a step's row with its recorded tokens; None if there is nothing to compare. `config` holds the trainer's
    settings, keyed by the last part of their names.
    """
    settings = LossSettings.of(config or {})
    rollouts = list(_traced(groups))
    if not rollouts:
        return None
    step = groups[0].step
    wrong_sign = _opposite_advantages(groups)
    tokens = _Tokens.of([trace for _, trace in rollouts], settings)
    trained_count = next((group.meta.get(TRAINED_ROLLOUTS) for group in groups if TRAINED_ROLLOUTS in group.meta), None)
    is_whole = trained_count == len(rollouts)
    row = _concepts(logged, framework, algorithm)
    compared = _whole(tokens, row) if is_whole else [*_beyond(tokens, row), *_means_apart(tokens, row)]
    names = tuple(pair.entry.name for pair in compared)
    apart = [pair for pair in compared if not pair.agrees]
    gap = token_gap(groups)
    if wrong_sign is not None:
        found = (wrong_sign, *(pair.difference for pair in apart))
        return Recheck(step, len(rollouts), ("advantage", *names), is_whole, found, "advantage_sign", gap=gap)
    if not names and gap is None:
        return None
    checked = Recheck(step, len(rollouts), names, is_whole, tuple(pair.difference for pair in apart), gap=gap)
    return replace(checked, **_explained(tokens, apart, rollouts, is_whole)) if apart else checked


class _Entry(NamedTuple):
    """A logged number that can be recomputed from tokens."""

    name: str
    metric: str
    number: float
    """In the sign and scale of the metric."""
    logged: float


class _Pair(NamedTuple):
    entry: _Entry
    recomputed: float
    """By the definition of the logged metric."""
    agrees: bool
    off: float = 0.0
    """Distance to the nearest definition."""

    @property
    def difference(self) -> Difference:
        scale = self.entry.logged / self.entry.number if self.entry.number else 1.0
        return Difference(self.entry.name, self.entry.logged, self.recomputed * scale)


def _concepts(logged: Mapping[str, float], framework: str | None, algorithm: str | None) -> list[_Entry]:
    """The logged numbers that can be recomputed from tokens."""
    reader = catalog.reader(framework, algorithm, logged)
    found = []
    for name, number in logged.items():
        match = reader.meaning(name)
        if match is None or match.metric.id not in _COMPARED or not math.isfinite(number):
            continue
        caveat = match.caveat
        if caveat is None or caveat.kind == "scope":
            found.append(_Entry(name, match.metric.id, number, number))
        elif caveat.is_convertible and caveat.factor is not None:
            found.append(_Entry(name, match.metric.id, caveat.to_concept(number), number))
    return found


def _traced(groups: Iterable[Group]) -> Iterator[tuple[Rollout, TokenTrace]]:
    """The rollouts with trained tokens and log-probs, up to `MOST_TOKENS`."""
    left = MOST_TOKENS
    for group in groups:
        for rollout in group.rollouts:
            trace = rollout.trace
            if group.kept is False or trace is None or not any(trace.trained):
                continue
            if not (trace.new_logprobs or trace.logprobs):
                continue
            left -= len(trace.trained)
            if left < 0:
                return
            yield rollout, trace


@dataclass(frozen=True, slots=True)
class _Tokens:
    """Traces as arrays [rollouts, tokens]; a column is None if any trace lacks it."""

    settings: LossSettings
    lengths: Array
    mask: Array
    logprobs: Array
    """Log-probs of the update; None if the trainer makes several passes over a batch."""
    old: Array
    engine: Array
    reference: Array
    entropies: Array
    advantages: Array

    @staticmethod
    def of(traces: Sequence[TokenTrace], settings: LossSettings) -> _Tokens:
        width = max(len(trace.trained) for trace in traces)

        def column(name: str) -> Array:
            lists = [getattr(trace, name) for trace in traces]
            if not all(lists):
                return None
            filled = np.zeros((len(lists), width))
            for line, numbers in zip(filled, lists, strict=True):
                line[: len(numbers)] = numbers
            return filled

        new, old = column("new_logprobs"), column("logprobs")
        return _Tokens(
            settings=settings,
            lengths=np.array([len(trace.trained) for trace in traces]),
            mask=column("trained"),
            logprobs=new if settings.passes == 1 else None,
            old=new if old is None else old,
            engine=column("engine_logprobs"),
            reference=column("reference_logprobs"),
            entropies=column("entropies"),
            advantages=column("advantages"),
        )

    def take(self, places: Array) -> _Tokens:
        """Some of the rollouts."""

        def part(column: Array) -> Array:
            return None if column is None else column[places]

        return replace(
            self, lengths=part(self.lengths), mask=part(self.mask), logprobs=part(self.logprobs),
            old=part(self.old), engine=part(self.engine),
            reference=part(self.reference), entropies=part(self.entropies), advantages=part(self.advantages),
        )  # fmt: skip

    def shifted(self, by: int, *, is_padding_used: bool) -> _Tokens:
        """The tokens with the mask shifted. At the end of a rollout the mask then covers a position that was not
        recorded: padding, whose log-probs are 0, or no token.
        """
        lengths = self.lengths
        beyond = np.arange(self.mask.shape[1] + 1) >= lengths[:, None]

        def wider(column: Array) -> Array:
            return None if column is None else np.pad(column, ((0, 0), (0, 1)))

        mask = np.roll(wider(self.mask), by, axis=1)
        if by < 0:
            mask[:, -1] = 0.0
        if not is_padding_used:
            mask[beyond] = 0.0
        advantages = wider(self.advantages)
        if advantages is not None:  # usually all tokens of a row have the same advantage
            last = np.take_along_axis(advantages, np.maximum(lengths - 1, 0)[:, None], axis=1)
            advantages = np.where(beyond, last, advantages)
        return replace(
            self, mask=mask, advantages=advantages, logprobs=wider(self.logprobs), old=wider(self.old),
            engine=wider(self.engine), reference=wider(self.reference), entropies=wider(self.entropies),
        )  # fmt: skip

    def opposed(self) -> _Tokens:
        """The tokens with the signs of the advantages reversed."""
        return replace(self, advantages=None if self.advantages is None else -self.advantages)

    def stats(self) -> dict[str, list[Value]]:
        """The values of each metric, one for each aggregation mode that may apply."""
        found: dict[str, list[Value]] = {}
        for mode in self.settings.modes:
            if mode == SUM_NORM and self.settings.horizon is None:
                continue  # the divisor is not known
            for metric, value in self._stats(mode).items():
                found.setdefault(metric, []).append(value)
        if "token-mean" not in self.settings.modes:  # the usual mode for all metrics except the loss
            for metric, value in self._stats("token-mean").items():
                if metric not in _LOSSES:
                    found.setdefault(metric, []).append(value)
        return found

    def _stats(self, mode: str) -> dict[str, Value]:
        settings = self.settings
        if self.logprobs is None:
            if self.engine is None:
                return {}
            of_gap = policy.stats(logprobs=self.old, rollout_logprobs=self.engine, mask=self.mask)
            return {name: value for name, value in _values(of_gap).items() if name.startswith(_OF_THE_GAP)}
        low, high = settings.clip_low, settings.clip_high
        has_clip = low is not None and high is not None
        has_kl = settings.kl_coef is not None and self.reference is not None
        has_bonus = settings.entropy_coef is not None and self.entropies is not None
        rows = len(self.mask)
        stats = policy.stats(
            logprobs=self.logprobs, old_logprobs=self.old, ref_logprobs=self.reference,
            rollout_logprobs=self.engine, advantages=self.advantages, mask=self.mask, entropy=self.entropies,
            clip_low=0.2 if low is None else low, clip_high=0.2 if high is None else high,
            dual_clip=settings.dual_clip, aggregation=mode,
            horizon=(settings.horizon or self.mask.shape[1]) * rows,
            kl_coef=settings.kl_coef if has_kl else None,
            entropy_coef=settings.entropy_coef if has_bonus else None,
        )  # fmt: skip
        found = _values(stats)
        if self.advantages is not None and "train.loss" not in found and not settings.kl_coef:
            found["train.loss"] = found["policy.loss"]
        if not has_clip:  # without the bounds, numbers that depend on them are unknown, unless nothing is clipped
            is_clipped = found["policy.ratio_outside"].max > 0
            found = {
                name: value
                for name, value in found.items()
                if "clip" not in name and "outside" not in name and not (is_clipped and name in _LOSSES)
            }
        return found


def _values(stats: Mapping[str, Any]) -> dict[str, Value]:
    """The statistics that are a `Value` (a mean or an extreme), without derived ones."""
    return {name: value for name, value in stats.items() if isinstance(value, Value)}


Stats = Mapping[str, Sequence[Value]]


def _whole(tokens: _Tokens, row: Sequence[_Entry]) -> list[_Pair]:
    """Compare every number. All rollouts were recorded, so each must agree."""
    stats = tokens.stats()
    return [pair for entry in row if (pair := _nearest(entry, stats, len(tokens.mask))) is not None]


def _nearest(entry: _Entry, stats: Stats, rollouts: int) -> _Pair | None:
    """A logged number and the nearest recomputed one; None if there is none."""
    known = [
        (metric, value, number)
        for metric in dict.fromkeys((entry.metric, *_SAME.get(entry.metric, ())))
        for value in stats.get(metric, ())
        if (number := value.number) is not None and math.isfinite(number)
    ]
    if not known:
        return None
    agrees = any(abs(entry.number - number) <= _tolerance(value, rollouts) for _, value, number in known)
    off = min(abs(entry.number - number) for _, _, number in known)
    own = [number for metric, _, number in known if metric == known[0][0]]
    return _Pair(entry, min(own, key=lambda number: abs(number - entry.number)), agrees, off)


def _tolerance(value: Value, rollouts: int) -> float:
    """The rounding error allowed for a number. The averaged numbers may cancel in a mean, but their rounding errors do
    not: at worst these have the same sign within a rollout.
    """
    number = abs(value.number or 0.0)
    spread = math.sqrt(max(value.m2, 0.0) / value.count) if value.kind in ("mean", "sum") and value.count else 0.0
    size = math.hypot(value.mean, spread) * (value.count if value.kind == "sum" else 1.0) if spread else 0.0
    return ROUNDING + PRECISION * (number + 2.0 * size / math.sqrt(max(rollouts, 1)))


def _beyond(tokens: _Tokens, row: Sequence[_Entry]) -> Iterator[_Pair]:
    """Compare extremes: no part of the tokens can exceed the extreme of all of them."""
    stats = tokens.stats()
    for entry in row:
        if entry.metric in _EXTREMES and entry.metric in stats:
            value = stats[entry.metric][0]
            number = value.number
            if number is not None and math.isfinite(number):
                over = number - entry.number if entry.metric.endswith("max") else entry.number - number
                yield _Pair(entry, number, over <= _tolerance(value, len(tokens.mask)))


def _means_apart(tokens: _Tokens, row: Sequence[_Entry]) -> Iterator[_Pair]:
    """Compare means: those of the recorded rollouts may differ from the logged ones by some standard errors."""
    count = len(tokens.mask)
    if count < LEAST_ROLLOUTS:
        return
    whole = tokens.stats()
    each = [tokens.take([place]).stats() for place in range(count)]
    for entry in row:
        if entry.metric not in _MEANS_OF_FEW or not whole.get(entry.metric):
            continue
        pairs = []
        for way, value in enumerate(whole[entry.metric]):
            parts = [of_one[entry.metric][way] for of_one in each]
            if value.kind != "mean" or value.number is None:
                continue
            off = [part.count * (part.mean - value.mean) for part in parts]
            error = math.sqrt(count / (count - 1) * sum(x * x for x in off)) / value.count
            is_near = abs(entry.number - value.mean) <= _tolerance(value, count) + MOST_ERRORS * error
            pairs.append(_Pair(entry, value.mean, is_near))
        if pairs:
            yield next((pair for pair in pairs if pair.agrees), pairs[0])


class _Fault(NamedTuple):
    """A fault that reproduces the logged numbers, and the remaining difference."""

    residual: float
    cause: RecheckCause
    facts: dict[str, float | str]


def _explained(
    tokens: _Tokens, apart: Sequence[_Pair], rollouts: Sequence[tuple[Rollout, TokenTrace]], is_whole: bool
) -> dict[str, Any]:
    """The fault that reproduces the logged numbers; if there are several, the one that fits best."""
    faults = list(_scaled(tokens, apart))
    entries = [pair.entry for pair in apart]
    if is_whole:
        faults += _misused(tokens, entries)
        if not faults or min(faults).residual > ROUNDING:  # there are many ways to split a batch
            faults += _cut(tokens, entries, rollouts)
    if not faults:
        return {}
    best = min(faults)
    return {"cause": best.cause, "facts": best.facts}


def _misused(tokens: _Tokens, entries: Sequence[_Entry]) -> Iterator[_Fault]:
    """Faults in the use of tokens: reversed advantages and a shifted mask."""
    count = len(tokens.mask)
    if all(entry.metric in _LOSSES for entry in entries) and tokens.advantages is not None:
        yield from _fitting(tokens.opposed().stats(), entries, count, "advantage_sign")
    for by in (1, -1):
        for is_padding_used in (True, False) if by > 0 else (False,):
            moved = tokens.shifted(by, is_padding_used=is_padding_used)
            yield from _fitting(moved.stats(), entries, count, "mask_shift", shift=by)


def _cut(
    tokens: _Tokens, entries: Sequence[_Entry], rollouts: Sequence[tuple[Rollout, TokenTrace]]
) -> Iterator[_Fault]:
    """Faults of weighting: all micro-batches have the same weight, whatever their number of tokens."""
    count = len(tokens.mask)
    for size, parts in _microbatches(tokens, rollouts):
        stats = _mean_of_means([tokens.take(part).stats() for part in parts])
        yield from _fitting(
            stats, entries, count, "microbatch_weighting", microbatches=len(parts), microbatch_size=size
        )


def _fitting(
    stats: Stats, entries: Sequence[_Entry], rollouts: int, cause: RecheckCause, **facts: float | str
) -> Iterator[_Fault]:
    pairs = [_nearest(entry, stats, rollouts) for entry in entries]
    if all(pair is not None and pair.agrees for pair in pairs):
        yield _Fault(max(pair.off for pair in pairs if pair), cause, facts)


def _scaled(tokens: _Tokens, apart: Sequence[_Pair]) -> Iterator[_Fault]:
    """Fault of scale: only losses differ, all by the same whole factor."""
    if any(pair.entry.metric not in _LOSSES or not pair.recomputed for pair in apart):
        return
    factor = apart[0].entry.number / apart[0].recomputed
    near = round(factor if abs(factor) >= 1 else 1 / factor)
    if near < 2:
        return
    whole = near if abs(factor) >= 1 else 1 / near
    off = [pair.entry.number - whole * pair.recomputed for pair in apart]
    if any(abs(each) > SCALE_ROOM * abs(pair.entry.number) for each, pair in zip(off, apart, strict=True)):
        return
    counts = {
        **tokens.settings.counts,
        "rollouts of the step": len(tokens.mask),
        "trained tokens of the step": int(tokens.mask.sum()),
    }
    what = next((what for what, count in counts.items() if count == near), "")
    facts: dict[str, float | str] = {"factor": whole, **({"count_of": what} if what else {})}
    yield _Fault(max(map(abs, off)), "loss_scale", facts)


def _microbatches(tokens: _Tokens, rollouts: Sequence[tuple[Rollout, TokenTrace]]) -> Iterator[tuple[int, list[Array]]]:
    """Ways in which the update may have been split into micro-batches: as recorded, by the setting, or evenly in the
    order of the rollouts.
    """
    recorded = [rollout.meta.get("microbatch") for rollout, _ in rollouts]
    if all(type(number) is int for number in recorded):
        numbers = np.array(recorded)
        parts = [np.flatnonzero(numbers == number) for number in sorted(set(numbers.tolist()))]
        if len(parts) > 1:
            yield max(map(len, parts)), parts
        return
    count = len(tokens.mask)
    sizes = [size for size in range(1, count) if count % size == 0]
    if tokens.settings.microbatch_size:
        sizes = list(dict.fromkeys([tokens.settings.microbatch_size, *sizes]))
    for size in sizes:
        if size < count:
            yield size, [np.arange(start, min(start + size, count)) for start in range(0, count, size)]


def _mean_of_means(parts: Sequence[Stats]) -> Stats:
    """The mean over parts with equal weights, whatever their sizes. Counts and spreads are kept for the tolerance."""
    found: dict[str, list[Value]] = {}
    for metric, ways in parts[0].items():
        for way, first in enumerate(ways):
            values = [part[metric][way] for part in parts if metric in part and len(part[metric]) > way]
            numbers = [number for value in values if (number := value.number) is not None]
            if first.kind in ("mean", "max", "min") and len(numbers) == len(parts):
                mean = sum(numbers) / len(numbers)
                m2 = sum(value.m2 + value.count * (value.mean - mean) ** 2 for value in values)
                count = sum(value.count for value in values)
                found.setdefault(metric, []).append(Value(count, mean, m2, mean, mean, "mean"))
    return found


def _opposite_advantages(groups: Iterable[Group]) -> Difference | None:
    """An example of an advantage with the wrong sign and its correct value, if advantages fall as rewards rise."""
    seen = 0
    first = None
    for group in groups:
        pairs = [
            (rollout.reward, number)
            for rollout in group.rollouts
            if rollout.reward is not None and (number := _advantage(rollout)) is not None
        ]
        rewards, given = np.array(pairs).reshape(-1, 2).T
        if len(pairs) < 2 or not np.isfinite(rewards).all() or np.ptp(rewards) == 0 or np.ptp(given) == 0:
            continue
        if np.corrcoef(rewards, given)[0, 1] > OPPOSITE:
            return None
        seen += len(pairs)
        if first is None:
            right = group_relative(rewards, [0] * len(rewards))
            at = int(np.argmax(np.abs(given)))
            first = Difference("advantage", float(given[at]), float(right[at]))
    return first if seen >= 4 else None  # two pairs always correlate perfectly


def _advantage(rollout: Rollout) -> float | None:
    """The advantage of the rollout's trained tokens if they all have the same, else the rollout's recorded one."""
    trace = rollout.trace
    if trace is not None and trace.advantages:
        used = {number for number, is_used in zip(trace.advantages, trace.trained, strict=False) if is_used}
        if len(used) == 1:
            return used.pop()
    return rollout.advantage
