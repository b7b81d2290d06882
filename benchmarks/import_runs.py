"""The cost of importing a long run from MLflow and from Trackio: seconds of processor time, memory, rows per second.

    python benchmarks/import_runs.py [--rows 100000] [--metrics 10] [--server]

A run with `--rows` rows is made in a database of each tracker, with its own package and, for the rows, with SQL. Then
`rlvitals import` fetches it through the tracker's client in a separate process, whose processor time and peak memory
are measured. The cost of only importing the client is measured too. Every value is compared with what was logged.
`--server` fetches from a real MLflow server as well.
"""

from __future__ import annotations

import argparse
import json
import os
import resource
import signal
import socket
import sqlite3
import subprocess
import sys
import tempfile
import time
import urllib.request
from pathlib import Path

import orjson

START_MS = 1_763_190_000_000


def value(row: int, metric: int) -> float:
    return row / 7 + metric


def measured(words: list[str], environment: dict[str, str]) -> tuple[float, float, float, str]:
    """Seconds of processor time, wall seconds, peak MiB and output of a process."""
    started = time.perf_counter()
    child = subprocess.Popen(words, env=environment, stdout=subprocess.PIPE, text=True)
    assert child.stdout is not None
    output = child.stdout.read()
    _, status, used = os.wait4(child.pid, 0)
    child.returncode = os.waitstatus_to_exitcode(status)
    assert child.returncode == 0, output
    return used.ru_utime + used.ru_stime, time.perf_counter() - started, used.ru_maxrss / 1024, output


def imported(address: str, to: Path, environment: dict[str, str], rows: int, metrics: int) -> None:
    module = address.partition(":")[0]
    base_seconds, _, base_memory, _ = measured([sys.executable, "-c", f"import {module}"], environment)
    words = [sys.executable, "-m", "rlvitals.cli.main", "import", address, "--to", str(to), "--json"]
    seconds, wall, memory, output = measured(words, environment)
    assert json.loads(output)["runs"][0]["rows"] == rows
    with open(to / "logs" / "training_metrics.jsonl", "rb") as file:
        for place, line in enumerate(file):
            row = orjson.loads(line)
            assert row["step"] == place
            assert all(row[f"metric/{n}"] == value(place, n) for n in range(metrics))
    size = (to / "logs" / "training_metrics.jsonl").stat().st_size / 2**20
    again, _, _, output = measured(words, environment)
    assert json.loads(output)["runs"][0]["result"] == "unchanged"
    shown = address.partition("://")[0]
    print(
        f"{shown}: {rows:,} rows of {metrics} metrics: {seconds:.1f} s of processor time ({wall:.1f} s), at most "
        f"{memory:.0f} MiB; importing the client: {base_seconds:.1f} s, {base_memory:.0f} MiB; log: {size:.0f} MiB; "
        f"second import: {again:.1f} s"
    )


def fill_mlflow(uri: str, database: Path, rows: int, metrics: int) -> str:
    import mlflow

    client = mlflow.MlflowClient(tracking_uri=uri)
    run = client.create_run(client.create_experiment("long"), run_name="long").info.run_id
    with sqlite3.connect(database) as connection:
        for n in range(metrics):
            connection.executemany(
                "INSERT INTO metrics (key, value, timestamp, run_uuid, step, is_nan) VALUES (?, ?, ?, ?, ?, 0)",
                ((f"metric/{n}", value(i, n), START_MS + 10 * i, run, i) for i in range(rows)),
            )
            last = (f"metric/{n}", value(rows - 1, n), START_MS + 10 * (rows - 1), rows - 1, run)
            connection.execute(
                "INSERT INTO latest_metrics (key, value, timestamp, step, is_nan, run_uuid) VALUES (?, ?, ?, ?, 0, ?)",
                last,
            )
    connection.close()
    client.set_terminated(run)
    return run


def fill_trackio(environment: dict[str, str], rows: int, metrics: int) -> None:
    script = """
import sys, datetime
from trackio.sqlite_storage import SQLiteStorage
rows, metrics, start_ms = map(int, sys.argv[1:])
for begin in range(0, rows, 10_000):
    some = range(begin, min(rows, begin + 10_000))
    SQLiteStorage.bulk_log(project="long", run="long", run_id="long", steps=list(some),
        metrics_list=[{f"metric/{n}": i / 7 + n for n in range(metrics)} for i in some],
        timestamps=[datetime.datetime.fromtimestamp(start_ms / 1000 + i / 100, datetime.UTC).isoformat() for i in some],
        log_ids=[str(i) for i in some])
"""
    subprocess.run([sys.executable, "-c", script, str(rows), str(metrics), str(START_MS)], env=environment, check=True)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rows", type=int, default=100_000)
    parser.add_argument("--metrics", type=int, default=10)
    parser.add_argument("--server", action="store_true", help="from a real MLflow server as well")
    given = parser.parse_args()
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        environment = {
            **os.environ, "HOME": name, "TRACKIO_DIR": f"{name}/trackio", "HF_HUB_OFFLINE": "1",
            "MLFLOW_DISABLE_TELEMETRY": "true", "MLFLOW_SERVER_ENABLE_JOB_EXECUTION": "false",
        }  # fmt: skip
        fill_trackio(environment, given.rows, given.metrics)
        imported("trackio:long/long", folder / "a", environment, given.rows, given.metrics)
        uri = f"sqlite:///{folder}/mlflow.db"
        run = fill_mlflow(uri, folder / "mlflow.db", given.rows, given.metrics)
        imported(f"mlflow:{uri}#{run}", folder / "b", environment, given.rows, given.metrics)
        if given.server:
            from_server(folder, uri, run, environment, given)


def from_server(folder: Path, uri: str, run: str, environment: dict[str, str], given: argparse.Namespace) -> None:
    with socket.socket() as one:
        one.bind(("127.0.0.1", 0))
        port = one.getsockname()[1]
    words = [
        sys.executable,
        "-m",
        "mlflow",
        "server",
        "--backend-store-uri",
        uri,
        "--port",
        str(port),
        "--workers",
        "1",
    ]
    server = subprocess.Popen(
        words, env=environment, cwd=folder, start_new_session=True, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL
    )
    try:
        for _ in range(240):
            try:
                with urllib.request.urlopen(f"http://127.0.0.1:{port}/health", timeout=5):
                    break
            except OSError:
                time.sleep(0.5)
        address = f"mlflow:http://127.0.0.1:{port}#{run}"
        imported(address, folder / "c", environment, given.rows, given.metrics)
    finally:
        os.killpg(server.pid, signal.SIGKILL)
        server.wait()


if __name__ == "__main__":
    main()
