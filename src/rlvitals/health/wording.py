"""Turns an alarm's numbers into evidence and a rule's templates into sentences."""

from __future__ import annotations

import math
import re
from collections.abc import Mapping

from rlvitals.health.alarm import Alarm

_SLOT = re.compile(r"\{(\w+)(?::([-+ ,.%\w]*))?\}")


def evidence_of(alarm: Alarm) -> dict[str, float | str]:
    """The alarm's own numbers, and those every finding about a signal has: value, level, baseline, noise."""
    evidence: dict[str, float | str] = {}
    signal = alarm.signal
    if signal is not None:
        evidence["metric"] = signal.key
        for name, number in (
            ("value", signal.last),
            ("level", signal.fast),
            ("base", signal.base),
            ("noise", signal.noise),
            ("points", float(signal.n)),
        ):
            if math.isfinite(number):
                evidence[name] = number
    for name, value in alarm.evidence.items():
        # Findings are written as strict JSON, which has no infinity: such a number is kept as a text.
        evidence[name] = value if isinstance(value, str) or math.isfinite(value) else f"{value:g}"
    return evidence


def fill(template: str, evidence: Mapping[str, float | str]) -> str:
    """Put evidence into a template. Only plain names with a number format are slots: templates come from rule files.

    >>> fill("{metric} is at {ratio:.0%} of its start", {"metric": "entropy", "ratio": 0.21})
    'entropy is at 21% of its start'
    >>> fill("{nothing} is kept as it is", {})
    '{nothing} is kept as it is'
    """

    def put(match: re.Match[str]) -> str:
        value = evidence.get(match[1])
        if value is None:
            return match[0]
        if isinstance(value, str):
            return value
        try:
            return format(value, match[2] or ".4g")
        except ValueError:
            return format(value, ".4g")

    return _SLOT.sub(put, template)
