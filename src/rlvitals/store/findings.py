"""`logs/findings.jsonl`: what the doctor found, what was asked of the trainer, what it answered; a strict line each.

Every line has `type`, `step`, `timestamp` and `attempt`. Readers pass over torn lines, unknown types and unknown keys.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass, field, replace
from typing import Any, Literal, TypedDict

from rlvitals.codec import encode, parse_shallow
from rlvitals.records import Action, Answer, AttemptNumber, Count, Finding, Request, Severity, Time
from rlvitals.store.fields import checked, record_of
from rlvitals.store.files import append_line, read_whole
from rlvitals.store.layout import RunDir

Type = Literal["finding", "request", "answer"]
MAX_TEXT = 2000
"""Characters kept of an answer's text."""

_NONFINITE: dict[str, float | str] = {"nan": math.nan, "inf": math.inf, "-inf": -math.inf}


@dataclass(frozen=True, slots=True)
class Event:
    """One line of the file."""

    type: Type
    step: int
    timestamp: Time = math.nan
    attempt: AttemptNumber = 1
    facts: dict[str, Any] = field(default_factory=dict)
    """What else is known of the line; every fact is of the type it should be."""


class _Facts(TypedDict, total=False):
    """What requests and answers tell."""

    request: Count
    action: Action
    reason: str
    checkpoint: str
    checkpoint_step: int
    factor: float
    rule: str
    kind: str
    severity: Severity
    finding_step: int
    onset_step: int
    answer: Answer
    text: str


def finding_line(finding: Finding, timestamp: float, attempt: int) -> bytes:
    """A finding as the file holds it."""
    return _line("finding", finding.step, timestamp, attempt, asdict(finding))


def request_line(request: Request, step: int, timestamp: float, attempt: int) -> bytes:
    """A request; its finding is on a line of its own and is named here by rule and step."""
    finding = request.finding
    facts = {
        "request": request.number,
        "action": request.action,
        "reason": request.reason,
        "checkpoint": request.checkpoint,
        "checkpoint_step": request.checkpoint_step,
        "factor": request.factor,
        "rule": finding.rule,
        "kind": finding.kind,
        "severity": finding.severity,
        "finding_step": finding.step,
        "onset_step": finding.onset_step,
    }
    return _line("request", step, timestamp, attempt, {key: value for key, value in facts.items() if value is not None})


def answer_line(request: Request, answer: Answer, text: str, *, step: int, timestamp: float, attempt: int) -> bytes:
    """How a request ended."""
    facts = {"request": request.number, "action": request.action, "rule": request.finding.rule, "answer": answer}
    return _line("answer", step, timestamp, attempt, {**facts, "text": text[:MAX_TEXT]})


def append_event(run_dir: RunDir, line: bytes, *, sync: bool = False) -> None:
    """Add a line. Raises OSError where the disk does not take all of it. The clock outside the trainer appends too."""
    append_line(run_dir.findings, line, sync=sync)


def read_events(run_dir: RunDir, problems: list[str] | None = None) -> list[Event]:
    """Every good line, in order. A sentence on a file that cannot be read is added to `problems`."""
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


def findings_in(events: Iterable[Event]) -> list[tuple[Event, Finding]]:
    """The findings among the lines, each with its line."""
    return [(event, found) for event in events if event.type == "finding" and (found := _finding(event)) is not None]


def _line(kind: str, step: int, timestamp: float, attempt: int, facts: Mapping[str, Any]) -> bytes:
    head = {"type": kind, "step": step, "timestamp": int(timestamp * 1000) / 1000, "attempt": attempt}
    return encode(head | {key: _strict(value) for key, value in facts.items() if key != "step"})


def _strict(value: Any) -> Any:
    if isinstance(value, Mapping):
        return {_strict(str(key)): _strict(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [_strict(item) for item in value]
    if isinstance(value, float):
        return value if math.isfinite(value) else str(value)
    if isinstance(value, str):
        return value.encode("utf-8", "replace").decode()
    return value if value is None or isinstance(value, bool | int) else _strict(str(value))


def event_of(line: bytes) -> Event | None:
    """One line; None where it is none."""
    try:
        raw = parse_shallow(line)
        event = record_of(Event, raw)
    except ValueError:
        return None
    return replace(event, facts=checked(Finding if event.type == "finding" else _Facts, raw))


def _finding(event: Event) -> Finding | None:
    try:
        found = record_of(Finding, event.facts, defaults={"onset_step": event.step})
    except ValueError:
        return None
    said = found.evidence.items()
    return replace(found, evidence={key: _NONFINITE.get(str(value), value) for key, value in said})
