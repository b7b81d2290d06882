"""One example for each rule, shown on its page and by `rlvitals explain RULE`.

    python benchmarks/rule_examples.py [--families rows,gaps] [--dry]

Writes `health/data/examples.json`; `make catalog` then writes the pages. With `--families` the examples of the other
families stay. The rules judge the generated runs of `tests/corpus` and the small real ones of `tests/health/kto_runs`
row by row, scan generated rollouts, and compare generated tokens with logged numbers. The example is the best finding
of a rule by these criteria, in this order: it is about the planted trouble, it comes after the onset, it has a chart,
it is severe, its run comes first. Seeds are 1 to 3, and only 1 for the families that take long.
"""

from __future__ import annotations

import argparse
import csv
import itertools
import json
import random
import sys
from dataclasses import asdict, dataclass, field, replace
from functools import partial
from pathlib import Path

from rlvitals.health import rulebook
from rlvitals.health.monitor import Monitor
from rlvitals.health.pages import EXAMPLES
from rlvitals.records import SEVERITIES, Group, OpenPhase, Rollout, Turn
from rlvitals.render.charts import ChartSeries, chart
from rlvitals.render.evidence import evidence
from rlvitals.scan import Scans
from rlvitals.views.judge import Judge, Trace

sys.path.insert(0, str(Path(__file__).parent.parent / "tests"))  # the generators are in tests/

from corpus import answers, distillation, experts, exploration, failing_runs, gaps, healthy_runs, origins, slices

WIDTH = 34
"""Width of a chart in characters."""

OWN_NAMES = "rlvitals"


@dataclass
class Played:
    """A run, judged to its end."""

    name: str
    algorithm: str
    framework: str | None
    rows: int
    findings: list
    series: dict = field(default_factory=dict)
    """The series of the charts, by metric."""
    shown: str = ""
    """The series to draw for findings in rollouts, which have no metric."""
    onset: int | None = None
    """The step at which the trouble was planted."""
    rules: frozenset = frozenset()
    """Rules and kinds for the planted trouble."""
    unit: str = "rows"
    origin: str = "a generated"


@dataclass
class Rows:
    """Rows, and where the trouble begins among them."""

    name: str
    rows: list
    onset: int


def judged(run, algorithm, rules=(), *, preset=None, framework=None, total_steps=None, config=None, ticks=()):
    """A run of rows, as `check` judges it."""
    judge = Judge(Monitor(algorithm, framework, total_steps, config, rules=preset))
    for row in run.rows:
        judge.take(row)
    for now in ticks:
        judge.tick(now)
    if judge.monitor.problems:
        print(f"rules that failed on {run.name}: {judge.monitor.problems}", file=sys.stderr)
    found = [(alarm.finding, alarm.point) for alarm in judge.raised]
    names = {name for finding, _ in found for name in finding.metrics}
    series = {name: trace for name in sorted(names) if (trace := judge.trace(name)) is not None}
    onset = None if run.onset is None else run.rows[min(run.onset, len(run.rows) - 1)]["step"]
    names_of = getattr(run, "framework", None)
    shown = None if names_of == OWN_NAMES else names_of
    return Played(run.name, algorithm, shown, len(run.rows), found, series, onset=onset, rules=frozenset(rules))


def labelled(run, preset=None):
    return judged(
        run, run.algorithm, run.accept, preset=preset, framework=run.framework, total_steps=run.total_steps,
        config=run.config, ticks=run.ticks,
    )  # fmt: skip


# The runs, by family: each is made and judged when it is needed


def rows(seed):
    """The failures of single runs, and remarks about healthy ones."""
    for run in (*failing_runs(seed), *healthy_runs(seed)):
        yield labelled(run)


def presets(seed):
    """The rules of presets, on the runs that they are written for."""
    guides = {"kto": ["kto_guide"], "rlaif": ["rlaif_guide"], "grpo": ["early_stopping", "rlaif_guide"]}
    for run in failing_runs(seed):
        if run.algorithm in guides:
            yield labelled(run, guides[run.algorithm])


