"""The cost of the tests: processor time of each with every process it started, and wall time.

    OMP_NUM_THREADS=1 PYTHONPATH=benchmarks python -m pytest -p suite_cost -n 0 tests/store
    python benchmarks/suite_cost.py              # sums by file and by test, the most expensive first
    python benchmarks/suite_cost.py --longest    # writes tests/longest.txt, which orders the work of the processes

The first command appends to `out/suite_cost.tsv`. Processor time does not depend on other processes, so folders can be
measured one after another. The last measurement of a test counts; lines of longest.txt about files that were not
measured stay.
"""

from __future__ import annotations

import argparse
import csv
import os
import time
from collections import defaultdict
from collections.abc import Iterator
from pathlib import Path

import pytest

REPO = Path(__file__).parent.parent
TABLE = REPO / "out" / "suite_cost.tsv"
LONGEST = REPO / "tests" / "longest.txt"
FIELDS = ("test", "work", "is_shared", "processor", "clock")
LONG = 0.1
"""A piece of work of this many seconds or more is listed, as in tests/conftest.py."""
SHORT = 0.05
"""A shorter test is assumed to use only its own process: reading all processes takes some milliseconds."""


def processor_seconds() -> float:
    """Processor time of this process and its descendants, including ended ones that were waited for."""
    ticks, children = {}, defaultdict(list)
    for entry in Path("/proc").iterdir():
        if not entry.name.isdecimal():
            continue
        try:
            fields = (entry / "stat").read_text().rpartition(")")[2].split()
        except OSError:
            continue  # it has ended meanwhile
        ticks[int(entry.name)] = sum(map(int, fields[11:15]))
        children[int(fields[1])].append(int(entry.name))
    total, waiting = 0, [os.getpid()]
    while waiting:
        process = waiting.pop()
        total += ticks.get(process, 0)
        waiting += children[process]
    return total / os.sysconf("SC_CLK_TCK")


class Recorder:
    """The plug-in."""

    def __init__(self, table: Path) -> None:
        table.parent.mkdir(exist_ok=True)
        self._table, self._before = table, processor_seconds()

    @pytest.hookimpl(wrapper=True, tryfirst=True)
    def pytest_runtest_protocol(self, item: pytest.Item) -> Iterator[None]:
        import conftest  # the one of tests/

        began = time.perf_counter()
        result = yield
        clock = time.perf_counter() - began
        now = self._before + clock if clock < SHORT else processor_seconds()
        work, is_shared = conftest.work_of(item)
        row = (item.nodeid[:200], work, int(is_shared), f"{now - self._before:.3f}", f"{clock:.3f}")
        with self._table.open("a", newline="", encoding="utf-8") as file:
            csv.writer(file, delimiter="\t").writerow(row)
        self._before = now
        return result


def pytest_configure(config: pytest.Config) -> None:
    config.pluginmanager.register(Recorder(TABLE))


def read(table: Path) -> list[dict]:
    with table.open(newline="", encoding="utf-8") as file:
        rows = {row["test"]: row for row in csv.DictReader(file, FIELDS, delimiter="\t")}
    return [row | {"processor": float(row["processor"]), "clock": float(row["clock"])} for row in rows.values()]


def longest(rows: list[dict]) -> str:
    """Processor time and clock of each piece of work: the sum for tests that share a process; for a test alone the mean
    of its cases.
    """
    cases = defaultdict(list)
    for row in rows:
        cases[row["work"], int(row["is_shared"])].append((row["processor"], row["clock"]))
    found = {
        work: [sum(numbers) / (1 if is_shared else len(each)) for numbers in zip(*each, strict=True)]
        for (work, is_shared), each in cases.items()
    }
    measured = {row["test"].partition("::")[0].rpartition("/")[2] for row in rows} | {row["work"] for row in rows}
    for line in LONGEST.read_text(encoding="utf-8").splitlines():
        *seconds, work = line.split(maxsplit=2)
        if work.partition("::")[0].partition(" ")[0] not in measured and work not in measured:
            found[work] = [float(number) for number in seconds]
    lines = [(clock, processor, work) for work, (processor, clock) in found.items() if max(processor, clock) >= LONG]
    return "".join(
        f"{_short(processor)} {_short(clock)} {work}\n" for clock, processor, work in sorted(lines, reverse=True)
    )


def _short(seconds: float) -> str:
    return f"{seconds:.{0 if seconds >= 10 else 1 if seconds >= 1 else 2}f}"


def sums(rows: list[dict], *, by_file: bool) -> list[tuple[float, float, int, str]]:
    found: dict[str, list[float]] = defaultdict(lambda: [0.0, 0.0, 0])
    for row in rows:
        name = row["test"].partition("::" if by_file else "[")[0]
        found[name] = [a + b for a, b in zip(found[name], (row["processor"], row["clock"], 1), strict=True)]
    return sorted(((*numbers, name) for name, numbers in found.items()), reverse=True)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--longest", action="store_true", help="write tests/longest.txt")
    parser.add_argument("--lines", type=int, default=30, help="of each list (default: %(default)s)")
    options = parser.parse_args()
    rows = read(TABLE)
    if options.longest:
        LONGEST.write_text(longest(rows), encoding="utf-8")
        return
    total = sum(row["processor"] for row in rows)
    print(f"{len(rows)} tests, {total:.0f} s of processor time, {sum(row['clock'] for row in rows):.0f} s of the clock")
    for by_file in (True, False):
        print("\nprocessor   clock  tests")
        for processor, clock, tests, name in sums(rows, by_file=by_file)[: options.lines]:
            print(f"{processor:9.1f} {clock:7.1f} {tests:6d}  {name}")


if __name__ == "__main__":
    main()
