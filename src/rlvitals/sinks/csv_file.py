"""The CSV tracker: every row of the run as one line of a table."""

from __future__ import annotations

import contextlib
import csv
import io
import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any, ClassVar

from rlvitals.sinks.base import RunFacts, SinkRow
from rlvitals.sinks.local_file import FIXED, FileSink, named
from rlvitals.store.files import replace_file, sync_folder
from rlvitals.store.spreadsheet import as_text, csv_line, from_text, quoted


class CsvSink(FileSink):
    """Writes `logs/metrics.csv`, or the file that the setting `path` names.

    Columns are step, timestamp, attempt and stream, then the metrics in order of first appearance. Metrics of
    evaluations get the prefix `eval/`, unless their name has such a prefix already. A new metric adds a column: the
    file is rewritten and replaced atomically. Values that were not logged are empty cells; non-finite numbers are nan,
    inf and -inf; texts are quoted. A text that a spreadsheet would read as a formula gets an apostrophe in front
    (`store.spreadsheet`).

    After a crash the file is truncated to the committed rows and continues, so every row is in it once. After a resume
    the file has the rows of all attempts, with their `attempt`. Superseded rows stay (`rlvitals export` leaves them
    out). A file that exists at `path` before the run is kept as NAME.1. If committed rows are missing, the tracker
    stops with an error that names the fix.

    Memory: `path` as in the settings, `length` in bytes, `rows`, and `header`, the length of the first line. If the
    file has a longer first line, columns were added after the last commit.
    """

    tracker: ClassVar[str] = "csv"
    default_name: ClassVar[str] = "metrics.csv"

    def __init__(self, facts: RunFacts, settings: Mapping[str, Any], memory: dict[str, Any]) -> None:
        super().__init__(facts, settings, memory, _header(FIXED))
        if self._is_new:
            self.memory |= {"header": self.memory["length"], "rows": 0}
        self._rows = int(self.memory["rows"])
        with contextlib.ExitStack() as undo:
            undo.callback(self._file.close)
            self._columns = self._cut_back()
            undo.pop_all()
        self._length = self._file.size

    def write(self, rows: Sequence[SinkRow]) -> None:
        """Append the rows, after adding columns for new metrics."""
        if not rows:
            return
        cells = [_cells(item) for item in rows]
        new = [name for name in dict.fromkeys(name for row in cells for name in row) if name not in self._columns]
        self._columns.update(dict.fromkeys(new))
        lines = "".join(_line(row, self._columns) for row in cells).encode()
        if new:
            self._file.close()  # some systems cannot replace an open file
            replace_file(self._path, self._widened(len(new), lines))
            self._header_length = len(_header(self._columns))
            sync_folder(self._path.parent)
            self._file = self._open_file()
        else:
            self._file.put(self._length, lines)
        self._length = self._file.size
        self._rows += len(rows)

    def commit(self) -> None:
        self._file.sync()
        self._is_new = False
        self.memory.update({"header": self._header_length, "length": self._length, "rows": self._rows})

    def _cut_back(self) -> dict[str, None]:
        """Remove uncommitted rows; returns the columns of the file."""
        with open(self._path, "rb") as file:
            records = _records(file)
            header = next(records, b"")
            length = int(self.memory["length"])
            if len(header) > self.memory["header"]:
                # Columns were added after the last commit: the lengths of committed rows changed, but not their number.
                lengths = [len(record) for record, _ in zip(records, range(self._rows), strict=False)]
                length = len(header) + sum(lengths)
                if len(lengths) < self._rows:
                    raise self._file.damaged("was cut")
        columns = next(csv.reader(io.StringIO(header.decode(errors="replace"), newline="")), [])
        if tuple(columns[: len(FIXED)]) != FIXED or len(header) < self.memory["header"]:
            raise self._file.damaged("was changed")
        self._file.cut(length)
        self._header_length = len(header)
        return dict.fromkeys(map(from_text, columns))

    def _widened(self, new: int, lines: bytes) -> Iterator[bytes]:
        yield _header(self._columns)
        with open(self._path, "rb") as file:
            records = _records(file)
            next(records)
            for record in records:
                yield record[:-1] + b"," * new + b"\n"
        yield lines


def _cells(item: SinkRow) -> dict[str, str]:
    row = item.row
    timestamp = repr(row.timestamp) if math.isfinite(row.timestamp) else ""
    cells = dict(zip(FIXED, (str(row.step), timestamp, str(row.attempt), item.stream), strict=True))
    cells.update((named(item, name), repr(float(number))) for name, number in row.numbers.items())
    cells.update((named(item, name), quoted(as_text(text))) for name, text in row.texts.items())
    return cells


def _line(cells: Mapping[str, str], columns: Iterable[str]) -> str:
    return ",".join([cells.get(name, "") for name in columns]) + "\n"


def _header(columns: Iterable[str]) -> bytes:
    return csv_line(columns).encode()


def _records(file: io.BufferedReader) -> Iterator[bytes]:
    """Whole records. A record with a text of several lines continues while a quote is open."""
    record: list[bytes] = []
    quotes = 0
    for line in file:
        record.append(line)
        quotes += line.count(b'"')
        if quotes % 2 == 0 and line.endswith(b"\n"):
            yield b"".join(record)
            record, quotes = [], 0
