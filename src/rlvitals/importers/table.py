"""CSV and TSV tables: exports of pandas, Lightning and W&B, and notebook tables. A file may have a column of row
numbers, lines before the header, and several tables.

An empty cell is a value that was not logged. A nan cell was logged, unless the table has no empty cell and pads with
nan instead; `padding` decides.
"""

from __future__ import annotations

import csv
import re
from itertools import pairwise
from pathlib import Path
from typing import Literal, NamedTuple

from rlvitals.importers.base import LineImporter, Notes, named, text_in
from rlvitals.importers.cells import number_in, printed_number
from rlvitals.importers.jsonl import is_evaluation, named_by_itself
from rlvitals.importers.padding import drop_padding
from rlvitals.importers.pairs import TELLING
from rlvitals.importers.steps import StepFinder, averaged, count_epochs, has_values, held_out_row, joined
from rlvitals.records import Fields
from rlvitals.store.spreadsheet import from_text

DELIMITERS = ",\t;|"
NOTHING = frozenset({"", "no log", "none", "null", "-", "n/a", "na", "<na>"})
ROW_NUMBERS = frozenset({"", "unnamed: 0"})
MAX_CELL_LINES = 1000
JUDGED_LINES = 50
PREAMBLE = 40
"""Lines that may come before the header."""

_COMMENT = re.compile(r"\s*(?:#|//|%)\s*")
_DECIMAL_COMMA = re.compile(r"[+-]?\d+,\d+(?:[eE][+-]?\d+)?")
_THOUSANDS = re.compile(r"[+-]?[1-9]\d{0,2}(?:,\d{3})+(?:\.\d+)?")
_EXPORTED_AXES = re.compile(r"step|_step|epoch|timestamp|relative time.*|wall time|.*global_step", re.IGNORECASE)
_TITLE = re.compile(r"(?:\b|_)(?:eval(?:uation)?|val(?:idation)?|test|held[-_ ]?out)(?:\b|_)", re.IGNORECASE)


def delimiter_of(line: str) -> str | None:
    """The delimiter of a header line; None if the line is not a header."""
    best = max(DELIMITERS, key=line.count)
    cells = split(line, best)
    names = [cell.strip() for cell in cells if cell.strip()]
    if len(cells) < 2 or len(names) < len(cells) - 1 or len(set(names)) < len(names):
        return None
    is_name = [
        number_in(name) is None
        and len(name) <= 120
        and not set("{}") & set(name)
        and ("[" not in name or (name[0].isalpha() and name.endswith("]")))
        for name in names
    ]
    return best if all(is_name) else None


def split(line: str, delimiter: str) -> list[str]:
    """One line's cells."""
    try:
        return next(csv.reader([line], delimiter=delimiter), [])
    except csv.Error:
        return []


def is_table(text: str) -> bool:
    """Whether a header is followed by a line with as many cells, one of them a number. Quoted cells may contain line
    breaks.
    """
    lines = [line for line in text.splitlines() if line.strip()]
    if not lines:
        return False
    if _fits(lines[0], lines[1:JUDGED_LINES]):
        return True
    return any(_is_header(lines, at) for at in range(min(PREAMBLE, len(lines) - 1)))


def _fits(header: str, lines: list[str]) -> bool:
    delimiter = delimiter_of(header)
    if delimiter is None:
        return False
    rows = [split(line, delimiter) for line in lines if line.count('"') % 2 == 0]
    width = len(split(header, delimiter))
    return any(len(cells) == width and _has_number(cells, delimiter) for cells in rows[:10])


def _is_header(lines: list[str], at: int) -> bool:
    """Whether a later line is the header: most lines below have as many cells, and most cells are numbers."""
    header = _COMMENT.sub("", lines[at], count=1)
    delimiter = delimiter_of(header)
    below = [split(line, delimiter) for line in lines[at + 1 :][:JUDGED_LINES]] if delimiter else []
    width = len(split(header, delimiter)) if delimiter else 0
    fitting = [cells for cells in below[:-1] or below if len(cells) == width]
    if not delimiter or len(fitting) < 2 or len(fitting) * 5 < len(below[:-1] or below) * 4 or len(below[0]) != width:
        return False
    cells = [cell for row in fitting for cell in row if cell.strip().lower() not in NOTHING]
    return sum(_number(cell, delimiter) is not None for cell in cells) * 2 > len(cells)


def _has_number(cells: list[str], delimiter: str) -> bool:
    return any(_number(cell, delimiter) is not None for cell in cells)


