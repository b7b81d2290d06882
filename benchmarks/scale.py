"""rlvitals at sizes beyond the limits of trackers: many rows, many workers, many runs. Each part runs separately:

    python benchmarks/scale.py rows --rows 10000000      # one long run, beside TensorBoard, W&B offline and MLflow
    python benchmarks/scale.py workers --workers 64      # one run from 64 workers, through files and through Ray
    python benchmarks/scale.py lake --runs 1000 --rows 100000 [--distinct 5] [--ask duckdb]

Every measurement is a separate process. Slower peers log only for `--peer-seconds`, and the number of their rows is
printed. Processor time is that of all processes of a tool. The load average is printed with each part: other processes
on the machine make the wall times longer.
"""

from __future__ import annotations

import argparse
import json
import math
import os
import random
import re
import resource
import shutil
import subprocess
import sys
import tempfile
import time
import urllib.request
from importlib import import_module
from pathlib import Path

NAMES = ["loss", "reward", "kl", "entropy"]
PEERS = ("TensorBoard, 1 event a step", "W&B offline", "MLflow SQLite, log_batch")


def row(step: int) -> dict[str, float]:
    return {"loss": 1 / (1 + step % 1000), "reward": math.sin(step / 1e4), "kl": step % 7 / 70, "entropy": 1.5}


def cost() -> float:
    """Processor seconds of this process and of its children that have ended."""
    return sum(sum(resource.getrusage(who)[:2]) for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN))


def memory() -> float:
    """The peak memory of this process or of one of its children, in MiB."""
    return max(resource.getrusage(who).ru_maxrss for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN)) / 1024


def report(what: str, **facts: float) -> None:
    print(
        f"{what}: " + ", ".join(f"{name.replace('_', ' ')} {value:,.4g}" for name, value in facts.items()), flush=True
    )


def load() -> None:
    print(f"load average {os.getloadavg()[0]:.1f} on {os.cpu_count()} processors", flush=True)


