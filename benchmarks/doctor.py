"""Detection and false alarms: rlvitals and its peers on the same labelled runs, row by row.

    python benchmarks/doctor.py [--logs DIR] [--labels INDEX.tsv] [--corpus SEEDS] [--peers [VENV]] [--tools A,B]
                                [--per-kind] [--per-log] [--json FILE]

Runs come from real logs with a label file (`--logs`; --labels is DIR/INDEX.tsv by default) and from the project's own
generator (`--corpus 90-94` or `7,8`; without --logs seeds 90-91 by default). No tool sees a row before its turn.

A plateau after a gain is not a failure, and a remark is the right answer to it: "right kind named in time" counts it as
missed, "the same, a plateau by a remark" does not.

A failing run is found in time if a finding is raised by onset + max(15 points, 20 % of the run), and for an onset in
the first 12 points by the 40th point. It is named if the kind of a warning or critical is one of the run's right kinds.
A critical counts as "would have been stopped". A finding before the onset counts as in time, because onsets are
estimates. The column "of these before onset" counts the runs that are in time only for that reason, and "critical
before onset" the failing runs with a critical before the onset. On logs that were used to calibrate the rules the
figures are in-sample. Intervals are Wilson's, 95 %. `--peers` makes a virtual environment for the peers if there is
none (needs the package index); `doctor_peers.py` describes how they are fed and how their alerts are read.
"""

from __future__ import annotations

import argparse
import collections
import csv
import hashlib
import json
import math
import statistics
import subprocess
import sys
import tempfile
import venv
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from doctor_peers import KINDS, PACKAGES, TOOLS, package_of
from rlvitals import health
from rlvitals.health.monitor import Monitor
from rlvitals.importers import read_log

HERE = Path(__file__).parent


OURS = "rlvitals"
PEERS_VENV = HERE.parent / "out" / "venv-peers"
EARLY_ONSET, EARLY_DEADLINE, GRACE_POINTS, GRACE_SHARE = 12, 40, 15, 0.2
SERIOUS = ("warning", "critical")
REMARKED = frozenset({"plateau"})
"""Kinds that are not failures: a remark in time is the right answer, and is counted in a separate column."""

# The kinds for the words in the failure_class of a label file.
CLASS_WORDS = {
    "kl explosion": "kl_explosion lr_too_high",
    "empty output": "length_collapse entropy_collapse reward_collapse",
    "turn collapse": "tool_abandonment",
    "abandonment": "tool_abandonment",
    "then collapse": "reward_collapse",
    "length explosion": "length_explosion",
    "truncat": "truncation",
    "zero-variance": "zero_variance",
    "dead groups": "zero_variance",
    "gives back": "reward_collapse",
    "saturated": "saturated plateau",
    "nan": "nonfinite",
    "floor": "reward_floor zero_variance",
    "value loss": "value_failure",
    "hacking": "reward_hacking reward_composition",
    "importance-ratio": "ratio_off clip_saturation kl_negative staleness",
    "log-prob crash": "logprob_crash likelihood_displacement",
    "no learning": "not_learning preference_signal_lost",
    "noise around 0": "preference_signal_lost",
    "overfit": "overfit likelihood_displacement saturated",
    "no gradient": "dead_gradient preference_signal_lost zero_variance reward_floor",
    "identically zero": "reward_floor zero_variance dead_gradient",
    "reward ~0": "reward_floor zero_variance not_learning",
    "length collapse": "length_collapse entropy_collapse",
    "ppo divergence": "loss_divergence value_failure reward_collapse reward_hacking",
    "update far too large": "clip_saturation kl_explosion lr_too_high",
    "margins negative": "margin_inversion preference_signal_lost",
    "above ln2": "loss_divergence",
}