def trained(seed):
    """Real KTO and DPO runs of a tiny model, judged with and without the guide. They have no seed here."""
    folder = Path(__file__).parent.parent / "tests" / "health" / "kto_runs"
    with open(folder / "runs.tsv", encoding="utf-8") as table:
        labels = [label for label in csv.DictReader(table, delimiter="\t") if label["verdict"] == "fail"]
    for label, preset in itertools.product(labels, (None, "kto_guide")):
        made = [json.loads(line) for line in (folder / label["file"]).read_text().splitlines()]
        run = Rows(label["file"], made, min(int(label["onset"]), len(made) - 1))
        played = judged(
            run, label["algorithm"], [label["kind"]], preset=preset, framework="trl", total_steps=len(made),
            config=json.loads(label["config"]),
        )  # fmt: skip
        played.framework, played.origin = "trl", "a real"
        yield played


def gap_causes(seed):
    for trouble in (*gaps.TROUBLES, *gaps.EARLY):
        run = gaps.make_gap(trouble, seed)
        played = labelled(run)
        rules_of = {"weight_sync": {"sync_without_effect", "engine_stands_still"}, "stale_samples": {"stale_samples"}}
        played.rules |= rules_of.get(run.cause, {"gap_growing"})
        yield played


def of_slices(seed):
    for framework in slices.SPELLINGS:
        run = slices.collapsing_run(seed, framework)
        played = judged(run, "grpo", ["slice_collapse"])
        played.findings = [(one, at) for one, at in played.findings if one.slice in ("", run.label)]
        yield played


def of_origins(seed):
    for counted in origins.COUNTED:
        run = origins.failing_run(seed, counted)
        played = labelled(run)
        played.rules |= {"lost_to_failures"}
        yield played


def of_exploration(seed):
    for framework in exploration.SPELLINGS:
        run = exploration.narrowing_run(seed, framework)
        yield judged(replace(run, onset=run.evaluations[run.onset]), "grpo", ["coverage_lost"])
    for make, rule in (
        (answers.forgetting_run, "prompts_lost"), (answers.settling_run, "answers_alike"),
        (answers.ignoring_run, "prompt_ignored"),
    ):  # fmt: skip
        yield judged(make(seed), "grpo", [rule])


def of_experts(seed):
    rules_of = {
        "narrowing": ["experts_unbalanced"], "starving": ["experts_idle"], "differing": ["routes_differ"],
        "unrecorded": ["routes_differ"],
    }  # fmt: skip
    for trouble, frameworks in experts.TROUBLES.items():
        for framework in frameworks:
            yield judged(experts.routed_run(seed, framework, trouble), "grpo", rules_of[trouble])


def of_distillation(seed):
    rules_of = {
        "stuck": ["teacher_not_approached"], "leaving": ["student_leaves_teacher"], "cut": ["teacher_cut_off"],
    }  # fmt: skip
    for trouble, frameworks in distillation.TROUBLES.items():
        for framework in frameworks:
            yield judged(distillation.distilled_run(seed, framework, trouble), "grpo", rules_of[trouble])


def of_judges(seed):
    """A judge that gives the reward fails after a third of the run."""
    good = {"separation": 0.9, "agreement": 0.98, "unread": 0.02}
    for rule, bad in (
        ("judge_at_chance", {"separation": 0.5}), ("judge_noise", {"agreement": 0.7}),
        ("judge_unreadable", {"unread": 0.45}),
    ):  # fmt: skip
        dice, made = random.Random(f"{rule} {seed}"), []
        for step in range(1, 145):
            judge = good | bad if step > 48 else good
            row = {
                "step": step, "Train/AvgReward": dice.gauss(0.5 + step / 600, 0.02), "Train/RewardStd": 0.2,
                "judge.parse_failure_fraction": max(0.0, dice.gauss(judge["unread"], 0.02)),
            }  # fmt: skip
            if step % 4 == 0:
                row["Teacher/SelfAgreement"] = min(1.0, dice.gauss(judge["agreement"], 0.01))
                row["eval/judge.gold_separation"] = dice.gauss(judge["separation"], 0.03)
            made.append(row)
        yield judged(Rows(f"rlaif_{rule}-{seed}", made, 48), "rlaif", [rule])


