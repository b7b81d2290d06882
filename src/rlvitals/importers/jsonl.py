"""JSON lines: one object a line, whatever it calls its step; verl's file logger; rlvitals' own rows."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from rlvitals.codec import parse_shallow, refuse_depth
from rlvitals.importers.base import Fields, LineImporter, named, text_in
from rlvitals.importers.cells import flatten, number_in, number_of, unwrapped
from rlvitals.importers.settings import are_settings, settings_of
from rlvitals.importers.steps import StepFinder
from rlvitals.store.lines import GAP, MOMENTS, NONFINITE, read_nonfinite

JUDGED_LINES = 50
SWIFT = "global_step/max_steps"


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


def object_in(text: str) -> dict[str, Any] | None:
    """The JSON object a text is, or None."""
    try:
        parsed = parse_lenient(text)
    except ValueError:
        return None
    return parsed if isinstance(parsed, dict) else None


def are_json_lines(text: str) -> bool:
    """Whether most of the first lines are JSON objects; the last one may be cut, by us or by a kill."""
    lines = [line for line in text.split("\n") if line.strip()]
    lines = lines[:-1][:JUDGED_LINES] if len(lines) > 1 else lines
    objects = sum(object_in(line.strip().rstrip(",")) is not None for line in lines if line.lstrip().startswith("{"))
    return objects * 2 > len(lines)


class JsonlImporter(LineImporter):
    """A JSON object a line."""

    name = "jsonl"
    description = "JSONL (one JSON object a line)"
    names = ("*.jsonl",)

    def __init__(self) -> None:
        super().__init__()
        self._names: dict[str, str] = {}
        self._left_out: set[str] = set()
        self._is_first = True
        self.steps = StepFinder(self.notes)

    @classmethod
    def recognises(cls, head: bytes, path: Path) -> bool:
        return are_json_lines(text_in(head))

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
        placed = self.steps.place({self._names.setdefault(name, name): value for name, value in found.items()}, raw)
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
