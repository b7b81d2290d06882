"""Do the rules name the cause of a gap between engine and trainer, and no cause if there is no gap?

    python benchmarks/causes.py [--seeds 21,22] [--fit SEEDS] [--cache DIR] [--per-run]

Runs come from `tests/corpus/gaps.py`: a small policy is really sampled by an engine and scored by a trainer, under the
names of eight frameworks. The answer for a run is the cause of the first finding that names one; it is right if that
cause was planted. `--fit` writes `health/data/likelihoods.json`: how often each cause led to each reading, counted at
the findings about the gap. Figures for the seeds used in the fit are not results.
"""

from __future__ import annotations

import argparse
import collections
import json
import math
import statistics
import sys
from pathlib import Path

from doctor import seeds_of, wilson
from rlvitals.compute.token_gap import token_gap
from rlvitals.health import gap
from rlvitals.health.monitor import Monitor
from rlvitals.health.rechecks import Rechecks
from rlvitals.health.rulebook import causes, shipped
from rlvitals.health.rules.tokens import recorded_gap
from rlvitals.health.trail import Trail
from rlvitals.records import CAUSES, Recheck

HERE = Path(__file__).parent
sys.path.insert(0, str(HERE.parent / "tests"))  # the generator is in tests/

from corpus import gaps  # noqa: E402
from corpus.labelled import LabelledRun  # noqa: E402

TABLE = Path(gap.__file__).parent / "data" / "likelihoods.json"
TRACED = tuple({one.name: one for one in (*gaps.TROUBLES, *gaps.UNTELLABLE)}.values())
"""Recorded tokens do not depend on a framework's names, so one run of each trouble is enough."""

PSEUDO = 0.5
"""Pseudo-count: runs added to every reading beside those that were seen."""

FLOOR = 0.02
"""The lowest probability of a reading under a cause: the generator does not cover everything."""


def runs_of(seeds, which, cache=None):
    """The runs, from the cache if possible."""
    for seed in seeds:
        for trouble in which:
            place = cache and cache / f"{trouble.name}_{trouble.framework}_{seed}.json"
            if place and place.exists():
                yield LabelledRun(**json.loads(place.read_text()))
                continue
            run = gaps.make_gap(trouble, seed)
            if place:
                place.parent.mkdir(parents=True, exist_ok=True)
                place.write_text(json.dumps(vars(run) | {"accept": sorted(run.accept)}))
            yield run


def judged(run, seen=None):
    """The findings about the gap, in order; `seen` collects the readings at each."""
    monitor = Monitor(run.algorithm, run.framework, run.total_steps, run.config)
    found = []
    for row in run.rows:
        for one in monitor.update(row):
            if one.kind in gap.KINDS:
                found.append(one)
                if seen is not None:
                    seen.append(gap.readings(monitor.case))
    if monitor.problems:
        print(f"rlvitals' own defects on {run.name}: {monitor.problems}", file=sys.stderr)
    return found


def fit(seeds, cache):
    counts = collections.defaultdict(lambda: collections.defaultdict(collections.Counter))
    for run in runs_of(seeds, (*gaps.TROUBLES, *gaps.UNTELLABLE, *gaps.EARLY), cache):
        seen = []
        judged(run, seen)
        for readings in seen:
            for feature, (reading, _) in readings.items():
                counts[feature][run.cause][reading] += 1 / len(seen)
    limits = shipped().rules["recorded_gap"].numbers
    for seed in seeds:
        for trouble in TRACED:
            trail = Trail()
            for groups in gaps.traced(trouble, seed):
                seen = token_gap(groups)
                trail.add(groups[0].step, seen.mean, math.nan if seen.age is None else seen.age)
                if recorded_gap(Recheck(groups[0].step, 40, (), True, gap=seen), **limits) is not None:
                    for feature, (reading, _) in gap.token_readings(seen, trail).items():
                        if feature not in gap.FEATURES:
                            counts[feature][trouble.cause][reading] += 1
                    break
    table = {}
    for feature, words in causes()["features"].items():
        names = list(words["readings"])
        table[feature] = {name: {} for name in names}
        for cause in causes()["causes"]:
            total = sum(counts[feature][cause].values()) + PSEUDO * len(names)
            for name in names:
                share = (counts[feature][cause][name] + PSEUDO) / total
                table[feature][name][cause] = round(max(share, FLOOR), 3)
    about = f"How often each cause leads to each reading. Written by `benchmarks/causes.py --fit {seeds_text(seeds)}`."
    TABLE.write_text(json.dumps({"about": about, "likelihoods": table}, indent=1) + "\n")
    gap.likelihoods.cache_clear()


