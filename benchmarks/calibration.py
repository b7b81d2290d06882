"""The reliability of alarms: makes the table of reliabilities of the rules and tests it on labelled runs.

    python benchmarks/calibration.py --logs DIR [DIR ...] [--corpus SEEDS] [--groups N] [--fit] [--unseen] [--per-log]
        [--per-rule] [--peers]

Each DIR has a label file (INDEX.tsv, MORE.tsv or FRESH.tsv: file, repo, verdict, kind or failure_class, onset_step)
beside or above its logs. All logs are judged once with every rule's own proposals. The script records which rule
proposed what in which state of the run's outcome. From that, and from simulated runs at a fiftieth of a log's weight, a
ridge regression estimates how likely it is that a run with such an alarm has failed or is at least worth watching
(`rlvitals.health.alarm_weights`).

It prints the table of verdicts. The logs of each repository are judged by a regression that has not seen that
repository (with `--groups 16`, nor a sixteenth of the others, which is quicker). The repositories of
`held_out_repositories.txt` are not part of this: `--unseen` adds a separate table for them, judged by the shipped data,
and the table of all logs together. `--fit` writes that data: `src/rlvitals/health/data/reliability.json`.

`--peers` adds the share of failed and of healthy logs on which each peer of `doctor.py` ever raises an alarm on the
same rows. Their answers are kept beside their environment, so an interrupted call continues where it ended.

In time means by onset + max(10 points, 15 % of the run); a run dead from its first 12 points has 40.
"""

from __future__ import annotations

import argparse
import collections
import csv
import json
import subprocess
import sys
import time
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from doctor import CLASS_WORDS, PEERS_VENV, ask_peer, peers_python, seeds_of, simulated_runs, table, wilson
from doctor_peers import PACKAGES
from rlvitals.errors import RlvitalsError
from rlvitals.health import alarm_weights, rulebook
from rlvitals.health.alarm_weights import Chances, Scales
from rlvitals.health.history import worst
from rlvitals.health.monitor import Monitor
from rlvitals.health.outcome import STATES, state_of
from rlvitals.records import KINDS
from rlvitals.views.places import open_source
from rlvitals.views.sources import RowSource, new_monitor

HERE = Path(__file__).parent
DATA = HERE.parent / "src" / "rlvitals" / "health" / "data" / "reliability.json"
ACT, WATCH = 0.65, 0.55
"""The probabilities from which an alarm counts as critical, and as a warning."""

UNSEEN_PARTS = {"B2"}
"""Parts in the label files whose logs are never used to choose anything. Other parts were held out until their table
was printed.
"""

SIMULATED_WEIGHT = 0.02
DOUBTFUL_WEIGHT = 0.5
"""The weight of a log whose label has low confidence."""

PEER_LIMIT = 20
"""The time limit of a peer for one log, in seconds."""

PENALTIES = {"rule": 2.0, "severity": 0.1, "state": 0.1, "class and state": 0.2, "rule and state": 4.0}
PROPOSED = ("warning", "critical")
ALL_EARS = Scales({}, act=0.0, watch=0.0)
"""Scales that leave every proposal unchanged."""


@dataclass
class Run:
    """A labelled run: rows, and the truth about it."""

    name: str
    repo: str
    verdict: str
    kinds: frozenset[str]
    onset: int | None
    """The row at which the run begins to fail."""
    rows: list[dict[str, Any]]
    source: RowSource | None = None
    facts: dict[str, Any] = field(default_factory=dict)
    ticks: list[float] = field(default_factory=list)
    evidence: str = ""
    weight: float = 1.0

    def monitor(self, scales):
        monitor = new_monitor(self.source) if self.source else Monitor(**self.facts)
        monitor.scales = scales
        return monitor

    @property
    def deadline(self):
        """The last row at which a finding counts as in time."""
        if self.onset is None:
            return -1
        return 39 if self.onset <= 12 else self.onset + max(10, 0.15 * len(self.rows))


@dataclass(frozen=True)
class Sample:
    """A proposal of a rule that persisted, with the state of the outcome, in one run."""

    rule: str
    proposed: str
    state: str
    failed: float
    """1, 0, or NaN if the label does not state it."""
    sick: float
    weight: float


# The runs


def held_out():
    lines = (HERE / "held_out_repositories.txt").read_text().splitlines()
    return {line.strip() for line in lines if line.strip() and not line.startswith("#")}


