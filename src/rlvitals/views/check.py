"""The doctor's report on a run or a log. Rows are judged one by one, without looking ahead.

report = rlvitals.check("out/kto")
report.verdict, [finding.title for finding in report.findings]
"""

from __future__ import annotations

import os
from abc import abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field, fields
from pathlib import Path
from typing import Any, TypeVar, Unpack, overload

from rlvitals.contract import Hindsight
from rlvitals.documentation import more_about
from rlvitals.errors import RunUnreadable
from rlvitals.health.case import Case
from rlvitals.health.history import VERDICTS, History, is_standing, worst
from rlvitals.health.naming import Taken, check_names
from rlvitals.records import SEVERITIES, Finding, Verdict
from rlvitals.views.diagnosis import of_judge
from rlvitals.views.discovery import is_run
from rlvitals.views.hindsight import Neighbours, hindsight
from rlvitals.views.judge import Judge, RaisedFinding, Trace
from rlvitals.views.logs import LogView
from rlvitals.views.missing_metrics import Unjudged, unjudged
from rlvitals.views.places import open_all, open_source, places_in
from rlvitals.views.run import RunView
from rlvitals.views.sources import RUN, Known, RowSource, Rules, judge_source, new_monitor

T = TypeVar("T")

KEPT_OF_A_RULE = 10
"""Findings that are kept per rule and severity. Further ones are only counted, because an alarm may return any number
of times.
"""


@dataclass(frozen=True, slots=True)
class Report:
    """The doctor's report on one run."""

    source: str
    format: str
    verdict: Verdict
    reason: str
    """The verdict in one sentence."""
    points: int = 0
    """Rows that were judged. Rows of one step are joined; evaluations and superseded rows are included."""
    rows: int = 0
    """Training rows of the living line: the number that every list and page shows."""
    first_step: int | None = None
    last_step: int | None = None
    algorithm: str | None = None
    framework: str | None = None
    findings: list[Finding] = field(default_factory=list)
    """Warnings and critical findings: the most severe first, then in the order they were raised."""
    said_at: list[int] = field(default_factory=list)
    """The row at which each of them was raised, counted from 1, because steps may restart within a log."""
    normal: list[Finding] = field(default_factory=list)
    """Findings that are no reason to worry."""
    cannot_judge: list[Unjudged] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)
    names: list[Taken] = field(default_factory=list)
    """For each signal the logged name it was read from, the concept, and how certain that is."""
    parts: dict[str, float | None] = field(default_factory=dict)
    """The names of the reward's parts, with their weights if the parts add up to the reward."""
    series: dict[str, Trace] = field(default_factory=dict)
    """The metrics that the findings are about, downsampled, with every extreme kept."""
    hindsight: Hindsight | None = None
    """For a run that went wrong: the cost of continuing, and the checkpoint to revert to."""

    @property
    def ongoing(self) -> frozenset[str]:
        """The alarms that have not recovered: rules, and rules about one slice."""
        return frozenset(finding.alarm for finding in self.findings if is_standing(finding))

    def to_dict(self) -> dict[str, Any]:
        """Plain data with stable keys."""
        facts = {item.name: getattr(self, item.name) for item in fields(self) if item.name != "said_at"}
        return facts | {
            "findings": [
                asdict(finding) | {"row": row, "more": more_about(finding.rule)}
                for finding, row in zip(self.findings, self.said_at, strict=True)
            ],
            "normal": [asdict(finding) for finding in self.normal],
            "cannot_judge": [asdict(item) for item in self.cannot_judge],
            "notes": list(self.notes),
            "names": [asdict(taken) for taken in self.names],
            "parts": dict(self.parts),
            "series": {name: trace.to_dict() for name, trace in self.series.items()},
        }


class Listed(Sequence[T]):
    """A sequence over the items of `listed`."""

    @property
    @abstractmethod
    def listed(self) -> list[T]:
        """The items, in order."""

    def __len__(self) -> int:
        return len(self.listed)

    @overload
    def __getitem__(self, place: int) -> T: ...
    @overload
    def __getitem__(self, place: slice) -> list[T]: ...
    def __getitem__(self, place: int | slice) -> T | list[T]:
        return self.listed[place]


