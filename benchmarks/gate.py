"""The reliability of `rlvitals gate` with 3 baselines: false failures of healthy changes, and regressions found.

    python benchmarks/gate.py seeds                   list the trainings, before any of them is run, in gate_seeds.tsv
    python benchmarks/gate.py train DIR [--cores N] [--seconds S] [--list NAME]
                                                      train them, N at a time, each on its own core
    python benchmarks/gate.py priors [DIR]            how runs differ beyond the noise within them, on design seeds
    python benchmarks/gate.py measure [DIR] [--design] [--baselines N]
                                                      84 generated pairs, and four for each group trained in DIR

A pair is a candidate and three baselines that differ only in their seed. Generated pairs come from the simulator of
tests/corpus: one world per pair, with four runs, written as a framework's log. Real pairs are trainings of the tiny
trainers (`rlvitals train`) in groups of four, by the recipes below. Each run of a group is the candidate once, with the
other three as baselines: these four pairs are not independent. The machine must be idle, and N at most the number of
its physical cores: other processes would change the measured speed.

Worse candidates are copies: every value of the goal is lowered by 10 % of its size, or every speed by 15 % (step times
and the clock are stretched accordingly). `handicapped` candidates were really trained with a third of the learning
rate, and are compared with three runs of their group.

The constants in `views/gate.py` were chosen with `priors` and `measure --design`, which use other seeds.
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
import traceback
from collections import defaultdict
from dataclasses import asdict, dataclass, replace
from pathlib import Path

import numpy as np

HERE = Path(__file__).parent
SEEDS = HERE / "gate_seeds.tsv"
sys.path.insert(0, str(HERE.parent / "tests"))  # the simulator is in tests/

BASELINES = 3
START_SEED = 9000
LOWER, SLOWER = 0.10, 0.15

WORDS = ("red", "blue", "green", "black", "white", "brown")


# Real trainings


QUIET = {"display": "none", "save_steps": 100_000, "early_stopping": 0}
RECIPES = {
    # Trainings that suit a gate: they have converged at their end, their batches and steps suffice for seeds to agree,
    # and every step does the same work.
    "ppo": {
        "families": (), "dataset": "words.jsonl", "reward": "grade", "held_out": 6, "max_new_tokens": 4,
        "batch_size": 128, "minibatch_size": 64, "ppo_epochs": 1, "eval_steps": 1000, "steps_per_epoch": 1000,
        "learning_rate": 4e-4, "kl_coef": 0.01, "plots": False, "text_scores": (), "warm_up_batch": 16,
        "max_steps": 80,
    },
    "grpo": {
        "mode": "masked", "tiny_start": "syntax", "families": ("lead", "room", "day", "phone"), "reward": "progress",
        "groups_per_step": 8, "rollouts_per_group": 8, "min_group_std": 0.0, "max_steps": 60, "eval_steps": 10,
        "held_out": 60, "trace_rollouts": 0, "learning_rate": 5e-4,
    },
    "kto": {
        "dataset": "kto.jsonl", "eval_dataset": "kto_held_out.jsonl", "batch_size": 128, "eval_steps": 4,
        "learning_rate": 3e-4, "max_steps": 64,
    },
}  # fmt: skip
RECIPES["short-ppo"] = RECIPES["ppo"] | {"batch_size": 64, "minibatch_size": 32, "max_steps": 30}
"""A training that does not suit a gate: it ends while seeds still differ."""

GOALS = {"kto": "eval_rewards/margins"}
"""The value of `--metric`. For a preference run it is the margin on the held-out examples, which are always the same;
the margin of a batch depends on its examples."""

STARTS = {"ppo": ({"max_steps": 1, "warm_up_steps": 45}, "warm_start"),
          "kto": ({"max_steps": 1, "warm_up_steps": 300}, "tiny_model")}  # fmt: skip
"""The common start of all trainings of a trainer is trained once: its settings, and the folder of the result."""

PLAN = {
    "report": (7000, ("ppo", "kto", "grpo") * 2 + ("ppo",) * 3 + ("ppo", "kto", "grpo") * 2),
    "design": (6000, ("ppo", "grpo", "kto", *("short-ppo",) * 6)),
    "short": (5000, ("short-ppo",) * 6),
}
"""The first seed of each list, and its groups in the order of training."""


@dataclass(frozen=True)
class Training:
    """One training: its group, part, recipe and seed."""

    list: str
    group: str
    part: str
    recipe: str
    seed: int

    @property
    def trainer(self):
        return self.recipe.rpartition("-")[2]

    @property
    def folder(self):
        return f"{self.group}-{self.part}"


def planned():
    """Every training, in the order of running: four per group, which differ only in their seed, and a handicapped one
    for the first group of a recipe.
    """
    found, counted = [], defaultdict(int)
    for kind, (first, recipes) in PLAN.items():
        for number, recipe in enumerate(recipes):
            counted[recipe] += 1
            parts = [f"run{at}" for at in range(1 + BASELINES)]
            parts += ["handicapped"] if counted[recipe] == 1 else []
            name, seed = f"{recipe}{counted[recipe]:02}", first + 10 * number
            found += [Training(kind, name, part, recipe, seed + at) for at, part in enumerate(parts)]
    return found


def listed(kind):
    with open(SEEDS, newline="") as file:
        rows = csv.DictReader(file, delimiter="\t")
        return [Training(**row | {"seed": int(row["seed"])}) for row in rows if row["list"] == kind]


def write_seeds():
    rows = [asdict(training) for training in planned()]
    with open(SEEDS, "w", newline="") as file:
        writer = csv.DictWriter(file, list(rows[0]), delimiter="\t", lineterminator="\n")
        writer.writeheader()
        writer.writerows(rows)
    print(f"{SEEDS}: {len(rows)} trainings")


def train_all(root, cores, seconds, kind):
    """Train in the order of the list, as many at a time as there are cores, each on its own core. After `seconds` no
    training is started, and running ones are killed.
    """
    until = time.monotonic() + seconds
    load_libraries()
    write_data(root)
    starts = [Training("start", trainer, "start", trainer, START_SEED) for trainer in STARTS]
    waiting = [one for one in (*starts, *listed(kind)) if not (root / one.folder / ".done").exists()]
    processors = os.cpu_count()
    free, running = (
        list(range(0, processors, max(processors // cores, 1)))[:cores],
        {},
    )  # far apart: two neighbours may share a physical core
    while running or waiting:
        if time.monotonic() > until:
            waiting.clear()
            for child in running:
                os.kill(child, signal.SIGKILL)
        while waiting and free:
            training, core = waiting.pop(0), free.pop(0)
            running[_forked(training, root, core)] = training, core, time.monotonic()
        ended, status = os.waitpid(-1, os.WNOHANG) if running else (0, 0)
        if ended:
            training, core, began = running.pop(ended)
            free.append(core)
            print(f"{training.folder}: status {status} after {time.monotonic() - began:.1f} s on {core}", flush=True)
        else:
            time.sleep(0.05)


def _forked(training, root, core):
    """Fork a training from this process, which has imported the libraries."""
    child = os.fork()
    if child == 0:
        code = 1
        try:
            os.sched_setaffinity(0, {core})
            _train(training, root)
            code = 0
        except BaseException:  # noqa: BLE001 - reported, and the status says that it failed
            traceback.print_exc()
        finally:
            sys.stdout.flush()
            os._exit(code)
    return child


def _train(training, root):
    from rlvitals.train import recipe

    target = root / training.folder
    shutil.rmtree(target, ignore_errors=True)  # incomplete
    given = QUIET | RECIPES[training.recipe] | {"output_dir": str(target), "seed": training.seed}
    if training.trainer == "kto":
        del given["early_stopping"]
    given |= {name: str(root / given[name]) for name in ("dataset", "eval_dataset") if name in given}
    if training.trainer in STARTS:
        how, where = STARTS[training.trainer]
        start = root / f"{training.trainer}-start"
        if training.part == "start":
            given |= how
        else:
            while not (start / ".done").exists():
                time.sleep(0.1)
            given |= {"warm_up_steps": 0, "model": str(start / where)}
    if training.part == "handicapped":
        given["learning_rate"] /= 3
    if training.trainer == "ppo":
        from rlvitals.train.ppo import trainer as module
        from rlvitals.train.ppo.settings import PPOSettings as Settings
    elif training.trainer == "grpo":
        from rlvitals.train.grpo import trainer as module
        from rlvitals.train.grpo.settings import GRPOSettings as Settings
    else:
        from rlvitals.train.kto import trainer as module
        from rlvitals.train.kto.trainer import KTOSettings as Settings
    module.train(recipe.load(training.trainer, Settings, given=given))
    (target / ".done").touch()


def load_libraries():
    """Import the libraries that every child needs, once."""
    import torch
    import transformers  # noqa: F401
    import trl  # noqa: F401
    from transformers import AutoModelForCausalLM, Trainer  # noqa: F401
    from trl import KTOTrainer  # noqa: F401

    import rlvitals.train.grpo.trainer
    import rlvitals.train.ppo.trainer  # noqa: F401

    torch.set_num_threads(1)


def write_data(root):
    """The data that the trainings read."""
    from rlvitals.train.kto import data as preferences

    root.mkdir(parents=True, exist_ok=True)
    lines = [{"prompt": f"say {one} {other}:", "reference": f" {one}"} for one in WORDS for other in WORDS]
    (root / "words.jsonl").write_text("".join(f"{json.dumps(line)}\n" for line in lines))
    made = preferences.make(1328, seed=START_SEED, held_out_share=128 / 1328)
    for name, examples in (("kto.jsonl", made.train), ("kto_held_out.jsonl", made.held_out)):
        (root / name).write_text("".join(f"{json.dumps(asdict(example))}\n" for example in examples))


# Generated runs


FAMILIES = (
    ("trl", "grpo"), ("verl", "grpo"), ("openrlhf", "grpo"), ("roll", "grpo"), ("slime", "grpo"), ("areal", "grpo"),
    ("skyrl", "grpo"), ("nemo_rl", "grpo"), ("prime_rl", "grpo"), ("verl", "ppo"), ("openrlhf", "ppo"),
    ("trl", "rloo"), ("tinker", "grpo"), ("trl", "dpo"),
)  # fmt: skip
PAIRS_A_FAMILY = 6
GENERATED_SEED, GENERATED_DESIGN_SEED = 800, 500
NODE = 0.02
"""The standard deviation of the logarithm of the speed between machines."""


def generated(framework, algorithm, seed, count):
    """`count` runs of one world that differ only in their random numbers; the rows have times."""
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
    """The rows with every value of the goal lowered by a share of its size."""
    return [
        row | {goal: row[goal] - LOWER * abs(row[goal])} if isinstance(row.get(goal), float | int) else row
        for row in rows
    ]


def slowed(rows, view):
    """The rows with every speed lowered, and every duration and the clock stretched."""
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
    """A copy of a run's directory with changed rows, those of evaluations included."""
    shutil.copytree(
        run, target, ignore=shutil.ignore_patterns("index", "*model*", "warm_start", "checkpoint*", "rollouts")
    )
    for log in (target / "logs" / "training_metrics.jsonl", target / "logs" / "eval_metrics.jsonl"):
        if log.exists():
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
    metric: str | None = None
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
            name, metric = f"{group}-{place}", GOALS.get(group.rstrip("0123456789"))
            goal = metric or view.outcome
            kind = f"real {group.rstrip('0123456789')}".replace("real short-", "short ")
            yield Pair(
                name, kind, candidate, [run for run in runs if run != candidate],
                copied(candidate, folder / f"{name}-lower", lambda rows, goal=goal: lowered(rows, goal)),
                copied(candidate, folder / f"{name}-slower", lambda rows, view=view: slowed(rows, view)),
                metric,
                parts.get("handicapped") if place == 0 else None,
            )  # fmt: skip