def logs_in(folder, which):
    labels = next(folder / name for name in ("INDEX.tsv", "MORE.tsv", "FRESH.tsv") if (folder / name).exists())
    unseen = held_out()
    with open(labels, newline="") as file:
        for label in csv.DictReader(file, delimiter="\t"):
            if (label["repo"] in unseen or label.get("part") in UNSEEN_PARTS) != (which == "unseen"):
                continue
            try:
                source = open_source(folder / label["file"])
                rows = list(source.rows)
            except RlvitalsError as error:
                print(f"{label['file']}: {error}"[:200], file=sys.stderr)
                continue
            onset = label["onset_step"]
            at = (index for index, row in enumerate(rows) if onset and row["step"] >= float(onset))
            yield Run(
                name=f"{labels.parent.name}/{label['file']}",
                repo=label["repo"],
                verdict=label["verdict"],
                kinds=kinds_of(label),
                onset=next(at, len(rows) - 1) if onset else (0 if label["verdict"] == "fail" else None),
                rows=rows,
                source=source,
                evidence=label["evidence"],
                weight=DOUBTFUL_WEIGHT if label.get("confidence") == "low" else 1.0,
            )


def kinds_of(label):
    """The kinds of a label's failure: given by the label, or inferred from its words."""
    given = frozenset((label.get("kind") or "").replace(" ", "").split(",")) & frozenset(KINDS)
    words = (label.get("failure_class") or "").lower()
    read = " ".join(kinds for word, kinds in CLASS_WORDS.items() if word in words)
    return given or frozenset(read.split())


def simulated(seeds):
    for run in simulated_runs(seeds):
        facts = {"algorithm": run.algorithm, "framework": run.framework, "total_steps": run.total_steps}
        yield Run(
            name=run.name, repo="", verdict=run.verdict, kinds=run.accept, onset=run.onset, rows=run.rows,
            facts=facts | {"config": run.config}, ticks=run.ticks, weight=SIMULATED_WEIGHT,
        )  # fmt: skip


def left_out_together(repos, groups):
    """The repositories one by one, or in `groups` groups."""
    ordered = sorted(repos)
    return [set(ordered[first::groups]) for first in range(groups)] if groups else [{repo} for repo in ordered]


# The proposals of the rules


def samples_of(run):
    """What every rule proposed, and in which state, while the run was judged by proposals only."""
    monitor = run.monitor(ALL_EARS)
    seen = {}
    for index, row in enumerate(run.rows):
        monitor.update(row)
        if monitor.case.raised:
            state = state_of(monitor.case)
            for rule, (severity, _) in monitor.case.raised.items():
                if severity != "info" and rule in monitor.weighed:
                    seen[rule, severity, state] = index
    for now in run.ticks:
        monitor.tick(now)
    failed = {"fail": 1.0, "healthy": 0.0}.get(run.verdict, np.nan)
    return [
        Sample(rule, severity, state, failed, float(run.verdict != "healthy"), run.weight)
        for (rule, severity, state), last in seen.items()
        if run.onset is None or last >= run.onset
    ]


# The reliability of the proposals


def fitted(samples):
    """The probabilities for the proposals of every rule in every state."""
    shipped = rulebook.shipped().rules
    rules = sorted(name for name, rule in shipped.items() if alarm_weights.is_weighed(rule))
    place = {rule: index for index, rule in enumerate(rules)}
    sizes = {"all": 1, "rule": len(rules), "severity": 1, "state": len(STATES), "class and state": len(STATES),
             "rule and state": len(rules) * len(STATES)}  # fmt: skip
    begins = dict(zip(sizes, np.cumsum([0, *sizes.values()]), strict=False))
    penalties = np.concatenate([np.full(size, PENALTIES.get(name, 1e-6)) for name, size in sizes.items()])

    def features(asked):
        matrix = np.zeros((len(asked), len(penalties)))
        for row, (rule, proposed, state) in enumerate(asked):
            at, of = place[rule], STATES.index(state)
            matrix[row, begins["all"]] = 1.0
            matrix[row, begins["rule"] + at] = 1.0
            matrix[row, begins["severity"]] = proposed == "critical"
            matrix[row, begins["state"] + of] = 1.0
            matrix[row, begins["class and state"] + of] = shipped[rule].kind in alarm_weights.INSIDES
            matrix[row, begins["rule and state"] + at * len(STATES) + of] = 1.0
        return matrix

    asked = [(rule, proposed, state) for rule in rules for proposed in PROPOSED for state in STATES]
    every, chances = features(asked), []
    row_of = {key: row for row, key in enumerate(asked)}
    for truth in ("failed", "sick"):
        # Samples with equal features are merged into one with their total weight.
        weight, true = np.zeros(len(asked)), np.zeros(len(asked))
        for one in samples:
            if not np.isnan(target := getattr(one, truth)):
                row = row_of[one.rule, one.proposed, one.state]
                weight[row] += one.weight
                true[row] += one.weight * target
        seen = weight > 0
        coefficients = regression(every[seen], true[seen] / weight[seen], weight[seen], penalties)
        chances.append(1 / (1 + np.exp(-every @ coefficients)))
    failed, sick = chances
    return {
        f"{rule} {proposed} {state}": Chances(round(float(p), 3), round(float(max(p, q)), 3))
        for (rule, proposed, state), p, q in zip(asked, failed, sick, strict=True)
    }


