"""The time until a dashboard shows data, compared with TensorBoard, Trackio and MLflow on the same data.

The data: 200 runs, one of them with 100,000 steps of 10 metrics (1,000,000 points), the others with 100 steps each.
Measured for each tool: the time from the start of the server's process to its first useful page (the page itself, the
list of all runs, and the first curve of the long run), the time of one more series of that run with a warm server, and
the memory of the server with its children. Values are fetched as each tool's own page fetches them, without the time a
browser needs to draw. rlvitals is started twice: without an index, and with the index that the first start wrote.

Every server is started on a free local port. The files are in the page cache, because they were just written. The
extremes of the series are checked against the data: a curve that hides its spike does not count as shown.

python benchmarks/dashboard.py [--rounds 3] [--steps 100000]
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import signal
import socket
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from urllib.error import URLError
from urllib.request import ProxyHandler, Request, build_opener

import numpy as np

from rlvitals.records import HealthEvent
from rlvitals.store.findings import event_line

NAMES = [
    "loss", "reward", "reward_std", "kl", "entropy", "grad_norm", "learning_rate", "completions/mean_length",
    "frac_reward_zero_std", "clip_ratio/region_mean",
]  # fmt: skip
OTHERS = 199
LATEST = 120.0
SPIKE = 1234.5

fetcher = build_opener(ProxyHandler({}))


def data(steps):
    """Name of a run -> its table, one row per step."""
    random = np.random.default_rng(0)
    tables = {"long": random.normal(size=(steps, len(NAMES)))}
    tables["long"][steps * 2 // 3, 1] = SPIKE
    return tables | {f"run-{number:03d}": random.normal(size=(100, len(NAMES))) for number in range(OTHERS)}


class Tool:
    def fetch(self, path, question=None):
        request = Request(f"http://127.0.0.1:{self.port}{path}")
        if question is not None:
            request = Request(request.full_url, json.dumps(question).encode(), {"content-type": "application/json"})
        return fetcher.open(request, timeout=60).read()

    def start(self, folder):
        with socket.create_server(("127.0.0.1", 0)) as free:
            self.port = free.getsockname()[1]
        command, environment = self.command(folder)
        return subprocess.Popen(
            command, env=os.environ | environment, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL,
            start_new_session=True,
        )  # fmt: skip


class Rlvitals(Tool):
    """Runs recorded by `rlvitals.start` with a monitor that found nothing."""

    name = "rlvitals"
    was_watched = True

    def write(self, folder, tables):
        for run, table in tables.items():
            logs = folder / run / "logs"
            logs.mkdir(parents=True)
            with (logs / "training_metrics.jsonl").open("w") as log:
                for step, row in enumerate(table.tolist(), 1):
                    head = {"step": step, "timestamp": 1.79e9 + step, "attempt": 1}
                    log.write(json.dumps(head | dict(zip(NAMES, row, strict=True))) + "\n")
            card = {"schema": 1, "id": run, "name": run, "status": "finished", "created": 1.79e9, "updated": 1.79e9}
            (folder / run / "run.json").write_text(json.dumps(card | {"algorithm": "grpo"}))
            (folder / run / "config.json").write_text('{"rlvitals": {"monitor": true}}')
            if self.was_watched:
                (logs / "findings.jsonl").write_bytes(
                    event_line(HealthEvent("monitor", 1, 1.79e9, facts={"is_on": True}))
                )

    def command(self, folder):
        return [sys.executable, "-m", "rlvitals.cli.main", "serve", str(folder), "--port", str(self.port)], {}

    def first_page(self):
        self.fetch("/")
        runs = json.loads(self.fetch("/api/runs"))["runs"]
        vitals = json.loads(self.fetch("/api/run?run=long"))
        return len(runs) == OTHERS + 1 and vitals["rows"] > 0 and self.series("loss") is not None

    def series(self, name):
        line = json.loads(self.fetch(f"/api/series?run=long&name={name}"))["lines"][0]
        return max(line["high"])


class WithoutIndex(Rlvitals):
    name = "rlvitals, no index yet"

    def start(self, folder):
        for index in folder.glob("*/index"):
            shutil.rmtree(index)
        return super().start(folder)


class Unwatched(Rlvitals):
    """Runs recorded without a monitor: the server judges the long one while its page is open."""

    name = "rlvitals, not watched"
    was_watched = False


class TensorBoard(Tool):
    name = "TensorBoard"

    def write(self, folder, tables):
        from tensorboard.compat.proto.event_pb2 import Event
        from tensorboard.compat.proto.summary_pb2 import Summary
        from tensorboard.summary.writer.event_file_writer import EventFileWriter

        for run, table in tables.items():
            writer = EventFileWriter(str(folder / run), max_queue_size=10_000, flush_secs=600)
            for step, row in enumerate(table.tolist(), 1):
                values = [Summary.Value(tag=name, simple_value=value) for name, value in zip(NAMES, row, strict=True)]
                writer.add_event(Event(wall_time=1.79e9 + step, step=step, summary=Summary(value=values)))
            writer.close()

    def command(self, folder):
        words = ["--logdir", str(folder), "--port", str(self.port), "--host", "127.0.0.1"]
        return [sys.executable, "-m", "tensorboard.main", *words], {}

    def first_page(self):
        self.fetch("/")
        tags = json.loads(self.fetch("/data/plugin/scalars/tags"))
        return len(tags) == OTHERS + 1 and len(tags.get("long", ())) == len(NAMES) and self.series("loss") is not None

    def series(self, name):
        points = json.loads(self.fetch(f"/data/plugin/scalars/scalars?run=long&tag={name}"))
        return max(value for _, _, value in points)


class Trackio(Tool):
    name = "Trackio"

    def write(self, folder, tables):
        code = (
            "import sys, numpy as np\nfrom trackio.sqlite_storage import SQLiteStorage\n"
            f"names = {NAMES!r}\ntables = np.load(sys.argv[1])\n"
            "for run in tables.files:\n"
            "    rows = [dict(zip(names, row)) for row in tables[run].tolist()]\n"
            "    SQLiteStorage.bulk_log('bench', run, rows, steps=list(range(1, len(rows) + 1)))\n"
        )
        folder.mkdir(parents=True)
        tables_file = folder.with_suffix(".npz")
        np.savez(tables_file, **tables)
        subprocess.run([sys.executable, "-c", code, tables_file], env=os.environ | self.environment(folder), check=True)

    def environment(self, folder):
        return {"TRACKIO_DIR": str(folder), "HF_HUB_OFFLINE": "1", "TRACKIO_DISABLE_TELEMETRY": "1"}

    def command(self, folder):
        shown = f"trackio.show(open_browser=False, block_thread=True, host='127.0.0.1', server_port={self.port})"
        return [sys.executable, "-c", f"import trackio; {shown}"], self.environment(folder)

    def first_page(self):
        self.fetch("/")
        runs = json.loads(self.fetch("/api/get_runs_for_project", {"project": "bench"}))
        runs = runs.get("data", runs) if isinstance(runs, dict) else runs
        return len(runs) == OTHERS + 1 and self.series("loss") is not None

    def series(self, name):
        """Its page fetches all logs of a run at once, at most 3,000 rows."""
        rows = json.loads(self.fetch("/api/get_logs", {"project": "bench", "run": "long", "scalar_only": True}))
        rows = rows.get("data", rows) if isinstance(rows, dict) else rows
        return max(row[name] for row in rows)


class MLflow(Tool):
    name = "MLflow"

    def write(self, folder, tables):
        from mlflow import MlflowClient
        from mlflow.entities import Metric

        folder.mkdir(parents=True)
        client = MlflowClient(f"sqlite:///{folder}/mlflow.db")
        for run, table in tables.items():
            made = client.create_run("0", run_name=run)
            points = [
                Metric(name, value, 1_790_000_000_000 + step, step)
                for step, row in enumerate(table.tolist(), 1)
                for name, value in zip(NAMES, row, strict=True)
            ]
            for place in range(0, len(points), 1000):
                client.log_batch(made.info.run_id, points[place : place + 1000])
            client.set_terminated(made.info.run_id)
            if run == "long":
                (folder / "long").write_text(made.info.run_id)

    def start(self, folder):
        self.long = (folder / "long").read_text()
        return super().start(folder)

    def command(self, folder):
        words = ["--backend-store-uri", f"sqlite:///{folder}/mlflow.db", "--workers", "1"]
        words += ["--port", str(self.port), "--host", "127.0.0.1"]
        return [sys.executable, "-m", "mlflow", "server", *words], {"MLFLOW_DISABLE_TELEMETRY": "true"}

    def first_page(self):
        self.fetch("/")
        question = {"experiment_ids": ["0"], "max_results": 1000}
        runs = json.loads(self.fetch("/ajax-api/2.0/mlflow/runs/search", question))["runs"]
        return len(runs) == OTHERS + 1 and self.series("loss") is not None

    def series(self, name):
        """Its page requests at most 320 points for a chart."""
        asked = f"run_ids={self.long}&metric_key={name}&max_results=320"
        points = json.loads(self.fetch(f"/ajax-api/2.0/mlflow/metrics/get-history-bulk-interval?{asked}"))["metrics"]
        return max(point["value"] for point in points)


def memory(process):
    """Memory in MiB of a process and all its descendants."""
    total, waiting = 0, [process.pid]
    while waiting:
        pid = waiting.pop()
        try:
            status = Path(f"/proc/{pid}/status").read_text()
            waiting += map(int, Path(f"/proc/{pid}/task/{pid}/children").read_text().split())
        except OSError:
            continue
        total += int(next(line for line in status.splitlines() if line.startswith("VmRSS")).split()[1])
    return total / 1024


def measure(tool, folder):
    """Seconds to the first useful page, seconds of one more series, MiB, and whether the spike was in it."""
    began = time.perf_counter()
    process = tool.start(folder)
    try:
        while True:
            try:
                if tool.first_page():
                    break
            except (URLError, OSError, ValueError, KeyError, IndexError):
                pass
            if time.perf_counter() - began > LATEST or process.poll() is not None:
                return None
            time.sleep(0.02)
        first = time.perf_counter() - began
        clicked = time.perf_counter()
        highest = tool.series("reward")
        series = time.perf_counter() - clicked
        return first, series, memory(process), abs(highest - SPIKE) < 0.01
    finally:
        os.killpg(process.pid, signal.SIGTERM)
        try:
            process.wait(10)
        except subprocess.TimeoutExpired:
            os.killpg(process.pid, signal.SIGKILL)
            process.wait()


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--steps", type=int, default=100_000)
    arguments = parser.parse_args()
    tables = data(arguments.steps)
    with tempfile.TemporaryDirectory() as made:
        tools = [(WithoutIndex(), Path(made) / "rlvitals"), (Rlvitals(), Path(made) / "rlvitals")]
        tools += [(tool, Path(made) / tool.name) for tool in (Unwatched(), TensorBoard(), Trackio(), MLflow())]
        for tool, folder in tools:
            if not folder.exists():
                began = time.perf_counter()
                tool.write(folder, tables)
                print(f"{tool.name}: written in {time.perf_counter() - began:.1f} s", flush=True)
        found = {tool.name: [] for tool, _ in tools}
        for _ in range(arguments.rounds):  # in turn, so that a busy moment does not affect only one tool
            for tool, folder in tools:
                found[tool.name].append(measure(tool, folder))
    print(
        f"\n{os.cpu_count()} cores, load {os.getloadavg()[0]:.1f}; {arguments.steps * len(NAMES):,} points in one run"
    )
    print(f"{'':24} {'first page':>12} {'one series':>12} {'memory':>10}  spike")
    for name, rounds in found.items():
        good = [each for each in rounds if each is not None]
        if not good:
            print(f"{name:24} not within {LATEST:.0f} s")
            continue
        first, series, used, _ = (statistics.median(column) for column in zip(*good, strict=True))
        shown = "shown" if all(each[3] for each in good) else "hidden"
        print(f"{name:24} {first:10.2f} s {series * 1000:9.0f} ms {used:6.0f} MiB  {shown}")


if __name__ == "__main__":
    main()
