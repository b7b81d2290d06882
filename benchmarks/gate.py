"""Does `rlvitals gate` keep its word: false failures of healthy changes, and harm that it finds, with 3 baselines.

    python benchmarks/gate.py seeds                   list the trainings, before any of them is run, in gate_seeds.tsv
    python benchmarks/gate.py train DIR [--design]    train them, one group after the other
    python benchmarks/gate.py priors [DIR]            how runs differ beside the noise within them, on design seeds
    python benchmarks/gate.py measure [DIR] [--design] [--baselines N]
                                                      84 generated pairs, and four for each group trained in DIR

A pair is a candidate and three baselines that differ by their seed alone. Generated pairs come from the simulator of
tests/corpus: one world a pair, four runs of it, written as a framework's log. Real pairs are trainings of the tiny
trainers (`rlvitals train`) in groups of four that are trained in turns, a slice each, with their speed by CPU time:
the load of a shared machine changes the speed of equal trainings by a tenth and more. Each of a group is a candidate
once, beside the other three: four pairs that are not independent of each other.

Worse candidates are copies: every value of the goal lowered by 10 % of its size, or every speed by 15 % (step times
and the clock stretched accordingly). `handicapped` are candidates that were really trained with a third of the
learning rate, beside three runs of their group.

The numbers of `views/gate.py` were chosen with `priors` and `measure --design`: other seeds.
"""

from __future__ import annotations

import argparse
import csv
import json
import math
import os
import shutil
import signal
import sys
import tempfile
import time
from collections import defaultdict
from dataclasses import asdict, dataclass
from pathlib import Path

import numpy as np

HERE = Path(__file__).parent
SEEDS = HERE / "gate_seeds.tsv"
sys.path.insert(0, str(HERE.parent / "tests"))  # the simulator lives with the tests

BASELINES = 3
GROUPS = ("ppo", "ppo", "ppo", "grpo", "kto", "ppo", "ppo", "ppo", "ppo", "ppo", "ppo", "ppo")
DESIGN_GROUPS = ("ppo", "ppo", "grpo", "kto", "ppo", "ppo", "ppo", "ppo", "ppo", "ppo") * 2
HANDICAPPED = 3
FIRST_SEED, FIRST_DESIGN_SEED, START_SEED = 2000, 1000, 9000
SLICE = 0.25
"""Seconds of CPU after which another training of a group goes on."""
LOWER, SLOWER = 0.10, 0.15

WORDS = ("red", "blue", "green", "black", "white", "brown")


# Real trainings


@dataclass(frozen=True)
class Training:
    """One training: of which group it is, in which part, by which trainer, with which seed."""

    group: str
    part: str
    trainer: str
    seed: int

    @property
    def folder(self):
        return f"{self.group}-{self.part}"


def planned(groups, first, *, handicapped=0):
    """Every training of the plan, in the order they are run: four of a group, which differ by their seed alone."""
    found, counted = [], defaultdict(int)
    for number, trainer in enumerate(groups):
        counted[trainer] += 1
        parts = [f"run{at}" for at in range(1 + BASELINES)]
        if trainer == "ppo" and counted[trainer] <= handicapped:
            parts.append("handicapped")
        name = f"{trainer}{counted[trainer]:02}"
        found += [Training(name, part, trainer, first + 10 * number + at) for at, part in enumerate(parts)]
    return found


def listed():
    with open(SEEDS, newline="") as file:
        rows = csv.DictReader(file, delimiter="\t")
        return [Training(row["group"], row["part"], row["trainer"], int(row["seed"])) for row in rows]


def write_seeds():
    rows = [asdict(training) for training in planned(GROUPS, FIRST_SEED, handicapped=HANDICAPPED)]
    with open(SEEDS, "w", newline="") as file:
        writer = csv.DictWriter(file, ["group", "part", "trainer", "seed"], delimiter="\t", lineterminator="\n")
        writer.writeheader()
        writer.writerows(rows)
    print(f"{SEEDS}: {len(rows)} trainings")


