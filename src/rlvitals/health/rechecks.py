"""The rules about recorded tokens at work: each comparison of a step leads to alarms, and to their end.

The comparison itself is `compute.recomputation`'s. The same comparisons in the same order lead to the same events,
while a run trains and afterwards.
"""

from __future__ import annotations

import math
from collections.abc import Iterable

from rlvitals.health import binding, gap
from rlvitals.health.alarm import Alarm
from rlvitals.health.entries import Rule
from rlvitals.health.rulebook import Rulebook
from rlvitals.health.rules import FUNCTIONS
from rlvitals.health.trail import Trail
from rlvitals.health.wording import evidence_of, fill
from rlvitals.records import Finding, HealthEvent, Recheck


class Rechecks:
    """The comparisons of one run, one after the other."""

    def __init__(self, book: Rulebook) -> None:
        self._rules = [rule for rule in book.rules.values() if rule.enabled and binding.is_about_tokens(rule)]
        self._standing: dict[str, int] = {}  # rule -> compared steps since it last held
        self._trail = Trail()

    @property
    def standing(self) -> frozenset[str]:
        """The rules in alarm."""
        return frozenset(self._standing)

    def stand(self, rules: Iterable[str]) -> None:
        """These are in alarm."""
        self._standing |= dict.fromkeys(rules, 0)

    def take(self, checked: Recheck) -> list[HealthEvent]:
        """What a comparison leads to. Steps come in order."""
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
    evidence = evidence_of(alarm)
    words, severity = rule.says(alarm.variant), alarm.severity
    causes, advice, cause = words.causes, words.advice, alarm.cause
    seen = checked.gap if rule.kind in gap.KINDS else None
    behind = gap.explain(gap.token_readings(seen, trail)) if seen is not None else None
    onset = checked.step
    if behind is not None:
        onset = onset if behind.onset is None else behind.onset
        told = behind.about(cause)
        causes, advice, cause = told.causes, (*told.advice, *advice), told.cause
    in_part = () if checked.is_whole else (f"only {checked.rollouts} rollouts of the step were recorded with tokens",)
    return Finding(
        rule=rule.rule,
        kind=rule.kind,
        severity=severity,
        step=checked.step,
        onset_step=onset,
        title=fill(words.title, evidence),
        confidence=rule.confidence if alarm.confidence is None else alarm.confidence,
        evidence=evidence,
        causes=(*(fill(text, evidence) for text in causes), *in_part),
        advice=tuple(fill(text, evidence) for text in advice),
        action=rule.action_critical if severity == "critical" else rule.action if severity == "warning" else "none",
        metrics=()
        if seen is not None
        else tuple(each.name for each in checked.differences if each.name != "advantage"),
        cause=cause,
    )
