"""Runs that nobody would think of, from seeds: every view reports the same verdict, findings, rows and vital signs.

`test_one_answer.py` has the runs that people know. Here names, values and the course of a run are drawn at random:
steps in several rows, evaluations, resumes that overlap or leave a gap, killed processes, attempts without a monitor,
rules and mappings of the user, packed logs, with an index and without.
"""

from __future__ import annotations

import contextlib
import json
import math
import os
import random
import re
import signal
from dataclasses import asdict

import pytest

import rlvitals
from rlvitals import catalog
from rlvitals.cli.main import main
from rlvitals.gauges import RunGauges
from rlvitals.store import index
from rlvitals.store.archive import compact_logs
from rlvitals.store.layout import RunDir
from rlvitals.tui.watched import Watched
from rlvitals.views.headlines import Headlines
from rlvitals.views.report import gather
from rlvitals.views.summary import headline, summarise

pytestmark = pytest.mark.slow

SEEDS = (0, 2, 7, 9, 11, 22, 31, 35, 36, 38, 41, 56, 63, 85, 93, 104)
"""Seeds whose runs found planted bugs. Others may be tried, in any number."""

ONLINE = ["loss", "grad_norm", "learning_rate", "reward", "kl", "entropy", "completions/mean_length", "reward_std"]
PAIRS = ["loss", "grad_norm", "learning_rate", "rewards/chosen", "rewards/rejected", "rewards/margins", "kl"]
UNKNOWN = ["foo", "bar/baz", "KL", "gnorm", "loss_pg", "eval/loss", "reward/env=math", "reward/env=code"]
EVALUATED = [
    ["loss", "accuracy"],
    ["eval/loss", "eval_accuracy"],
    ["pass@1"],
    ["train_loss", "train_runtime"],
    ["reward"],
]
FAULTS = [None, None, None, None, "zero", "nan", "inf", "freeze", "jump", "text", "none", "huge"]
RULES = [None, None, ["loss > 0.5 for 3: warning"], "kto_guide"]


