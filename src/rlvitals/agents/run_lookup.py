"""What the tools share: finding the run, continuing a list, and waiting for a verdict."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Mapping, Sequence
from datetime import UTC, datetime
from typing import Any, TypeVar

from rlvitals.agents.budget import Draft
from rlvitals.agents.quoting import Recorded
from rlvitals.errors import ConfigError, RunNotFound, did_you_mean
from rlvitals.web.folder import Folder

T = TypeVar("T", bound=Mapping[str, object])
Given = dict[str, Any]
"""The arguments of a question, checked."""

PATIENCE = 20.0
"""Seconds that are waited for a verdict, for logs that are being read, and for the values of a list."""

EXCERPT = 200
"""Characters of a prompt or an answer in a list."""


def listed(head: Mapping[str, Any], key: str, items: Sequence[Any], given: Given) -> Draft:
    """A list from the question's cursor on, with facts before it."""
    start = start_of(given)
    return Draft(head, key, items[start:], min(start, len(items)))


def start_of(given: Given) -> int:
    """Where in a list to begin. Raises ConfigError for what is not a cursor."""
    cursor = given.get("cursor", "0")
    if not cursor.isdecimal() or len(cursor) > 9:
        raise ConfigError(f"'cursor' is what 'more.cursor' of an answer said, not {cursor[:40]!r}")
    return int(cursor)


def run_of(folder: Folder, given: Given) -> str:
    """A run by its path below the folder, or by its name where only one has it."""
    run: str = given["run"]
    try:
        return folder.listed_name(run)
    except RunNotFound:
        look_at_logs(folder)
    try:
        return folder.listed_name(run)
    except RunNotFound as error:
        listed = folder.runs(hidden=True)["runs"]
        named = [line["run"] for line in listed if run in (line["name"], line["run"].rpartition("/")[2])]
        if len(named) == 1:
            return named[0]
        several = f" Several are called so: {', '.join(named[:8])}" if named else ""
        near = did_you_mean(run, [line["run"] for line in listed])
        raise RunNotFound(f"{error}.{several or near} 'list_runs' lists them") from error


def look_at_logs(folder: Folder) -> bool:
    """Logs of other tools are found in the background: start the search, and wait a while."""
    folder.logs.lines()
    return folder.logs.wait(PATIENCE)


def settled(question: Callable[[], T]) -> T:
    """An answer after the rows are judged, or after a while the current one. Each question waits a little itself."""
    until = time.monotonic() + PATIENCE
    while True:
        told = question()
        if not told.get("judging") or time.monotonic() > until:
            return told


def without_nothing(facts: Mapping[str, Any]) -> dict[str, Any]:
    """What is missing is not there."""
    return {key: value for key, value in facts.items() if value is not None and value not in ("", [], {})}


def moment(seconds: float | None) -> str | None:
    """A time as it is shown; None for what is not a time.

    >>> moment(1763190000.0)
    '2025-11-15T07:00:00Z'
    """
    if seconds is None or not math.isfinite(seconds) or not 0 < seconds < 1e11:
        return None
    return datetime.fromtimestamp(seconds, UTC).strftime("%Y-%m-%dT%H:%M:%SZ")


def picked(facts: Mapping[str, Any], *keys: str, **further: Any) -> dict[str, Any]:
    """Some of the facts and further ones. What is missing is not there."""
    return without_nothing({**{key: facts[key] for key in keys}, **further})


def excerpt(text: str) -> Recorded | str:
    """The beginning of a text that a run has recorded."""
    return Recorded(text if len(text) <= EXCERPT else f"{text[: EXCERPT - 1]}…") if text else ""