@dataclass(frozen=True)
class Labelled:
    """One run with the truth about it, wherever it comes from."""

    name: str
    verdict: str  # fail, watch or healthy; only fail and healthy are scored
    accept: frozenset[str]
    onset: int | None
    rows: list[dict[str, Any]]
    kind: str = ""
    algorithm: str | None = None
    framework: str | None = None
    total_steps: int | None = None
    config: dict[str, Any] = field(default_factory=dict)
    ticks: list[float] = field(default_factory=list)

    @property
    def deadline(self):
        """The last index at which a finding is in time; before the first row if nothing fails."""
        if self.onset is None:
            return -1
        if self.onset <= EARLY_ONSET:
            return EARLY_DEADLINE - 1
        return self.onset + max(GRACE_POINTS, GRACE_SHARE * len(self.rows))


@dataclass(frozen=True)
class Alarm:
    """One warning or critical: its row, its name, and the kinds that the name may mean."""

    index: int
    severity: str
    alert: str
    kinds: frozenset[str]
    onset_step: int | None = None
    """The onset, if the tool reports one."""


# The runs


def real_runs(folder, labels):
    with open(labels, newline="") as file:
        for label in csv.DictReader(file, delimiter="\t"):
            log = read_log(folder / label["file"])
            onset, steps = label["onset_step"], log.config.get("max_steps")
            if onset:
                at = (index for index, row in enumerate(log.rows) if row["step"] >= float(onset))
                onset = next(at, len(log.rows) - 1)
            words = label["failure_class"].lower()
            kinds = " ".join(kinds for word, kinds in CLASS_WORDS.items() if word in words)
            yield Labelled(
                name=label["file"],
                verdict=label["verdict"],
                accept=frozenset(kinds.split()) if label["verdict"] == "fail" else frozenset(),
                onset=onset if onset != "" else None,
                rows=log.rows,
                kind=label["failure_class"],
                config=log.config,
                total_steps=steps if isinstance(steps, int) else None,
            )


def simulated_runs(seeds):
    sys.path.insert(0, str(HERE.parent / "tests"))  # the generator is in tests/
    from corpus import failing_runs, healthy_runs

    for seed in seeds:
        for run in (*failing_runs(seed), *healthy_runs(seed)):
            if run.kind and not run.accept:
                continue  # the generator marks it as not visible in the rows
            yield Labelled(
                name=run.name if run.name.endswith(f"-{seed}") else f"{run.name}-{seed}",
                verdict="fail" if run.kind else "healthy",
                accept=run.accept,
                onset=run.onset,
                rows=run.rows,
                kind=run.kind or "",
                algorithm=run.algorithm,
                framework=run.framework,
                total_steps=run.total_steps,
                config=run.config,
                ticks=run.ticks,
            )


def seeds_of(text):
    seeds = []
    for part in text.split(","):
        first, _, last = part.partition("-")
        seeds += range(int(first), int(last or first) + 1)
    return seeds


# The alarms of each tool


def fingerprint():
    """Identifies the rules and the generator, so that figures of different ones are not compared by accident."""
    places = (Path(health.__file__).parent, HERE.parent / "tests" / "corpus")
    files = sorted(path for place in places for path in place.rglob("*") if path.suffix in (".py", ".yaml", ".json"))
    return hashlib.sha256(b"".join(path.read_bytes() for path in files)).hexdigest()[:8]


def ask_rlvitals(runs):
    answers = {}
    for run in runs:
        monitor = Monitor(run.algorithm, run.framework, run.total_steps, run.config)
        alarms = answers[run.name] = []
        turns = [(monitor.update, row) for row in run.rows] + [(monitor.tick, now) for now in run.ticks]
        for index, (turn, what) in enumerate(turns):
            alarms += [
                Alarm(index, one.severity, one.rule, frozenset([one.kind]), one.onset_step) for one in turn(what)
            ]
        if monitor.problems:
            print(f"rlvitals' own defects on {run.name}: {monitor.problems}", file=sys.stderr)
    return answers


