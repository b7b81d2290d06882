"""The candidate forms of a run's derived column index, one class each; `index_formats.py` measures them.

Each form builds itself from a log in its own folder, adds appended rows, and reads series back as (steps, values). The
code is the minimum that gives correct arrays. If a library has its own JSON reader, that one reads the log.
"""

from __future__ import annotations

import io
import math
import os
import sys
from collections.abc import Mapping
from importlib import import_module
from typing import TYPE_CHECKING, ClassVar

if TYPE_CHECKING:  # imported by `load`, so that the import can be timed and a missing package is not an error
    import duckdb
    import numpy as np
    import orjson
    import polars as pl
    import pyarrow as pa

    import rlvitals

Imports = Mapping[str, str]  # name used here -> module
CHUNK_ROWS = 8192  # as in rlvitals' own index


class WithoutPandas:
    """Hides pandas: pyarrow imports it if it is installed, which takes 0.2 s and is not needed here."""

    @staticmethod
    def find_spec(name, path=None, target=None):
        if name == "pandas":
            raise ModuleNotFoundError(name)


def load(form):
    """Import the packages of a form into this module."""
    sys.meta_path.insert(0, WithoutPandas)
    for name, module in form.imports.items():
        globals()[name] = import_module(module)


class Rlvitals:
    imports: ClassVar[Imports] = {
        "np": "numpy",
        "orjson": "orjson",
        "rlvitals": "rlvitals",
        "query": "rlvitals.views.query",
    }
    packages = ("numpy", "orjson")

    def build(self, log, place):
        _ = rlvitals.open_run(log.parent.parent).metrics  # opening the columns brings the index up to date

    refresh = build

    def read(self, log, place, names):
        view = rlvitals.open_run(log.parent.parent)
        return {name: view.series(name) for name in names}


class Npz:
    """One uncompressed .npz. NaN marks a cell that was not logged: plain arrays have no other missing value."""

    imports: ClassVar[Imports] = {"np": "numpy", "orjson": "orjson"}
    packages = ("numpy", "orjson")

    def build(self, log, place):
        self.write(place, columns_of(new_lines(log, place)))

    def refresh(self, log, place):
        fresh, old = columns_of(new_lines(log, place)), self.load(place)
        self.write(place, {name: np.concatenate([old[name], fresh[name]]) for name in old})

    def read(self, log, place, names):
        columns = self.load(place, ["step", *names])
        return {name: logged(columns["step"], columns[name], np.isnan(columns[name])) for name in names}

    def write(self, place, columns):
        np.savez(place / "columns.npz", **columns)

    def load(self, place, names=None):
        with np.load(place / "columns.npz") as file:
            return {name: file[name] for name in names or file.files}


class Npy(Npz):
    """One .npy per column; new rows are appended in place and the header rewritten (a kill in between breaks it)."""

    def write(self, place, columns):
        for name, column in columns.items():
            np.save(self.path(place, name), column)

    def load(self, place, names=None):
        return {name: np.load(self.path(place, name)) for name in names}

    def refresh(self, log, place):
        for name, column in columns_of(new_lines(log, place)).items():
            with open(self.path(place, name), "r+b") as file:
                np.lib.format.read_magic(file)
                (rows,), order, dtype = np.lib.format.read_array_header_1_0(file)
                file.seek(0)
                header = {"descr": dtype.str, "fortran_order": order, "shape": (rows + len(column),)}
                np.lib.format.write_array_header_1_0(file, header)
                file.seek(0, os.SEEK_END)
                file.write(column.tobytes())

    def path(self, place, name):
        return place / f"{name.replace('/', '%2F')}.npy"


class Arrow:
    """Arrow IPC (uncompressed, memory-mapped) or Parquet (zstd), in one file or in chunks like rlvitals' own."""

    packages = ("numpy", "pyarrow")

    def __init__(self, kind, chunk_rows=2**62):
        self.kind, self.chunk_rows = kind, chunk_rows
        modules = ("pyarrow.compute", "pyarrow.json", f"pyarrow.{kind}")
        self.imports = {"np": "numpy", "pa": "pyarrow"} | {module: module for module in modules}

    def build(self, log, place):
        self.write(place, pa.json.read_json(io.BytesIO(new_lines(log, place))))

    def refresh(self, log, place):
        last, fresh = self.paths(place)[-1], pa.json.read_json(io.BytesIO(new_lines(log, place)))
        old = self.load(last, None)
        if old.num_rows < self.chunk_rows:
            self.write(place, pa.concat_tables([old, fresh], promote_options="permissive"), int(last.stem))
        else:
            self.write(place, fresh, int(last.stem) + 1)

    def read(self, log, place, names):
        table = pa.concat_tables([self.load(path, ["step", *names]) for path in self.paths(place)])
        steps = table["step"].to_numpy()
        return {name: logged(steps, table[name].to_numpy(), np.asarray(table[name].is_null())) for name in names}

    def write(self, place, table, number=0):
        table = table.combine_chunks()  # the JSON reader leaves many small pieces, which read slowly
        for at in range(0, table.num_rows, self.chunk_rows):
            part, path = table.slice(at, self.chunk_rows), place / f"{number:05d}.{self.kind}"
            draft = path.with_suffix(".draft")  # the old file may be mapped
            if self.kind == "feather":
                pa.feather.write_feather(part, draft, compression="uncompressed")
            else:
                pa.parquet.write_table(part, draft, compression="zstd")
            draft.replace(path)
            number += 1

    def load(self, path, columns):
        if self.kind == "feather":
            return pa.feather.read_table(path, columns=columns, memory_map=True)
        return pa.parquet.ParquetFile(path).read(columns)

    def paths(self, place):
        return sorted(place.glob(f"*.{self.kind}"))


