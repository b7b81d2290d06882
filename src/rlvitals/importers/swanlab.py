"""SwanLab: the file of a run (`run-ID.swanlab`, earlier `backup.swanlab`), and the logs of older local runs.

The file has seven bytes of header and a LevelDB log, with protobuf records since version 2 and JSON before. Older local
runs have one folder per metric, named after it, with JSON lines.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from urllib.parse import unquote

from rlvitals.errors import NotALog
from rlvitals.importers.base import Importer, head_of, lines_of, settings_beside, start_in_name
from rlvitals.importers.cells import number_of, time_of
from rlvitals.importers.jsonl import object_in
from rlvitals.importers.points import Point, PointTable
from rlvitals.importers.steps import StepFinder
from rlvitals.importers.wire import double_of, inner, leveldb_records, message, text_at, time_at, whole_at
from rlvitals.records import Fields
from rlvitals.store.files import changed_at

MAGIC = b":SWL"
LINES = "logs/*/[0-9]*.log"
OWN = "__swanlab__"
_JSON_VERSION = 1
_SCALAR = 13  # of a Record


class SwanLabImporter(Importer):
    """A run that the swanlab package wrote on this machine, in any of its modes."""

    name = "swanlab"
    description = "SwanLab runs: their .swanlab file"
    marks = ("*.swanlab",)
    beside = ("files/config.yaml",)

    @classmethod
    def recognises(cls, head: bytes, path: Path) -> bool:
        return head.startswith(MAGIC)

    @classmethod
    def log_in(cls, folder: Path) -> Path | None:
        files = [file for file in sorted(folder.glob(cls.marks[0])) if _is_record_file(file)]
        if files:
            return files[-1]
        return folder if _named_logs(folder) else None

    @classmethod
    def is_one_log(cls, folder: Path) -> bool:
        return cls.log_in(folder) is not None

    @classmethod
    def started_at(cls, log: Path) -> float:
        return start_in_name(log) or changed_at(log)

    def rows(self, path: Path) -> list[Fields]:
        is_folder = os.path.isdir(path)
        table = PointTable(self.notes)
        for points in map(_points_below, _named_logs(path)) if is_folder else [self._points_in_file(path)]:
            table.add_written(points)
        steps = StepFinder(self.notes)
        rows = []
        for row in table.fields():
            row["_step"] = row.pop("step")  # SwanLab's own counter, unless the training passed the step
            rows.append(steps.place(row))
        if not rows:
            raise NotALog(path, "the SwanLab run holds no numbers")
        self.config = settings_beside((path if is_folder else path.parent) / self.beside[0])
        return rows

    def _points_in_file(self, path: Path) -> Iterator[Point]:
        version = _version(path)
        for data in leveldb_records(path):
            try:
                points = [_json_point(data)] if version <= _JSON_VERSION else _record_points(data)
            except ValueError:
                self.notes.count("1 record is damaged and was skipped", "{} records are damaged and were skipped")
                continue
            yield from (point for point in points if point is not None and not point.name.startswith(OWN))


def _points_below(logs: Path) -> Iterator[Point]:
    """The points of a metric's folder."""
    for file in sorted(logs.glob("[0-9]*.log"), key=_slice):
        for line in lines_of(file):
            point = _metric_point(unquote(logs.name), object_in(line) or {})
            if point is not None:
                yield point


def _is_record_file(file: Path) -> bool:
    """Whether it is a record file, not the database with the same ending in older local runs."""
    try:
        return head_of(file)[: len(MAGIC)] in (MAGIC, b"")
    except (NotALog, OSError):
        return False


def _named_logs(folder: Path) -> list[Path]:
    """The metric folders, if they have the metrics' names. Newer runs number them and have a .swanlab file."""
    logs = sorted({file.parent for file in folder.glob(LINES) if file.stem.isdigit()})
    return [] if all(metric.name.isdigit() for metric in logs) else logs


def _version(path: Path) -> int:
    head = head_of(path)
    return head[6] if len(head) > 6 else 0


def _record_points(data: bytes) -> list[Point | None]:
    found: list[Point | None] = []
    for scalar in inner(message(data), _SCALAR):
        values = [value for holder in inner(scalar, 5) for value in holder.get(1, [bytes(8)])]
        for value in values:
            found.append(Point(whole_at(scalar, 2), time_at(scalar, 4), text_at(scalar, 1), double_of(value)))
    return found


def _json_point(data: bytes) -> Point | None:
    """A scalar record of version 1. Its metric has the same form as in local logs."""
    record = object_in(data.decode("utf-8", "replace")) or {}
    inside = record.get("data")
    if isinstance(inside, str):
        record = object_in(inside) or {}
    elif isinstance(inside, dict):
        record = inside
    key, metric = record.get("key"), record.get("metric")
    if not isinstance(key, str) or not isinstance(metric, dict):
        return None
    return _metric_point(key, {"index": record.get("step"), **metric})


def _metric_point(name: str, metric: dict[str, Any]) -> Point | None:
    step, value = metric.get("index"), number_of(metric.get("data"))
    if not isinstance(step, int) or value is None:
        return None
    return Point(step, time_of(metric.get("create_time")) or 0.0, name, float(value))


def _slice(file: Path) -> tuple[int, str]:
    """A sort key. SwanLab splits logs into files of 1000 lines, each named after its last line number."""
    return (int(file.stem) if file.stem.isdigit() else 0, file.name)
