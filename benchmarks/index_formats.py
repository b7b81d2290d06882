"""Candidate forms of a run's derived column index, compared: the cost to build, store, read and refresh each.

    python benchmarks/index_formats.py [--steps 100000] [--repeats 5] [--only NAME ...] [--json FILE]

The data is a run recorded with rlvitals: 60 metrics per step. Each measurement is a new process, each figure the
median. Every series that is read is compared, bit for bit, with the log as the standard library parses it; a difference
ends the benchmark. Files come from the page cache. The reader of rlvitals does more than the others (it sorts by step
and leaves out rows that a resume abandoned). The forms themselves are in `index_candidates.py`.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
from importlib import metadata, util
from pathlib import Path

from index_candidates import FORMATS, load

SMALL_STEPS, SMALL_SERIES, AWKWARD_STEPS = 10_000, 50, 30_000
APPENDS = (100, 1000)  # the second because rlvitals writes nothing for fewer than 256 new rows


# One measurement, in a separate process


def child(task):
    """Import what the form needs, carry out one or two actions, and print the cost of each."""
    form, log, place = FORMATS[task["format"]], Path(task["log"]), Path(task["place"])
    memory, started = resident_mib(), time.perf_counter()
    load(form)
    result = {"import_s": time.perf_counter() - started, "import_mib": resident_mib() - memory}
    for action in task["actions"]:
        written, started = bytes_written(), time.perf_counter()
        outcome = form.read(log, place, task["names"]) if action == "read" else getattr(form, action)(log, place)
        result[f"{action}_s"] = time.perf_counter() - started
        result[f"{action}_written"] = bytes_written() - written - (outcome if isinstance(outcome, int) else 0)
    if "read" in task["actions"]:
        from recorded import digest

        series = {name: (steps.astype("<i8"), values.astype("<f8")) for name, (steps, values) in outcome.items()}
        result["digests"] = {name: digest(x.tobytes(), y.tobytes()) for name, (x, y) in series.items()}
    print(json.dumps(result))


def resident_mib():
    """Memory of this process. Linux only; elsewhere the column shows 0."""
    statm = Path("/proc/self/statm")
    return int(statm.read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE") / 2**20 if statm.exists() else 0


def bytes_written():
    """Bytes that this process has passed to write calls. Linux only; elsewhere the column shows 0."""
    counters = Path("/proc/self/io")
    return int(counters.read_text().split("wchar:")[1].split()[0]) if counters.exists() else 0


# The measurements


class Failed(Exception):
    """A form could not carry out the action."""


class Wrong(Exception):
    """A form returned other values than the log holds."""


def measure(name, actions, recorded, place, *, series=(), repeats=1, prepare=lambda: None):
    """The median of every figure over new processes; the series that were read are checked."""
    results = []
    for _ in range(repeats):
        prepare()
        task = {"format": name, "actions": actions, "log": str(recorded.log), "place": str(place), "names": series}
        command = [sys.executable, __file__, "--child", json.dumps(task)]
        done = subprocess.run(command, check=False, capture_output=True, text=True)
        if done.returncode:
            raise Failed(f"{name}, {' and '.join(actions)}:\n{done.stderr}")
        results.append(json.loads(done.stdout))
        wrong = [key for key, found in results[-1].pop("digests", {}).items() if found != recorded.expected(key)]
        if wrong:
            raise Wrong(f"{name} does not give back what the log holds of {', '.join(wrong)}")
    return {key: statistics.median(result[key] for result in results) for key in results[0]}


def measure_reading(name, recorded, series, place, repeats):
    """Build and read in one process, then read in others."""
    cold = measure(
        name, ["build", "read"], recorded, place, series=series, repeats=repeats, prepare=lambda: empty(place)
    )
    warm = measure(name, ["read"], recorded, place, series=series, repeats=repeats)
    return {
        "build_s": cold["build_s"],
        "cold_s": cold["build_s"] + cold["read_s"],
        "read_s": warm["read_s"],
        "read_with_import_s": warm["import_s"] + warm["read_s"],
        "import_s": warm["import_s"],
        "import_mib": warm["import_mib"],
        "bytes": bytes_below(place),
    }


def measure_refresh(name, recorded, series, place, repeats):
    """Add appended rows, each time from the same state; then check every series of the result."""
    with tempfile.TemporaryDirectory() as spare:
        saved = shutil.copytree(place, Path(spare) / "saved")

        def restore():
            shutil.rmtree(place)
            shutil.copytree(saved, place)

        result = measure(name, ["refresh"], recorded, place, repeats=repeats, prepare=restore)
    measure(name, ["read"], recorded, place, series=series)
    return {"s": result["refresh_s"], "bytes": result["refresh_written"]}


def judge(name, recorded, series, place):
    """Whether a series is read correctly from a realistic log, with the library's own reader."""
    empty(place)
    try:
        measure(name, ["build", "read"], recorded, place, series=[series])
    except Failed:
        return "error"
    except Wrong:
        return "wrong"
    return "right"


