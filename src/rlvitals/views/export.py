"""Every point of a run in a format others read: CSV, JSON, Parquet. Nothing is thinned."""

from __future__ import annotations

import math
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from rlvitals.codec import encode
from rlvitals.errors import MissingDependency
from rlvitals.store.chunks import is_present
from rlvitals.store.layout import Stream
from rlvitals.store.lines import NONFINITE, write_nonfinite
from rlvitals.store.spreadsheet import csv_line
from rlvitals.views.run import RunView

Format = Literal["csv", "json", "parquet"]


def export(view: RunView, to: Format, *, stream: Stream = "train", ghosts: bool = False) -> tuple[bytes, int]:
    """One stream of a run as the bytes of a file, and its number of rows.

    CSV leaves cells empty that were not logged and writes nan and inf where they were; a text that a spreadsheet would
    take for a formula has an apostrophe before it. JSON is an array of rows in the
    log's own row format. Parquet has nulls for cells that were not logged.
    """
    table = view.table(stream=stream, ghosts=ghosts)
    write = {"csv": _csv, "json": _json, "parquet": _parquet}[to]
    return write(table), len(table["step"])


def _cells(column: NDArray[Any]) -> list[Any]:
    """A column as Python values, None where nothing was logged."""
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
    """Import pyarrow, or say how to install it."""
    try:
        import pyarrow
        import pyarrow.parquet
    except ImportError:
        raise MissingDependency("exporting to Parquet", "parquet") from None
    return pyarrow
