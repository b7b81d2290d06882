"""A run by slice: read by label, compared by label, listed together, judged one by one."""

from __future__ import annotations

import json

import pytest

import rlvitals
from rlvitals.cli.main import main
from rlvitals.contract import Metrics
from rlvitals.errors import ConfigError, UnknownMetric
from rlvitals.views import slice_check
from rlvitals.views.compare import compare_runs
from rlvitals.views.diagnosis import diagnose
from rlvitals.views.evaluations import evaluated_slices, read_trend
from rlvitals.views.slice_check import check_slice, check_slices
from rlvitals.views.tree import metric_list
from rlvitals.views.vitals import tiles

STEPS = 150
ENVS = ("math", "code", "search")
BROKEN = "code"


def level(env: str, step: int) -> float:
    """A growing reward; in one environment it collapses at step 80."""
    noise = 0.01 * ((step * (3 + ENVS.index(env))) % 7 - 3)
    if env == BROKEN and step > 80:
        return max(0.02, 0.5 - 0.03 * (step - 80)) + noise / 10
    return 0.3 + 0.003 * step + noise


def record(path, name, *, whole: bool, envs=ENVS):
    with rlvitals.start(path, algorithm="grpo", framework="trl_grpo", hardware=False) as run:
        for step in range(1, STEPS + 1):
            rewards = {env: level(env, step) for env in envs}
            row = {"loss": 0.2 + 0.01 * (step % 3), "grad_norm": 1 + 0.02 * (step % 5)}
            row |= {name.format(env): reward for env, reward in rewards.items()}
            run.log(row | ({"reward": sum(rewards.values()) / len(envs)} if whole else {}), step=step)
            if step % 50 == 0:
                run.log_eval({f"eval/accuracy/source={source}": step / 300 for source in ("a/b", "c")}, step=step)
    return rlvitals.open_run(path)


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    folder = tmp_path_factory.mktemp("sliced")
    record(folder / "ours", "reward/env={}", whole=True)
    record(folder / "theirs", "env/{}/reward/total", whole=False)
    return folder


@pytest.fixture(scope="module")
def ours(folder):
    return rlvitals.open_run(folder / "ours")


@pytest.fixture(scope="module")
def theirs(folder):
    return rlvitals.open_run(folder / "theirs")


def test_a_run_is_asked_for_its_slices(ours, theirs):
    names = {f"env={env}": f"reward/env={env}" for env in ENVS}
    assert ours.slices("reward.total.mean") == ours.slices("reward") == ours.slices("reward/{env}") == names
    assert ours.slices("loss") == {}
    assert theirs.slices("reward.total.mean")["env=code"] == "env/code/reward/total"
    steps, values = ours.series(names["env=code"])
    assert values[-1] == pytest.approx(level("code", int(steps[-1])))


def test_a_slice_is_found_by_its_label_under_any_frameworks_name(ours, theirs):
    assert theirs.resolve("reward/env=code") == "env/code/reward/total"
    assert ours.resolve("env/code/reward/total") == "reward/env=code"
    assert ours.resolve("reward.total.mean") == "reward"
    assert theirs.resolve("reward.total.mean") == "env/math/reward/total"
    with pytest.raises(UnknownMetric):
        ours.resolve("reward/env=chess")


def test_runs_are_compared_slice_by_slice(ours, theirs):
    compared = compare_runs([ours, theirs])
    rows = {row.name: row for row in compared.metrics}
    for env in ENVS:
        row = rows[f"reward/env={env}"]
        assert (row.names[1], row.verdict, row.first_divergence) == (f"env/{env}/reward/total", "same", None)
    assert "reward" in compared.only_in_one[str(ours.path)]  # the mean of three slices is not one of them


def test_the_best_reward_that_compare_prints_is_the_runs_and_not_a_slices(folder, capsys):
    assert main(["compare", str(folder / "ours"), str(folder / "ours")]) == 0
    best = rlvitals.open_run(folder / "ours").best("reward").best
    assert f"Run 1 best reward: {best:.4g} at" in capsys.readouterr().out
    assert main(["compare", str(folder / "theirs"), str(folder / "theirs")]) == 0
    assert "best reward" not in capsys.readouterr().out


def test_the_only_environment_of_a_run_is_the_whole_of_it(ours, tmp_path):
    alone = record(tmp_path / "alone", "env/{}/reward/total", whole=False, envs=("math",))
    rows = {row.name: row for row in compare_runs([alone, ours]).metrics}
    assert rows["env/math/reward/total"].names == ["env/math/reward/total", "reward/env=math"]
    plain = record(tmp_path / "plain", "reward", whole=False, envs=("math",))
    [row] = [row for row in compare_runs([plain, alone]).metrics if row.name == "reward"]
    assert (row.names[1], row.verdict) == ("env/math/reward/total", "caution")


def test_slices_are_listed_as_one_series(ours):
    listed: Metrics = metric_list(ours)
    facts = {metric["name"]: metric["slice"] for metric in listed["metrics"]}
    assert facts["reward"] is None
    assert facts["reward/env=math"] == {"series": "reward/{env}", "label": "math", "title": "Mean reward by env"}
    titles = {metric["name"]: metric["title"] for metric in listed["metrics"]}
    assert titles["reward/env=math"] == "Mean reward · env=math"


def test_a_vital_sign_has_its_slices_with_it(ours, theirs):
    for view, name in ((ours, "reward"), (theirs, "env/math/reward/total")):
        [tile] = [tile for tile in tiles(view, diagnose(view)) if tile["name"] == name]
        assert tile["divided_by"] == "env"
        assert {one["label"]: one["value"] for one in tile["slices"]} == {
            env: pytest.approx(level(env, STEPS)) for env in ENVS
        }
        assert all(tile["slices"] == [] for tile in tiles(view, diagnose(view)) if tile["name"] == "loss")


