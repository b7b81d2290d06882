"""Tools for runs and logs. Each answer is a short form of what the dashboard's server, or the view behind it, returns.
Nothing is computed here.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable
from typing import Any, cast

from rlvitals import contract
from rlvitals.agents.budget import Draft, fit, fit_size
from rlvitals.agents.quoting import Own, Recorded, own
from rlvitals.agents.run_lookup import (
    EXCERPT,
    PATIENCE,
    Given,
    listed,
    look_at_logs,
    moment,
    picked,
    run_of,
    settled,
    without_nothing,
)
from rlvitals.config import flatten
from rlvitals.errors import UnknownMetric
from rlvitals.health.pages import book_of, rule_facts, rules_named
from rlvitals.records import KINDS, SEVERITIES
from rlvitals.store.layout import RunDir
from rlvitals.views.diagnosis import findings_answer, of_judge
from rlvitals.views.hindsight import best_checkpoint, checkpoints_of
from rlvitals.views.logs import open_any
from rlvitals.views.places import places_in
from rlvitals.views.query import OUTCOMES
from rlvitals.views.sources import judge_source, source_of
from rlvitals.web import api
from rlvitals.web.answers import Query
from rlvitals.web.folder import Folder, Open

POINTS = 100
"""Points of a series, shared by the metrics of one question."""

SERIES_DIGITS = 5
MOST_SERIES = 8
CITED = 3
DIFFERENT_SETTINGS = 25
MOST_PLACES = 200

MOST_COMPARED = 300
"""A run with more metrics is compared only on its vital signs unless metrics are named: each takes milliseconds."""

EXPLAINED = (
    "id", "title", "what", "formula", "estimator", "unit", "direction", "reduce", "notes", "is_ambiguous",
)  # fmt: skip
"""The facts of a metric that come first in an answer."""


def list_runs(folder: Folder, given: Given) -> dict[str, Any]:
    """One line for every run."""
    is_read = look_at_logs(folder)
    columns = [f"{concept}.last" for concept in OUTCOMES]
    table = folder.table(columns)
    until = time.monotonic() + PATIENCE
    while table["pending"] and time.monotonic() < until:
        table = folder.table(columns)
    lines = [line for line in table["runs"] if _is_wanted(line, given)]
    head = {
        "folder": table["folder"],
        "runs_in_folder": len(table["runs"]),
        "matching": len(lines),
        "about": Own("reward is the last value of the training reward, or of the preference margin"),
        "hint": table["note"] if is_read else Own("logs of other tools are still being read: ask again"),
    }
    return fit(listed(without_nothing(head), "runs", [_line(line) for line in lines], given))


def _is_wanted(line: contract.TableRun, given: Given) -> bool:
    text = given.get("search", "").casefold()
    return (
        given.get("status") in (None, line["status"])
        and given.get("verdict") in (None, line["verdict"])
        and (text in line["run"].casefold() or text in line["name"].casefold())
    )


def _line(line: contract.TableRun) -> dict[str, Any]:
    reward = next((cell for cell in line["cells"] if cell is not None), None)
    return picked(
        line, "run", "status", "verdict",
        name="" if line["name"] == line["run"].rpartition("/")[2] else line["name"],
        reason="" if line["verdict"] == "healthy" else line["reason"], reward=reward, step=line["last_step"],
        **picked(line, "total_steps", "algorithm", "status_note"), updated=moment(line["updated"]),
    )  # fmt: skip


# One run


def run_summary(folder: Folder, given: Given) -> dict[str, Any]:
    """The summary of one run, with one of its lists."""
    run = run_of(folder, given)
    vitals = settled(lambda: api.run(folder, Query([("run", run)])))
    now = vitals["now"]
    about = ("name", "status", "status_note", "verdict", "reason", "judging", "was_watched", "algorithm", "framework")
    head = {
        "run": run,
        **picked(vitals, *about),
        **picked(now, "step", "total_steps", "eta_s", "tokens_per_s", "phase", updated=moment(now["updated"])),
        "rows": vitals["rows"],
        "rows_abandoned": vitals["ghost_rows"],
        "attempts_in_all": len(vitals["attempts"]),
        "ranks": len(vitals["ranks"]),
        "problems_in_all": len(vitals["problems"]),
    }
    part = given.get("part", "vital_signs")
    return fit(listed(head, part, PARTS[part](vitals), given))


def _signs(vitals: contract.Vitals) -> list[dict[str, Any]]:
    return [
        picked(
            tile, "name", "concept", "value", "status", "why", "points",
            change=Own(tile["change"]["told"]) if tile["change"] else "", typical=tile["band"],
        )
        for tile in vitals["tiles"]
    ]  # fmt: skip


def _settings(vitals: contract.Vitals) -> list[dict[str, Any]]:
    return [{"name": name, "value": value} for name, value in flatten(vitals["config"]).items()]


def _attempts(vitals: contract.Vitals) -> list[dict[str, Any]]:
    return [
        without_nothing(
            {
                "attempt": attempt.number,
                "started": moment(attempt.started),
                "from_step": attempt.from_step,
                "from_checkpoint": attempt.from_checkpoint,
            }
        )
        for attempt in vitals["attempts"]
    ]


PARTS: dict[str, Callable[[contract.Vitals], list[Any]]] = {
    "vital_signs": _signs,
    "settings": _settings,
    "attempts": _attempts,
    "problems": lambda vitals: vitals["problems"],
}


def run_findings(folder: Folder, given: Given) -> dict[str, Any]:
    """The verdict and the findings."""
    run = run_of(folder, given)
    answer = settled(lambda: api.findings(folder, Query([("run", run)])))
    return fit(_findings({"run": run}, answer, given))


def _findings(head: dict[str, Any], answer: contract.Findings, given: Given) -> Draft:
    """Findings sorted by activity and severity: active ones first, the most severe at the top."""
    ranked = sorted(
        answer["findings"],
        key=lambda found: (found["recovered_step"] is not None, -SEVERITIES.index(found["severity"]), found["step"]),
    )
    if given.get("standing"):
        ranked = [found for found in ranked if found["recovered_step"] is None]
    asked = [_asked(request) for request in answer["asked"]]
    head |= picked(
        answer, "verdict", "reason", "judging", "was_watched", "first_step", "last_step", "has_rollouts",
        findings_in_all=len(answer["findings"]) + answer["left_out"], asked_by_people=asked,
    )  # fmt: skip
    return listed(without_nothing(head), "findings", [_finding(found) for found in ranked], given)


def _finding(found: contract.WholeFinding) -> dict[str, Any]:
    return {
        **picked(found, "rule", "kind", "severity", "step", "onset_step", "recovered_step"),
        "stands": found["recovered_step"] is None,
        **picked(
            found, "title", "cause", "slice", "metrics", "confidence", "evidence", "evidence_told", "causes", "advice",
            "action", requests=[_asked(request) for request in found["requests"]],
            cited=[_cited(place) for place in found["cited"][:CITED]],
        ),
    }  # fmt: skip


def _asked(request: contract.AskedFacts) -> dict[str, Any]:
    return picked(request, "step", "action", "reason", "asked_by", "answer", "answer_text")


def _cited(place: contract.CitedFacts) -> dict[str, Any]:
    return picked(place, "step", "group", "rollout", "turn", quote=Recorded(place["quote"][:EXCERPT]))


def list_metrics(folder: Folder, given: Given) -> dict[str, Any]:
    """The metrics of a run, the vital signs first."""
    run = run_of(folder, given)
    answer = api.metrics(folder, Query([("run", run)]))
    places = {name: place for place, name in enumerate(answer["essentials"])}
    text = given.get("search", "").casefold()
    found = [
        metric
        for metric in answer["metrics"]
        if text in metric["name"].casefold() or text in (metric["concept"] or "") or text in metric["title"].casefold()
    ]
    found.sort(key=lambda metric: places.get(metric["name"], len(places)))
    metrics = [
        picked(
            metric, "name", "concept", "last", "points", "direction",
            stream="" if metric["stream"] == "train" else metric["stream"],
            vital_sign=metric["name"] in places or None,
        )
        for metric in found
    ]  # fmt: skip
    head = {"run": run, "metrics_in_all": len(answer["metrics"]) + answer["left_out"], "matching": len(found)}
    return fit(listed(head, "metrics", metrics, given))


def series(folder: Folder, given: Given) -> dict[str, Any]:
    """Series downsampled to a few points that keep every extreme."""
    run = run_of(folder, given)
    names: list[str] = given["names"]
    asked = [("run", run), *(("name", name) for name in names), ("x", given.get("x", "step"))]
    asked += [(key, str(given[argument])) for key, argument in (("from", "start"), ("to", "end")) if argument in given]

    def drafted(points: int) -> Draft:
        answer = api.series(folder, Query([*asked, ("points", str(points))]))
        head = {
            "run": run,
            "x": answer["x"],
            "about": Own(
                "each point stands for total/shown logged ones: x where it begins, their lowest, mean and highest "
                "value. Zoom in with start and end"
            ),
            "typical": [{"name": name, "range": limits} for name, limits in answer["bands"].items()],
            "findings": [
                picked(found, "rule", "severity", "step", "onset_step") for found in answer["findings"][-MOST_SERIES:]
            ],
        }
        return Draft(without_nothing(head), "lines", [_curve(line) for line in answer["lines"]])

    return fit_size(drafted, max(2, given.get("points", max(2, POINTS // len(names)))))


def _curve(line: contract.DrawnLine) -> dict[str, Any]:
    """One series: the single values if it is not downsampled, else the low, high and mean of each point."""
    is_whole = line["shown"] == line["total"]
    values = {"values": line["y"]} if is_whole else {"low": line["low"], "high": line["high"], "mean": line["y"]}
    return {
        **picked(line, "name", "stream", "total", "shown", "nonfinite"),
        "x": [_short(x, 12) for x in line["x"]],
        **{key: [_short(value, SERIES_DIGITS) for value in column] for key, column in values.items()},
    }


def _short(value: float | None, digits: int) -> float | int | None:
    if value is None or not math.isfinite(value):
        return None
    return int(value) if value == int(value) and abs(value) < 1e15 else float(f"{value:.{digits}g}")


def compare(folder: Folder, given: Given) -> dict[str, Any]:
    """Runs compared with the first one."""
    runs = [run_of(folder, {"run": run}) for run in given["runs"]]
    names = given.get("names", [])
    is_large = bool(runs) and len(folder.view(runs[0]).metrics) > MOST_COMPARED
    asked = [*(("run", run) for run in runs), *(("name", name) for name in names), ("signs", str(int(is_large)))]
    comparison = api.compare(folder, Query(asked))
    lines = {line["run"]: line for line in folder.runs(hidden=True)["runs"]}
    apart = [{"name": name, "values": values} for name, values in comparison["config_differences"].items()]
    head = {
        "runs": [
            picked(run, "run", "status", "step", verdict=lines[run["run"]]["verdict"] if run["run"] in lines else None)
            for run in comparison["runs"]
        ],
        "settings_that_differ": apart[:DIFFERENT_SETTINGS],
        "settings_left_out": max(0, len(apart) - DIFFERENT_SETTINGS),
        "first_divergence": comparison["first_divergence"],
        "about": Own(
            "values are in the order of runs; parts_at: the step from which a run differs from the first one beyond "
            "the noise; comparable: 'same' unless the runs compute it differently"
        ),
        "hint": Own("of many metrics, only the vital signs are compared: give names") if is_large and not names else "",
        "only_in_one": [{"run": run, "metrics": len(only)} for run, only in comparison["only_in_one"].items()],
    }
    return fit(listed(without_nothing(head), "metrics", [_compared(row) for row in comparison["metrics"]], given))


def _compared(row: contract.ComparedMetric) -> dict[str, Any]:
    def each(key: str) -> list[Any]:
        return [None if best is None else cast(dict[str, Any], best)[key] for best in row["best"]]

    return picked(
        row, "name", "concept", last=each("last"), best=each("best"), best_step=each("best_step"),
        parts_at=row["parts"] if any(step is not None for step in row["parts"]) else None,
        comparable=row["verdict"], caution=row["note"],
    )  # fmt: skip


def explain(folder: Folder, given: Given) -> dict[str, Any]:
    """The explanation of a metric, of a rule or of a kind of finding."""
    name = given["name"]
    asked = [("name", name), *([("run", run_of(folder, given))] if given.get("run") else [])]
    try:
        explanation = cast(dict[str, Any], api.explain(folder, Query(asked)))
    except UnknownMetric:
        book = book_of(name)
        if book is None:
            raise
        rules = [rule_facts(rule, book) for rule in rules_named(name, book)]
        kind = name if name in KINDS else rules[0]["kind"]
        brief = [
            {key: fact[key] for key in ("rule", "severity", "told")}
            | ({} if name in KINDS else {"numbers": fact["numbers"]})
            for fact in rules
        ]
        return fit(listed({"kind": kind, "rules_in_all": len(rules)}, "rules", own(brief), given))
    parts: list[dict[str, Any]] = [
        *({"part": "typical range", **band} for band in explanation["bands"]),
        *({"part": "symptom", **symptom} for symptom in explanation["symptoms"]),
        *({"part": "in a framework", **source} for source in explanation["sources"]),
        *({"part": "other meaning", **other} for other in explanation["other_meanings"]),
        *(
            {"part": "called", "framework": framework, "names": names}
            for framework, names in explanation["aliases"].items()
        ),
    ]
    head = {"name": name, **own(picked(explanation, *EXPLAINED))}
    return fit(listed(without_nothing(head), "parts", [own(without_nothing(part)) for part in parts], given))


# Any log, and checkpoints


def check_log(folder: Folder, given: Given) -> dict[str, Any]:
    """The findings of a run or of any log, judged again from its rows."""
    place = folder.any_place(given["path"])
    is_run = place.is_dir() and RunDir(place).holds_run
    if not is_run and place.is_dir() and (places := places_in(place)) is not None:
        shown = [folder.shown(str(one)) for one in places if not one.is_symlink()]
        hint = Own("this folder holds several: check one of them")
        return fit(listed({"path": given["path"], "hint": hint}, "places", shown[:MOST_PLACES], given))
    view = folder.view(folder.shown(str(place))) if is_run else open_any(place)
    view.dumps_within = folder.root
    answer = findings_answer(
        view, of_judge(judge_source(source_of(view)), view), has_rollouts=bool(view.rollout_log.steps)
    )
    head = {
        "path": given["path"],
        "format": "run" if view.foreign is None else view.foreign.format,
        "algorithm": view.algorithm,
        "framework": view.framework,
        "rows": view.rows,
        "metrics_in_all": len(view.metrics),
    }
    return fit(_findings(head, answer, given))


def checkpoint(folder: Folder, given: Given) -> dict[str, Any]:
    """The best checkpoint of a run, and the list of all its checkpoints."""
    run = run_of(folder, given)

    def chosen(opened: Open) -> dict[str, Any]:
        diagnosis = opened.diagnosed()
        return {
            "judging": diagnosis.is_pending,
            "checkpoint": best_checkpoint(opened.view, diagnosis.findings),
            "all": [{"step": step, "name": known.name} for step, known in sorted(checkpoints_of(opened.view).items())],
        }

    answer = settled(lambda: folder.remembered(run, "best checkpoint", chosen))
    best = answer["checkpoint"]
    shown = None if best is None else without_nothing({**best, "path": folder.shown(best["path"])})
    hindsight = settled(lambda: api.in_hindsight(folder, Query([("run", run)])))["hindsight"]
    head = {
        "run": run,
        "judging": answer["judging"],
        "best": shown,
        "hint": Own("no checkpoint of this run is known") if best is None else "",
        "onset": hindsight and hindsight["onset"],
        "cost_of_going_on": hindsight and hindsight["cost"]["told"],
        "checkpoints_in_all": len(answer["all"]),
    }
    return fit(listed(without_nothing(head), "checkpoints", answer["all"], given))
