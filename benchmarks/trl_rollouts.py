"""The cost of recording TRL's completions: GRPO bare, with TRL's own `log_completions`, with only the callback's rows,
and with its rollouts.

    python benchmarks/trl_rollouts.py [--rounds 2] [--steps 3] [--completions 64] [--length 64]

All four train the same small model in this process, in turns and several times, so that other load on the machine
affects all of them alike. A step is timed from its start to the start of the next: sampling, rewards, update and
everything that is logged. Steps of seconds vary by more than the time of recording, so recording is measured
separately: the processor time, thread by thread, in TRL's `log` (the callback's rows and TRL's table are written there)
and in our own functions. This includes those around TRL's loss and log-prob pass, without the functions they call.
"""

from __future__ import annotations

import argparse
import contextlib
import gc
import io
import os
import statistics
import tempfile
import time
from collections import defaultdict
from pathlib import Path

os.environ.setdefault("OMP_NUM_THREADS", "1")

import datasets
from transformers import TrainerCallback, logging
from trl import GRPOConfig, GRPOTrainer

from rlvitals.adapters import trl_rollouts
from rlvitals.adapters.transformers import VitalsCallback
from rlvitals.train import tiny

WORDS = [f"word{number}" for number in range(2000)]


class Stopwatch(TrainerCallback):
    """Wall and processor seconds of every step except the first, which is a warm-up."""

    def __init__(self, inside):
        self.marks, self._inside = [], inside

    def on_step_begin(self, *_, **__):
        if len(self.marks) == 1:
            self._inside.taken()  # the first step also pays for imports
        self.marks.append((time.perf_counter(), time.process_time()))

    def on_train_end(self, *_, **__):
        self.marks.append((time.perf_counter(), time.process_time()))

    @property
    def steps(self):
        pairs = list(zip(self.marks, self.marks[1:], strict=False))[1:]
        return [(later[0] - earlier[0], later[1] - earlier[1]) for earlier, later in pairs]


class Inside:
    """Processor seconds that a thread spends in a function, by function."""

    def __init__(self):
        self.seconds = defaultdict(float)

    def watch(self, owner, name):
        function = getattr(owner, name)

        def timed(*given, **more):
            began = time.thread_time()
            try:
                return function(*given, **more)
            finally:
                self.seconds[name] += time.thread_time() - began

        setattr(owner, name, timed)

    def watch_around(self, owner, name):
        """The same for a function that wraps another one, without the time of the wrapped one."""
        function = getattr(owner, name)

        def timed(listener, original, *given, **more):
            within = 0.0

            def inner(*given, **more):
                nonlocal within
                began = time.thread_time()
                try:
                    return original(*given, **more)
                finally:
                    within += time.thread_time() - began

            began = time.thread_time()
            try:
                return function(listener, inner, *given, **more)
            finally:
                self.seconds["around"] += time.thread_time() - began - within

        setattr(owner, name, timed)

    def taken(self):
        """Seconds in `log` and after the sampling, around TRL's functions, and in the background."""
        seconds, self.seconds = self.seconds, defaultdict(float)
        return seconds["log"] + seconds["_take"] + seconds["step_ended"], seconds["around"], seconds["_record"]


def length_of(completions, **_):
    return [float(len(text)) for text in completions]


def many_words(completions, **_):
    return [len(set(text.split())) / 10 for text in completions]


def train(folder, given, inside, *, callbacks=(), **more):
    model, tokenizer = tiny.build([" ".join(WORDS)], width=given.width, layers=4, heads=4, context=given.length + 32)
    watch = Stopwatch(inside)
    prompts = [{"prompt": " ".join(WORDS[start : start + 8])} for start in range(0, 320, 8)]
    trainer = GRPOTrainer(
        model,
        [length_of, many_words],
        args=GRPOConfig(
            output_dir=str(folder), max_steps=given.steps + 1, per_device_train_batch_size=given.completions,
            num_generations=8, max_completion_length=given.length, logging_steps=1, save_strategy="no", report_to=[],
            bf16=False, use_cpu=True, disable_tqdm=True, generation_kwargs={"min_new_tokens": given.length}, **more,
        ),
        train_dataset=datasets.Dataset.from_list(prompts),
        processing_class=tokenizer,
        callbacks=[*callbacks, watch],
    )  # fmt: skip
    with contextlib.redirect_stdout(io.StringIO()):
        trainer.train()
    return watch.steps


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=2)
    parser.add_argument("--steps", type=int, default=3)
    parser.add_argument("--completions", type=int, default=64)
    parser.add_argument("--length", type=int, default=64)
    parser.add_argument("--width", type=int, default=128)
    given = parser.parse_args()
    datasets.disable_progress_bars()
    logging.set_verbosity_error()
    inside = Inside()
    inside.watch(GRPOTrainer, "log")
    for name in ("_take", "step_ended", "_record"):
        inside.watch(trl_rollouts.TrlRollouts, name)
    for name in ("_around_loss", "_around_pass", "_around_rewards"):
        inside.watch_around(trl_rollouts.TrlRollouts, name)
    ways = {
        "bare": lambda folder: train(folder, given, inside),
        "TRL's log_completions": lambda folder: train(folder, given, inside, log_completions=True),
        "callback, rows alone": lambda folder: train(folder, given, inside, callbacks=[VitalsCallback(rollouts=False)]),
        "callback, rows and rollouts": lambda folder: train(folder, given, inside, callbacks=[VitalsCallback()]),
    }
    taken, spent = {name: [] for name in ways}, {name: [0.0, 0.0, 0.0] for name in ways}
    with tempfile.TemporaryDirectory() as place:
        for number in range(given.rounds):
            order = list(ways.items())
            for name, way in order[number % len(order) :] + order[: number % len(order)]:
                gc.collect()
                taken[name] += way(Path(place) / f"{number}-{name.replace(' ', '-')}")
                spent[name] = [sum(pair) for pair in zip(spent[name], inside.taken(), strict=True)]
        written = [path.stat().st_size for path in Path(place).glob("*/logs/rollouts/*.jsonl")]
        tables = [path.stat().st_size for path in Path(place).glob("*/completions/*.parquet")]
    steps = given.rounds * given.steps
    base = statistics.median(processor for _, processor in taken["bare"])
    print(f"{steps} steps of {given.completions} completions of {given.length} tokens")
    heads = f"{'step, wall':>11} {'processor':>10} {'logging':>9} {'around':>9} {'beside':>9} {'of a bare step':>15}"
    print(f"{'':<28} {heads}")
    for name, times in taken.items():
        wall, processor = (statistics.median(values) for values in zip(*times, strict=True))
        logging_seconds, around, beside = (seconds / steps for seconds in spent[name])
        share = 100 * (logging_seconds + around + beside) / base
        print(
            f"{name:<28} {wall:9.2f} s {processor:8.2f} s {1e3 * logging_seconds:6.1f} ms {1e3 * around:6.2f} ms "
            f"{1e3 * beside:6.1f} ms "
            f"{share:13.2f} %"
        )
    print(
        f"on disk a step: {statistics.mean(written) / 1e3:.0f} KB, TRL's table {statistics.mean(tables) / 1e3:.0f} KB"
    )


if __name__ == "__main__":
    main()
