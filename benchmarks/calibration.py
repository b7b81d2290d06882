"""How well the rules do on repositories their numbers were not chosen on: calibration that leaves whole ones out.

    python benchmarks/calibration.py --logs DIR [--labels INDEX.tsv] [--corpus SEEDS] [--by file rule] [--grid ...]

One multiplier changes all numbers of a rule (`DIRECTIONS` says which way each becomes more sensitive), its hold and its
warm-up. The rules of one data file share it, or each rule has its own: both are tried, each is a column. For each
repository of the label file the multipliers are chosen on the logs of the others and on simulated runs, and the
repository's own logs are judged with them. `docs/design/calibration.md` has the results and what they do not show.

A finding before the onset counts as in time, because onsets are estimates. How many of the logs in time owe it to that,
and how many criticals come before an onset, is in the totals beside it.

One pass over each run is enough: rules do not read each other's findings, so a monitor that holds every rule at every
multiplier hears what any choice of multipliers would say. What the real one leaves out (a kind already said, a storm)
changes no first finding; to be sure, it judges each left-out log with the numbers chosen, and differences are printed.
"""

from __future__ import annotations

import argparse
import collections
import csv
import math
import re
import time
from dataclasses import dataclass, replace
from functools import cache
from pathlib import Path

from doctor import EARLY_ONSET, SERIOUS, fingerprint, real_runs, seeds_of, simulated_runs, table, wilson
from rlvitals.health import rulebook
from rlvitals.health.monitor import Monitor
from rlvitals.health.rulebook import Rulebook

GRID = (0.7, 0.85, 1.0, 1.2, 1.5)