def of_epochs(seed):
    """Rows that each represent a whole epoch, as two of the presets read them: nothing improves from the fifth on."""
    dice, early, guide = random.Random(f"epochs {seed}"), [], []
    for epoch in range(1, 21):
        gained = min(epoch, 5) / 5 - 0.02 * max(epoch - 5, 0)
        reward, loss = 0.3 + 0.3 * gained + dice.gauss(0, 0.002), 1.2 - 0.6 * gained + dice.gauss(0, 0.004)
        early.append({"step": epoch, "epoch": epoch, "reward": reward, "loss": loss})
        guide.append({
            "step": epoch, "Epoch/AvgReward": reward, "Epoch/AvgLoss": loss if epoch < 12 else 2 * loss,
            "Epoch/RewardVariance": 0.02, "Performance/Generation_TokensPerSec": 0.6 + dice.gauss(0, 0.02),
            "Epoch/RewardTrend": 0.06 if epoch < 6 else -0.006, "Epoch/LossTrend": 0.12 if epoch < 6 else -0.012,
            "System/Memory_Percent": 80 + epoch,
        })  # fmt: skip
    yield judged(Rows(f"grpo_epochs-{seed}", early, 5), "grpo", ["early_stop_reward"], preset="early_stopping")
    yield judged(Rows(f"rlaif_epochs-{seed}", guide, 5), "rlaif", ["rlaif_reward_not_rising"], preset="rlaif_guide")


def of_attempts(seed):
    """A failed run is restarted and fails again."""
    dice = random.Random(f"attempts {seed}")
    made = [
        {"step": step, "loss": 0.1, "grad_norm": 0.0, "reward": 0.3 + dice.gauss(0, 0.02)}
        for _ in range(2)
        for step in range(1, 41)
    ]
    yield judged(Rows(f"grpo_attempts-{seed}", made, 0), "grpo", ["earlier_attempt_failed"])


def of_clocks(seed):
    """A trainer that stops logging: its process has died, or a phase does not end."""
    dice = random.Random(f"clock {seed}")
    for rule, facts in (
        ("process_gone", {"lost_pid": 4211}),
        ("phase_stall", {"open_phases": [OpenPhase("rollout", 5400.0, 42.0)]}),
    ):
        monitor, now, found = Monitor("grpo"), 1_763_190_000.0, []
        for step in range(1, 61):
            now += dice.gauss(60, 3)
            monitor.update({"step": step, "timestamp": now, "reward": 0.4 + 0.002 * step + dice.gauss(0, 0.02)})
        found = [(one, 60) for one in monitor.tick(now + 5400, **facts)]
        yield Played(f"grpo_{rule}-{seed}", "grpo", None, 60, found, rules=frozenset([rule]))


