"""Converts the records of trackers that store rows: finds the step, the numbers and the texts."""

from __future__ import annotations

import math
import re
from collections.abc import Iterable, Mapping
from typing import Any

from rlvitals.importers.base import Notes
from rlvitals.importers.cells import flatten, number_of, time_of
from rlvitals.importers.dumps.base import with_part
from rlvitals.importers.rollouts import group_of_row
from rlvitals.importers.steps import TIME_NAMES, StepFinder
from rlvitals.importers.trackers.base import MOST_TEXT
from rlvitals.records import SAMPLE_AXIS, STEP_AXIS, Fields, Group, Row
from rlvitals.splits import is_held_out
from rlvitals.store.lines import metric_key

_NONFINITE = frozenset({"nan", "inf", "-inf", "+inf", "infinity", "-infinity", "+infinity"})
"""How trackers write numbers that JSON does not have."""


def counter_name(scheme: str) -> str:
    """The name of a tracker's own step in a row with a step from the training."""
    return f"{scheme}/step"


def are_completions(name: str) -> bool:
    """Whether a table with this name may hold a training's completions. Evaluations do not count.

    >>> are_completions("completions"), are_completions("eval/completions"), are_completions("confusion")
    (True, False, False)
    """
    return re.search(r"completion|rollout|generation|sample", name.lower()) is not None and not is_held_out(name)


def groups_of(table: Iterable[Mapping[str, Any]], step: int) -> list[Group]:
    """The rollouts of a table with one row per completion, as TRL logs it. Those of one prompt form a group."""
    found: dict[tuple[int, str], Group] = {}
    for row in table:
        group = group_of_row("trl", row, step) if "completion" in row else None
        if group is not None:
            key = group.step, group.key
            found[key] = with_part(found.get(key), group)
    return list(found.values())


class RowMaker:
    """Creates the rows of one run, in order. `memory` returns its state, to continue later."""

    def __init__(self, scheme: str, memory: dict[str, Any] | None = None, *, is_ours: bool = False) -> None:
        """`is_ours`: rlvitals forwarded the run, so its step is certain."""
        self._counter, self._is_ours = counter_name(scheme), is_ours
        self.notes = Notes()
        self._steps = StepFinder(self.notes)
        self._has_media = False
        self._found: list[list[Mapping[str, Any]]] = []
        """Tables of completions in the current record."""
        self.groups: list[Group] = []
        """Rollouts of the records so far. The caller takes them out."""
        if memory:
            self._steps.recall(memory)

    def memory(self) -> dict[str, Any]:
        """The state that another maker needs to continue."""
        return self._steps.memory()

    def row(self, record: dict[str, Any], counter: Any = None, time: Any = None) -> Row | None:
        """The row of one record; None if it is empty. `counter` is the tracker's own step. A step that the training
        logged takes precedence; if the two differ, `counter` is kept as `SCHEME/step`.
        """
        numbers, texts = self._cells(record)
        if self._is_ours:
            self._found = []  # rlvitals forwards no tables
            step = numbers.pop(STEP_AXIS, counter)
            moment = time_of(time)
            named = {metric_key(name): value for name, value in numbers.items()}
            return Row(int(step or 0), math.nan if moment is None else moment, 1, named, texts)
        with_time: dict[str, Any] = {**record, **({} if time is None else {"_timestamp": time})}
        own = counter if type(counter) is int else None
        if own is not None:
            numbers["_step"] = own
        fields = self._steps.place(numbers, {name: with_time[name] for name in TIME_NAMES if name in with_time})
        step, moment = fields.pop("step"), fields.pop("timestamp", math.nan)
        for table in self._found:
            self.groups += groups_of(table, step)
        self._found = []
        if own is not None and own != step:
            fields[self._counter] = own
        if not fields and not texts:
            return None
        return Row(step, moment, 1, {metric_key(name): value for name, value in fields.items()}, texts)

    def sample(self, record: dict[str, Any], time: float | None) -> Row | None:
        """A sample of the machine, which has a time and no step; None if it is empty."""
        numbers, _ = self._cells(record)
        numbers.pop(SAMPLE_AXIS, None)
        if not numbers:
            return None
        named = {metric_key(name): value for name, value in numbers.items()}
        return Row(0, math.nan if time is None else time, 1, named)

    def _cells(self, record: dict[str, Any]) -> tuple[Fields, dict[str, str]]:
        numeric: dict[str, Any] = {}
        texts: dict[str, str] = {}
        for name, value in record.items():
            if isinstance(value, str):
                if value.lower() in _NONFINITE:
                    numeric[name] = number_of(value)
                elif name not in TIME_NAMES:
                    texts[metric_key(name)] = value[:MOST_TEXT]
            elif isinstance(value, dict) and "_type" in value:
                held = value.get("_value")
                if isinstance(held, list) and are_completions(name):
                    self._found.append([row for row in held if isinstance(row, Mapping)])
                else:
                    self._has_media = True
            else:
                numeric[name] = value
        if self._has_media:
            self.notes.say("left out: tables, pictures and other files, which stay at the tracker")
        return flatten(numeric), texts
