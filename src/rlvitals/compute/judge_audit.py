"""Audits a judge against a held-out set: errors with intervals, flips between orders, length bias, self-agreement and
drift.

An item is one answer with a gold label, or one pair with a gold preference. Several verdicts on an item are
repetitions: its error is their mean error, and intervals count items, not verdicts.

>>> found = audit([HeldAnswer(True, (True, True)), HeldAnswer(False, (True, False)), HeldAnswer(False, (False,))])
>>> found.false_positives.share, found.false_negatives.share, round(found.self_agreement.share, 3)
(0.25, 0.0, 0.5)
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

from rlvitals import values
from rlvitals.compute import judging
from rlvitals.compute.association import Gain, Trend, sign_test, two_sided
from rlvitals.compute.rollout import interval
from rlvitals.values import Value

MOST_BINS = 8
"""Drift is reported for at most this many parts of a run."""


@dataclass(frozen=True, slots=True)
class HeldAnswer:
    """One answer of a held-out set."""

    gold: bool
    verdicts: tuple[bool | None, ...]
    """The judge's verdicts, one or several; None is a reply without a verdict."""
    length: float | None = None
    step: int | None = None


@dataclass(frozen=True, slots=True)
class HeldPair:
    """One pair of answers; preferences are `a`, `b`, `tie`, or None for a reply without one."""

    gold: str | None
    """The better answer. If None, the pair is not used for errors."""
    preferred: tuple[str | None, ...]
    """Preferences with a shown first."""
    swapped: tuple[str | None, ...] = ()
    """Preferences with b shown first, in terms of the same a and b."""
    lengths: tuple[float, float] | None = None
    step: int | None = None


@dataclass(frozen=True, slots=True)
class ShareEstimate:
    """A share of items with Wilson's 95 % interval."""

    share: float | None
    low: float | None
    high: float | None
    count: int


@dataclass(frozen=True, slots=True)
class Bias:
    """Whether the judge depends on a property that should not matter."""

    size: float | None
    """For answers: the factor by which accepted ones are longer than rejected ones of the same gold label. For pairs:
    the share of errors that favour the longer answer. For positions: how often the first answer is preferred."""
    p: float | None
    """The probability of at least this size by chance."""
    count: int
    test: str
    """The name of the test."""


@dataclass(frozen=True, slots=True)
class Slope:
    """Whether a share of errors rises (z above 0) or falls over the steps."""

    p: float | None
    """None if the share does not change at all."""
    z: float


@dataclass(frozen=True, slots=True)
class Drift:
    """How the judge changes over a run."""

    all_errors: Slope
    false_positives: Slope
    false_negatives: Slope
    bins: list[DriftBin] = field(default_factory=list)


@dataclass(frozen=True, slots=True)
class DriftBin:
    """A range of consecutive steps."""

    first_step: int
    last_step: int
    errors: ShareEstimate
    accepted: ShareEstimate


@dataclass(frozen=True, slots=True)
class Audit:
    """The results of an audit. Shares that the held-out set cannot determine are None."""

    kind: str
    """`answers` or `pairs`."""
    items: int
    verdicts: int
    unread: ShareEstimate
    """Replies without a verdict."""
    agreement: ShareEstimate
    """Verdicts that match the gold label."""
    kappa: float | None
    """Cohen's kappa: agreement beyond chance, given the label frequencies."""
    false_positives: ShareEstimate
    """The share of wrong answers that are accepted."""
    false_negatives: ShareEstimate
    """The share of right answers that are rejected."""
    flips: ShareEstimate
    """The share of pairs shown in both orders whose preference changes."""
    position: Bias
    length: Bias
    self_agreement: ShareEstimate
    """How often two verdicts on the same item and order agree."""
    drift: Drift | None
    """None if the items have no steps."""


NONE = ShareEstimate(None, None, None, 0)


def estimate(shares: Iterable[float]) -> ShareEstimate:
    """The mean of numbers from 0 to 1, one for each item, with Wilson's interval.

    >>> found = estimate([1, 1, 1, 1, 1, 1, 1, 0, 0, 0])
    >>> found.share, round(found.low, 3), round(found.high, 3)
    (0.7, 0.397, 0.892)
    """
    return _estimate(values.mean(list(shares)))


