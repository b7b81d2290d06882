"""The content of a plot: which metrics, on which axis, with which marks."""

from __future__ import annotations

import json

import numpy as np
import pytest

import rlvitals
from judged_logs import dying_rows, healthy_rows
from rlvitals.errors import ConfigError, UnknownMetric
from rlvitals.views.compare import compare_runs
from rlvitals.views.logs import open_any
from rlvitals.views.plots import chosen, comparison, overview


def record(path, rows, **settings):
    with rlvitals.start(path, monitor=False, **settings) as run:
        for row in rows:
            run.log({name: value for name, value in row.items() if name != "step"}, step=row["step"])
    return rlvitals.open_run(path)


def titles(picture):
    return [panel.title for panel in picture.panels]


def test_the_overview_shows_the_algorithms_vital_signs_in_their_order(tmp_path):
    picture = overview(record(tmp_path, healthy_rows(), algorithm="grpo", framework="trl_grpo"))
    assert titles(picture) == ["Mean reward", "Training loss", "KL to reference, k3", "Gradient norm"]
    assert picture.panels[2].band == (0.0005, 0.72)


def test_chosen_and_rejected_share_a_panel(tmp_path):
    rows = [{"step": s, "rewards/chosen": s, "rewards/rejected": -s, "rewards/margins": 2 * s} for s in range(1, 5)]
    picture = overview(record(tmp_path, rows, algorithm="dpo", framework="trl_dpo"))
    assert titles(picture) == ["Reward margin", "Chosen reward and rejected reward"]
    assert [line.label for line in picture.panels[1].lines] == ["rewards/chosen", "rewards/rejected"]


def test_an_evaluation_gets_a_panel_of_points(tmp_path):
    view = record(tmp_path, healthy_rows(), algorithm="grpo", framework="trl_grpo")
    with rlvitals.start(tmp_path, resume=60, monitor=False) as run:
        for step in (61, 62):
            run.log({"reward": 0.5}, step=step)
            run.log_eval({"accuracy": 0.9}, step=step)
    view = rlvitals.open_run(tmp_path)
    panel = next(panel for panel in overview(view).panels if panel.name == "accuracy")
    assert panel.lines[0].is_sparse
    assert panel.title == "accuracy"  # not the accuracy of a reward model, which has this name in another framework


def test_findings_are_marked_at_their_onset_on_the_panel_they_are_about(tmp_path):
    path = tmp_path / "dying.jsonl"
    path.write_text("".join(json.dumps(row) + "\n" for row in dying_rows(healthy=40)))
    picture = overview(open_any(path))
    assert any(severity == "critical" and "since step 41" in text for severity, text in picture.remarks)
    marks = [mark for panel in picture.panels if panel.name == "grad_norm" for mark in panel.marks if mark.is_about]
    assert [(mark.x, mark.severity) for mark in marks] == [(41.0, "critical")]
    unmarked = overview(open_any(path), judged=False)
    assert not unmarked.remarks
    assert not any(panel.marks for panel in unmarked.panels)


def test_what_a_finding_is_about_gets_a_panel_even_where_nobody_knows_its_name(shared):
    picture = overview(open_any(shared / "logs" / "simpleppo_overfit_100.json"))
    assert "training_dynamics/kl_div" in titles(picture)


def test_a_run_that_was_watched_shows_what_was_reported_then(tmp_path):
    with rlvitals.start(tmp_path, algorithm="grpo", framework="trl_grpo") as run:
        for row in dying_rows(healthy=40):
            run.log({name: value for name, value in row.items() if name != "step"}, step=row["step"])
        critical = {finding.title for finding in run.findings if finding.severity == "critical"}
    remarks = overview(rlvitals.open_run(tmp_path)).remarks
    assert critical
    assert all(any(title in text for _, text in remarks) for title in critical)


def test_abandoned_rows_are_ghosts_and_the_new_attempt_is_marked(tmp_path):
    record(tmp_path, [{"step": step, "reward": 1.0} for step in range(1, 9)])
    with rlvitals.start(tmp_path, resume=5, monitor=False) as run:
        for step in (6, 7):
            run.log({"reward": 2.0}, step=step)
    picture = chosen(rlvitals.open_run(tmp_path), ["reward"])
    panel = picture.panels[0]
    assert panel.lines[0].y.tolist() == [1.0] * 5 + [2.0] * 2
    assert panel.ghosts[0].x.tolist() == [6, 7, 8]
    assert picture.boundaries == [(6.0, "attempt 2")]