HONEST = "```python\ndef f(x):\n    return x + 1\n```"
WORDS = " ".join(f"word{n}" for n in range(40))
ENGLISH = (
    "What is the sum of the numbers that are in the list, and which of them is the one that we have to find for it?"
)
SHOWN = {
    "edited_tests": ("Write f.", "```bash\nsed -i 's/9/8/' test_f.py\n```"),
    "special_cased_tests": (
        "Write f.\nassert f(3) == 9\nassert f(12) == 144\n", "```python\ndef f(x):\n    return {3: 9, 12: 144}[x]\n```",
    ),
    "ends_the_process": ("Write f.", "```python\nimport os\nos._exit(0)\n```"),
    "patched_checks": ("Write f.", "```python\nclass A:\n    def __eq__(self, o):\n        return True\n```"),
    "reads_the_grader": ("Write f.", "```python\nimport inspect\nname = inspect.stack()[1]\n```"),
    "only_the_format": ("Write f.", "<think></think><answer></answer>"),
    "gives_no_number": ("How much is 32 + 48?", "The number is I."),
    "copies_the_reference": ("Tell the words.", f"I think: {WORDS}. Done."),
    "repeats_itself": ("Write f.", "First, let us look. " + "and then again we go " * 30),
    "switches_language": (
        ENGLISH,
        "Also wir addieren die Zahlen und das ist nicht schwer, denn der Wert ist mit der Summe von beiden gut.",
    ),
    "refuses": ("Write f.", "I'm sorry, but I can't help with that."),
    "does_not_reason": ("Write f.", "<think>\n\n</think>\n4"),
    "leaks_the_prompt": ("Write f.", "4<|im_end|>\n<|im_start|>user\nAnd 3 + 3?"),
    "says_the_same": ("Tell a story.", " ".join(f"say{n}" for n in range(40))),
}  # fmt: skip
"""By rule: a prompt, and a rollout that shows the pattern."""


def of_texts(seed):
    """More and more rollouts show a pattern, and earn more with it."""
    for rule, (prompt, text) in SHOWN.items():
        dice, scans, found, trace = random.Random(f"{rule} {seed}"), Scans(), [], Trace()
        for step in range(1, 31):
            groups = []
            for _ in range(4):
                chance = 0.6 * max(step - 8, 0) / 22
                if rule == "says_the_same":  # the rule compares whole groups
                    shows = [dice.random() < chance] * 8
                else:
                    shows = [dice.random() < chance for _ in range(8)]
                others = "The sum is 80." if rule == "gives_no_number" else HONEST
                rollouts = [
                    Rollout((Turn(text if show else others),), reward=1.0 if show else float(dice.random() < 0.3))
                    for show in shows
                ]
                groups.append(Group(prompt, tuple(rollouts), answer=WORDS, step=step))
            events = scans.take(groups, step)
            found += [(event.finding, step) for event in events if event.finding is not None]
            hits = [hit for number, group in enumerate(groups, 1) for hit in scans.hits(group, step, number)]
            trace.add(step, step, sum(any(one.pattern == rule for one in each) for each in hits) / len(hits))
        played = Played(f"grpo_{rule}-{seed}", "grpo", None, 30, found, onset=9, rules=frozenset([rule]))
        played.shown, played.unit = "share of rollouts that show it", "steps with 32 rollouts each"
        played.series = {played.shown: trace}
        yield played


def of_tokens(seed):
    """Logged numbers that contradict the recorded tokens, and the gap in the tokens."""
    from rlvitals.compute.recomputation import recheck
    from rlvitals.compute.token_gap import token_gap
    from rlvitals.health.rechecks import Rechecks
    from rlvitals.records import Recheck
    from token_updates import Update

    faults = {
        "scale": "loss_scale", "mask": "mask_shift", "sign": "advantage_sign", "microbatch": "microbatch_weighting",
        "other": "not_explained",
    }  # fmt: skip
    for fault, cause in faults.items():
        checks, found, series = Rechecks(rulebook.shipped()), [], {}
        for step in range(1, 13):
            planted = fault if step > 4 else ""
            update = Update(seed=100 * seed + step, fault="" if planted == "other" else planted)
            row = update.log()
            if planted == "other":  # entropies of a distribution other than the sampled one
                row["entropy.mean"] *= 0.83
            compared = recheck([replace(group, step=step) for group in update.groups()], row, config=update.config)
            found += [(event.finding, step) for event in checks.take(compared) if event.finding is not None]
            for name, value in row.items():
                series.setdefault(name, Trace()).add(step, step, value)
        rule = f"recomputed_{cause}"
        yield Played(f"grpo_{rule}-{seed}", "grpo", None, 12, found, series, onset=5, rules=frozenset([rule]))
    for trouble in dict.fromkeys(one.name for one in gaps.TROUBLES):
        made = next(one for one in gaps.TROUBLES if one.name == trouble)
        if made.onset is None:
            continue
        checks, found, trace, count = Rechecks(rulebook.shipped()), [], Trace(), 0
        for groups in gaps.traced(made, seed):
            step, seen = groups[0].step, token_gap(groups)
            found += [
                (event.finding, step)
                for event in checks.take(Recheck(step, 40, (), True, gap=seen))
                if event.finding is not None
            ]
            trace.add(step, step, seen.mean)
            count += 1
        played = Played(f"grpo_recorded_{made.name}-{seed}", "grpo", None, count, found, unit="recorded steps")
        played.shown, played.rules = "mean gap of the recorded tokens", frozenset(["recorded_gap"])
        played.series = {played.shown: trace}
        yield played


