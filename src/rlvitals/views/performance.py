"""Time and memory of a run: phases step by step, shares, throughput percentiles, and samples of the machine."""

from __future__ import annotations

import re
from collections import defaultdict
from typing import Literal

import numpy as np

from rlvitals import catalog
from rlvitals.contract import MachineFacts, MemoryStage, MemoryUse, Performance, PhaseFacts, PhaseMemory, Speed
from rlvitals.records import PhaseSpan
from rlvitals.store.chunks import is_present
from rlvitals.store.layout import RunDir
from rlvitals.store.spans import last_spans
from rlvitals.views.chart_lines import within
from rlvitals.views.run import RunView
from rlvitals.views.thinning import thin
from rlvitals.views.tree import MOST_LISTED

MOST_SPANS = 2_000
"""Maximum phases that are listed: the newest of the range."""

MOST_READ = 50_000
"""Maximum phases that are read if no range is given: the newest. The shares are computed from them."""

SYSTEM_POINTS = 400

_MEMORY = re.compile(
    r"memory/(?P<phase>.+)/(?P<at>start|end)/(?P<side>offload|onload)"
    r"/(?P<kind>allocated|reserved|max_allocated|max_reserved)/(?P<device>[^/]+)"
)
_STATISTIC = re.compile(r"(?P<base>.+)\.(mean|p1|p99)")
"""A concept that is a statistic of another concept's values."""
_STAGES = ("start/offload", "start/onload", "end/onload", "end/offload")
"""The memory readings of a phase in order: before loading, loaded, executed, unloaded."""


def performance(view: RunView, first: int | None = None, last: int | None = None) -> Performance:
    """The response of `/api/performance`, for the steps from `first` to `last`."""
    spans = _spans(view, first, last)
    return {
        "phases": [_phase_facts(span) for span in spans[-MOST_SPANS:]],
        "left_out": max(0, len(spans) - MOST_SPANS),
        "share": shares(spans),
        "throughput": throughput(view, first, last),
        "memory": memory(view, first, last),
        "system": system(view, first, last),
    }


def shares(spans: list[PhaseSpan]) -> dict[str, float]:
    """The share of each phase in the time of all outermost phases, without its inner phases; the largest first.

    >>> inside = PhaseSpan("load", 1.0, 2.0, 1, 1, "train")
    >>> spans = [inside, PhaseSpan("train", 0.0, 4.0, 1, 1), PhaseSpan("save", 4.0, 5.0, 1, 1)]
    >>> shares(spans)
    {'train': 0.6, 'load': 0.2, 'save': 0.2}
    """
    own: defaultdict[str, float] = defaultdict(float)
    whole = 0.0
    for span in spans:
        seconds = max(0.0, span.end - span.start)
        own[span.phase] += seconds
        if span.parent:
            own[span.parent] -= seconds
        else:
            whole += seconds
    ordered = sorted(own.items(), key=lambda item: -item[1])
    return {name: max(0.0, seconds) / whole for name, seconds in ordered} if whole > 0 else {}


def throughput(view: RunView, first: int | None = None, last: int | None = None) -> dict[str, Speed]:
    """Every speed of the run with its slow tail, median and best: percentiles over the rows. Logged means and
    percentiles of these speeds are left out, because percentiles of percentiles are not meaningful.
    """
    found: dict[str, Speed] = {}
    speeds: dict[str, tuple[str, str]] = {}
    for name in view.metrics[:MOST_LISTED]:
        meaning = view.meaning(name)
        if meaning is None or meaning.metric.family != "throughput":
            continue
        steps, values = view.series(name)
        kept = values[within(steps, first, last) & np.isfinite(values)]
        if len(kept):
            p1, p50, p99 = (float(value) for value in np.percentile(kept, (1, 50, 99)))
            found[name] = {
                "title": meaning.metric.title, "unit": meaning.metric.unit, "points": len(kept),
                "last": float(kept[-1]), "p1": p1, "p50": p50, "p99": p99,
            }  # fmt: skip
            speeds[name] = (meaning.metric.id, _phase_of(name, meaning))
    measured = set(speeds.values())
    return {name: facts for name, facts in found.items() if _base_of(*speeds[name]) not in measured}