def apart(part: str, *arguments: object) -> dict[str, float]:
    """Run this file in another process; returns the JSON that it prints."""
    command = [sys.executable, __file__, part, *map(str, arguments)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode:
        raise RuntimeError(f"{part} failed: {done.stderr[-2000:]}")
    return json.loads(done.stdout.splitlines()[-1])


# One long run


def rows(options: argparse.Namespace) -> None:
    folder = Path(tempfile.mkdtemp(prefix="scale-rows-", dir=options.folder))
    try:
        load()
        report("rlvitals log", **apart("_log", "rlvitals", folder / "rlvitals", options.rows, 10**9))
        report("rlvitals first open, builds the index", **apart("_open", folder / "rlvitals" / "run"))
        report("rlvitals open with its index", **apart("_open", folder / "rlvitals" / "run"))
        page(folder / "rlvitals" / "run")
        load()
        shutil.rmtree(folder / "rlvitals")
        for peer in PEERS:
            place = folder / re.sub(r"\W+", "-", peer)
            report(f"{peer} log", **apart("_log", peer, place, options.rows, options.peer_seconds))
            report(f"{peer} read of one series", **apart("_read", peer, place))
            load()
            shutil.rmtree(place)
    finally:
        shutil.rmtree(folder)


def tool_of(name: str):
    from recording_peers import PEERS as KNOWN
    from recording_tools import OWN_TOOLS

    return next(tool for tool in (*OWN_TOOLS, *KNOWN) if tool.name == name)


def _log(name: str, folder: str, wanted: str, seconds: str) -> dict[str, float]:
    from recording_tools import bytes_below

    tool, place = tool_of(name), Path(folder)
    place.mkdir(parents=True)
    os.environ.update(tool.environment)
    load_modules(tool)
    log = tool.open(place, NAMES)
    began, spent, done = time.perf_counter(), cost(), 0
    while done < int(wanted) and time.perf_counter() - began < float(seconds):
        for step in range(done, min(done + 100, int(wanted))):
            log(row(step), step)
        done = min(done + 100, int(wanted))
    tool.close()
    wall, spent = time.perf_counter() - began, cost() - spent
    return {
        "rows": done, "wall_s": wall, "processor_s": spent, "processor_us_a_row": spent / done * 1e6,
        "memory_mib": memory(), "bytes_a_row": bytes_below(place) / done,
    }  # fmt: skip


def load_modules(tool) -> None:
    """Import the tool before the timing: a process pays for that once, not per row."""
    for module in tool.modules:
        import_module(module)


def _read(name: str, folder: str) -> dict[str, float]:
    tool = tool_of(name)
    os.environ.update(tool.environment)
    load_modules(tool)
    began, spent = time.perf_counter(), cost()
    steps, _ = tool.read(Path(folder), NAMES[:1])[NAMES[0]]
    facts = {"rows": len(steps), "wall_s": time.perf_counter() - began, "processor_s": cost() - spent}
    return facts | {"processor_us_a_row": facts["processor_s"] / max(1, len(steps)) * 1e6, "memory_mib": memory()}


def _open(run: str) -> dict[str, float]:
    import numpy  # noqa: F401

    from rlvitals.views.run import open_run

    began, spent = time.perf_counter(), cost()
    view = open_run(run)
    steps, _ = view.series("reward")
    facts = {"rows": len(steps), "wall_s": time.perf_counter() - began, "processor_s": cost() - spent}
    return facts | {"processor_us_a_row": facts["processor_s"] / len(steps) * 1e6, "memory_mib": memory()}


def page(run: Path) -> None:
    """The requests of a browser to a server that has not opened the run yet: its page, then a chart."""
    import psutil

    command = [sys.executable, "-m", "rlvitals.cli.main", "serve", str(run.parent), "--port", "0"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True) as server:
        try:
            url = next(found[0] for line in server.stdout if (found := re.search(r"http://\S+", line)))
            for address in ("metrics", f"api/run?run={run.name}", f"api/series?run={run.name}&name=reward", "metrics"):
                process = psutil.Process(server.pid)
                began, spent = time.perf_counter(), sum(process.cpu_times()[:2])
                with urllib.request.urlopen(url + address, timeout=300) as answer:
                    size = len(answer.read())
                wall, spent = time.perf_counter() - began, sum(process.cpu_times()[:2]) - spent
                held = process.memory_info().rss / 2**20
                what = f"  /{address.partition('?')[0]}"
                report(what, wall_s=wall, processor_s=spent, bytes=size, memory_mib=held)
        finally:
            server.kill()


# One run from many workers

WORKER = """
import sys, time
import rlvitals
from rlvitals import values
run = rlvitals.start(sys.argv[1], rank=int(sys.argv[2]), monitor=False, display="none", hardware=False)
print("ready", flush=True)
sys.stdin.readline()
for step in range(int(sys.argv[3])):
    run.log({"reward": values.mean([float(sys.argv[2]), 1.0]), "loss": 0.5}, step=step)
spent = time.process_time()
run.finish()
print(spent, flush=True)
"""


def workers(options: argparse.Namespace) -> None:
    import rlvitals

    folder = Path(tempfile.mkdtemp(prefix="scale-workers-", dir=options.folder))
    try:
        load()
        processes = []
        for rank in range(options.workers):
            command = [sys.executable, "-c", WORKER, str(folder / "files"), str(rank), str(options.rows)]
            processes.append(subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True))
            if rank == 0:
                processes[0].stdout.readline()
        for one in processes[1:]:
            one.stdout.readline()
        began = time.perf_counter()
        for one in processes[1:] + processes[:1]:
            one.stdin.write("\n")
            one.stdin.flush()
        spent = [float(one.communicate()[0]) for one in processes]
        wall = time.perf_counter() - began
        check(rlvitals.open_run(folder / "files"), options)
        report(
            f"{options.workers} processes, a file each", rows=options.workers * options.rows, wall_s=wall,
            rows_a_second=options.workers * options.rows / wall, processor_s_a_worker=sum(spent) / len(spent),
        )  # fmt: skip
        load()
        through_ray(folder, options)
        load()
    finally:
        shutil.rmtree(folder)


def check(view, options) -> None:
    """Every row of every worker is there, and the merged mean is that of all of them."""
    assert len(view.ranks) == options.workers, view.ranks
    total = sum(len(columns.steps) for columns, _ in view.columns("train"))
    assert total == options.workers * options.rows, total
    steps, merged = view.series("reward")
    expected = ((options.workers - 1) / 2 + 1) / 2
    assert len(steps) == options.rows
    assert abs(float(merged[0]) - expected) < 1e-9, (merged[0], expected)


def through_ray(folder: Path, options: argparse.Namespace) -> None:
    """`--processes` Ray processes, which act as the workers in turn."""
    import ray

    import rlvitals
    from rlvitals.adapters import ray as vitals

    os.environ.setdefault("RAY_AUTH_MODE", "disabled")
    ray.init(include_dashboard=False, log_to_driver=False, num_cpus=options.processes)
    run = vitals.serve(folder / "ray", monitor=False, hardware=False, display="none")
    per_process = options.workers // options.processes

    @ray.remote(num_cpus=0)
    class Workers:
        def __init__(self, first):
            self.runs = {rank: vitals.connect(rank=rank) for rank in range(first, first + per_process)}

        def ready(self):
            return len(self.runs)

        def work(self, rows):
            from rlvitals import values

            for step in range(rows):
                for rank, one in self.runs.items():
                    one.log({"reward": values.mean([float(rank), 1.0]), "loss": 0.5}, step=step)
                if step % 50 == 49:
                    for one in self.runs.values():
                        one.flush()
            for one in self.runs.values():
                one.flush()
            return sum(one.dropped for one in self.runs.values())

    actors = [Workers.remote(number * per_process) for number in range(options.processes)]
    assert sum(ray.get([actor.ready.remote() for actor in actors])) == options.workers
    began = time.perf_counter()
    dropped = sum(ray.get([actor.work.remote(options.rows) for actor in actors]))
    wall = time.perf_counter() - began
    run.finish()
    ray.shutdown()
    assert dropped == 0, dropped
    check(rlvitals.open_run(folder / "ray"), options)
    total = options.workers * options.rows
    what = f"{options.workers} workers in {options.processes} Ray processes, one actor"
    report(what, rows=total, wall_s=wall, rows_a_second=total / wall)


