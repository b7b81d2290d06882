"""The cost of one round of `run.progress` compared with one of tqdm: nanoseconds, the best of five.

python benchmarks/progress.py
"""

from __future__ import annotations

import io
import time

from tqdm import tqdm

from rlvitals.capture.progress import Progress

ROUNDS = range(300_000)


def nanoseconds(loop):
    began = time.perf_counter_ns()
    for _ in loop:
        pass
    return (time.perf_counter_ns() - began) / len(ROUNDS)


def main():
    ours = min(nanoseconds(Progress(ROUNDS, stream=io.StringIO())) for _ in range(5))
    theirs = min(nanoseconds(tqdm(ROUNDS, file=io.StringIO())) for _ in range(5))
    print(f"run.progress {ours:.0f} ns a round, tqdm {theirs:.0f} ns: {ours / theirs:.2f} times")


if __name__ == "__main__":
    main()