def regression(matrix, target, weight, penalties):
    """Ridge-penalised logistic regression by Newton's method."""
    coefficients = np.zeros(matrix.shape[1])
    for _ in range(25):
        chance = 1 / (1 + np.exp(-matrix @ coefficients))
        gradient = matrix.T @ (weight * (target - chance)) - penalties * coefficients
        curvature = (matrix.T * (weight * chance * (1 - chance))) @ matrix + np.diag(penalties)
        step = np.linalg.solve(curvature, gradient)
        coefficients += step
        if np.abs(step).max() < 1e-6:
            break
    return coefficients


# The results


@dataclass
class Judged:
    run: Run
    verdict: str
    raised: list[tuple[int, Any]]
    """Every finding with the row at which it was raised."""

    @property
    def alarms(self):
        return [(index, finding) for index, finding in self.raised if finding.severity != "info"]


def judge(run, scales):
    monitor = run.monitor(scales)
    raised = [(index, finding) for index, row in enumerate(run.rows) for finding in monitor.update(row)]
    raised += [(len(run.rows), finding) for now in run.ticks for finding in monitor.tick(now)]
    recovered = {(finding.rule, finding.step): finding for finding in monitor.findings}
    raised = [(index, recovered.get((finding.rule, finding.step), finding)) for index, finding in raised]
    return Judged(run, worst(monitor.findings), raised)


def verdicts(title, judged):
    def of(label):
        return [one for one in judged if one.run.verdict == label]

    healthy, failed, watch = of("healthy"), of("fail"), of("watch")

    def count(runs, *verdicts):
        return sum(one.verdict in verdicts for one in runs), len(runs)

    def named(one):
        found = (index for index, finding in one.alarms if finding.kind in one.run.kinds)
        return next(found, np.inf) <= one.run.deadline

    in_time = sum(map(named, failed)), len(failed)
    rows = [
        ("healthy, quiet", count(healthy, "healthy")),
        ("healthy, called act", count(healthy, "act")),
        ("healthy, no warning at any time", (sum(not one.alarms for one in healthy), len(healthy))),
        ("failed, watch or act", count(failed, "watch", "act")),
        ("failed, act", count(failed, "act")),
        ("failed, right kind named in time", in_time),
        ("to be watched: watch or act", count(watch, "watch", "act")),
    ]
    table(title, ["", "runs", "share"], [[name, f"{hits} of {of}", wilson(hits, of)] for name, (hits, of) in rows])


def reliability(title, judged):
    """Whether findings are right as often as their confidence states. A critical is right on a failed run, a warning on
    any run that is not healthy.
    """
    bins = collections.defaultdict(list)
    for one in judged:
        last = {finding.rule: finding for _, finding in one.alarms}
        for finding in last.values():
            if finding.severity == "critical" and one.run.verdict == "watch":
                continue
            right = one.run.verdict == "fail" or (finding.severity == "warning" and one.run.verdict == "watch")
            bins[min(int(finding.confidence * 10), 9)].append((finding.confidence, right))
    rows = [
        [f"{low / 10:.1f}-{(low + 1) / 10:.1f}", len(found), f"{np.mean([c for c, _ in found]):.2f}",
         f"{np.mean([r for _, r in found]):.2f}", wilson(sum(r for _, r in found), len(found))]
        for low, found in sorted(bins.items())
    ]  # fmt: skip
    table(title, ["confidence", "findings", "mean confidence", "right", "interval"], rows)


