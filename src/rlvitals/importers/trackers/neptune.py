"""Neptune, whose service was shut down: runs from exports.

Two forms are read. neptune-exporter writes Parquet files `RUN_part_N.parquet` with one row per point or setting, in one
folder per project. The `neptune` client's `fetch_values()` returns frames that users save as CSV: one folder per run
with one file `METRIC.csv` per series (step, value, timestamp), and settings in a JSON file next to them.
"""

from __future__ import annotations

import csv
import os
import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from rlvitals.errors import SourceError
from rlvitals.importers.base import Notes, add_histograms, open_foreign, open_parquet, text_of
from rlvitals.importers.cells import leaves, number_in, time_of
from rlvitals.importers.jsonl import object_in
from rlvitals.importers.points import PointTable
from rlvitals.importers.trackers.address import Address
from rlvitals.importers.trackers.base import (
    MOST_TEXT,
    Page,
    RemoteRun,
    RunCard,
    Source,
    in_pages,
    mark_of,
    without_nothing,
)
from rlvitals.records import MAX_STEP, Row
from rlvitals.store.distributions import Logged, sketch_of_buckets
from rlvitals.store.files import changed_at
from rlvitals.store.lines import metric_key

COLUMNS = (
    "project_id", "run_id", "attribute_path", "attribute_type", "step", "timestamp", "int_value", "float_value",
    "string_value", "bool_value", "datetime_value", "string_set_value", "histogram_value",
)  # fmt: skip
"""The columns of neptune-exporter's tables."""

BATCH_ROWS = 50_000
MOST_SETTINGS = 5_000
FINEST = 6
"""The decimals of a step that Neptune stores."""

_PART = re.compile(r"(.+)_part_(\d+)\.parquet")
_OTHERS = frozenset({"models", "model_versions"})
"""The exporter's folders that hold no runs."""
_SETTINGS = {"int": "int_value", "float": "float_value", "string": "string_value", "bool": "bool_value"}
_MACHINE = "monitoring/"


@dataclass(slots=True)
class _Export:
    """The files of one run."""

    run: str
    project: str
    files: list[Path]
    is_whole: bool = True
    attributes: dict[str, Any] = field(default_factory=dict)
    """The settings and facts read so far, by name."""

    @property
    def mark(self) -> str:
        return mark_of([(file.name, os.stat(file).st_size, os.stat(file).st_mtime_ns) for file in self.files])


