"""The peers that `recording.py` compares with rlvitals: each with its own API, offline, without system metrics.

Each package's own reader is used. W&B has none for its local files, so its record format is scanned with its own
message classes: the minimum that gives correct arrays.
"""

from __future__ import annotations

import json
import struct
import time
from collections import defaultdict
from collections.abc import Mapping
from typing import ClassVar

from recording_tools import Tool


class TensorBoard(Tool):
    """All metrics of a step in one event: the fastest way to use its writer."""

    name = "TensorBoard, 1 event a step"
    modules = ("tensorboard.summary.writer.event_file_writer", "tensorboard.compat.proto.event_pb2", "numpy")

    def open(self, folder, names):
        from tensorboard.compat.proto.event_pb2 import Event
        from tensorboard.compat.proto.summary_pb2 import Summary
        from tensorboard.summary.writer.event_file_writer import EventFileWriter

        self.writer = EventFileWriter(str(folder))
        add, now, value = self.writer.add_event, time.time, Summary.Value

        def log(metrics, step):
            values = [value(tag=name, simple_value=number) for name, number in metrics.items()]
            add(Event(wall_time=now(), step=step, summary=Summary(value=values)))

        def log_singly(metrics, step):
            for name, number in metrics.items():
                summary = Summary(value=[value(tag=name, simple_value=number)])
                add(Event(wall_time=now(), step=step, summary=summary))

        return log if self.is_joined else log_singly

    is_joined = True

    def close(self):
        self.writer.close()

    def read(self, folder, names):
        import numpy as np
        from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

        accumulator = EventAccumulator(str(folder), size_guidance={"scalars": 0})
        accumulator.Reload()
        events = {name: accumulator.Scalars(name) for name in names}
        return {
            name: (np.array([event.step for event in found]), np.array([event.value for event in found]))
            for name, found in events.items()
        }


class TensorBoardSingly(TensorBoard):
    """One event per metric, like SummaryWriter.add_scalar."""

    name, is_joined = "TensorBoard, 1 event a metric", False


class Wandb(Tool):
    name, modules, has_helper = "W&B offline", ("wandb", "numpy"), True
    environment: ClassVar[Mapping[str, str]] = {
        "WANDB_MODE": "offline",
        "WANDB_SILENT": "true",
        "WANDB_ERROR_REPORTING": "false",
    }

    def open(self, folder, names):
        import wandb

        settings = wandb.Settings(
            console="off", x_disable_stats=True, x_disable_meta=True, disable_git=True, disable_code=True
        )
        self.run = wandb.init(project="bench", dir=str(folder), mode="offline", settings=settings)
        return self.run.log

    def close(self):
        self.run.finish()

    def read(self, folder, names):
        import numpy as np
        from wandb.proto.wandb_internal_pb2 import Record

        (path,) = folder.glob("wandb/offline-run-*/run-*.wandb")
        wanted, record = {*names}, Record()
        steps, values = defaultdict(list), defaultdict(list)
        for data in log_records(path.read_bytes()):
            record.ParseFromString(data)
            if record.WhichOneof("record_type") != "history":
                continue
            for item in record.history.item:
                name = item.key or "/".join(item.nested_key)
                if name in wanted:
                    values[name].append(json.loads(item.value_json))
                    steps[name].append(record.history.step.num)
        return {name: (np.array(steps[name]), np.array(values[name])) for name in names}


def log_records(data, position=7):
    """The records of a LevelDB log after W&B's header of 7 bytes, up to the first incomplete one."""
    block, header = 32768, struct.Struct("<IHB")
    pieces = []
    while position + header.size <= len(data):
        room = block - position % block
        if room < header.size:
            position += room
            continue
        _, length, kind = header.unpack_from(data, position)
        position += header.size
        if kind == 0 or position + length > len(data):
            return
        pieces.append(data[position : position + length])
        position += length
        if kind in (1, 4):  # a complete record, or its last part
            yield b"".join(pieces)
            pieces.clear()


