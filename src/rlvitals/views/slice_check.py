"""Judges a run slice by slice. The doctor reads the metrics of one environment, data source or agent instead of those
of the whole run. Metrics without slices are read unchanged.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Unpack

from rlvitals import catalog
from rlvitals.catalog import slices
from rlvitals.errors import ConfigError
from rlvitals.health.case import Case
from rlvitals.health.history import VERDICTS, verdict_of
from rlvitals.records import Fields, Finding, Verdict
from rlvitals.splits import is_held_out
from rlvitals.views.check import Listed, Report, check_source, report_on
from rlvitals.views.judge import Judge
from rlvitals.views.places import open_source
from rlvitals.views.sources import Known, RowSource, new_monitor

MOST_JUDGED = 100
"""Maximum slices of one run that are judged."""

_SCORES = ("reward", "eval_score")


@dataclass(frozen=True, slots=True)
class SliceVerdict:
    """The doctor's verdict on one slice's own metrics."""

    label: str
    verdict: Verdict
    findings: list[Finding]
    """Findings about the slice's metrics, the most severe first. Findings about the whole run are not included."""
    last_score: float | None
    """Its last reward, or its last held-out score."""

    def to_dict(self) -> dict[str, Any]:
        """Plain data with stable keys."""
        return {
            "slice": self.label,
            "verdict": self.verdict,
            "findings": [
                {"kind": found.kind, "severity": found.severity, "step": found.step, "title": found.title}
                for found in self.findings
            ],
            "last_score": self.last_score,
        }


@dataclass(frozen=True)
class SlicesReport(Listed[SliceVerdict]):
    """The verdicts on the slices of a run, as a sequence, and the report on the whole run."""

    whole: Report
    by: str
    slices: list[SliceVerdict]
    left_out: int = 0
    """Number of slices beyond MOST_JUDGED."""

    @property
    def verdict(self) -> Verdict:
        """The most severe verdict. A slice without a metric that a rule reads does not count."""
        judged = (one.verdict for one in self.slices if one.verdict != "cannot judge")
        return max((self.whole.verdict, *judged), key=VERDICTS.index)

    @property
    def listed(self) -> list[SliceVerdict]:
        return self.slices

    def to_dict(self) -> dict[str, Any]:
        """Plain data with stable keys."""
        return {
            "source": self.whole.source,
            "by": self.by,
            "verdict": self.verdict,
            "whole": self.whole.to_dict(),
            "slices": [one.to_dict() for one in self.slices],
            "left_out": self.left_out,
        }


def check_slice(path: str | os.PathLike[str], label: str, **known: Unpack[Known]) -> Report:
    """Judge a run or a log by one slice instead of the whole.

    Args:
        path: A run's directory or a log.
        label: The slice, such as `env=math`.
        **known: `rules`, `algorithm`, `framework`, `config` and `mapping`, as in `rlvitals.check`.

    Example:
        ```python
        import json

        import rlvitals

        with open("train.jsonl", "w") as log:
            for step in range(1, 41):
                row = {"step": step, "reward/env=math": 0.3 + 0.01 * step, "reward/env=code": 0.5 if step < 20 else 0.0}
                print(json.dumps(row), file=log)
        print(rlvitals.check_slice("train.jsonl", "env=math", algorithm="grpo").verdict)  # healthy
        ```
    """
    narrow = _narrowed(_names_of(path, known), _labels_of(label))
    source = open_source(path)
    # Recorded health events are about the whole run.
    source = replace(source, rows=map(narrow.row, source.rows), recorded=[])
    return check_source(source, **known)


def check_slices(path: str | os.PathLike[str], by: str, **known: Unpack[Known]) -> SlicesReport:
    """Judge a run or a log, and each of its slices.

    Args:
        path: A run's directory or a log.
        by: The key of the slices: `env`, `source`, `agent`, `task` or `tool`.
        **known: `rules`, `algorithm`, `framework`, `config` and `mapping`, as in `rlvitals.check`.

    Returns:
        The report on the run (`.whole`) and, as a sequence, the verdict on each slice.

    Example:
        ```python
        import json

        import rlvitals

        with open("train.jsonl", "w") as log:
            for step in range(1, 41):
                row = {"step": step, "reward/env=math": 0.3 + 0.01 * step, "reward/env=code": 0.5 if step < 20 else 0.0}
                print(json.dumps(row), file=log)
        slices = rlvitals.check_slices("train.jsonl", "env", algorithm="grpo")
        print(sorted(one.label for one in slices))  # ['env=code', 'env=math']
        ```
    """
    if by not in slices.KEYS:
        raise ConfigError(f"a run is divided by {', '.join(slices.KEYS)}; {by!r} is none of them")
    log = _names_of(path, known)
    values = dict.fromkeys(cut.labels[by] for cut in log.cuts.values() if by in cut.labels)
    if not values:
        raise ConfigError(f"no metric of {path} is divided by {by}.{_known(log)}")
    narrows = [_narrowed(log, {by: value}) for value in list(values)[:MOST_JUDGED]]
    source = open_source(path)
    judges = [Judge(new_monitor(source, **known)) for _ in narrows]
    whole = check_source(replace(source, rows=_feed_judges(source.rows, narrows, judges)), **known)
    verdicts = [_verdict(narrow, judge, source) for narrow, judge in zip(narrows, judges, strict=True)]
    return SlicesReport(whole, by, verdicts, len(values) - len(narrows))


