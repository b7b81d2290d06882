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
    """None: that of the rule's entry in the rulebook, or of the weighing."""
    onset_step: int | None = None
    """None: where the signal left its band, or where the alarm began to hold."""
    back_at: float | None = None
    """The level that its signal must reach again to have recovered. None: it recovers when the rule is quiet."""
    kind: str | None = None
    """The kind of a variant that is another kind of failure than the rule's; None: the rule's kind."""
    cause: str = ""
    """One of `records.CAUSES`, where the evidence shows the cause."""
    is_beyond_doubt: bool = False
    """Whether it is so extreme that it is not weighed against the outcome."""
    has_company: bool = False
    """Whether the rule has checked the outcome and a second sign agrees; the alarm then keeps its severity."""


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
    """Mark an alarm that no healthy training has, whatever its reward is."""
    alarm.is_beyond_doubt = True
    return alarm


def in_company(alarm: Alarm) -> Alarm:
    """Mark an alarm as confirmed: the outcome has stopped rising and a second sign agrees. A past gain is ignored."""
    alarm.has_company = True
    return alarm


def since(step: int, alarm: Alarm) -> Alarm:
    """Set the onset of an alarm, where it is known better than from the signal's band."""
    alarm.onset_step = step
    return alarm
