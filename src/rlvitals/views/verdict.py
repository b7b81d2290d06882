"""The words a run is judged in, the same in every command and page: healthy, watch, act, cannot judge."""

from __future__ import annotations

from collections.abc import Iterable

from rlvitals.records import SEVERITIES, Finding, Verdict

VERDICTS: tuple[Verdict, ...] = ("healthy", "cannot judge", "watch", "act")
"""From good to grave; what could not be judged is worse than healthy."""

FEW_ROWS = 8
"""Below so many rows silence says nothing."""


def verdict_of(findings: Iterable[Finding], rows: int) -> tuple[Verdict, str]:
    """The verdict recorded findings amount to, with its reason."""
    grave = sorted(
        (found for found in findings if found.severity != "info"), key=lambda found: -SEVERITIES.index(found.severity)
    )
    if grave:
        return worst(grave), counted(grave)
    if rows < FEW_ROWS:
        return "cannot judge", f"{plural(rows, 'row')}: too few to say anything; {FEW_ROWS} are the least"
    return "healthy", f"nothing to act on in {plural(rows, 'row')}"


def worst(findings: list[Finding]) -> Verdict:
    """The verdict findings amount to."""
    severities = {finding.severity for finding in findings}
    return "act" if "critical" in severities else "watch" if "warning" in severities else "healthy"


def counted(findings: list[Finding]) -> str:
    """How many rules speak at their worst, and the first of the gravest."""
    gravest: dict[str, Finding] = {}
    for finding in findings:
        gravest.setdefault(finding.rule, finding)
    criticals = [finding for finding in gravest.values() if finding.severity == "critical"]
    warnings = len(gravest) - len(criticals)
    parts = [plural(len(criticals), "critical finding")] if criticals else []
    parts += [plural(warnings, "warning")] if warnings else []
    first = min(criticals or gravest.values(), key=lambda finding: finding.step)
    return f"{', '.join(parts)}; first: {first.kind.replace('_', ' ')}, since step {first.onset_step}"


def plural(count: int, noun: str) -> str:
    """So many of something.

    >>> plural(1, "row"), plural(2000, "row")
    ('1 row', '2,000 rows')
    """
    return f"{count:,} {noun}{'' if count == 1 else 's'}"