class NeptuneSource(Source):
    """A folder of exports."""

    scheme = "neptune"
    grammar = "neptune:FOLDER, with the folder that neptune-exporter wrote (exports/data), or neptune:FOLDER#RUN"
    goes_on = False

    def __init__(self, address: Address, tell: Callable[[str], None] = lambda message: None) -> None:
        super().__init__(address, tell)
        self._folder = Path(address.place)
        if not address.place or not os.path.isdir(self._folder):
            raise SourceError(f"{address}: there is no folder {address.place!r}. Write {self.grammar}")

    @property
    def is_one_run(self) -> bool:
        return bool(self.address.path)

    def runs(self) -> Iterator[RemoteRun]:
        exports = [*self._tables(), *self._frames()]
        if not exports:
            raise SourceError(
                f"{self.address}: the folder holds no export of Neptune: neither RUN_part_0.parquet of "
                f"neptune-exporter nor CSV files with the columns step and value"
            )
        wanted = self.address.path
        if wanted:
            exports = [one for one in exports if wanted in (one.run, f"{one.project}/{one.run}")]
            if not exports:
                raise SourceError(f"{self.address}: the export holds no run {wanted!r}")
        for one in exports:
            self.ask(lambda one=one: self._read_settings(one), f"the settings of {one.run}")  # type: ignore[misc]
            attributes = one.attributes
            is_failed = attributes.get("sys/failed") is True
            yield RemoteRun(
                id=one.run,
                name=str(attributes.get("sys/name") or one.run),
                project=one.project,
                status="failed" if is_failed else "finished",
                mark=one.mark,
                created=attributes.get("sys/creation_time") or changed_at(one.files[0]),
                ended=attributes.get("sys/modification_time"),
                within=one.project,
                handle=one,
            )

    def card(self, run: RemoteRun) -> RunCard:
        attributes: dict[str, Any] = run.handle.attributes
        tags = [*attributes.get("sys/tags", []), *attributes.get("sys/group_tags", [])]
        names = ("sys/id", "sys/state", "sys/owner", "sys/forking/parent", "sys/forking/step")
        facts = {name.removeprefix("sys/"): attributes.get(name) for name in names}
        return RunCard(
            config={name: value for name, value in attributes.items() if not name.startswith("sys/")},
            tags=[str(tag) for tag in tags],
            note=str(attributes.get("sys/description") or ""),
            facts=without_nothing(facts),
        )

    def pages(self, run: RemoteRun, cursor: dict[str, Any]) -> Iterator[Page]:
        export: _Export = run.handle
        if not export.is_whole:
            raise SourceError(
                f"{self.address}: the export of {export.run} is not whole (its part_0 is missing). Run "
                f"neptune-exporter again"
            )
        notes = Notes()
        series = _Series(notes)
        read = _read_table if export.files[0].suffix == ".parquet" else _read_frame
        for file in export.files:
            self._tell(f"{run.name}: {file.name}")
            self.ask(lambda file=file: read(file, export, series), file.name)  # type: ignore[misc]
        for rows in in_pages(series.rows()):
            yield Page(rows)
        samples = series.samples()
        self.notes = dict.fromkeys(notes.texts())
        yield Page(samples=samples, distributions=series.distributions)

    def may_pass(self, error: Exception) -> bool:
        return False

    def _tables(self) -> Iterator[_Export]:
        found: dict[Path, list[tuple[int, Path]]] = {}
        for file in sorted(self._folder.rglob("*.parquet")):
            match = _PART.fullmatch(file.name)
            if match and not _OTHERS & set(file.relative_to(self._folder).parts[:-1]):
                found.setdefault(file.with_name(match[1]), []).append((int(match[2]), file))
        for parts in found.values():
            files = [file for _, file in sorted(parts)]
            head = self.ask(lambda files=files: _identity(files[0]), files[0].name)  # type: ignore[misc]
            if head is not None:
                yield _Export(head[1], head[0], files, is_whole=min(parts)[0] == 0)

    def _frames(self) -> Iterator[_Export]:
        found: dict[Path, list[Path]] = {}
        for file in sorted(self._folder.rglob("*.csv")):
            parts = file.relative_to(self._folder).parts
            if _is_series(file):
                found.setdefault(self._folder / parts[0] if len(parts) > 1 else self._folder, []).append(file)
        for folder, files in found.items():
            yield _Export(folder.name or "run", self._folder.name, files)

    def _read_settings(self, export: _Export) -> None:
        if export.files[0].suffix == ".parquet":
            for file in export.files:
                _read_settings(file, export.attributes)
            return
        folder = _root_of(export)
        for file in sorted(folder.glob("*.json")):
            found = object_in(text_of(file)) or {}
            for name, value in leaves(found):
                export.attributes.setdefault(name, value)
        for name in ("sys/creation_time", "sys/modification_time"):
            if name in export.attributes:
                export.attributes[name] = time_of(export.attributes[name])


class _Series:
    """Collects the series of one run."""

    def __init__(self, notes: Notes) -> None:
        self._notes = notes
        self._numbers: dict[str, list[tuple[Any, Any, Any]]] = {}
        self._texts: list[Row] = []
        self.distributions: list[Logged] = []
        self._finest = 0

    def add(self, name: str, steps: Any, times: Any, values: Any) -> None:
        """Add points of a metric, as arrays. Steps may have decimals."""
        import numpy as np

        steps = np.asarray(steps, np.float64)
        while self._finest < FINEST and len(steps) and not _are_whole(steps * 10.0**self._finest):
            self._finest += 1
        self._numbers.setdefault(name, []).append(
            (steps, np.asarray(times, np.float64), np.asarray(values, np.float64))
        )

    def add_text(self, name: str, step: float, time: float, text: str) -> None:
        self._texts.append(Row(round(step), time, 1, {}, {metric_key(name): text[:MOST_TEXT]}))

    def add_histogram(self, name: str, step: int, buckets: list[tuple[float, float, float]]) -> None:
        found = Logged(step, 1, metric_key(name), sketch_of_buckets(buckets))
        add_histograms(self.distributions, [found], self._notes)

    def rows(self) -> Iterator[Row]:
        if self._finest:
            self._notes.say(
                f"steps have decimals: they are multiplied by {10**self._finest:,}, since steps are whole numbers here"
            )
        yield from self._columns(is_machine=False).rows()
        yield from self._texts

    def samples(self) -> list[Row]:
        return list(self._columns(is_machine=True).rows())

    def _columns(self, *, is_machine: bool) -> PointTable:
        import numpy as np

        columns = PointTable(self._notes)
        for name, parts in self._numbers.items():
            if name.startswith(_MACHINE) is is_machine:
                steps, times, values = (np.concatenate(one) for one in zip(*parts, strict=True))
                scaled = np.rint(steps * 10.0**self._finest)
                scaled[~np.isfinite(scaled)] = 2.0 * MAX_STEP  # an invalid step: skipped and counted
                columns.add(name, scaled.astype(np.int64), times, values)
        return columns


