"""A report matches its run: the same verdict as `check`, the same numbers, nothing invented."""

from __future__ import annotations

import json
import math

import pytest

import rlvitals
from judged_logs import dying_rows, healthy_rows, write_jsonl
from rlvitals.codec import to_json
from rlvitals.compute import groups
from rlvitals.importers import NotALog
from rlvitals.records import Group, Rollout, Turn
from rlvitals.views.evaluations import trend_of_log
from rlvitals.views.logs import open_any
from rlvitals.views.report import MANY_METRICS, gather


def record(path, rows, **options):
    with rlvitals.start(path, display="none", **options) as run:
        for row in rows:
            run.log({name: value for name, value in row.items() if name != "step"}, step=row["step"])
    return path


def test_the_verdict_is_the_one_check_gives(tmp_path):
    for place, rows in (("well", healthy_rows()), ("badly", dying_rows())):
        path = record(tmp_path / place, rows)
        reported, checked = gather(path).check, rlvitals.check(path).to_dict()
        assert {key: reported[key] for key in ("verdict", "reason", "points")} == {
            key: checked[key] for key in ("verdict", "reason", "points")
        }
        assert [found["rule"] for found in reported["findings"]] == [found["rule"] for found in checked["findings"]]


def test_the_numbers_are_the_runs(tmp_path):
    rows = healthy_rows()
    rows[29]["kl"] = float("nan")
    report = gather(record(tmp_path / "run", rows, algorithm="grpo", config={"lr": 1e-6, "optim": {"name": "adam"}}))
    values = {best["name"]: best for best in report.values}
    assert values["reward"]["last"] == rows[-1]["reward"]
    assert values["reward"]["best"] == max(row["reward"] for row in rows)
    curves = {line.label: line for panel in report.curves.panels for line in panel.lines}
    assert curves["reward"].y.tolist() == [row["reward"] for row in rows]
    assert curves["reward"].x.tolist() == [row["step"] for row in rows]
    assert math.isnan(curves["kl"].y[29])
    assert report.config["lr"] == 1e-6
    assert report.config["optim.name"] == "adam"
    assert report.environment["python"]


def test_a_foreign_log_works_too_and_says_what_check_says(tmp_path):
    path = write_jsonl(tmp_path / "log.jsonl", dying_rows())
    report = gather(path)
    assert (report.check["verdict"], report.about["format"]) == ("act", "jsonl")
    assert report.check["reason"] == rlvitals.check(path).reason
    assert report.environment == {}
    assert report.best_rollouts == []


def test_a_foreign_logs_evaluations_are_found_in_rows_of_their_own_and_in_training_rows(tmp_path):
    rows = healthy_rows(12)
    rows[4]["eval/accuracy"] = 0.25
    rows.append({"step": 12, "eval/accuracy": 0.5})
    log = write_jsonl(tmp_path / "log.jsonl", rows)
    told = gather(log).evaluations
    assert [(stats["step"], stats["accuracy"]) for stats in told["evaluations"]] == [(5, 0.25), (12, 0.5)]
    assert told["best"] == {"step": 12, "accuracy": 0.5}
    assert trend_of_log(open_any(log)).evaluations == told["evaluations"]  # the dashboard's


def test_secrets_that_another_recorder_left_in_the_settings_are_masked(tmp_path):
    path = record(tmp_path / "run", healthy_rows(), config={"lr": 1e-6})
    (path / "config.json").write_text('{"lr": 1e-6, "wandb": {"api_key": "hunter2"}}')
    text = to_json(gather(path).to_dict()).decode()
    assert '"wandb.api_key"' in text
    assert "hunter2" not in text


