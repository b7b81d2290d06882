"""What the doctor said of a run, for people who look at it: each finding with what was asked, done and seen around it.

A run that was watched while it trained has its findings on file. Another one, such as an imported log, is judged from
its rows, once; a very long one is not, because nobody waits a minute for a verdict.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import cast

from rlvitals.contract import Findings, RequestFacts, TracedLine, finding_facts
from rlvitals.records import Finding, Verdict
from rlvitals.store.findings import Event, read_events
from rlvitals.store.layout import RunDir
from rlvitals.store.rollout_forms import plain
from rlvitals.views.lines import Window, lines
from rlvitals.views.query import RunView
from rlvitals.views.verdict import verdict_of

MOST_CELLS, MOST_METRICS = 4_000_000, 5_000
"""Rows times metrics, and metrics, of a log that is judged while somebody waits."""

TRACED_METRICS = 2
TRACE_POINTS = 120
MOST_TOLD = 500
"""Findings that are told, the newest: an alarm may come and go for ever."""


@dataclass(frozen=True, slots=True)
class Diagnosis:
    """The verdict on a run, its reason, and what was said."""

    verdict: Verdict
    reason: str
    findings: list[Finding]
    ongoing: frozenset[str] | None = None
    """Rules still in alarm at the end; None: not known, because they were said while it trained."""
    is_pending: bool = False
    """Whether its rows are still being judged."""


def was_watched(view: RunView) -> bool:
    """Whether the run's own monitor looked at every row."""
    own = view.config.get("rlvitals")
    return isinstance(own, dict) and own.get("monitor") is True


def diagnose(view: RunView) -> Diagnosis:
    """What the run's own monitor said, or what the doctor says of a log that nobody watched."""
    recorded = view.findings
    if recorded or was_watched(view):
        return Diagnosis(*verdict_of(recorded, view.rows), recorded)
    if view.rows * len(view.metrics) > MOST_CELLS or len(view.metrics) > MOST_METRICS:
        size = f"{view.rows:,} rows of {len(view.metrics):,} metrics"
        reason = f"nobody watched it while it trained, and {size} take long: run 'rlvitals check'"
        return Diagnosis("cannot judge", reason, [])
    from rlvitals.views.check import check_source  # the rulebook and every reader of logs: a list of runs needs neither
    from rlvitals.views.sources import source_of_run

    report = check_source(source_of_run(view))
    return Diagnosis(report.verdict, report.reason, [*report.findings, *report.normal], report.ongoing)


def findings_told(view: RunView, diagnosis: Diagnosis) -> Findings:
    """What `/api/findings` answers."""
    events = read_events(RunDir(view.path))
    told = diagnosis.findings[-MOST_TOLD:]
    return {
        "verdict": diagnosis.verdict,
        "reason": diagnosis.reason,
        "judging": diagnosis.is_pending,
        "was_watched": was_watched(view),
        "findings": [
            {
                **finding_facts(found),
                "confidence": found.confidence,
                "evidence": plain(found.evidence),
                "causes": list(found.causes),
                "advice": list(found.advice),
                "action": found.action,
                "ongoing": None if diagnosis.ongoing is None else found.rule in diagnosis.ongoing,
                "requests": requests_about(found, events),
                "trace": _trace(view, found),
            }
            for found in told
        ],
        "left_out": len(diagnosis.findings) - len(told),
    }


def requests_about(finding: Finding, events: Sequence[Event]) -> list[RequestFacts]:
    """What was asked of the trainer because of a finding, each with its answer."""
    asked = [
        cast(RequestFacts, event.facts | {"step": event.step, "timestamp": event.timestamp})
        for event in events
        if event.type == "request"
        and event.facts.get("rule") == finding.rule
        and event.facts.get("finding_step") == finding.step
    ]
    answers = {event.facts.get("request"): event for event in events if event.type == "answer"}
    for request in asked:
        answer = answers.get(request.get("request"))
        request["answer"] = None if answer is None else answer.facts.get("answer")
        request["answer_text"] = "" if answer is None else answer.facts.get("text", "")
    return asked


def _trace(view: RunView, finding: Finding) -> list[TracedLine]:
    """The series around a finding: as far before its onset and after its word as the two are apart, and a bit."""
    around = max(20, 2 * (finding.step - finding.onset_step))
    window = Window("step", finding.onset_step - around, finding.step + around, TRACE_POINTS)
    known = set(view.metrics)
    names = [name for name in finding.metrics if name in known][:TRACED_METRICS]
    drawn = lines(view, names, window)
    return [{**line, "band": drawn["bands"].get(line["name"])} for line in drawn["lines"]]