def per_rule(title, judged, simulated):
    """What each rule finds, and what would be missed without it: failed logs without an alarm of another rule, and
    simulated failures that no other rule names in time.
    """
    counts = collections.defaultdict(collections.Counter)
    for one in judged:
        standing = {finding.rule: finding for _, finding in one.alarms if finding.recovered_step is None}
        for rule, finding in standing.items():
            counts[rule][one.run.verdict] += 1
            counts[rule]["alone"] += one.run.verdict == "fail" and len(standing) == 1
            counts[rule]["right kind"] += finding.kind in one.run.kinds
        for rule in {finding.rule for _, finding in one.alarms} - standing.keys():
            counts[rule]["passing, healthy"] += one.run.verdict == "healthy"
    for one in simulated:
        named = {f.rule for index, f in one.alarms if f.kind in one.run.kinds and index <= one.run.deadline}
        for rule in named:
            counts[rule]["simulated"] += 1
            counts[rule]["simulated alone"] += len(named) == 1
        if one.run.verdict == "healthy":
            for rule in {finding.rule for _, finding in one.alarms}:
                counts[rule]["simulated healthy"] += 1
    for name, rule in rulebook.shipped().rules.items():
        if rule.action_critical != "none" or rule.action != "none":
            counts[name].update(())
    order = sorted(
        counts.items(), key=lambda item: (-item[1]["alone"], -item[1]["simulated alone"], -item[1]["fail"], item[0])
    )
    keys = [
        "fail",
        "watch",
        "healthy",
        "passing, healthy",
        "alone",
        "right kind",
        "simulated",
        "simulated alone",
        "simulated healthy",
    ]
    columns = ["rule", "failed", "watch", "healthy", "healthy, passing", "failed, it alone", "right kind",
               "simulated, named in time", "it alone", "simulated healthy"]  # fmt: skip
    table(title, columns, [[rule, *(of[key] for key in keys)] for rule, of in order])


def per_log(judged):
    for one in judged:
        wrong = {"healthy": one.verdict != "healthy", "fail": one.verdict != "act"}.get(one.run.verdict, False)
        if wrong:
            print(f"{one.run.verdict} -> {one.verdict}  {one.run.name}, {len(one.run.rows)} rows")
            print(f"    {one.run.evidence[:200]}")
            standing_first = sorted(one.alarms, key=lambda alarm: alarm[1].recovered_step is not None)
            for index, finding in standing_first[:6]:
                over = "" if finding.recovered_step is None else f", recovered at {finding.recovered_step}"
                print(f"    row {index}: {finding.severity} {finding.rule} ({finding.confidence:.2f}){over}")


@dataclass(frozen=True)
class Question:
    """A log in the form that peers are given."""

    name: str
    rows: list[dict[str, Any]]
    algorithm: str | None
    config: dict[str, Any]


def asked_before(cache, tool, run, python):
    """The severities that a peer raised on a log, from the cache or by running it now; None if it took longer than
    `PEER_LIMIT`.
    """
    key = f"{tool} {run.name}"
    if key not in cache:
        question = Question(run.name, run.rows, run.source.algorithm, dict(run.source.config))
        try:
            answers, _ = ask_peer(tool, python, [question], PEER_LIMIT)
            cache[key] = sorted({one.severity for one in answers[run.name]} & {"warning", "critical"})
        except subprocess.TimeoutExpired:
            cache[key] = None
    return cache[key]


def ask_peers(runs, place, until):
    """Run the peers on all logs, those with the fewest rows first, until the time is up. Their answers are kept in a
    file, so another call continues where this one ended.
    """
    python = peers_python(place)
    kept = place / "asked.json"
    cache = json.loads(kept.read_text()) if kept.exists() else {}
    for run in sorted(runs, key=lambda run: len(run.rows)):
        for tool in PACKAGES:
            if time.monotonic() < until:
                asked_before(cache, tool, run, python)
        kept.write_text(json.dumps(cache))
    return cache