def _base_of(concept: str, phase: str) -> tuple[str, str] | None:
    """The speed of which this is the mean or a percentile; None for a speed itself.

    >>> _base_of("perf.phase.tokens_per_s.p1", "train_step"), _base_of("perf.phase.tokens_per_s", "train_step")
    (('perf.phase.tokens_per_s', 'train_step'), None)
    """
    parts = _STATISTIC.fullmatch(concept)
    return (parts["base"], phase) if parts else None


def _phase_of(name: str, meaning: catalog.Match) -> str:
    """The value of the placeholder in the catalogue's name, which distinguishes phases."""
    head, brace, rest = (meaning.alias.name if meaning.alias else "").partition("{")
    return name[len(head) : len(name) - len(rest.partition("}")[2])] if brace else ""


def memory(view: RunView, first: int | None = None, last: int | None = None) -> list[PhaseMemory]:
    """GiB of each phase and device: before loading, loaded, executed, unloaded. The last value in the range, and the
    highest peak.
    """
    stages: dict[tuple[str, str], dict[str, MemoryUse]] = {}
    peaks: dict[tuple[str, str], MemoryUse] = {}
    for name in view.metrics[:MOST_LISTED]:
        parts = _MEMORY.fullmatch(name)
        if parts is None:
            continue
        steps, values = view.series(name)
        kept = values[within(steps, first, last) & np.isfinite(values)]
        if not len(kept):
            continue
        key = (parts["phase"], parts["device"])
        seen, peak = stages.setdefault(key, {}), peaks.setdefault(key, {})
        kind: Literal["allocated", "reserved"] = "allocated" if parts["kind"].endswith("allocated") else "reserved"
        if parts["kind"].startswith("max_"):
            peak[kind] = max(peak.get(kind, 0.0), float(kept.max()))
        else:
            seen.setdefault(f"{parts['at']}/{parts['side']}", {})[kind] = float(kept[-1])
    return [
        {"phase": phase, "device": device, "stages": _in_order(seen), "peak": peaks[phase, device]}
        for (phase, device), seen in stages.items()
    ]


def _in_order(seen: dict[str, MemoryUse]) -> list[MemoryStage]:
    return [{"stage": stage, **seen[stage]} for stage in _STAGES if stage in seen]


def system(view: RunView, first: int | None = None, last: int | None = None) -> MachineFacts:
    """The samples of the machine over time, downsampled with peaks kept."""
    samples = view.system()
    steps, times = samples["step"], samples["timestamp"]
    seen = within(steps, first, last) & np.isfinite(times)
    drawn = {}
    for name, values in samples.items():
        if name in ("timestamp", "step", "attempt"):
            continue
        has = seen & is_present(values) & ~np.isnan(values)
        if has.any():
            drawn[name] = thin(times[has], values[has], steps[has], SYSTEM_POINTS)
    return {"samples": int(seen.sum()), "lines": drawn}


def _spans(view: RunView, first: int | None, last: int | None) -> list[PhaseSpan]:
    """The phases in a range of steps. Without a range, those of the newest part of a long log."""
    newest = last_spans(RunDir(view.path).log("phases"), MOST_READ)
    reaches = len(newest) < MOST_READ or (first is not None and first > min(span.step for span in newest))
    read = newest if reaches or (first is None and last is None) else view.phases()
    is_asked = within(np.array([span.step for span in read], dtype=np.int64), first, last)
    return [span for span, is_one in zip(read, is_asked, strict=True) if is_one]


def _phase_facts(span: PhaseSpan) -> PhaseFacts:
    return {
        "step": span.step,
        "name": span.phase,
        "start": span.start,
        "end": span.end,
        "parent": span.parent,
        "error": span.error,
        "attempt": span.attempt,
    }