class DuckDbOnLog:
    imports: ClassVar[Imports] = {"np": "numpy", "duckdb": "duckdb"}
    packages = ("numpy", "duckdb")

    def build(self, log, place): ...
    def refresh(self, log, place): ...

    def read(self, log, place, names):
        types = ", ".join(f"'{name}': 'DOUBLE'" for name in names)
        return self.query(duckdb, f"{json_of(log)[:-1]}, columns={{'step': 'BIGINT', {types}}})", names)

    def query(self, connection, origin, names):
        columns = ", ".join(f'"{name}"' for name in ["step", *names])
        found = connection.execute(f"SELECT {columns} FROM {origin}").fetchnumpy()
        masks = {name: np.ma.getmaskarray(found[name]) for name in names}
        return {name: logged(found["step"], np.ma.getdata(found[name]), masks[name]) for name in names}


class DuckDbFile(DuckDbOnLog):
    def build(self, log, place):
        with self.connect(place) as connection:
            connection.execute(f"CREATE TABLE log AS SELECT * FROM {json_of(log)}")
        new_lines(log, place)

    def refresh(self, log, place):
        tail = place / "tail.jsonl"
        tail.write_bytes(new_lines(log, place))
        with self.connect(place) as connection:
            connection.execute(f"INSERT INTO log BY NAME SELECT * FROM {json_of(tail)}")
        return tail.stat().st_size  # temporary: not counted as written

    def read(self, log, place, names):
        with self.connect(place) as connection:
            return self.query(connection, "log", names)

    def connect(self, place):
        return duckdb.connect(str(place / "log.duckdb"))


class PolarsOnLog:
    imports: ClassVar[Imports] = {"np": "numpy", "pl": "polars"}
    packages = ("numpy", "polars", "polars-runtime-32")

    def build(self, log, place): ...
    def refresh(self, log, place): ...

    def read(self, log, place, names):
        schema = {"step": pl.Int64} | dict.fromkeys(names, pl.Float64)
        return self.series(pl.scan_ndjson(log, schema=schema).collect(), names)

    def series(self, frame, names):
        steps = frame["step"].to_numpy()
        return {name: logged(steps, frame[name].to_numpy(), frame[name].is_null().to_numpy()) for name in names}


class PolarsParquet(PolarsOnLog):
    def build(self, log, place):
        pl.read_ndjson(new_lines(log, place)).write_parquet(place / "log.parquet", compression="zstd")

    def refresh(self, log, place):
        both = [pl.read_parquet(place / "log.parquet"), pl.read_ndjson(new_lines(log, place))]
        pl.concat(both, how="diagonal_relaxed").write_parquet(place / "log.parquet", compression="zstd")

    def read(self, log, place, names):
        return self.series(pl.read_parquet(place / "log.parquet", columns=["step", *names]), names)


FORMATS = {
    "rlvitals index": Rlvitals(),
    "numpy .npz": Npz(),
    "numpy .npy per column": Npy(),
    "Arrow IPC": Arrow("feather"),
    "Arrow IPC, chunks": Arrow("feather", CHUNK_ROWS),
    "Parquet": Arrow("parquet"),
    "Parquet, chunks": Arrow("parquet", CHUNK_ROWS),
    "DuckDB on the log": DuckDbOnLog(),
    "DuckDB file": DuckDbFile(),
    "Polars on the log": PolarsOnLog(),
    "Polars Parquet": PolarsParquet(),
}


def new_lines(log, place):
    """The lines of the log that `place` does not cover yet; afterwards it covers them."""
    mark = place / "covered"
    start = int(mark.read_text()) if mark.exists() else 0
    with open(log, "rb") as file:
        file.seek(start)
        text = file.read()
    mark.write_text(str(start + len(text)))
    return text


def columns_of(text):
    rows = [orjson.loads(line) for line in text.splitlines()]
    names = [name for name in {key: None for row in rows for key in row} if not name.startswith("_")]
    cells = [[row.get(name, math.nan) for name in names] for row in rows]
    return dict(zip(names, np.array(cells, dtype=np.float64).T.copy(), strict=True))


def logged(steps, values, is_missing):
    return (steps[~is_missing], values[~is_missing]) if is_missing.any() else (steps, values)


def json_of(log):
    return f"read_json('{log}', format='newline_delimited')"
