"""Runs the rules about texts: turns patterns in rollouts (found by `scan`) into alarms, and ends them.

The same patterns in the same order lead to the same events, during training and afterwards.
"""

from __future__ import annotations

from collections.abc import Iterable

from rlvitals.health import binding
from rlvitals.health.entries import Rule
from rlvitals.health.rulebook import Rulebook
from rlvitals.health.rules import FUNCTIONS
from rlvitals.health.wording import finding_of
from rlvitals.records import SEVERITIES, HealthEvent, HealthEventType, Scanned, Severity


class TextRules:
    """The rules of one run, each about the pattern of its name."""

    def __init__(self, book: Rulebook, own: Iterable[Rule] = ()) -> None:
        """`own` are the rules of the user's scanners."""
        known = [rule for rule in book.rules.values() if binding.is_about_texts(rule)]
        self._rules = {rule.rule: rule for rule in (*known, *own) if rule.enabled}
        self._standing: dict[str, Severity] = {}
        self._content: dict[str, int] = {}  # rule -> steps since it last held

    @property
    def patterns(self) -> frozenset[str]:
        """The patterns that a rule reads."""
        return frozenset(self._rules)

    @property
    def standing(self) -> dict[str, Severity]:
        """The rules whose alarm is active, with its severity."""
        return dict(self._standing)

    def stand(self, rules: dict[str, Severity]) -> None:
        """Mark these rules as active, for instance after a resume."""
        self._standing |= {rule: severity for rule, severity in rules.items() if rule in self._rules}

    def take(self, scanned: Scanned) -> list[HealthEvent]:
        """Take a pattern's result for one step; return the events. Steps come in order."""
        rule = self._rules.get(scanned.pattern)
        if rule is None:
            return []
        alarm = FUNCTIONS[rule.function](scanned, **rule.numbers)
        before = self._standing.get(rule.rule)
        if alarm is None:
            return self._is_content(rule, scanned) if before is not None else []
        self._content[rule.rule] = 0
        if before is not None and SEVERITIES.index(alarm.severity) <= SEVERITIES.index(before):
            return []
        self._standing[rule.rule] = alarm.severity
        found = finding_of(rule, alarm, scanned.step, cited=scanned.cited)
        kind: HealthEventType = "raised" if before is None else "escalated"
        return [HealthEvent(kind, scanned.step, finding=found, seen_in="texts")]

    def _is_content(self, rule: Rule, scanned: Scanned) -> list[HealthEvent]:
        name = rule.rule
        self._content[name] = self._content.get(name, 0) + 1
        if self._content[name] < rule.hold[1]:
            return []
        severity = self._standing.pop(name)
        facts = {"rule": name, "severity": severity}
        return [HealthEvent("recovered", scanned.step, facts=facts, seen_in="texts")]