def test_evaluations_are_grouped_by_source(ours):
    found = evaluated_slices(ours, read_trend(ours.path).evaluations)
    assert {name: (facts["label"], facts["title"]) for name, facts in found.items()} == {
        "eval/accuracy/source=a/b": ("a/b", "Evaluation score by source"),
        "eval/accuracy/source=c": ("c", "Evaluation score by source"),
    }
    # If the file of an evaluation is missing, its row is used, without the prefix that a framework's names have.
    rows = [{"step": 5, "gsm8k/avg_score": 0.5, "aime/avg_score": 0.1, "loss": 1.0}]
    assert {name: facts["label"] for name, facts in evaluated_slices(ours, rows).items()} == {
        "gsm8k/avg_score": "gsm8k",
        "aime/avg_score": "aime",
    }


@pytest.mark.parametrize("name", ["ours", "theirs"])
def test_one_broken_environment_is_named_under_a_mean_that_hides_it(folder, name):
    report = check_slices(folder / name, "env")
    assert report.whole.verdict == "watch"  # part of the run, not most of it
    assert {(found.rule, found.slice) for found in report.whole.findings} == {("slice_collapse", "env=code")}
    assert {one.label: one.verdict for one in report} == {
        "env=math": "healthy",
        "env=code": "act",
        "env=search": "healthy",
    }
    assert report.verdict == "act"
    broken = next(one for one in report if one.label == "env=code")
    assert broken.findings[0].severity == "critical"
    assert broken.last_score == pytest.approx(level("code", STEPS))


def test_slices_beyond_the_most_are_counted(folder, monkeypatch, capsys):
    monkeypatch.setattr(slice_check, "MOST_JUDGED", 1)
    report = check_slices(folder / "ours", "env")
    assert ([one.label for one in report], report.left_out) == (["env=math"], 2)
    assert main(["check", str(folder / "ours"), "--by", "env"]) == 1  # the whole run has a warning about env=code
    assert "and 2 more that were not judged" in capsys.readouterr().out


def test_one_slice_takes_the_place_of_the_whole(folder):
    report = check_slice(folder / "ours", "env=code")
    assert report.verdict == "act"
    read = {taken.signal: taken.name for taken in report.names}
    assert (read["reward"], read["loss"]) == ("reward/env=code", "loss")
    assert check_slice(folder / "ours", "env=math").verdict == "healthy"


def test_another_tools_log_is_judged_by_source(tmp_path):
    log = tmp_path / "verl.jsonl"
    rows = [
        {
            "step": step,
            "actor/pg_loss": 0.1 + 0.01 * (step % 3),
            "actor/entropy": 1.0,
            "critic/score/mean": level("math", step),
            "val-core/openai/gsm8k/acc/mean@8": level("math", step),
            "val-core/aime/acc/mean@8": level("code", step),
        }
        for step in range(1, STEPS + 1)
    ]
    log.write_text("".join(json.dumps(row) + "\n" for row in rows))
    report = check_slices(log, "source")
    assert [one.label for one in report] == ["source=openai/gsm8k", "source=aime"]
    assert [one.last_score for one in report] == [pytest.approx(level(env, STEPS)) for env in ("math", "code")]
    assert report[0].verdict == "healthy"
    assert report[1].verdict != "healthy"
    [score] = {taken.name for taken in check_slice(log, "source=aime").names if taken.signal == "eval_score"}
    assert score == "val-core/aime/acc/mean@8"


@pytest.mark.parametrize(
    ("ask", "message"),
    [
        (lambda path: check_slice(path, "env=chess"), "no metric is logged for env=chess. It has env=math, env=code"),
        (lambda path: check_slice(path, "math"), "KEY=VALUE"),
        (lambda path: check_slices(path, "colour"), "env, source, agent, task, tool"),
        (lambda path: check_slices(path, "agent"), "divided by agent"),
    ],
)
def test_a_slice_that_is_not_there_is_refused_with_those_that_are(folder, ask, message):
    with pytest.raises(ConfigError, match=message.replace(".", r"\.")):
        ask(folder / "ours")


def test_a_run_without_slices_is_refused_with_how_to_log_them(tmp_path):
    log = tmp_path / "log.jsonl"
    log.write_text("".join(json.dumps({"step": step, "reward": 0.1 * step}) + "\n" for step in range(9)))
    for ask in (lambda: check_slices(log, "env"), lambda: check_slice(log, "env=math")):
        with pytest.raises(ConfigError, match="The log has no slices: log a metric as NAME/env=VALUE"):
            ask()


def test_the_verb_tells_the_slices(folder, capsys):
    assert main(["check", str(folder / "ours"), "--by", "env"]) == 2
    lines = capsys.readouterr().out.splitlines()
    whole, broken = [line for line in lines if "env=code" in line]
    assert "WATCH" in whole
    assert "ACT" in broken
    assert lines.index(broken) < next(place for place, line in enumerate(lines) if "env=math" in line)
    assert main(["check", str(folder / "ours"), "--by", "env", "--json"]) == 2
    facts = json.loads(capsys.readouterr().out)
    assert [one["slice"] for one in facts["slices"]] == [f"env={env}" for env in ENVS]
    assert main(["check", str(folder / "ours"), "--slice", "env=math"]) == 0
    assert main(["check", str(folder / "ours"), "--slice", "env=math", "--follow"]) == 64