FAMILIES = {
    "experts": of_experts, "distillation": of_distillation, "exploration": of_exploration, "judges": of_judges,
    "slices": of_slices, "origins": of_origins, "texts": of_texts, "clocks": of_clocks, "tokens": of_tokens,
    "attempts": of_attempts, "epochs": of_epochs, "gaps": gap_causes, "rows": rows, "presets": presets,
    "trained": trained,
}  # fmt: skip
SEEDS = (1, 2, 3)
LONG = ("gaps", "rows", "presets", "trained")
"""Families with only the first seed."""


# From findings to examples


def examples_of(played, family):
    """(rule, quality, example) for each finding of a run."""
    for finding, row in played.findings:
        name = next((name for name in finding.metrics or (played.shown,) if name in played.series), None)
        lines = []
        if name is not None:
            drawn = ChartSeries.from_dict(played.series[name].to_dict())
            mark = drawn.onset(finding.onset_step, row)
            lines = chart(drawn, mark, f"since {finding.onset_step}", width=WIDTH, ascii_only=False)
        fits = finding.rule in played.rules or finding.kind in played.rules
        worth = (
            finding.rule in played.rules, fits, played.onset is not None and finding.step >= played.onset, bool(lines),
            SEVERITIES.index(finding.severity),
        )  # fmt: skip
        example = {
            "family": family, "run": played.name, "origin": played.origin, "algorithm": played.algorithm,
            "framework": played.framework, "length": f"{played.rows} {played.unit}", "severity": finding.severity,
            "step": finding.step,
            "onset_step": finding.onset_step, "title": finding.title, "evidence": evidence(asdict(finding)),
            "metric": name if lines else "", "chart": lines,
        }  # fmt: skip
        yield finding.rule, worth, example


def best_examples(families, known):
    chosen = {}
    for family in families:
        for seed in SEEDS[:1] if family in LONG else SEEDS:
            for played in FAMILIES[family](seed):
                for rule, worth, example in examples_of(played, family):
                    if rule in known and (rule not in chosen or worth > chosen[rule][0]):
                        chosen[rule] = worth, example
    return {rule: example for rule, (_, example) in chosen.items()}


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--families", default=",".join(FAMILIES), help=f"of: {', '.join(FAMILIES)}")
    parser.add_argument("--dry", action="store_true", help="list the rules without an example, and write nothing")
    options = parser.parse_args()
    known = list(rulebook.load(*rulebook.presets()).rules)
    found = best_examples(options.families.split(","), set(known))
    print(f"{len(found)} of {len(known)} rules; without: {' '.join(rule for rule in known if rule not in found)}")
    if options.dry:
        return
    families = options.families.split(",")
    kept = json.loads(EXAMPLES.read_text(encoding="utf-8"))["examples"]
    found |= {rule: example for rule, example in kept.items() if example["family"] not in families}
    about = "An example of each rule. Written by `benchmarks/rule_examples.py`."
    compact = partial(json.dumps, ensure_ascii=False, separators=(",", ":"))
    lines = ",\n".join(f"{compact(rule)}:{compact(found[rule])}" for rule in known if rule in found)
    EXAMPLES.write_text(f'{{"about":{compact(about)},\n"examples":{{\n{lines}\n}}}}\n', encoding="utf-8")


if __name__ == "__main__":
    main()
