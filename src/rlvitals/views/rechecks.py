"""The recorded health events of a run, and those from its recorded rollouts if these were not checked before.

If the run's monitor read every row, it checked the rollouts during training. For other runs they are checked here, by
the same functions and with the same result.
"""

from __future__ import annotations

import math
from collections.abc import Iterator

from rlvitals.compute.recomputation import recheck
from rlvitals.config import by_last_name
from rlvitals.health import rulebook
from rlvitals.health.history import read_texts, was_watched
from rlvitals.health.rechecks import Rechecks
from rlvitals.records import Group, HealthEvent
from rlvitals.views.query import StoredRun

MOST_BYTES = 256 << 20
"""Maximum bytes of rollout files that are read for this, the newest first. Reading them takes a few seconds."""


def events_on_record(view: StoredRun, rules: rulebook.Rulebook | None = None) -> list[HealthEvent]:
    """All events of the living line, in order. `rules` replace the shipped ones."""
    events = view.health_events
    found: list[HealthEvent] = []
    if not was_watched(events, view.living_attempts):
        found += token_events(view, rules)
    if not _has_read_texts(view, events):
        from rlvitals.views.texts import text_events  # compiles the scanners, which most pages do not need

        found += text_events(view.rollout_log, rules)
    if not found:
        return events
    again = {event.seen_in for event in found}
    others = [event for event in events if event.seen_in not in again]
    return sorted([*others, *found], key=when)


def when(event: HealthEvent) -> float:
    """The time of an event, for sorting. Events without a time come first."""
    return event.timestamp if event.timestamp > 0 else -math.inf


def _has_read_texts(view: StoredRun, events: list[HealthEvent]) -> bool:
    """Whether there are no texts, or the run's own monitor scanned them. It does not read a framework's dumps."""
    if view.own_rollouts.last_step is None:
        return view.rollout_log is view.own_rollouts or view.rollout_log.last_step is None
    return read_texts(events, view.living_attempts)


def token_events(view: StoredRun, rules: rulebook.Rulebook | None = None) -> Iterator[HealthEvent]:
    """The events from a run's tokens, computed from the files."""
    steps = view.own_rollouts.steps_with_tokens(MOST_BYTES)
    if not steps:
        return
    wanted, rows = set(steps), dict[int, tuple[dict[str, float], float, int]]()
    for row in view.iterate(stream="train"):
        if row.step in wanted:
            known = rows.get(row.step, ({}, 0.0, 1))[0]
            rows[row.step] = known | row.numbers, row.timestamp, row.attempt
    config = by_last_name({key: value for key, value in view.config.items() if key != "rlvitals"})
    checks = Rechecks(rules or rulebook.load())
    for step in steps:
        groups: list[Group] = view.own_rollouts.at(step, rank=0)
        if step not in rows or not groups:
            continue
        numbers, now, attempt = rows[step]
        found = recheck(groups, numbers, config=config, framework=view.info.framework, algorithm=view.info.algorithm)
        for event in checks.take(found) if found is not None else ():
            yield HealthEvent(event.type, event.step, now, attempt, "tokens", event.finding, event.facts)
