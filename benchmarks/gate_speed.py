"""Which clock distinguishes a slower program from a busy machine: wall time, CPU time, or either next to a workload.

    python benchmarks/gate_speed.py train ppo|grpo DIR CORE STEPS SEED...    train on one core, one after the other
    python benchmarks/gate_speed.py look DIR...                              how far the runs of each folder differ

Each step is timed by both clocks, after three workloads of about 1 ms: a Python loop, small torch layers, small numpy
products. The trainings are those of `gate.py`, with fewer steps and for GRPO without evaluations between them. Use
seeds that gate_seeds.tsv does not list.
"""

import json
import os
import sys
import time
from pathlib import Path

import numpy as np

import gate

SETTLING = 0.1


def workloads():
    import torch

    start, layer = torch.randn(64, 64), torch.nn.Linear(64, 64)
    matrix = np.random.default_rng(0).normal(size=(64, 64))

    def python():
        total = 0
        for number in range(20_000):
            total += number * number % 7

    def torch_layers():
        with torch.no_grad():
            hidden = start
            for _ in range(60):
                hidden = torch.softmax(layer(hidden), -1)

    def numpy_products():
        hidden = matrix
        for _ in range(40):
            hidden = np.tanh(hidden @ matrix)

    return python, torch_layers, numpy_products


def timed(work):
    """Seconds of the clock and of the processor."""
    wall, cpu = time.perf_counter(), time.thread_time()
    work()
    return time.perf_counter() - wall, time.thread_time() - cpu


def train(which, root, core, steps, seeds):
    os.sched_setaffinity(0, {core})
    gate.load_libraries()
    from rlvitals.train.grpo import trainer as grpo
    from rlvitals.train.ppo import trainer as ppo

    module, name = (ppo, "take_step") if which == "ppo" else (grpo, "_one_step")
    trainer = next(one for one in vars(module).values() if isinstance(one, type) and name in vars(one))
    step, probes, rows = getattr(trainer, name), workloads(), []

    def timed_step(self):
        row = {"probe": {probe.__name__: timed(probe) for probe in probes}}
        wall, cpu = time.perf_counter(), time.process_time()
        result = step(self)
        rows.append(row | {"wall": time.perf_counter() - wall, "cpu": time.process_time() - cpu})
        return result

    setattr(trainer, name, timed_step)
    gate.write_data(root)
    gate.RECIPES[which]["max_steps"] = steps
    gate.RECIPES["grpo"] |= {"eval_steps": 1000, "held_out": 10}
    if which in gate.STARTS and not (root / f"{which}-start" / ".done").exists():
        gate._train(gate.Training("start", which, "start", which, gate.START_SEED), root)
    for seed in seeds:
        rows.clear()
        gate._train(gate.Training("trial", f"{which}{seed}", "run0", which, seed), root)
        (root / f"{which}-{seed}.json").write_text(json.dumps(rows))


def look(root):
    runs = [json.loads(path.read_text()) for path in sorted(root.glob("*-*.json"))]
    runs = [rows[int(SETTLING * len(rows)) :] for rows in runs]
    wall, cpu = ([np.log([row[clock] for row in rows]) for rows in runs] for clock in ("wall", "cpu"))
    found = {"wall": wall, "CPU": cpu}
    for name in runs[0][0]["probe"]:
        for at, (clock, seconds) in enumerate((("wall", wall), ("CPU", cpu))):
            probes = [np.log([row["probe"][name][at] for row in rows]) for rows in runs]
            found[f"{clock} / {name}"] = [one - other for one, other in zip(seconds, probes, strict=True)]
    print(f"{root}: {len(runs)} runs; standard deviations of the logarithm of a step's seconds")
    print(
        "median share of the core:", [round(float(np.exp(np.median(c - w))), 2) for c, w in zip(cpu, wall, strict=True)]
    )
    for name, logs in found.items():
        typical, fast = (np.std([np.percentile(own, at) for own in logs], ddof=1) for at in (50, 10))
        within = np.mean([np.std(own, ddof=1) for own in logs])
        print(f"{name:24} between runs: median {typical:6.1%}  fastest tenth {fast:6.1%}   within a run {within:6.1%}")


if __name__ == "__main__":
    verb, *given = sys.argv[1:]
    if verb == "train":
        train(given[0], Path(given[1]), int(given[2]), int(given[3]), [int(seed) for seed in given[4:]])
    else:
        for folder in given:
            look(Path(folder))
