"""CSV and TSV tables: pandas and Lightning exports, notebook tables, with or without a column of row numbers.

An empty cell is a value that was not logged. A cell that says nan is one that was, unless the table has no empty cell
and pads with nan instead; `padding` tells.
"""

from __future__ import annotations

import csv
from pathlib import Path

from rlvitals.importers.base import Fields, LineImporter, named, text_in
from rlvitals.importers.cells import number_in
from rlvitals.importers.padding import drop_padding
from rlvitals.importers.steps import StepFinder, count_epochs
from rlvitals.store.spreadsheet import from_text

DELIMITERS = ",\t;"
NOTHING = frozenset({"", "no log", "none", "null", "-", "n/a", "na", "<na>"})
ROW_NUMBERS = frozenset({"", "unnamed: 0"})
MAX_CELL_LINES = 1000
JUDGED_LINES = 50


def delimiter_of(line: str) -> str | None:
    """What separates a header's names; None where the line is no header."""
    best = max(DELIMITERS, key=line.count)
    cells = split(line, best)
    names = [cell.strip() for cell in cells if cell.strip()]
    if len(cells) < 2 or len(names) < len(cells) - 1 or len(set(names)) < len(names):
        return None
    is_name = [number_in(name) is None and len(name) <= 120 and not set("{}[]") & set(name) for name in names]
    return best if all(is_name) else None


def split(line: str, delimiter: str) -> list[str]:
    """One line's cells."""
    try:
        return next(csv.reader([line], delimiter=delimiter), [])
    except csv.Error:
        return []


def is_table(text: str) -> bool:
    """Whether a header is followed by a line of as many cells with a number among them. Quoted cells may hold lines."""
    lines = [line for line in text.splitlines() if line.strip()]
    delimiter = delimiter_of(lines[0]) if lines else None
    if delimiter is None:
        return False
    rows = [split(line, delimiter) for line in lines[1:JUDGED_LINES] if line.count('"') % 2 == 0]
    width = len(split(lines[0], delimiter))
    return any(len(cells) == width and any(number_in(cell) is not None for cell in cells) for cells in rows[:10])


class TableImporter(LineImporter):
    """A header, then a row a line."""

    name = "csv"
    description = "CSV or TSV"
    names = ("*metrics*.csv", "progress.csv")

    def __init__(self) -> None:
        super().__init__()
        self._names: list[str] = []
        self._delimiter = ","
        self._steps = StepFinder(self.notes)
        self._begun: list[str] = []
        self._has_empty_cells = False
        self._has_nan = False
        self._texts: set[str] = set()

    @classmethod
    def recognises(cls, head: bytes, path: Path) -> bool:
        return is_table(text_in(head))

    def feed(self, line: str) -> list[Fields]:
        line = line.strip("\ufeff\r\n")
        if not line.strip() and not self._begun:
            return []
        whole = self._whole_line(line)
        if whole is None:
            return []
        if not self._names:
            self._delimiter = delimiter_of(whole) or ","
            self._names = [from_text(name.strip()) for name in split(whole, self._delimiter)]
            return []
        cells = [from_text(cell.strip()) for cell in split(whole, self._delimiter)]
        if cells == self._names:
            return []  # the header once more: a restart that appended
        if len(cells) != len(self._names):
            self.notes.count(
                "1 line has too few or too many cells and was skipped",
                "{} lines have too few or too many cells and were skipped",
            )
            return []
        return self._row(dict(zip(self._names, cells, strict=True)))

    def finish(self) -> list[Fields]:
        if self._texts:
            self.notes.say(f"left out, because they hold no numbers: {named(self._texts)}")
        return []

    def settled(self, rows: list[Fields]) -> list[Fields]:
        """Without the padding, and with epochs as steps where there are no others."""
        removed = 0
        if self._has_nan and not self._has_empty_cells:
            rows = [dict(row) for row in rows]
            removed = drop_padding(rows)
        self.notes.recount("1 nan is padding and was left out", "{} nan are padding and were left out", removed)
        return count_epochs(rows, self._steps)

    def _whole_line(self, line: str) -> str | None:
        """A line, with those before it when a quoted cell goes on over several."""
        if self._begun or line.count('"') % 2:
            self._begun.append(line)
            line = "\n".join(self._begun)
            if line.count('"') % 2 and len(self._begun) < MAX_CELL_LINES:
                return None
            self._begun = []
        return line

    def _row(self, cells: dict[str, str]) -> list[Fields]:
        found: Fields = {}
        for name, cell in cells.items():
            if cell.lower() in NOTHING:
                self._has_empty_cells = self._has_empty_cells or cell == ""
            elif name.lower() not in ROW_NUMBERS:
                number = number_in(cell)
                if number is not None:
                    found[name] = number
                    self._has_nan = self._has_nan or number != number  # noqa: PLR0124
                else:
                    self._texts.add(name)
        placed = self._steps.place(found, cells)
        return [placed] if len(placed) > 1 + ("timestamp" in placed) else []
