"""JSON lines with one object per line and any name for the step; verl's file logger; rlvitals' own rows."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from rlvitals.codec import NONFINITE, parse_shallow, read_nonfinite, refuse_depth
from rlvitals.importers.base import LineImporter, Notes, named, text_in
from rlvitals.importers.cells import flatten, number_in, number_of, unwrapped
from rlvitals.importers.pairs import TELLING
from rlvitals.importers.settings import are_settings, settings_of
from rlvitals.importers.steps import STEP_NAMES, StepFinder, has_values, held_out_row
from rlvitals.records import Fields
from rlvitals.splits import HELD_OUT_WORDS
from rlvitals.store.lines import GAP, MOMENTS

JUDGED_LINES = 50
SWIFT = "global_step/max_steps"

_NAMES = ("metric", "tag", "name", "key", "variable")
_SPLITS = ("split", "phase", "mode", "stage", "subset", "type", "event", "kind")
_EVALUATIONS = HELD_OUT_WORDS | {"dev"}


def parse_lenient(text: str) -> Any:
    """Parses JSON, also with NaN and Infinity. Raises ValueError on anything else and on too deep nesting."""
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
    """The JSON object in a text, or None."""
    try:
        parsed = parse_lenient(text)
    except ValueError:
        return None
    return parsed if isinstance(parsed, dict) else None


def are_json_lines(text: str) -> bool:
    """Whether most of the first lines are JSON objects. The last one may be cut off."""
    lines = [line for line in text.split("\n") if line.strip()]
    lines = lines[:-1][:JUDGED_LINES] if len(lines) > 1 else lines
    objects = sum(object_in(line.strip().rstrip(",")) is not None for line in lines if line.lstrip().startswith("{"))
    return objects * 2 > len(lines)


class JsonlImporter(LineImporter):
    """One JSON object per line."""

    name = "jsonl"
    description = "JSONL (one JSON object a line)"
    names = ("*.jsonl",)

    def __init__(self, notes: Notes | None = None) -> None:
        """`notes`: those of another importer that reads its rows with this one."""
        super().__init__()
        self.notes = self.notes if notes is None else notes
        self._names: dict[str, str] = {}
        self._left_out: set[str] = set()
        self._is_first = True
        self._first: dict[str, Any] | None = None
        """The first object, until it is decided whether it holds settings."""
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
            self.notes.count("1 line is not JSON and was skipped", "{} lines are not JSON and were skipped")
            return []
        if not isinstance(raw, dict):
            self._skip()
            return []
        return self.place(raw)

    def finish(self) -> list[Fields]:
        self._settle_first(None)
        if self._left_out:
            self.notes.say(f"left out, because they hold no numbers: {named(self._left_out)}")
        return []

    def settled(self, rows: list[Fields]) -> list[Fields]:
        """No rows if the objects are samples of a dataset: mostly texts, no step, no training metric."""
        if (
            not self.steps.is_numbered
            or len(self._left_out) < len(self._names)
            or any(map(TELLING.search, self._names))
        ):
            return rows
        return []

    def seen(self) -> str:
        return f"its objects hold texts ({named(self._left_out)}) and no metrics: " if self._left_out else ""

    def place(self, raw: dict[str, Any]) -> list[Fields]:
        """One more object as a row, if it contains numbers."""
        raw = unwrapped(raw)
        is_first, self._is_first = self._is_first, False
        if is_first and _are_settings(raw):
            self._first = raw
            return []
        rows = [self.take(first) for first in self._settle_first(raw)] + [self.take(raw)]
        for row in rows:
            if row is None:
                self._skip()
        return [row for row in rows if row is not None]

    def _settle_first(self, second: dict[str, Any] | None) -> list[dict[str, Any]]:
        """Decides on a first line that resembles settings: it is settings, unless the second line has mostly the same
        names.
        """
        first, self._first = self._first, None
        if first is None:
            return []
        if second is not None and len(first.keys() & second.keys()) * 5 >= len(first.keys() | second.keys()) * 4:
            return [first]
        for mapping in _mappings_in(first):
            self.config.update(settings_of(mapping))
        self._skip()
        return []

    def _skip(self) -> None:
        self.notes.count("1 line holds no numbers and was skipped", "{} lines hold no numbers and were skipped")

    def take(self, raw: dict[str, Any]) -> Fields | None:
        """One object as a row; None if it contains no number."""
        raw = unwrapped(raw)
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
        raw = named_by_itself(raw)
        found = flatten(raw, self._left_out)
        if is_evaluation(raw):
            found = held_out_row(found)
        if isinstance(nonfinite, str):
            found.update(read_nonfinite(nonfinite))
        placed = self.steps.place({self._names.setdefault(name, name): value for name, value in found.items()}, raw)
        return placed if has_values(placed) else None


def _mappings_in(raw: dict[str, Any]) -> list[dict[str, Any]]:
    return [raw, *(value for value in raw.values() if isinstance(value, dict))]


def _are_settings(raw: dict[str, Any]) -> bool:
    """Whether a first line is a configuration, with texts and without a loss."""
    texts: set[str] = set()
    numbers = flatten(raw, texts)
    return (
        bool(texts) and any(map(are_settings, _mappings_in(raw))) and not any(name.endswith("loss") for name in numbers)
    )


def is_evaluation(raw: Mapping[str, Any]) -> bool:
    """Whether a row identifies itself as an evaluation's: `{"split": "eval", "loss": 0.5}`."""
    return any(isinstance(word := raw.get(name), str) and word.lower() in _EVALUATIONS for name in _SPLITS)


def named_by_itself(raw: dict[str, Any]) -> dict[str, Any]:
    """Converts a row of a long table (a value and its name) to one of a wide table; other rows are unchanged."""
    if len(raw) > 8:
        return raw
    plain = {name.lower(): name for name in raw}
    value = plain.get("value", plain.get("scalar"))
    key = next((plain[key] for key in _NAMES if isinstance(raw.get(plain.get(key, "")), str)), None)
    if key is None or value is None or number_of(raw[value]) is None or not plain.keys() & set(STEP_NAMES):
        return raw
    return {**{name: cell for name, cell in raw.items() if name not in (key, value)}, raw[key]: raw[value]}
