"""The answers to the addresses under `/api`. Each function takes a folder and a query and returns facts. No HTTP here.

The types of the answers are in `rlvitals.contract`. Modules that the first page does not need are imported on demand,
so that the server starts quickly.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import asdict, replace
from typing import cast

from rlvitals import catalog, contract
from rlvitals.codec import parse_shallow
from rlvitals.documentation import metric_address
from rlvitals.errors import ConfigError, RlvitalsError, RunNotFound
from rlvitals.records import Group
from rlvitals.store.marks import AllMarks
from rlvitals.store.rollout_forms import plain
from rlvitals.views.chart_lines import POINTS, Window, lines
from rlvitals.views.diagnosis import findings_answer
from rlvitals.views.logs import LogView
from rlvitals.views.run import RunView
from rlvitals.views.thinning import plain_number
from rlvitals.views.tree import metric_list
from rlvitals.views.vitals import vitals
from rlvitals.web.answers import MOST_NAMES, MOST_RUNS, Query
from rlvitals.web.folder import Folder, Open

PAGE_SIZE = 50
"""Number of groups or hits in one answer."""

MOST_PAGES = 20
"""Maximum number of pages of hits."""

MOST_SWEPT = 500
"""Maximum number of runs in a sweep, which reads the settings and one number of each."""

MOST_COLUMNS = 60
"""Maximum number of columns in a table."""

PROMPT_LENGTH = 300
"""Maximum number of characters of a prompt in a list."""


def runs(folder: Folder, query: Query) -> contract.Runs:
    """One line per run. Archived and deleted runs are included only with `hidden=1`."""
    return folder.runs(hidden=query.text("hidden") == "1")


def table(folder: Folder, query: Query) -> contract.Table:
    """Every run with the requested columns."""
    columns = query.all("column", MOST_COLUMNS)
    return folder.table(columns, hidden=query.text("hidden") == "1", choices=query.text("choices") == "1")


def run(folder: Folder, query: Query) -> contract.Vitals:
    """One run's vitals."""
    return folder.remembered(_run(query), "vitals", lambda run: vitals(run.view, run.diagnosed()))


def metrics(folder: Folder, query: Query) -> contract.Metrics:
    """The metrics of one run."""
    return folder.remembered(_run(query), "metrics", lambda run: metric_list(run.view, run.view.vital_signs))


def series(folder: Folder, query: Query) -> contract.Lines:
    """The lines of a run's charts."""
    names = query.all("name", MOST_NAMES)
    if not names:
        raise ConfigError("the question needs 'name'")
    view = folder.view(_run(query))
    return lines(view, names, _window(query), folder.known_findings(_run(query)))


def distributed(folder: Folder, query: Query) -> contract.Distributions:
    """The distributions of values at each step, and the logged texts."""
    from rlvitals.views.distributions import distributions

    return folder.remembered(_run(query), "distributions", lambda run: distributions(run.view))


def images(folder: Folder, query: Query) -> contract.Images:
    """The list of logged images."""
    from rlvitals.views.images import image_list

    return folder.remembered(_run(query), "images", lambda run: image_list(run.view))


def image(folder: Folder, query: Query) -> contract.ImageFacts:
    """One image, as text in JSON, so that no address serves a file that came from a run."""
    from rlvitals.views.images import one_image

    step = query.whole("step")
    if step is None:
        raise ConfigError("the question needs 'step'")
    return one_image(folder.view(_run(query)), query.needed("name"), step)


def explain(folder: Folder, query: Query) -> contract.Explained:
    """The catalogue's entry for a name. With `run`, the name is read as one of that run's framework."""
    name = query.needed("name")
    run_name = query.text("run")
    reader = folder.view(run_name).reader if run_name is not None else catalog.reader()
    found = reader.explain(name)
    return cast(contract.Explained, found.to_dict() | {"page": metric_address(found.id)})


def findings(folder: Folder, query: Query) -> contract.Findings:
    """The findings of one run."""

    def answer(run: Open) -> contract.Findings:
        return findings_answer(run.view, run.diagnosed(), has_rollouts=bool(run.view.rollout_log.steps))

    return folder.remembered(_run(query), "findings", answer)


def in_hindsight(folder: Folder, query: Query) -> contract.HindsightAnswer:
    """The cost of continuing a run after it went wrong, and the checkpoint to revert to."""
    from rlvitals.views.hindsight import Neighbours, hindsight

    def answer(run: Open) -> contract.HindsightAnswer:
        diagnosis = run.diagnosed()
        if diagnosis.is_pending:
            return {"judging": True, "hindsight": None}
        found = hindsight(run.view, diagnosis.findings, Neighbours(folder.recorded()))
        if found is not None:  # pages get paths relative to the folder
            if (checkpoint := found["checkpoint"]) is not None:
                checkpoint["path"] = folder.shown(checkpoint["path"])
            if (nearest := found["nearest"]) is not None:
                nearest["run"] = folder.shown(nearest["run"])
        return {"judging": False, "hindsight": found}

    return folder.remembered(_run(query), "hindsight", answer)


