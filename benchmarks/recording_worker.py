"""One measurement of one tool, in a separate process: `recording.py` starts it and reads the file it writes."""

from __future__ import annotations

import json
import os
import random
import shutil
import signal
import struct
import sys
import time
from importlib import import_module
from pathlib import Path

from recorded import NAMES
from recording_peers import PEERS
from recording_tools import OWN_TOOLS, bytes_below, wait_for

TOOLS = {tool.name: tool for tool in (*OWN_TOOLS, *PEERS)}
PACE_SECONDS = 0.02
MARK = "RLVITALS_BENCH"  # in the environment of every process of one benchmark, so that they can be found


def main():
    task = json.loads(sys.argv[1])
    tool = TOOLS[task["tool"]]
    result = ACTIONS[task["action"]](tool, Path(task["folder"]), task)
    Path(task["result"]).write_text(json.dumps(result))


# The measurements


def log(tool, folder, task):
    """Paced calls, then calls without a pause; the time of the start and the end; the size on disk."""
    memory = marked_memory()
    times = [time.perf_counter()]
    for module in tool.modules:
        import_module(module)
    times.append(time.perf_counter())
    record = tool.open(folder, NAMES)
    times.append(time.perf_counter())
    memory = marked_memory() - memory
    rows = list(made_rows(min(task["steps"], tool.most_steps), NAMES))
    step = tool.settle(record, rows)
    paced = timed_calls(record, rows[: task["paced_calls"]], step, pace=PACE_SECONDS)
    step += len(paced)
    began = time.perf_counter()
    hot = timed_calls(record, rows * tool.hot_factor, step, cap=task["cap_s"])
    step += len(hot)
    times += [time.perf_counter()]
    tool.close()
    times += [time.perf_counter()]
    sync_all(folder)
    durable = time.perf_counter()
    size = bytes_below(folder)
    if tool.kind != "peer" and count(tool, folder, task) != {"rows": step}:  # other parts check the rows of peers
        raise RuntimeError(f"{count(tool, folder, task)} instead of {step} rows were recorded")
    return {
        "hot": percentiles(hot),
        "paced": percentiles(paced),
        "steps": len(hot),
        "import_s": times[1] - times[0],
        "start_s": times[2] - times[1],
        "finish_s": times[4] - times[3],
        "added_mib": memory,
        "values_per_s": len(hot) * len(NAMES) / (durable - began),
        "values": step * len(NAMES),
        "bytes": size,
        "sizes": {} if tool.is_only_timed else tool.sizes(folder),
    }


def kill(tool, folder, task):
    """Log, and be killed; the result, written before, holds how many calls returned."""
    record = tool.open(folder, NAMES)
    rows = list(made_rows(task["steps"], NAMES))
    helpers = [pid for pid in marked_processes() if pid != os.getpid()] if task["whole_tree"] else []
    acknowledged = len(timed_calls(record, rows, 0, cap=task["cap_s"]))
    Path(task["result"]).write_text(json.dumps({"acknowledged": acknowledged}))
    for pid in [*helpers, os.getpid()]:
        os.kill(pid, signal.SIGKILL)


def count(tool, folder, task):
    """How many steps can be read completely: their last metric is there."""
    try:
        steps, _ = tool.read(folder, NAMES[-1:])[NAMES[-1]]
    except Exception as error:  # noqa: BLE001 - a reader's way of saying that there is nothing
        return {"rows": 0, "error": f"{type(error).__name__}: {error}"[:200]}
    return {"rows": len({*map(int, steps)})}


def fill(tool, folder, task):
    """Record a run to read; False if it would take too long."""
    names = NAMES[: task["series"]]
    record = tool.open(folder, names)
    deadline = time.monotonic() + task["cap_s"]
    for _ in tool.fill(record, made_rows(task["steps"], names)):
        if time.monotonic() > deadline:
            os.kill(os.getpid(), signal.SIGKILL)  # a clean exit may take as long again
    tool.close()
    return {"filled": True}