# In which direction each number makes its rule more sensitive. A number that is in no list is left alone, and said so.
DIRECTIONS = {
    # The rule fires above it: a lower number is more sensitive (and a shorter wait).
    "above": """
        nonfinite_core.again nonfinite_other.count dead_gradient.streak dead_gradient.share_points frozen_loss.streak
        gradient_explosion.ratio gradient_explosion.ratio_critical gradient_explosion.floor gradient_explosion.noises
        loss_divergence.rise
        loss_divergence.rise_critical loss_divergence.noises early_blow_up.grad_times early_blow_up.kl_level
        warm_up_without_end.share warm_up_without_end.points kl_explosion.level kl_explosion.times
        kl_explosion.level_critical kl_without_gain.level kl_without_gain.noises kl_out_of_range.warn
        kl_out_of_range.grave kl_negative.level kl_negative.deep entropy_collapse.noises entropy_explosion.rise
        clip_saturation.warn clip_saturation.grave update_too_large.level update_too_large.grave rollout_mismatch.kl
        rollout_mismatch.kl_critical rollout_mismatch.gap rollout_mismatch.gap_critical rollout_mismatch.weight_std
        rollout_mismatch.chi2 stale_samples.steps stale_samples.steps_critical stale_samples.times
        critic_useless.points critic_useless.deep length_explosion.truncated_share length_collapse.noises
        truncation.points truncation.points_critical truncation_rising.rise truncation_rising.rise_critical
        looping_text.share looping_text.share_critical looping_text.rise margin_inversion.noises
        margin_inversion.noises_critical margin_inversion.points_critical eval_margin_inversion.evals
        margin_is_noise.points_critical margin_is_noise.zeros accuracy_below_chance.points_critical
        likelihood_displacement.fall likelihood_displacement.share log_probability_crash.noises eval_overfit.rise
        eval_overfit.rise_critical kto_kl_explosion.times kto_kl_explosion.level kto_kl_explosion.level_critical
        reward_constant.points reward_constant.points_critical reward_at_floor.points_critical
        reward_collapse.give_back reward_collapse.share reward_collapse.noises not_learning.share
        not_learning.points_critical plateau.age plateau.share plateau.share_warning groups_without_spread.excess
        proxy_gap.gain proxy_gap.times held_out_gap.gain held_out_gap.times eval_falls.noises eval_falls.evals
        reward_takeover.shift reward_takeover.variance tool_errors.share tool_errors.share_critical tool_errors.rise
        repeated_actions.share repeated_actions.share_critical repeated_actions.times early_exits.change
        early_exits.noises stall.times stall.seconds stall.times_critical stall.seconds_critical memory_creep.t
        memory_creep.growth metric_vanished.points steps_backwards.times steps_repeated.times""",
    # It fires below it: a higher number is more sensitive.
    "below": """
        vanishing_gradient.ratio early_blow_up.points early_blow_up.entropy_share learning_rate_too_low.absolute
        learning_rate_too_low.share entropy_collapse.ratio entropy_collapse.ratio_critical entropy_running_out.floor
        entropy_running_out.points rollout_mismatch.effective critic_useless.level length_collapse.ratio
        length_collapse.ratio_critical margin_is_noise.noises preference_saturated.level reward_constant.relative
        reward_at_floor.share not_learning.t not_learning.t_critical no_reward_spread.relative groups_filtered.share
        groups_filtered.share_critical memory_creep.points gpu_idle.percent gpu_idle.drop""",
    # A ratio to what is normal, from either side: nearer to 1 is more sensitive.
    "near 1": """
        early_blow_up.loss_times instability.times instability.times_alone kl_without_gain.times
        entropy_running_out.ratio entropy_explosion.ratio entropy_explosion.ratio_critical importance_ratio_off.warn
        importance_ratio_off.grave rollout_mismatch.weight rollout_mismatch.error rollout_mismatch.error_critical
        value_loss_growth.times value_loss_growth.times_critical advantage_spread.times length_explosion.times
        length_explosion.times_stalled length_explosion.times_critical loss_above_chance.times
        log_probability_crash.times log_probability_crash.times_critical class_imbalance.low class_imbalance.high
        preference_saturated.far
        tool_abandonment.ratio tool_abandonment.ratio_critical turn_runaway.times throughput.times""",
    # A share that fires above it and cannot pass 1: further from 1 is more sensitive.
    "off 1": """
        dead_gradient.share truncation.share truncation.share_critical preference_saturated.accuracy
        groups_without_spread.share groups_without_spread.share_critical no_reward_spread.share reward_takeover.share
        reward_takeover.share_critical turn_runaway.limit_share memory_full.warn memory_full.grave""",
    # A share of pairs told apart that fires below it, beneath chance: nearer to a half is more sensitive.
    "near half": "accuracy_below_chance.warn accuracy_below_chance.grave",
    # The same where it lies above chance: further from a half is more sensitive.
    "off half": "margin_is_noise.accuracy",
    # Definitions and notes, which no calibration should touch.
    "fixed": """
        kto_kl_at_zero.share shape_of_hacking.of_three slow_step.times impossible_share.slack impossible_mean.slack
        throughput.seconds impossible_entropy.vocabulary impossible_kl.slack reward_is_not_its_parts.slack
        reward_is_not_its_parts.points
        loss_of_zero.share""",
}
SCALED = {
    "above": lambda number, s: number / s,
    "below": lambda number, s: number * s,
    "near 1": lambda number, s: 1 + (number - 1) / s,
    "off 1": lambda number, s: 1 - (1 - number) * s,
    "near half": lambda number, s: 0.5 + (number - 0.5) / s,
    "off half": lambda number, s: 0.5 + (number - 0.5) * s,
    "fixed": lambda number, s: number,
}
DIRECTION = {name: direction for direction, names in DIRECTIONS.items() for name in names.split()}

