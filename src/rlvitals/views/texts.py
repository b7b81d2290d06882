"""Scans the texts of stored rollouts of a run, a dump, or both (`scan` reads them, `health.texts` judges them)."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import asdict, replace
from typing import Any

from rlvitals.health.history import worst
from rlvitals.health.rulebook import Rulebook
from rlvitals.records import Group, HealthEvent, Severity
from rlvitals.scan import Scan, Scanner, Scans
from rlvitals.scan.registry import EXPLOITS
from rlvitals.scan.rubric import RolloutPlace
from rlvitals.scan.tally import Tally
from rlvitals.views.rollouts import RolloutSource

MARKING = frozenset({*EXPLOITS, "only_the_format", "gives_no_number", "copies_the_reference"})
"""Scanners of reward exploits. Their marks are compared with a model's answers to a rubric."""

MOST_ROLLOUTS = 4000
"""Rollouts that are read while a user waits for a page or a report. Steps are evenly spaced and include the last one.
`rlvitals scan` reads all rollouts.
"""


def scan_rollouts(
    source: RolloutSource, *, scanners: Sequence[Scanner] = (), rules: Rulebook | None = None,
    most: int | None = None,
) -> Scan:  # fmt: skip
    """Scan stored rollouts step by step, at most about `most`."""
    scans = Scans(rules, scanners)
    events: list[HealthEvent] = []
    rollouts = steps = 0
    for step, groups in _read(source, most):
        last = groups[-1]
        found = scans.take(groups, step)
        events += [replace(event, timestamp=last.timestamp, attempt=last.attempt) for event in found]
        rollouts += sum(len(group.rollouts) for group in groups)
        steps += 1
    return Scan(rollouts, steps, scans, events)


def _read(source: RolloutSource, most: int | None) -> Iterator[tuple[int, list[Group]]]:
    steps = source.steps
    if most is not None and steps:
        total = sum(row["rollouts"] for row in source.overview())
        every = -(-total // most)
        steps = steps[::-1][:: max(every, 1)][::-1]
    for step in steps:
        groups = source.at(step)
        if groups:
            yield step, groups


def text_events(source: RolloutSource, rules: Rulebook | None = None) -> list[HealthEvent]:
    """The health events from rollouts, limited to MOST_ROLLOUTS."""
    return scan_rollouts(source, rules=rules, most=MOST_ROLLOUTS).events


def scan_facts(path: str, found: Scan) -> dict[str, Any]:
    """The results of a scan, as plain data with stable keys."""
    findings = found.findings
    standing = found.scans.rules.standing
    return {
        "source": path,
        "verdict": worst(findings) if found.rollouts else "cannot judge",
        "rollouts": found.rollouts,
        "steps": found.steps,
        "patterns": [
            _pattern(name, tally, found.scans.spread, standing.get(name)) for name, tally in found.scans.tallies.items()
        ],
        "findings": [asdict(finding) for finding in findings],
        "problems": dict(found.scans.problems),
    }


def _pattern(name: str, tally: Tally, spread: float, severity: Severity | None) -> dict[str, Any]:
    seen = tally.scanned(name, 0, spread)
    return {
        "pattern": name, "severity": severity, "hits": tally.hits, "rollouts": tally.rollouts, "share": seen.share,
        "start_share": seen.start_share, "gain": seen.gain, "gain_z": seen.gain_z, "growth_z": seen.growth_z,
        "reward_of_hits": tally.mean_of_hits, "reward_of_others": tally.mean_of_others,
    }  # fmt: skip


def marked_rollouts(source: RolloutSource, scans: Scans, most: int | None = None) -> list[tuple[RolloutPlace, bool]]:
    """Every rollout that was read, and whether a scanner of exploits, or one of the user's, marked it."""
    wanted = {scanner.name for scanner in scans.scanners if scanner.rule is not None or scanner.name in MARKING}
    found = []
    for step, groups in _read(source, most):
        for number, group in enumerate(groups, 1):
            for rollout, hits in enumerate(scans.hits(group, step, number), 1):
                found.append((RolloutPlace(step, number, rollout), any(hit.pattern in wanted for hit in hits)))
    return found
