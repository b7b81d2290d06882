"""Functions that the tools share: find a run, continue a list, and wait for a verdict."""

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
"""The checked arguments of a question."""

PATIENCE = 20.0
"""Seconds to wait for a verdict, for logs that are being read, and for the values of a list."""

EXCERPT = 200
"""Characters of a prompt or an answer in a list."""


def listed(head: Mapping[str, Any], key: str, items: Sequence[Any], given: Given) -> Draft:
    """A draft with the list from the question's cursor on, and facts before it."""
    start = start_of(given)
    return Draft(head, key, items[start:], min(start, len(items)))


def start_of(given: Given) -> int:
    """The index in a list at which to begin. Raises ConfigError if it is not a cursor."""
    cursor = given.get("cursor", "0")
    if not cursor.isdecimal() or len(cursor) > 9:
        raise ConfigError(f"'cursor' is what 'more.cursor' of an answer said, not {cursor[:40]!r}")
    return int(cursor)


def run_of(folder: Folder, given: Given) -> str:
    """Find a run by its path below the folder, or by its name if only one run has it."""
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
    """Start the background search for logs of other tools, and wait up to PATIENCE seconds for it."""
    folder.logs.lines()
    return folder.logs.wait(PATIENCE)


def settled(question: Callable[[], T]) -> T:
    """The answer once the rows are judged, or the current one after PATIENCE seconds. Each call waits a little."""
    until = time.monotonic() + PATIENCE
    while True:
        answer = question()
        if not answer.get("judging") or time.monotonic() > until:
            return answer


def without_nothing(facts: Mapping[str, Any]) -> dict[str, Any]:
    """The facts without empty values: None, empty texts, lists and mappings."""
    return {key: value for key, value in facts.items() if value is not None and value not in ("", [], {})}


def moment(seconds: float | None) -> str | None:
    """A time as text; None if the number is not a valid time.

    >>> moment(1763190000.0)
    '2025-11-15T07:00:00Z'
    """
    if seconds is None or not math.isfinite(seconds) or not 0 < seconds < 1e11:
        return None
    return datetime.fromtimestamp(seconds, UTC).strftime("%Y-%m-%dT%H:%M:%SZ")


def picked(facts: Mapping[str, Any], *keys: str, **further: Any) -> dict[str, Any]:
    """The facts with these keys and further ones, without empty values."""
    return without_nothing({**{key: facts[key] for key in keys}, **further})


def excerpt(text: str) -> Recorded | str:
    """The beginning of a text that a run recorded."""
    return Recorded(text if len(text) <= EXCERPT else f"{text[: EXCERPT - 1]}…") if text else ""
