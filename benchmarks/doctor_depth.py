"""Detailed diagnosis on generated runs: which slice collapsed, the origin of a fall of the reward, whether exploration
is lost, and faults of experts and of distillation.

    python benchmarks/doctor_depth.py [slices] [origins] [exploration] [answers] [experts] [distillation]
                                      [--seeds 500-539] [--misses]

Shares have a 95 % interval (Wilson). In time means by onset + 15 rows or a fifth of the run.
"""

from __future__ import annotations

import argparse
import collections
import sys
from functools import partial
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent.parent / "tests"))  # the generators are in tests/

from corpus import answers, distillation, experts, exploration, origins, slices
from doctor import SERIOUS, seeds_of, table, wilson
from rlvitals.health.monitor import Monitor


def findings_of(run, **known):
    """Every finding of a run with the index of its row."""
    monitor = Monitor(framework=known.pop("framework", None), **known)
    found = [(index, one) for index, row in enumerate(run.rows) for one in monitor.update(row)]
    if monitor.problems:
        print(f"rules that failed on {run.name}: {monitor.problems}", file=sys.stderr)
    return found


def judge_slices(seeds, show_misses):
    by = collections.defaultdict(list)
    healthy = collections.defaultdict(list)
    delays, misses = [], []
    for seed in seeds:
        for framework in slices.SPELLINGS:
            run = slices.collapsing_run(seed, framework)
            raised = findings_of(run, algorithm="grpo")
            named = [
                at for at, one in raised if one.slice == run.label and one.severity in SERIOUS and at <= run.deadline
            ]
            wrong = {one.slice for _, one in raised if one.slice and one.slice != run.label and one.severity in SERIOUS}
            by[framework].append((bool(named), bool(wrong)))
            if named:
                delays.append(named[0] - run.onset)
            else:
                misses.append(
                    f"{run.name}: onset {run.onset}, by {run.deadline:.0f}, {run.label}; said "
                    f"{[(at, one.rule, one.slice) for at, one in raised]}"
                )
            quiet = slices.healthy_run(seed, framework)
            alarms = [
                (at, one.slice)
                for at, one in findings_of(quiet, algorithm="grpo")
                if one.slice and one.severity in SERIOUS
            ]
            healthy[framework].append(bool(alarms))
            if alarms:
                misses.append(f"{quiet.name}: alarm {alarms}")
    rows = [
        [
            name,
            wilson(sum(hit for hit, _ in found), len(found)),
            wilson(sum(wrong for _, wrong in found), len(found)),
            wilson(sum(healthy[name]), len(healthy[name])),
        ]
        for name, found in by.items()
    ]
    everything = [one for found in by.values() for one in found]
    quiet = [one for found in healthy.values() for one in found]
    rows.append(
        [
            "all",
            wilson(sum(hit for hit, _ in everything), len(everything)),
            wilson(sum(wrong for _, wrong in everything), len(everything)),
            wilson(sum(quiet), len(quiet)),
        ]
    )
    table(
        "One of 8 slices collapses; 20 healthy slices",
        ["names of", "named in time", "another slice named too", "healthy runs with a slice's warning"],
        rows,
    )
    print(f"median delay: {sorted(delays)[len(delays) // 2] if delays else '-'} rows")
    if show_misses:
        print("\n".join(misses))


PLAIN = ("reward_collapse", "reward_floor")


def deadline(run):
    return run.onset + max(15.0, 0.2 * len(run.rows))


