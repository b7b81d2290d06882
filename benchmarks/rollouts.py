"""The cost of recording and reading rollouts: 100,000 rollouts of six turns with tool calls, 64 per step.

Recording is compared with other ways to write the same groups: verl's (json.dumps, one file per step) and TRL's (a
pandas table as Parquet, if both packages are installed). Reading is compared with grep over the same files.

python benchmarks/rollouts.py [ROLLOUTS] [--dump]

`--dump`: reading as many rollouts of a thousand characters from a dump of verl, 200 per file, in processor time.
"""

from __future__ import annotations

import json
import os
import random
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import rlvitals
from rlvitals.records import Group, Rollout, ToolCall, Turn
from rlvitals.store.rollout_forms import plain
from rlvitals.views.rollouts import DumpedRollouts

GROUPS, EACH, TURNS = 8, 8, 6
WORDS = [f"{head}{tail}" for head in ("bud", "con", "pro", "rel", "sta") for tail in range(2000)]


class Texts:
    """Random words, cut from one long list, because making them must not take longer than recording them."""

    def __init__(self):
        self.random = random.Random(0)
        self.words = self.random.choices(WORDS, k=200_000)

    def cut(self, count):
        start = self.random.randrange(len(self.words) - count)
        return " ".join(self.words[start : start + count])


def step_groups(texts, step):
    groups = []
    for number in range(GROUPS):
        rollouts = []
        for _ in range(EACH):
            turns = tuple(
                Turn(
                    text=texts.cut(25), calls=(ToolCall("search", {"keywords": [texts.cut(2)]}, texts.cut(80)),),
                    tokens=150, trainable_tokens=40, advantage=texts.random.gauss(0, 1),
                )
                for _ in range(TURNS)
            )  # fmt: skip
            outcome = texts.random.choice(("correct", "wrong", "idk"))
            rollouts.append(Rollout(turns, texts.random.gauss(0, 1), 0.0, outcome, "answered", seed=step))
        groups.append(Group(prompt=texts.cut(40), id=f"q{step}-{number}", rollouts=tuple(rollouts), max_turns=10))
    return groups


def milliseconds(body):
    """Wall time and the result."""
    began = time.perf_counter()
    result = body()
    return (time.perf_counter() - began) * 1000, result


def both_clocks(body):
    """Wall time and processor time: on a busy machine the second is the one to compare."""
    began = time.process_time()
    wall, _ = milliseconds(body)
    return wall, (time.process_time() - began) * 1000


def as_verl_does(groups, folder, step):
    with (folder / f"{step}.jsonl").open("w") as file:
        for group in groups:
            for rollout in group.rollouts:
                file.write(json.dumps({"input": group.prompt, "step": step, **plain(rollout)}) + "\n")


def as_trl_does(groups, folder, step):
    import pandas

    rows = [
        {"step": step, "prompt": group.prompt, "completion": json.dumps(plain(rollout)["turns"]), "r": rollout.reward}
        for group in groups
        for rollout in group.rollouts
    ]
    pandas.DataFrame(rows).to_parquet(folder / f"completions_{step:05d}.parquet")


def show(name, times):
    walls = sorted(wall for wall, _ in times)
    processor = statistics.median(taken for _, taken in times)
    print(
        f"  {name:<34} processor {processor:6.2f} ms   wall: median {statistics.median(walls):6.2f} ms"
        f"   p99 {walls[int(len(walls) * 0.99)]:6.2f} ms   worst {walls[-1]:6.2f} ms"
    )


def record(run_path, steps, folder):
    texts = Texts()
    ways = {"rlvitals: run.log_groups": None, "verl's way: json.dumps to a file": as_verl_does}
    try:
        import pandas  # noqa: F401
        import pyarrow  # noqa: F401

        ways["TRL's way: pandas to Parquet"] = as_trl_does
    except ImportError:
        print("  pandas and pyarrow are not installed: TRL's way is left out")
    times = {name: [] for name in ways}
    with rlvitals.start(run_path, monitor=False, display="none", hardware=False) as run:
        for step in range(steps):
            groups = step_groups(texts, step)
            times["rlvitals: run.log_groups"].append(both_clocks(lambda: run.log_groups(groups, step=step)))  # noqa: B023
            for name, write in ways.items():
                if write is not None and step < 200:
                    times[name].append(both_clocks(lambda: write(groups, folder, step)))  # noqa: B023
    print(f"\nRecording a step of {GROUPS * EACH} rollouts")
    for name, taken in times.items():
        show(name, taken)


def look(run_path, steps):
    word = "bud77"
    view = rlvitals.open_run(run_path)
    log = view.rollout_log
    print("\nLooking (ms)")
    asked = {
        "one step's groups, without an index": lambda: log.at(steps // 2),
        "what steps there are, the index being made": log.overview,
        "what steps there are": log.overview,
        "the 20 worst of all": lambda: log.find(worst=True),
        "20 by outcome at a step": lambda: log.find(step=steps // 2, outcome="wrong"),
        "the first 20 with a text": lambda: log.find(text=f"{word} "),
        "a text that is nowhere": lambda: log.find(text="giraffe"),
        "a text that is nowhere, in another script": lambda: log.find(text="żyrafa"),
    }
    for name, body in asked.items():
        taken, found = milliseconds(body)
        print(f"  {name:<44} {taken:10.1f}   ({len(found)} found)")
    folder = str(Path(run_path) / "logs" / "rollouts")
    taken, _ = milliseconds(
        lambda: subprocess.run(["grep", "-ril", "giraffe", folder], capture_output=True, check=False)
    )
    print(f"  {'grep -ril over the files':<44} {taken:10.1f}")
    size = sum(path.stat().st_size for path in Path(folder).iterdir())
    index = (Path(run_path) / "index" / "rollouts.sqlite").stat().st_size
    print(f"\n{size / 2**20:,.0f} MiB of rollouts, {index / 2**20:,.0f} MiB of index")


def look_at_dump(folder, files):
    """Read a dump of verl, with the table in a separate cache."""
    os.environ["RLVITALS_CACHE"] = str(folder / "cache")
    dump = folder / "dump"
    dump.mkdir()
    filler = "word " * 200
    for step in range(files):
        rows = ({"input": f"p{n // 8}", "output": f"{n} {filler}", "score": n / 200, "step": step} for n in range(200))
        (dump / f"{step}.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    log = DumpedRollouts(dump)
    print(f"Looking at a dump of {200 * files:,} rollouts (ms, ms of processor)")
    for name, body in {
        "what steps there are, the table being made": log.overview,
        "what steps there are": log.overview,
        "the 20 worst of all": lambda: log.find(worst=True),
        "one step's groups": lambda: log.at(files // 2),
        "a text that is nowhere": lambda: log.find(text="giraffe"),
    }.items():
        wall, processor = both_clocks(body)
        print(f"  {name:<44} {wall:10.0f} {processor:10.0f}")


def main():
    if "--dump" in sys.argv:
        sys.argv.remove("--dump")
        with tempfile.TemporaryDirectory() as folder:
            return look_at_dump(Path(folder), -(-int([*sys.argv, 100_000][1]) // 200))
    rollouts = int(sys.argv[1]) if len(sys.argv) > 1 else 100_000
    steps = -(-rollouts // (GROUPS * EACH))
    with tempfile.TemporaryDirectory() as folder:
        run_path = Path(folder) / "run"
        (Path(folder) / "others").mkdir()
        record(run_path, steps, Path(folder) / "others")
        look(run_path, steps)


if __name__ == "__main__":
    main()
