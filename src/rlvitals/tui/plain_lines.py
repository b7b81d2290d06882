"""`rlvitals watch` as lines: for a pipe, a file, a program, or a terminal without a cursor."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from dataclasses import asdict
from typing import Any

from rlvitals.render.check import joined
from rlvitals.render.numbers import duration, number, progress
from rlvitals.terminal import visible
from rlvitals.tui.watched import Watched

SHOWN_VALUES = 6

Event = dict[str, Any]
"""`type` is row, finding, problem or end."""


def follow(watched: Watched, say: Callable[[Event], None], *, interval: float, until_idle: float | None) -> None:
    """Report each poll with new rows, each finding and each problem, until the run ends or `until_idle` seconds pass
    without a row.
    """
    reported, points, problem = 0, -1, ""
    while True:
        watched.poll()
        idle, ending = time.monotonic() - watched.last_row_at, watched.ending
        if not ending and until_idle is not None and idle >= until_idle:
            ending = f"no row came for {duration(idle)}"
            watched.finish()
        for event in list(_findings(watched, reported)):
            say(event)
        reported = len(watched.judge.raised)
        if watched.judge.points != points:
            points = watched.judge.points
            say(_row(watched))
        if watched.problem and watched.problem != problem:
            say({"type": "problem", "reason": watched.problem})
        problem = watched.problem
        if ending:
            verdict, reason = watched.diagnosis.verdict, watched.diagnosis.reason
            return say({"type": "end", "why": ending, "verdict": verdict, "reason": reason})
        time.sleep(interval)


def line(event: Event) -> str:
    """An event as a line of text."""
    kind = event["type"]
    if kind == "finding":
        advice = f"; do: {joined(event['advice'])}" if event["advice"] else ""
        return visible(f"{event['severity']} since step {event['onset_step']}: {event['title']}{advice}")
    if kind == "problem":
        return visible(event["reason"])
    if kind == "end":
        return visible(f"{event['why']}; {event['verdict']}: {event['reason']}")
    if not event["rows"]:
        return visible(f"{event['source']}: no rows yet")
    parts = [f"step {progress(event['step'], event['total_steps'])}", event["verdict"]]
    parts += [f"{name} {number(value)}" for name, value in list(event["values"].items())[:SHOWN_VALUES]]
    if event["seconds_left"] is not None:
        parts.append(f"{duration(event['seconds_left'])} left")
    return visible(" | ".join(parts))


def _row(watched: Watched) -> Event:
    return {
        "type": "row",
        "source": str(watched.path),
        "step": watched.judge.last_step,
        "total_steps": watched.total_steps,
        "rows": watched.rows,
        "verdict": watched.diagnosis.verdict,
        "values": {name: watched.latest[name] for name in watched.vital_names},
        "seconds_left": watched.seconds_left,
    }


def _findings(watched: Watched, reported: int) -> Iterator[Event]:
    """The findings after the first `reported`, or all of them if judging restarted. Severity info is left out."""
    found = watched.judge.raised
    for item in found[reported if reported <= len(found) else 0 :]:
        if item.finding.severity != "info":
            yield {"type": "finding", **asdict(item.finding)}