# Which kinds name each failed log's failure: read off its label (class and evidence), not off what the rules say.
RIGHT_KINDS = {
    "verl_agent_instant_collapse.log": "kl_explosion length_collapse tool_abandonment entropy_collapse reward_collapse",
    "verl_agent_collapse_step30.log": "tool_abandonment kl_explosion length_collapse reward_collapse",
    "verl_agent_len_turncollapse.log": "tool_abandonment length_explosion truncation",
    "verl_agent_turncollapse_30.log": "tool_abandonment",
    "grpo_aaipl_zerostd_500.json": "zero_variance reward_collapse truncation",
    "grpo_chaos_saturated_100.log": "zero_variance truncation plateau",
    "grpo_nan_grad_46.log": "nonfinite",
    "grpo_floor_reward_200.json": "reward_floor truncation zero_variance",
    "ppo_trl_v1_floor_100.json": "reward_floor value_failure clip_saturation",
    "rl_hack_compilable_1b_easy.jsonl": "reward_hacking",
    "rl_hack_compilable_1b_hard.jsonl": "reward_hacking",
    "rl_hack_compilable_3b_easy_g.jsonl": "reward_hacking",
    "rl_hack_llmjudge_hard_long.jsonl": "reward_hacking",
    "simpleppo_overfit_100.json": "ratio_off clip_saturation kl_negative staleness",
    "grpo_qwen3_8b_truncated_100.csv": "truncation not_learning",
    "dpo_symlog_logp_crash_183.csv": "logprob_crash",
    "dpo_outproj_nolearn_203.csv": "preference_signal_lost not_learning",
}
ONSET_IN_POINTS = {"grpo_chaos_saturated_100.log": 20}
"""Its label counts points where its log counts every fifth step (its reward reaches 0 at point 20, not at step 20)."""

# What a choice of multipliers is worth: bits that findings set, and what they earn a run. There are many more simulated
# runs than real ones, and each counts for less: SIMULATED, shared by the seeds.
WARNED, CRITICAL, IN_TIME, NAMED = 1, 2, 4, 8
FAILED = {WARNED: 1.0, IN_TIME: 1.0, NAMED: 1.0}
HEALTHY = {WARNED: -4.0, CRITICAL: -8.0}
SIMULATED = 0.2


# The rules at other sensitivities


def scaled_entry(rule, s):
    """The rule-file entry that makes a rule s times as sensitive."""
    numbers = {}
    for name, number in rule.numbers.items():
        numbers[name] = SCALED[DIRECTION.get(f"{rule.rule}.{name}", "fixed")](number, s)
    entry = {"rule": rule.rule, "warm_up": math.ceil(rule.warm_up / s), "hold": _held(rule.hold, s)}
    if numbers:
        entry["numbers"] = numbers
    if rule.hold_critical:
        entry["hold_critical"] = _held(rule.hold_critical, s)
    return entry


def _held(hold, s):
    """As many points may miss as before; more or fewer must hold."""
    must = max(1, round(hold[0] / s))
    return f"{must} of {must + hold[1] - hold[0]}"


@cache
def every_variant(grid):
    """One rulebook with every rule at every multiplier, named RULE@S."""
    shipped = rulebook.load()
    rules = []
    for s in grid:
        book = rulebook.load([scaled_entry(rule, s) for rule in shipped.rules.values()]) if s != 1 else shipped
        rules += [replace(rule, rule=f"{name}@{s}") for name, rule in book.rules.items()]
    return Rulebook(rules, shipped.sources)


@dataclass(frozen=True)
class Said:
    """One warning or critical."""

    index: int
    critical: bool
    rule: str
    kind: str


class Unfiltered(Monitor):
    """Says all it finds: variants of one rule neither repeat each other nor make a storm."""

    def _report(self, found):
        return found


def listen(run, rules, kind_of_monitor=Monitor):
    """All warnings and criticals of a monitor with these rules, row by row, then tick by tick."""
    monitor = kind_of_monitor(run.algorithm, run.framework, run.total_steps, run.config, rules=rules)
    turns = [(monitor.update, row) for row in run.rows] + [(monitor.tick, now) for now in run.ticks]
    said = [
        Said(index, one.severity == "critical", one.rule, one.kind)
        for index, (turn, what) in enumerate(turns)
        for one in turn(what)
        if one.severity in SERIOUS
    ]
    if monitor.problems:
        print(f"defects on {run.name}: {monitor.problems}")
    return said


def listen_to_variants(runs, grid):
    """{run: {rule: {multiplier: findings}}}, for rules that say anything at all about the run."""
    heard = {}
    for run in runs:
        by_rule = heard[run.name] = collections.defaultdict(lambda: collections.defaultdict(list))
        for one in listen(run, every_variant(grid), Unfiltered):
            rule, _, s = one.rule.rpartition("@")
            by_rule[rule][float(s)].append(replace(one, rule=rule))
    return heard


