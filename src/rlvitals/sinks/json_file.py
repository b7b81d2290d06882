"""The JSON tracker: every row of the run in one array, a whole document at any time."""

from __future__ import annotations

import contextlib
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any, ClassVar

from rlvitals.codec import encode
from rlvitals.sinks.base import RunFacts, SinkRow
from rlvitals.sinks.local_file import FileSink, named
from rlvitals.store.lines import stored_row

OPENING, CLOSING = b"[", b"\n]\n"


class JsonSink(FileSink):
    """Writes `logs/metrics.json`, or the file the setting `path` names: an array of rows, one a line.

    A row is what the log has (`step`, `timestamp`, `attempt`, the metrics, `_nonfinite`, `_m`, `_gap`) and its
    `stream`; metrics of evaluations begin with `eval/`. New rows are written over the closing bracket, with a new one
    behind them, so the file is strict JSON after every batch. Non-finite numbers are in `_nonfinite`, as in the log.

    After a crash the file may end in half a row until the tracker is opened again; then it is cut to what was
    committed, closed with its bracket, and continues: every row is there once. After a resume the rows of all attempts
    are there, distinguished by `attempt`; those a later attempt superseded stay, under their own (`rlvitals export`
    leaves them out). A file that stands at `path` before the run is kept as NAME.1. Where committed rows have vanished
    the tracker stops and says how to have the file written again.

    Memory: `path` as given, and `length` in bytes.
    """

    tracker: ClassVar[str] = "json"
    default_name: ClassVar[str] = "metrics.json"

    def __init__(self, facts: RunFacts, settings: Mapping[str, Any], memory: dict[str, Any]) -> None:
        super().__init__(facts, settings, memory, OPENING + CLOSING)
        self._end = int(self.memory["length"]) - len(CLOSING)
        """Where the closing bracket is, and the next row goes."""
        with contextlib.ExitStack() as undo:
            undo.callback(self._file.close)
            self._cut_back()
            undo.pop_all()

    def write(self, rows: Sequence[SinkRow]) -> None:
        """Put the rows over the closing bracket, and a new one behind them."""
        if not rows:
            return
        lines = b",\n".join(encode(_line(item)).rstrip() for item in rows)
        added = (b"\n" if self._end == len(OPENING) else b",\n") + lines
        self._file.put(self._end, added + CLOSING)
        self._end += len(added)

    def commit(self) -> None:
        self._file.sync()
        self._is_new = False
        self.memory["length"] = self._end + len(CLOSING)

    def _cut_back(self) -> None:
        """Drop what no commit covers, and close the array there."""
        last = OPENING if self._end == len(OPENING) else b"}"
        if self._file.byte_at(0) != OPENING or self._file.byte_at(self._end - 1) != last:
            raise self._file.damaged("was changed")
        self._file.put(self._end, CLOSING)
        self._file.cut(self._end + len(CLOSING))


def _line(item: SinkRow) -> dict[str, Any]:
    """One row as the log writes it, with its stream."""
    row = item.row
    names = {name: named(item, name) for name in (*row.numbers, *row.texts, *row.values)}
    own = replace(
        row,
        numbers={names[name]: number for name, number in row.numbers.items()},
        texts={names[name]: text for name, text in row.texts.items()},
        values={names[name]: value for name, value in row.values.items()},
    )
    return stored_row(own, stream=item.stream)
