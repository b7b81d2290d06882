"""The alarm of a rule: how severe it is, and the numbers that show it."""

from __future__ import annotations

from dataclasses import dataclass, field

from rlvitals.health.statistics import Signal
from rlvitals.records import Severity


@dataclass(slots=True)
class Alarm:
    """A rule's answer for one row. Nothing is reported until it has held as long as the rulebook requires."""

    severity: Severity
    signal: Signal | None = None
    """The series it is about, for its name, values and onset."""
    evidence: dict[str, float | str] = field(default_factory=dict)
    variant: str = ""
    """Which of the rule's wordings fits (`too_easy`, `too_hard`); empty for the plain one."""
    confidence: float | None = None
    """Where the rule knows better than its entry in the rulebook."""
    onset_step: int | None = None
    """Where the signal's own departure from its band is not the answer."""
    back_at: float | None = None
    """The level its signal must be back at, from below, to have recovered. None: it has when the rule is content."""
    kind: str | None = None
    """Where a variant is another kind of failure than the rule's own."""
    cause: str = ""
    """One of `records.CAUSES`, where the evidence shows what lies behind it."""
    is_beyond_doubt: bool = False
    """So far out that it is not weighed against what else went well."""
    has_company: bool = False
    """The rule has asked what the outcome does, and another sign agrees: it keeps its severity."""


def info(signal: Signal | None, variant: str = "", **evidence: float | str) -> Alarm:
    """Something worth knowing."""
    return Alarm("info", signal, evidence, variant)


def warning(signal: Signal | None, variant: str = "", **evidence: float | str) -> Alarm:
    """Something to look at."""
    return Alarm("warning", signal, evidence, variant)


def critical(signal: Signal | None, variant: str = "", **evidence: float | str) -> Alarm:
    """Something to act on."""
    return Alarm("critical", signal, evidence, variant)


def beyond_doubt(alarm: Alarm) -> Alarm:
    """State that no healthy training looks like this, whatever its reward is."""
    alarm.is_beyond_doubt = True
    return alarm


def in_company(alarm: Alarm) -> Alarm:
    """State that the outcome has stopped rising and a second sign agrees, so that an earlier gain does not matter."""
    alarm.has_company = True
    return alarm


def since(step: int, alarm: Alarm) -> Alarm:
    """State where it began, if that is known better than from the band its signal left."""
    alarm.onset_step = step
    return alarm