def judge_origins(seeds, show_misses):
    by_cause, by_framework = collections.defaultdict(list), collections.defaultdict(list)
    doubles, harmless, misses = [], [], []
    for seed in seeds:
        for counted in origins.COUNTED:
            run = origins.failing_run(seed, counted)
            raised = [(at, one) for at, one in findings_of(run, **known(run)) if one.severity in SERIOUS]
            named = any(one.cause == counted.cause and at <= deadline(run) for at, one in raised)
            plain = [(at, one.rule) for at, one in raised if one.kind in PLAIN and not one.cause and at >= run.onset]
            wrong = [(at, one.rule, one.cause) for at, one in raised if one.cause and one.cause != counted.cause]
            hit = named and not plain and not wrong
            by_cause[counted.cause].append(hit)
            by_framework[counted.framework or "rlvitals"].append(hit)
            if not hit:
                misses.append(
                    f"{run.name}: onset {run.onset} of {len(run.rows)}, by {deadline(run):.0f}; "
                    f"{[(at, one.rule, one.kind, one.cause) for at, one in raised]}"
                )
            double = origins.consequence_run(seed, counted)
            blamed = [
                (at, one.rule, one.cause)
                for at, one in findings_of(double, **known(double))
                if one.rule == "lost_to_failures"
            ]
            doubles.append(bool(blamed))
            if blamed:
                misses.append(f"{double.name}: onset {double.onset}, blamed {blamed}")
            quiet = origins.harmless_run(seed, counted)
            blamed = [
                (at, one.rule, one.cause)
                for at, one in findings_of(quiet, **known(quiet))
                if one.rule == "lost_to_failures"
            ]
            harmless.append(bool(blamed))
            if blamed:
                misses.append(f"{quiet.name}: blamed {blamed}")
    for title, found in (("by cause", by_cause), ("by names of", by_framework)):
        rows = [[name, wilson(sum(hits), len(hits))] for name, hits in found.items()]
        everything = [hit for hits in found.values() for hit in hits]
        table(
            f"The reward falls because rollouts fail, {title}",
            ["", "right cause in time, and no collapse of the policy said"],
            [*rows, ["all", wilson(sum(everything), len(everything))]],
        )
    print(f"\nthe policy collapsed and therefore failed more: blamed on failures {wilson(sum(doubles), len(doubles))}")
    print(f"healthy, with failures that cost nothing: blamed on failures {wilson(sum(harmless), len(harmless))}")
    if show_misses:
        print("\n".join(misses))


def known(run):
    return {
        "algorithm": run.algorithm,
        "framework": run.framework,
        "total_steps": run.total_steps,
        "config": run.config,
    }


def judge_exploration(seeds, show_misses):
    by, quiet, both, misses = collections.defaultdict(list), [], [], []
    for seed in seeds:
        for framework in exploration.SPELLINGS:
            run = exploration.narrowing_run(seed, framework)
            at = [index for index, one in findings_of(run, algorithm="grpo") if one.rule == "coverage_lost"]
            # The evaluation at the onset is the last good one; the finding must come by the fourth after it.
            first, last = run.evaluations[run.onset], run.evaluations[min(run.onset + 4, len(run.evaluations) - 1)]
            hit = any(first < index <= last for index in at) and not any(index <= first for index in at)
            by[framework].append(hit)
            if not hit:
                misses.append(f"{run.name}: {first} to {last}, said {at}")
            for kind, runs in ((exploration.learning_run, quiet), (exploration.collapsing_run, both)):
                other = kind(seed, framework)
                raised = [index for index, one in findings_of(other, algorithm="grpo") if one.rule == "coverage_lost"]
                runs.append(bool(raised))
                if raised:
                    misses.append(f"{other.name}: said {raised} of {len(other.rows)}")
    everything = [hit for hits in by.values() for hit in hits]
    table(
        "pass@32 falls while pass@1 rises",
        ["names of", "said within 4 evaluations"],
        [
            *([name, wilson(sum(hits), len(hits))] for name, hits in by.items()),
            ["all", wilson(sum(everything), len(everything))],
        ],
    )
    print(f"\nboth rise: said {wilson(sum(quiet), len(quiet))}; both fall: said {wilson(sum(both), len(both))}")
    if show_misses:
        print("\n".join(misses))


def latest(run):
    """The row by which it must be reported: the run's own limit or the usual one; without an onset, the end."""
    if getattr(run, "last", None) is not None:
        return run.last
    return deadline(run) if run.onset else len(run.rows)