class _Log:
    """The names of a log, as the monitor reads them."""

    def __init__(self, names: Sequence[str], reader: catalog.Reader) -> None:
        self.names = names
        self.reader = reader
        self.cuts = {name: cut for name in names if (cut := reader.cut(name))}

    def metric(self, name: str) -> tuple[str, bool]:
        """What a name measures without its labels: its concept, or the plain name if it is unknown."""
        found, cut = self.reader.meaning(name), self.cuts.get(name)
        plain = cut.name if cut else name
        return found.metric.id if found else plain, is_held_out(name)


class _Narrow:
    """The names of a log that are read for one slice."""

    def __init__(self, label: str, own: set[str], dropped: set[str]) -> None:
        self.label = label
        self.own = own
        """The slice's names."""
        self._dropped = dropped

    def row(self, row: Fields) -> Fields:
        return {name: value for name, value in row.items() if name not in self._dropped}


def _names_of(path: str | os.PathLike[str], known: Known) -> _Log:
    source = open_source(path)
    algorithm, framework = known.get("algorithm"), known.get("framework")
    recogniser, names = catalog.recogniser(), dict[str, None]()
    for row in source.rows:
        recogniser.take(row)
        names.update(dict.fromkeys(row))
    found = recogniser.found
    reader = catalog.reader(
        framework or source.framework or found.framework, algorithm or source.algorithm or found.algorithm
    )
    return _Log(list(names), reader)


def _narrowed(log: _Log, wanted: Mapping[str, str]) -> _Narrow:
    """Keep the slice's names. Drop other slices with these keys, and the same metrics of the whole run."""
    own = {name for name, cut in log.cuts.items() if wanted.items() <= cut.labels.items()}
    label = slices.text(wanted)
    if not own:
        raise ConfigError(f"no metric is logged for {label}.{_known(log)}")
    replaced = {log.metric(name) for name in own}
    others = {name for name, cut in log.cuts.items() if wanted.keys() & cut.labels.keys() and name not in own}
    wholes = {name for name in log.names if name not in own and log.metric(name) in replaced}
    return _Narrow(label, own, others | wholes)


def _feed_judges(rows: Iterable[Fields], narrows: Sequence[_Narrow], judges: Sequence[Judge]) -> Iterator[Fields]:
    """Pass each row to the judge of every slice, then yield it."""
    for row in rows:
        for narrow, judge in zip(narrows, judges, strict=True):
            judge.take(narrow.row(row))
        yield row


def _verdict(narrow: _Narrow, judge: Judge, source: RowSource) -> SliceVerdict:
    report = report_on(judge, replace(source, rows=(), recorded=[], notes=[], view=None, log=None, counted=judge))
    own = [found for found in report.findings if narrow.own.intersection(found.metrics)]
    verdict = "cannot judge" if not _is_read(judge.monitor.case, narrow.own) else verdict_of(own, judge.rows)[0]
    return SliceVerdict(narrow.label, verdict, own, _last_score(judge.monitor.case, narrow.own))


def _is_read(case: Case, own: set[str]) -> bool:
    return not own.isdisjoint(case.read_names)


def _last_score(case: Case, own: set[str]) -> float | None:
    for name in _SCORES:
        signal = case.signals.get(name)
        if signal is not None and signal.n and own.intersection(case.names_of(signal)):
            return signal.last
    return None


def _labels_of(label: str) -> dict[str, str]:
    cut = slices.cut(f"metric/{label}")
    if cut is None:
        raise ConfigError(f"{label!r} is not a slice: write KEY=VALUE, as in env=math; keys: {', '.join(slices.KEYS)}")
    return dict(cut.labels)


def _known(log: _Log) -> str:
    known = list(dict.fromkeys(slices.text(cut.labels) for cut in log.cuts.values()))
    if not known:
        return " The log has no slices: log a metric as NAME/env=VALUE"
    return f" It has {', '.join(known[:12])}{' and more' if len(known) > 12 else ''}"