def ask_peer(tool, python, runs, limit=None):
    """Feed the runs to a peer in its own environment; its answers and its version. Raises subprocess.TimeoutExpired
    after `limit` seconds.
    """
    with tempfile.TemporaryFile("w+") as questions:
        for run in runs:
            head = {"run": run.name, "algorithm": run.algorithm, "config": run.config}
            questions.write(json.dumps(head, default=str) + "\n")
            questions.writelines(json.dumps({"row": row}, default=str) + "\n" for row in run.rows)
        questions.seek(0)
        command = [python, HERE / "doctor_peers.py", tool]
        done = subprocess.run(command, stdin=questions, capture_output=True, text=True, check=False, timeout=limit)
    if done.returncode:
        raise SystemExit(f"{tool} broke off:\n{done.stderr[-2000:]}")
    version, *alerts = map(json.loads, done.stdout.splitlines())
    meaning, answers = KINDS[package_of(tool)], {run.name: [] for run in runs}
    for one in alerts:
        if "trouble" in one:
            print(f"{tool}, {one['times']} rows (first in {one['first']}): {one['trouble']}", file=sys.stderr)
            continue
        kinds = frozenset(meaning[one["alert"]].split())
        answers[one["run"]].append(Alarm(one["index"], one["severity"], one["alert"], kinds))
    return answers, version["version"]


def peers_python(place):
    python = place / "bin" / "python"
    if not python.exists():
        venv.create(place, with_pip=True)
        subprocess.run([python, "-m", "pip", "install", "--quiet", *PACKAGES.values()], check=True)
    return python


# Scoring


@dataclass(frozen=True)
class Outcome:
    """The alarms of one tool on one run."""

    run: Labelled
    alarms: list[Alarm]

    def first(self, *severities, kinds=None, by=math.inf):
        """The index of the first finding with these severities, of these kinds and up to that index if given."""
        fitting = (one for one in self.alarms if one.severity in severities and (kinds is None or one.kinds & kinds))
        return min((one.index for one in fitting if one.index <= by), default=None)

    @property
    def named_at(self):
        return self.first(*SERIOUS, kinds=self.run.accept, by=self.run.deadline)

    @property
    def is_remarked(self):
        """Whether a kind that is not a failure got a remark in time."""
        return self.run.kind in REMARKED and self.first("info", kinds=self.run.accept, by=self.run.deadline) is not None

    @property
    def onset_off(self):
        """Points between the onset in the first right finding and the true one; None if it reports none."""
        right = [one for one in self.alarms if one.severity in SERIOUS and one.kinds & self.run.accept]
        if not right or right[0].onset_step is None or self.run.onset is None:
            return None
        steps = [row["step"] for row in self.run.rows]
        named = min(range(len(steps)), key=lambda place: abs(steps[place] - right[0].onset_step))
        return abs(named - self.run.onset)


def wilson(hits, of):
    """A share with its 95 % interval, in per cent."""
    if not of:
        return "-"
    z, share = 1.96, hits / of
    middle, spread = share + z * z / (2 * of), z * math.sqrt(share * (1 - share) / of + z * z / (4 * of * of))
    low, high = (abs(middle + sign * spread) / (1 + z * z / of) for sign in (-1, 1))  # avoids -0 without hits
    return f"{100 * share:.0f} % ({100 * low:.0f}-{100 * high:.0f})"