def judge_planted(title, cases, seeds, show_misses):
    """`cases`: what is planted, the rules that report it, how to make the run, how to make a healthy one of its kind. A
    healthy run counts as a false alarm if the same rules warn about it.
    """
    rows, misses = [], []
    for planted, rules, make, healthy in cases:
        hits, ever, alarms, early = [], [], [], []
        for seed in seeds:
            run, quiet = make(seed), healthy(seed)
            config = getattr(run, "config", None)
            at = [
                index
                for index, one in findings_of(run, algorithm="grpo", config=config)
                if one.rule in rules and one.severity in SERIOUS
            ]
            last = latest(run)
            ever.append(bool(at))
            hits.append(any(run.onset <= index <= last for index in at))
            early.append(any(index < run.onset for index in at))
            raised = [
                (index, one.rule, one.severity)
                for index, one in findings_of(quiet, algorithm="grpo", config=getattr(quiet, "config", None))
                if one.rule in rules and one.severity in SERIOUS
            ]
            alarms.append(bool(raised))
            if not hits[-1]:
                misses.append(f"{planted}: {run.name}: {run.onset} to {last:.0f} of {len(run.rows)}, said {at}")
            if raised:
                misses.append(f"{planted}: {quiet.name}: {raised} of {len(quiet.rows)}")
        rows.append(
            [
                planted,
                ", ".join(rules),
                wilson(sum(hits), len(hits)),
                wilson(sum(ever), len(ever)),
                wilson(sum(early), len(early)),
                wilson(sum(alarms), len(alarms)),
            ]
        )
    table(
        title,
        ["planted", "rules", "said in time", "said at all", "before it began", "healthy runs with a warning"],
        rows,
    )
    if show_misses:
        print("\n".join(misses))


def judge_answers(seeds, show_misses):
    cases = [
        ("every prompt settles on one answer", ("answers_alike",), answers.settling_run, answers.learning_run),
        ("one text for all prompts", ("prompt_ignored",), answers.ignoring_run, answers.learning_run),
        ("prompts are forgotten", ("prompts_lost",), answers.forgetting_run, answers.evaluated_run),
    ]
    judge_planted("Answers and prompts", cases, seeds, show_misses)


ROUTER_RULES = {
    "narrowing": ("experts_unbalanced",),
    "starving": ("experts_idle", "experts_unbalanced"),
    "differing": ("routes_differ",),
    "unrecorded": ("routes_differ",),
}
DISTILLATION_RULES = {
    "stuck": ("teacher_not_approached",),
    "leaving": ("teacher_not_approached", "student_leaves_teacher"),
    "cut": ("teacher_cut_off",),
}


def cases_of(make, troubles, rules):
    """A case for each trouble and each framework whose logs can show it."""
    return [
        (f"{trouble}, {framework}", rules[trouble], partial(make, framework=framework, trouble=trouble),
         partial(make, framework=framework))
        for trouble, frameworks in troubles.items() for framework in frameworks
    ]  # fmt: skip


def judge_experts(seeds, show_misses):
    judge_planted("Experts", cases_of(experts.routed_run, experts.TROUBLES, ROUTER_RULES), seeds, show_misses)


def judge_distillation(seeds, show_misses):
    cases = cases_of(distillation.distilled_run, distillation.TROUBLES, DISTILLATION_RULES)
    judge_planted("On-policy distillation", cases, seeds, show_misses)


FAMILIES = {
    "slices": judge_slices, "origins": judge_origins, "exploration": judge_exploration, "answers": judge_answers,
    "experts": judge_experts, "distillation": judge_distillation,
}  # fmt: skip


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("families", nargs="*", help=f"of: {', '.join(FAMILIES)}; all by default")
    parser.add_argument("--seeds", type=seeds_of, default=seeds_of("500-519"))
    parser.add_argument("--misses", action="store_true", help="list what was missed or wrongly said")
    options = parser.parse_args()
    for name in options.families or FAMILIES:
        FAMILIES[name](options.seeds, options.misses)


if __name__ == "__main__":
    main()
