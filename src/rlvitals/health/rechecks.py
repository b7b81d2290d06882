"""Runs the rules about recorded tokens: each comparison of a step may raise alarms or end them.

`compute.recomputation` makes the comparison. The same comparisons in the same order lead to the same events, during
training and afterwards.
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import replace

from rlvitals.health import binding, gap
from rlvitals.health.alarm import Alarm
from rlvitals.health.entries import Rule
from rlvitals.health.rulebook import Rulebook
from rlvitals.health.rules import FUNCTIONS
from rlvitals.health.trail import Trail
from rlvitals.health.wording import fill, finding_of
from rlvitals.records import Finding, HealthEvent, Recheck


class Rechecks:
    """The rules about tokens of one run, fed with one comparison after the other."""

    def __init__(self, book: Rulebook) -> None:
        self._rules = [rule for rule in book.rules.values() if rule.enabled and binding.is_about_tokens(rule)]
        self._standing: dict[str, int] = {}  # rule -> compared steps since it last held
        self._trail = Trail()

    @property
    def standing(self) -> frozenset[str]:
        """The rules whose alarm is active."""
        return frozenset(self._standing)

    def stand(self, rules: Iterable[str]) -> None:
        """Mark these rules as active, for instance after a resume."""
        self._standing |= dict.fromkeys(rules, 0)

    def take(self, checked: Recheck) -> list[HealthEvent]:
        """Take a comparison; return its events. Steps come in order."""
        events = []
        if checked.gap is not None:
            self._trail.add(checked.step, checked.gap.mean, math.nan if checked.gap.age is None else checked.gap.age)
        for rule in self._rules:
            alarm = FUNCTIONS[rule.function](checked, **rule.numbers)
            if alarm is not None and rule.rule not in self._standing:
                found = _finding(rule, alarm, checked, self._trail)
                events.append(HealthEvent("raised", checked.step, finding=found, seen_in="tokens"))
            if alarm is not None:
                self._standing[rule.rule] = 0
            elif rule.rule in self._standing:
                self._standing[rule.rule] += 1
                if self._standing[rule.rule] >= rule.hold[1]:
                    del self._standing[rule.rule]
                    over = HealthEvent("recovered", checked.step, facts={"rule": rule.rule}, seen_in="tokens")
                    events.append(over)
        return events


def _finding(rule: Rule, alarm: Alarm, checked: Recheck, trail: Trail) -> Finding:
    seen = checked.gap if rule.kind in gap.KINDS else None
    in_part = () if checked.is_whole else (f"only {checked.rollouts} rollouts of the step were recorded with tokens",)
    metrics = () if seen else tuple(each.name for each in checked.differences if each.name != "advantage")
    found = finding_of(rule, alarm, checked.step, further_causes=in_part, metrics=metrics)
    behind = gap.explain(gap.token_readings(seen, trail)) if seen is not None else None
    if behind is None:
        return found
    named_cause = behind.about(alarm.cause)
    return replace(
        found,
        onset_step=found.onset_step if behind.onset is None else behind.onset,
        causes=(*(fill(text, found.evidence) for text in named_cause.causes), *in_part),
        advice=(*(fill(text, found.evidence) for text in named_cause.advice), *found.advice),
        cause=named_cause.cause,
    )