@dataclass(frozen=True)
class FolderReport(Listed[Report]):
    """The reports on everything in a folder, as a sequence, and the files that are not logs, with the reason."""

    source: str
    reports: list[Report]
    passed_over: dict[str, str]

    @property
    def verdict(self) -> Verdict:
        """The most severe verdict."""
        return max((report.verdict for report in self.reports), key=VERDICTS.index, default="cannot judge")

    @property
    def listed(self) -> list[Report]:
        return self.reports

    def to_dict(self) -> dict[str, Any]:
        """Plain data with stable keys."""
        return {
            "source": self.source,
            "verdict": self.verdict,
            "reports": [report.to_dict() for report in self.reports],
            "passed_over": dict(self.passed_over),
        }


def check(
    path: str | os.PathLike[str],
    rules: Rules = None,
    algorithm: str | None = None,
    framework: str | None = None,
    config: Mapping[str, Any] | None = None,
    *,
    mapping: Mapping[str, str] | None = None,
) -> Report | FolderReport:
    """Judge a run, a log any other tool wrote, or a folder of them.

    Args:
        path: A run's directory, a log, a folder of these, a URL, or a run on a tracker's server.
        rules: A preset's name, a rule file, a rule such as "kl > 0.5 for 5: warning", or a list of these. Without any,
            the rules with which a recorded run was monitored.
        algorithm: The training algorithm, if the log does not contain it: `grpo`, `dpo`, ...
        framework: The framework whose metric names the log uses: `trl`, `verl`, ...
        config: Settings that the log does not contain: `num_generations`, `reward_max`, ...
        mapping: The concepts of metric names: {"my_name": "reward.total.mean"}.

    Returns:
        A report with `verdict`, `reason` and `findings`; for a folder a sequence of reports.

    Example:
        ```python
        import json

        import rlvitals

        with open("train.jsonl", "w") as log:
            for step in range(1, 31):
                row = {"step": step, "reward": 0.3 + 0.01 * (step % 4), "grad_norm": 0.0 if step > 10 else 0.5}
                print(json.dumps(row), file=log)
        report = rlvitals.check("train.jsonl", algorithm="grpo")
        print(report.verdict, report.findings[0].rule)  # act dead_gradient
        ```
    """
    known = Known(rules=rules, algorithm=algorithm, framework=framework, config=config, mapping=mapping)
    places = places_in(path)
    if places is None:
        return check_source(open_source(path), **known)
    reports, skipped = [], {}
    neighbours = Neighbours.below(Path(path).absolute())
    logged: set[str] = set()
    new_monitor(None, **known)  # a wrong rule raises once, and first
    for opened in open_all(places):
        if not isinstance(opened, RowSource):
            place, reason = opened
            if isinstance(reason, RunUnreadable) or (isinstance(reason, OSError) and is_run(place)):
                reports.append(_unreadable(place, reason))
            else:
                skipped[str(place)] = str(reason)
            continue
        try:
            judge = judge_source(opened, new_monitor(opened, **known))
            logged.update(judge.monitor.case.names)
            reports.append(report_on(judge, opened, neighbours))
        except (RunUnreadable, OSError) as error:  # raised while its rows were read
            reports.append(_unreadable(opened.path, error))
    if not reports:  # none of the files is a log; there may be one in a subfolder
        return check_source(open_source(path), **known)
    check_names(mapping or {}, logged)
    return FolderReport(str(path), reports, skipped)


def _unreadable(place: Path, error: Exception) -> Report:
    """The report on an unreadable run in a folder, so that a gate does not count it as healthy."""
    return Report(source=str(place), format=RUN, verdict="cannot judge", reason=str(error))


