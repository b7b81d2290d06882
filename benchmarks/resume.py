"""The cost of a resume for the training loop: the seconds of `start`, of the first `log` and of the slowest of the next
thousand, at a row every 2 ms, and until the monitor has caught up; and its memory. For logs of several lengths.

python benchmarks/resume.py [ROWS ...]
"""

from __future__ import annotations

import json
import math
import resource
import subprocess
import sys
import tempfile
import time
from pathlib import Path

LENGTHS = (10_000, 100_000, 1_000_000, 10_000_000)
NAMES = ("loss", "reward", "kl", "grad_norm", "entropy", "learning_rate")
BLOCK = 10_000


def write_run(folder: Path, rows: int) -> None:
    """A run whose process was killed: only its training log."""
    (folder / "logs").mkdir(parents=True)
    with open(folder / "logs" / "training_metrics.jsonl", "wb") as log:
        for begin in range(0, rows, BLOCK):
            for step in range(begin, min(begin + BLOCK, rows)):
                wave = 0.1 * math.sin(step * 0.7)
                values = ",".join(f'"{name}":{0.5 + place * 0.1 + wave:.6f}' for place, name in enumerate(NAMES))
                log.write(f'{{"step":{step},"timestamp":{1.7e9 + step:.3f},"attempt":1,{values}}}\n'.encode())


def resume(folder: Path, rows: int) -> dict[str, float]:
    import rlvitals

    row = dict.fromkeys(NAMES, 0.5)
    began = time.perf_counter()
    run = rlvitals.start(folder, algorithm="grpo", resume=True, display="none")
    started = time.perf_counter()
    run.log(row, step=rows)
    first = time.perf_counter()
    slowest = 0.0
    for step in range(rows + 1, rows + 1001):
        time.sleep(0.002)
        before = time.perf_counter()
        run.log(row, step=step)
        slowest = max(slowest, time.perf_counter() - before)
    _ = run.findings  # waits until everything is judged
    settled = time.perf_counter()
    run.finish()
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
    figures = {"start": started - began, "first log": first - started, "slowest log": slowest}
    return {**figures, "caught up": settled - first, "MiB": peak}


def main() -> None:
    if sys.argv[1:2] == ["--child"]:
        print(json.dumps(resume(Path(sys.argv[2]), int(sys.argv[3]))))
        return
    print(f"{'rows':>12}{'start s':>12}{'first log s':>14}{'slowest log s':>16}{'caught up s':>14}{'memory MiB':>13}")
    for rows in map(int, sys.argv[1:] or LENGTHS):
        with tempfile.TemporaryDirectory() as scratch:
            write_run(Path(scratch) / "run", rows)
            child = [sys.executable, __file__, "--child", str(Path(scratch) / "run"), str(rows)]
            done = subprocess.run(child, capture_output=True, text=True, check=True)
        start, first, slowest, caught_up, memory = json.loads(done.stdout).values()
        print(f"{rows:>12,}{start:>12.3f}{first:>14.4f}{slowest:>16.4f}{caught_up:>14.2f}{memory:>13.0f}")


if __name__ == "__main__":
    main()