# Figures


def judge(candidate, baselines, metric):
    from rlvitals.views.gate import gate
    from rlvitals.views.logs import open_any

    return gate(open_any(candidate), [open_any(path) for path in baselines], metric=metric)


def goal_word(report):
    return "margin" if "margin" in report.goal["metric"] else "reward"


def measure(root, *, design, baselines, verbose):
    from doctor import wilson

    counts = defaultdict(lambda: defaultdict(list))
    why = defaultdict(lambda: defaultdict(int))
    first = GENERATED_DESIGN_SEED if design else GENERATED_SEED
    trainings = listed("design") if design else [*listed("report"), *listed("short")]
    with tempfile.TemporaryDirectory() as place:
        folder = Path(place)
        pairs = [*generated_pairs(folder, first), *(real_pairs(root, folder, trainings) if root else ())]
        for pair in pairs:
            used = pair.baselines[:baselines]
            healthy = judge(pair.candidate, used, pair.metric)
            rewards, speed = judge(pair.lower, used, pair.metric), judge(pair.slower, used, pair.metric)
            found = {
                "false failures": healthy.state == "fail",
                f"10 % lower {goal_word(rewards)} found": any(
                    one.group in ("outcome", "pace") and one.state == "fail" for one in rewards.tests
                ),
                "15 % lower speed found": any(one.group == "speed" and one.state == "fail" for one in speed.tests),
            }
            if pair.handicapped:
                found["handicapped found"] = judge(pair.handicapped, used, pair.metric).state == "fail"
            for what, is_so in found.items():
                counts[pair.kind][what].append(is_so)
                if not pair.kind.startswith("short"):
                    counts["all"][what].append(is_so)
                counts[pair.kind.split()[0]][what].append(is_so)
            for one in healthy.failed:
                why["healthy"][getattr(one, "name", one.title)] += 1
                if verbose:
                    print(pair.name, getattr(one, "name", ""), getattr(one, "text", ""), getattr(one, "change", ""))
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
    """For each measure, as in limma's fitFDist: the ratio of the spread between runs of one kind to the noise within
    them; and how often p is small when each run is compared with the next three, which should match p.
    """
    from scipy.special import digamma, polygamma

    from rlvitals.views.gate import PRIORS, _Compared, _turned
    from rlvitals.views.gate_measures import measure_runs
    from rlvitals.views.logs import open_any

    ratios = defaultdict(list)
    spreads = defaultdict(list)
    chances = defaultdict(list)
    many = 8
    with tempfile.TemporaryDirectory() as place:
        folder = Path(place)
        groups = []
        for framework, algorithm in FAMILIES:
            for seed in range(GENERATED_DESIGN_SEED + 50, GENERATED_DESIGN_SEED + 53):
                runs = generated(framework, algorithm, seed, many)
                groups.append(
                    [
                        written(rows, folder / f"{framework}-{algorithm}-{seed}-{at}.jsonl")
                        for at, rows in enumerate(runs)
                    ]
                )
        for recipe in {training.recipe for training in listed("design")} if root else ():
            own = [training for training in listed("design") if training.recipe == recipe]
            done = [root / one.folder for one in own if one.part != "handicapped"]
            done = [place for place in done if (place / ".done").exists()]
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
                runs = [one.candidate, *one.baselines]
                for at in range(len(runs) if len(runs) > BASELINES else 0):
                    candidate, *others = (runs + runs)[at : at + 1 + BASELINES]
                    chances[one.name].append(_Compared(replace(one, candidate=candidate, baselines=others), None).p)
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
            f"median spread {np.median(spreads[name]):.4f}  p < 5 % {np.mean(np.array(chances[name]) < 0.05):.1%}  "
            f"p < 1 % {np.mean(np.array(chances[name]) < 0.01):.1%} of {len(chances[name])}"
        )


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    verbs = parser.add_subparsers(dest="verb", required=True)
    verbs.add_parser("seeds")
    for name in ("train", "priors", "measure"):
        verb = verbs.add_parser(name)
        verb.add_argument("folder", type=Path, nargs=None if name == "train" else "?")
        if name == "train":
            verb.add_argument("--cores", type=int, default=1, help="train so many at a time, each on its own core")
            verb.add_argument("--list", choices=PLAN, default="report", help="which of the lists")
            verb.add_argument("--seconds", type=float, default=math.inf, help="leave out what has not begun by then")
        elif name == "measure":
            verb.add_argument("--design", action="store_true", help="other seeds than those of the report")
            verb.add_argument("--baselines", type=int, default=BASELINES, help="so many of the three")
            verb.add_argument("--verbose", action="store_true")
    arguments = parser.parse_args()
    if arguments.verb == "seeds":
        write_seeds()
    elif arguments.verb == "train":
        train_all(arguments.folder, arguments.cores, arguments.seconds, arguments.list)
    elif arguments.verb == "priors":
        priors(arguments.folder)
    else:
        measure(arguments.folder, design=arguments.design, baselines=arguments.baselines, verbose=arguments.verbose)


if __name__ == "__main__":
    main()