def check_source(source: RowSource, **known: Unpack[Known]) -> Report:
    """Judge a source that is already open. Raises ConfigError for a mapped name that is not in it."""
    judge = judge_source(source, new_monitor(source, **known))
    check_names(known.get("mapping") or {}, judge.monitor.case.names)
    return report_on(judge, source)


def report_on(judge: Judge, source: RowSource, neighbours: Neighbours | None = None) -> Report:
    """The report on the rows so far. `neighbours` are the runs among which a healthy one is searched; by default those
    in the same folder.
    """
    monitor = judge.monitor
    view = _view(source)
    counted = view or source.counted or judge
    diagnosis = of_judge(judge, counted)
    kept, notes = _without_repetition(judge.raised)
    grave = sorted(
        (raised for raised in kept if raised.finding.severity != "info"),
        key=lambda raised: -SEVERITIES.index(raised.finding.severity),
    )
    findings = [raised.finding for raised in grave]
    grave_alarms = {finding.alarm for finding in findings}  # an alarm that got worse later is not listed as harmless
    normal = [
        raised.finding
        for raised in kept
        if raised.finding.severity == "info" and raised.finding.alarm not in grave_alarms
    ]
    notes = [*source.notes, *notes]
    if monitor.left_unsaid:
        notes.append(f"lesser findings left out because they came with more severe ones: {monitor.left_unsaid}")
    logged = set(monitor.case.names)
    notes += [
        f"{name}, which is mapped to {concept}, is not logged"
        for name, concept in monitor.case.mapping.items()
        if name not in logged
    ]
    notes += [f"the rule {rule} failed and was disabled: {error}" for rule, error in monitor.problems.items()]
    own = History(source.recorded).findings
    if own and worst(own) != worst(findings):
        notes.append(
            f"the run's own monitor said {worst(own)!r} while it trained; judged now, from its log, it is "
            f"{diagnosis.verdict!r}"
        )
    metrics = dict.fromkeys(name for finding in findings for name in finding.metrics)
    traces = {name: trace for name in metrics if (trace := judge.trace(name)) is not None}
    return Report(
        source=str(source.path),
        format=source.format,
        verdict=diagnosis.verdict,
        reason=diagnosis.reason,
        points=judge.points,
        rows=counted.rows,
        first_step=counted.first_step,
        last_step=counted.last_step,
        algorithm=monitor.case.algorithm,
        framework=monitor.case.framework,
        findings=findings,
        said_at=[raised.point for raised in grave],
        normal=normal,
        cannot_judge=unjudged(monitor),
        notes=notes,
        names=monitor.case.taken,
        parts=_parts(monitor.case),
        series=traces,
        hindsight=None if view is None else hindsight(view, findings, neighbours or Neighbours.of(view.path)),
    )


def _view(source: RowSource) -> RunView | None:
    """A view of what the rows are read from, if there is one."""
    if isinstance(source.view, RunView):
        return source.view
    return None if source.log is None else LogView(source.log, source.path)


def _parts(case: Case) -> dict[str, float | None]:
    weights = {name: float(f"{weight:.6g}") for name, weight in case.part_weights.items()}
    return {part.key: weights.get(name) for name, part in case.parts.items()}


def _without_repetition(raised: list[RaisedFinding]) -> tuple[list[RaisedFinding], list[str]]:
    """The first findings and the newest of an alarm that keeps returning, and a note on the others."""
    by_alarm: dict[tuple[str, str], list[RaisedFinding]] = {}
    for one in raised:
        by_alarm.setdefault((one.finding.alarm, one.finding.severity), []).append(one)
    left_out: set[int] = set()
    notes = []
    for (alarm, severity), ones in by_alarm.items():
        if len(ones) > KEPT_OF_A_RULE:
            left_out.update(map(id, ones[KEPT_OF_A_RULE - 1 : -1]))
            notes.append(
                f"{alarm} came and went {len(ones)} times ({severity}); the first {KEPT_OF_A_RULE - 1} and the last "
                "are kept"
            )
    return [one for one in raised if id(one) not in left_out], notes
