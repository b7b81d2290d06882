"""Turns the events of a run's health into its findings, which of them have recovered, and the verdict.

Every view of a run's state uses this module, during training and afterwards. The events come from a monitor that judges
rows now, or from `logs/findings.jsonl`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from rlvitals.records import SEVERITIES, Action, Answer, Finding, HealthEvent, RunInfo, Severity, Verdict
from rlvitals.terminal import plural

VERDICTS: tuple[Verdict, ...] = ("healthy", "cannot judge", "watch", "act")
"""From good to bad; a run that could not be judged ranks below a healthy one."""

FEW_ROWS = 8
"""With fewer rows than this, a run without findings cannot be called healthy."""

OF_THE_LOG = frozenset({
    "steps_repeated", "steps_backwards", "impossible_share", "impossible_mean", "impossible_entropy", "impossible_kl",
})  # fmt: skip
"""Rules about how a log was written. On labelled logs they were active on healthy runs as often as on others."""

OF_SPEED = frozenset({"throughput", "slow_step", "gpu_idle"})
"""Rules about the time a step takes. They are reported, but a slow training may go well."""

_UNCOUNTED = OF_THE_LOG | OF_SPEED

GONE = "process_gone"
"""The rule with which the process beside a trainer reports that the trainer exited without finishing the run."""

NOT_MONITORED = "not monitored during training"

MOST_FINDINGS = 1000
"""The number of findings that are kept, the newest: an alarm can be raised again without limit."""


@dataclass(frozen=True, slots=True)
class Asked:
    """A request to the trainer because of a finding, and its answer."""

    request: int
    """Its number in the run."""
    step: int
    timestamp: float
    action: Action
    reason: str = ""
    answer: Answer | None = None
    """None: not answered."""
    answer_text: str = ""
    asked_by: str = ""
    """Who made the request from outside; empty if the doctor did."""


class History:
    """Takes events one by one and keeps the findings, each with the step at which it recovered.

    >>> history = History()
    >>> finding = Finding("kl_high", "kl_explosion", "warning", step=20, onset_step=12, title="KL is high")
    >>> history.take(HealthEvent("raised", 20, finding=finding))
    >>> history.standing
    {'kl_high': 'warning'}
    >>> history.take(HealthEvent("recovered", 60, facts={"rule": "kl_high"}))
    >>> [(finding.step, finding.recovered_step) for finding in history.findings], history.standing
    ([(20, 60)], {})
    """

    def __init__(self, events: Iterable[HealthEvent] = (), most: int = MOST_FINDINGS) -> None:
        self._most = most
        self._findings: dict[int, Finding] = {}
        self._taken = 0
        self._open: dict[str, list[int]] = {}
        """By alarm: the findings that have not recovered."""
        self._requests: dict[int, tuple[tuple[str, int], Asked]] = {}
        """By number: the finding's alarm and step, and the request."""
        for event in events:
            self.take(event)

    @property
    def findings(self) -> list[Finding]:
        """In the order they were raised."""
        return list(self._findings.values())

    @property
    def standing(self) -> dict[str, Severity]:
        """The active alarms (a rule, or a rule about one slice), each with its severity."""
        return {found.alarm: found.severity for found in self.open}

    @property
    def open(self) -> list[Finding]:
        """The newest finding of each active alarm."""
        return [self._findings[places[-1]] for places in self._open.values()]

    def take(self, event: HealthEvent) -> None:
        """Add one event."""
        if event.finding is not None:
            self._findings[self._taken] = event.finding
            self._open.setdefault(alarm_key(event), []).append(self._taken)
            self._taken += 1
            if len(self._findings) > self._most:
                self._forget_oldest()
        elif event.type == "recovered":
            for place in self._open.pop(alarm_key(event), ()):
                self._findings[place] = replace(self._findings[place], recovered_step=event.step)
        elif event.type in ("request", "answer") and isinstance(number := event.facts.get("request"), int):
            self._take_request(number, event)

    def asked_about(self, finding: Finding) -> list[Asked]:
        """The requests to the trainer because of a finding."""
        about = (finding.alarm, finding.step)
        return [asked for key, asked in self._requests.values() if key == about]

    @property
    def asked_by_people(self) -> list[Asked]:
        """The requests that people made from outside, in order."""
        return [asked for _, asked in self._requests.values() if asked.asked_by]

    def _take_request(self, number: int, event: HealthEvent) -> None:
        facts = event.facts
        if event.type == "request":
            about = (event.alarm, facts.get("finding_step", event.step))
            action, asked_by = facts.get("action", "none"), facts.get("asked_by", "")
            asked = Asked(number, event.step, event.timestamp, action, facts.get("reason", ""), asked_by=asked_by)
            self._requests[number] = about, asked
        elif number in self._requests:
            about, asked = self._requests[number]
            answered = replace(asked, answer=facts.get("answer"), answer_text=facts.get("text", ""))
            self._requests[number] = about, answered

    def _forget_oldest(self) -> None:
        oldest = next(iter(self._findings))
        del self._findings[oldest]
        for key, places in self._open.items():
            if places[0] == oldest:
                self._open[key] = places[1:]
                break
        self._open = {key: places for key, places in self._open.items() if places}


