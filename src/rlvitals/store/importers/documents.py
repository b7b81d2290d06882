"""Whole JSON documents: HF's trainer_state.json, a list of rows, a mapping that holds such a list or columns."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from rlvitals.store.importers.base import ForeignLog, NotALog
from rlvitals.store.importers.cells import number_of
from rlvitals.store.importers.jsonl import JsonlReader, parse_lenient
from rlvitals.store.importers.steps import count_epochs

SETTINGS = (
    "max_steps",
    "num_train_epochs",
    "logging_steps",
    "eval_steps",
    "save_steps",
    "train_batch_size",
    "num_generations",
    "max_completion_length",
    "learning_rate",
    "beta",
    "total_steps",
)


def read_document(path: Path, text: str) -> ForeignLog:
    """The rows of a JSON document; NotALog when it holds none."""
    try:
        document = parse_lenient(text)
    except ValueError as error:
        raise NotALog(path, f"its JSON is damaged ({error})", ["json"]) from error
    raw_rows = _rows_of(document)
    if not raw_rows:
        raise NotALog(path, "its JSON holds no list of rows", ["trainer_state", "json"])
    reader = JsonlReader()
    rows = [row for raw in raw_rows if (row := reader.take(raw)) is not None]
    reader.finish()
    if not rows:
        raise NotALog(path, "its JSON holds rows without numbers", ["trainer_state", "json"])
    count_epochs(rows, reader.notes)
    notes = reader.notes.texts()
    if len(rows) < len(raw_rows):
        notes.append(f"{len(raw_rows) - len(rows)} of {len(raw_rows)} rows hold no numbers and were skipped")
    config = _settings(document) if isinstance(document, dict) else {}
    is_state = isinstance(document, dict) and "log_history" in document
    return ForeignLog(path, "trainer_state" if is_state else "json", rows, config, notes)


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
            found.update({name: source[name] for name in SETTINGS if number_of(source.get(name)) is not None})
    return found
