"""The CSV tracker: every row of the run as one line of a table that any program opens."""

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
    """Writes `logs/metrics.csv`, or the file the setting `path` names.

    Columns are step, timestamp, attempt and stream, then the metrics in order of first appearance; those of evaluations
    begin with `eval/`. A new metric widens the table: the file is written again and replaced at once. Cells that were
    not logged are empty; nan, inf and -inf are written so; texts are quoted. One that a spreadsheet would take for a
    formula has an apostrophe before it (`store.spreadsheet`).

    After a crash the file is cut to what was committed and continues from there: every row is there once. After a
    resume the rows of all attempts are there, distinguished by the column `attempt`; those a later attempt superseded
    stay, under their own attempt (`rlvitals export` leaves them out). A file that stands at `path` before the run is
    kept as NAME.1. Where committed rows have vanished the tracker stops and says how to have the file written again.

    Memory: `path` as given, `length` in bytes, `rows`, and `header`, the length of the first line: a longer one in the
    file tells that it was widened after the last commit.
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
        """Put the rows at the end of the file, widening it first where they bring new metrics."""
        if not rows:
            return
        cells = [_cells(item) for item in rows]
        new = [name for name in dict.fromkeys(name for row in cells for name in row) if name not in self._columns]
        self._columns.update(dict.fromkeys(new))
        lines = "".join(_line(row, self._columns) for row in cells).encode()
        if new:
            self._file.close()  # an open file cannot be replaced everywhere
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
        """Drop what no commit covers; the columns of the file as it is."""
        with open(self._path, "rb") as file:
            records = _records(file)
            header = next(records, b"")
            length = int(self.memory["length"])
            if len(header) > self.memory["header"]:
                # Widened after the last commit: the committed rows have other lengths now, but not another number.
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
    """Whole records; one goes over several lines where a text does: as long as a quote is open."""
    record: list[bytes] = []
    quotes = 0
    for line in file:
        record.append(line)
        quotes += line.count(b'"')
        if quotes % 2 == 0 and line.endswith(b"\n"):
            yield b"".join(record)
            record, quotes = [], 0
