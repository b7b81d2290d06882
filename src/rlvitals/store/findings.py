"""`logs/findings.jsonl`: what the doctor found, what was asked of the trainer, what it answered; a strict line each.

Every line has `type`, `step`, `timestamp` and `attempt`. Readers pass over torn lines, unknown types and unknown keys.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass, fields
from typing import Any

from rlvitals.codec import encode, parse_json
from rlvitals.records import ACTIONS, SEVERITIES, Answer, Finding, Request
from rlvitals.store.files import append_line, read_whole
from rlvitals.store.layout import RunDir

TYPES = ("finding", "request", "answer")
MAX_TEXT = 2000
"""Characters kept of an answer's text."""

_FIELDS = tuple(item.name for item in fields(Finding))
_NONFINITE = {"nan": math.nan, "inf": math.inf, "-inf": -math.inf}


@dataclass(frozen=True, slots=True)
class Event:
    """One line of the file."""

    type: str
    step: int
    timestamp: float
    attempt: int
    facts: dict[str, Any]
    """Everything else on the line."""


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


def read_events(run_dir: RunDir) -> list[Event]:
    """Every good line, in order."""
    try:
        lines = read_whole(run_dir.findings).split(b"\n")
    except OSError:
        return []
    return [event for line in lines if line and (event := _event(line)) is not None]


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


def _event(line: bytes) -> Event | None:
    try:
        raw = parse_json(line)
    except ValueError:
        return None
    if not isinstance(raw, dict) or raw.get("type") not in TYPES or type(raw.get("step")) is not int:
        return None
    attempt, stamp = raw.get("attempt"), raw.get("timestamp")
    return Event(
        type=raw["type"],
        step=raw["step"],
        timestamp=float(stamp) if isinstance(stamp, int | float) else math.nan,
        attempt=attempt if type(attempt) is int else 1,
        facts={key: value for key, value in raw.items() if key not in ("type", "step", "timestamp", "attempt")},
    )


def _finding(event: Event) -> Finding | None:
    facts = {key: value for key, value in event.facts.items() if key in _FIELDS}
    if not all(isinstance(facts.get(key), str) for key in ("rule", "kind", "title")):
        return None
    if facts.get("severity") not in SEVERITIES:
        return None
    onset, confidence, evidence = facts.get("onset_step"), facts.get("confidence"), facts.get("evidence")
    return Finding(
        rule=facts["rule"],
        kind=facts["kind"],
        severity=facts["severity"],
        step=event.step,
        onset_step=onset if type(onset) is int else event.step,
        title=facts["title"],
        confidence=float(confidence) if isinstance(confidence, int | float) else 0.5,
        evidence={key: _evidence(value) for key, value in evidence.items()} if isinstance(evidence, dict) else {},
        causes=_texts(facts.get("causes")),
        advice=_texts(facts.get("advice")),
        action=facts["action"] if facts.get("action") in ACTIONS else "none",
        metrics=_texts(facts.get("metrics")),
    )


def _evidence(value: Any) -> float | str:
    if isinstance(value, bool | int | float):
        return float(value)
    return _NONFINITE.get(value, value) if isinstance(value, str) else str(value)


def _texts(value: Any) -> tuple[str, ...]:
    return tuple(item for item in value if isinstance(item, str)) if isinstance(value, list) else ()