def _number(cell: str, delimiter: str) -> int | float | None:
    """A cell's number. If the comma is not the delimiter, it may be a decimal comma."""
    cell = cell.strip()
    number = number_in(cell)
    if number is None and delimiter != "," and _DECIMAL_COMMA.fullmatch(cell):
        is_decimal = delimiter == ";" or not _THOUSANDS.fullmatch(cell)
        return number_in(cell.replace(",", "." if is_decimal else ""))
    return printed_number(cell) if number is None else number


class Header(NamedTuple):
    """The columns of one table."""

    names: list[str]
    delimiter: str
    is_held_out: bool = False


class TableImporter(LineImporter):
    """A header, then one row per line."""

    name = "csv"
    description = "CSV or TSV"
    names = ("*metrics*.csv", "progress.csv")

    def __init__(self) -> None:
        super().__init__()
        self._header: Header | None = None
        self._columns: list[str | None] = []
        """The metric of each column; None for columns that are skipped."""
        self._next: tuple[Header, str] | None = None
        """A line that may be the header of another table. The next line decides."""
        self._title = ""
        self._steps = StepFinder(self.notes)
        self._cell_lines: list[str] = []
        self._has_empty_cells = False
        self._has_nan = False
        self._is_long = False
        """Whether each row holds one metric."""
        self._texts: set[str] = set()

    @classmethod
    def recognises(cls, head: bytes, path: Path) -> bool:
        return is_table(text_in(head))

    def feed(self, line: str) -> list[Fields]:
        line = line.strip("\ufeff\r\n")
        if not line.strip() and not self._cell_lines:
            return []
        self._cell_lines.append(line)
        if len(self._cell_lines) < MAX_CELL_LINES and self._ending("\n".join(self._cell_lines)) == "cell":
            return []
        return self._taken()

    def _taken(self) -> list[Fields]:
        """Read the lines of a quoted cell as one, if that fits the header, and else each alone: a quote that is never
        closed must not swallow the rows after it.
        """
        lines, self._cell_lines = self._cell_lines, []
        whole = "\n".join(lines)
        if len(lines) == 1 or self._ending(whole) == "row":
            return self._line(whole)
        return [row for line in lines if line.strip() for row in self._line(line)]

    def _line(self, whole: str) -> list[Fields]:
        """The rows of a line, in which a quoted cell may span several lines of the file."""
        if self._header is None:
            return self._before_the_header(whole)
        if self._next is not None:
            (header, header_line), self._next = self._next, None
            if _fits_header(whole, header):
                self._begin(header)
            else:
                self._skip(header_line)
        cells = _cells(whole, self._header.delimiter)
        if cells == self._header.names:
            return []  # the header again: a restarted process appended to the file
        if len(cells) != len(self._header.names) or not _has_number(cells, self._header.delimiter):
            other = self._other_header(whole)
            if other is not None:
                self._next = other, whole
                return []
        if len(cells) != len(self._header.names):
            self._skip(whole)
            return []
        return self._row(dict(zip(self._header.names, cells, strict=True)))

    def finish(self) -> list[Fields]:
        rows = self._taken() if self._cell_lines else []
        if self._next is not None:
            self._skip(self._next[1])
        if self._texts:
            self.notes.say(f"left out, because they hold no numbers: {named(self._texts)}")
        return rows

    def settled(self, rows: list[Fields]) -> list[Fields]:
        """The rows without padding, one per step. Epochs are the steps if there are no others."""
        if self._is_other_table(rows):
            return []
        removed = 0
        if self._has_nan and not self._has_empty_cells:
            rows = [dict(row) for row in rows]
            removed = drop_padding(rows)
        self.notes.recount("1 nan is padding and was left out", "{} nan are padding and were left out", removed)
        rows = joined(rows) if self._is_long else rows
        return averaged(count_epochs(rows, self._steps), self.notes)

    def seen(self) -> str:
        columns = named(self._header.names, 8) if self._header else ""
        return f"a table with the columns {columns} and no metrics in them: " if columns else ""

    def _is_other_table(self, rows: list[Fields]) -> bool:
        """Whether the table shows no training: no column has a name that trainings log, and either there is no step, or
        most columns are texts and the step column goes up and down, as in an index of runs.
        """
        numbers = [name for name in self._columns if name is not None and name not in self._texts]
        if self._is_long or any(map(TELLING.search, numbers)):
            return False
        return self._steps.is_numbered or (len(self._texts) > len(numbers) and _falls(rows))

    def _before_the_header(self, line: str) -> list[Fields]:
        bare = _COMMENT.sub("", line, count=1)
        delimiter = delimiter_of(bare)
        if delimiter is None:
            self._title = line
        else:
            self._begin(Header(_cells(bare, delimiter), delimiter, self._is_evaluation()))
        return []

    def _begin(self, header: Header) -> None:
        self._header = header
        self._columns = _metrics(header.names, self.notes)
        self._title = ""

    def _other_header(self, line: str) -> Header | None:
        """The header in a line that may begin another table."""
        delimiter = delimiter_of(line)
        names = _cells(line, delimiter) if delimiter else []
        return Header(names, delimiter, self._is_evaluation()) if delimiter else None

    def _is_evaluation(self) -> bool:
        return len(self._title) < 80 and _TITLE.search(self._title) is not None

    def _skip(self, line: str) -> None:
        self._title = line
        self.notes.count(
            "1 line has too few or too many cells and was skipped",
            "{} lines have too few or too many cells and were skipped",
        )

    def _ending(self, text: str) -> Literal["row", "cell", "neither"]:
        """Whether lines end with a row, or inside a quoted cell. A quote in the middle of a cell is a letter of it."""
        if self._header is None or '"' not in text:
            return "cell" if text.count('"') % 2 else "row"
        try:
            cells = next(csv.reader([text], delimiter=self._header.delimiter, strict=True))
        except csv.Error as error:
            return "cell" if "unexpected end of data" in str(error) else "neither"
        return "row" if len(cells) == len(self._header.names) else "neither"

    def _row(self, cells: dict[str, str]) -> list[Fields]:
        header = self._header
        found: Fields = {}
        texts: dict[str, str] = {}
        for (name, cell), metric in zip(cells.items(), self._columns, strict=True) if header else ():
            if cell.lower() in NOTHING:
                self._has_empty_cells = self._has_empty_cells or cell == ""
            elif metric is not None:
                number = _number(cell, header.delimiter) if header else None
                if number is not None:
                    found[metric] = number
                    self._has_nan = self._has_nan or number != number  # noqa: PLR0124
                else:
                    texts[name] = cell
        raw = {**texts, **found}
        long = named_by_itself(raw)
        if long is not raw:
            self._is_long = True
            found = {name: value for name, value in long.items() if not isinstance(value, str)}
        self._texts |= texts.keys() & long.keys()
        if is_evaluation(texts) or (header and header.is_held_out):
            found = held_out_row(found)
        placed = self._steps.place(found, {**cells, **found})
        return [placed] if has_values(placed) else []


