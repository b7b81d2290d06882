"""`logs/findings.jsonl`, the health log: one strict JSON line for each alarm that is raised, escalated or recovered,
each request to the trainer and each answer. `health.history` derives findings from these lines.

Every line has `type`, `step`, `timestamp` and `attempt`. Readers skip torn lines, unknown types and unknown keys. Runs
of earlier versions have lines of the type `finding`, which are read as `raised`, and no lines for recovery.
"""

from __future__ import annotations

from dataclasses import asdict, replace
from typing import Any, Literal, TypedDict

from rlvitals.codec import encodable, encode, parse_shallow
from rlvitals.records import (
    Action,
    Answer,
    AttemptNumber,
    Count,
    Finding,
    HealthEvent,
    HealthEventType,
    Request,
    SeenIn,
    Severity,
    Time,
)
from rlvitals.store.fields import checked, record_of
from rlvitals.store.files import append_line, read_whole
from rlvitals.store.layout import RunDir
from rlvitals.values import NONFINITE_WORDS

MAX_TEXT = 2000
"""Characters kept of an answer's text."""


class _Head(TypedDict, total=False):
    """The fields of every line."""

    type: HealthEventType | Literal["finding"]
    step: int
    timestamp: Time
    attempt: AttemptNumber
    seen_in: SeenIn


class _Facts(TypedDict, total=False):
    """The fields of lines without a finding."""

    request: Count
    action: Action
    reason: str
    checkpoint: str
    checkpoint_step: int
    factor: float
    rule: str
    slice: str
    kind: str
    severity: Severity
    finding_step: int
    onset_step: int
    asked_by: str
    ask: str
    answer: Answer
    text: str
    is_on: bool
    takes_requests: bool
    reads_texts: bool
    reads_metrics: bool


def event_line(event: HealthEvent) -> bytes:
    """An event as the file stores it."""
    head: dict[str, Any] = {"type": event.type, "step": event.step}
    head |= {"timestamp": int(event.timestamp * 1000) / 1000, "attempt": event.attempt}
    if event.seen_in != "rows":
        head["seen_in"] = event.seen_in
    fields = event.facts if event.finding is None else asdict(replace(event.finding, recovered_step=None))
    fields = {key: value for key, value in fields.items() if value is not None}
    return encode(head | {key: encodable(value) for key, value in fields.items() if key not in head})


def request_facts(request: Request) -> dict[str, Any]:
    """The fields of a request's line. Its finding has its own line and is identified by rule and step."""
    finding = request.finding
    return {
        "request": request.number,
        "action": request.action,
        "reason": request.reason,
        "checkpoint": request.checkpoint,
        "checkpoint_step": request.checkpoint_step,
        "factor": request.factor,
        "rule": finding.rule,
        "slice": finding.slice or None,
        "kind": finding.kind,
        "severity": finding.severity,
        "finding_step": finding.step,
        "onset_step": finding.onset_step,
        "asked_by": request.asked_by or None,
    }


def answer_facts(request: Request, answer: Answer, text: str) -> dict[str, Any]:
    """The fields of an answer's line."""
    finding = request.finding
    facts = {"request": request.number, "action": request.action, "rule": finding.rule, "slice": finding.slice or None}
    return {**facts, "answer": answer, "text": text[:MAX_TEXT]}


def append_event(run_dir: RunDir, line: bytes, *, sync: bool = False) -> None:
    """Append a line. Raises OSError if not all of it can be written. The clock outside the trainer appends too."""
    append_line(run_dir.findings, line, sync=sync)


def read_events(run_dir: RunDir, problems: list[str] | None = None) -> list[HealthEvent]:
    """Every valid line, in order. If the file cannot be read, a sentence is added to `problems`."""
    try:
        lines = read_whole(run_dir.findings).split(b"\n")
    except FileNotFoundError:
        return []
    except OSError as error:
        if problems is not None:
            problems.append(
                f"{run_dir.findings.name} cannot be read: {error.strerror or error}; findings are not shown"
            )
        return []
    return [event for line in lines if line and (event := event_of(line)) is not None]


def event_of(line: bytes) -> HealthEvent | None:
    """One line as an event; None if it is not an event."""
    try:
        raw = parse_shallow(line)
        head = checked(_Head, raw) if isinstance(raw, dict) else {}
        if "type" not in head or "step" not in head:
            return None
        if head["type"] == "finding":  # written by an earlier version, in which only the clock reported stalls
            head |= {"type": "raised", "seen_in": "clock" if raw.get("kind") == "stall" else "rows"}
        if head["type"] in ("raised", "escalated"):
            return HealthEvent(**head, finding=_finding(raw, head["step"]))
    except ValueError:
        return None
    return HealthEvent(**head, facts=checked(_Facts, raw))


def _finding(raw: dict[str, Any], step: int) -> Finding:
    found = record_of(Finding, raw, defaults={"onset_step": step})
    items = found.evidence.items()
    evidence = {key: float(value) if value in NONFINITE_WORDS else value for key, value in items}
    return replace(found, recovered_step=None, evidence=evidence)