class Plan:
    """A run by its seed."""

    def __init__(self, seed: int) -> None:
        rng = self.rng = random.Random(seed)
        self.rows = rng.choice([2, 5, 9, 20, 40, 70, 110])
        names, framework, algorithm = rng.choice([
            (ONLINE, "trl", rng.choice(["grpo", "rloo", "ppo"])), (PAIRS, "trl", rng.choice(["kto", "dpo"])),
            (rng.sample(UNKNOWN, 4), None, None), self.of_the_catalogue(),
        ])  # fmt: skip
        self.series = {name: self.shape(name) for name in names}
        self.given = {"display": "none", "hardware": False, "config": {"num_generations": 8}}
        self.given |= {"framework": framework} if framework and rng.random() < 0.6 else {}
        self.given |= {"algorithm": algorithm} if algorithm and rng.random() < 0.6 else {}
        self.given |= {"total_steps": self.rows} if rng.random() < 0.5 else {}
        self.rules, self.is_mapped = rng.choice(RULES), rng.random() < 0.1 and self.rows > 2
        self.parts, self.stride = rng.choice([1, 1, 2, 3]), rng.choice([1, 1, 10])
        self.evaluated, self.every = rng.choice(EVALUATED), rng.choice([0, 0, 1, 5, 20])
        self.attempts = rng.choice([1, 1, 1, 2, 3])
        self.unmonitored = rng.randrange(1, self.attempts + 1) if rng.random() < 0.15 else 0
        self.is_killed, self.is_packed = rng.random() < 0.15, rng.random() < 0.2
        self.has_text, self.has_index = rng.random() < 0.2, rng.random() < 0.5

    def of_the_catalogue(self):
        framework = self.rng.choice(catalog.frameworks()).id
        names = [alias.name for metric in catalog.metrics() for alias in metric.names if alias.framework == framework]
        names = [re.sub(r"\{[^}]*\}", "math", name) for name in names] or ONLINE
        return self.rng.sample(names, min(len(names), 8)), framework, self.rng.choice(catalog.algorithms()).id

    def shape(self, name):
        rng = self.rng
        base = 5e-7 if "lr" in name or "rate" in name else rng.choice([0.002, 0.3, 0.9, 5.0, 220.0])
        fault, begin = rng.choice(FAULTS), rng.randrange(max(self.rows, 1))
        end = rng.choice([math.inf, begin + rng.randrange(1, 40)])
        noise, missing = base * rng.choice([0.0, 0.02, 0.2]), rng.choice([0, 0, 0, 0.3])

        def value(number):
            if rng.random() < missing:
                return ...
            faulty = {"zero": 0.0, "nan": math.nan, "inf": math.inf, "freeze": base, "jump": 12 * base, "text": "n/a",
                      "none": None, "huge": 10**30}  # fmt: skip
            return faulty[fault] if fault and begin <= number < end else base + noise * rng.gauss(0, 1)

        return value

    def row(self, number):
        row = {name: value for name, series in self.series.items() if (value := series(number)) is not ...}
        return row | ({"chosen_text": "yes"} if self.has_text else {})

    def record(self, path):
        """Returns the run if its own monitor read all of it."""
        last = [*sorted(self.rng.randrange(1, self.rows + 1) for _ in range(self.attempts - 1)), self.rows]
        first = 0
        for attempt, end in enumerate(last, 1):
            given = dict(self.given)
            if attempt > 1:
                kind = self.rng.choice(["overlap", "gap", "exact"])
                first = max(0, first - self.rng.randrange(9)) if kind == "overlap" else first + 3 * (kind == "gap")
                given["resume"] = True if kind == "gap" or first == 0 else (first - 1) * self.stride
            if attempt == self.unmonitored:
                given["monitor"] = False
            elif self.rules:
                given["rules"] = self.rules
            elif self.is_mapped:
                given["mapping"] = {next(iter(self.series)): "reward.total.mean"}
            run = rlvitals.start(path, **given)
            self.log(run, range(first, max(end, first + 1)))
            if self.is_killed and attempt == len(last):
                os.kill(os.getpid(), signal.SIGKILL)
            run.finish()
            first = max(end, first + 1)
        return None if self.unmonitored else run

    def log(self, run, numbers):
        for number in numbers:
            step, row = number * self.stride, self.row(number)
            names = list(row)
            for part in range(self.parts):
                run.log({name: row[name] for name in names[part :: self.parts]}, step=step)
            if self.every and number % self.every == 0:
                run.log_eval({name: 0.5 + 0.1 * self.rng.random() for name in self.evaluated}, step=step)


def facts(finding):
    get = finding.get if isinstance(finding, dict) else asdict(finding).get
    return tuple(get(key) for key in ("rule", "slice", "cause", "severity", "step", "onset_step", "recovered_step"))


def listed(findings):
    return sorted((facts(finding) for finding in findings), key=str)


def record(plan, path):
    """Record a run in this process, or in one that is killed. Returns the run if it is still there."""
    if not plan.is_killed:
        return plan.record(path)
    child = os.fork()
    if child == 0:
        with contextlib.suppress(BaseException):
            plan.record(path)
        os._exit(1)
    assert os.WIFSIGNALED(os.waitpid(child, 0)[1])
    return None


@pytest.mark.parametrize("seed", SEEDS)
def test_every_view_of_a_random_run_reports_the_same(tmp_path, capsys, monkeypatch, seed):
    pytest.importorskip("starlette")
    plan, path = Plan(seed), tmp_path / "run"
    if plan.has_index:
        monkeypatch.setattr(index, "SMALLEST_INDEXED", 5)
    run = record(plan, path)
    live = None if run is None else (run.verdict, listed(run.findings))
    assert_same_everywhere(path, live, capsys)
    if plan.is_packed and not plan.is_killed:
        compact_logs(RunDir(path))
        assert_same_everywhere(path, live, capsys)