def speed(folder: Folder, query: Query) -> contract.Performance:
    """Phases, throughput, memory, the machine."""
    from rlvitals.views.performance import performance

    return performance(folder.view(_run(query)), query.whole("from"), query.whole("to"))


def rollouts(folder: Folder, query: Query) -> contract.RolloutAnswer:
    """The steps with rollouts. With `step`: its groups. With `group` too: its transcripts. With a filter: hits."""
    from rlvitals.views.rollouts import groups_at, pick

    log = folder.view(_run(query)).rollout_log
    step, page = query.whole("step"), max(query.whole("page", 0) or 0, 0)
    outcome, text, worst = query.text("outcome"), query.text("search"), query.text("worst") == "1"
    if outcome or text or worst:
        if page >= MOST_PAGES:
            raise ConfigError(f"at most {MOST_PAGES * PAGE_SIZE} hits are shown; narrow the search")
        wanted = PAGE_SIZE * (page + 1)
        hits = log.find(step=step, outcome=outcome, text=text or None, worst=worst, limit=wanted + 1)
        shown = hits[wanted - PAGE_SIZE : wanted]
        facts = [cast(contract.HitFacts, plain(hit._asdict())) for hit in shown]
        return contract.Hits(hits=facts, page=page, more=len(hits) > wanted)
    if step is None:
        overview = log.overview()
        if not overview:
            raise RunNotFound(
                "Record them with run.log_groups(groups, step=...). VitalsCallback records those of TRL's GRPO, RLOO "
                "and online DPO by itself."
            )
        return contract.RolloutSteps(steps=overview, problems=log.problems)
    groups = groups_at(log, step)
    chosen = query.text("group")
    if chosen is not None:
        return contract.WholeGroup(
            step=step, groups=[_group(*pick(groups, chosen), query.whole("tokens"))], total=len(groups)
        )
    first = page * PAGE_SIZE
    listed = [_listed(number, group) for number, group in enumerate(groups[first : first + PAGE_SIZE], first + 1)]
    return contract.GroupPage(step=step, groups=listed, total=len(groups), page=page, page_size=PAGE_SIZE)


def evaluations(folder: Folder, query: Query) -> contract.Evaluated:
    """The evaluations over the steps. The epochs too, if the rows show where they end."""
    from rlvitals.views.evaluations import evaluated_slices, numbers_of, read_trend, trend_of_log

    view = folder.view(_run(query))
    trend = trend_of_log(view) if isinstance(view, LogView) else read_trend(folder.place(_run(query)))
    columns, _ = view.columns("eval")[0]
    return {
        "name": trend.name,
        "evaluations": trend.evaluations,
        "first": trend.first,
        "best": trend.best,
        "last": trend.last,
        "problems": trend.problems,
        "metrics": columns.names[:MOST_NAMES],
        "names": numbers_of(trend.evaluations),
        "slices": evaluated_slices(view, trend.evaluations),
        "has_rollouts": bool(view.rollout_log.steps),
        "epochs": _epochs(view),
    }


def compare(folder: Folder, query: Query) -> contract.Compared:
    """Compare runs with the first one. With `signs=1`, only its vital signs are compared."""
    from rlvitals.views.compare import compare_runs

    names = query.all("run", MOST_RUNS)
    views = [folder.view(name) for name in names]
    compared = compare_runs(views, query.all("name", MOST_NAMES), signs_only=query.text("signs") == "1")
    places = dict(zip((str(view.path) for view in views), names, strict=True))
    return {
        "runs": [
            {
                "run": name,
                "name": view.name,
                "status": view.status,
                "step": view.last_step,
                "rollouts": bool(view.rollout_log.steps),
            }
            for name, view in zip(names, views, strict=True)
        ],
        "config_differences": compared.config_differences,
        "metrics": [cast(contract.ComparedMetric, asdict(row)) for row in compared.metrics],
        "only_in_one": {places[path]: only for path, only in compared.only_in_one.items()},
        "first_divergence": compared.first_divergence,
        "bookkeeping": compared.bookkeeping,
    }


def swept(folder: Folder, query: Query) -> contract.Sweep:
    """The settings that vary among runs, and their relation to a target."""
    from rlvitals.views.sweep import sweep

    names = query.all("run", MOST_SWEPT)
    if len(names) < 2:
        raise ConfigError("a sweep takes at least two runs")
    target = query.text("target") or _outcome(folder.view(names[0]))
    cells, settings = folder.cells(names, [target])
    return sweep(target, {name: own[0] for name, own in cells.items()}, settings)


def _outcome(view: RunView) -> str:
    """The column of a run's outcome: its reward or margin, otherwise its first vital sign."""
    return f"{view.outcome or [*view.vital_signs, 'reward'][0]}.last"


def overlaid(folder: Folder, query: Query) -> contract.Overlay:
    """One metric of several runs."""
    from rlvitals.views.overlay import overlay

    views = {name: folder.view(name) for name in _runs(query)}
    return overlay(views, query.needed("name"), _window(query))


