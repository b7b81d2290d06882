"""The cost of measuring for the training loop: microseconds of a phase, a timer and a count, the best of five, compared
with codetiming's timer if it is installed; of a phase with a GPU if there is one; and the share of a core that sampling
the machine takes.

python benchmarks/phases.py
"""

from __future__ import annotations

import tempfile
import time
from pathlib import Path

import rlvitals
from rlvitals.capture.counters import WINDOW_ROWS
from rlvitals.capture.hardware import Machine
from rlvitals.capture.processor_wait import ProcessorWait
from rlvitals.config import HARDWARE_SECONDS

ROUNDS = 5_000
SAMPLES = 200


def microseconds(body):
    best = float("inf")
    for _ in range(5):
        began = time.perf_counter_ns()
        for _ in range(ROUNDS):
            body()
        best = min(best, (time.perf_counter_ns() - began) / ROUNDS / 1000)
    return best


def contexts(run):
    def phase():
        with run.phase("train_step"):
            pass

    def phase_without_memory():
        with run.phase("train_step", memory=False):
            pass

    def timer():
        with run.timer("rollout"):
            pass

    def count():
        run.count(tokens=4096, samples=8)

    wait = ProcessorWait(WINDOW_ROWS)
    wait.begin(time.perf_counter())

    def waiting():
        wait.take(time.perf_counter())

    found = {
        "run.phase": phase,
        "run.phase without memory": phase_without_memory,
        "run.timer": timer,
        "run.count": count,
        "system/cpu_wait, once a row": waiting,
    }
    try:
        from codetiming import Timer
    except ImportError:
        print("codetiming is not installed: pip install codetiming")
        return found

    def codetiming():
        with Timer(name="rollout", logger=None):
            pass

    return found | {"codetiming.Timer": codetiming}


def on_cuda(run):
    """The cost of a phase with a GPU; torch raises an error on anything that waits for it."""
    try:
        import torch
    except ImportError:
        return
    if not torch.cuda.is_available():
        print("no GPU that torch can use")
        return
    held = torch.ones(2**28, device="cuda")
    torch.cuda.synchronize()
    torch.cuda.set_sync_debug_mode("error")
    with run.phase("busy") as phase:
        phase.tokens(1000)
        for _ in range(200):
            held.mul_(1.0)
    run.log({"loss": 0.0})
    torch.cuda.set_sync_debug_mode("default")
    torch.cuda.synchronize()
    run.log({"loss": 0.0})
    series = rlvitals.open_run(run.dir).series
    execute, device = (series(f"time/busy/{part}").values[0] for part in ("execute", "device"))
    print(f"a phase of queued work: {execute:.4f} s of the host, {device:.4f} s of the GPU")
    print(f"run.phase with a GPU         {microseconds(contexts(run)['run.phase']):6.2f} us")


def sampling():
    machine = Machine()
    machine.sample()
    began = time.thread_time()
    for _ in range(SAMPLES):
        machine.sample()
    return (time.thread_time() - began) / SAMPLES


def main():
    with (
        tempfile.TemporaryDirectory() as folder,
        rlvitals.start(Path(folder) / "run", hardware=False, monitor=False) as run,
    ):
        for name, body in contexts(run).items():
            print(f"{name:28} {microseconds(body):6.2f} us")
        on_cuda(run)
    seconds = sampling()
    share = seconds / HARDWARE_SECONDS
    print(f"a sample of the machine      {seconds * 1e6:6.0f} us, {share:.4%} of a core every {HARDWARE_SECONDS:.0f} s")


if __name__ == "__main__":
    main()
