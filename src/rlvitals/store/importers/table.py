"""CSV and TSV tables: pandas and Lightning exports, notebook tables, with or without a column of row numbers.

An empty cell is a value that was not logged. A cell that says nan is one that was, unless the table has no empty cell
and pads with nan instead; `padding` tells.
"""

from __future__ import annotations

import csv
from typing import Any

from rlvitals.store.importers.base import Fields, Notes, named
from rlvitals.store.importers.cells import number_in
from rlvitals.store.importers.padding import drop_other_families, drop_padding
from rlvitals.store.importers.steps import StepFinder, count_epochs
from rlvitals.store.spreadsheet import from_text

DELIMITERS = ",\t;"
NOTHING = frozenset({"", "no log", "none", "null", "-", "n/a", "na", "<na>"})
ROW_NUMBERS = frozenset({"", "unnamed: 0"})
MAX_CELL_LINES = 1000


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


class TableReader:
    """Rows from a table's lines; the first is the header."""

    def __init__(self, *, is_whole: bool = True) -> None:
        self.config: dict[str, Any] = {}
        self.notes = Notes()
        self._is_whole = is_whole
        """Whether `settle` will see all rows; otherwise each is judged alone."""
        self._names: list[str] = []
        self._delimiter = ","
        self._steps = StepFinder(self.notes)
        self._begun: list[str] = []
        self._has_empty_cells = False
        self._has_nan = False
        self._texts: set[str] = set()

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

    def settle(self, rows: list[Fields]) -> None:
        """Remove the padding, which the whole table shows, and find steps in epochs."""
        removed = drop_padding(rows) if self._has_nan and not self._has_empty_cells else 0
        if removed:
            self.notes.count("1 nan is padding and was left out", "{} nan are padding and were left out", removed)
        count_epochs(rows, self.notes)

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
        if not self._is_whole and not self._has_empty_cells:
            drop_other_families(found)
        placed = self._steps.place(found, cells)
        return [placed] if len(placed) > 1 + ("timestamp" in placed) else []