def beside_peers(judged, cache):
    """How often each tool ever raises an alarm, on the failed logs and on the healthy ones."""
    judged = [one for one in judged if one.run.verdict != "watch"]
    runs = [one.run for one in judged]
    alarmed = {"rlvitals": {one.run.name: {f.severity for _, f in one.alarms} for one in judged}}
    standing = {"act": {"critical"}, "watch": {"warning"}}
    alarmed["rlvitals, at the end"] = {one.run.name: standing.get(one.verdict, set()) for one in judged}
    for tool, package in PACKAGES.items():
        answers = {run.name: cache[key] for run in runs if (key := f"{tool} {run.name}") in cache}
        alarmed[package] = {
            name: None if severities is None else set(severities) for name, severities in answers.items()
        }
    rows = []
    for tool, answers in alarmed.items():
        shares, cells = {}, []
        for label, severities in (("fail", {"warning", "critical"}), ("healthy", {"warning", "critical"}),
                                  ("fail", {"critical"}), ("healthy", {"critical"})):  # fmt: skip
            of = [answers[run.name] for run in runs if run.verdict == label and answers.get(run.name) is not None]
            hits = sum(bool(found & severities) for found in of)
            shares[label, len(severities)] = hits / max(len(of), 1)
            cells.append(f"{hits} of {len(of)}: {wilson(hits, len(of))}")
        late = sum(found is None for found in answers.values())
        rows.append([tool, *cells, f"{shares['fail', 2] - shares['healthy', 2]:.2f}", late, len(runs) - len(answers)])
    columns = ["", "failed, alarmed", "healthy, alarmed", "failed, critical", "healthy, critical", "difference",
               f"over {PEER_LIMIT} s", "not asked"]  # fmt: skip
    table("The same logs, any alarm at any time", columns, rows)


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--logs", nargs="+", type=Path, required=True)
    parser.add_argument("--corpus", default="1-4", help="seeds of the simulated runs")
    parser.add_argument("--tested", default="5-6", help="seeds of the simulated runs that rules are tried on")
    parser.add_argument("--groups", type=int, default=0, help="leave repositories out in groups, not one by one")
    parser.add_argument("--fit", action="store_true", help="write the data file")
    parser.add_argument("--unseen", action="store_true", help="the table of the held-out repositories, too")
    parser.add_argument("--per-log", action="store_true")
    parser.add_argument("--per-rule", action="store_true")
    parser.add_argument(
        "--peers", type=Path, nargs="?", const=PEERS_VENV, help="ask the peers about the same logs, in this environment"
    )
    parser.add_argument("--peers-seconds", type=float, default=3600.0, help="stop asking them after so long")
    asked = parser.parse_args()
    runs = [run for folder in asked.logs for run in logs_in(folder, "seen")]
    print(f"{len(runs)} logs of {len({run.repo for run in runs})} repositories", file=sys.stderr)
    proposals = {run.name: samples_of(run) for run in runs}
    simulated_samples = [sample for run in simulated(seeds_of(asked.corpus)) for sample in samples_of(run)]
    judged = []
    for repos in left_out_together({run.repo for run in runs}, asked.groups):
        others = [sample for run in runs if run.repo not in repos for sample in proposals[run.name]]
        scales = Scales(fitted(others + simulated_samples), act=ACT, watch=WATCH)
        judged += [judge(run, scales) for run in runs if run.repo in repos]
    verdicts("Each repository judged without its own logs", judged)
    reliability("Reliability, on the same", judged)
    everything = [sample for run in runs for sample in proposals[run.name]] + simulated_samples
    if asked.fit:
        chances = {key: list(pair) for key, pair in fitted(everything).items()}
        lines = ",\n".join(f"    {json.dumps(key)}: {json.dumps(pair)}" for key, pair in chances.items())
        DATA.write_text(f'{{\n  "act": {ACT},\n  "watch": {WATCH},\n  "chances": {{\n{lines}\n  }}\n}}\n')
        alarm_weights.shipped.cache_clear()
    if asked.per_rule:
        shipped = alarm_weights.shipped()
        others = [judge(run, shipped) for run in simulated(seeds_of(asked.tested))]
        per_rule(
            f"Rules: alarms that stand at the end, on the same; simulated runs of seeds {asked.tested}", judged, others
        )
    if asked.per_log:
        per_log(judged)
    if asked.peers:
        until = time.monotonic() + asked.peers_seconds
        beside_peers(judged, ask_peers([run for run in runs if run.verdict != "watch"], asked.peers, until))
    if asked.unseen:
        unseen = [judge(run, alarm_weights.shipped()) for folder in asked.logs for run in logs_in(folder, "unseen")]
        verdicts("Repositories that no rule was chosen with", unseen)
        reliability("Reliability, on the same", unseen)
        verdicts("All of them, each judged by numbers chosen without its repository", judged + unseen)


if __name__ == "__main__":
    main()
