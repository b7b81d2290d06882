"""How long a scrape of `/metrics` takes with many live runs: `python benchmarks/fleet.py --runs 200`.

This process records every run and continues it between two scrapes, so that no scrape can be answered from the previous
one. The server is `rlvitals serve` in a separate process. Prints the wall time of each scrape for the client, the
processor time that the server spent on it, and the machine's load, since a busy machine makes it wait.
"""

from __future__ import annotations

import argparse
import os
import re
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
import urllib.request
from pathlib import Path

import psutil

import rlvitals
from rlvitals.codec import encode

NAMES = (
    "loss", "reward", "reward_std", "kl", "entropy", "grad_norm", "learning_rate", "completions/mean_length",
    "completions/clipped_ratio", "clip_ratio/region_mean", "num_tokens", "frac_reward_zero_std", "step_time",
    "perf/tokens_per_s", "epoch",
)  # fmt: skip


def row(step: int) -> dict[str, float]:
    return {name: 0.5 + (step % 97) / 97 * (place + 1) for place, name in enumerate(NAMES)}


def record(folder: Path, count: int, rows: int) -> list[rlvitals.Run]:
    runs = []
    past = b"".join(encode({"step": step, "timestamp": time.time(), "attempt": 1, **row(step)}) for step in range(rows))
    for number in range(count):
        run = rlvitals.start(
            folder / f"run-{number:04d}", algorithm="grpo", framework="trl", display="none", hardware=False,
            monitor=number % 10 == 0,  # monitors on all of them would keep this process busy for minutes
        )  # fmt: skip
        with open(folder / f"run-{number:04d}" / "logs" / "training_metrics.jsonl", "ab") as log:
            log.write(past)
        runs.append(run)
    return runs


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--runs", type=int, default=200)
    parser.add_argument("--rows", type=int, default=2_000, help="rows each run has before the first scrape")
    parser.add_argument("--scrapes", type=int, default=15)
    parser.add_argument("--between", type=int, default=5, help="rows each run logs between two scrapes")
    options = parser.parse_args()
    folder = Path(tempfile.mkdtemp(prefix="fleet-"))
    try:
        runs = record(folder, options.runs, options.rows)
        command = [sys.executable, "-m", "rlvitals.cli.main", "serve", str(folder), "--port", "0"]
        with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True) as server:
            try:
                measure(server, runs, options)
            finally:
                server.terminate()
        for run in runs:
            run.finish()
    finally:
        shutil.rmtree(folder)


def measure(server: subprocess.Popen[str], runs: list[rlvitals.Run], options: argparse.Namespace) -> None:
    url = next(found[0] for line in server.stdout if (found := re.search(r"http://\S+", line))) + "metrics"
    process = psutil.Process(server.pid)
    walls, costs, text = [], [], ""
    for number in range(options.scrapes + 1):
        for step in range(options.between):
            for run in runs:
                run.log(row(step), step=options.rows + number * options.between + step)
        time.sleep(1.2)  # longer than a page is cached
        before = sum(process.cpu_times()[:2])
        began = time.perf_counter()
        with urllib.request.urlopen(url, timeout=60) as answer:
            text = answer.read().decode()
        walls.append(time.perf_counter() - began)
        costs.append(sum(process.cpu_times()[:2]) - before)
    assert text.count("rlvitals_run_step{") == len(runs), text[:500]
    rows = set(re.findall(r"rlvitals_run_rows_total\{.*\} (\d+)", text))
    assert rows == {str(options.rows + (options.scrapes + 1) * options.between)}, rows
    series = sum(not line.startswith("#") for line in text.splitlines())
    print(f"{len(runs)} live runs of {options.rows} rows and {len(NAMES)} metrics, {series} series, {len(text)} bytes")
    print(f"first scrape: {walls[0] * 1e3:.0f} ms, {costs[0] * 1e3:.0f} ms of processor time")
    walls, costs = walls[1:], costs[1:]
    print(
        f"later scrapes, {options.between} rows a run in between: median {statistics.median(walls) * 1e3:.0f} ms, "
        f"longest {max(walls) * 1e3:.0f} ms; processor time: median {statistics.median(costs) * 1e3:.0f} ms"
    )
    print(f"load average {os.getloadavg()[0]:.1f} on {os.cpu_count()} processors")


if __name__ == "__main__":
    main()
