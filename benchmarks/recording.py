"""The cost of recording: rlvitals, its peers and raw writes compared on the same data, 60 metrics per step.

    python benchmarks/recording.py [--quick] [--only NAME,NAME] [--parts log,kill,start,read] [--memory] [--json FILE]

Every measurement is a new process, one at a time. Rounds go through all tools in turn, so that a busy minute of the
machine affects all alike, and each figure is the median of the rounds. Peers are offline, with system metrics off. A
peer that is too slow for all the steps is stopped in time, and the table shows how many it logged. Targets are the
project's own, as ratios within one run; --quick is too short to check them. Needs Linux (memory and helper processes
are read from /proc). Everything takes about a quarter of an hour.
"""

from __future__ import annotations

import argparse
import contextlib
import itertools
import json
import os
import platform
import shutil
import signal
import statistics
import subprocess
import sys
import tempfile
import time
from importlib import metadata, util
from pathlib import Path

import recording_report
from hanging_sink import register
from recording_tools import HANGING, LongRun, RlvitalsWithoutIndex
from recording_worker import MARK, TOOLS, marked_processes

PARTS = ("log", "kill", "start", "read")
FULL = {
    "log": {"steps": 10_000, "paced_calls": 250, "cap_s": 10},
    "kill": {"steps": 1000, "cap_s": 15, "helper_s": 4},
    "start": {"processes": 11},
    "read": {"one": (1, 100_000), "many": (50, 10_000), "cap_s": 60},
    "memory": {"steps": 200_000, "seconds": 150},
}
QUICK = {
    "log": {"steps": 400, "paced_calls": 10, "cap_s": 0.3},
    "kill": {"steps": 100, "cap_s": 0.3, "helper_s": 1},
    "start": {"processes": 3},
    "read": {"one": (1, 2000), "many": (50, 200), "cap_s": 3},
    "memory": {"steps": 20_000, "seconds": 15},
}
LONGEST_SECONDS = 400

BARE = """
import os, sys, time
def resident():
    with open("/proc/self/statm") as file:
        return int(file.read().split()[1]) * os.sysconf("SC_PAGE_SIZE") / 2**20
row = {f"metric_{number}": number / 7 for number in range(60)}
memory, begun = resident(), time.perf_counter()
import rlvitals
start = rlvitals.start
imported = time.perf_counter()
run = start(sys.argv[1], monitor=False)
started = time.perf_counter()
for step in range(100):
    run.log(row, step)
added, logged = resident() - memory, time.perf_counter()
run.finish()
print(imported - begun, started - imported, time.perf_counter() - logged, added)
"""


class Failed(Exception):
    """A measurement that did not finish; the message gives the reason."""


class Bench:
    """Starts each measurement in a separate process, and ends the processes it leaves behind."""

    def __init__(self, work):
        self.work = work
        self.numbers = itertools.count(1)
        self.plugin_path = register(work / "plugin", HANGING)

    def folder(self):
        folder = self.work / f"run-{next(self.numbers)}"
        folder.mkdir()
        return folder

    def measure(self, tool, action, folder, *, settle=0.0, may_die=False, **task):
        """Run one measurement; returns the result that it wrote."""
        number = next(self.numbers)
        result, output = self.work / f"{number}.json", self.work / f"{number}.out"
        task |= {"tool": tool.name, "action": action, "folder": str(folder), "result": str(result)}
        mark = f"{os.getpid()}-{number}"
        environment = os.environ | dict(tool.environment) | {MARK: mark, "PYTHONWARNINGS": "ignore"}
        environment |= {"HOME": str(self.work), "TRACKIO_DIR": str(folder), "PYTHONPATH": self.plugin_path}
        command = [sys.executable, str(Path(__file__).with_name("recording_worker.py")), json.dumps(task)]
        with open(output, "wb") as sink:
            worker = subprocess.Popen(command, env=environment, cwd=self.work, stdout=sink, stderr=sink)
            try:
                worker.wait(LONGEST_SECONDS)
                time.sleep(settle)
            except subprocess.TimeoutExpired:
                raise Failed(f"took longer than {LONGEST_SECONDS} s") from None
            finally:
                for pid in marked_processes(mark):
                    with contextlib.suppress(ProcessLookupError):
                        os.kill(pid, signal.SIGKILL)
                worker.wait()
        if worker.returncode not in ((-signal.SIGKILL,) if may_die else (0,)) or not result.exists():
            if worker.returncode == -signal.SIGKILL:
                raise Failed("stopped: too slow")
            last = output.read_text(errors="replace").strip().splitlines()[-1:]
            raise Failed(f"failed: {''.join(last)[:120]}")
        return json.loads(result.read_text())


