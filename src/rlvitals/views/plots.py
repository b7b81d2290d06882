"""The curves in a plot of a run: the vital signs of its algorithm, the requested metrics, or the metrics that several
runs have in common.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import numpy as np
from numpy.typing import NDArray

from rlvitals import catalog
from rlvitals.errors import ConfigError, UnknownMetric
from rlvitals.health.history import worst_of_alarms
from rlvitals.records import SEVERITIES, Finding
from rlvitals.render.numbers import number
from rlvitals.render.run_plots import Mark, Panel, Picture, PlotLine
from rlvitals.splits import is_held_out
from rlvitals.store.layout import STREAMS, Stream
from rlvitals.terminal import plural
from rlvitals.views.chart_lines import AxisPlaces
from rlvitals.views.compare import MetricRow, RunComparison
from rlvitals.views.diagnosis import diagnose
from rlvitals.views.epochs import LOSS
from rlvitals.views.query import OUTCOMES, AxisName
from rlvitals.views.run import RunView
from rlvitals.views.tree import band_of, described

Array = NDArray[np.float64]

MOST_PANELS = 12
MOST_LINES = 3
MOST_FINDINGS = 8
MOST_BOUNDARIES = 10

TOGETHER = {"pref.reward.chosen": ("pref.reward.rejected",), "pref.logp.chosen": ("pref.logp.rejected",)}
"""Concepts that are compared with each other share a panel."""

_OTHER_SIZES = catalog.OTHER_QUANTITIES | {"space", "suspect", "per_sequence"}
"""Caveats that exclude a number from a shared axis."""


class PlotAxis:
    """Converts steps to positions on the chosen x-axis, and times to a suitable unit."""

    def __init__(self, view: RunView, x: AxisName, last: int | None = None) -> None:
        steps = np.unique(view.table()["step"])
        self.first_step = int(steps[-min(last, len(steps))]) if last is not None and len(steps) else -(2**62)
        self._places = AxisPlaces(view, x)
        self._start, self._unit = 0.0, 1
        if x == "step":
            self.label = "epoch" if counts_epochs(view) else "step"
        elif x == "time":
            times = self._places(steps)
            self._start, total = float(times.min()), float(times.max() - times.min())
            units = ((86400, "days"), (3600, "hours"), (60, "minutes"))
            self._unit, word = next((unit for unit in units if total >= 3 * unit[0]), (1, "seconds"))
            self.label = f"{word} since the first row"
        else:
            self.label = x.replace("_", " ")

    def place(self, steps: NDArray[np.int64] | Array) -> Array:
        """The positions of steps on the axis."""
        places: Array = (self._places(steps).astype(np.float64) - self._start) / self._unit
        return places


def overview(
    view: RunView,
    x: AxisName = "step",
    last: int | None = None,
    *,
    judged: bool = True,
    raised: Sequence[Finding] | None = None,
) -> Picture:
    """The vital signs of a run and the metrics of its findings. With `judged=False`, no findings are shown. `raised`
    are findings that are already known.
    """
    axis = PlotAxis(view, x, last)
    findings = _findings(view, axis.first_step, raised) if judged else []
    return _picture(view, _overview_panels(view, findings), axis, findings)


def chosen(
    view: RunView,
    names: Sequence[str],
    x: AxisName = "step",
    last: int | None = None,
    *,
    judged: bool = True,
    raised: Sequence[Finding] | None = None,
) -> Picture:
    """The requested metrics, one panel each. Findings as in `overview`."""
    axis = PlotAxis(view, x, last)
    asked = list(dict.fromkeys(view.resolve(name) for name in names))
    findings = _findings(view, axis.first_step, raised) if judged else []
    return _picture(view, [[name] for name in asked], axis, findings)


def comparison(views: Sequence[RunView], compared: RunComparison) -> Picture:
    """The metrics that runs have in common, one colour per run. Different quantities are left out, and a remark names
    them.
    """
    refused = [row for row in compared.metrics if row.verdict == "different" or not _shares_an_axis(views, row)]
    rows = [row for row in compared.metrics if row not in refused and _is_worth_a_panel(row)]
    shown = sorted(rows, key=_importance)[:MOST_PANELS]
    if not shown:
        raise ConfigError("the runs have no comparable metric in common, so there is nothing to draw")
    remarks = [("", f"left out, not the same quantity: {row.name}: {row.note}") for row in refused[:4]]
    remarks += [("", f"{row.name}: compare with care: {row.note}") for row in shown if row.verdict == "caution"][:4]
    remarks += [("", f"{row.name}: converted: {row.note}") for row in shown if row.verdict == "convert"][:4]
    return Picture(
        title=" and ".join(view.name for view in views) if len(views) < 4 else f"{len(views)} runs",
        about="the same metric in every run, in the same sign and scale",
        x_label="epoch" if all(map(counts_epochs, views)) else "step",
        panels=[_compared(views, row) for row in shown],
        remarks=remarks,
        legend=_distinct_names(views),
    )


def _picture(view: RunView, names: list[list[str]], axis: PlotAxis, raised: list[Finding]) -> Picture:
    if not names:
        raise ConfigError(f"{view.path} has no metric that can be drawn")
    shown = {name for group in names for name in group}
    findings = [found for found in raised if found.severity == "critical" or shown & set(found.metrics)][:MOST_FINDINGS]
    panels = [_panel(view, group, axis, findings) for group in names]
    step = "" if view.last_step is None else f"step {number(view.last_step)}"
    known = [view.algorithm or "", step, plural(view.rows, "row"), view.status]
    if any(panel.band for panel in panels):
        known.append("shaded: the catalogue's typical range")
    return Picture(
        title=view.name,
        about="  |  ".join(part for part in known if part),
        x_label=axis.label,
        panels=panels,
        boundaries=_boundaries(view, axis),
        remarks=[
            (found.severity, f"{place}  {found.severity} since step {number(found.onset_step)}: {found.title}")
            for place, found in enumerate(findings, start=1)
        ],
    )


def _overview_panels(view: RunView, findings: list[Finding]) -> list[list[str]]:
    """The logged names of each panel: the vital signs in their order, then the metrics of the findings."""
    by_concept: dict[str, list[str]] = {}
    for name in view.metrics:
        concept = view.concept(name)
        if concept is not None and view.reader.named(name) is not None and _has_points(view, name):
            by_concept.setdefault(concept, []).append(name)
    panels: list[list[str]] = []
    shown: set[str] = set()
    for name in view.vital_signs:
        concept = view.concept(name)
        if name in shown or not (_has_points(view, name) if concept else _moves(view, name)):
            continue
        relatives = [
            other for part in (concept, *TOGETHER.get(concept or "", ())) for other in by_concept.get(part or "", ())
        ]
        panels.append(list(dict.fromkeys([name, *relatives]))[:MOST_LINES])
        shown.update(panels[-1])
    about = dict.fromkeys(name for found in findings for name in found.metrics if name in view.metrics)
    panels += [[name] for name in about if name not in shown]
    evaluated = next((name for name in view.metrics if _is_score(view, name)), None)
    if evaluated is not None and not any(_is_evaluated(view, name) for names in panels for name in names):
        panels.insert(min(2, len(panels)), [evaluated])
    return panels[:MOST_PANELS]


def _is_score(view: RunView, name: str) -> bool:
    """Whether it is a score of evaluations (higher is better) with more than one point."""
    meaning = view.meaning(name)
    is_wanted = meaning is not None and meaning.metric.direction == "up"
    return is_wanted and _is_evaluated(view, name) and len(view.series(name).values) > 1


def _is_evaluated(view: RunView, name: str) -> bool:
    return is_held_out(name) or _streams(view, name) == ["eval"]


def _has_points(view: RunView, name: str) -> bool:
    return bool(len(view.series(name).values))


def _moves(view: RunView, name: str) -> bool:
    values = view.series(name).values
    finite = values[np.isfinite(values)]
    return bool(len(finite)) and bool(finite.min() < finite.max())


def _panel(view: RunView, names: list[str], axis: PlotAxis, findings: list[Finding]) -> Panel:
    lines = _distinct(_line(view, name, stream, axis) for name in names for stream in _streams(view, name))
    ghosts = [_line(view, name, "train", axis, ghosts=True) for name in names]
    return Panel(
        title=_title(view, names),
        name=", ".join(names),
        lines=lines[:MOST_LINES],
        ghosts=[ghost for ghost in ghosts if len(ghost.y)],
        band=band_of(view, names[0]),
        marks=[
            Mark(float(axis.place(np.array([found.onset_step]))[0]), found.severity, place, is_about)
            for place, found in enumerate(findings, start=1)
            if (is_about := bool(set(found.metrics) & set(names))) or found.severity == "critical"
        ],
    )


def _title(view: RunView, names: list[str]) -> str:
    first, *others = dict.fromkeys(described(view, name)["title"] for name in names)
    return " and ".join([first, *(title[:1].lower() + title[1:] for title in others)])


def _streams(view: RunView, name: str) -> list[Stream]:
    """The streams in which a metric was logged."""
    return [stream for stream in STREAMS if len(view.series(name, stream=stream).values)]


def _line(view: RunView, name: str, stream: Stream, axis: PlotAxis, *, ghosts: bool = False) -> PlotLine:
    steps, values = view.series(name, stream=stream, ghosts=ghosts)
    keep = steps >= axis.first_step
    is_eval = stream == "eval"
    label = f"{name} (evaluation)" if is_eval and not is_held_out(name) else name
    return PlotLine(label, axis.place(steps[keep]), values[keep], is_sparse=is_eval)


def _distinct(lines: Iterable[PlotLine]) -> list[PlotLine]:
    """Curves without repetitions, because some logs have one number under two names. Values of an evaluation's name in
    training rows and in its own rows become one curve.
    """
    kept: list[PlotLine] = []
    for line in lines:
        same = next((place for place, other in enumerate(kept) if other.label == line.label), None)
        if same is not None:
            x = np.concatenate([kept[same].x, line.x])
            order = np.argsort(x, kind="stable")
            kept[same] = PlotLine(line.label, x[order], np.concatenate([kept[same].y, line.y])[order], is_sparse=True)
        elif len(line.y) and not any(_is_repeated(line, other) for other in kept):
            kept.append(line)
    most = max((len(line.y) for line in kept), default=0)
    # A single total at the end of a log is not drawn; a single evaluation is.
    return [line for line in kept if len(line.y) > 1 or line.is_sparse or most == 1]


def _is_repeated(line: PlotLine, other: PlotLine) -> bool:
    return np.array_equal(line.x, other.x) and np.array_equal(line.y, other.y, equal_nan=True)


def _findings(view: RunView, first_step: int, raised: Sequence[Finding] | None = None) -> list[Finding]:
    """The given findings, the run's own, or those from judging an unmonitored log. Only the most severe finding of each
    alarm is kept, sorted by severity.
    """
    if raised is None:
        raised = diagnose(view).findings
    grave = [found for found in worst_of_alarms(raised) if found.step >= first_step]
    return sorted(grave, key=lambda found: (-SEVERITIES.index(found.severity), found.onset_step))


def _boundaries(view: RunView, axis: PlotAxis) -> list[tuple[float, str]]:
    table = view.table()
    attempts, steps = table["attempt"], table["step"]
    starts = [(int(number), int(steps[attempts == number].min())) for number in np.unique(attempts)[1:]]
    later = [(attempt, step) for attempt, step in starts if step >= axis.first_step][-MOST_BOUNDARIES:]
    return [(float(axis.place(np.array([step]))[0]), f"attempt {attempt}") for attempt, step in later]


def _is_worth_a_panel(row: MetricRow) -> bool:
    return not row.is_background and all(best is None or best.points > 1 for best in row.best)


def _shares_an_axis(views: Sequence[RunView], row: MetricRow) -> bool:
    """Whether the runs' numbers have the same scale. A count and a share do not, even if their concept is the same."""
    kinds = set()
    for view, name in zip(views, row.names, strict=True):
        meaning = view.meaning(name) if name is not None else None
        caveat = meaning.caveat if meaning else None
        if name is not None:
            kinds.add(caveat.kind if caveat is not None and caveat.kind in _OTHER_SIZES else "")
    return len(kinds) < 2


