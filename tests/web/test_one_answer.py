"""A run gets the same verdict everywhere: live, in `check`, `watch`, the report, the dashboard and the notebook.

The runs cover every family of trainers: healthy, failing, recovered, resumed, evaluated, written by several ranks, and
with several rows per step. For each, all must report the same verdict, findings, steps and vital signs.
"""

from __future__ import annotations

import json
import math
import re
from dataclasses import asdict

import pytest

import rlvitals
from conftest import until
from rlvitals.cli.main import main
from rlvitals.errors import RlvitalsError
from rlvitals.render.check import cases
from rlvitals.render.numbers import number
from rlvitals.tui.watched import Watched
from rlvitals.views.logs import open_any
from rlvitals.views.report import gather
from rlvitals.views.summary import headline

STEPS = 110
FAIL_AT, BETTER_AT = 40, 58


def wobble(step, seed):
    """A repeatable number between -1 and 1."""
    return math.sin(step * 12.9898 + seed * 78.233) * math.cos(step * 3.7 + seed)


def preference(step):
    return {
        "loss": 0.69 - 0.001 * step + 0.01 * wobble(step, 1),
        "grad_norm": 1.0 + 0.1 * wobble(step, 2),
        "learning_rate": 5e-7 * (1 - step / 400),
        "rewards/chosen": 0.002 * step + 0.02 * wobble(step, 3),
        "rewards/rejected": -0.004 * step + 0.02 * wobble(step, 4),
        "rewards/margins": 0.006 * step + 0.03 * wobble(step, 5),
        "logps/chosen": -120 - 0.02 * step + wobble(step, 6),
        "logps/rejected": -140 - 0.1 * step + wobble(step, 7),
    }


def online(step):
    return {
        "loss": 0.02 + 0.005 * wobble(step, 1),
        "grad_norm": 0.6 + 0.06 * wobble(step, 2),
        "learning_rate": 1e-6,
        "reward": 0.3 + 0.003 * step + 0.03 * wobble(step, 3),
        "kl": 0.002 + 0.0001 * step + 0.0005 * wobble(step, 4),
        "entropy": 0.9 - 0.001 * step + 0.02 * wobble(step, 5),
        "completions/mean_length": 220 + 0.2 * step + 8 * wobble(step, 6),
        "reward_std": 0.3 + 0.02 * wobble(step, 7),
    }


def verl(step):
    row = online(step)
    return {
        "actor/pg_loss": row["loss"],
        "actor/grad_norm": row["grad_norm"],
        "actor/lr": row["learning_rate"],
        "actor/entropy": row["entropy"],
        "actor/ppo_kl": 0.0005 + 0.0001 * wobble(step, 8),
        "critic/score/mean": row["reward"],
        "critic/vf_loss": 0.3 - 0.0005 * step + 0.01 * wobble(step, 9),
        "response_length/mean": row["completions/mean_length"],
    }


FAMILIES = {
    "kto": ("trl", lambda step: preference(step) | {"kl": 0.0 if step < 10 else 0.05 + 0.01 * wobble(step, 8)}),
    "dpo": ("trl", lambda step: preference(step) | {"rewards/accuracies": 0.5 + 0.002 * step + 0.03 * wobble(step, 9)}),
    "grpo": ("trl", online),
    "rloo": ("trl", online),
    "ppo": ("verl", verl),
    "rlaif": (None, lambda step: online(step) | {"distill_loss": 1.2 - 0.003 * step + 0.02 * wobble(step, 9)}),
    "sft": ("trl", lambda step: {
        name: value for name, value in preference(step).items() if name in ("loss", "grad_norm", "learning_rate")
    } | {"mean_token_accuracy": 0.5 + 0.001 * step}),
}  # fmt: skip


def failing(make):
    """Its gradient becomes zero and stays zero."""

    def row(step):
        found = make(step)
        dead = next(name for name in found if name.endswith("grad_norm"))
        return found | {dead: 0.0} if step >= FAIL_AT else found

    return row


