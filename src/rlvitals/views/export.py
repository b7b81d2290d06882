"""Every point of a run as CSV, JSON or Parquet. Nothing is downsampled."""

from __future__ import annotations

import math
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from rlvitals.codec import NONFINITE, encode, write_nonfinite
from rlvitals.errors import needs
from rlvitals.store.chunks import is_present
from rlvitals.store.layout import Stream
from rlvitals.store.spreadsheet import csv_line
from rlvitals.views.run import RunView

Format = Literal["csv", "json", "parquet"]


def export(view: RunView, to: Format, *, stream: Stream = "train", ghosts: bool = False) -> tuple[bytes, int]:
    """One stream of a run as the bytes of a file, and its number of rows.

    CSV has empty cells for values that were not logged, and nan and inf for those that were logged as such. A text that
    a spreadsheet would read as a formula gets a leading apostrophe. JSON is an array of rows in the log's own row
    format. Parquet has nulls for values that were not logged.
    """
    table = view.table(stream=stream, ghosts=ghosts)
    write = {"csv": _csv, "json": _json, "parquet": _parquet}[to]
    return write(table), len(table["step"])


def _cells(column: NDArray[Any]) -> list[Any]:
    """A column as Python values, None if nothing was logged."""
    if column.dtype != np.float64:
        return list(column.tolist())
    return [
        value if logged else None for value, logged in zip(column.tolist(), is_present(column).tolist(), strict=True)
    ]


def _csv(table: dict[str, NDArray[Any]]) -> bytes:
    columns = [_cells(column) for column in table.values()]
    return "".join([csv_line(table), *map(csv_line, zip(*columns, strict=True))]).encode()


def _json(table: dict[str, NDArray[Any]]) -> bytes:
    names = list(table)
    lines = []
    for cells in zip(*(_cells(column) for column in table.values()), strict=True):
        row: dict[str, Any] = {}
        nonfinite = {}
        for name, value in zip(names, cells, strict=True):
            if isinstance(value, float) and not math.isfinite(value):
                if name != "timestamp":
                    nonfinite[name] = value
            elif value is not None:
                row[name] = value
        if nonfinite:
            row[NONFINITE] = write_nonfinite(nonfinite)
        lines.append(encode(row).rstrip())
    return b"[\n" + b",\n".join(lines) + b"\n]\n"


def _parquet(table: dict[str, NDArray[Any]]) -> bytes:
    pyarrow = require_pyarrow()
    return parquet_bytes(pyarrow.table(arrow_columns(table)))


def arrow_columns(table: dict[str, NDArray[Any]]) -> dict[str, Any]:
    """Columns for pyarrow, with nulls for cells that were not logged."""
    pyarrow = require_pyarrow()
    return {
        name: pyarrow.array(column, mask=~is_present(column))
        if column.dtype == np.float64
        else pyarrow.array(column.tolist(), pyarrow.string() if column.dtype == object else None)
        for name, column in table.items()
    }


def parquet_bytes(table: Any) -> bytes:
    """A pyarrow table as the bytes of a Parquet file."""
    from pyarrow import parquet

    sink = require_pyarrow().BufferOutputStream()
    parquet.write_table(table, sink, compression="zstd")
    return bytes(sink.getvalue())


def require_pyarrow() -> Any:
    """Import pyarrow, or raise an error that explains how to install it."""
    with needs("exporting to Parquet", "parquet"):
        import pyarrow
        import pyarrow.parquet
    return pyarrow
