"""The state of a run: the verdict, the findings, and the requests and series for each finding. Every page, list, plot
and notebook uses it.

If the run's monitor read every row, its recorded events are used. Other runs, such as an imported log or a run of an
earlier version, are judged from their rows, as `check` does. Very long ones are not judged, because that takes a
minute.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import asdict, dataclass, replace
from itertools import islice
from typing import Any, cast

from rlvitals.contract import AskedFacts, CitedFacts, Findings, TakenFacts, TracedLine, finding_facts
from rlvitals.documentation import rule_address
from rlvitals.health.history import NOT_MONITORED, History, reads_metrics, verdict_of, was_watched
from rlvitals.records import Finding, Verdict
from rlvitals.render.evidence import evidence
from rlvitals.store.rollout_forms import plain
from rlvitals.views.chart_lines import Window, lines
from rlvitals.views.judge import Judge, RowCount
from rlvitals.views.query import StoredRun
from rlvitals.views.rechecks import events_on_record
from rlvitals.views.sources import judge_source, new_monitor, source_of

MOST_CELLS, MOST_METRICS = 4_000_000, 5_000
"""Maximum rows times metrics, and metrics, of a log that is judged while a user waits."""

QUICK_CELLS = 200_000
"""Maximum rows times metrics of an unmonitored run that is judged for a list; this takes a fraction of a second."""

ROWS_AT_ONCE = 16
"""Rows that are judged between two pauses, which takes about 3 ms."""

TRACED_METRICS = 2
TRACE_POINTS = 120
NAMING_ROWS = 100
"""Rows after which the reading of a name no longer changes, unless the name was logged later."""

MOST_LISTED = 500
"""Findings that are listed, the newest ones, because an alarm may return any number of times."""


@dataclass(frozen=True, slots=True)
class Diagnosis:
    """The verdict on a run, its reason, and the findings."""

    verdict: Verdict
    reason: str
    findings: list[Finding]
    """In the order they were raised."""
    is_pending: bool = False
    """Whether its rows are still being judged."""


def diagnose(view: StoredRun, pause: Callable[[], None] | None = None) -> Diagnosis:
    """The recorded findings of a monitored run, or the doctor's findings on its rows. `pause` is called every few rows,
    so that a server can handle other requests.
    """
    if is_on_record(view):
        return recorded(view)
    if view.rows * len(view.metrics) > MOST_CELLS or len(view.metrics) > MOST_METRICS:
        if view.findings:  # recorded by an earlier version, which did not record recoveries
            return recorded(view)
        size = f"{view.rows:,} rows of {len(view.metrics):,} metrics"
        return Diagnosis("cannot judge", f"{NOT_MONITORED}, and {size} take long: run 'rlvitals check'", [])
    source = source_of(view)
    if pause is not None:
        source = replace(source, rows=_paused(source.rows, pause))
    return of_judge(judge_source(source), view)


def _paused(rows: Iterable[dict[str, Any]], pause: Callable[[], None]) -> Iterator[dict[str, Any]]:
    for number, row in enumerate(rows):
        if number % ROWS_AT_ONCE == 0:
            pause()
        yield row


def diagnose_quickly(view: StoredRun) -> Diagnosis:
    """As `diagnose`, for one of many runs. A log that takes too long for a list is not judged."""
    if is_on_record(view) or view.rows * len(view.metrics) <= QUICK_CELLS:
        return diagnose(view)
    return Diagnosis("cannot judge", f"{NOT_MONITORED}: run 'rlvitals check'", [])


def is_on_record(view: StoredRun) -> bool:
    """Whether the run's own monitor read every row of the run."""
    return was_watched(view.health_events, view.living_attempts)


def recorded(view: StoredRun) -> Diagnosis:
    """The diagnosis from the recorded events."""
    events = events_on_record(view)
    findings, is_read = History(events).findings, reads_metrics(events)
    return Diagnosis(*verdict_of(findings, view.rows, view.last_step, reads_metrics=is_read), findings)


def of_judge(judge: Judge, counted: RowCount) -> Diagnosis:
    """The diagnosis after the rows that a judge has read so far. `counted` are these rows as they were logged."""
    findings = judge.history.findings
    is_read = bool(judge.monitor.case.signals)
    return Diagnosis(*verdict_of(findings, counted.rows, counted.last_step, reads_metrics=is_read), findings)


def findings_answer(view: StoredRun, diagnosis: Diagnosis, *, has_rollouts: bool = False) -> Findings:
    """The response of `/api/findings`."""
    history = History(view.health_events)
    listed = diagnosis.findings[-MOST_LISTED:]
    return {
        "verdict": diagnosis.verdict,
        "reason": diagnosis.reason,
        "judging": diagnosis.is_pending,
        "was_watched": is_on_record(view),
        "findings": [
            {
                **finding_facts(found),
                "confidence": found.confidence,
                "evidence": plain(found.evidence),
                "evidence_told": evidence({"title": found.title, "evidence": found.evidence, "metrics": found.metrics}),
                "causes": list(found.causes),
                "advice": list(found.advice),
                "action": found.action,
                "requests": [cast(AskedFacts, asdict(asked)) for asked in history.asked_about(found)],
                "trace": _trace(view, found),
                "cited": [cast(CitedFacts, plain(asdict(place))) for place in found.cited],
                "page": rule_address(found.rule),
            }
            for found in listed
        ],
        "asked": [cast(AskedFacts, asdict(asked)) for asked in history.asked_by_people],
        "left_out": len(diagnosis.findings) - len(listed),
        "first_step": view.first_step,
        "last_step": view.last_step,
        "names": _names(view),
        "has_rollouts": has_rollouts,
    }


def _names(view: StoredRun) -> list[TakenFacts]:
    """The concept of each name, as far as the first rows show it."""
    source = source_of(view)
    monitor = new_monitor(source)
    for row in islice(source.rows, NAMING_ROWS):
        monitor.update(row)
    return [cast(TakenFacts, asdict(taken)) for taken in monitor.case.taken]


def _trace(view: StoredRun, finding: Finding) -> list[TracedLine]:
    """The series around a finding. It starts before the onset and ends after the finding was raised, by twice the steps
    between the two, but at least 20.
    """
    around = max(20, 2 * (finding.step - finding.onset_step))
    window = Window("step", finding.onset_step - around, finding.step + around, TRACE_POINTS)
    known = set(view.metrics)
    names = [name for name in finding.metrics if name in known][:TRACED_METRICS]
    drawn = lines(view, names, window)
    return [{**line, "band": drawn["bands"].get(line["name"])} for line in drawn["lines"]]