def score(outcomes, own, tool):
    """The counts of one tool. `own` holds the outcomes of rlvitals, for the runs whose kinds the tool can alert on."""
    failing = [one for one in outcomes if one.run.verdict == "fail"]
    healthy = [one for one in outcomes if one.run.verdict == "healthy"]
    named = [one for one in failing if one.named_at is not None]

    def in_time(one, **which):
        return one.first("critical", by=one.run.deadline, **which) is not None

    alerts = KINDS.get(package_of(tool), {})
    known = frozenset(" ".join(alerts.values()).split())
    covered = {one.run.name for one in failing if tool == OURS or one.run.accept & known}
    counts = {
        "right kind named in time": (len(named), len(failing)),
        "the same, a plateau by a remark": (
            sum(one.named_at is not None or one.is_remarked for one in failing),
            len(failing),
        ),
        "of these before onset": (sum(one.named_at < one.run.onset for one in named), len(named)),
        "right kind critical in time": (sum(in_time(one, kinds=one.run.accept) for one in failing), len(failing)),
        "named in time, of kinds it has": (sum(one.run.name in covered for one in named), len(covered)),
        "rlvitals on the same": (
            sum(one.run.name in covered and one.named_at is not None for one in own),
            len(covered) if own else 0,
        ),
        "any critical in time": (sum(map(in_time, failing)), len(failing)),
        "any warning, ever": (sum(one.first(*SERIOUS) is not None for one in failing), len(failing)),
        "critical before onset": (
            sum(one.first("critical", by=one.run.onset - 1) is not None for one in failing),
            len(failing),
        ),
        "healthy quiet": (sum(one.first(*SERIOUS) is None for one in healthy), len(healthy)),
        "healthy warned only": (
            sum(one.first("warning") is not None and one.first("critical") is None for one in healthy),
            len(healthy),
        ),
        "healthy critical": (sum(one.first("critical") is not None for one in healthy), len(healthy)),
    }
    delays = [one.named_at - one.run.onset for one in named]
    off = sorted(one.onset_off for one in failing if one.onset_off is not None)
    return {
        "counts": counts,
        "delay": statistics.median(delays) if delays else None,
        "onset_off": (statistics.median(off), off[int(0.9 * len(off))]) if off else None,
    }


# Tables