def settings_of(trainer, root):
    """What every training of a trainer has in common; the start model is the same for all."""
    quiet = {"display": "none", "save_steps": 100_000}
    if trainer == "ppo":
        return quiet | {
            "families": (), "dataset": str(root / "words.jsonl"), "reward": "grade", "held_out": 6, "max_new_tokens": 4,
            "batch_size": 64, "minibatch_size": 32, "ppo_epochs": 1, "eval_steps": 1000, "steps_per_epoch": 1000,
            "learning_rate": 4e-4, "kl_coef": 0.01, "plots": False, "text_scores": (), "early_stopping": 0,
            "warm_up_batch": 16,
        }  # fmt: skip
    if trainer == "grpo":
        return quiet | {
            "mode": "simple", "max_steps": 20, "groups_per_step": 8, "rollouts_per_group": 4, "reward": "plain",
            "eval_steps": 1000, "early_stopping": 0, "held_out": 2, "trace_rollouts": 0,
        }  # fmt: skip
    return quiet | {
        "batch_size": 16, "examples": 1200, "eval_steps": 0, "dataset": str(root / "kto.jsonl"),
        "learning_rate": 1e-4,
    }  # fmt: skip


def run_group(trainings, root):
    """Train side by side, each in a child of this process, which has imported what they need, and one at a time: each
    in turn goes on for a slice. So all of a group meet the same load of a shared machine. Returns the CPU seconds.
    """
    before = os.times()
    children = [_forked(training, root) for training in trainings]
    try:
        while children:
            for child in list(children):
                _go_on(child, children)
    finally:
        for child in children:  # stopped, and nobody's otherwise
            os.kill(child, signal.SIGKILL)
    after = os.times()
    for training in trainings:
        (root / training.folder / ".done").touch()
    return after.children_user + after.children_system - before.children_user - before.children_system


def _go_on(child, children):
    """Let one child run for a slice; take it off the list where it has ended."""
    os.kill(child, signal.SIGCONT)
    until, patience = _cpu_seconds(child) + SLICE, time.monotonic() + 20 * SLICE
    while True:
        ended, status = os.waitpid(child, os.WNOHANG)
        if ended:
            children.remove(child)
            if status:
                raise SystemExit("a training failed")
            return
        if _cpu_seconds(child) >= until or time.monotonic() > patience:
            os.kill(child, signal.SIGSTOP)
            return
        time.sleep(SLICE / 10)


def _forked(training, root):
    child = os.fork()
    if child == 0:
        code = 1
        try:
            os.kill(os.getpid(), signal.SIGSTOP)
            _train(training, root, root / training.folder)
            code = 0
        finally:
            sys.stdout.flush()
            os._exit(code)
    os.waitpid(child, os.WUNTRACED)
    return child


