"""Conversations in no particular framework's format: JSON, JSONL or Parquet with `messages`, or with `prompt` and
`completion`, with or without a reward. Also rlvitals' own lines.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from rlvitals.importers.base import Notes
from rlvitals.importers.dumps.base import NO_ROLLOUT, DocumentForm, LineForm, RowContents, document, step_in, whole
from rlvitals.importers.dumps.trl import contents_of as contents_of_trl
from rlvitals.importers.dumps.trl import parquet_rows
from rlvitals.store.messages import are_messages

_MARKS = frozenset({"messages", "completion", "turns"})


def contents_of(row: Any, path: Path, notes: Notes) -> RowContents | None:
    """A row as a group with one rollout, or a whole group in rlvitals' own form."""
    if are_messages(row):
        row = {"messages": row}
    if not isinstance(row, Mapping):
        return None
    step = whole(row.get("step"), step_in(path.name))
    if isinstance(row.get("rollouts"), list):
        return RowContents(step, row)
    if "completion" in row and "advantage" in row:
        return contents_of_trl(row, step, notes)
    if not _MARKS & row.keys():
        return None
    return RowContents(step, {key: value for key, value in row.items() if key != "step"})


class MessageLines(LineForm):
    """JSON lines."""

    name = "messages"
    writes = "JSONL of conversations"

    def recognises(self, path: Path, row: Any) -> bool:
        return path.suffix in (".jsonl", ".ndjson") and contents_of(row, path, Notes()) is not None

    def contents(self, row: Mapping[str, Any], path: Path, notes: Notes) -> RowContents | None:
        return contents_of(row, path, notes)

    def contents_of_list(self, row: Any, path: Path) -> RowContents | None:
        return contents_of(row, path, Notes())


class OwnLines(MessageLines):
    """Groups as rlvitals records them."""

    name = "rlvitals"
    writes = "rlvitals' own groups"

    def recognises(self, path: Path, row: Any) -> bool:
        return path.suffix == ".jsonl" and isinstance(row, Mapping) and isinstance(row.get("rollouts"), list)


class Documents(DocumentForm):
    """A JSON file with a list of conversations or a single one, or a Parquet table."""

    name = "messages"
    writes = "JSON or Parquet of conversations"

    def recognises(self, path: Path, row: Any) -> bool:
        if path.suffix == ".parquet":
            return any(contents_of(one, path, Notes()) is not None for one in _some(parquet_rows(path)))
        return path.suffix == ".json" and any(
            contents_of(one, path, Notes()) is not None for one in _some(_listed(row))
        )

    def rows(self, path: Path, notes: Notes, *, whole: bool) -> Iterable[RowContents]:
        for row in parquet_rows(path) if path.suffix == ".parquet" else _listed(document(path)):
            contents = contents_of(row, path, notes)
            if contents is None:
                notes.count(*NO_ROLLOUT)
            else:
                yield contents


def _listed(whole: Any) -> Iterable[Any]:
    return whole if isinstance(whole, list) and not are_messages(whole) else [whole]


def _some(rows: Iterable[Any]) -> Iterable[Any]:
    return (row for _, row in zip(range(5), rows, strict=False))