def recovering(make):
    """Its gradient is zero for a while."""

    def row(step):
        return failing(make)(step) if step < BETTER_AT else make(step)

    return row


def settings(algorithm, framework):
    return {"algorithm": algorithm, "framework": framework, "total_steps": STEPS, "display": "none", "hardware": False,
            "config": {"model": {"lr": 1e-6}, "optim": {"lr": 1e-6}, "num_generations": 8}}  # fmt: skip


def record(path, algorithm, case):
    """A run of a family; returns what its own monitor reports at the end."""
    framework, healthy = FAMILIES[algorithm]
    make = failing(healthy) if "failing" in case else recovering(healthy) if "recovered" in case else healthy
    given = settings(algorithm, framework)
    if case == "resumed while failing":
        with rlvitals.start(path, **given) as run:
            log(run, make, range(1, 91))
        with rlvitals.start(path, resume=75, **given) as run:
            log(run, make, range(76, STEPS + 1))
    elif case == "resumed and recovered":
        with rlvitals.start(path, **given) as run:
            log(run, make, range(1, 51))
        with rlvitals.start(path, resume=True, **given) as run:
            log(run, make, range(51, STEPS + 1))
    else:
        with rlvitals.start(path, **given) as run:
            log(run, make, range(1, STEPS + 1), case)
            if case == "failing on two ranks":
                with rlvitals.start(path, rank=1, **given) as other:
                    log(other, healthy, range(1, STEPS + 1))
    return run


def log(run, make, steps, case=""):
    for step in steps:
        row = make(step)
        if "in parts" in case:
            names = list(row)
            run.log({name: row[name] for name in names[::2]}, step=step)
            run.log({name: row[name] for name in names[1::2]}, step=step)
        else:
            run.log(row, step=step)
        if "evaluated" in case and step % 20 == 0:
            run.log_eval({"loss": 0.7 - 0.001 * step, "accuracy": 0.4 + 0.002 * step}, step=step)


CASES = (
    "healthy", "failing", "recovered", "healthy, evaluated", "failing, evaluated", "healthy, in parts",
    "failing, in parts", "resumed while failing", "resumed and recovered", "failing on two ranks",
)  # fmt: skip


def facts(finding):
    get = finding.get if isinstance(finding, dict) else asdict(finding).get
    return tuple(get(key) for key in ("rule", "slice", "cause", "severity", "step", "onset_step", "recovered_step"))


def listed(findings):
    return sorted((facts(finding) for finding in findings), key=str)


def combinations():
    """Every case for one family; for the others a healthy run, a failing one and some more cases in turn."""
    yield from (("grpo", case) for case in CASES)
    for place, algorithm in enumerate(name for name in FAMILIES if name != "grpo"):
        yield from ((algorithm, case) for case in dict.fromkeys((*CASES[:2], *CASES[place % 5 :: 5])))


@pytest.fixture(scope="module")
def served(tmp_path_factory):
    """A folder of runs and a dashboard for it."""
    pytest.importorskip("starlette")
    from serving import serving

    folder = tmp_path_factory.mktemp("runs")
    with serving(folder) as client:
        yield folder, client


@pytest.fixture(scope="module")
def recorded(served):
    """Every run, and what its own monitor reported at the end. The dashboard lists a folder once per second, so all
    runs are recorded before the first request.
    """
    folder, _ = served
    return {(algorithm, case): record(folder / name_of(algorithm, case), algorithm, case)
            for algorithm, case in combinations()}  # fmt: skip


def name_of(algorithm, case):
    return re.sub(r"\W+", "-", f"{algorithm} {case}")


def counted_in(reason):
    """The number of findings that the reason of a verdict mentions."""
    return sum(int(count) for count in re.findall(r"(\d+) (?:critical finding|warning)", reason))


