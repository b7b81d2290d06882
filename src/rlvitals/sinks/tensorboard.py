"""TensorBoard event files, written with only the `tensorboard` package (no torch, no tensorflow).

Each row is one event with its values in float32, at the row's own step and time; NaN and infinities are kept. Metrics
that are drawn over epochs are in a second event. For hardware samples (`System/...`), the step is the number of the
sample. Texts and the configuration are text summaries with the names that PyTorch's SummaryWriter uses. The catalogue's
metric groups are the layout of the Custom Scalars tab.

After a crash every row is in the files once: the open file is truncated to its committed length, files without a commit
are removed, and a new file continues. A TensorBoard that has already read the removed rows shows them twice until it is
restarted. After a resume TensorBoard shows the current line: a session start at the first superseded step makes it drop
superseded points, and superseded rows that arrive later are not written.

TensorBoard's default loader uses only the steps of each metric. So a metric that only a superseded attempt logged stays
visible, and a late row, whose step is lower than the metric's last one, hides the points beyond it. The files hold all
points, and `tensorboard --load_fast=false` shows them correctly.
"""

from __future__ import annotations

import contextlib
import io
import json
import math
import os
import re
import time
from collections.abc import Mapping, Sequence
from itertools import islice
from pathlib import Path
from typing import Any, ClassVar

from rlvitals import catalog
from rlvitals.errors import SinkError
from rlvitals.records import Row
from rlvitals.sinks.base import (
    RunFacts,
    Sink,
    SinkRow,
    check_settings,
    import_vendor,
    metric_name,
    stored_rows,
)
from rlvitals.splits import without_held_out_prefix
from rlvitals.store.files import make_folder, sync_folder
from rlvitals.store.layout import RunDir
from rlvitals.store.lineage import Lineage, trace
from rlvitals.store.reader import read_rows

BUFFER_BYTES = 2**20
"""Rows wait in this buffer for their commit, so an open TensorBoard rarely reads rows that are removed later."""

BEYOND_ALL_STEPS = 2**62

STRING_TYPE = 7
"""DT_STRING in TensorFlow's types."""

EPOCH_AXIS = ("Epoch/", "Scoring/")
"""Tags that are drawn over epochs, as in the RLAIF document, if the `epoch` of their row is an integer."""

WRITER_SETTINGS = frozenset({"comment", "purge_step", "max_queue", "flush_secs", "filename_suffix"})
"""Other parameters of SummaryWriter. They are accepted because settings files contain them, and ignored because every
commit is flushed and resumes are known."""


