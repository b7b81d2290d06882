"""Tables drawn with characters: Stable-Baselines3's, rich's, markdown's, AReaL's grids, columns separated by spaces.

A table of names and values is one row. A table with a header and a line of numbers per step is many rows.
"""

from __future__ import annotations

import re
from collections.abc import Iterator

from rlvitals.importers.cells import printed_number
from rlvitals.importers.pairs import MAX_LINE, MAX_NAME, read_pairs, without_prefix
from rlvitals.records import Fields
from rlvitals.splits import held_out_name, is_held_out

MAX_CELLS = 200
NO_VALUE = frozenset({"", "-", "—", "n/a", "na", "none", "null", "no log"})

_BARS = "|│┃║"
_BAR = re.compile(f"[{_BARS}]")
_RULE = re.compile(r"[\s\-=+|:_.─━═┄╌┌┐└┘├┤┬┴┼╭╮╰╯┏┓┗┛┣┫┳┻╋╔╗╚╝╠╣╦╩╬╟╢┠┨┡╇┩┢┪╞╡╪│┃║]{3,}")
_VALUE_COLUMNS = frozenset({"value", "values", "current", "now", "latest"})
_NUMBERS = re.compile(r"\s*(?:[+-]?[\d.]|nan|inf|-)", re.IGNORECASE)
_GAPS = re.compile(r"\t|\s{2,}")


def is_rule(text: str) -> bool:
    """Whether a line consists only of rule characters."""
    return _RULE.fullmatch(text) is not None


def cells_in(text: str) -> list[str] | None:
    """The cells of a line of a drawn table; None for any other line.

    >>> cells_in("2025-01-01 12:00:00 │ grad_norm │ 5.67e+00 │")
    ['grad_norm', '5.67e+00']
    """
    first = _BAR.search(text)
    if first is None or len(text) > MAX_LINE:
        return None
    stripped = text.rstrip()
    lead = text[: first.start()]
    if stripped[-1] not in _BARS or (lead.strip() and without_prefix(f"{lead} ")):
        return None
    cells = [cell.strip() for cell in _BAR.split(stripped[first.start() + 1 : -1])]
    return cells if len(cells) <= MAX_CELLS and any(cells) else None


class Grid:
    """One drawn table, read line by line."""

    def __init__(self) -> None:
        self.values: Fields = {}
        """The names and values of the table so far."""
        self._section = ""
        self._header: list[str] = []

    def take(self, cells: list[str]) -> Iterator[Fields]:
        """The rows that this line completes."""
        found = self._names_and_values(cells)
        if found:
            if any(name in self.values for name in found) and self.values:
                yield from self.close()
            self.values.update(found)
            return
        filled = [cell for cell in cells if cell]
        texts = [cell for cell in filled if printed_number(cell) is None and cell.lower() not in NO_VALUE]
        if len(filled) == 1 and texts and len(cells) > 1:
            self._section = texts[0] if texts[0].endswith("/") else ""
        elif len(texts) == len(filled) > 1 and not any(map(read_pairs, texts)):
            self._header = cells
        elif self._header and len(cells) == len(self._header):
            yield from self._row(cells, texts)
        elif len(texts) == len(filled):
            reading = read_pairs("  |  ".join(cells))
            if reading is not None and reading.is_clean:
                counts = {name or "step": count.number for name, count in reading.counts.items()}
                yield from self._add({**counts, **reading.numbers})

    def close(self) -> Iterator[Fields]:
        """The row of a names-and-values table that has ended."""
        if self.values:
            yield self.values
        self.values = {}

    def _add(self, found: Fields) -> Iterator[Fields]:
        if self.values.keys() & found.keys():
            yield from self.close()
        self.values.update(found)

    def _names_and_values(self, cells: list[str]) -> Fields:
        """The pairs of a line whose cells alternate between names and numbers."""
        if len(cells) % 2:
            return {}
        found: Fields = {}
        for name, value in zip(cells[::2], cells[1::2], strict=True):
            if not name and not value:
                continue
            number = printed_number(value)
            if not _is_name(name) or (number is None and value.lower() not in NO_VALUE - {""}):
                return {}
            if number is not None:
                found[f"{self._section}{name}"] = number
        return found

    def _row(self, cells: list[str], texts: list[str]) -> Iterator[Fields]:
        """A line below a header: one step's numbers, or one metric's numbers in several columns."""
        numbers = {
            name: number
            for name, cell in zip(self._header, cells, strict=True)
            if name and (number := printed_number(cell)) is not None
        }
        if not numbers:
            return
        if not texts:
            yield numbers
        elif texts == cells[:1] and _is_name(cells[0]):
            yield from self._add({_in_column(cells[0], name, len(numbers)): value for name, value in numbers.items()})


class SpacedTable:
    """A table whose columns are separated by spaces: a line of names, then lines with the same number of values."""

    def __init__(self) -> None:
        self._before = ""
        self._names: list[str] = []
        self._is_wrapped = False
        """Whether it is a pandas frame wrapped into several column blocks. None of its lines is a row."""

    def take(self, text: str) -> Fields | None:
        """The row in a line of numbers."""
        if is_rule(text):
            return None
        before, self._before = self._before, text
        if not _NUMBERS.match(text) or len(text) > MAX_LINE:
            self._names = []
            self._is_wrapped = text.rstrip().endswith("\\") or (self._is_wrapped and text[:1].isspace())
            return None
        if self._is_wrapped:
            return None
        cells = text.split()
        numbers: list[int | float | None] = []
        for cell in cells:
            numbers.append(printed_number(cell))
            if numbers[-1] is None and cell.lower() not in NO_VALUE:
                self._names = []
                return None
        if len(cells) < 2:
            return None
        if not self._names:
            self._names = _header_of(before, len(cells))
        if len(self._names) != len(cells):
            return None
        return {name: n for name, n in zip(self._names, numbers, strict=True) if name and n is not None} or None


def _header_of(text: str, width: int) -> list[str]:
    """The names of this many columns; the first may be unnamed. Empty if the line is not a header."""
    text = text.strip().removeprefix("#").strip()
    for found in (_GAPS.split(text), text.split()):
        cells = ["", *found] if len(found) == width - 1 else found  # a column of row numbers has no name
        names = [cell for cell in cells if cell]
        if len(cells) == width and len(names) == len(set(names)) > 1 and all(map(_is_name, names)):
            return cells
    return []


def _is_name(text: str) -> bool:
    return bool(text) and len(text) <= MAX_NAME and printed_number(text) is None and len(text.split()) <= 6


def _in_column(name: str, column: str, columns: int) -> str:
    """A metric's name, combined with the column's if there are several."""
    if columns == 1 or column.lower() in _VALUE_COLUMNS:
        return name
    if column.lower() in ("train", "training"):
        return name
    return held_out_name(name) if is_held_out(f"{column}/") else f"{name}/{column}"