def alarm_key(event: HealthEvent) -> str:
    """The alarm an event is about. A rule on epochs may have the same name as one on rows, so its key has a prefix."""
    return f"epochs:{event.alarm}" if event.seen_in == "epochs" else event.alarm


def recovery(finding: Finding, step: int) -> HealthEvent:
    """The event that ends a finding's alarm."""
    of = {"slice": finding.slice} if finding.slice else {}
    return HealthEvent("recovered", step, facts={"rule": finding.rule, "severity": finding.severity, **of})


def with_stop(events: Iterable[HealthEvent], attempt: int, finding: Finding | None, when: float) -> list[HealthEvent]:
    """Recorded events, with the stop of the current attempt added. Findings that the process of an earlier attempt had
    exited are dropped, because the run continued. One recorded for this attempt gets the texts of `finding`, so every
    screen words it in the same way.
    """
    kept = []
    for event in events:
        if event.rule != GONE or event.type not in ("raised", "escalated", "recovered"):
            kept.append(event)
        elif event.attempt == attempt and finding is not None and event.finding is not None:
            title, evidence, advice = finding.title, finding.evidence, finding.advice
            finding = replace(event.finding, title=title, evidence=evidence, advice=advice)
    if finding is not None:
        kept.append(HealthEvent("raised", finding.step, when, attempt, "clock", finding))
    return kept


def was_watched(events: Iterable[HealthEvent], attempts: Iterable[int]) -> bool:
    """Whether the record of a run's health is complete: a monitor read every row of these attempts."""
    states = {event.attempt: event.facts.get("is_on") is True for event in events if event.type == "monitor"}
    return all(states.get(attempt, False) for attempt in attempts)


def read_texts(events: Iterable[HealthEvent], attempts: Iterable[int]) -> bool:
    """Whether a monitor scanned the texts of the rollouts that these attempts recorded."""
    states = {event.attempt for event in events if event.type == "monitor" and event.facts.get("reads_texts") is True}
    return all(attempt in states for attempt in attempts)


def reads_metrics(events: Iterable[HealthEvent]) -> bool:
    """Whether a rule reads a metric of the run. So it is assumed where no monitor recorded it. Events are of the living
    line, which also has attempts that logged nothing but evaluations.
    """
    states = {event.attempt: event.facts.get("reads_metrics") for event in events if event.type == "monitor"}
    return False not in states.values() or True in states.values()