# Choosing multipliers


def bits(run, said):
    """What findings mean for a run."""
    found = 0
    for one in said:
        found |= WARNED
        if one.critical:
            found |= CRITICAL
        if one.index <= run.deadline:
            found |= (IN_TIME if one.critical else 0) | (NAMED if one.kind in run.accept else 0)
    return found


def worth(run, found):
    earned = FAILED if run.verdict == "fail" else HEALTHY if run.verdict == "healthy" else {}
    return sum(value for bit, value in earned.items() if found & bit)


def choose(groups, training, meaning, weights, grid):
    """Coordinate descent from the least sensitive: {rule: multiplier}, one multiplier for the rules of a group.

    The least sensitive multiplier within a standard error of the best is taken, as one does with few data: a gain that
    rests on a single run is none. `meaning` is {run: {rule: {multiplier: bits}}}, `weights` {run: how much it counts}.
    """
    chosen = {rule: grid[0] for rules in groups for rule in rules}
    for _ in range(20):
        before = dict(chosen)
        for rules in groups:
            # A group that says nothing about a run has no part in its score.
            runs = [run for run in training if any(rule in meaning[run.name] for rule in rules)]
            gains = {s: [] for s in grid}
            for run in runs:
                heard = meaning[run.name]
                others = 0
                for other, by_s in heard.items():
                    if other not in rules:
                        others |= by_s.get(chosen[other], 0)
                for s in grid:
                    found = others
                    for rule in rules:
                        found |= heard.get(rule, {}).get(s, 0)
                    gains[s].append(weights[run.name] * worth(run, found))
            best = max(grid, key=lambda s: (round(sum(gains[s]), 9), -s))
            for s in grid:
                behind = [one - other for one, other in zip(gains[best], gains[s], strict=True)]
                if sum(behind) <= math.sqrt(sum(one * one for one in behind)):
                    break
            chosen |= dict.fromkeys(rules, s)
        if chosen == before:
            break
    return chosen


def groups_of(rules, by):
    """Which rules share a multiplier: each for itself, or those of one data file."""
    if by == "rule":
        return [frozenset([rule]) for rule in rules]
    folder = Path(rulebook.__file__).parent / "data" / "rules"
    files = [re.findall(r"^- rule: (\w+)", path.read_text(), re.MULTILINE) for path in sorted(folder.glob("*.yaml"))]
    return [frozenset(name for name in names if name in rules) for names in files]


def told(by_rule, chosen):
    """What a choice of multipliers says about a run, in the monitor's order."""
    order = {rule: place for place, rule in enumerate(chosen)}
    said = [one for rule, by_s in by_rule.items() for one in by_s.get(chosen[rule], ())]
    return sorted(said, key=lambda one: (one.index, not one.critical, order[one.rule]))


# Judging


def first(said, *, critical):
    return next((one for one in said if one.critical or not critical), None)


def totals(runs, judged):
    failed = [run for run in runs if run.verdict == "fail"]
    healthy = [run for run in runs if run.verdict == "healthy"]
    dead = [run for run in failed if run.onset <= EARLY_ONSET]

    def having(group, bit):
        return sum(bool(bits(run, judged[run.name]) & bit) for run in group), len(group)

    firsts = [(run, first(judged[run.name], critical=True)) for run in failed]
    right = sum(one is not None and one.kind in run.accept for run, one in firsts)
    stopped = [(run, one) for run, one in firsts if one is not None and one.index <= run.deadline]
    named = [(run, found) for run in failed if (found := right_in_time(run, judged[run.name]))]
    criticals = [(run, one) for run in failed for one in judged[run.name] if one.critical]
    return {
        "healthy with a warning or worse": having(healthy, WARNED),
        "healthy with a critical": having(healthy, CRITICAL),
        "failed with a warning or worse": having(failed, WARNED),
        "failed with a critical before the end": having(failed, CRITICAL),
        "critical in time, onset after point 12": having([run for run in failed if run not in dead], IN_TIME),
        "critical in time, dead from the first points": having(dead, IN_TIME),
        "first critical of a right kind": (right, len(failed)),
        "some finding of a right kind in time": having(failed, NAMED),
        "critical in time: of these before the onset": early(stopped),
        "right kind in time: of these before the onset": early(named),
        "criticals on failed logs: of these before the onset": early(criticals),
        "failed logs with a critical before the onset": (
            len({run.name for run, _ in early_ones(criticals)}),
            len(failed),
        ),
    }


