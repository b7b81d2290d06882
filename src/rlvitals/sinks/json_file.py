"""The JSON tracker: every row of the run in one array. The file is valid JSON after every batch."""

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
    """Writes `logs/metrics.json`, or the file that the setting `path` names: an array of rows, one per line.

    A row has the keys of the log (`step`, `timestamp`, `attempt`, the metrics, `_nonfinite`, `_m`, `_gap`) and its
    `stream`. Metrics of evaluations get the prefix `eval/`, unless their name has such a prefix already. New rows
    overwrite the closing bracket, and a new bracket follows them, so the file is strict JSON after every batch.
    Non-finite numbers are in `_nonfinite`, as in the log.

    After a crash the file may end in half a row until the tracker is opened again. Then it is truncated to the
    committed rows and continues, so every row is in it once. After a resume the file has the rows of all attempts, with
    their `attempt`. Superseded rows stay (`rlvitals export` leaves them out). A file that exists at `path` before the
    run is kept as NAME.1. If committed rows are missing, the tracker stops with an error that names the fix.

    Memory: `path` as in the settings, and `length` in bytes.
    """

    tracker: ClassVar[str] = "json"
    default_name: ClassVar[str] = "metrics.json"

    def __init__(self, facts: RunFacts, settings: Mapping[str, Any], memory: dict[str, Any]) -> None:
        super().__init__(facts, settings, memory, OPENING + CLOSING)
        self._end = int(self.memory["length"]) - len(CLOSING)
        """The offset of the closing bracket, where the next row is written."""
        with contextlib.ExitStack() as undo:
            undo.callback(self._file.close)
            self._cut_back()
            undo.pop_all()

    def write(self, rows: Sequence[SinkRow]) -> None:
        """Overwrite the closing bracket with the rows and a new bracket."""
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
        """Remove uncommitted rows and close the array."""
        last = OPENING if self._end == len(OPENING) else b"}"
        if self._file.byte_at(0) != OPENING or self._file.byte_at(self._end - 1) != last:
            raise self._file.damaged("was changed")
        self._file.put(self._end, CLOSING)
        self._file.cut(self._end + len(CLOSING))


def _line(item: SinkRow) -> dict[str, Any]:
    """One row in the form of the log, with its stream."""
    row = item.row
    names = {name: named(item, name) for name in (*row.numbers, *row.texts, *row.values)}
    own = replace(
        row,
        numbers={names[name]: number for name, number in row.numbers.items()},
        texts={names[name]: text for name, text in row.texts.items()},
        values={names[name]: value for name, value in row.values.items()},
    )
    return stored_row(own, stream=item.stream)