# Many runs


def lake(options: argparse.Namespace) -> None:
    from rlvitals.views.dataset import export_runs

    sys.path.insert(0, str(Path(__file__).parent.parent / "examples"))
    import query_runs

    query_runs.STEPS = options.rows
    folder = Path(tempfile.mkdtemp(prefix="scale-lake-", dir=options.folder))
    recorded = exported = 0.0
    total = size = 0
    try:
        load()
        distinct = options.distinct or options.runs
        for first in range(0, distinct, options.batch):  # not all logs need to exist at once
            began = time.perf_counter()
            for number in range(first, min(first + options.batch, distinct)):
                record(folder / "runs", number, options.rows, query_runs.LEARNING_RATES)
            between = time.perf_counter()
            export = export_runs(folder / "runs", folder / "lake")
            recorded, exported = recorded + between - began, exported + time.perf_counter() - between
            total, size = total + export.rows, size + export.bytes
            shutil.rmtree(folder / "runs")
        assert total == distinct * options.rows, total
        report("recorded", runs=distinct, rows=total, wall_s=recorded)
        report("exported", wall_s=exported, megabytes=size / 1e6)
        if distinct < options.runs:
            copied = copies(folder / "lake", options.runs)
            report("copied to runs of their own", runs=options.runs, megabytes=copied / 1e6)
        questions = {"duckdb": query_runs.ask_duckdb, "ray": query_runs.ask_ray_data}
        for what, ask in questions.items():
            if options.ask not in (what, "both"):
                continue
            began, spent = time.perf_counter(), cost()
            answer = ask(folder / "lake")
            wall = time.perf_counter() - began
            report(
                what, wall_s=wall, processor_s=cost() - spent, memory_mib=memory()
            )  # Ray's own processes do not count
            assert f"{answer[0][0]:.0e}" == "1e-06", answer
        load()
    finally:
        shutil.rmtree(folder)


def copies(lake: Path, runs: int) -> int:
    """Fill a lake up to `runs` runs with copies of its runs, each with its own id; returns its size in bytes."""
    known = sorted(lake.glob("run=*"))
    for number in range(len(known), runs):
        shutil.copytree(known[number % len(known)], lake / f"run=copy-{number:04d}")
    return sum(part.stat().st_size for part in lake.glob("run=*/*.parquet"))


def record(folder: Path, number: int, count: int, rates: tuple[float, ...]) -> None:
    import rlvitals

    chance = random.Random(number)
    rate = rates[number % len(rates)]
    plateau = 0.9 - 0.3 * abs(math.log10(rate / 1e-6))
    config = {"learning_rate": rate, "seed": number}
    with rlvitals.start(
        folder / f"run-{number:04d}", algorithm="grpo", config=config, monitor=False, display="none", hardware=False
    ) as run:
        log, noise = run.log, [chance.gauss(0, 0.05) for _ in range(1000)]
        for step in range(count):
            log({"reward": plateau + noise[step % 1000], "kl": 1e-6 * step}, step=step)


def main() -> None:
    if len(sys.argv) > 1 and sys.argv[1] in ("_log", "_read", "_open"):
        print(json.dumps(globals()[sys.argv[1]](*sys.argv[2:])))
        return
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parts = parser.add_subparsers(required=True)
    for part, defaults in (
        (rows, {"rows": 10_000_000, "peer_seconds": 60}),
        (workers, {"workers": 64, "rows": 500, "processes": 8}),
        (lake, {"runs": 1000, "rows": 100_000, "batch": 50, "distinct": 0}),
    ):
        own = parts.add_parser(part.__name__)
        own.set_defaults(part=part)
        own.add_argument("--folder", help="where to write; the system's temporary folder by default")
        for name, value in defaults.items():
            own.add_argument(f"--{name.replace('_', '-')}", type=int, default=value)
        if part is lake:
            own.add_argument("--ask", choices=("duckdb", "ray", "both"), default="both")
    options = parser.parse_args()
    options.part(options)


if __name__ == "__main__":
    main()