def _cpu_seconds(process):
    fields = Path(f"/proc/{process}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def _train(training, root, target):
    from rlvitals.train import recipe

    given = settings_of(training.trainer, root) | {"output_dir": str(target), "seed": training.seed}
    if training.trainer == "ppo":
        from rlvitals.train.ppo import trainer as module
        from rlvitals.train.ppo.settings import PPOSettings as Settings

        is_start = training.part == "start"
        given |= {"max_steps": 1, "warm_up_steps": 45} if is_start else {
            "max_steps": 30, "warm_up_steps": 0, "model": str(root / "ppo-start" / "warm_start")}  # fmt: skip
        if training.part == "handicapped":
            given["learning_rate"] = given["learning_rate"] / 3
    elif training.trainer == "grpo":
        from rlvitals.train.grpo import trainer as module
        from rlvitals.train.grpo.settings import GRPOSettings as Settings
    else:
        from rlvitals.train.kto import trainer as module
        from rlvitals.train.kto.trainer import KTOSettings as Settings

        is_start = training.part == "start"
        given |= {"max_steps": 1, "warm_up_steps": 300} if is_start else {
            "max_steps": 60, "warm_up_steps": 0, "model": str(root / "kto-start" / "tiny_model")}  # fmt: skip
    module.train(recipe.load(training.trainer, Settings, given=given))


def train_all(root, trainings):
    # The machine is shared: what others compute meanwhile must not count as the run's own speed. Set before rlvitals
    # is imported, which takes the clock of its phases then.
    time.perf_counter = time.process_time
    import torch
    import transformers  # noqa: F401 - imported once, for every child
    import trl  # noqa: F401
    from transformers import AutoModelForCausalLM, Trainer  # noqa: F401
    from trl import KTOTrainer  # noqa: F401

    from rlvitals.train.kto import data as preferences

    torch.set_num_threads(1)
    root.mkdir(parents=True, exist_ok=True)
    lines = [{"prompt": f"say {one} {other}:", "reference": f" {one}"} for one in WORDS for other in WORDS]
    (root / "words.jsonl").write_text("".join(f"{json.dumps(line)}\n" for line in lines))
    examples = preferences.make(1200, seed=START_SEED, held_out_share=0.0).train
    (root / "kto.jsonl").write_text("".join(f"{json.dumps(asdict(example))}\n" for example in examples))
    needed = {training.trainer for training in trainings}
    groups = {("start", trainer): [Training(trainer, "start", trainer, START_SEED)] for trainer in ("ppo", "kto")}
    groups = {key: starts for key, starts in groups.items() if key[1] in needed}
    for training in trainings:
        groups.setdefault(training.group, []).append(training)
    spent = 0.0
    for own in groups.values():
        if all((root / training.folder / ".done").exists() for training in own):
            continue
        for training in own:  # left half done
            shutil.rmtree(root / training.folder, ignore_errors=True)
        began, seconds = time.monotonic(), run_group(own, root)
        spent += seconds
        print(f"{own[0].group} {seconds:.1f} s of CPU, {time.monotonic() - began:.1f} s", flush=True)
    print(f"{spent:.0f} s of CPU in all")


# Generated runs


FAMILIES = (
    ("trl", "grpo"), ("verl", "grpo"), ("openrlhf", "grpo"), ("roll", "grpo"), ("slime", "grpo"), ("areal", "grpo"),
    ("skyrl", "grpo"), ("nemo_rl", "grpo"), ("prime_rl", "grpo"), ("verl", "ppo"), ("openrlhf", "ppo"),
    ("trl", "rloo"), ("tinker", "grpo"), ("trl", "dpo"),
)  # fmt: skip
PAIRS_A_FAMILY = 6
GENERATED_SEED, GENERATED_DESIGN_SEED = 700, 500
NODE = 0.02
"""How much the machines differ in speed, as a standard deviation of its logarithm."""


def generated(framework, algorithm, seed, count):
    """So many runs of one world, which differ by their random numbers alone; rows with a clock."""
    from corpus.build import Scene, complete, draw
    from corpus.build import settings_of as world_settings
    from corpus.habits import HABITS, PAIR_HABITS
    from corpus.latent import World, curves_of, observe
    from corpus.names import family, rows_of
    from corpus.noise import generator, wobble
    from corpus.preference import PairWorld, observe_pairs, pair_curves_of

    where = family(framework, algorithm)
    rng = generator(seed, f"gate-{where}")
    pairwise = where in PAIR_HABITS
    knobs = {name: draw(rng, value, name) for name, value in (PAIR_HABITS if pairwise else HABITS)[where].items()}
    world = PairWorld(**knobs) if pairwise else World(**knobs)
    for number in range(count):
        own = generator(seed, f"gate-{where}-{number}")
        node = float(np.exp(own.normal(0, NODE)))
        if pairwise:
            series = observe_pairs(world, pair_curves_of(world, own), own)
            seconds = 3.0 * node * wobble(own, world.points, 0.05)
        else:
            curves = curves_of(world, own)
            scene = Scene(world, curves, 0, own, 1.0, world_settings(world))
            series = complete(scene, where, observe(world, curves, own))
            for name in ("seconds", "seconds_gen"):
                series[name] = series[name] * node
            for name in ("tokens_per_s", "samples_per_s"):
                series[name] = series[name] / node
            seconds = series["seconds"]
        rows, index = rows_of(series, framework, algorithm, world.every)
        times = 1.7e9 + np.cumsum(np.asarray(seconds, dtype=float))
        clock = dict(zip(index, times, strict=True))
        now = times[0]
        for place, row in enumerate(rows):
            now = clock.get(place, now)
            row["timestamp"] = round(float(now), 3)
        yield rows


def written(rows, path):
    path.write_text("".join(f"{json.dumps(row)}\n" for row in rows))
    return path


# Worse copies of rows


def lowered(rows, goal):
    """Every value of the goal lowered by a share of its size."""
    return [
        row | {goal: row[goal] - LOWER * abs(row[goal])} if isinstance(row.get(goal), float | int) else row
        for row in rows
    ]


def slowed(rows, view):
    """Every speed lowered, every time and the clock stretched."""
    factors = {}
    for name in view.metrics:
        concept = view.concept(name) or ""
        meaning = view.meaning(name)
        if concept.startswith("perf.") and meaning.metric.direction == "up" and "/s" in meaning.metric.unit:
            factors[name] = 1 - SLOWER
        elif concept.startswith("time.") and meaning.metric.unit in ("s", "ms"):
            factors[name] = 1 / (1 - SLOWER)
    start = min((row["timestamp"] for row in rows if "timestamp" in row), default=0.0)
    changed = []
    for row in rows:
        own = {name: row[name] * factor for name, factor in factors.items() if isinstance(row.get(name), float | int)}
        if "timestamp" in row:
            own["timestamp"] = start + (row["timestamp"] - start) / (1 - SLOWER)
        changed.append(row | own)
    return changed


def copied(run, target, change):
    """A copy of a run's directory whose training rows are changed."""
    shutil.copytree(
        run, target, ignore=shutil.ignore_patterns("index", "*model*", "warm_start", "checkpoint*", "rollouts")
    )
    log = target / "logs" / "training_metrics.jsonl"
    rows = [json.loads(line) for line in log.read_text().splitlines()]
    log.write_text("".join(f"{json.dumps(row)}\n" for row in change(rows)))
    return target


# Pairs


@dataclass
class Pair:
    """A healthy candidate, its worse copies, and the baselines, as paths."""

    name: str
    kind: str
    candidate: Path
    baselines: list
    lower: Path
    slower: Path
    handicapped: Path | None = None


def generated_pairs(folder, first):
    from corpus.names import KEYS, family
    from rlvitals.views.logs import open_any

    for framework, algorithm in FAMILIES:
        for number in range(PAIRS_A_FAMILY):
            name = f"{framework}-{algorithm}-{first + number}"
            runs = list(generated(framework, algorithm, first + number, 1 + BASELINES))
            places = [written(rows, folder / f"{name}-{part}.jsonl") for part, rows in enumerate(runs)]
            view = open_any(places[0])
            keys = KEYS[family(framework, algorithm)]
            goal = keys.get("reward") or keys["margin"]
            yield Pair(
                name, f"generated {algorithm}", places[0], places[1:],
                written(lowered(runs[0], goal), folder / f"{name}-lower.jsonl"),
                written(slowed(runs[0], view), folder / f"{name}-slower.jsonl"),
            )  # fmt: skip


def real_pairs(root, folder, trainings):
    from rlvitals.views.logs import open_any

    groups = defaultdict(dict)
    for training in trainings:
        if (root / training.folder / ".done").exists():
            groups[training.group][training.part] = root / training.folder
    for group, parts in groups.items():
        runs = [path for part, path in parts.items() if part.startswith("run")]
        if len(runs) < 1 + BASELINES:
            continue
        for place, candidate in enumerate(runs):
            view = open_any(candidate)
            name = f"{group}-{place}"
            yield Pair(
                name, f"real {group.rstrip('0123456789')}", candidate, [run for run in runs if run != candidate],
                copied(candidate, folder / f"{name}-lower", lambda rows, goal=view.outcome: lowered(rows, goal)),
                copied(candidate, folder / f"{name}-slower", lambda rows, view=view: slowed(rows, view)),
                parts.get("handicapped") if place == 0 else None,
            )  # fmt: skip


# Figures


def judge(candidate, baselines):
    from rlvitals.views.gate import gate
    from rlvitals.views.logs import open_any

    return gate(open_any(candidate), [open_any(path) for path in baselines])


def goal_word(report):
    return "margin" if "margin" in report.goal["metric"] else "reward"


def measure(root, *, design, baselines, verbose):
    from doctor import wilson

    counts = defaultdict(lambda: defaultdict(list))
    why = defaultdict(lambda: defaultdict(int))
    first = GENERATED_DESIGN_SEED if design else GENERATED_SEED
    trainings = planned(DESIGN_GROUPS, FIRST_DESIGN_SEED, handicapped=HANDICAPPED) if design else listed()
    with tempfile.TemporaryDirectory() as place:
        folder = Path(place)
        pairs = [*generated_pairs(folder, first), *(real_pairs(root, folder, trainings) if root else ())]
        for pair in pairs:
            used = pair.baselines[:baselines]
            healthy = judge(pair.candidate, used)
            rewards, speed = judge(pair.lower, used), judge(pair.slower, used)
            found = {
                "false failures": healthy.state == "fail",
                f"10 % lower {goal_word(rewards)} found": any(
                    one.group in ("outcome", "pace") and one.state == "fail" for one in rewards.tests
                ),
                "15 % lower speed found": any(one.group == "speed" and one.state == "fail" for one in speed.tests),
            }
            if pair.handicapped:
                found["handicapped found"] = judge(pair.handicapped, used).state == "fail"
            for what, is_so in found.items():
                counts[pair.kind][what].append(is_so)
                counts["all"][what].append(is_so)
                counts[pair.kind.split()[0]][what].append(is_so)
            for one in healthy.failed:
                why["healthy"][getattr(one, "name", one.title)] += 1
                if verbose:
                    print(pair.name, getattr(one, "name", ""), getattr(one, "told", ""), getattr(one, "change", ""))
            for one in healthy.tests:
                why["detectable"][one.name] += one.detectable / len(pairs)
            if verbose:
                print(pair.name, {what: bool(is_so) for what, is_so in found.items()}, {
                    one.name: f"{one.detectable:.2f}" for one in healthy.tests}, flush=True)  # fmt: skip
    columns = ["false failures", "10 % lower reward found", "15 % lower speed found", "10 % lower margin found"]
    columns += ["handicapped found"]
    print(f"\n{len(pairs)} pairs, {baselines} baselines each\n\n| pairs | n | " + " | ".join(columns) + " |")
    print("|---" * (len(columns) + 2) + "|")
    for kind in sorted(counts):
        cells = []
        for what in columns:
            seen = counts[kind][what]
            cells.append(f"{sum(seen)} of {len(seen)}: {wilson(sum(seen), len(seen))}" if seen else "-")
        print(f"| {kind} | {len(counts[kind]['false failures'])} | " + " | ".join(cells) + " |")
    print("\nfalse failures by:", dict(why["healthy"]))


def priors(root):
    """For each measure, as limma's fitFDist: how the spread between runs of one kind relates to the noise within."""
    from scipy.special import digamma, polygamma

    from rlvitals.views.gate import PRIORS, _turned
    from rlvitals.views.gate_measures import measure_runs
    from rlvitals.views.logs import open_any

    ratios = defaultdict(list)
    spreads = defaultdict(list)
    many = 9
    with tempfile.TemporaryDirectory() as place:
        folder = Path(place)
        groups = []
        for framework, algorithm in FAMILIES:
            for seed in range(GENERATED_DESIGN_SEED + 50, GENERATED_DESIGN_SEED + 54):
                runs = generated(framework, algorithm, seed, many)
                groups.append(
                    [
                        written(rows, folder / f"{framework}-{algorithm}-{seed}-{at}.jsonl")
                        for at, rows in enumerate(runs)
                    ]
                )
        for trainer in sorted(set(DESIGN_GROUPS)) if root else ():
            done = sorted(path.parent for path in root.glob(f"{trainer}[0-9]*-run*/.done"))
            groups += [done] if len(done) > 2 else []
        for group in groups:
            measured = measure_runs([open_any(path) for path in group])
            for one in measured.measures:
                samples = [_turned(one, sample) for sample in (one.candidate, *one.baselines)]
                values = [sample.value for sample in samples]
                within = max(np.mean([sample.noise**2 for sample in samples[:BASELINES]]), PRIORS[one.name].least ** 2)
                between = np.var(values, ddof=1)
                spreads[one.name].append(math.sqrt(between))
                ratios[one.name].append((max(between / within, 1e-4), len(values) - 1))
    for name, found in ratios.items():
        logs = np.array([math.log(ratio) - digamma(df / 2) + math.log(df / 2) for ratio, df in found])
        sampling = np.mean([polygamma(1, df / 2) for _, df in found])
        excess = max(float(np.var(logs, ddof=1)) - sampling, 1e-3)
        low, high = 0.1, 1e4
        for _ in range(100):
            middle = math.sqrt(low * high)
            low, high = (middle, high) if polygamma(1, middle / 2) > excess else (low, middle)
        factor = math.exp(0.5 * (logs.mean() + digamma(low / 2) - math.log(low / 2)))
        print(
            f"{name:15} groups {len(found):3}  factor {factor:6.2f}  worth {low:8.1f}  "
            f"median spread {np.median(spreads[name]):.4f}"
        )


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    verbs = parser.add_subparsers(dest="verb", required=True)
    verbs.add_parser("seeds")
    for name in ("train", "priors", "measure"):
        verb = verbs.add_parser(name)
        verb.add_argument("folder", type=Path, nargs=None if name == "train" else "?")
        verb.add_argument("--design", action="store_true", help="other seeds than those of the report")
        verb.add_argument("--baselines", type=int, default=BASELINES, help="so many of the three")
        verb.add_argument("--verbose", action="store_true")
    arguments = parser.parse_args()
    if arguments.verb == "seeds":
        write_seeds()
    elif arguments.verb == "train":
        train_all(
            arguments.folder,
            planned(DESIGN_GROUPS, FIRST_DESIGN_SEED, handicapped=HANDICAPPED) if arguments.design else listed(),
        )
    elif arguments.verb == "priors":
        priors(arguments.folder)
    else:
        measure(arguments.folder, design=arguments.design, baselines=arguments.baselines, verbose=arguments.verbose)


if __name__ == "__main__":
    main()