def assert_same_everywhere(path, live, capsys):
    from rlvitals.agents import runs as tools
    from rlvitals.web import api
    from rlvitals.web.answers import Query
    from rlvitals.web.folder import Folder

    view, folder, asked = rlvitals.open_run(path), Folder(path.parent), Query([("run", path.name)])
    health, vitals, page = api.findings(folder, asked), api.run(folder, asked), gather(path)
    verdict, found = (health["verdict"], health["reason"]), listed(health["findings"])
    assert live in (None, (verdict, found))
    report = rlvitals.check(path)
    assert (report.verdict, report.reason) == (page.check["verdict"], page.check["reason"]) == verdict
    grave = {finding["rule"] for finding in health["findings"] if finding["severity"] != "info"}
    reported = [one for one in found if one[3] != "info" or one[0] not in grave]  # without what got worse later
    assert listed([*report.findings, *report.normal]) == reported
    assert (vitals["verdict"], vitals["reason"]) == verdict
    watched = Watched(path)
    while watched.poll():
        pass
    assert ((watched.diagnosis.verdict, watched.diagnosis.reason), listed(watched.findings)) == (verdict, found)
    assert verdict[1].replace("'", "&#x27;") in view._repr_html_().replace("'", "&#x27;")

    line, gauges, shown = Headlines().of(path), RunGauges(path, "run", "").look(), summarise(view)
    if not (line["verdict"] == gauges.verdict == "cannot judge" and not health["was_watched"]):  # lists judge no rows
        assert line["verdict"] == gauges.verdict == verdict[0]
        assert line["reason"] == verdict[1] or not health["was_watched"]
    assert (shown["verdict"], shown["reason"]) == (headline(view)["verdict"], headline(view)["reason"]) == verdict
    assert {facts(one) for one in shown["findings"]} <= set(found)
    for answer in (tools.run_findings(folder, {"run": "run"}), tools.check_log(folder, {"path": "run"})):
        assert re.sub("</?data[^>]*>", "", answer["verdict"]) == verdict[0]

    capsys.readouterr()
    main(["check", str(path), "--follow", "--json", "--until-idle", "0.01", "--interval", "0.01"])
    followed = json.loads(capsys.readouterr().out.splitlines()[-1])
    assert (followed["verdict"], followed["reason"], followed["rows"]) == (*verdict, view.rows)

    assert {view.rows, report.rows, vitals["rows"], line["rows"], watched.rows, page.about["rows"]} == {view.rows}
    steps = {view.last_step, report.last_step, line["last_step"], gauges.step, page.about["last_step"]}
    assert steps == {view.last_step}
    algorithms = {view.algorithm, report.algorithm, watched.algorithm, line["algorithm"], gauges.algorithm or None}
    frameworks = {view.framework, report.framework, watched.framework, line["framework"], gauges.framework or None}
    assert (algorithms, frameworks) == ({view.algorithm}, {view.framework})
    # Names that superseded rows logged first, and names of no known metric, may come in another order.
    tiles = sorted((tile["name"], tile["status"], tile["why"], str(tile["band"])) for tile in vitals["tiles"])
    assert sorted((tile["name"], tile["status"], tile["why"], str(tile["band"])) for tile in page.tiles) == tiles
    assert sorted((tile.name, tile.status, tile.why, str(tile.band)) for tile in watched.tiles()) == tiles


def test_a_run_that_is_killed_within_a_step_is_judged_without_the_half_step(tmp_path, capsys):
    pytest.importorskip("starlette")
    path = tmp_path / "run"
    child = os.fork()
    if child == 0:
        with contextlib.suppress(BaseException):
            run = rlvitals.start(path, display="none", hardware=False)
            for step in range(20):
                run.log({"loss": math.nan if step == 19 else 1.0 - 0.01 * step}, step=step)
                if step < 19:
                    run.log({"reward": 0.1 + 0.01 * step}, step=step)
            os.kill(os.getpid(), signal.SIGKILL)
        os._exit(1)
    assert os.WIFSIGNALED(os.waitpid(child, 0)[1])
    assert_same_everywhere(path, None, capsys)
    assert {finding.rule for finding in rlvitals.check(path).findings} == {"process_gone"}
    with rlvitals.start(path, resume=True, display="none", hardware=False) as run:  # now the step is over
        run.log({"loss": 0.5, "reward": 0.5}, step=20)
    assert "nonfinite_core" in {finding.rule for finding in run.findings}
    assert_same_everywhere(path, (run.verdict, listed(run.findings)), capsys)