def read(tool, folder, task):
    """Read series in a process that has imported what it needs; they are checked against what was logged."""
    import numpy as np

    names = NAMES[: task["series"]]
    if tool.name == "rlvitals, no index":
        shutil.rmtree(folder / "run" / "index", ignore_errors=True)
    for module in (*tool.modules, *(["rlvitals.views.query"] if tool.kind == "rlvitals" else [])):
        import_module(module)
    began = time.perf_counter()
    series = tool.read(folder, names)
    taken = time.perf_counter() - began
    rows = list(made_rows(task["steps"], names))
    for name in names:
        steps, values = series[name]
        expected = np.array([row[name] for row in rows])
        if not np.array_equal(steps, range(len(rows))) or not np.allclose(values, expected, rtol=1e-6, atol=0):
            return {"wrong": f"{name}: {len(steps)} of {len(rows)} points, or other values"}
    return {"read_s": taken}


def memory(tool, folder, task):
    """Resident memory of trainer and follower, ten times over a long run."""
    record = tool.open(folder, NAMES)
    rows = list(made_rows(500, NAMES))
    record(rows[0], 0)
    wait_for(tool.are_following, "the trackers do not follow")
    samples, total, began = [], task["steps"], time.monotonic()
    for step in range(1, total + 1):
        record(rows[step % len(rows)], step)
        if step % len(rows) == 0:
            time.sleep(max(0, began + task["seconds"] * step / total - time.monotonic()))
        if step % (total // 10) == 0:
            followers = [pid for pid in marked_processes() if pid != os.getpid()]
            pair = {"trainer": resident_mib(os.getpid()), "follower": sum(map(resident_mib, followers))}
            samples.append({"rows": step, **pair})
    return {"samples": samples}


ACTIONS = {"log": log, "kill": kill, "count": count, "fill": fill, "read": read, "memory": memory}


def timed_calls(record, rows, step, *, pace=0.0, cap=60.0):
    """Call once for every row, until the time is up; nanoseconds of each call."""
    clock, taken = time.perf_counter_ns, []
    deadline = clock() + int(cap * 1e9)
    for row in rows:
        began = clock()
        record(row, step)
        ended = clock()
        taken.append(ended - began)
        step += 1
        if pace:
            time.sleep(pace)
        if ended > deadline:
            break
    return taken


def percentiles(taken):
    ordered = sorted(taken)
    return {f"p{part}_us": ordered[len(ordered) * part // 100] / 1000 for part in (50, 99)}


def made_rows(count, names):
    """Random walks with noise; every other metric has the digits of a float32, like a tensor's .item()."""
    rng, single = random.Random(0).random, struct.Struct("f")
    levels = [0.1 + 2 * rng() for _ in names]
    for _ in range(count):
        row = {}
        for number, name in enumerate(names):
            levels[number] += 0.004 * (rng() - 0.5)
            value = levels[number] + 0.1 * rng()
            row[name] = single.unpack(single.pack(value))[0] if number % 2 else value
        yield row


def sync_all(folder):
    """Sync every file to the disk: the same last step for every tool."""
    for path in folder.rglob("*"):
        if path.is_file():
            file = os.open(path, os.O_RDONLY)
            os.fsync(file)
            os.close(file)


# Processes, from Linux's /proc; elsewhere helpers are not found and memory is 0


def marked_processes(mark=None):
    """Every process of one measurement, also orphans with another parent."""
    mark, found = f"{MARK}={mark or os.environ[MARK]}".encode(), []
    for path in Path("/proc").glob("[0-9]*/environ"):
        try:
            if mark in path.read_bytes().split(b"\0"):
                found.append(int(path.parent.name))
        except OSError:
            continue
    return found


def resident_mib(pid):
    try:
        return int(Path(f"/proc/{pid}/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE") / 2**20
    except OSError:
        return 0.0


def marked_memory():
    return sum(map(resident_mib, marked_processes()))


if __name__ == "__main__":
    main()