def _estimate(share: Value) -> ShareEstimate:
    ends = interval(share)
    return NONE if ends is None else ShareEstimate(share.mean, *ends, int(share.count))


def audit(held: Sequence[HeldAnswer]) -> Audit:
    """Audit a judge on a held-out set of answers."""
    flat = [(verdict, item.gold) for item in held for verdict in item.verdicts]
    read = [(item, [verdict for verdict in item.verdicts if verdict is not None]) for item in held]
    read = [(item, verdicts) for item, verdicts in read if verdicts]
    errors = [(item, sum(verdict != item.gold for verdict in verdicts) / len(verdicts)) for item, verdicts in read]
    return Audit(
        kind="answers",
        items=len(held),
        verdicts=len(flat),
        unread=estimate([sum(v is None for v in item.verdicts) / len(item.verdicts) for item in held if item.verdicts]),
        agreement=estimate([1 - error for _, error in errors]),
        kappa=kappa(Counter((verdict, gold) for verdict, gold in flat if verdict is not None)),
        false_positives=estimate([error for item, error in errors if not item.gold]),
        false_negatives=estimate([error for item, error in errors if item.gold]),
        flips=NONE,
        position=Bias(None, None, 0, "sign test"),
        length=_length_of_answers(read),
        self_agreement=estimate([_agreeing(verdicts) for _, verdicts in read if len(verdicts) > 1]),
        drift=_drift([
            _Placed(item.step, error, sum(verdicts) / len(verdicts), item.gold)
            for (item, error), (_, verdicts) in zip(errors, read, strict=True)
        ]),
    )  # fmt: skip


def audit_pairs(held: Sequence[HeldPair]) -> Audit:
    """Audit a judge on a held-out set of pairs. Pairs whose gold preference is a tie are not used for errors."""
    verdicts = [[one for one in (*pair.preferred, *pair.swapped) if one is not None] for pair in held]
    judged = [(pair, [one for one in each if one is not None]) for pair, each in zip(held, verdicts, strict=True)]
    decided = [(pair, each) for pair, each in judged if pair.gold in ("a", "b") and each]
    errors = [(pair, sum(one != pair.gold for one in each) / len(each)) for pair, each in decided]
    both = [(pair.preferred[0], pair.swapped[0]) for pair in held if pair.preferred and pair.swapped]
    orders = judging.stats(preferred=[one for one, _ in both], preferred_swapped=[other for _, other in both])
    firsts = orders["judge.first_position_share"]
    # A pair decided the same way in both orders has one verdict for each position: only flips show a position bias.
    leaning = [(one == "a" and other == "b", one == "b" and other == "a") for one, other in both]
    to_first, to_second = sum(first for first, _ in leaning), sum(second for _, second in leaning)
    repeated = [one for pair in held for one in (_read(pair.preferred), _read(pair.swapped)) if len(one) > 1]
    return Audit(
        kind="pairs",
        items=len(held),
        verdicts=sum(len(pair.preferred) + len(pair.swapped) for pair in held),
        unread=estimate([
            1 - len(each) / (len(pair.preferred) + len(pair.swapped))
            for pair, each in zip(held, verdicts, strict=True)
            if pair.preferred or pair.swapped
        ]),
        agreement=estimate([1 - error for _, error in errors]),
        kappa=kappa(Counter((one, str(pair.gold)) for pair, each in decided for one in each)),
        false_positives=NONE,
        false_negatives=NONE,
        flips=_estimate(orders["judge.order_flip_fraction"]),
        position=Bias(
            firsts.mean if firsts.count else None,
            sign_test(to_first, to_second) if firsts.count else None,
            to_first + to_second,
            "sign test over flipped pairs",
        ),
        length=_length_of_pairs(judged),
        self_agreement=estimate([_agreeing(one) for one in repeated]),
        drift=_drift([
            _Placed(pair.step, error, sum(one == "a" for one in each) / len(each), None)
            for (pair, error), (_, each) in zip(errors, decided, strict=True)
        ]),
    )  # fmt: skip


def _read(verdicts: Sequence[str | None]) -> list[str]:
    return [one for one in verdicts if one is not None]