def table(title, columns, rows):
    rows = [[str(cell) for cell in row] for row in rows]
    widths = [max(map(len, column)) for column in zip(columns, *rows, strict=True)]
    print(f"\n## {title}\n")
    for row in (columns, ["-" * width for width in widths], *rows):
        print("| " + " | ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)) + " |")


def show_tools(title, scores):
    columns, rows = [], []
    for tool, found in scores.items():
        counts = found["counts"]
        columns = ["tool", *counts, "median delay, points", "onset off by, median and 90 %"]
        delay = "-" if found["delay"] is None else f"{found['delay']:g}"
        off = "-" if found["onset_off"] is None else "{:g}, {:g}".format(*found["onset_off"])
        rows.append([tool, *(wilson(*count) for count in counts.values()), delay, off])
    fail, healthy = (counts[name][1] for name in ("right kind named in time", "healthy quiet"))
    table(f"{title}: {fail} failing and {healthy} healthy runs", columns, rows)


def show_kinds(title, outcomes):
    by_kind = collections.defaultdict(list)
    for one in outcomes:
        if one.run.verdict == "fail":
            by_kind[one.run.kind].append(one)
    rows = []
    for kind, found in sorted(by_kind.items()):
        delays = [one.named_at - one.run.onset for one in found if one.named_at is not None]
        critical = sum(one.first("critical", kinds=one.run.accept, by=one.run.deadline) is not None for one in found)
        missed = [f"{one.run.name} [{story(one)}]" for one in found if one.named_at is None]
        delay = f"{statistics.median(delays):g}" if delays else "-"
        rows.append([kind, f"{len(delays)}/{len(found)}", f"{critical}/{len(found)}", delay, "; ".join(missed)])
    columns = ["kind", "named in time", "critical in time", "median delay", "missed [onset, deadline: what was said]"]
    table(f"{title}, by kind", columns, rows)
    wolves = [one for one in outcomes if one.run.verdict == "healthy" and one.first(*SERIOUS) is not None]
    rules = collections.Counter(
        f"{alarm.severity} {alarm.alert}" for one in wolves for alarm in one.alarms if alarm.severity in SERIOUS
    )
    table(
        f"{title}, healthy runs that were not quiet", ["run", "what was said"], [[o.run.name, story(o)] for o in wolves]
    )
    table(f"{title}, rules that spoke on healthy runs", ["rule", "runs"], rules.most_common())


def story(outcome):
    run = outcome.run
    alarms = [f"{one.alert}{'!' if one.severity == 'critical' else ''}@{one.index}" for one in serious(outcome)]
    when = f"{run.onset}, {int(run.deadline)}: " if run.verdict == "fail" else ""
    return f"{when}{' '.join(alarms[:6]) or 'nothing'}{' …' if len(alarms) > 6 else ''} of {len(run.rows)}"


def serious(outcome):
    return [one for one in outcome.alarms if one.severity in SERIOUS]


def show_logs(title, outcomes):
    rows = []
    for one in outcomes:
        run, firsts = one.run, []
        for severity in SERIOUS:
            alarm = next((alarm for alarm in one.alarms if alarm.severity == severity), None)
            firsts += [alarm.index, alarm.alert] if alarm else ["-", ""]
        named = {"fail": "missed" if one.named_at is None else f"in time, {one.named_at}"}.get(run.verdict, "")
        right = one.first(*SERIOUS, kinds=run.accept)
        if named == "missed" and right is not None:
            named = f"late, {right}"
        rows.append([run.name, len(run.rows), run.verdict, "-" if run.onset is None else run.onset, *firsts, named])
    columns = ["run", "points", "label", "onset", "warning", "by", "critical", "by", "right kind"]
    table(f"{title}, by run", columns, rows)


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--logs", type=Path, help="a folder of real logs")
    parser.add_argument("--labels", type=Path, help="their label file; INDEX.tsv in that folder by default")
    parser.add_argument("--corpus", type=seeds_of, help="seeds of the generator: 90-94, or 7,8")
    parser.add_argument(
        "--peers", type=Path, nargs="?", const=PEERS_VENV, help="run the peers too, in this environment"
    )
    parser.add_argument("--tools", help=f"only these, by commas, of: {OURS}, {', '.join(TOOLS)}")
    parser.add_argument("--per-kind", action="store_true", help="rlvitals' hits and misses by kind")
    parser.add_argument("--per-log", action="store_true", help="one line per run and tool")
    parser.add_argument("--json", type=Path, help="write the counts here")
    options = parser.parse_args()

    sets = {}
    if options.logs:
        labels = options.labels or options.logs / "INDEX.tsv"
        sets["Real logs"] = list(real_runs(options.logs, labels))
    if options.corpus or not options.logs:
        sets["Simulated runs"] = list(simulated_runs(options.corpus or [90, 91]))
    tools = [OURS, *(TOOLS if options.peers else ())]
    if options.tools:
        asked = [tool.strip() for tool in options.tools.split(",")]
        tools = [tool for tool in tools if tool in asked]
    python = peers_python(options.peers) if options.peers else None

    figures, rules = {}, fingerprint()
    print(f"rules and generator: {rules}")
    for title, runs in sets.items():
        outcomes, scores = {}, {}
        for tool in tools:
            answers, version = (ask_rlvitals(runs), "") if tool == OURS else ask_peer(tool, python, runs)
            label = f"{tool} {version}".strip()
            outcomes[label] = [Outcome(run, answers[run.name]) for run in runs]
            scores[label] = score(outcomes[label], outcomes.get(OURS, []), tool)
        show_tools(title, scores)
        figures[title] = scores
        for tool, found in outcomes.items():
            if options.per_kind and tool == OURS:
                show_kinds(f"{title}, {tool}", found)
            if options.per_log:
                show_logs(f"{title}, {tool}", found)
    if fingerprint() != rules:
        print("\nRules or generator changed on disk while this ran: run it again.")
    if options.json:
        options.json.write_text(json.dumps({"rules": rules, **figures}, indent=1))


if __name__ == "__main__":
    main()