def verdict_of(
    findings: Iterable[Finding], rows: int, last_step: int | None = None, *, reads_metrics: bool = True
) -> tuple[Verdict, str]:
    """The verdict on a run with these findings, and its reason. `reads_metrics`: whether a rule reads one of its
    metrics; otherwise nothing can be said about it.
    """
    grave = by_gravity(findings)
    verdict = worst(grave)
    if stop := next((finding for finding in grave if finding.rule == GONE and is_standing(finding)), None):
        others = [finding for finding in grave if finding is not stop]
        return verdict, "; ".join([f"{stop.title}; {stop.advice[0]}", *([counted(others)] if others else [])])
    if verdict != "healthy":
        return verdict, counted(grave)
    if rows < FEW_ROWS:
        return "cannot judge", f"{plural(rows, 'row')}: a verdict needs at least {FEW_ROWS}"
    if not reads_metrics:
        return "cannot judge", "none of its metrics is one that a rule reads"
    upto = "" if last_step is None else f" up to step {last_step:,}"
    return "healthy", f"nothing to act on{upto}" + (f" ({counted(grave)})" if grave else "")


def recorded_verdict(
    events: Sequence[HealthEvent],
    attempts: Iterable[int],
    rows: int,
    last_step: int | None,
    *,
    was_monitored: Callable[[], bool],
) -> tuple[Verdict, str] | None:
    """The verdict that a run's recorded events give, for lists, which judge no rows. None if no monitor read all rows
    of the living attempts: the missing events could change it in any direction.

    `was_monitored`: whether an earlier version monitored the run (`was_monitored_before`).
    """
    findings, living = History(events).findings, set(attempts)
    by_earlier_version = not any(event.type == "monitor" for event in events) and (bool(findings) or was_monitored())
    is_complete = was_watched(events, living) and (bool(living) or not rows)
    if not by_earlier_version and not is_complete:
        findings = [finding for finding in findings if finding.rule == GONE]
        if not findings:
            return None
    return verdict_of(findings, rows, last_step, reads_metrics=reads_metrics(events))


def was_monitored_before(info: RunInfo, config: Callable[[], Mapping[str, Any]]) -> bool:
    """Whether version 0.1 wrote a run, and its settings ask for a monitor. 0.1 did not record that the monitor ran.
    `config` is only called for such a run.
    """
    if not info.written_by.startswith("0.1."):
        return False
    own = config().get("rlvitals")
    return isinstance(own, Mapping) and own.get("monitor") is True


def by_gravity(findings: Iterable[Finding]) -> list[Finding]:
    """Warnings and criticals, the most severe first, then in the order they were raised."""
    grave = [finding for finding in findings if finding.severity != "info"]
    return sorted(grave, key=lambda finding: -SEVERITIES.index(finding.severity))


def worst_of_alarms(findings: Iterable[Finding]) -> list[Finding]:
    """The most severe finding of each alarm, without remarks, the most severe first."""
    found: dict[str, Finding] = {}
    for finding in by_gravity(findings):
        found.setdefault(finding.alarm, finding)
    return list(found.values())


def worst(findings: Iterable[Finding]) -> Verdict:
    """The verdict on findings: `act` while a critical one is active, `watch` while a warning is. Recovered findings do
    not count: runs dip and come back. Warnings about the log itself (a repeated step, a share above 1) and about the
    speed do not count either: they are no evidence of how well the training goes.
    """
    standing = {
        finding.severity
        for finding in findings
        if is_standing(finding) and (finding.rule not in _UNCOUNTED or finding.severity == "critical")
    }
    return "act" if "critical" in standing else "watch" if "warning" in standing else "healthy"


def is_standing(finding: Finding) -> bool:
    """Whether a finding is active, that is, has not recovered."""
    return finding.recovered_step is None


def counted(findings: list[Finding]) -> str:
    """The number of alarms, each counted at its highest severity, and the earliest of the most severe."""
    most_severe = worst_of_alarms(findings)
    criticals = [finding for finding in most_severe if finding.severity == "critical"]
    warnings = len(most_severe) - len(criticals)
    parts = [plural(len(criticals), "critical finding")] if criticals else []
    parts += [plural(warnings, "warning")] if warnings else []
    first = min(criticals or most_severe, key=lambda finding: finding.step)
    over = "" if any(map(is_standing, findings)) else "; all recovered"
    what = first.kind.replace("_", " ") + (f" of {first.slice}" if first.slice else "")
    return f"{', '.join(parts)}; first: {what}, since step {first.onset_step}{over}"