class TensorBoardSink(Sink):
    """Writes a run's event files to `log_dir`. Owns only the files there that have the run's id in their name.

    Memory: `serial` and `length` (the last file and its committed length); `cuts` (attempt -> first step of earlier
    attempts that it superseded); `newest` (attempt); `early` (number of evaluations of the newest attempt before its
    first training row; None after that row); `has_config`; `members` (metrics in the layout); `samples` (number of
    hardware samples written).
    """

    known_settings: ClassVar[frozenset[str]] = frozenset({"log_dir"} | WRITER_SETTINGS)
    path_settings: ClassVar[frozenset[str]] = frozenset({"log_dir"})
    takes_samples: ClassVar[bool] = True

    def __init__(self, facts: RunFacts, settings: Mapping[str, Any], memory: dict[str, Any]) -> None:
        super().__init__(facts, settings, memory)
        check_settings("tensorboard", settings, self.known_settings)
        self._protos = _Protos()
        self._dir = Path(settings.get("log_dir") or facts.root / "logs" / "tensorboard")
        self._serial: int = memory.get("serial", 0)
        self._cuts = {int(number): step for number, step in memory.get("cuts", {}).items()}
        self._newest: int = memory.get("newest", 0)
        self._early: int | None = memory.get("early")
        self._has_config: bool = memory.get("has_config", False)
        self._members: set[str] = set(memory.get("members", ()))
        self._samples: int = memory.get("samples", 0)
        self._looked_up: set[str] = set()
        self._raw: io.FileIO | None = None
        self._file: io.BufferedWriter | None = None
        self._records: Any = None
        try:
            make_folder(self._dir)
            self._take_back(memory.get("length", 0))
        except OSError as error:
            raise SinkError(f"cannot write to log_dir {str(self._dir)!r} ({error}). Give another log_dir") from error

    def write(self, rows: Sequence[SinkRow]) -> None:
        for item in rows:
            if item.stream == "system":
                self._write_row(item)
                self._samples = item.row.step + 1
                continue
            self._follow_attempts(item)
            if not Lineage(self._cuts).is_abandoned(item.row.attempt, item.row.step):
                self._write_row(item)

    def commit(self) -> None:
        if self._file is None:
            return  # only superseded rows
        self._file.flush()
        os.fsync(self._file.fileno())
        self.memory.update(
            serial=self._serial,
            length=self._file.tell(),
            cuts={str(number): step for number, step in self._cuts.items()},
            newest=self._newest,
            early=self._early,
            has_config=self._has_config,
            members=sorted(self._members),
            samples=self._samples,
        )

    def close(self) -> None:
        if self._file is not None:
            self._file.close()

    def abandon(self) -> None:
        if self._raw is not None:
            # Close the file below the buffer, so the buffer is not written: its rows are not committed.
            with contextlib.suppress(OSError):
                self._raw.close()

    def _take_back(self, length: int) -> None:
        """Remove everything that was written after the last commit."""
        for path in self._dir.iterdir():
            serial = self._serial_of(path.name)
            if serial is None:
                continue
            if serial > self._serial:
                path.unlink()
            elif serial == self._serial and path.stat().st_size > length:
                os.truncate(path, length)

    @property
    def _mark(self) -> str:
        return f".rlvitals-{re.sub(r'[^A-Za-z0-9-]', '_', self.facts.id)}."

    def _serial_of(self, name: str) -> int | None:
        """The number of one of this sink's files; None for other files."""
        head, mark, number = name.rpartition(self._mark)
        return int(number) if mark and head.startswith("events.out.tfevents.") and number.isdecimal() else None

    def _open_file(self) -> None:
        self._serial += 1
        # TensorBoard reads a folder's files in the order of their names.
        started = int(self.facts.attempts[0].started) if self.facts.attempts else 0
        path = self._dir / f"events.out.tfevents.{started:010d}{self._mark}{self._serial:06d}"
        self._raw = io.FileIO(path, "w")
        self._file = io.BufferedWriter(self._raw, BUFFER_BYTES)
        self._records = self._protos.RecordWriter(self._file)
        sync_folder(self._dir)
        # Since version 2, points are dropped by a session start, not by a step that decreases.
        self._records.write(self._protos.Event(wall_time=time.time(), file_version="brain.Event:2").SerializeToString())
        if self._serial == 1:
            # TensorBoard's pages treat the second session start as the first restart. Its reader for scripts treats
            # any start as a restart, so this one has a step beyond all others.
            self._put(BEYOND_ALL_STEPS, time.time(), session_log=self._protos.session_start())

    def _put(self, step: int, wall_time: float, **what: Any) -> None:
        if self._file is None:
            self._open_file()
        self._records.write(self._protos.Event(step=step, wall_time=wall_time, **what).SerializeToString())

    def _write_row(self, item: SinkRow) -> None:
        row, when = item.row, _wall_time(item.row)
        if not self._has_config:
            self._has_config = True
            self._put(0, when, summary=self._protos.summary([self._config_value()]))
        tags = {name: metric_name(item.stream, name) for name in (*row.numbers, *row.texts)}
        epoch = row.numbers.get("epoch")
        has_epoch = epoch is not None and float(epoch).is_integer()
        by_step: list[Any] = []
        by_epoch: list[Any] = []
        for name, number in row.numbers.items():
            own = by_epoch if has_epoch and name.startswith(EPOCH_AXIS) else by_step
            own.append(self._protos.Value(tag=tags[name], simple_value=number))
        by_step += [self._protos.text(tags[name], text) for name, text in row.texts.items()]
        self._put(row.step, when, summary=self._protos.summary(by_step))
        if by_epoch and epoch is not None:
            self._put(int(epoch), when, summary=self._protos.summary(by_epoch))
        if new := {tags[name] for name in row.numbers} - self._looked_up:
            self._looked_up |= new
            self._extend_layout(new, when)

    def _config_value(self) -> Any:
        lines = json.dumps(self.facts.config, indent=2, ensure_ascii=False, default=str).splitlines()
        return self._protos.text("config", "\n".join(f"    {line}" for line in lines))  # Markdown for preformatted text

    def _extend_layout(self, new: set[str], when: float) -> None:
        """Write the Custom Scalars layout again if new metrics belong to a group; the last layout counts."""
        reader = catalog.reader(self.facts.framework, self.facts.algorithm, sorted(self._looked_up))
        members = self._members | {tag for tag in new if _groups_of(tag, reader)}
        if members != self._members:
            self._members = members
            self._put(0, when, summary=self._protos.summary([self._protos.layout(sorted(members), reader)]))

    def _follow_attempts(self, item: SinkRow) -> None:
        """Make TensorBoard drop superseded points when the first row of a new attempt comes, of either stream."""
        row = item.row
        if row.attempt > self._newest:
            known, self._newest = self._newest, row.attempt
            self._early = 0
            if row.attempt > 1:
                self._cuts = self._trace(item)
            if known:
                self._start_session(min(cut for number, cut in self._cuts.items() if number > known), row)
        if row.attempt == self._newest and self._early is not None:
            if item.stream == "eval":
                self._early += 1
            else:
                self._settle_attempt(item, self._early)

    def _settle_attempt(self, item: SinkRow, early: int) -> None:
        """Compute the cut again from the newest attempt's first training row, which may begin at an earlier step than
        its evaluations.
        """
        self._early = None
        if self._newest not in self._cuts or item.row.step >= self._cuts[self._newest]:
            return
        self._cuts = self._trace(item)
        self._start_session(self._cuts[self._newest], item.row)
        evaluations = (row for row in read_rows(RunDir(self.facts.root).eval_log) if row.attempt == self._newest)
        for row in islice(evaluations, early):  # the session start also dropped these
            if row.step >= self._cuts[self._newest]:
                self._write_row(SinkRow("eval", row))

    def _start_session(self, cut: int, row: Row) -> None:
        self._put(cut, _wall_time(row), session_log=self._protos.session_start())
        if cut <= 0:  # the values at step 0 are dropped too
            self._has_config = False
            self._members.clear()
            self._looked_up.clear()
        # Hardware samples are never superseded, but the session start dropped them too.
        for sample in islice(stored_rows(self.facts.root, "system"), max(cut, 0), max(cut, 0, self._samples)):
            self._write_row(SinkRow("system", sample))

    def _trace(self, item: SinkRow) -> dict[int, int]:
        """The cuts of all attempts, computed from the complete logs: rows of the two streams come in any order."""
        import numpy as np

        columns = []
        for stream in ("train", "eval"):
            rows = [(row.attempt, row.step) for row in read_rows(RunDir(self.facts.root).log(stream))]
            if item.stream == stream:
                rows.append((item.row.attempt, item.row.step))  # usually in the log already
            attempts, steps = np.array(rows, dtype=np.int64).reshape(-1, 2).T
            columns.append((attempts, steps))
        return trace(self.facts.attempts, *columns).cuts


