"""The raw writes and rlvitals itself, as `recording.py` measures them; the peers are in `recording_peers.py`.

A tool opens a run in a folder and returns the function that a trainer would call, `log(metrics, step)`, so that no code
of the benchmark is timed. It closes the run, and reads series back as (steps, values).
"""

from __future__ import annotations

import json
import os
import struct
import subprocess
import sys
import time
from collections.abc import Mapping
from typing import ClassVar

HANGING = "hanging"  # the tracker of hanging_sink.py


class Tool:
    name = ""
    kind = "peer"  # or "floor", "rlvitals"
    modules: tuple[str, ...] = ()  # required packages; imported before the timing
    environment: ClassVar[Mapping[str, str]] = {}
    most_steps = 2**62  # a limit for tools that are slow to finish, where stopping the loop in time does not help
    is_readable = True
    hot_factor = 1  # multiplies the rows of the hot loop
    has_helper = False  # whether another process takes part in the writing
    is_only_timed = False  # whether only its latencies are measured

    def open(self, folder, names): ...
    def settle(self, log, rows):
        """Prepare for the timing; returns the number of rows logged for it."""
        return 0

    def close(self): ...
    def fill(self, log, rows):
        """Record rows for the reading part; a generator, so that it can be stopped when it takes too long."""
        for step, row in enumerate(rows):
            log(row, step)
            yield

    def read(self, folder, names):
        raise NotImplementedError(f"{self.name} has no reader")

    def sizes(self, folder):
        """Bytes on disk by their content, in addition to the whole folder."""
        return {}


# Raw writes: the minimum for any tool


class OrjsonLine(Tool):
    name, kind, modules = "orjson line + write", "floor", ("orjson", "numpy")

    def open(self, folder, names):
        import orjson

        self.file = os.open(folder / "rows.jsonl", os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o644)
        dumps, newline, write, now, file = orjson.dumps, orjson.OPT_APPEND_NEWLINE, os.write, time.time, self.file

        def log(metrics, step):
            write(file, dumps({"step": step, "timestamp": now(), **metrics}, option=newline))

        return log

    def close(self):
        os.close(self.file)

    def read(self, folder, names):
        import numpy as np
        import orjson

        lines = (folder / "rows.jsonl").read_bytes().splitlines(keepends=True)
        rows = [orjson.loads(line) for line in lines if line.endswith(b"\n")]
        steps = np.array([row["step"] for row in rows])
        return {name: (steps, np.array([row[name] for row in rows])) for name in names}


