"""JSON lines: one object a line, whatever it calls its step; verl's file logger; rlvitals' own rows."""

from __future__ import annotations

import json
from typing import Any

from rlvitals.codec import parse_shallow, refuse_depth
from rlvitals.store.importers.base import Fields, Notes, named
from rlvitals.store.importers.cells import flatten, number_in, number_of, unwrapped
from rlvitals.store.importers.settings import are_settings, settings_of
from rlvitals.store.importers.steps import StepFinder
from rlvitals.store.lines import GAP, MOMENTS, NONFINITE, read_nonfinite


def parse_lenient(text: str) -> Any:
    """JSON as programs write it: also with NaN and Infinity. Raises ValueError on anything else, however deep."""
    try:
        return parse_shallow(text.encode())
    except ValueError:
        try:
            parsed = json.loads(text)
        except RecursionError as error:
            raise ValueError("nested too deeply") from error
    refuse_depth(parsed)
    return parsed


SWIFT = "global_step/max_steps"


class JsonlReader:
    """Rows from JSON lines, fed one by one."""

    def __init__(self) -> None:
        self.config: dict[str, Any] = {}
        self.notes = Notes()
        self._names: dict[str, str] = {}
        self._left_out: set[str] = set()
        self._is_first = True
        self._steps = StepFinder(self.notes)

    def feed(self, line: str) -> list[Fields]:
        line = line.strip().lstrip("\ufeff")
        if not line or line in "[]":
            return []
        try:
            raw = parse_lenient(line.rstrip(","))
        except ValueError:
            self.notes.count("1 line is no JSON and was skipped", "{} lines are no JSON and were skipped")
            return []
        row = self.take(raw) if isinstance(raw, dict) else None
        if row is None:
            self.notes.count("1 line holds no numbers and was skipped", "{} lines hold no numbers and were skipped")
            return []
        return [row]

    def finish(self) -> list[Fields]:
        if self._left_out:
            self.notes.say(f"left out, because they hold no numbers: {named(self._left_out)}")
        return []

    def take(self, raw: dict[str, Any]) -> Fields | None:
        """One object as a row; None when there is no number in it."""
        raw = unwrapped(raw)
        is_first, self._is_first = self._is_first, False
        if is_first and self._are_settings(raw):
            return None
        if isinstance(raw.get(SWIFT), str):  # ms-swift writes "10/145"
            done, _, total = raw[SWIFT].partition("/")
            raw = {"step": done, **{name: value for name, value in raw.items() if name != SWIFT}}
            self.config["max_steps"] = number_in(total)
        elif "current_steps" in raw and number_of(raw.get("total_steps")):  # LLaMA-Factory
            self.config["max_steps"] = number_of(raw["total_steps"])
        nonfinite = raw.get(NONFINITE)
        own = {NONFINITE, MOMENTS, GAP} & raw.keys()
        if own:
            raw = {name: value for name, value in raw.items() if name not in own}
        found = flatten(raw, self._left_out)
        if isinstance(nonfinite, str):
            found.update(read_nonfinite(nonfinite))
        placed = self._steps.place({self._names.setdefault(name, name): value for name, value in found.items()}, raw)
        return placed if len(placed) > 1 + ("timestamp" in placed) else None

    def _are_settings(self, raw: dict[str, Any]) -> bool:
        """Whether a first line is a configuration, with texts and without a loss; what is known of it is kept."""
        inner = [raw, *(value for value in raw.values() if isinstance(value, dict))]
        texts: set[str] = set()
        numbers = flatten(raw, texts)
        if not texts or not any(map(are_settings, inner)) or any(name.endswith("loss") for name in numbers):
            return False
        for mapping in inner:
            self.config.update(settings_of(mapping))
        return True
