"""Parquet tables: exports of W&B's history and of Trackio, pandas frames. Read with pyarrow in batches."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from datetime import datetime
from pathlib import Path
from typing import Any

from rlvitals.errors import NotALog, RlvitalsError
from rlvitals.guard import guarded, words_of
from rlvitals.importers.base import Importer, named, open_parquet
from rlvitals.importers.cells import time_of
from rlvitals.importers.jsonl import JsonlImporter
from rlvitals.importers.padding import drop_padding, is_nan
from rlvitals.importers.sqlite import RunInDatabase, choose
from rlvitals.importers.steps import count_epochs
from rlvitals.importers.wandb import without_media
from rlvitals.records import Fields

MAGIC = b"PAR1"
MOST_CELLS = 100_000_000
BATCH_ROWS = 10_000
RUN_COLUMNS = ("run_id", "run_name")
"""Columns that identify the run of a row, as Trackio writes them."""

_TRACKIO = {"step": "_step"}
"""Trackio's `step` is its own counter unless the training passed a step. A logged step takes precedence over it."""


class ParquetImporter(Importer):
    """A table with one row per step."""

    name = "parquet"
    description = "Parquet tables"
    names = ("*history*.parquet", "*metrics*.parquet")
    takes_choice = True

    @classmethod
    def recognises(cls, head: bytes, path: Path) -> bool:
        return head.startswith(MAGIC)

    def rows(self, path: Path) -> list[Fields]:
        reader = JsonlImporter(self.notes)
        rows = [row for raw in self._of_one_run(path) if (row := reader.take(without_media(raw))) is not None]
        reader.finish()
        if not rows:
            raise NotALog(path, "its columns hold no numbers")
        padding = drop_padding(rows) if self._is_padded(rows) else 0
        self.notes.count("1 nan is padding and was left out", "{} nan are padding and were left out", padding)
        return count_epochs(rows, reader.steps)

    def _is_padded(self, rows: list[Fields]) -> bool:
        """Whether nan may mark missing values: every row has every column, so the table has no other way to mark
        them.
        """
        names = {name for row in rows for name in row}
        return all(len(row) == len(names) for row in rows) and any(
            map(is_nan, (v for row in rows for v in row.values()))
        )

    def _of_one_run(self, path: Path) -> list[dict[str, Any]]:
        rows = list(_table(path))
        key = next((name for name in RUN_COLUMNS if rows and isinstance(rows[0].get(name), str)), None)
        if key is None:
            if self.choice:
                raise NotALog(path, f"its table has no column {named(RUN_COLUMNS)}: {self.choice!r} names no run of it")
            return rows
        by_run: dict[str, list[dict[str, Any]]] = {}
        for row in rows:
            by_run.setdefault(str(row[key]), []).append(row)
        runs = [
            RunInDatabase(run, str(own[0].get("run_name") or run), _start_time(own[0]), _metrics(own), len(own))
            for run, own in by_run.items()
        ]
        chosen = by_run[choose(runs, self.choice, path, self.notes).id]
        return [{_TRACKIO.get(name, name): value for name, value in row.items() if name != "id"} for row in chosen]


def _table(path: Path) -> Iterator[dict[str, Any]]:
    met: list[Exception] = []
    with guarded(met.append, but=(RlvitalsError,)), open_parquet(path) as table:  # pyarrow raises several error types
        cells = table.metadata.num_rows * table.metadata.num_columns
        if cells > MOST_CELLS:
            raise NotALog(path, f"it has {cells:,} cells, more than the {MOST_CELLS:,} that are read")
        for batch in table.iter_batches(batch_size=BATCH_ROWS):
            for row in batch.to_pylist():
                yield {name: _plain(value) for name, value in row.items() if value is not None}
    if met:
        raise NotALog(path, f"the Parquet file cannot be read ({words_of(met[0])})")


def _plain(value: Any) -> Any:
    return value.timestamp() if isinstance(value, datetime) else value


def _start_time(row: dict[str, Any]) -> float:
    with contextlib.suppress(KeyError):
        return time_of(row["timestamp"]) or 0.0
    return 0.0


def _metrics(rows: list[dict[str, Any]]) -> int:
    return len({name for row in rows for name in row})