class PackedRow(Tool):
    name, kind, modules = "packed struct + write", "floor", ("numpy",)

    def open(self, folder, names):
        (folder / "names.json").write_text(json.dumps(names))
        self.file = os.open(folder / "rows.bin", os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o644)
        pack, write, now, file = struct.Struct(f"<qd{len(names)}d").pack, os.write, time.time, self.file

        def log(metrics, step):
            write(file, pack(step, now(), *metrics.values()))

        return log

    def close(self):
        os.close(self.file)

    def read(self, folder, names):
        import numpy as np

        order = json.loads((folder / "names.json").read_text())
        form = np.dtype([("step", "<i8"), ("time", "<f8"), ("values", "<f8", (len(order),))])
        data = (folder / "rows.bin").read_bytes()
        rows = np.frombuffer(data, form, count=len(data) // form.itemsize)
        steps = rows["step"].copy()
        return {name: (steps, rows["values"][:, order.index(name)].copy()) for name in names}


class SqliteRow(Tool):
    """One row of a wide table and one transaction per call; with a write-ahead log, the fastest safe setting."""

    name, kind, modules = "SQLite, a commit per row", "floor", ("sqlite3", "numpy")

    def open(self, folder, names):
        import sqlite3

        self.base = sqlite3.connect(folder / "rows.db", isolation_level=None)
        self.base.execute("PRAGMA journal_mode=WAL")
        self.base.execute("PRAGMA synchronous=NORMAL")
        columns = ", ".join(f'"{name}" REAL' for name in names)
        self.base.execute(f"CREATE TABLE log (step INTEGER PRIMARY KEY, time REAL, {columns})")
        insert = f"INSERT INTO log VALUES (?, ?{', ?' * len(names)})"
        execute, now = self.base.execute, time.time

        def log(metrics, step):
            execute(insert, (step, now(), *metrics.values()))

        return log

    def close(self):
        self.base.close()

    def read(self, folder, names):
        import sqlite3

        import numpy as np

        base = sqlite3.connect(folder / "rows.db")
        columns = ", ".join(f'"{name}"' for name in names)
        found = list(zip(*base.execute(f"SELECT step, {columns} FROM log ORDER BY step"), strict=True))
        base.close()
        steps, *values = map(np.array, found or [()] * (len(names) + 1))
        return dict(zip(names, ((steps, column) for column in values), strict=True))


class Parquet(Tool):
    """Row groups of 1,000: a call only keeps the row in memory. Its latency means nothing, and a crash loses rows."""

    name, kind, modules = "Parquet, groups of 1,000", "floor", ("pyarrow", "pyarrow.parquet", "numpy")

    def open(self, folder, names):
        import pyarrow as pa
        import pyarrow.parquet as pq

        fields = [("step", pa.int64()), ("time", pa.float64()), *((name, pa.float64()) for name in names)]
        self.schema, self.rows, self.table = pa.schema(fields), [], pa.table
        self.file = pq.ParquetWriter(folder / "rows.parquet", self.schema, compression="zstd")

        def log(metrics, step):
            self.rows.append((step, time.time(), *metrics.values()))
            if len(self.rows) == 1000:
                self.flush()

        return log

    def flush(self):
        if self.rows:
            self.file.write_table(self.table(list(map(list, zip(*self.rows, strict=True))), schema=self.schema))
            self.rows.clear()

    def close(self):
        self.flush()
        self.file.close()

    def read(self, folder, names):
        import pyarrow.parquet as pq

        table = pq.ParquetFile(folder / "rows.parquet").read(["step", *names])
        steps = table["step"].to_numpy()
        return {name: (steps, table[name].to_numpy()) for name in names}


# rlvitals


class Rlvitals(Tool):
    name, kind, modules = "rlvitals", "rlvitals", ("rlvitals", "rlvitals.capture.start", "orjson")

    def open(self, folder, names):
        import rlvitals

        self.run = rlvitals.start(folder / "run", monitor=False)  # recording only: the monitor has its own benchmark
        return self.run.log

    def close(self):
        self.run.finish()

    def read(self, folder, names):
        import rlvitals

        view = rlvitals.open_run(folder / "run")
        return {name: view.series(name) for name in names}

    def sizes(self, folder):
        import rlvitals

        run = folder / "run"
        _ = rlvitals.open_run(run).metrics  # builds the index
        sizes = {"log": (run / "logs" / "training_metrics.jsonl").stat().st_size, "index": bytes_below(run / "index")}
        command = [sys.executable, "-m", "rlvitals.cli.main", "compact", str(run)]
        if subprocess.run(command, check=False, capture_output=True).returncode == 0:
            sizes["compact"] = bytes_below(run)
        return sizes


class RlvitalsWithoutIndex(Rlvitals):
    """Its reader without an index: the cost of the first read of a run."""

    name = "rlvitals, no index"


class Followed(Rlvitals):
    """rlvitals with trackers, timed while the follower is busy, which lasts longer than 10,000 quick calls."""

    hot_factor, is_only_timed = 5, True
    trackers: tuple[str, ...] = ()

    def open(self, folder, names):
        import rlvitals

        self.folder = folder
        self.run = rlvitals.start(
            folder / "run", track_with=self.trackers, tracker_kwargs=self.settings, tracker_wait=0, monitor=False
        )
        return self.run.log

    @property
    def settings(self):
        return {HANGING: {"mark": str(self.folder / "hangs")}} if HANGING in self.trackers else {}

    def settle(self, log, rows):
        """Log until every tracker works, and leave the follower a backlog that keeps it busy."""
        log(rows[0], 0)
        wait_for(self.are_following, "the trackers do not follow")
        for step, row in enumerate(rows, start=1):
            log(row, step)
        time.sleep(0.6)  # it polls every half second
        return len(rows) + 1

    def are_following(self):
        return all(map(self.is_following, self.trackers))

    def is_following(self, tracker):
        if tracker == HANGING:
            return (self.folder / "hangs").exists()
        cursor = self.folder / "run" / "sinks" / f"{tracker}.json"
        return cursor.exists() and '"following"' in cursor.read_text()


class ThreeTrackers(Followed):
    name, trackers = "rlvitals, 3 trackers follow", ("csv", "json", "tensorboard")
    modules = (*Rlvitals.modules, "tensorboard")


class HangingTracker(Followed):
    name, trackers = "rlvitals, a tracker hangs", (HANGING,)


class LongRun(ThreeTrackers):
    """All of them at once, for the memory."""

    name, trackers = "rlvitals, a long run", (*ThreeTrackers.trackers, HANGING)


OWN_TOOLS = (
    *(OrjsonLine(), PackedRow(), SqliteRow(), Parquet()),
    *(Rlvitals(), RlvitalsWithoutIndex(), ThreeTrackers(), HangingTracker(), LongRun()),
)


def wait_for(condition, complaint, seconds=60.0):
    deadline = time.monotonic() + seconds
    while not condition():
        if time.monotonic() > deadline:
            raise TimeoutError(complaint)
        time.sleep(0.02)


def bytes_below(folder):
    return sum(path.stat().st_size for path in folder.rglob("*") if path.is_file())