# The parts


def measure_logging(bench, tool, settings):
    folder = bench.folder()
    try:
        return bench.measure(tool, "log", folder, **settings)
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def measure_kill(bench, tool, settings):
    """Rows that can be read after the trainer was killed; if a helper writes, also after both were killed."""
    found = {}
    for whole_tree in (False, True) if tool.has_helper else (False,):
        folder = bench.folder()
        settle = settings["helper_s"] if tool.has_helper and not whole_tree else 0  # it may outlive its trainer
        died = bench.measure(tool, "kill", folder, settle=settle, may_die=True, whole_tree=whole_tree, **settings)
        kept = bench.measure(tool, "count", folder)
        found["tree" if whole_tree else "trainer"] = {**died, **kept}
        shutil.rmtree(folder, ignore_errors=True)
    return found


def measure_reading(bench, tool, settings, repeats):
    found = {}
    for key in ("one", "many"):
        series, steps = settings[key]
        task, folder = {"series": series, "steps": steps}, bench.folder()
        try:
            bench.measure(tool, "fill", folder, cap_s=settings["cap_s"], **task)
            if tool.name == recording_report.OURS:
                bench.measure(tool, "read", folder, **task)  # builds the index
            results = [bench.measure(tool, "read", folder, **task) for _ in range(repeats)]
            wrong = [result["wrong"] for result in results if "wrong" in result]
            found[key] = {"note": f"wrong: {wrong[0]}"} if wrong else median_of(results)
        except Failed as failure:
            found[key] = {"note": str(failure)}
        shutil.rmtree(folder, ignore_errors=True)
    return found


def measure_bare(bench, settings):
    """rlvitals in a Python that has loaded nothing else: seconds and MiB above those of the bare one."""
    figures = []
    for _ in range(settings["processes"]):
        command = [sys.executable, "-c", BARE, str(bench.folder() / "run")]
        done = subprocess.run(command, check=True, capture_output=True, text=True, cwd=bench.work)
        figures.append(map(float, done.stdout.split()))
    medians = map(statistics.median, zip(*figures, strict=True))
    return dict(zip(("import_s", "start_s", "finish_s", "added_mib"), medians, strict=True))


def median_of(results):
    """The median of every number in results of the same structure."""
    first = results[0]
    if isinstance(first, dict):
        shared = [key for key in first if all(key in result for result in results)]
        return {key: median_of([result[key] for result in results]) for key in shared}
    return statistics.median(results)


def run_all(bench, options, settings):
    tools = {name: tool for name, tool in TOOLS.items() if is_chosen(tool, options.only)}
    figures = {"missing": {name: lacking for name, tool in tools.items() if (lacking := missing_packages(tool))}}
    tools = [tool for name, tool in tools.items() if name not in figures["missing"]]
    writers = [tool for tool in tools if not isinstance(tool, RlvitalsWithoutIndex)]
    readers = [tool for tool in tools if tool.is_readable and not tool.is_only_timed]
    if "log" in options.parts:
        figures["log"] = collect(bench, writers, measure_logging, settings["log"], options.rounds)
    if "kill" in options.parts:
        chosen = [tool for tool in writers if not tool.is_only_timed]
        figures["kill"] = collect(bench, chosen, measure_kill, settings["kill"], 1)
    if "start" in options.parts:
        say("rlvitals: start, finish and memory in a bare Python")
        figures["start"] = measure_bare(bench, settings["start"])
    if "read" in options.parts:
        figures["read"] = {}
        for tool in readers:
            say(f"{tool.name}: reading")
            figures["read"][tool.name] = measure_reading(bench, tool, settings["read"], options.rounds)
    if options.memory:
        say(f"memory over {settings['memory']['steps']:,} rows, {settings['memory']['seconds']} s")
        figures["memory"] = bench.measure(LongRun(), "memory", bench.folder(), **settings["memory"])
    return figures