def right_in_time(run, said):
    """The first finding of a right kind that counts as in time."""
    return next((one for one in said if one.kind in run.accept and one.index <= run.deadline), None)


def early_ones(found):
    return [(run, one) for run, one in found if one.index < run.onset]


def early(found):
    """How many of these (run, finding) pairs come before the onset, of how many."""
    return len(early_ones(found)), len(found)


def show_totals(runs, judgements):
    columns = {name: totals(runs, judged) for name, judged in judgements.items()}
    rows = [
        [what, *(f"{found[what][0]} of {found[what][1]}: {wilson(*found[what])}" for found in columns.values())]
        for what in next(iter(columns.values()))
    ]
    table("Totals (95 % intervals)", ["", *columns], rows)


def show_logs(runs, judgements):
    rows = []
    for run in runs:
        row = [run.name, run.verdict, len(run.rows), "-" if run.onset is None else run.onset]
        for judged in judgements.values():
            said = judged[run.name]
            warned, grave = first(said, critical=False), first(said, critical=True)
            row += [f"{warned.index} {warned.rule}" if warned else "-", f"{grave.index} {grave.kind}" if grave else "-"]
            right = "" if grave is None or grave.kind in run.accept else ", other kind"
            row.append(("yes" if bits(run, said) & IN_TIME else "NO") + right if run.verdict == "fail" else "")
        rows.append(row)
    each = [f"{name}: {what}" for name in judgements for what in ("warning, by", "critical, its kind", "in time")]
    table("By log (rows count from 0)", ["log", "label", "points", "onset", *each], rows)


def show_choices(title, everything, by_repository, grid):
    rows = []
    for rule, s in everything.items():
        odd = [f"{repository}: {chosen[rule]}" for repository, chosen in by_repository.items() if chosen[rule] != s]
        if odd:
            rows.append([rule, s, "; ".join(odd)])
    table(
        f"{title}: rules whose multiplier depends on one repository",
        ["rule", "chosen on all", "without this one"],
        rows,
    )
    counts = collections.Counter(everything.values())
    print(f"\n{title} chosen on all logs:", ", ".join(f"{counts[s]} rules at {s}" for s in grid))


def show_sensitivity(runs, heard, rules, grid):
    """What the totals would be if all rules, or one, were more or less sensitive than shipped."""

    def judged(chosen):
        return {run.name: told(heard[run.name], chosen) for run in runs}

    shipped = totals(runs, judged(dict.fromkeys(rules, 1.0)))
    rows = []
    for s in grid:
        found = totals(runs, judged(dict.fromkeys(rules, s)))
        rows.append([s, *(hits for hits, _ in found.values())])
    table("All rules at one multiplier", ["multiplier", *shipped], rows)
    rows = []
    for rule in rules:
        for s in grid:
            found = totals(runs, judged(dict.fromkeys(rules, 1.0) | {rule: s}))
            changed = [
                f"{what} {hits} -> {found[what][0]}" for what, (hits, _) in shipped.items() if hits != found[what][0]
            ]
            if changed:
                rows.append([rule, s, "; ".join(changed)])
    table("One rule changed, the others as shipped", ["rule", "multiplier", "what changes"], rows)


