"""The cost of reading a large run: `report`, `check`, `show` and the dashboard's first page, in seconds of CPU time.

    python benchmarks/report.py [--rows 50000] [--names 20000] [--rounds 3]

There are two runs: one of `--rows` rows with 40 metrics as TRL's GRPO trainer and verl log them, and one of 20 rows
with `--names` metric names, most of which match only a pattern of the catalogue or nothing. Each command is a separate
process, measured from its start to its end, with an existing index. The lowest round counts, because the machine may
be busy.
"""

from __future__ import annotations

import argparse
import os
import random
import resource
import signal
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path
from urllib.request import ProxyHandler, build_opener

import doctor_cost
import rlvitals

RLVITALS = (sys.executable, "-m", "rlvitals.cli.main")
METRICS, FEW_ROWS = 40, 20
FETCHER = build_opener(ProxyHandler({}))


def long_run(count: int) -> Iterator[dict[str, float]]:
    kept = ["step", *list(doctor_cost.SERIES)[:METRICS]]
    for row in doctor_cost.rows(count):
        yield {name: row[name] for name in kept}


def wide_run(count: int) -> Iterator[dict[str, float]]:
    noise = random.Random(0)
    known = doctor_cost.TRL_GRPO
    forms = ("train/layer_{}/grad_norm", "rewards/task_{}/mean", "custom/{}/thing")
    others = [forms[number % 3].format(number) for number in range(count - len(known))]
    for step in range(1, FEW_ROWS + 1):
        row: dict[str, float] = {"step": step}
        row |= {name: level + spread * noise.gauss(0.0, 1.0) for name, (level, spread) in known.items()}
        yield row | {name: noise.random() for name in others}


def record(path: Path, rows: Iterator[dict[str, float]]) -> Path:
    with rlvitals.start(path, display="none", monitor=False, hardware=False) as run:
        for row in rows:
            run.log({name: value for name, value in row.items() if name != "step"}, step=int(row["step"]))
    return path


def processor_time(work: Callable[[], None]) -> float:
    """The CPU seconds of the processes that some work starts and ends."""
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    work()
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    return after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime


def verb(*words: str) -> Callable[[], None]:
    def work() -> None:
        done = subprocess.run([*RLVITALS, *words], stdout=subprocess.DEVNULL, check=False)
        if done.returncode not in (0, 1, 2):  # the verdicts of `check`
            raise SystemExit(f"rlvitals {' '.join(words)} ended with {done.returncode}")

    return work


def first_page(folder: Path, name: str) -> Callable[[], None]:
    """The dashboard from its start until it has answered the first requests of a run's page."""

    def work() -> None:
        command = [*RLVITALS, "serve", str(folder), "--port", "0"]
        with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as server:
            assert server.stdout is not None
            address = server.stdout.readline().split()[-1]
            for place in ("", "api/runs", f"api/run?run={name}"):
                FETCHER.open(address + place, timeout=120).read()
            server.send_signal(signal.SIGINT)

    return work


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rows", type=int, default=50_000)
    parser.add_argument("--names", type=int, default=20_000)
    parser.add_argument("--rounds", type=int, default=3)
    asked = parser.parse_args()
    print(f"CPU seconds, the least of {asked.rounds}; load average before: {os.getloadavg()[0]:.1f}\n")
    print(f"{'run':<34}{'report':>9}{'markdown':>10}{'check':>8}{'show':>8}{'serve':>8}")
    with tempfile.TemporaryDirectory() as scratch:
        for kind, rows, label in (
            ("rows", long_run(asked.rows), f"{asked.rows:,} rows, {METRICS} metrics"),
            ("names", wide_run(asked.names), f"{FEW_ROWS} rows, {asked.names:,} metrics"),
        ):
            measure(record(Path(scratch) / kind / "run", rows), label, asked.rounds)
    return 0


def measure(run: Path, label: str, rounds: int) -> None:
    page = str(run.parent / "page")
    works = (
        verb("report", str(run), "--output", f"{page}.html"),
        verb("report", str(run), "--output", f"{page}.md"),
        verb("check", str(run), "--json"),
        verb("show", str(run), "--json"),
        first_page(run.parent, run.name),
    )
    verb("show", str(run))()  # writes the index
    spent = [min(processor_time(work) for _ in range(rounds)) for work in works]
    print(f"{label:<34}{spent[0]:>9.1f}{spent[1]:>10.1f}{spent[2]:>8.1f}{spent[3]:>8.1f}{spent[4]:>8.1f}")


if __name__ == "__main__":
    sys.exit(main())