@pytest.mark.slow
@pytest.mark.parametrize(("algorithm", "case"), list(combinations()))
def test_every_view_of_a_run_reports_the_same(served, recorded, algorithm, case):
    folder, client = served
    name, run = name_of(algorithm, case), recorded[algorithm, case]
    live = (run.verdict, listed(run.findings))
    recovers = case.startswith("healthy") or case.endswith("recovered")
    assert live[0][0] == ("healthy" if recovers else "act"), live
    assert bool(live[1]) is not case.startswith("healthy")
    assert_same_everywhere(folder, client, name, live, rows=2 * STEPS if "in parts" in case else STEPS)


ENVS = ("math", "code", "search", "sudoku")


def sliced(step, broken, *, whole):
    """The rewards of some environments. The broken ones earn almost nothing from FAIL_AT until they recover."""
    row = {name: value for name, value in online(step).items() if name != "reward"}
    rewards = {f"reward/env={env}": 0.4 + 0.002 * step + 0.03 * wobble(step, place) for place, env in enumerate(ENVS)}
    for env, better_at in broken.items():
        if FAIL_AT <= step < better_at:
            rewards[f"reward/env={env}"] = 0.01 * abs(wobble(step, 11))
    if whole:
        row["reward"] = 0.4 + 0.002 * step + 0.02 * wobble(step, 12)  # most samples come from the others
    return row | rewards


@pytest.mark.slow
@pytest.mark.parametrize("whole", [True, False])
@pytest.mark.parametrize("broken", [{"code": 1000}, {"code": 1000, "math": 72}], ids="-".join)
def test_slices_in_alarm_are_the_same_everywhere(served, broken, whole):
    folder, client = served
    name = f"slices-{'-'.join(broken)}-{whole}"
    with rlvitals.start(folder / name, **settings("grpo", None)) as run:
        log(run, lambda step: sliced(step, broken, whole=whole), range(1, STEPS + 1))
    live = (run.verdict, listed(run.findings))
    standing = {found.slice for found in run.findings if found.slice and found.recovered_step is None}
    assert standing == {"env=code"}
    assert {found.slice for found in run.findings if found.slice} == {f"env={env}" for env in broken}
    assert live[0][0] == "watch", live
    assert_same_everywhere(folder, client, name, live, rows=STEPS)
    tile = next(tile for tile in client.api("run", run=name).facts["tiles"] if tile["name"].startswith("reward"))
    assert tile["status"] == "watch"
    assert "env=code" in tile["why"]
    if not whole:  # the tile shows the value that the rules read
        last = sliced(STEPS, broken, whole=False)
        assert tile["value"] == pytest.approx(sum(last[f"reward/env={env}"] for env in ENVS) / len(ENVS))
        assert tile["title"].endswith("mean of 4")