def labelled(folder, labels):
    """The real runs by the repository they come from."""
    with open(labels, newline="") as file:
        repository = {label["file"]: label["repo"] for label in csv.DictReader(file, delimiter="\t")}
    runs = {}
    for run in real_runs(folder, labels):
        if run.verdict == "fail" and run.name not in RIGHT_KINDS:
            print(f"no reviewed kinds for {run.name}: those of its label's words are taken")
        accept = frozenset(RIGHT_KINDS[run.name].split()) if run.name in RIGHT_KINDS else run.accept
        onset = ONSET_IN_POINTS.get(run.name, run.onset)
        runs.setdefault(repository[run.name], []).append(replace(run, accept=accept, onset=onset))
    return runs


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--logs", type=Path, required=True, help="a folder of labelled logs")
    parser.add_argument("--labels", type=Path, help="their label file; INDEX.tsv in that folder by default")
    parser.add_argument("--corpus", type=seeds_of, default=[1], help="seeds of the simulated training runs: 1, or 3,4")
    parser.add_argument(
        "--by", choices=["file", "rule"], nargs="+", default=["file", "rule"], help="who shares a multiplier; both"
    )
    parser.add_argument("--grid", default=",".join(map(str, GRID)), help="multipliers, the least sensitive first")
    options = parser.parse_args()
    began, judged_rules = time.process_time(), fingerprint()
    grid = tuple(sorted({float(s) for s in options.grid.split(",")} | {1.0}))

    repositories = labelled(options.logs, options.labels or options.logs / "INDEX.tsv")
    real = [run for runs in repositories.values() for run in runs]
    simulated = list(simulated_runs(options.corpus))
    each = SIMULATED / len(options.corpus)
    weights = {run.name: 1.0 for run in real} | {run.name: each for run in simulated}
    rules = {name: rule for name, rule in rulebook.load().rules.items() if rule.enabled}
    numbers = [f"{name}.{number}" for name, rule in rules.items() for number in rule.numbers]
    print(f"rules and generator {judged_rules}: {len(rules)} rules, multipliers {grid}")
    by = {how: groups_of(rules, how) for how in options.by}
    told_how = ", ".join(f"{len(groups)} multipliers by {how}" for how, groups in by.items())
    print(f"{told_how}; {len(real)} logs of {len(repositories)} repositories")
    print(f"{len(simulated)} simulated runs, seeds {options.corpus}")
    print("numbers without a direction, left alone:", [name for name in numbers if name not in DIRECTION] or "none")

    heard = listen_to_variants([*real, *simulated], grid)
    meaning = {
        run.name: {rule: {s: bits(run, said) for s, said in by_s.items()} for rule, by_s in heard[run.name].items()}
        for run in (*real, *simulated)
    }
    judgements = {"shipped, in-sample": {run.name: listen(run, None) for run in real}}
    choices, differing = {}, 0
    for groups in by.values():
        everything = choose(groups, [*real, *simulated], meaning, weights, grid)
        by_repository, held_out = {}, {}
        for repository, runs in repositories.items():
            others = [run for other, theirs in repositories.items() if other != repository for run in theirs]
            chosen = by_repository[repository] = choose(groups, [*others, *simulated], meaning, weights, grid)
            book = rulebook.load([scaled_entry(rule, chosen[name]) for name, rule in rules.items()])
            for run in runs:
                said, live = told(heard[run.name], chosen), listen(run, book)
                held_out[run.name] = live
                if bits(run, said) != bits(run, live) or first(said, critical=True) != first(live, critical=True):
                    differing += 1
                    print(f"differs from the monitor itself on {run.name}: {live[:3]} against {said[:3]}")
        judgements[f"held out, {len(groups)} multipliers"] = held_out
        choices[len(groups)] = (everything, by_repository)
    show_logs(real, judgements)
    show_totals(real, judgements)
    for count, (everything, by_repository) in choices.items():
        show_choices(f"{count} multipliers", everything, by_repository, grid)
    show_sensitivity(real, heard, rules, grid)
    print(f"\nchecked against the monitor itself: {len(real)} logs a column, {differing} differ")
    print(f"{time.process_time() - began:.0f} s of one core")
    if fingerprint() != judged_rules:
        print("Rules or generator changed on disk while this ran: run it again.")


if __name__ == "__main__":
    main()
