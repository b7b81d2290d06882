"""Apply rules to past logs: which findings they would have raised, when, and how many of them are false alarms."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from statistics import median
from typing import Any

from rlvitals.errors import RlvitalsError
from rlvitals.records import Finding
from rlvitals.views.judge import Judge, RaisedFinding
from rlvitals.views.labels import Label
from rlvitals.views.places import open_all, places_in
from rlvitals.views.sources import RowSource, Rules, new_monitor

EARLY_POINTS = 12
"""A problem that begins up to this point counts as present from the start."""
EARLY_DEADLINE = 40
"""The point by which such a run must have a critical finding."""
LATE_POINTS, LATE_SHARE = 15, 0.2
"""A later problem must be reported within this number of points, or this share of the run, after its onset."""


@dataclass(frozen=True, slots=True)
class Result:
    """The result of the rules on one log."""

    file: str
    path: str
    points: int
    label: str | None
    what: str
    onset_step: int | None
    onset_point: int | None
    """The row at which the problem began, counted from 1."""
    first_warning: dict[str, Any] | None
    """The first warning or critical finding: point, step, kind, rule."""
    first_critical: dict[str, Any] | None
    kinds: list[str]
    """The kinds of all warnings and critical findings, in the order they were raised."""
    in_time: bool | None
    """For a failed run: whether a critical finding was raised in time. None for other runs."""
    delay: int | None
    """Points from the onset to the first critical finding; negative if it was raised before the onset."""
    kind_right: bool | None
    """Whether a finding has one of the label's kinds; None if the label has none."""


@dataclass(frozen=True, slots=True)
class ShareOfLogs:
    """A count out of a total, with the Wilson 95 % interval of the share."""

    count: int
    of: int
    low: float
    high: float


@dataclass(frozen=True, slots=True)
class Backtest:
    """All results and their totals."""

    rules: list[str]
    results: list[Result]
    passed_over: dict[str, str]

    def totals(self) -> dict[str, Any]:
        """Hits, delay and false alarms, as far as the labels allow."""
        failed = [result for result in self.results if result.label == "fail"]
        watched = [result for result in self.results if result.label == "watch"]
        healthy = [result for result in self.results if result.label == "healthy"]
        late = [result for result in failed if result.onset_point is not None and result.onset_point > EARLY_POINTS]
        early = [result for result in failed if result.onset_point is not None and result.onset_point <= EARLY_POINTS]
        named = [result for result in failed if result.kind_right is not None]
        delays = [result.delay for result in failed if result.delay is not None]
        return {
            "failed_critical_in_time": share(result.in_time is True for result in failed if result.in_time is not None),
            "failed_from_the_start_in_time": share(result.in_time is True for result in early),
            "failed_later_in_time": share(result.in_time is True for result in late),
            "failed_critical": share(result.first_critical is not None for result in failed),
            "failed_warned": share(result.first_warning is not None for result in failed),
            "failed_kind_right": share(result.kind_right is True for result in named),
            "median_delay_points": median(delays) if delays else None,
            "watch_warned": share(result.first_warning is not None for result in watched),
            "healthy_quiet": share(result.first_warning is None for result in healthy),
            "healthy_warned": share(result.first_warning is not None for result in healthy),
            "healthy_critical": share(result.first_critical is not None for result in healthy),
            "unlabelled_warned": share(result.first_warning is not None for result in self.results if not result.label),
            "unlabelled_critical": share(
                result.first_critical is not None for result in self.results if not result.label
            ),
        }

    def to_dict(self) -> dict[str, Any]:
        """Plain data with stable keys."""
        totals = {
            name: asdict(value) if isinstance(value, ShareOfLogs) else value for name, value in self.totals().items()
        }
        return {
            "rules": self.rules,
            "totals": totals,
            "results": [asdict(result) for result in self.results],
            "passed_over": self.passed_over,
        }


def backtest(rules: Sequence[str], paths: Iterable[str | Path], labels: dict[str, Label] | None = None) -> Backtest:
    """Run the rules over runs and logs, each row by row. `default` stands for the shipped rules."""
    chosen = list(rules)
    new_monitor(None, chosen)  # a wrong rule raises before any log is read
    places: list[Path] = []
    for path in paths:
        found = places_in(path)
        places += [Path(path)] if found is None else found
    results, skipped = [], {}
    for place, opened in zip(places, open_all(places), strict=True):
        if isinstance(opened, RowSource):
            results.append(_result(place, opened, chosen, (labels or {}).get(place.name)))
        else:
            skipped[str(place)] = str(opened[1])
    if not results:
        raise RlvitalsError("; ".join(skipped.values()) or "no logs to try the rules on")
    return Backtest(list(rules), results, skipped)


def _result(place: Path, source: RowSource, rules: Rules, label: Label | None) -> Result:
    judge = Judge(new_monitor(source, rules))
    onset_point = None
    for row in source.rows:
        judge.take(row)
        onset = label.onset_step if label else None
        if onset_point is None and onset is not None and judge.monitor.case.step >= onset:
            onset_point = judge.points
    if label is not None and label.onset_step is not None and onset_point is None:
        onset_point = judge.points  # the problem begins after the last row of this log
    grave = [raised for raised in judge.raised if raised.finding.severity != "info"]
    warning = grave[0] if grave else None
    critical = next((raised for raised in grave if raised.finding.severity == "critical"), None)
    kinds = list(dict.fromkeys(raised.finding.kind for raised in grave))
    is_timed = label is not None and label.verdict == "fail" and onset_point is not None
    return Result(
        file=place.name,
        path=str(place),
        points=judge.points,
        label=label.verdict if label else None,
        what=label.what if label else "",
        onset_step=label.onset_step if label else None,
        onset_point=onset_point,
        first_warning=_first(warning),
        first_critical=_first(critical),
        kinds=kinds,
        in_time=_is_in_time(critical, onset_point or 1, judge.points) if is_timed else None,
        delay=critical.point - onset_point if critical and onset_point else None,
        kind_right=bool(set(kinds) & set(label.kinds)) if label and label.kinds else None,
    )


def _is_in_time(critical: RaisedFinding | None, onset_point: int, points: int) -> bool:
    return critical is not None and critical.point <= deadline(onset_point, points)


def deadline(onset_point: int, points: int) -> float:
    """The last row at which a critical finding is in time.

    >>> deadline(1, 200), deadline(50, 60), deadline(50, 200)
    (40, 65, 90.0)
    """
    if onset_point <= EARLY_POINTS:
        return EARLY_DEADLINE
    return onset_point + max(LATE_POINTS, LATE_SHARE * points)


def _first(raised: RaisedFinding | None) -> dict[str, Any] | None:
    if raised is None:
        return None
    finding: Finding = raised.finding
    return {"point": raised.point, "step": finding.step, "kind": finding.kind, "rule": finding.rule}


def share(answers: Iterable[bool]) -> ShareOfLogs | None:
    """How many are true, with an interval that is wide for few values; None without values.

    >>> share([True, True, True])
    ShareOfLogs(count=3, of=3, low=0.438, high=1.0)
    """
    counted = list(answers)
    if not counted:
        return None
    count, of, z = sum(counted), len(counted), 1.96
    rate = count / of
    scale = 1 + z * z / of
    centre = (rate + z * z / (2 * of)) / scale
    half = z * math.sqrt(rate * (1 - rate) / of + z * z / (4 * of * of)) / scale
    return ShareOfLogs(count, of, round(max(centre - half, 0.0), 3), round(min(centre + half, 1.0), 3))