def _importance(row: MetricRow) -> int:
    """Reward first, as in the comparison of the RLAIF document; the others in their order."""
    return 0 if row.concept in OUTCOMES else 1 if row.concept == LOSS else 2


def _compared(views: Sequence[RunView], row: MetricRow) -> Panel:
    lines = []
    for view, name in zip(views, row.names, strict=True):
        steps, values = view.series(name) if name is not None else (np.zeros(0), np.zeros(0))
        if name is not None and row.verdict == "convert":
            own = view.meaning(name)
            values = np.array([catalog.to_concept(own, float(value)) for value in values])
        lines.append(PlotLine(view.name, steps.astype(np.float64), values))
    mark = {"caution": " (with care)", "convert": " (converted)"}.get(row.verdict, "")
    names = dict.fromkeys(name for name in row.names if name is not None)
    return Panel(title=described(views[0], row.name)["title"] + mark, name=", ".join(names), lines=lines)


def counts_epochs(view: RunView) -> bool:
    """Whether a run's steps are its epochs."""
    try:
        steps, epochs = view.series("epoch", stream="train")
    except UnknownMetric:
        return False
    return bool(len(steps)) and bool((steps == epochs).all())


def _distinct_names(views: Sequence[RunView]) -> list[str]:
    """The runs' names, with their folders or full paths if names repeat."""
    for name_of in (lambda view: view.name, lambda view: f"{view.path.parent.name}/{view.name}"):
        names = [name_of(view) for view in views]
        if len(set(names)) == len(names):
            return names
    return [str(view.path) for view in views]