def collect(bench, tools, measure, settings, rounds):
    """Rounds through all tools; a tool that fails once is not tried again."""
    results = {tool.name: [] for tool in tools}
    for number, tool in itertools.product(range(rounds), tools):
        if any("note" in result for result in results[tool.name]):
            continue
        say(f"{tool.name}: {measure.__name__.removeprefix('measure_')}" + f", round {number + 1}" * (rounds > 1))
        try:
            results[tool.name].append(measure(bench, tool, settings))
        except Failed as failure:
            results[tool.name] = [{"note": str(failure)}]
    return {
        name: found[0] if len(found) == 1 or "note" in found[0] else median_of(found) for name, found in results.items()
    }


def is_chosen(tool, only):
    if isinstance(tool, LongRun):
        return False
    if not only or tool.name in (recording_report.FLOOR, recording_report.OURS):  # the base of the ratios
        return True
    return any(word.lower() in text.lower() for word in only for text in (tool.name, tool.modules[0]))


def missing_packages(tool):
    tops = dict.fromkeys(module.partition(".")[0] for module in tool.modules)
    return [top for top in tops if util.find_spec(top) is None]


def machine():
    model = next(
        (
            line.partition(":")[2].strip()
            for line in Path("/proc/cpuinfo").read_text().splitlines()
            if line.startswith("model name")
        ),
        "",
    )
    packages = ("rlvitals", "orjson", "tensorboard", "wandb", "swanlab", "trackio", "mlflow", "aim", "pyarrow")
    installed = {dist.name: dist.version for dist in metadata.distributions()}
    facts = {"processor": model, "cores": os.cpu_count(), "system": f"{platform.system()} {platform.release()}"}
    facts |= {"python": platform.python_version(), "load": round(os.getloadavg()[0], 2)}
    return facts | {package: installed[package] for package in packages if package in installed}


def say(sentence):
    print(f"[{time.strftime('%H:%M:%S')}] {sentence}", file=sys.stderr, flush=True)


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--quick", action="store_true", help="small numbers, about a minute: to see that it works")
    parser.add_argument("--only", default="", help="tools whose name contains one of these, comma-separated")
    parser.add_argument("--parts", default=",".join(PARTS), help=f"of {', '.join(PARTS)}; default all")
    parser.add_argument("--rounds", type=int, help="measurements for each figure; default 3, quick 1")
    parser.add_argument("--steps", type=int, help="steps of the one long series that is read; default 100,000")
    parser.add_argument("--memory", action="store_true", help="also memory over 200,000 rows (three minutes)")
    parser.add_argument("--json", type=Path, help="write the figures here")
    options = parser.parse_args()
    options.only = [word for word in options.only.split(",") if word]
    options.parts = [part for part in options.parts.split(",") if part]
    if unknown := {*options.parts} - {*PARTS}:
        parser.error(f"no part {', '.join(sorted(unknown))}; parts: {', '.join(PARTS)}")
    options.rounds = options.rounds or (1 if options.quick else 3)
    settings = QUICK if options.quick else FULL
    if options.steps:
        settings["read"]["one"] = (1, options.steps)
    facts = machine()
    say(", ".join(f"{key} {value}" for key, value in facts.items()))
    with tempfile.TemporaryDirectory(prefix="rlvitals-bench-", ignore_cleanup_errors=True) as work:
        figures = run_all(Bench(Path(work)), options, settings)
    if options.json:
        options.json.write_text(json.dumps({"machine": facts, "settings": settings, **figures}, indent=2) + "\n")
    recording_report.show(figures, settings, {name: tool.kind for name, tool in TOOLS.items()})


if __name__ == "__main__":
    main()