class SwanLab(Tool):
    """Read with the functions of `swanlab sync`."""

    name, mode, modules = "SwanLab offline", "offline", ("swanlab", "numpy")

    def open(self, folder, names):
        import swanlab

        swanlab.init(project="bench", mode=self.mode, log_dir=str(folder))
        return swanlab.log

    def close(self):
        import swanlab

        swanlab.finish()

    def read(self, folder, names):
        import numpy as np
        from swanlab.proto.swanlab.record.v1.record_pb2 import Record
        from swanlab.sdk.internal.core_python.store import DataStoreReader

        (path,) = folder.glob("run-*/run-*.swanlab")
        wanted, record, reader = {*names}, Record(), DataStoreReader()
        steps, values = defaultdict(list), defaultdict(list)
        reader.open(path)
        for data in reader:
            record.ParseFromString(data)
            if record.WhichOneof("record_type") == "scalar" and record.scalar.key in wanted:
                steps[record.scalar.key].append(record.scalar.step)
                values[record.scalar.key].append(record.scalar.value.number)
        reader.close()
        return {name: (np.array(steps[name]), np.array(values[name])) for name in names}


class SwanLabLocal(SwanLab):
    """The format of its own dashboard: a text file per metric. Finishing takes a second for every ten steps."""

    name, mode, most_steps, is_readable = "SwanLab local", "local", 100, False


class Trackio(Tool):
    """Read with the functions of its dashboard."""

    name, modules = "Trackio local", ("trackio", "numpy")
    environment: ClassVar[Mapping[str, str]] = {"HF_HUB_OFFLINE": "1", "TRACKIO_DISABLE_TELEMETRY": "1"}

    def open(self, folder, names):
        import trackio

        trackio.init(project="bench", name="run", auto_log_gpu=False, auto_log_cpu=False)
        return trackio.log

    def close(self):
        import trackio

        trackio.finish()

    def read(self, folder, names):
        import numpy as np
        from trackio.sqlite_storage import SQLiteStorage

        if len(names) == 1:
            rows = SQLiteStorage.get_metric_values("bench", "run", names[0])
            return {names[0]: (np.array([row["step"] for row in rows]), np.array([row["value"] for row in rows]))}
        rows = SQLiteStorage.get_logs("bench", "run")
        steps = np.array([row["step"] for row in rows])
        return {name: (steps, np.array([row[name] for row in rows])) for name in names}


class Mlflow(Tool):
    name, modules = "MLflow SQLite, log_batch", ("mlflow", "numpy")
    environment: ClassVar[Mapping[str, str]] = {"MLFLOW_DISABLE_TELEMETRY": "true", "DO_NOT_TRACK": "true"}
    batch = 1000  # the most its log_batch takes

    def client(self, folder):
        import mlflow

        return mlflow.MlflowClient(f"sqlite:///{folder}/mlflow.db")

    def open(self, folder, names):
        from mlflow.entities import Metric

        client = self.client(folder)
        run = client.create_run(client.create_experiment("bench")).info.run_id
        (folder / "run_id").write_text(run)
        log_batch, now = client.log_batch, time.time

        def log(metrics, step):
            at = int(now() * 1000)
            log_batch(run, [Metric(name, value, at, step) for name, value in metrics.items()])

        self.finish = lambda: client.set_terminated(run)
        self.send = lambda cells: log_batch(run, [Metric(name, value, 0, step) for name, value, step in cells])
        return log

    def close(self):
        self.finish()

    def fill(self, log, rows):
        waiting = []
        for step, row in enumerate(rows):
            waiting += [(name, value, step) for name, value in row.items()]
            while len(waiting) >= self.batch:
                self.send(waiting[: self.batch])
                del waiting[: self.batch]
            yield
        self.send(waiting)

    def read(self, folder, names):
        import numpy as np

        client, run = self.client(folder), (folder / "run_id").read_text()
        found = {name: client.get_metric_history(run, name) for name in names}
        return {
            name: (np.array([point.step for point in points]), np.array([point.value for point in points]))
            for name, points in found.items()
        }


class Aim(Tool):
    name, modules = "Aim", ("aim", "numpy")
    environment: ClassVar[Mapping[str, str]] = {"AIM_DISABLE_TELEMETRY": "1"}

    def open(self, folder, names):
        import aim

        quiet = {"system_tracking_interval": None, "log_system_params": False, "capture_terminal_logs": False}
        self.run = aim.Run(repo=str(folder), **quiet)
        (folder / "run_id").write_text(self.run.hash)
        track = self.run.track
        return lambda metrics, step: track(metrics, step=step)

    def close(self):
        self.run.close()

    def read(self, folder, names):
        from aim import Repo
        from aim.storage.context import Context

        run = Repo(str(folder)).get_run((folder / "run_id").read_text())
        return {name: run.get_metric(name, Context({})).values.sparse_numpy() for name in names}


PEERS = (TensorBoard(), TensorBoardSingly(), Wandb(), SwanLab(), SwanLabLocal(), Trackio(), Mlflow(), Aim())
