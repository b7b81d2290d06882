"""The cost of an adapter for each row logged through it: processor time, with the framework's own classes.

    python benchmarks/adapters_cost.py [NAME ...] [--rows 2000] [--rounds 5]

A row has the 30 names that TRL's GRPO trainer logs. `bare` is `run.log` by itself. Every other line is the whole way
from the framework's call to the row on the disk, so the cost of the adapter is the difference. Two times are printed:
that of the logging thread, which the training waits for, and that of the whole process with the threads of rlvitals.
Each round is a new run and goes through all ways in turn; the median over the rounds is printed. A framework that
cannot be imported is listed and not measured. Those of tests/frameworks are measured with the Python of their
environment:

    .venv-frameworks/verl/bin/python benchmarks/adapters_cost.py bare verl
"""

from __future__ import annotations

import argparse
import contextlib
import importlib.util
import io
import math
import os
import statistics
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

os.environ.setdefault("OMP_NUM_THREADS", "1")

import rlvitals

NAMES = (
    "loss", "grad_norm", "learning_rate", "num_tokens", "completions/mean_length", "completions/min_length",
    "completions/max_length", "completions/clipped_ratio", "completions/mean_terminated_length",
    "completions/min_terminated_length", "completions/max_terminated_length", "rewards/accuracy/mean",
    "rewards/accuracy/std", "rewards/format/mean", "rewards/format/std", "reward", "reward_std", "frac_reward_zero_std",
    "kl", "entropy", "clip_ratio/low_mean", "clip_ratio/low_min", "clip_ratio/high_mean", "clip_ratio/high_max",
    "clip_ratio/region_mean", "step_time", "epoch", "sampling/sampling_logp_difference/mean",
    "sampling/sampling_logp_difference/max", "sampling/importance_sampling_ratio/mean",
)  # fmt: skip

Log = Callable[[dict[str, Any], int], None]
QUIET = {"display": "none", "hardware": False}


def row(step: int) -> dict[str, float]:
    return {name: 0.5 + 0.01 * math.sin(step * (place + 1)) for place, name in enumerate(NAMES)}


@contextmanager
def bare(folder: Path) -> Iterator[Log]:
    with rlvitals.start(folder, algorithm="grpo", framework="trl", **QUIET) as run:
        yield lambda metrics, step: run.log(metrics, step=step)


@contextmanager
def unwatched(folder: Path) -> Iterator[Log]:
    """Without the monitor: only the writing remains."""
    with rlvitals.start(folder, algorithm="grpo", framework="trl", monitor=False, **QUIET) as run:
        yield lambda metrics, step: run.log(metrics, step=step)


@contextmanager
def transformers(folder: Path) -> Iterator[Log]:
    """The events of a step, sent by the callback handler of transformers."""
    from transformers import TrainerControl, TrainerState, TrainingArguments
    from transformers.trainer_callback import CallbackHandler, DefaultFlowCallback

    from rlvitals.adapters.transformers import VitalsCallback

    args = TrainingArguments(output_dir=str(folder), use_cpu=True, report_to=[])
    state, control = TrainerState(max_steps=10**6), TrainerControl()
    handler = CallbackHandler([DefaultFlowCallback(), VitalsCallback(folder / "run", **QUIET)], None, None, None, None)
    control = handler.on_train_begin(args, state, control)

    def log(metrics: dict[str, Any], step: int) -> None:
        handler.on_step_begin(args, state, control)
        state.global_step = step
        handler.on_step_end(args, state, control)
        handler.on_log(args, state, control, dict(metrics))

    yield log
    handler.on_train_end(args, state, control)


@contextmanager
def torch_distributed(folder: Path) -> Iterator[Log]:
    """`reduce` and a row, in a process group of one: this excludes the cost of collectives on a network."""
    import torch.distributed

    from rlvitals.adapters.torch_distributed import reduce

    torch.distributed.init_process_group("gloo", init_method=f"file://{folder}.group", rank=0, world_size=1)
    try:
        with bare(folder) as write:
            yield lambda metrics, step: write(reduce(metrics, step=step), step)
    finally:
        torch.distributed.destroy_process_group()


@contextmanager
def verl(folder: Path) -> Iterator[Log]:
    """verl's own Tracking with our back end."""
    from verl.utils.tracking import Tracking

    from rlvitals.adapters import verl as adapter

    adapter.register()
    config = {"trainer": {"default_local_dir": str(folder)}, "rlvitals": dict(QUIET)}
    tracking = Tracking("project", "experiment", ["rlvitals"], config)
    yield lambda metrics, step: tracking.log(data=metrics, step=step)
    tracking.finish(exit_code=0)


WAYS: dict[str, tuple[str, Callable[[Path], contextlib.AbstractContextManager[Log]]]] = {
    "bare": ("rlvitals", bare),
    "bare, monitor=False": ("rlvitals", unwatched),
    "transformers": ("transformers", transformers),
    "torch_distributed": ("torch", torch_distributed),
    "verl": ("verl", verl),
}
"""By name: the package that a way needs, and the function that logs rows through it."""


def measured(way: Callable[[Path], contextlib.AbstractContextManager[Log]], rows: int) -> tuple[float, float]:
    """Microseconds per row, of the logging thread and of the process."""
    with tempfile.TemporaryDirectory() as place, way(Path(place) / "run") as log:
        for step in range(1, 101):  # the first rows pay for imports and caches, once
            log(row(step), step)
        made = [row(step) for step in range(101, 101 + rows)]
        thread, process = time.thread_time(), time.process_time()
        for step, metrics in enumerate(made, 101):
            log(metrics, step)
        seconds = time.thread_time() - thread, time.process_time() - process
    return seconds[0] / rows * 1e6, seconds[1] / rows * 1e6


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("names", nargs="*", metavar="NAME", help=f"of {', '.join(WAYS)} (default: all)")
    parser.add_argument("--rows", type=int, default=2000)
    parser.add_argument("--rounds", type=int, default=5)
    arguments = parser.parse_args()
    wanted = {name: WAYS[name] for name in arguments.names or WAYS}
    missing = [name for name, (package, _) in wanted.items() if importlib.util.find_spec(package) is None]
    ways = {name: way for name, (_, way) in wanted.items() if name not in missing}
    found: dict[str, list[tuple[float, float]]] = {name: [] for name in ways}
    for _ in range(arguments.rounds):
        for name, way in ways.items():
            with contextlib.redirect_stdout(io.StringIO()):
                found[name].append(measured(way, arguments.rows))
    print("| logged through | thread, us a row | process, us a row |\n|---|---:|---:|")
    for name, times in found.items():
        thread, process = (statistics.median(column) for column in zip(*times, strict=True))
        print(f"| {name} | {thread:.0f} | {process:.0f} |")
    for name in missing:
        print(f"not importable here, so not measured: {name}")


if __name__ == "__main__":
    main()
