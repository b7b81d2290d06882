"""Kills a child process at random moments while it feeds a sink and saves its cursor, as the follower does.

For the crash tests of several sinks: `from kills import feed_through_kills, fed_row`. `kill_at_random` does the same
with a test's own child, for sinks that must be fed in another way.
"""

from __future__ import annotations

import json
import random
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

from rows import facts, row

from rlvitals.records import Attempt
from rlvitals.sinks.base import SinkRow

START = 1_763_190_000.0
BATCH = 3


def fed_row(index: int) -> SinkRow:
    """Row number `index`: steps out of order, two attempts, a new metric every 40 rows, now and then a text."""
    return row(
        index ^ 1,
        attempt=1 if index < 100 else 2,
        stream="eval" if index % 10 == 9 else "train",
        timestamp=START + index,
        texts={"note": f'row {index}, "quoted"\nsecond line'} if index % 7 == 0 else None,
        numbers={"loss": index / 7, f"metric/{index // 40}": float(index)},
    )


def fed_facts(tmp_path: Path):
    return facts(tmp_path, attempts=(Attempt(1, START), Attempt(2, START + 100, from_step=90)))


def feed_through_kills(
    module: str, name: str, tmp_path: Path, settings: dict[str, Any], *, total: int, kills: int, environment: Any
) -> dict[str, Any]:
    """Feed `total` rows to a sink in child processes. All but the last are killed. Returns the last memory.

    A child that is to be killed writes at most its share of the batches and then waits: on a busy machine it could
    otherwise write all rows before this process runs again.
    """
    share = total // BATCH // (kills + 1)
    task = {"module": module, "name": name, "tmp": str(tmp_path), "settings": settings, "total": total, "share": share}
    (tmp_path / "task.json").write_text(json.dumps(task))
    chance = random.Random(total)
    for _ in range(kills):
        child = _start(tmp_path, environment, module)
        for _ in range(chance.randrange(1, min(25, share + 1))):
            assert child.stdout.readline()
        try:
            child.wait(timeout=chance.uniform(0, 0.005))  # a random moment later
        except subprocess.TimeoutExpired:
            child.kill()
        _, errors = child.communicate()
        assert child.returncode == -signal.SIGKILL, f"the child had ended before it was killed: {errors}"
    child = _start(tmp_path, environment, module)
    _, errors = child.communicate()
    assert child.returncode == 0, errors
    cursor = json.loads((tmp_path / "cursor.json").read_text())
    assert cursor["rows"] == total
    return cursor["memory"]


def kill_at_random(
    command: list[str], environment: Any, cursor: Path, chance: random.Random, *, times: int, longest: float
) -> int:
    """Start a child, wait until it prints "open", and kill it at most `longest` seconds later; repeat `times` times.
    Every second child first gets the time to save its cursor. Returns how many were still writing.
    """
    kills = 0
    for number in range(times):
        before = cursor.stat().st_mtime_ns if cursor.exists() else None
        child = subprocess.Popen(command, env=environment, stdout=subprocess.PIPE)
        assert child.stdout is not None
        assert child.stdout.readline() == b"open\n"
        while number % 2 == 0 and child.poll() is None:
            if cursor.exists() and cursor.stat().st_mtime_ns != before:
                break
            time.sleep(0.002)
        try:
            child.wait(chance.uniform(0, longest))
        except subprocess.TimeoutExpired:
            kills += 1
        child.kill()
        child.communicate()
    return kills


def _start(tmp_path: Path, environment: Any, module: str) -> subprocess.Popen[str]:
    """`module` is an argument for `warm_python`, which infers from it what the child will import. A child that has
    written its share waits until its standard input is closed, as `communicate` does.
    """
    return subprocess.Popen(
        [sys.executable, __file__, str(tmp_path), module], stdin=subprocess.PIPE, stdout=subprocess.PIPE,
        stderr=subprocess.PIPE, text=True, env=environment,
    )  # fmt: skip


def _feed(tmp_path: Path) -> None:
    """The child's program: open from the cursor, write rows, commit, save the cursor, print a line."""
    from importlib import import_module

    task = json.loads((tmp_path / "task.json").read_text())
    place = tmp_path / "cursor.json"
    cursor = json.loads(place.read_text()) if place.exists() else {"memory": {}, "rows": 0}
    sink_class = getattr(import_module(task["module"]), task["name"])
    sink = sink_class(fed_facts(Path(task["tmp"])), task["settings"], cursor["memory"])
    print("opened", flush=True)
    for number, first in enumerate(range(cursor["rows"], task["total"], BATCH)):
        if number == task["share"]:
            sys.stdin.read()
        batch = [fed_row(index) for index in range(first, min(first + BATCH, task["total"]))]
        sink.write(batch)
        sink.commit()
        draft = place.with_suffix(".draft")
        draft.write_text(json.dumps({"memory": sink.memory, "rows": first + len(batch)}))
        draft.replace(place)
        print("committed", flush=True)
    sink.close()


if __name__ == "__main__":
    _feed(Path(sys.argv[1]))