def test_epochs_are_reported_where_there_is_more_than_one(tmp_path):
    rows = [row | {"epoch": 1 + (row["step"] - 1) // 20} for row in healthy_rows(60)]
    epochs = gather(record(tmp_path / "run", rows)).epochs["epochs"]
    assert [epoch["epoch"] for epoch in epochs] == [1, 2, 3]
    first = [row["reward"] for row in rows[:20]]
    assert epochs[0]["metrics"]["Epoch/AvgReward"] == pytest.approx(sum(first) / 20)
    assert gather(record(tmp_path / "other", healthy_rows())).epochs is None


def rollouts_run(path, rewards):
    """One group per list of rewards, at steps 1, 2, ..."""
    with rlvitals.start(path, monitor=False, display="none") as run:
        for step, listed in enumerate(rewards, 1):
            rollouts = tuple(Rollout(reward=reward, turns=(Turn(f"said {reward}"),)) for reward in listed)
            run.log_groups(groups.advantages([Group(prompt=f"prompt {step}", rollouts=rollouts)]), step=step)
            run.log({"reward": 0.5}, step=step)
    return path


def test_best_and_worst_rollouts_are_of_different_prompts_and_never_the_same(tmp_path):
    report = gather(rollouts_run(tmp_path / "run", [[1.0, 0.9, 0.1], [0.8, 0.2], [0.7, -1.0], [0.6, 0.5]]))
    assert [shown.rollout.reward for shown in report.best_rollouts] == [1.0, 0.8, 0.7]
    assert [shown.rollout.reward for shown in report.worst_rollouts] == [-1.0, 0.1, 0.2]
    assert report.worst_rollouts[0].rollout.turns[0].text == "said -1.0"
    assert report.worst_rollouts[0].group.prompt == "prompt 3"


def test_few_rollouts_are_shown_once(tmp_path):
    report = gather(rollouts_run(tmp_path / "run", [[1.0, 0.5]]))
    assert [shown.rollout.reward for shown in report.best_rollouts] == [1.0, 0.5]
    assert report.worst_rollouts == []


def test_the_step_bar_is_coloured_to_the_end_while_a_finding_lasts(tmp_path):
    report = gather(record(tmp_path / "run", dying_rows(), monitor=False))
    cells = [cell["severity"] for cell in report.step_bar if cell["from"] >= 41]
    assert set(cells) == {"critical"}
    assert report.step_bar[0]["severity"] is None


def test_what_was_asked_because_of_a_finding_and_answered_is_reported(tmp_path):
    with rlvitals.start(tmp_path / "run", display="none", actions="act") as run:
        for row in dying_rows():
            run.log({name: value for name, value in row.items() if name != "step"}, step=row["step"])
            request = run.request()
            if request is not None:
                request.declined("not today")
    report = gather(tmp_path / "run")
    assert any("declined (not today)" in asked for asked in report.asked.values())


def test_comparing_lays_runs_side_by_side(tmp_path):
    one = record(tmp_path / "one", healthy_rows(), config={"lr": 1e-6})
    two = record(tmp_path / "two", healthy_rows(seed=2), config={"lr": 2e-6})
    report = gather(one, [two])
    assert report.compared["config_differences"] == {"lr": [1e-6, 2e-6]}
    assert report.compared["first_divergence"] == 1
    assert report.compared_curves.legend == ["one", "two"]


def test_a_run_without_rows_has_a_report_too(tmp_path):
    report = gather(record(tmp_path / "run", []))
    assert report.check["verdict"] == "cannot judge"
    assert report.curves is None
    assert report.values == []


@pytest.mark.slow
def test_a_run_with_very_many_metrics_has_its_vital_signs_drawn(tmp_path):
    row = {"reward": 0.5, "loss": 0.1, **{f"mine/{place}": 1.0 for place in range(MANY_METRICS)}}
    report = gather(write_jsonl(tmp_path / "log.jsonl", [{"step": step, **row} for step in range(1, 10)]))
    assert {panel.name for panel in report.curves.panels[:2]} == {"reward", "loss"}
    assert len(report.curves.panels) < 13
    assert report.values_left_out == MANY_METRICS + 2 - len(report.values)


def test_gathering_writes_nothing_but_the_derived_index(tmp_path):
    path = record(tmp_path / "run", healthy_rows())
    before = {file: file.read_bytes() for file in path.rglob("*") if file.is_file() and "index" not in file.parts}
    gather(path)
    after = {file: file.read_bytes() for file in path.rglob("*") if file.is_file() and "index" not in file.parts}
    assert after == before


def test_what_is_not_there_is_an_error_that_says_so(tmp_path):
    with pytest.raises(NotALog, match="nothing there"):
        gather(tmp_path / "nowhere")


def test_the_facts_are_plain_data(tmp_path):
    path = rollouts_run(tmp_path / "run", [[1.0, 0.5]])
    facts = json.loads(to_json(gather(path).to_dict()))
    assert facts["best_rollouts"][0]["reward"] == 1.0
    assert facts["curves"][0]["lines"][0]["last"] == 0.5