def _agreeing(verdicts: Sequence[object]) -> float:
    """The share of pairs of verdicts that agree.

    >>> _agreeing([True, True, False])
    0.3333333333333333
    """
    n = len(verdicts)
    same = sum(one == other for place, one in enumerate(verdicts) for other in verdicts[place + 1 :])
    return same / (n * (n - 1) / 2)


def kappa(pairs: Mapping[tuple[object, object], int]) -> float | None:
    """Cohen's kappa of two sources of labels, from the number of each pair; None if only one label occurs.

    >>> round(kappa({(1, 1): 20, (1, 0): 5, (0, 1): 10, (0, 0): 15}), 2), kappa({(1, 1): 7})
    (0.4, None)
    """
    own, other, agreed = Counter[object](), Counter[object](), 0
    for (one, two), count in pairs.items():
        own[one] += count
        other[two] += count
        agreed += count * (one == two)
    square = own.total() ** 2
    chance = sum(own[label] * other[label] for label in own)
    return None if chance == square else (agreed * own.total() - chance) / (square - chance)


def _length_of_answers(read: Sequence[tuple[HeldAnswer, list[bool]]]) -> Bias:
    """Whether accepted answers are longer than rejected ones of the same gold label. A permutation test on the
    logarithms of the lengths within each label. The majority of an item's verdicts counts.
    """
    gain, count = Gain(), 0
    for gold in (True, False):
        rows = [
            (math.log(item.length), sum(verdicts) * 2 > len(verdicts))
            for item, verdicts in read
            if item.gold == gold and item.length is not None and item.length > 0
        ]
        count += len(rows)
        gain.add([size for size, _ in rows], [accepted for _, accepted in rows])
    test = "stratified permutation test"
    if gain.difference is None:
        return Bias(None, None, count, test)
    return Bias(math.exp(gain.difference), two_sided(gain.z), count, test)


def _length_of_pairs(judged: Sequence[tuple[HeldPair, list[str]]]) -> Bias:
    """Whether errors favour the longer answer; without gold preferences, whether the longer one is preferred. A sign
    test over pairs, using the majority of each pair's verdicts.
    """
    longer = shorter = 0
    for pair, verdicts in judged:
        if pair.lengths is None or pair.lengths[0] == pair.lengths[1] or pair.gold == "tie":
            continue
        votes = verdicts.count("a") - verdicts.count("b")
        chosen = "a" if votes > 0 else "b" if votes < 0 else ""
        if not chosen or chosen == pair.gold:
            continue
        if (chosen == "a") == (pair.lengths[0] > pair.lengths[1]):
            longer += 1
        else:
            shorter += 1
    count = longer + shorter
    return Bias(longer / count if count else None, sign_test(longer, shorter) if count else None, count, "sign test")


class _Placed(NamedTuple):
    """An item of a run: its step, its share of wrong verdicts, its share of accepting verdicts and its gold label."""

    step: int | None
    error: float
    accepted: float
    gold: bool | None


def _drift(rows: Sequence[_Placed]) -> Drift | None:
    """Errors over the steps, by the Cochran-Armitage test. An item is wrong if most of its verdicts are wrong."""
    placed = [(row.step, row) for row in rows if row.step is not None]
    if not placed:
        return None
    steps = sorted({step for step, _ in placed})
    size = math.ceil(len(steps) / MOST_BINS)
    bins = []
    for start in range(0, len(steps), size):
        first, last = steps[start], steps[min(start + size, len(steps)) - 1]
        inside = [row for step, row in placed if first <= step <= last]
        bins.append(
            DriftBin(first, last, estimate(row.error for row in inside), estimate(row.accepted for row in inside))
        )
    return Drift(
        all_errors=_trend(placed),
        false_positives=_trend([item for item in placed if item[1].gold is False]),
        false_negatives=_trend([item for item in placed if item[1].gold is True]),
        bins=bins,
    )


def _trend(placed: Sequence[tuple[int, _Placed]]) -> Slope:
    trend = Trend()
    for step, row in placed:
        trend.add(step, marked=int(row.error > 1 / 2), count=1)
    return Slope(two_sided(trend.z) if trend.z else None, trend.z)
