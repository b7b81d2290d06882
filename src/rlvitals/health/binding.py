"""Ties rules to the signals a run logs, and says of the others what they lack.

A rule's function names what it reads: each positional parameter is a signal (`Signal | None` where it can do without),
or `case` for the run's facts; each keyword-only one is a number of its entry in the rulebook.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable
from dataclasses import dataclass
from functools import cache, partial
from typing import NamedTuple

from rlvitals.errors import RuleError, did_you_mean
from rlvitals.health import conditions
from rlvitals.health.alarm import Alarm
from rlvitals.health.case import Case, SignalSource
from rlvitals.health.rulebook import Rule, Rulebook
from rlvitals.health.rules import FUNCTIONS, ON_TICK
from rlvitals.health.statistics import Signal


class Missing(NamedTuple):
    """A rule that cannot run, and the signals it lacks."""

    rule: str
    kind: str
    metrics: tuple[str, ...]


@dataclass(slots=True)
class Bound:
    """One rule, ready to look."""

    rule: Rule
    judge: Callable[[], Alarm | None]
    signals: tuple[Signal, ...]
    on_tick: bool
    warm_up: int

    def is_due(self, points: int) -> bool:
        """Whether this row brought one of its signals something, and its first one is warmed up."""
        signals = self.signals
        if not signals:
            return points >= self.warm_up
        if signals[0].n < self.warm_up and not signals[0].nonfinite:
            return False
        for signal in signals:
            if signal.seen_at == points:
                return True
        return False


class _Parameters(NamedTuple):
    signals: tuple[tuple[str, bool], ...]
    """Names in order; True where the rule can do without."""
    numbers: frozenset[str]


@cache
def _parameters(function: str) -> _Parameters:
    signals, numbers = [], set()
    for name, parameter in inspect.signature(FUNCTIONS[function]).parameters.items():
        if parameter.kind is parameter.KEYWORD_ONLY:
            numbers.add(name)
        else:
            signals.append((name, "None" in str(parameter.annotation)))
    return _Parameters(tuple(signals), frozenset(numbers))


def needs(rule: Rule) -> list[str]:
    """The signals a rule cannot do without."""
    if rule.when:
        return [term.signal for term in conditions.parse(rule.when, rule.where)]
    return [name for name, optional in _parameters(rule.function).signals if not optional and name != "case"]


def check(rule: Rule, book: Rulebook) -> None:
    """Raise RuleError where a rule's data and its function disagree."""
    if rule.when:
        conditions.parse(rule.when, rule.where)
        return
    if rule.function not in FUNCTIONS:
        raise RuleError(
            f"{rule.where}: no rule function is called {rule.function!r}.{did_you_mean(rule.function, FUNCTIONS)}"
        )
    expected = _parameters(rule.function).numbers
    if missing := expected - rule.numbers.keys():
        raise RuleError(f"{rule.where}: the numbers {', '.join(sorted(missing))} are missing")
    if unknown := rule.numbers.keys() - expected:
        raise RuleError(f"{rule.where}: {', '.join(sorted(unknown))} are no numbers of {rule.function}")


def bind(book: Rulebook, case: Case) -> tuple[list[Bound], list[Missing]]:
    """The rules that can run on this case, and what the others are missing."""
    bound, missing = [], []
    for rule in book.rules.values():
        if not rule.enabled or not _is_for(rule, case):
            continue
        lacking = tuple(name for name in needs(rule) if name not in case.signals)
        if lacking:
            missing.append(Missing(rule.rule, rule.kind, lacking))
            continue
        bound.append(_bound(rule, case))
    return bound, missing


def _bound(rule: Rule, case: Case) -> Bound:
    if rule.when:
        terms = conditions.parse(rule.when, rule.where)
        signals = tuple(case.signals[term.signal] for term in terms)
        return Bound(rule, partial(conditions.judge, terms, rule.severity, signals), signals, False, rule.warm_up)
    parameters = _parameters(rule.function)
    arguments = [case if name == "case" else case.signals.get(name) for name, _ in parameters.signals]
    read = tuple(value for value in arguments if isinstance(value, Signal))
    judge = partial(FUNCTIONS[rule.function], *arguments, **rule.numbers)
    return Bound(rule, judge, read, rule.function in ON_TICK, rule.warm_up)


def _is_for(rule: Rule, case: Case) -> bool:
    if rule.algorithms and case.algorithm not in rule.algorithms:
        return False
    return not rule.families or case.family in rule.families


def with_own_signals(book: Rulebook) -> Rulebook:
    """Add what rules without code read beyond the known signals: concepts and logged names of the user's choice."""
    known = book.signal_names
    added = []
    for rule in book.rules.values():
        if rule.when:
            for term in conditions.parse(rule.when, rule.where):
                if term.signal not in known:
                    known.add(term.signal)
                    added.append(SignalSource(term.signal, (term.signal,), key=term.signal))
    return Rulebook(book.rules.values(), (*book.sources, *added)) if added else book
