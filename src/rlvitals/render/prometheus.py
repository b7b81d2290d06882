r"""Readings of runs in the Prometheus text format, version 0.0.4, for a scraper or the node exporter.

`RUN_FAMILIES` lists the metrics exported for each run; `docs/fleets.md` has the same list as a table. Each sample of a
run has the labels `project` and `run`. Further labels have a fixed set of values, except in `rlvitals_run_info`, which
has one sample per run. The number of series therefore grows only with the number of runs.

>>> escaped('a "b"\n\\')
'a \\"b\\"\\n\\\\'
>>> number(float("inf")), number(float("nan")), number(3.0), number(0.1)
('+Inf', 'NaN', '3', '0.1')
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import lru_cache
from typing import NamedTuple

from rlvitals.records import SEVERITIES, STATUSES, RunReading, Verdict

CONTENT_TYPE = "text/plain; version=0.0.4; charset=utf-8"

VERDICT_NUMBERS: Mapping[Verdict, int] = {"cannot judge": -1, "healthy": 0, "watch": 1, "act": 2}

LONGEST_NAME = 120
"""The most characters of a run's name in a label. Paths are not cut, since two runs could get the same labels."""

Sample = tuple[str, float]
"""Further labels, already escaped and formatted, and the value."""


class MetricFamily(NamedTuple):
    """One metric: its name, type and help text, and a function that returns its samples for one run."""

    name: str
    type: str
    help: str
    samples: Callable[[RunReading], Iterable[Sample]]


def _one(value: float | None) -> list[Sample]:
    return [] if value is None else [("", float(value))]


def _info(run: RunReading) -> list[Sample]:
    facts = {"name": run.name[:LONGEST_NAME], "algorithm": run.algorithm, "framework": run.framework}
    return [(labels(facts), 1.0)]


RUN_FAMILIES = (
    MetricFamily("rlvitals_run_info", "gauge", "A recorded run; its name, algorithm and framework are labels.", _info),
    MetricFamily(
        "rlvitals_run_status", "gauge", "1 for the status the run has, 0 for the others.",
        lambda run: [(labels({"status": status}), float(run.status == status)) for status in STATUSES],
    ),
    MetricFamily(
        "rlvitals_run_verdict", "gauge", "The verdict: 0 healthy, 1 watch, 2 act, -1 cannot judge.",
        lambda run: _one(VERDICT_NUMBERS[run.verdict]),
    ),
    MetricFamily("rlvitals_run_step", "gauge", "The step of the newest training row.", lambda run: _one(run.step)),
    MetricFamily("rlvitals_run_planned_steps", "gauge", "The number of steps planned.", lambda r: _one(r.total_steps)),
    MetricFamily("rlvitals_run_rows_total", "counter", "Training rows recorded.", lambda run: _one(run.rows)),
    MetricFamily("rlvitals_run_attempt", "gauge", "The number of the current start.", lambda run: _one(run.attempt)),
    MetricFamily(
        "rlvitals_run_started_timestamp_seconds", "gauge", "When the run was first started, as Unix time.",
        lambda run: _one(run.started),
    ),
    MetricFamily(
        "rlvitals_run_last_row_timestamp_seconds", "gauge", "When the newest row was logged, as Unix time.",
        lambda run: _one(run.last_row),
    ),
    MetricFamily(
        "rlvitals_run_tokens_per_second", "gauge", "Tokens per second, as the run logs them.",
        lambda run: _one(run.tokens_per_s),
    ),
    MetricFamily(
        "rlvitals_run_open_findings", "gauge", "Findings that have not recovered, by severity.",
        lambda run: [(labels({"severity": name}), float(run.open_findings.get(name, 0))) for name in SEVERITIES],
    ),
    MetricFamily(
        "rlvitals_run_findings_total", "counter", "Findings raised, by severity.",
        lambda run: [(labels({"severity": name}), float(run.raised_findings.get(name, 0))) for name in SEVERITIES],
    ),
    MetricFamily(
        "rlvitals_run_vital_sign", "gauge", "The newest value of a vital sign, by the id of the rlvitals catalogue.",
        lambda run: [(labels({"sign": sign}), value) for sign, value in run.vitals.items()],
    ),
)  # fmt: skip

FOLDER_FAMILIES = {
    "rlvitals_runs": ("gauge", "Recorded runs in the served folder."),
    "rlvitals_runs_left_out": ("gauge", "Runs in the served folder that this page does not show, by reason."),
    "rlvitals_exposition_duration_seconds": ("gauge", "How long reading the runs took for this page."),
    "rlvitals_build_info": ("gauge", "The rlvitals version that wrote this page."),
}


class FolderReading(NamedTuple):
    """Readings of a served folder."""

    project: str
    runs: int
    left_out: Mapping[str, int]
    """Number of runs by reason."""
    seconds: float
    version: str


def run_text(runs: Sequence[RunReading]) -> str:
    """The metric families of runs, each with its help and type. Each pair of project and path must be unique."""
    heads = [labels({"project": run.project, "run": run.run}) for run in runs]
    lines: list[str] = []
    for family in RUN_FAMILIES:
        samples = [
            f"{family.name}{{{head}{',' if more else ''}{more}}} {number(value)}"
            for head, run in zip(heads, runs, strict=True)
            for more, value in family.samples(run)
        ]
        if samples:
            lines += [f"# HELP {family.name} {family.help}", f"# TYPE {family.name} {family.type}", *samples]
    return "".join(f"{line}\n" for line in lines)


def folder_text(folder: FolderReading, runs: Sequence[RunReading]) -> str:
    """The metric families of a served folder and of its runs."""
    own = labels({"project": folder.project})
    samples: dict[str, list[Sample]] = {
        "rlvitals_runs": [(own, folder.runs)],
        "rlvitals_runs_left_out": [
            (f"{own},{labels({'reason': reason})}", count) for reason, count in folder.left_out.items()
        ],
        "rlvitals_exposition_duration_seconds": [(own, round(folder.seconds, 6))],
        "rlvitals_build_info": [(f"{own},{labels({'version': folder.version})}", 1)],
    }
    lines = []
    for name, (kind, about) in FOLDER_FAMILIES.items():
        lines += [f"# HELP {name} {about}", f"# TYPE {name} {kind}"]
        lines += [f"{name}{{{label_text}}} {number(value)}" for label_text, value in samples[name]]
    return "".join(f"{line}\n" for line in lines) + run_text(runs)


def labels(given: Mapping[str, str]) -> str:
    """Labels in the form used between the braces of a sample."""
    return ",".join([_label(name, value) for name, value in given.items()])


@lru_cache(maxsize=16_384)
def _label(name: str, value: str) -> str:
    """One label. Cached, since every scrape writes the same labels."""
    return f'{name}="{escaped(value)}"'


def escaped(text: str) -> str:
    """A label's value with quotes, backslashes and line breaks escaped, as valid UTF-8."""
    text = text.encode("utf-8", "replace").decode()
    return text.replace("\\", "\\\\").replace("\n", "\\n").replace('"', '\\"')


def number(value: float) -> str:
    """A sample's value, in full precision."""
    if math.isnan(value):
        return "NaN"
    if math.isinf(value):
        return "+Inf" if value > 0 else "-Inf"
    return repr(int(value)) if value == int(value) and abs(value) < 2**53 else repr(float(value))