def assert_same_everywhere(folder, client, name, live, *, rows):
    """Every view of the run's health reports `live`: ((verdict, reason), findings)."""
    view = rlvitals.open_run(folder / name)
    report = rlvitals.check(folder / name)
    assert ((report.verdict, report.reason), listed([*report.findings, *report.normal])) == live
    assert not any("own monitor said" in note for note in report.notes)
    assert listed(view.findings) == live[1]

    watched = Watched(folder / name)
    while watched.poll():
        pass
    assert ((watched.diagnosis.verdict, watched.diagnosis.reason), listed(watched.findings)) == live

    page = gather(folder / name)
    assert (page.check["verdict"], page.check["reason"]) == live[0]
    assert listed([*page.check["findings"], *page.check["normal"]]) == live[1]

    card = view._repr_html_()
    health, vitals = client.api("findings", run=name).facts, client.api("run", run=name).facts
    assert ((health["verdict"], health["reason"]), listed(health["findings"])) == live
    assert (vitals["verdict"], vitals["reason"]) == live[0]
    lines = []
    assert until(
        lambda: lines.extend(one for one in client.api("runs").facts["runs"] if one["run"] == name) or lines, pause=0.1
    )
    assert (lines[0]["verdict"], lines[0]["reason"]) == live[0]

    # The same number of rows, metrics and findings in every place.
    counted = {view.rows, report.rows, page.about["rows"], vitals["rows"], lines[0]["rows"], headline(view)["rows"],
            watched.rows}  # fmt: skip
    assert counted == {rows}
    metrics = client.api("metrics", run=name).facts
    named = {metric["name"] for metric in metrics["metrics"]}  # a name that evaluations log too is listed for both
    assert {len(named) + metrics["left_out"], lines[0]["metrics"]} == {len(view.metrics)}
    alarms = {(found["rule"], found["slice"]) for found in health["findings"] if found["severity"] != "info"}
    assert len(alarms) == len(cases(report.to_dict()["findings"])) == counted_in(live[0][1])
    assert f"{number(view.rows)} rows" in card

    assert live[0][1] in card
    grave = [finding for finding in view.findings if finding.severity != "info"]
    assert not grave or any(finding.title in card for finding in grave)  # not all are shown

    signs = [tile["name"] for tile in vitals["tiles"]]
    assert signs
    assert [tile["name"] for tile in page.tiles] == signs
    assert [tile.name for tile in watched.tiles()] == signs
    statuses = [(tile["name"], tile["status"]) for tile in vitals["tiles"]]
    assert [(tile["name"], tile["status"]) for tile in page.tiles] == statuses
    assert [(tile.name, tile.status) for tile in watched.tiles()] == statuses


def test_a_run_that_was_not_watched_is_judged_as_if_it_had_been(served):
    folder, client = served
    framework, make = FAMILIES["grpo"]
    live = record(folder / "watched", "grpo", "recovered")
    with rlvitals.start(folder / "unwatched", monitor=False, **settings("grpo", framework)) as run:
        log(run, recovering(make), range(1, STEPS + 1))
    assert run.verdict[0] == "cannot judge"
    health = client.api("findings", run="unwatched").facts
    assert ((health["verdict"], health["reason"]), listed(health["findings"])) == (live.verdict, listed(live.findings))


def test_a_health_log_of_an_earlier_version_is_read(served):
    """Such a log records neither recoveries nor that a monitor ran, so its rows are judged again."""
    folder, client = served
    live = record(folder / "old", "grpo", "recovered")
    path = folder / "old" / "logs" / "findings.jsonl"
    kept = [line for line in path.read_text().splitlines() if '"type":"raised"' in line]
    assert kept
    path.write_text("".join(line.replace('"type":"raised"', '"type":"finding"') + "\n" for line in kept))
    assert [finding.rule for finding in rlvitals.open_run(folder / "old").findings]
    health = client.api("findings", run="old").facts
    assert ((health["verdict"], health["reason"]), listed(health["findings"])) == (live.verdict, listed(live.findings))


def test_a_run_of_nothing_is_the_same_everywhere(served):
    folder, client = served
    with rlvitals.start(folder / "short", display="none", hardware=False) as run:
        log(run, online, range(1, 4))
    live = run.verdict
    assert live[0] == "cannot judge"
    report = rlvitals.check(folder / "short")
    assert (report.verdict, report.reason) == live
    assert client.api("run", run="short").facts["verdict"] == "cannot judge"
    with pytest.raises(RlvitalsError):
        rlvitals.check(folder / "not there")


def log_with_held_out_name(folder):
    """Training logs `eval/loss` beside an evaluation's `loss`, which is read under that name, too."""
    with rlvitals.start(folder, **settings("grpo", "trl")) as run:
        for step in range(12):
            run.log_eval({"loss": 0.7}, step=step)
            run.log({"reward": 0.3, "eval/loss": 0.5}, step=step)
    return ["eval/loss", "loss", "reward"]


def log_evaluations_of_two_names(folder):
    """Evaluations log `eval/loss`, and `loss`, as training does."""
    with rlvitals.start(folder, **settings("grpo", "trl")) as run:
        for step in range(12):
            run.log({"reward": 0.3, "loss": 0.1}, step=step)
            run.log_eval({"loss": 0.7, "accuracy": 0.5} if step < 6 else {"loss": 0.7, "eval/loss": 0.6}, step=step)
    return ["accuracy", "eval/loss", "loss", "reward"]


