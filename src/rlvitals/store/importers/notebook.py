"""The log a notebook service keeps: a JSON list of pieces of output, a piece a line."""

from __future__ import annotations

from typing import Any

from rlvitals.store.importers.base import Fields
from rlvitals.store.importers.console import ConsoleReader
from rlvitals.store.importers.jsonl import parse_lenient


class NotebookReader(ConsoleReader):
    """Puts the pieces together again and reads the lines they make."""

    def __init__(self) -> None:
        super().__init__()
        self._begun: dict[Any, str] = {}

    def feed(self, line: str) -> list[Fields]:
        line = line.strip().lstrip("[,").rstrip("],")
        if not line:
            return []
        try:
            piece = parse_lenient(line)
        except ValueError:
            self.notes.count("1 line is no JSON and was skipped", "{} lines are no JSON and were skipped")
            return []
        if not isinstance(piece, dict) or not isinstance(piece.get("data"), str):
            return []
        stream = piece.get("stream_name")
        *lines, self._begun[stream] = (self._begun.get(stream, "") + piece["data"]).split("\n")
        return [row for whole in lines for row in super(NotebookReader, self).feed(f"{whole}\n")]

    def finish(self) -> list[Fields]:
        rows = [row for begun in self._begun.values() for row in super(NotebookReader, self).feed(begun)]
        return rows + super().finish()
