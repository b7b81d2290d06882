"""Many runs as one Parquet dataset, for query engines such as DuckDB, Ray Data, Spark and Polars.

```
lake/
  run=20261115-093000-a1b2c3/part.parquet    one run: `run` is read from the folder's name, as Hive does
  _common_metadata                           all columns of all runs, for engines that want to know them first
```

Every row has its run and the run's settings, so that no query needs a join. In every run a metric is a column of
doubles under its own name. Texts are stored under `text/NAME`, so that a name has one type in all runs. A run that
lacks a metric lacks the column.
"""

from __future__ import annotations

import os
from collections.abc import Iterable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any
from urllib.parse import quote

import numpy as np
from numpy.typing import NDArray

from rlvitals.codec import encode
from rlvitals.errors import RlvitalsError, RunError, RunNotFound
from rlvitals.store.files import replace_file
from rlvitals.store.layout import Stream
from rlvitals.views.discovery import find_runs
from rlvitals.views.export import arrow_columns, parquet_bytes, require_pyarrow
from rlvitals.views.run import RunView, open_run

OWN = frozenset({"run", "run_name", "run_path", "run_algorithm", "run_framework", "run_status", "run_config"})
"""Columns with facts about the run. A metric with such a name is stored as `metric/NAME`."""

SCHEMA_FILE = "_common_metadata"


@dataclass(slots=True)
class Lake:
    """The result of an export."""

    path: Path
    runs: int = 0
    rows: int = 0
    bytes: int = 0
    columns: list[str] = field(default_factory=list)
    passed_over: list[str] = field(default_factory=list)
    """Runs that could not be read, with the reason."""


def export_runs(
    folder: str | os.PathLike[str],
    output: str | os.PathLike[str],
    *,
    stream: Stream = "train",
    ghosts: bool = False,
) -> Lake:
    """Write every run below a folder to the dataset in `output`. Runs that are already in it are replaced; others are
    kept.
    """
    pyarrow = require_pyarrow()
    root, lake = Path(folder), Lake(Path(output))
    schemas = []
    ids: set[str] = set()
    try:
        lake.path.mkdir(parents=True, exist_ok=True)
        for path in find_runs(root):
            try:
                view = open_run(path)
                table = _table(view, stream, ghosts)
            except RlvitalsError as error:
                lake.passed_over.append(f"{path}: {error}")
                continue
            data = parquet_bytes(table)
            part = lake.path / f"run={quote(_id(view, root, ids), safe='')}" / "part.parquet"
            part.parent.mkdir(exist_ok=True)
            replace_file(part, data)
            schemas.append(table.schema)
            lake.runs, lake.rows, lake.bytes = lake.runs + 1, lake.rows + table.num_rows, lake.bytes + len(data)
        if not schemas:
            raise RunNotFound(f"there is no run to export below {root}. {' '.join(lake.passed_over)}".rstrip())
        lake.columns = _write_schema(pyarrow, lake.path / SCHEMA_FILE, schemas)
    except OSError as error:
        raise RunError(f"cannot write {error.filename or lake.path}: {error.strerror or error}") from error
    return lake


def _table(view: RunView, stream: Stream, ghosts: bool) -> Any:
    pyarrow = require_pyarrow()
    logged: dict[str, NDArray[Any]] = view.table(stream=stream, ghosts=ghosts)
    rows = len(logged["step"])
    facts = {
        "run_name": view.name,
        "run_path": str(view.path),
        "run_algorithm": view.algorithm,
        "run_framework": view.framework,
        "run_status": view.status,
        "run_config": encode(view.config).decode().rstrip(),
    }
    columns = {name: pyarrow.array([fact] * rows, pyarrow.string()) for name, fact in facts.items()}
    for name, column in arrow_columns(logged).items():
        kept = f"text/{name}" if logged[name].dtype == np.object_ else f"metric/{name}" if name in OWN else name
        columns[kept] = column
    return pyarrow.table(columns)


def _id(view: RunView, root: Path, taken: set[str]) -> str:
    """The run's id. A copy of a run gets a numbered suffix; a log without an id uses its path."""
    own = view.info.id or view.path.relative_to(root).as_posix()
    name, number = own, 1
    while name in taken:
        number += 1
        name = f"{own}-{number}"
    taken.add(name)
    return name


def _write_schema(pyarrow: Any, path: Path, schemas: Iterable[Any]) -> list[str]:
    """Write all columns of the dataset, including those of runs exported earlier."""
    known = [pyarrow.parquet.read_schema(path)] if path.exists() else []
    whole = pyarrow.unify_schemas([*known, *schemas])
    pyarrow.parquet.write_metadata(whole, path)
    names: list[str] = whole.names
    return names