def test_the_axis_may_be_tokens_and_evaluations_lie_between_their_neighbours(tmp_path):
    with rlvitals.start(tmp_path, framework="trl_grpo", monitor=False) as run:
        for step in (10, 20, 30):
            run.log({"reward": 1.0, "num_tokens": 1000 * step}, step=step)
        run.log_eval({"reward": 2.0}, step=25)
    picture = chosen(rlvitals.open_run(tmp_path), ["reward"], x="tokens")
    train, evaluation = picture.panels[0].lines
    assert train.x.tolist() == [10_000, 20_000, 30_000]
    assert evaluation.x.tolist() == [25_000]
    assert evaluation.label == "reward (evaluation)"
    assert picture.x_label == "tokens"


def test_time_is_shown_in_the_unit_that_fits(tmp_path):
    rows = [{"step": step, "timestamp": 1e9 + 3600 * step, "reward": 1.0} for step in range(1, 8)]
    path = tmp_path / "log.jsonl"
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    picture = chosen(open_any(path), ["reward"], x="time")
    assert picture.x_label == "hours since the first row"
    np.testing.assert_allclose(picture.panels[0].lines[0].x, np.arange(7))


def test_an_axis_that_no_row_carries_is_refused(tmp_path):
    view = record(tmp_path, healthy_rows(3))
    with pytest.raises(ConfigError, match="no epoch axis"):
        chosen(view, ["reward"], x="epoch")


def test_the_last_rows_alone_can_be_drawn(tmp_path):
    view = record(tmp_path, healthy_rows(30))
    assert chosen(view, ["reward"], last=5).panels[0].lines[0].x.tolist() == [26, 27, 28, 29, 30]


def test_an_unknown_metric_is_refused_with_the_nearest(tmp_path):
    with pytest.raises(UnknownMetric, match="reward"):
        chosen(record(tmp_path, healthy_rows(3)), ["rewad"])


def test_one_number_under_two_names_is_one_curve(tmp_path):
    rows = [{"step": s, "reward": s, "completion_length": 5 * s, "completions/mean_length": 5 * s} for s in range(1, 5)]
    picture = overview(record(tmp_path, rows, algorithm="grpo", framework="trl_grpo"))
    panel = next(panel for panel in picture.panels if panel.title == "Response length")
    assert len(panel.lines) == 1


def test_names_nobody_knows_are_drawn_where_they_move(tmp_path):
    picture = overview(record(tmp_path, [{"step": s, "my/gauge": s, "my/constant": 1} for s in range(1, 5)]))
    assert titles(picture) == ["my/gauge"]


def test_runs_are_compared_in_one_sign_and_scale(tmp_path):
    verl = record(tmp_path / "verl", [{"step": s, "actor/ppo_kl": 0.01 * s} for s in (1, 2)], framework="verl")
    roll = record(tmp_path / "roll", [{"step": s, "actor/policykl": -0.01 * s} for s in (1, 2)], framework="roll")
    picture = comparison([verl, roll], compare_runs([verl, roll]))
    assert [line.y.tolist() for line in picture.panels[0].lines] == [[0.01, 0.02], [0.01, 0.02]]
    assert picture.panels[0].title.endswith("(converted)")
    assert picture.legend == ["verl", "roll"]


def test_what_does_not_compare_is_left_out_and_reported(tmp_path):
    rows = [{"step": s, "kl": 0.01, "reward": s} for s in (1, 2)]
    grpo = record(tmp_path / "grpo", rows, framework="trl_grpo")
    kto = record(tmp_path / "kto", [{**row, "rewards/margins": 1.0} for row in rows], framework="trl_kto")
    picture = comparison([grpo, kto], compare_runs([grpo, kto]))
    assert "kl" not in [panel.name for panel in picture.panels]
    assert any(text.startswith("left out, not the same quantity: kl:") for _, text in picture.remarks)


def test_runs_with_nothing_in_common_give_no_picture(tmp_path):
    one, other = (record(tmp_path / name, [{"step": 1, name: 1.0}]) for name in ("a", "b"))
    with pytest.raises(ConfigError, match="nothing to draw"):
        comparison([one, other], compare_runs([one, other]))


def test_runs_of_one_name_are_distinguished_by_their_folders(tmp_path):
    views = [record(tmp_path / name / "run", healthy_rows(3), name="run") for name in ("a", "b")]
    assert comparison(views, compare_runs(views)).legend == ["a/run", "b/run"]