class _Protos:
    """The record types of the `tensorboard` package, imported when a sink is opened."""

    def __init__(self) -> None:
        event = _import("compat.proto.event_pb2")
        summary = _import("compat.proto.summary_pb2")
        tensor = _import("compat.proto.tensor_pb2")
        self._text = _import("plugins.text.metadata")
        self._scalars = _import("plugins.custom_scalar.metadata")
        self._layout = _import("plugins.custom_scalar.layout_pb2")
        records = _import("summary.writer.record_writer")
        self.Event, self._SessionLog = event.Event, event.SessionLog
        self.Summary, self.Value = summary.Summary, summary.Summary.Value
        self.TensorProto = tensor.TensorProto
        self.RecordWriter = records.RecordWriter

    def session_start(self) -> Any:
        return self._SessionLog(status=self._SessionLog.START)

    def summary(self, values: list[Any]) -> Any:
        return self.Summary(value=values)

    def text(self, tag: str, text: str) -> Any:
        """A text summary. The suffix distinguishes it from numbers with the same name."""
        tensor = self.TensorProto(dtype=STRING_TYPE, string_val=[text.encode("utf-8", "replace")])
        tensor.tensor_shape.dim.add(size=1)
        return self.Value(
            tag=f"{tag}/text_summary", metadata=self._text.create_summary_metadata(tag, ""), tensor=tensor
        )

    def layout(self, tags: list[str], reader: catalog.Reader) -> Any:
        """One category per group of the catalogue, one chart per metric."""
        charts: dict[str, dict[str, list[str]]] = {}
        for tag in tags:
            for group, title in _groups_of(tag, reader):
                charts.setdefault(group, {}).setdefault(title, []).append(f"^{re.escape(tag)}$")
        categories = [
            self._layout.Category(
                title=group,
                chart=[
                    self._layout.Chart(title=title, multiline=self._layout.MultilineChartContent(tag=patterns))
                    for title, patterns in charts[group].items()
                ],
            )
            for group in (group.title for group in catalog.groups())
            if group in charts
        ]
        layout = self._layout.Layout(category=categories).SerializeToString()
        tensor = self.TensorProto(dtype=STRING_TYPE, string_val=[layout])
        return self.Value(
            tag=self._scalars.CONFIG_SUMMARY_TAG, metadata=self._scalars.create_summary_metadata(), tensor=tensor
        )


def _groups_of(tag: str, reader: catalog.Reader) -> list[tuple[str, str]]:
    """The groups of a metric, each with the title of its chart. An evaluation metric shares the chart of the training
    metric.
    """
    titles = {}
    for name in (tag, without_held_out_prefix(tag)):
        titles[name] = name
        if (match := reader.meaning(name)) is not None:
            titles[match.metric.id] = titles[name] = match.metric.title
    return [
        (group.title, next(title for key, title in titles.items() if key in group.metrics))
        for group in catalog.groups()
        if not titles.keys().isdisjoint(group.metrics)
    ]


def _import(module: str) -> Any:
    return import_vendor(f"tensorboard.{module}", "tensorboard")


def _wall_time(row: Row) -> float:
    """The time of a row; the current time if it has none, because TensorBoard's charts need one."""
    return row.timestamp if math.isfinite(row.timestamp) else time.time()
