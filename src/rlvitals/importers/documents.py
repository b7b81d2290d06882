"""Whole JSON documents: HF's trainer_state.json, a list of rows, a mapping that holds such a list or columns."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

from rlvitals.errors import NotALog
from rlvitals.importers.base import Fields, Importer, head_of, number_of_checkpoint, text_in, text_of
from rlvitals.importers.cells import number_of
from rlvitals.importers.jsonl import JsonlImporter, are_json_lines, object_in, parse_lenient
from rlvitals.importers.settings import SETTINGS
from rlvitals.importers.steps import count_epochs

_SETTINGS = (*SETTINGS, "logging_steps", "eval_steps", "save_steps", "train_batch_size", "total_steps")


class DocumentImporter(Importer):
    """A file that is JSON as a whole."""

    name = "json"
    description = "HF trainer_state.json; a JSON list of rows"
    marks = ("trainer_state.json", "checkpoint-*/trainer_state.json")

    @classmethod
    def recognises(cls, head: bytes, path: Path) -> bool:
        text = text_in(head)
        if are_json_lines(text):  # one line alone may be a whole trainer_state.json
            first = text.partition("\n")[0]
            return "log_history" in first and "log_history" in (object_in(first) or {})
        if not re.match(r"\{|\[\s*[\[{\]]", text):
            return False
        try:
            parse_lenient(text_of(path))
        except ValueError:
            return False
        return True

    @classmethod
    def log_in(cls, folder: Path) -> Path | None:
        """The state that was saved last: at the end, or with the newest checkpoint, where training went on after it."""
        found = super().log_in(folder)
        checkpoints = sorted(folder.glob(cls.marks[1]), key=number_of_checkpoint)
        if found is None or not checkpoints or found == checkpoints[-1]:
            return found
        said = re.search(rb'"global_step":\s*(\d{1,18})\b', head_of(found))
        return checkpoints[-1] if said and int(said[1]) < number_of_checkpoint(checkpoints[-1]) else found

    def rows(self, path: Path) -> list[Fields]:
        try:
            document = parse_lenient(text_of(path))
        except ValueError as error:
            raise NotALog(path, f"its JSON is damaged ({error})") from error
        if isinstance(document, dict):
            self.config = _settings(document)
            self.format = "trainer_state" if "log_history" in document else self.name
        raw_rows = _rows_of(document)
        if not raw_rows:
            raise NotALog(path, "its JSON holds no list of rows")
        reader = JsonlImporter()
        rows = [row for raw in raw_rows if (row := reader.take(raw)) is not None]
        reader.finish()
        if not rows:
            raise NotALog(path, "its JSON holds rows without numbers")
        self.notes = reader.notes
        self.notes.count(
            f"1 of {len(raw_rows)} rows holds no numbers and was skipped",
            f"{{}} of {len(raw_rows)} rows hold no numbers and were skipped",
            len(raw_rows) - len(rows),
        )
        return count_epochs(rows, reader.steps)


def _rows_of(document: Any) -> list[dict[str, Any]]:
    if isinstance(document, list):
        return [item for item in document if isinstance(item, dict)]
    if not isinstance(document, dict):
        return []
    if isinstance(document.get("log_history"), list):
        return _rows_of(document["log_history"])
    lists = [rows for value in document.values() if isinstance(value, list) and (rows := _rows_of(value))]
    if lists:
        return max(lists, key=len)
    columns = {
        name: list(value.values()) if isinstance(value, dict) else value
        for name, value in document.items()
        if isinstance(value, list | dict) and value
    }
    length = max(map(len, columns.values()), default=0)
    whole = {name: cells for name, cells in columns.items() if len(cells) == length}
    if length < 2 or any(isinstance(cell, dict | list) for cells in whole.values() for cell in cells):
        inner = [rows for value in document.values() if isinstance(value, dict) and (rows := _rows_of(value))]
        return max(inner, key=len, default=[])
    return [{name: cells[position] for name, cells in whole.items()} for position in range(length)]


def _settings(document: dict[str, Any]) -> dict[str, Any]:
    found: dict[str, Any] = {}
    for source in (document.get("config"), document.get("args"), document):
        if isinstance(source, dict):
            found.update({name: source[name] for name in _SETTINGS if number_of(source.get(name)) is not None})
    return found
