"""Binds rules to the signals a run logs, and lists the signals that the other rules lack.

A rule's function names what it reads. Each positional parameter is a signal (`Signal | None` where it is optional),
`case` for the run's facts, or `one_slice` for one slice at a time. Each keyword-only one is a number of its entry in
the rulebook. An entry's `reads` replaces a function's signal by another metric.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from types import FunctionType
from typing import NamedTuple

from rlvitals import catalog
from rlvitals.health import conditions, entries
from rlvitals.health.alarm import Alarm
from rlvitals.health.case import Case
from rlvitals.health.rulebook import Rule, Rulebook
from rlvitals.health.rules import FUNCTIONS, ON_TICK
from rlvitals.health.slices import Slice
from rlvitals.health.statistics import Signal
from rlvitals.records import alarm_of


class Missing(NamedTuple):
    """A rule that cannot run, and the signals it lacks."""

    rule: str
    kind: str
    metrics: tuple[str, ...]


@dataclass(slots=True)
class Bound:
    """One rule, bound to its signals."""

    rule: Rule
    judge: Callable[[], Alarm | None]
    signals: tuple[Signal, ...]
    on_tick: bool
    warm_up: int
    slice: str = ""
    """The slice it looks at, for a rule about slices."""

    @property
    def alarm(self) -> str:
        """The same as `Finding.alarm`."""
        return alarm_of(self.rule.rule, self.slice)

    def is_due(self, points: int) -> bool:
        """Whether this row has a value of one of its signals, and the first signal has enough points."""
        signals = self.signals
        if not signals:
            return points >= self.warm_up
        first = signals[0]
        if (
            first.n < self.warm_up
            and not first.nonfinite
            and not (2 * first.n >= self.warm_up and self.is_sparse(points))
        ):
            return False
        for signal in signals:  # noqa: SIM110 - any() with a generator costs three times as much, and this runs per row
            if signal.seen_at == points:
                return True
        return False

    def is_sparse(self, points: int) -> bool:
        """Whether fewer than a third of the rows have its first signal (evaluations), so it cannot wait as long."""
        return bool(self.signals) and 3 * self.signals[0].n < points


def needs(rule: Rule) -> list[str]:
    """The signals that a rule requires."""
    if rule.when:
        return [term.signal for term in conditions.parse(rule.when, rule.where)]
    asked = entries.parameters(rule.function).signals
    return [rule.reads.get(name, name) for name, optional in asked if not optional and name not in entries.NO_SIGNALS]


def is_about_tokens(rule: Rule) -> bool:
    """Whether a rule looks at a step's recorded tokens (`rechecks`), not at rows."""
    return not rule.when and ("recheck", False) in entries.parameters(rule.function).signals


def is_about_slices(rule: Rule) -> bool:
    """Whether a rule looks at one slice at a time."""
    return not rule.when and ("one_slice", False) in entries.parameters(rule.function).signals


def is_about_texts(rule: Rule) -> bool:
    """Whether a rule looks at a pattern in the texts of rollouts (`texts`), not at rows."""
    return not rule.when and ("scanned", False) in entries.parameters(rule.function).signals


def check(rule: Rule, book: Rulebook) -> None:
    """Raise RuleError where a rule's data and its function disagree. It is for a rule that was made in code;
    `rulebook.load` checks the rules that it reads.
    """
    entries.check(rule, entries.EntryPlace(rule.where or f"the rule {rule.rule}"), book.signal_names)


def bind(book: Rulebook, case: Case) -> tuple[list[Bound], list[Missing]]:
    """The rules that can run on this case, and the others with the signals they lack."""
    bound, missing = [], []
    for rule in book.rules.values():
        if not rule.enabled or not _is_for(rule, case) or is_about_tokens(rule) or is_about_texts(rule):
            continue
        lacking = tuple(name for name in needs(rule) if name not in case.signals)
        if lacking:
            missing.append(Missing(rule.rule, rule.kind, lacking))
            continue
        if is_about_slices(rule):
            bound += [_bound(rule, case, one) for one in case.slices.judged]
        else:
            bound.append(_bound(rule, case))
    return bound, missing


def _bound(rule: Rule, case: Case, one_slice: Slice | None = None) -> Bound:
    if rule.when:
        terms = conditions.parse(rule.when, rule.where)
        signals = tuple(case.signals[term.signal] for term in terms)
        return Bound(rule, partial(conditions.judge, terms, rule.severity, signals), signals, False, rule.warm_up)
    asked = entries.parameters(rule.function).signals
    besides = {"case": case, "one_slice": one_slice}
    arguments = [
        besides[name] if name in besides else case.signals.get(rule.reads.get(name, name)) for name, _ in asked
    ]
    read = tuple(value for value in arguments if isinstance(value, Signal))
    judge = _ready(FUNCTIONS[rule.function], arguments, rule.numbers)
    if one_slice is not None:  # due when the slice has a value, not the whole
        return Bound(rule, judge, (one_slice.signal,), False, rule.warm_up, one_slice.label)
    return Bound(rule, judge, read, rule.function in ON_TICK, rule.warm_up)


def _ready(
    function: FunctionType, arguments: Sequence[Case | Signal | Slice | None], numbers: Mapping[str, float]
) -> Callable[[], Alarm | None]:
    """A copy of the function with all its arguments as defaults. A partial would have to place a dozen numbers on every
    call.
    """
    ready = FunctionType(function.__code__, function.__globals__, function.__name__, tuple(arguments))
    ready.__kwdefaults__ = dict(numbers)
    return ready


def _is_for(rule: Rule, case: Case) -> bool:
    if rule.algorithms and case.algorithm not in rule.algorithms:
        own = catalog.algorithm(case.algorithm)
        if own is None or own not in map(catalog.algorithm, rule.algorithms):
            return False
    return not rule.families or case.family in rule.families