def _falls(rows: list[Fields]) -> bool:
    """Whether the steps fall at least a quarter as often as they rise. In a training they fall only at a restart."""
    pairs = list(pairwise(float(row["step"]) for row in rows))
    return 4 * sum(later < earlier for earlier, later in pairs) >= sum(later > earlier for earlier, later in pairs)


def _cells(line: str, delimiter: str) -> list[str]:
    return [from_text(cell.strip()) for cell in split(line, delimiter)]


def _fits_header(line: str, header: Header) -> bool:
    cells = _cells(line, header.delimiter)
    return len(cells) == len(header.names) and _has_number(cells, header.delimiter)


def _metrics(names: list[str], notes: Notes) -> list[str | None]:
    """The metric of each column. W&B's exports prefix it with the run and add columns for its minimum and maximum."""
    metrics: list[str | None] = [None if name.lower() in ROW_NUMBERS else name for name in names]
    others = [name for name in metrics if name is not None and not _EXPORTED_AXES.fullmatch(name)]
    runs = list(dict.fromkeys(name.rpartition(" - ")[0] for name in others))
    if not others or "" in runs:
        return metrics
    if len(runs) > 1:
        notes.say(
            f"the export holds {len(runs)} runs: {runs[0]} was read, these were not: {named(runs[1:])}. "
            "To read another, export it alone or move its columns to the front"
        )
    return [_exported(name, runs[0], set(names)) if name in others else name for name in metrics]


def _exported(name: str | None, run: str, names: set[str]) -> str | None:
    """The metric of an exported column; None for another run's, and for minimum and maximum columns."""
    base, _, part = (name or "").rpartition("__")
    if name is None or not name.startswith(f"{run} - ") or (part in ("MIN", "MAX") and base in names):
        return None
    return name[len(run) + 3 :]
