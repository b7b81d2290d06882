"""MLflow: runs of a file store (a folder of `mlruns`) and of a database (`mlflow.db`).

A run's folder has `meta.yaml` and one file per metric, with a time in milliseconds, a value and a step on each line.
"""

from __future__ import annotations

import math
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from rlvitals.errors import NotALog
from rlvitals.importers.base import Importer, lines_of, text_of, yaml_of
from rlvitals.importers.cells import number_in, number_of
from rlvitals.importers.points import Point, PointTable
from rlvitals.importers.sqlite import RunInDatabase, choose, columns_in, opened
from rlvitals.records import Fields
from rlvitals.store.files import changed_at

SYSTEM = "system/"
"""MLflow's system metrics. Their steps count samples, not training steps."""

MOST_PARAMETERS = 2_000


class MlflowImporter(Importer):
    """A run's folder, or a database of runs."""

    name = "mlflow"
    description = "MLflow runs: mlruns folders and mlflow.db"
    names = ("mlflow.db",)
    takes_choice = True

    @classmethod
    def recognises(cls, head: bytes, path: Path) -> bool:
        tables = columns_in(head, path)
        return "run_uuid" in tables.get("runs", ()) and {"run_uuid", "key", "value"} <= tables.get("metrics", set())

    @classmethod
    def log_in(cls, folder: Path) -> Path | None:
        return folder if cls.is_one_log(folder) else None

    @classmethod
    def is_one_log(cls, folder: Path) -> bool:
        return os.path.isfile(folder / "meta.yaml") and any(map(os.path.isfile, (folder / "metrics").rglob("*")))

    @classmethod
    def started_at(cls, log: Path) -> float:
        return seconds(yaml_of(log / "meta.yaml").get("start_time")) or changed_at(log)

    @classmethod
    def width(cls, log: Path) -> int:
        return sum(not name.startswith(SYSTEM) for name, _ in _metric_files(log)) if os.path.isdir(log) else 1

    def rows(self, path: Path) -> list[Fields]:
        points = self._of_folder(path) if os.path.isdir(path) else self._of_database(path)
        if any(point.name.startswith(SYSTEM) for point in points):
            self.notes.say("left out: MLflow's samples of the machine (system/...), whose steps count samples")
            points = [point for point in points if not point.name.startswith(SYSTEM)]
        table = PointTable(self.notes)
        table.add_written(sorted(points, key=lambda point: point.time))
        table.number()
        rows = table.fields()
        if not rows:
            raise NotALog(path, "the MLflow run holds no metrics")
        return rows

    def _of_folder(self, folder: Path) -> list[Point]:
        parameters = sorted((folder / "params").rglob("*"))[:MOST_PARAMETERS]
        self.config = {
            file.relative_to(folder / "params").as_posix(): setting(text_of(file))
            for file in parameters
            if os.path.isfile(file)
        }
        return [point for name, file in _metric_files(folder) for point in self._points(name, file)]

    def _points(self, name: str, file: Path) -> Iterator[Point]:
        for line in lines_of(file):
            cells = line.split()
            value = number_in(cells[1]) if len(cells) > 1 else None
            if value is None or not line.endswith("\n"):
                if cells and line.endswith("\n"):
                    self.notes.count("1 line is damaged and was skipped", "{} lines are damaged and were skipped")
                continue  # the last line is still being written
            step = number_in(cells[2]) if len(cells) > 2 else 0
            yield Point(step if isinstance(step, int) else 0, seconds(number_in(cells[0])), name, float(value))

    def _of_database(self, path: Path) -> list[Point]:
        with opened(path) as database:
            listed = database.execute(
                "SELECT r.run_uuid, r.name, r.start_time, COUNT(DISTINCT m.key), COUNT(m.key) FROM runs r "
                "LEFT JOIN metrics m ON m.run_uuid = r.run_uuid AND m.key NOT LIKE 'system/%' "
                "WHERE r.lifecycle_stage IS NOT 'deleted' GROUP BY r.run_uuid"
            )
            runs = [
                RunInDatabase(str(run), str(name or ""), seconds(start), metrics, points)
                for run, name, start, metrics, points in listed
            ]
            chosen = choose(runs, self.choice, path, self.notes)
            self.config = {
                str(key): setting(str(value))
                for key, value in database.execute(
                    "SELECT key, value FROM params WHERE run_uuid = ? LIMIT ?", (chosen.id, MOST_PARAMETERS)
                )
            }
            found = database.execute(
                "SELECT key, value, timestamp, step, is_nan FROM metrics WHERE run_uuid = ? ORDER BY timestamp, step",
                (chosen.id,),
            )
            return [
                Point(step, seconds(time), key, math.nan if is_nan else largest_as_infinity(value))
                for key, value, time, step, is_nan in found
                if isinstance(key, str) and isinstance(step, int) and isinstance(value, int | float)
            ]


def _metric_files(folder: Path) -> Iterator[tuple[str, Path]]:
    metrics = folder / "metrics"
    for file in sorted(metrics.rglob("*")):
        if os.path.isfile(file):
            yield file.relative_to(metrics).as_posix(), file


def largest_as_infinity(value: int | float) -> float:
    """Converts the largest float to infinity: MLflow stores infinity that way in its databases."""
    largest = 1.7976931348623157e308
    return math.copysign(math.inf, value) if abs(value) >= largest else float(value)


def seconds(milliseconds: object) -> float:
    """An MLflow time as Unix seconds; 0 if there is none."""
    return milliseconds / 1000 if isinstance(milliseconds, int | float) and milliseconds > 0 else 0.0


def setting(text: str) -> Any:
    """A parameter's value. MLflow stores parameters as text."""
    number = number_of(text.strip())
    return text.strip() if number is None else number
