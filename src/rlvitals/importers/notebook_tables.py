"""Parses the tables in a notebook's outputs: HTML of a trainer's progress or of pandas, and the text that pandas
prints.

A table is names and texts. `notebook` interprets them.
"""

from __future__ import annotations

import contextlib
import re
from collections.abc import Iterator
from dataclasses import dataclass, field
from html.parser import HTMLParser

from rlvitals.importers.cells import number_in

MAX_COLUMNS = 1000
MAX_TEXT_ROW = 2000
"""A longer line is not a row of a printed table."""

ELLIPSES = frozenset({"...", "..", "…"})

_SIZE = re.compile(r"\[?(\d+) rows [\u00d7x] (\d+) columns\]?")
_EPOCHS = re.compile(r"\bEpoch [\d.]{1,20}/([1-9]\d{0,8})\b")
_TOKEN = re.compile(r"\S+")
_LABEL = re.compile(r"\s*(?:\d+|\.\.+)(?:\s|$)")
_WORDS = frozenset({"nan", "none", "nat", "<na>", "inf", "-inf"})


@dataclass(slots=True)
class NotebookTable:
    """One table as shown."""

    names: list[str]
    rows: list[list[str]] = field(default_factory=list)
    done: int | None = None
    total: int | None = None
    """The position of the progress bar above the table. Only a trainer's table has one."""
    epochs: float | None = None
    """The planned epochs, if the progress bar's line states them."""
    is_elided: bool = False
    """Whether an ellipsis replaces some rows."""
    length: int | None = None
    """How many rows the table has in total, if it states that."""
    lines: list[str] = field(default_factory=list)
    """The lines of text that it was read from."""


def html_tables(html: str) -> list[NotebookTable]:
    """The tables in a piece of HTML. Damaged HTML is read up to the damage."""
    if "<table" not in html and "<TABLE" not in html:
        return []
    parser = _TableParser()
    with contextlib.suppress(AssertionError):  # html.parser raises it on some malformed declarations
        parser.feed(html)  # close() is not called: it would parse an unfinished tag at the end as text
    return parser.finished()


@dataclass(slots=True)
class _Raw:
    heads: list[list[str]] = field(default_factory=list)
    rows: list[list[str]] = field(default_factory=list)
    done: int | None = None
    total: int | None = None
    epochs: float | None = None
    length: int | None = None


class _TableParser(HTMLParser):
    def __init__(self) -> None:
        super().__init__()
        self._tables: list[_Raw] = []
        self._progress = _Raw()
        """The progress bar above the next table."""
        self._depth = 0
        self._is_head = False
        self._row: list[str] | None = None
        self._are_heads = True
        """Whether all cells of the row are header cells."""
        self._cell: list[str] | None = None
        self._span = 1

    def finished(self) -> list[NotebookTable]:
        self._end_row()
        return [table for raw in self._tables if (table := _table(raw)) is not None]

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        if tag == "table":
            self._depth += 1
            if self._depth == 1:
                self._tables.append(self._progress)
                self._progress = _Raw()
                self._is_head = False
        elif tag == "progress" and not self._depth:
            given = dict(attrs)
            self._progress = _Raw(done=_whole(given.get("value")), total=_whole(given.get("max")))
        elif self._depth != 1:
            return  # a table inside a cell is ignored
        elif tag in ("thead", "tbody"):
            self._end_row()
            self._is_head = tag == "thead"
        elif tag == "tr":
            self._end_row()
            self._row, self._are_heads = [], True
        elif tag in ("th", "td"):
            self._end_cell()
            if self._row is None:
                self._row, self._are_heads = [], True
            self._cell = []
            self._are_heads = self._are_heads and tag == "th"
            self._span = min(_whole(dict(attrs).get("colspan")) or 1, MAX_COLUMNS)

    def handle_endtag(self, tag: str) -> None:
        if tag == "table":
            if self._depth == 1:
                self._end_row()
            self._depth = max(0, self._depth - 1)
        elif self._depth == 1 and tag in ("th", "td"):
            self._end_cell()
        elif self._depth == 1 and tag in ("tr", "thead", "tbody"):
            self._end_row()
            self._is_head = self._is_head and tag == "tr"

    def handle_data(self, data: str) -> None:
        if self._cell is not None:
            self._cell += [data] if self._depth == 1 else []
        elif not self._depth:
            if self._tables and (size := _SIZE.search(data)):
                self._tables[-1].length = int(size[1])
            if self._progress.total and (match := _EPOCHS.search(data)):
                self._progress.epochs = float(match[1])

    def _end_cell(self) -> None:
        if self._cell is not None and self._row is not None:
            text = " ".join("".join(self._cell).split())
            self._row += [text] * (self._span if len(self._row) < MAX_COLUMNS else 0)
        self._cell = None

    def _end_row(self) -> None:
        self._end_cell()
        if self._row and self._tables:
            raw = self._tables[-1]
            is_head = self._is_head or (self._are_heads and not raw.rows)
            (raw.heads if is_head else raw.rows).append(self._row)
        self._row = None


