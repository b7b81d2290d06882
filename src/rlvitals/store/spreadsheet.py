"""Texts in CSV files: a spreadsheet runs a text that begins like a formula as a formula.

An apostrophe is written before such a text, as spreadsheets do themselves. Numbers are written without one. Our readers
remove the apostrophe again.

Lines are made here rather than by `csv.writer`. If lines end in a newline, `csv.writer` leaves a carriage return
unquoted, and its own reader treats that as the end of the row.
"""

from __future__ import annotations

import re
from collections.abc import Iterable

_FORMULA = re.compile(r"'*[=+\-@\t\r\n]")
_ESCAPED = re.compile(r"'+[=+\-@\t\r\n]")
_NEEDS_QUOTES = re.compile(r'[",\r\n]')


def csv_line(cells: Iterable[object]) -> str:
    r"""One row of a CSV file: texts as texts, numbers in full precision, None empty.

    >>> csv_line([1, 0.5, None, "a,b", "=1"]).rstrip()
    '1,0.5,,"a,b",\'=1'
    """
    return ",".join(map(_cell, cells)) + "\n"


def quoted(text: str) -> str:
    """A text in quotes."""
    return '"' + text.replace('"', '""') + '"'


def _cell(value: object) -> str:
    if value is None:
        return ""
    if not isinstance(value, str):
        return repr(value) if isinstance(value, float) else str(value)
    text = as_text(value)
    return quoted(text) if _NEEDS_QUOTES.search(text) else text


def as_text(text: str) -> str:
    """A name or text for a cell.

    >>> as_text("=1+1"), as_text("'=1"), as_text("loss"), as_text("it's")
    ("'=1+1", "''=1", 'loss', "it's")
    """
    return f"'{text}" if _FORMULA.match(text) else text


def from_text(cell: str) -> str:
    """The text that was passed to `as_text`.

    >>> from_text("'=1+1"), from_text("''=1"), from_text("=1+1"), from_text("'tis")
    ('=1+1', "'=1", '=1+1', "'tis")
    """
    return cell[1:] if _ESCAPED.match(cell) else cell
