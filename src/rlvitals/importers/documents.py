"""Whole JSON documents: HF's trainer_state.json, a list of rows, and documents with rows or columns at a deeper level.

A document may hold several tables. The one that looks most like a training is read, and tables of evaluations become
held-out rows. The notes name the others.
"""

from __future__ import annotations

import itertools
import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

from rlvitals.codec import refuse_depth
from rlvitals.errors import NotALog
from rlvitals.importers.base import Importer, Notes, head_of, named, number_of_checkpoint, text_in, text_of
from rlvitals.importers.cells import EARLIEST, flatten, number_of
from rlvitals.importers.jsonl import JsonlImporter, are_json_lines, object_in, parse_lenient
from rlvitals.importers.pairs import TELLING
from rlvitals.importers.settings import SETTINGS
from rlvitals.importers.steps import STEP_NAMES, count_epochs, held_out_row
from rlvitals.records import Fields
from rlvitals.splits import HELD_OUT_WORDS, is_held_out

_SETTINGS = (*SETTINGS, "logging_steps", "eval_steps", "save_steps", "train_batch_size", "total_steps")
_CONFIGS = ("config", "args", "hyperparameters", "params", "settings", "training_args", "arguments")
_STEP_KEY = re.compile(
    r"(?:(?:global_?)?step|iter(?:ation)?|update|epoch|episode|round|checkpoint|ckpt)?[-_ ]?(\d{1,15})", re.IGNORECASE
)
_BETWEEN = re.compile(r"[\s,]*")
SAMPLED = 50
"""Rows sampled to decide what a table holds."""
MAX_DEPTH = 40


class DocumentTable(NamedTuple):
    """Rows found in a document."""

    path: tuple[str, ...]
    rows: list[dict[str, Any]]
    left_out: tuple[str, ...] = ()
    """Columns with a different length."""

    @property
    def is_held_out(self) -> bool:
        return any(part.lower() in HELD_OUT_WORDS or is_held_out(part) for part in self.path[-2:])

    @property
    def title(self) -> str:
        return ".".join(self.path) or "the document itself"

    def worth(self) -> tuple[bool, bool, float]:
        """How much it resembles a training: metric names of trainings, more than one row, many numbers."""
        sample = [flatten(row) for row in self.rows[:SAMPLED]]
        names = {name for row in sample for name in row}
        points = sum(map(len, sample)) / max(len(sample), 1) * len(self.rows)
        return any(map(TELLING.search, names)), len(self.rows) > 1, points