def run_all(chosen, steps, repeats, work):
    from recorded import NAMES, Recorded, awkward_rows, noisy_rows  # not at the top: it would slow the child processes

    say(f"recording {steps:,} and {SMALL_STEPS:,} steps of {len(NAMES)} metrics")
    big = Recorded(work / "big", noisy_rows(steps + sum(APPENDS)), held_back=sum(APPENDS))
    small = Recorded(work / "small", noisy_rows(SMALL_STEPS))
    awkward = Recorded(work / "awkward", awkward_rows(AWKWARD_STEPS))
    values = steps * (len(NAMES) + 3)
    log_bytes = big.log.stat().st_size / values
    figures = {}
    for name in chosen:
        if lacking := missing_modules(FORMATS[name]):
            figures[name] = {"missing": f"{', '.join(lacking)} not installed"}
            continue
        say(f"{name}: building and reading")
        one = measure_reading(name, big, NAMES[:1], place_of(name, big), repeats)
        many = measure_reading(name, small, NAMES[:SMALL_SERIES], place_of(name, small), repeats)
        place = place_of(name, awkward)
        odd = {"late": judge(name, awkward, "late", place), "nan": judge(name, awkward, "loss", place)}
        package_bytes = sum(map(installed_bytes, FORMATS[name].packages))
        one |= {"bytes_per_value": one["bytes"] / values, "packages_mib": package_bytes / 2**20}
        figures[name] = {"one": one, "many": many, "odd": odd}
    measured = [name for name in chosen if "missing" not in figures[name]]
    for count in APPENDS:
        big.append(count)
        for name in measured:
            say(f"{name}: taking in {count:,} more rows")
            figures[name][f"append_{count}"] = measure_refresh(name, big, NAMES, place_of(name, big), repeats)
    with open(awkward.log, "ab") as file:
        file.write(b'{"step":30000,"timest')
    for name in measured:
        figures[name]["odd"]["torn"] = judge(name, awkward, "kl", place_of(name, awkward))
    return {"log_bytes_per_value": log_bytes, "formats": figures}


def missing_modules(form):
    tops = dict.fromkeys(module.partition(".")[0] for module in form.imports.values())
    return [module for module in tops if util.find_spec(module) is None]


def place_of(name, recorded):
    return recorded.root / ("index" if name.startswith("rlvitals") else f"formats/{name}")


def empty(place):
    shutil.rmtree(place, ignore_errors=True)
    place.mkdir(parents=True)


def bytes_below(folder):
    return sum(path.stat().st_size for path in folder.rglob("*") if path.is_file())


def installed_bytes(package):
    paths = (Path(file.locate()) for file in metadata.files(package) or [])
    return sum(path.stat().st_size for path in paths if path.is_file())


# Showing


def show(figures, steps):
    one, many = f"1 x {steps:,}", f"{SMALL_SERIES} x {SMALL_STEPS:,}"
    reading = {
        f"{one} cold, s": lambda f: f"{f['one']['cold_s']:.2f}",
        "warm, ms": lambda f: f"{f['one']['read_s'] * 1000:.1f}",
        "and import": lambda f: f"{f['one']['read_with_import_s'] * 1000:.0f}",
        f"{many} cold, s": lambda f: f"{f['many']['cold_s']:.2f}",
        "warm, ms ": lambda f: f"{f['many']['read_s'] * 1000:.1f}",
        "and import ": lambda f: f"{f['many']['read_with_import_s'] * 1000:.0f}",
    }
    keeping = {
        "build, s": lambda f: f"{f['one']['build_s']:.2f}",
        "bytes a value": lambda f: f"{f['one']['bytes_per_value']:.2f}",
    }
    for count in APPENDS:
        keeping[f"+{count:,} rows, ms / KiB written"] = lambda f, key=f"append_{count}": (
            f"{f[key]['s'] * 1000:.1f} / {f[key]['bytes'] / 1024:,.0f}"
        )
    keeping["import, ms / MiB"] = lambda f: f"{f['one']['import_s'] * 1000:.0f} / {f['one']['import_mib']:.0f}"
    keeping["packages, MiB"] = lambda f: f"{f['one']['packages_mib']:.0f}"
    odd = {
        "torn last line": lambda f: f["odd"]["torn"],
        f"metric from row {AWKWARD_STEPS - 1000:,} on": lambda f: f["odd"]["late"],
        "logged NaN": lambda f: f["odd"]["nan"],
    }
    table("Reading series (cold: the index is built first)", reading, figures["formats"])
    table(f"Keeping the index of {steps:,} steps (packages: on disk, numpy included)", keeping, figures["formats"])
    table("Built from a log as runs leave it, readers with their defaults", odd, figures["formats"])
    print(f"\nThe log itself has {figures['log_bytes_per_value']:.1f} bytes a value.")


def table(title, columns, formats):
    rows = [["", *columns], ["---"] * (len(columns) + 1)]
    for name, found in formats.items():
        cells = [found["missing"]] if "missing" in found else [cell(found) for cell in columns.values()]
        rows.append([name, *cells, *[""] * (len(columns) - len(cells))])
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    print(f"\n{title}\n")
    for row in rows:
        print("| " + " | ".join(text.ljust(width) for text, width in zip(row, widths, strict=True)) + " |")


def machine():
    installed = {dist.name: dist.version for dist in metadata.distributions()}
    packages = sorted({package for form in FORMATS.values() for package in form.packages})
    facts = {"python": platform.python_version(), "system": platform.system(), "cores": os.cpu_count()}
    return facts | {package: installed[package] for package in packages if package in installed}


def say(sentence):
    print(f"[{time.strftime('%H:%M:%S')}] {sentence}", file=sys.stderr, flush=True)


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--steps", type=int, default=100_000, help="steps of the big run")
    parser.add_argument("--repeats", type=int, default=5, help="fresh processes for each figure")
    parser.add_argument("--only", nargs="+", choices=FORMATS, default=list(FORMATS), metavar="NAME")
    parser.add_argument("--json", type=Path, help="write the figures here")
    parser.add_argument("--child", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.child:
        child(json.loads(options.child))
        return
    say(f"{machine()}, load {os.getloadavg()[0]:.1f}")
    with tempfile.TemporaryDirectory() as work:
        figures = run_all(options.only, options.steps, options.repeats, Path(work))
    show(figures, options.steps)
    if options.json:
        options.json.write_text(json.dumps({"machine": machine(), "steps": options.steps, **figures}, indent=2) + "\n")


if __name__ == "__main__":
    main()