def seeds_text(seeds):
    return ",".join(map(str, seeds))


def report(seeds, cache, per_run):
    by_cause = collections.defaultdict(collections.Counter)
    for run in runs_of(seeds, gaps.TROUBLES, cache):
        found = judged(run)
        named = next((one for one in found if one.cause), None)
        by_cause[run.cause][named.cause if named else "(none)" if found else "(silent)"] += 1
        if per_run and (named is None or named.cause != run.cause):
            facts = [(one.rule, one.step, one.cause) for one in found]
            print(f"  {run.name}: onset {run.onset + 1}: {facts}\n     {found[0].causes if found else ''}")
    answers = [*CAUSES[:6], "(none)", "(silent)"]
    print("\n| planted | runs | right | " + " | ".join(answers) + " |")
    print("|---" * (len(answers) + 3) + "|")
    for cause in CAUSES[:6]:
        counted = by_cause[cause]
        total = sum(counted.values())
        cells = [str(counted[answer] or "") for answer in answers]
        print(f"| {cause} | {total} | {wilson(counted[cause], total)} | {' | '.join(cells)} |")
    right = sum(by_cause[cause][cause] for cause in by_cause)
    total = sum(sum(counted.values()) for counted in by_cause.values())
    wrong = total - right - sum(counted["(none)"] + counted["(silent)"] for counted in by_cause.values())
    print(f"\nright: {right} of {total}, {wilson(right, total)}; another cause named: {wilson(wrong, total)}")

    quiet, total = [], 0
    for run in runs_of(seeds, gaps.HEALTHY, cache):
        total += 1
        found = judged(run)
        quiet.append((not any(one.cause for one in found), not found))
        if found and per_run:
            print(f"  {run.name}: {[(one.rule, one.severity, one.step, one.cause) for one in found]}")
    print(f"healthy: a cause named on {sum(not a for a, _ in quiet)} of {total}, a finding about the gap on "
          f"{sum(not b for _, b in quiet)}")  # fmt: skip

    named = collections.Counter()
    for run in runs_of(seeds, gaps.UNTELLABLE, cache):
        found = next((one.cause for one in judged(run) if one.cause), "")
        named["right" if found == run.cause else "none" if not found else "another"] += 1
    print(f"too little logged to tell: {dict(named)}")

    dated, raised = [], []
    for run in runs_of(seeds, gaps.EARLY, cache):
        first = next((one for one in judged(run) if one.cause == "weight_sync"), None)
        dated.append(first is not None and first.onset_step == run.onset + 1)
        raised.append(first.step if first else 99)
        if per_run and not (dated[-1] and raised[-1] <= 6):
            print(f"  {run.name}: {first and (first.rule, first.onset_step, first.step)}")
    in_time = sum(step <= 6 for step in raised)
    print(f"a sync that dies at step 3: said by step 6 in {in_time} of {len(raised)}, dated to step 3 in {sum(dated)}, "
          f"median step {statistics.median(raised):g}")  # fmt: skip


def report_tokens(seeds):
    """The same, from only the recorded tokens of every fourth step."""
    by_cause = collections.defaultdict(collections.Counter)
    for seed in seeds:
        for trouble in (*TRACED, *gaps.HEALTHY):
            checks, found = Rechecks(shipped()), []
            for groups in gaps.traced(trouble, seed):
                checked = Recheck(groups[0].step, 40, (), True, gap=token_gap(groups))
                found += [event.finding for event in checks.take(checked) if event.finding]
            by_cause[trouble.cause or "healthy"][(found[0].cause or "(none)") if found else "(silent)"] += 1
    print("\nfrom recorded tokens alone, of every fourth step:")
    for cause, counted in by_cause.items():
        print(f"  {cause}: {wilson(counted[cause], sum(counted.values()))} {dict(counted)}")
    right = sum(by_cause[cause][cause] for cause in CAUSES)
    print(f"  right: {wilson(right, sum(sum(by_cause[cause].values()) for cause in CAUSES))}")


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seeds", type=seeds_of, default=[21, 22])
    parser.add_argument("--fit", type=seeds_of, metavar="SEEDS")
    parser.add_argument("--cache", type=Path, metavar="DIR", help="keep generated runs here")
    parser.add_argument("--per-run", action="store_true", help="list the runs that were not answered rightly")
    arguments = parser.parse_args()
    if arguments.fit:
        fit(arguments.fit, arguments.cache)
    report(arguments.seeds, arguments.cache, arguments.per_run)
    report_tokens(arguments.seeds)


if __name__ == "__main__":
    main()