class DocumentImporter(Importer):
    """A file that is one JSON document."""

    name = "json"
    description = "HF trainer_state.json; a JSON list of rows"
    marks = ("trainer_state.json", "checkpoint-*/trainer_state.json")

    @classmethod
    def recognises(cls, head: bytes, path: Path) -> bool:
        text = text_in(head)
        if are_json_lines(text):  # a single line may be a whole document
            first, _, rest = text.partition("\n")
            document = object_in(first) or {} if not rest.strip() else {}
            return "log_history" in document or _holds_a_table(document)
        if not re.match(r"\{|\[\s*[\[{\]]", text):
            return False
        try:
            parse_stream(text_of(path))
        except ValueError:
            return False
        return True

    @classmethod
    def log_in(cls, folder: Path) -> Path | None:
        """The state that was saved last: the final one, or the newest checkpoint's if training continued after the
        final one.
        """
        found = super().log_in(folder)
        checkpoints = sorted(folder.glob(cls.marks[1]), key=number_of_checkpoint)
        if found is None or not checkpoints or found == checkpoints[-1]:
            return found
        match = re.search(rb'"global_step":\s*(\d{1,18})\b', head_of(found))
        return checkpoints[-1] if match and int(match[1]) < number_of_checkpoint(checkpoints[-1]) else found

    def rows(self, path: Path) -> list[Fields]:
        try:
            document = parse_stream(text_of(path))
        except ValueError as error:
            raise NotALog(path, f"its JSON is damaged ({error})") from error
        if isinstance(document, dict):
            self.config = _settings(document)
            self.format = "trainer_state" if "log_history" in document else self.name
        tables = _tables(document, path)
        if not tables:
            raise NotALog(path, f"its JSON holds no list of rows ({_seen(document)})")
        training = [table for table in tables if not table.is_held_out] or tables
        chosen = max(training, key=DocumentTable.worth)
        rows = self._read(chosen)
        if not rows:
            raise NotALog(path, f"its JSON holds rows without metrics ({_seen(chosen.rows[0])})")
        self._note_others(chosen, tables)
        for table in tables:
            if table is not chosen and table.is_held_out and chosen in training:
                rows = self._with_evaluations(rows, table)
        return rows

    def _read(self, table: DocumentTable) -> list[Fields]:
        reader = JsonlImporter(self.notes)
        rows = [row for raw in table.rows for row in reader.place(raw)]
        rows = reader.settled(rows + reader.finish())
        self.config |= reader.config
        if not rows:
            return []
        self.notes.count(
            f"1 of {len(table.rows)} rows holds no numbers and was skipped",
            f"{{}} of {len(table.rows)} rows hold no numbers and were skipped",
            len(table.rows) - len(rows),
        )
        if table.left_out:
            self.notes.say(f"left out, because they are lists of another length: {named(table.left_out)}")
        return count_epochs(rows, reader.steps)

    def _note_others(self, chosen: DocumentTable, tables: list[DocumentTable]) -> None:
        others = [table for table in tables if table is not chosen and not table.is_held_out and len(table.rows) > 1]
        if others and chosen.path:
            shown = named(f"{table.title} ({len(table.rows)} rows)" for table in others)
            self.notes.say(
                f"the file holds several tables: {chosen.title} ({len(chosen.rows)} rows) was read, these were not: "
                f"{shown}. To read one of them, save it as its own file"
            )

    def _with_evaluations(self, rows: list[Fields], table: DocumentTable) -> list[Fields]:
        """The rows, merged with those of an evaluation that has a separate list."""
        reader = JsonlImporter(Notes())
        found = [row for raw in table.rows for row in reader.place(raw)] + reader.finish()
        found = count_epochs(found, reader.steps)
        if not found:
            return rows
        if reader.steps.is_numbered and len(found) <= len(rows):
            self.notes.say(f"{table.title} has no steps: its rows are spread evenly over the training")
            for number, row in enumerate(found, start=1):
                row["step"] = rows[-(-number * len(rows) // len(found)) - 1]["step"]
        self.notes.say(f"{table.title} ({len(found)} rows) is read as evaluations")
        merged = [*rows, *map(held_out_row, found)]
        in_order = all(one["step"] <= other["step"] for one, other in itertools.pairwise(rows))
        return sorted(merged, key=lambda row: row["step"]) if in_order else merged


def parse_stream(text: str) -> Any:
    """A JSON document. Several consecutive documents become a list; the last one may be incomplete."""
    try:
        return parse_lenient(text)
    except ValueError as error:
        found, end = _documents_in(text)
        rest = text[end:].lstrip(" \t\r\n,")
        if len(found) < 2 or rest[:1] not in ("", "{", "["):
            raise ValueError(str(error)) from error
    refuse_depth(found)
    return found


def _documents_in(text: str) -> tuple[list[Any], int]:
    """Consecutive JSON documents, and the position where they end or where one is damaged."""
    decoder = json.JSONDecoder()
    found: list[Any] = []
    at = 0
    while between := _BETWEEN.match(text, at):
        try:
            document, end = decoder.raw_decode(text, between.end())
        except (ValueError, RecursionError):
            break
        if not isinstance(document, dict | list):
            break
        found.append(document)
        at = end
    return found, at


def _holds_a_table(document: dict[str, Any]) -> bool:
    """Whether an object is more than one row: it contains rows, or it has columns and no step."""
    if any(number_of(document.get(name)) is not None for name in STEP_NAMES if "/" not in name):
        return False
    return any(len(table.rows) > 1 and table.worth()[0] for table in _walk(document, ()))


def _tables(document: Any, path: Path) -> list[DocumentTable]:
    if isinstance(document, dict) and isinstance(document.get("log_history"), list):
        rows = [row for row in document["log_history"] if isinstance(row, dict)]
        return [DocumentTable(("log_history",), rows)] if rows else []
    if isinstance(document, list) and (points := _points(document)):
        return [DocumentTable((), [{"step": step, path.stem: value} for step, value in points])]
    return list(_walk(document, ()))


def _walk(value: Any, path: tuple[str, ...]) -> Iterator[DocumentTable]:
    """Every table in a document."""
    if len(path) > MAX_DEPTH:
        return
    if isinstance(value, list):
        rows = [item for item in value if isinstance(item, dict)]
        if not rows:
            return
        table = DocumentTable(path, _unfolded(rows))
        inner = [] if table.worth()[0] else _inside(rows, path)
        yield from inner or [table]
    elif isinstance(value, dict):
        taken: set[str] = set()
        yield from _tables_of(value, path, taken)
        for name, item in value.items():
            if isinstance(item, dict | list) and name not in taken:
                yield from _walk(item, (*path, str(name)))


def _inside(rows: list[dict[str, Any]], path: tuple[str, ...]) -> list[DocumentTable]:
    """Tables inside the items of a list, if the items are not rows themselves: one table per run."""
    found = [
        table
        for number, row in enumerate(rows[:SAMPLED])
        for table in _walk({k: v for k, v in row.items() if isinstance(v, list | dict)}, (*path, str(number)))
    ]
    return [table for table in found if len(table.rows) > 1 and table.worth()[0]]


def _tables_of(mapping: dict[str, Any], path: tuple[str, ...], taken: set[str]) -> Iterator[DocumentTable]:
    """The table in a mapping: columns, points by name, or rows by step. The keys it uses are added to `taken`."""
    by_step = {step: name for name in mapping if (step := _step_in(name)) is not None}
    rows_by = {step: row for step in sorted(by_step) if isinstance(row := mapping[by_step[step]], dict)}
    if len(rows_by) > 1 and len(rows_by) >= len(mapping) - 1:  # one key may hold values from before the first step
        taken.update(mapping)
        yield DocumentTable(path, [{"step": step, **row} for step, row in rows_by.items()])
        return
    series = {str(name): points for name, item in mapping.items() if (points := _points(item))}
    if series:
        rows: dict[int, dict[str, Any]] = {}
        for name, points in series.items():
            for step, value in points:
                rows.setdefault(step, {"step": step})[name] = value
        yield DocumentTable(path, [rows[step] for step in sorted(rows)])
        return
    columns = {str(name): cells for name, item in mapping.items() if (cells := _cells(item))}
    length = max(map(len, columns.values()), default=0)
    whole = {name: cells for name, cells in columns.items() if len(cells) == length}
    for name, item in mapping.items() if whole else ():
        parts = {f"{name}/{part}": _cells(cells) for part, cells in item.items()} if isinstance(item, dict) else {}
        if parts and name not in columns and all(len(cells) == length for cells in parts.values()):
            whole |= parts
            taken.add(name)
    if length > 1 and any(number_of(cell) is not None for cells in whole.values() for cell in cells):
        rows_of = [dict(zip(whole, cells, strict=True)) for cells in zip(*whole.values(), strict=True)]
        shorter = {name: cells for name, cells in columns.items() if name not in whole and len(cells) > 1}
        held_out = {name: cells for name, cells in shorter.items() if is_held_out(name)}
        yield DocumentTable(path, rows_of, tuple(shorter.keys() - held_out.keys()))
        for name, cells in held_out.items():
            yield DocumentTable((*path, name), [{name: cell} for cell in cells])


def _unfolded(rows: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Converts rows of a long table (one name and value each) to rows of a wide table; other rows are unchanged."""
    first = rows[0]
    name = next((key for key in ("metric", "name", "tag", "key") if isinstance(first.get(key), str)), None)
    step = next((key for key in STEP_NAMES if number_of(first.get(key)) is not None), None)
    if name is None or step is None or number_of(first.get("value")) is None:
        return rows
    wide: dict[Any, dict[str, Any]] = {}
    for row in rows:
        number = number_of(row.get(step))
        if number is not None and isinstance(row.get(name), str):
            wide.setdefault(number, {"step": number})[row[name]] = row.get("value")
    return list(wide.values())


def _cells(item: Any) -> list[Any]:
    """A column's cells: a list, or pandas' mapping from row numbers; empty for anything else."""
    cells = (
        item if isinstance(item, list) else list(item.values()) if isinstance(item, dict) and _whole_keys(item) else []
    )
    return [] if any(isinstance(cell, dict | list) for cell in cells) else cells


def _points(item: Any) -> list[tuple[int, Any]]:
    """Steps and values of a series: pairs, or TensorBoard's triples of time, step and value."""
    if not isinstance(item, list) or len(item) < 2 or not all(isinstance(point, list) for point in item):
        return []
    widths = {len(point) for point in item}
    times = [number_of(point[0]) for point in item] if widths == {3} else []
    is_timed = bool(times) and all(time is not None and time > EARLIEST for time in times)
    if widths != {2} and not is_timed:
        return []
    found = [(_whole(point[-2]), number_of(point[-1])) for point in item]
    points = [(step, value) for step, value in found if step is not None and value is not None]
    is_series = len(points) == len(item) and all(one[0] < other[0] for one, other in itertools.pairwise(points))
    return points if is_series and (is_timed or any(isinstance(value, float) for _, value in points)) else []


def _step_in(key: Any) -> int | None:
    """The step in a key: `100`, `step_100`, `checkpoint-100`."""
    found = _STEP_KEY.fullmatch(str(key)) if len(str(key)) < 40 else None
    return int(found[1]) if found else None


def _whole_keys(mapping: dict[Any, Any]) -> bool:
    return len(mapping) > 1 and all(_whole(key) is not None for key in mapping)


def _whole(value: Any) -> int | None:
    number = number_of(value)
    return int(number) if number is not None and abs(number) < 2**53 and float(number).is_integer() else None


def _seen(document: Any) -> str:
    """Describes a document, for an error."""
    if isinstance(document, dict):
        return f"it is an object with {named(map(str, document))}" if document else "it is an empty object"
    if isinstance(document, list):
        kinds = {type(item).__name__ for item in document}
        return f"it is a list of {len(document)} items: {named(kinds)}" if document else "it is an empty list"
    return f"it is a {type(document).__name__}"


def _settings(document: dict[str, Any]) -> dict[str, Any]:
    found: dict[str, Any] = {}
    sources = [document.get(name) for name in _CONFIGS]
    for source in (*sources, document):
        if isinstance(source, dict):
            found.update({name: source[name] for name in _SETTINGS if number_of(source.get(name)) is not None})
    return found