def all_overlaid(folder: Folder, query: Query) -> contract.Overlays:
    """Several metrics of several runs, or of groups of them. A run that cannot be read does not hide the others."""
    from rlvitals.views.overlay import overlays

    views: dict[str, RunView] = {}
    unread: list[contract.Refusal] = []
    for name in _runs(query):
        try:
            views[name] = folder.view(name)
        except RlvitalsError as error:
            unread.append({"run": name, "reason": str(error)})
    names, by = query.all("name", MOST_NAMES), query.text("by", "") or ""
    return overlays(views, names, by, _window(query), unread)


def others(folder: Folder, query: Query) -> contract.Others:
    """Metrics that the other runs log and the first one does not. Other runs that cannot be read are skipped."""
    from rlvitals.views.overlay import MOST_OTHERS, others

    views: dict[str, RunView] = {}
    listed: dict[str, list[contract.ListedMetric]] = {}
    for name in _runs(query):
        try:
            views[name] = folder.view(name)
            listed[name] = metrics(folder, Query([("run", name)]))["metrics"] if len(views) > 1 else []
        except RlvitalsError:
            if not views:
                raise
            views.pop(name, None)
    found = others(views, listed)
    return {"metrics": found[:MOST_OTHERS], "left_out": max(len(found) - MOST_OTHERS, 0)}


def marks(folder: Folder, query: Query) -> contract.Marks:
    """Names, tags and notes of runs, archived and deleted runs, boards, and whether pages may change them."""
    return _marks(folder, folder.marks.read)


def change_marks(folder: Folder, body: bytes) -> contract.Marks:
    """`POST /api/marks`. The body is `{"run": RUN, "set": {...}}` or `{"board": NAME, "set": {...} or null}`."""
    try:
        asked = parse_shallow(body)
    except ValueError as error:
        raise ConfigError("the body is not JSON") from error
    if not isinstance(asked, dict) or asked.keys() not in ({"run", "set"}, {"board", "set"}):
        raise ConfigError("the body is {'run': RUN, 'set': {...}} or {'board': NAME, 'set': {...} or null}")
    run_name, board, wanted = asked.get("run"), asked.get("board"), asked["set"]
    if isinstance(run_name, str) and isinstance(wanted, dict):
        run_name = folder.listed_name(run_name)
        return _marks(folder, lambda: folder.marks.mark(run_name, wanted))
    if isinstance(board, str) and (wanted is None or isinstance(wanted, dict)):
        return _marks(folder, lambda: folder.marks.keep_board(board, wanted))
    raise ConfigError("a run or board is named by a text, and 'set' holds what is to be set")


def _marks(folder: Folder, all_marks: Callable[[], AllMarks]) -> contract.Marks:
    return {"editable": folder.is_editable, **all_marks()}


ANSWERS: dict[str, Callable[[Folder, Query], Mapping[str, object]]] = {
    "runs": runs,
    "table": table,
    "run": run,
    "metrics": metrics,
    "series": series,
    "distributions": distributed,
    "images": images,
    "image": image,
    "explain": explain,
    "findings": findings,
    "hindsight": in_hindsight,
    "performance": speed,
    "rollouts": rollouts,
    "evaluations": evaluations,
    "compare": compare,
    "sweep": swept,
    "overlay": overlaid,
    "overlays": all_overlaid,
    "others": others,
    "marks": marks,
}


def _run(query: Query) -> str:
    return query.needed("run")


def _runs(query: Query) -> list[str]:
    names = query.all("run", MOST_RUNS)
    if not names:
        raise ConfigError("the question needs 'run'")
    return names


def _window(query: Query) -> Window:
    points = query.whole("points", POINTS) or POINTS
    return Window(query.text("x", "step") or "step", query.number("from"), query.number("to"), points)


def _epochs(view: RunView) -> contract.EpochsFacts | None:
    try:
        return view.epochs().to_dict() if view.rows else None
    except RlvitalsError:  # the rows do not show where an epoch ends
        return None


def _group(number: int, group: Group, tokens: int | None) -> contract.GroupFacts:
    """A whole group. Tokens are included only for the rollout with the number `tokens`."""
    from rlvitals.views.rollouts import whole

    read = tuple(
        replace(rollout, trace=rollout.trace if place == tokens else None)
        for place, rollout in enumerate(group.rollouts, 1)
    )
    answer = whole(number, replace(group, rollouts=read))
    for facts, rollout in zip(answer.get("rollouts", ()), group.rollouts, strict=True):
        if rollout.trace is not None:
            facts["traced"] = rollout.trace.length
    return cast(contract.GroupFacts, answer)


def _listed(number: int, group: Group) -> contract.ListedGroup:
    """A group for the list: its rewards and counts, without the texts of its rollouts."""
    from rlvitals.views.rollouts import outcomes

    return {
        "number": number,
        "id": group.id,
        "prompt": group.prompt[:PROMPT_LENGTH],
        "mean": plain_number(group.mean),
        "std": plain_number(group.std),
        "rewards": [plain_number(rollout.reward) for rollout in group.rollouts if rollout.reward is not None],
        "kept": group.kept,
        "reason": group.reason,
        "outcomes": outcomes(group),
        "early": len(group.early_rollouts),
        "rollouts": len(group.rollouts),
    }