def _are_whole(steps: Any) -> bool:
    import numpy as np

    known = steps[np.isfinite(steps)]
    return bool((np.abs(known - np.rint(known)) < 1e-7).all())


def _identity(file: Path) -> tuple[str, str] | None:
    """The project and run of an exported table; None if it is another table."""
    with open_parquet(file) as table:
        if not {"run_id", "attribute_path", "attribute_type", "float_value"} <= set(table.schema_arrow.names):
            return None
        for batch in table.iter_batches(batch_size=1, columns=["project_id", "run_id"]):
            for row in batch.to_pylist():
                return str(row["project_id"]), str(row["run_id"])
    return None


def _batches(file: Path) -> Iterator[tuple[Any, Callable[..., Any]]]:
    """Batches of a table, each with a function that filters it by row types."""
    with open_parquet(file) as table:
        import pyarrow
        from pyarrow import compute

        columns = [name for name in COLUMNS if name in table.schema_arrow.names]
        for batch in table.iter_batches(batch_size=BATCH_ROWS, columns=columns):
            yield (
                batch,
                lambda *kinds, batch=batch: batch.filter(
                    compute.is_in(batch["attribute_type"], pyarrow.array(kinds, pyarrow.string()))
                ),
            )


def _read_settings(file: Path, into: dict[str, Any]) -> None:
    for _, of_types in _batches(file):
        for row in of_types(*_SETTINGS, "datetime", "string_set").to_pylist():
            name, kind = str(row["attribute_path"]), row["attribute_type"]
            if len(into) >= MOST_SETTINGS and not name.startswith("sys/"):
                continue
            if kind == "datetime":
                moment = row["datetime_value"]
                into[name] = moment.timestamp() if moment is not None else None
            else:
                into[name] = row[_SETTINGS.get(kind, "string_set_value")]


def _read_table(file: Path, export: _Export, series: _Series) -> None:
    for batch, of_types in _batches(file):
        numbers = of_types("float_series")
        names = numbers["attribute_path"].dictionary_encode() if len(numbers) else None
        if names is not None:
            which = names.indices.to_numpy()
            steps = numbers["step"].cast("float64").to_numpy(zero_copy_only=False)
            moments = numbers["timestamp"].cast("int64").to_numpy(zero_copy_only=False) / _unit(batch)
            values = numbers["float_value"].to_numpy(zero_copy_only=False)
            for place, name in enumerate(names.dictionary.to_pylist()):
                own = which == place
                series.add(name, steps[own], moments[own], values[own])
        for row in of_types("string_series", "histogram_series").to_pylist():
            _read_other(row, series)


def _read_other(row: dict[str, Any], series: _Series) -> None:
    name, step = str(row["attribute_path"]), row["step"]
    if step is None or name.startswith(_MACHINE):
        return
    if row["attribute_type"] == "string_series":
        moment = row["timestamp"]
        series.add_text(name, float(step), moment.timestamp() if moment else float("nan"), str(row["string_value"]))
        return
    histogram = row["histogram_value"] or {}
    edges, counts = histogram.get("edges") or [], histogram.get("values") or []
    if len(edges) == len(counts) + 1 and histogram.get("type") != "DENSITY":
        buckets = [(edges[place], edges[place + 1], count) for place, count in enumerate(counts)]
        series.add_histogram(name, round(float(step)), buckets)


def _unit(batch: Any) -> float:
    return {"s": 1.0, "ms": 1e3, "us": 1e6, "ns": 1e9}[batch["timestamp"].type.unit]


def _is_series(file: Path) -> bool:
    try:
        with open_foreign(file) as opened:
            head = opened.readline(4096).decode("utf-8-sig", "replace")
    except OSError:
        return False
    return {"step", "value"} <= {cell.strip().strip('"') for cell in head.split(",")}


def _read_frame(file: Path, export: _Export, series: _Series) -> None:
    steps, times, values = [], [], []
    name = file.relative_to(_root_of(export)).with_suffix("").as_posix()
    for cells in csv.DictReader(text_of(file).splitlines()):
        step, value = number_in(cells.get("step") or ""), number_in(cells.get("value") or "")
        moment = time_of(cells.get("timestamp") or "") or 0.0
        if step is None:
            continue
        if value is not None:
            steps.append(float(step))
            times.append(moment)
            values.append(float(value))
        elif cells.get("value"):
            series.add_text(name, float(step), moment or float("nan"), str(cells["value"]))
        else:  # pandas writes NaN as an empty cell
            steps.append(float(step))
            times.append(moment)
            values.append(float("nan"))
    series.add(name, steps, times, values)


def _root_of(export: _Export) -> Path:
    """The folder of a run that was exported as CSV files."""
    common = Path(os.path.commonpath([file.parent for file in export.files]))
    for folder in (common, *common.parents):
        if folder.name == export.run:
            return folder
    return common