def _table(raw: _Raw) -> NotebookTable | None:
    heads, rows = raw.heads, raw.rows
    if not heads and rows and not any(number_in(cell) is not None for cell in rows[0]):
        heads, rows = rows[:1], rows[1:]
    width = max(map(len, heads), default=0)
    if width == 0:
        return None
    # pandas puts the index name in a second header row, and column levels in several rows.
    levels = ([head[column] for head in heads if column < len(head)] for column in range(width))
    names = ["/".join(dict.fromkeys(filter(None, level))) for level in levels]
    shown = [row for row in rows if not _is_ellipsis(row)]
    return NotebookTable(
        names,
        shown,
        done=raw.done,
        total=raw.total,
        epochs=raw.epochs,
        is_elided=len(shown) < len(rows),
        length=raw.length,
    )


def _is_ellipsis(cells: list[str]) -> bool:
    return any(cell in ELLIPSES for cell in cells) and all(cell in ELLIPSES or not cell for cell in cells)


def _whole(text: str | None) -> int | None:
    return int(text) if text and len(text) < 16 and text.isdecimal() and text.isascii() else None


def text_tables(text: str) -> list[NotebookTable]:
    r"""The tables that pandas printed in a text, with or without row numbers. pandas splits a wide table into blocks,
    which are joined.

    >>> (table,) = text_tables("   step  Training Loss\n0    10         0.6931\n1    20         0.5210")
    >>> table.names, table.rows
    (['', 'step', 'Training Loss'], [['0', '10', '0.6931'], ['1', '20', '0.5210']])
    """
    tables: list[NotebookTable] = []
    goes_on = False
    for block, is_wide in _blocks(text.split("\n")):
        last = tables[-1] if tables else None
        if last is not None and goes_on and [row[0] for row in block.rows] == [row[0] for row in last.rows]:
            last.names += block.names[1:]
            last.rows = [row + more[1:] for row, more in zip(last.rows, block.rows, strict=True)]
            last.length = block.length
            last.lines += block.lines
        else:
            tables.append(block)
        goes_on = is_wide
    for table in tables:
        shown = [row for row in table.rows if not _is_ellipsis(row)]
        table.is_elided = len(shown) < len(table.rows)
        table.rows = shown
    return tables


def _blocks(lines: list[str]) -> Iterator[tuple[NotebookTable, bool]]:
    """Header lines with the rows below that have as many cells, and whether pandas marks that more columns follow."""
    position = 0
    while position + 2 < len(lines):
        head = lines[position]
        rows: list[list[str]] = []
        names = _names_over(head, lines[position + 1]) if _may_be_head(head) else []
        below = position + 1
        while names and below < len(lines) and (cells := _cells_in(lines[below], len(names))):
            rows.append(cells)
            below += 1
        if len(rows) < 2:
            position += 1
            continue
        sizes = (_SIZE.search(line) for line in lines[below : below + 2] if len(line) < MAX_TEXT_ROW)
        length = next((int(size[1]) for size in sizes if size), None)
        yield NotebookTable(names, rows, length=length, lines=lines[position:below]), head.rstrip().endswith("\\")
        position = below


def _may_be_head(line: str) -> bool:
    return len(line) < MAX_TEXT_ROW and any(map(str.isalpha, line)) and not _LABEL.match(line)


def _names_over(head: str, first: str) -> list[str]:
    """The column names above the first row's cells. A name ends at the same position as its cell."""
    if len(first) >= MAX_TEXT_ROW or not _cells_in(first, None):
        return []
    names: list[str] = []
    begin = 0
    for token in _TOKEN.finditer(first.rstrip(" \\\r")):
        end = token.end()
        if head[end - 1 : end].strip() and head[end : end + 1].strip():
            return []  # in the middle of a word
        names.append(head[begin:end].strip())
        begin = end
    is_over = not head[begin:].strip(" \\\r") and all(names[1:]) and len(set(names)) == len(names)
    return names if is_over else []


def _cells_in(line: str, width: int | None) -> list[str]:
    """A row's cells; empty if it is not a row of numbers."""
    if len(line) >= MAX_TEXT_ROW or not _LABEL.match(line):
        return []
    cells = line.rstrip(" \\\r").split()
    if len(cells) < 2 or (width is not None and len(cells) != width):
        return []
    is_row = all(number_in(cell) is not None or cell.lower() in _WORDS or cell in ELLIPSES for cell in cells)
    return cells if is_row else []
