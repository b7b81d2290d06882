"""Lines of a health log for tests that need one without a monitor."""

from __future__ import annotations

from rlvitals.records import Finding, HealthEvent
from rlvitals.store.findings import event_line


def finding_line(finding: Finding, timestamp: float = 1.0, attempt: int = 1) -> bytes:
    return event_line(HealthEvent("raised", finding.step, timestamp, attempt, finding=finding))


def recovered_line(rule: str, step: int, timestamp: float = 1.0, attempt: int = 1) -> bytes:
    return event_line(HealthEvent("recovered", step, timestamp, attempt, facts={"rule": rule}))


def monitor_line(*, is_on: bool = True, step: int = 0, timestamp: float = 1.0, attempt: int = 1) -> bytes:
    return event_line(HealthEvent("monitor", step, timestamp, attempt, facts={"is_on": is_on}))