def log_superseded_metrics(folder):
    """Only superseded rows have a learning rate, and a loss that is not an evaluation's."""
    with rlvitals.start(folder, **settings("grpo", "trl")) as run:
        run.log({"lr": 1e-6, "reward": 0.3, "loss": 0.1, "kl": 0.1}, step=0)
    with rlvitals.start(folder, resume=True, **settings("grpo", "trl")) as run:
        for step in range(12):
            run.log({"reward": 0.3, "objective/kl": 0.002}, step=step)
            run.log_eval({"loss": 0.7}, step=step)
    return ["loss", "objective/kl", "reward"]


@pytest.mark.parametrize("log", [log_with_held_out_name, log_evaluations_of_two_names, log_superseded_metrics])
def test_the_names_of_evaluations_and_of_superseded_rows_are_read_the_same_everywhere(tmp_path, log):
    names = log(tmp_path / "run")
    view, page, watched = rlvitals.open_run(tmp_path / "run"), gather(tmp_path / "run"), Watched(tmp_path / "run")
    while watched.poll():
        pass
    expected = [(name, view.reader.title(name, evaluated=view.is_evaluated(name))) for name in sorted(names)]
    assert sorted((tile["name"], tile["title"]) for tile in page.tiles) == expected
    assert sorted((tile.name, tile.title) for tile in watched.tiles()) == expected
    assert {tile["name"]: tile["value"] for tile in page.tiles} == {tile.name: tile.value for tile in watched.tiles()}
    assert [tile["name"] for tile in page.tiles] == [tile.name for tile in watched.tiles()]
    assert all(len(view.series(name)) for name in names)
    assert sorted(view.vital_signs) == names


@pytest.mark.parametrize("evaluated", [False, True])
def test_the_rows_of_a_log_that_starts_over_are_counted_the_same_everywhere(tmp_path, capsys, evaluated):
    """Rows that were logged again count once, also while the log grows."""
    log = tmp_path / "train.jsonl"
    watched = Watched(log)
    for first, last in ((0, 30), (10, 20)):
        with log.open("a") as file:
            for step in range(first, last):
                file.write(json.dumps({"step": step, **online(step)}) + "\n")
                if evaluated and step % 5 == 0:
                    file.write(json.dumps({"step": step, "eval_loss": 0.7 - 0.001 * step}) + "\n")
        while watched.poll():
            pass
        report, view = rlvitals.check(log), open_any(log)
        assert (report.rows, report.first_step, report.last_step) == (last, 0, last - 1)
        assert (watched.rows, view.rows) == (last, last)
        assert (watched.diagnosis.verdict, watched.diagnosis.reason) == (report.verdict, report.reason)
    main(["check", str(log), "--follow", "--json", "--until-idle", "0.01", "--interval", "0.01"])
    followed = json.loads(capsys.readouterr().out.splitlines()[-1])
    assert (followed["rows"], followed["reason"]) == (report.rows, report.reason)


def test_steps_that_only_the_trainers_settings_plan_are_known_everywhere(tmp_path):
    with rlvitals.start(tmp_path / "run", config={"trainer": {"max_steps": 400}}, algorithm="kto", display="none",
                        hardware=False) as run:  # fmt: skip
        log(run, preference, range(1, 21))
    view, watched = rlvitals.open_run(tmp_path / "run"), Watched(tmp_path / "run")
    while watched.poll():
        pass
    page = gather(tmp_path / "run")
    assert {view.info.total_steps, watched.total_steps, page.about["total_steps"]} == {400}
    bands = {tile.name: tile.band for tile in watched.tiles()}
    assert bands == {tile["name"]: tile["band"] for tile in page.tiles}
    assert bands["rewards/chosen"] is not None  # those of the stage
