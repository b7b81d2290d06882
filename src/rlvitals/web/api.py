"""What each address under `/api` answers: a folder and a question in, facts out. No HTTP here.

What a first page does not need is imported when it is asked for: a server should be there at once.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import asdict
from typing import Any

from rlvitals import catalog
from rlvitals.errors import ConfigError, RlvitalsError
from rlvitals.views.findings import findings_told
from rlvitals.views.lines import POINTS, Window, lines
from rlvitals.views.query import RunView
from rlvitals.views.tree import metric_list
from rlvitals.views.vitals import vitals
from rlvitals.web.answers import MOST_NAMES, MOST_RUNS, Query
from rlvitals.web.folder import Folder

Facts = dict[str, Any]


def runs(folder: Folder, query: Query) -> Facts:
    """Every run in a line."""
    return folder.runs()


def run(folder: Folder, query: Query) -> Facts:
    """One run's vitals."""
    return folder.remembered(_run(query), "vitals", lambda run: vitals(run.view, run.diagnosed()))


def metrics(folder: Folder, query: Query) -> Facts:
    """The metrics there are."""
    return folder.remembered(_run(query), "metrics", lambda run: metric_list(run.view, run.view.vital_signs))


def series(folder: Folder, query: Query) -> Facts:
    """Lines to draw."""
    names = query.all("name", MOST_NAMES)
    if not names:
        raise ConfigError("the question needs 'name'")
    view = folder.view(_run(query))
    return lines(view, names, _window(query), folder.known_findings(_run(query)))


def explain(folder: Folder, query: Query) -> Facts:
    """The catalogue's entry for a name, in the run's framework where one is named."""
    name = query.needed("name")
    run_name = query.text("run")
    reader = folder.view(run_name).reader if run_name is not None else catalog.reader()
    return reader.explain(name).to_dict()


def findings(folder: Folder, query: Query) -> Facts:
    """What the doctor said."""
    return folder.remembered(_run(query), "findings", lambda run: findings_told(run.view, run.diagnosed()))


def speed(folder: Folder, query: Query) -> Facts:
    """Phases, throughput, memory, the machine."""
    from rlvitals.views.performance import performance

    return performance(folder.view(_run(query)), query.whole("from"), query.whole("to"))


def rollouts(folder: Folder, query: Query) -> Facts:
    """Rollouts by step, group, outcome and text."""
    from rlvitals.web.rollouts import rollouts_told

    return rollouts_told(folder.view(_run(query)).rollout_log, query)


def evaluations(folder: Folder, query: Query) -> Facts:
    """The evaluations over the steps, and the epochs where the rows say where they end."""
    from rlvitals.views.evaluations import read_trend

    path = folder.place(_run(query))
    told = asdict(read_trend(path))
    del told["path"]
    view = folder.view(_run(query))
    columns, _ = view.columns("eval")[0]
    return told | {"metrics": columns.names[:MOST_NAMES], "epochs": _epochs(view)}


def compare(folder: Folder, query: Query) -> Facts:
    """Runs beside the first one named."""
    from rlvitals.views.compare import compare_runs

    names = query.all("run", MOST_RUNS)
    views = [folder.view(name) for name in names]
    told = asdict(compare_runs(views, query.all("name", MOST_NAMES)))
    places = dict(zip((str(view.path) for view in views), names, strict=True))
    for line in told["runs"]:
        line["run"] = places[line.pop("path")]
    told["only_in_one"] = {places[path]: only for path, only in told["only_in_one"].items()}
    return told


def overlaid(folder: Folder, query: Query) -> Facts:
    """One metric of several runs."""
    from rlvitals.views.overlay import overlay

    views: dict[str, RunView] = {name: folder.view(name) for name in query.all("run", MOST_RUNS)}
    if not views:
        raise ConfigError("the question needs 'run'")
    return overlay(views, query.needed("name"), _window(query))


ANSWERS: dict[str, Callable[[Folder, Query], Facts]] = {
    "runs": runs,
    "run": run,
    "metrics": metrics,
    "series": series,
    "explain": explain,
    "findings": findings,
    "performance": speed,
    "rollouts": rollouts,
    "evaluations": evaluations,
    "compare": compare,
    "overlay": overlaid,
}


def _run(query: Query) -> str:
    return query.needed("run")


def _window(query: Query) -> Window:
    points = query.whole("points", POINTS) or POINTS
    return Window(query.text("x", "step") or "step", query.number("from"), query.number("to"), points)


def _epochs(view: RunView) -> Facts:
    try:
        return view.epochs().to_dict() if view.rows else {}
    except RlvitalsError:  # nothing says where an epoch ends
        return {}
