"""Opening a run and reading series, frames, axes and best values; finding runs."""

from __future__ import annotations

import json
import math
import shutil
import sys
from pathlib import Path

import numpy as np
import pandas
import pytest

import rlvitals
from rlvitals.errors import ConfigError, RunNotFound, RunUnreadable, UnknownMetric
from rlvitals.store.chunks import is_present
from rlvitals.views.discovery import near_metrics
from rlvitals.views.headlines import Headlines


@pytest.fixture
def run_path(tmp_path) -> Path:
    """Ten steps, an evaluation, a NaN, a late row, a text."""
    path = tmp_path / "run"
    with rlvitals.start(path, algorithm="kto") as run:
        for step in range(1, 11):
            margin = float("nan") if step == 4 else 0.1 * step
            run.log(
                {"loss": 1.0 / step, "rewards/margins": margin, "epoch": step / 10, "num_tokens": 100 * step}, step=step
            )
        run.log({"stage": "cooldown"}, step=10)
        run.log({"rewards/chosen": 0.3}, step=3)
        run.log_eval({"accuracy": 0.5}, step=5)
    return path


def test_a_series_unpacks_as_steps_and_values(run_path):
    steps, values = rlvitals.open_run(run_path).series("loss")
    assert steps.tolist() == list(range(1, 11))
    assert values.tolist() == [1.0 / step for step in range(1, 11)]


def test_a_logged_nan_is_a_point_and_a_missing_value_is_not(run_path):
    view = rlvitals.open_run(run_path)
    steps, values = view.series("rewards/margins")
    assert math.isnan(values[steps.tolist().index(4)])
    assert len(values) == 10
    assert view.series("rewards/chosen").steps.tolist() == [3]


def test_a_series_is_found_by_concept_and_by_another_frameworks_name(run_path):
    view = rlvitals.open_run(run_path)
    expected = view.series("rewards/margins").values
    assert np.array_equal(view.series("pref.reward.margin").values, expected, equal_nan=True)
    assert np.array_equal(view.series("dpo/reward_margin/avg").values, expected, equal_nan=True)


def test_an_unknown_series_names_the_runs_nearest(run_path):
    with pytest.raises(UnknownMetric, match="loss"):
        rlvitals.open_run(run_path).series("lossy")
    with pytest.raises(UnknownMetric):
        rlvitals.open_run(run_path).series("entropy")


def test_all_axes_of_a_row_can_be_the_x_axis(tmp_path):
    with rlvitals.start(tmp_path / "run") as run:
        for step in (1, 2, 3):
            run.log(
                {"loss": step, "epoch": step / 2, "num_tokens": step * 1000, "system/samples": step * 8,
                 "fully_async/count/current_param_version": step + 40},
                step=step * 10,
            )  # fmt: skip
    view = rlvitals.open_run(tmp_path / "run")
    assert view.series("loss", x="step").steps.tolist() == [10, 20, 30]
    assert view.series("loss", x="epoch").steps.tolist() == [0.5, 1.0, 1.5]
    assert view.series("loss", x="tokens").steps.tolist() == [1000, 2000, 3000]
    assert view.series("loss", x="samples").steps.tolist() == [8, 16, 24]
    assert view.series("loss", x="policy_version").steps.tolist() == [41, 42, 43]
    assert np.all(np.diff(view.series("loss", x="time").steps) >= 0)


def test_an_axis_the_run_does_not_have_is_an_error(run_path):
    with pytest.raises(ConfigError, match="policy_version"):
        rlvitals.open_run(run_path).series("loss", x="policy_version")
    with pytest.raises(ConfigError, match="no x-axis 'steps'"):
        rlvitals.open_run(run_path).series("loss", x="steps")


def test_a_frame_holds_every_row_sorted_by_step(run_path):
    frame = rlvitals.open_run(run_path).frame()
    assert isinstance(frame, pandas.DataFrame)
    assert frame["step"].tolist() == [1, 2, 3, 3, 4, 5, 6, 7, 8, 9, 10, 10]
    assert frame["stage"].dropna().tolist() == ["cooldown"]
    assert frame["rewards/chosen"].dropna().tolist() == [0.3]
    assert rlvitals.open_run(run_path).frame(stream="eval")["accuracy"].tolist() == [0.5]


def test_without_pandas_a_frame_is_a_dict_of_arrays(run_path, monkeypatch):
    monkeypatch.setitem(sys.modules, "pandas", None)
    frame = rlvitals.open_run(run_path).frame()
    assert isinstance(frame, dict)
    assert frame["loss"][0] == 1.0
    assert len(frame["step"]) == 12


def test_a_table_tells_missing_cells_from_nans(run_path):
    column = rlvitals.open_run(run_path).table()["rewards/margins"]
    assert is_present(column).sum() == 10
    assert np.isnan(column[is_present(column)]).sum() == 1


def test_best_follows_the_catalogues_direction(run_path):
    view = rlvitals.open_run(run_path)
    margin = view.best("rewards/margins")
    assert (margin.best, margin.best_step, margin.last) == (1.0, 10, 1.0)
    assert view.best("loss").best is None  # neither direction is better for a total loss in general
    assert view.best("accuracy").best == 0.5


def test_best_of_a_complement_is_turned_round(tmp_path):
    with rlvitals.start(tmp_path / "run", framework="open_instruct") as run:
        for step, value in enumerate([0.2, 0.9, 0.5]):
            run.log({"val/stop_rate": value}, step=step)
    assert rlvitals.open_run(tmp_path / "run").best("val/stop_rate").best == 0.9


def test_the_algorithm_is_recorded_or_recognised(run_path, tmp_path):
    assert rlvitals.open_run(run_path).algorithm == "kto"
    with rlvitals.start(tmp_path / "grpo") as run:
        run.log({"reward": 0.1, "reward_std": 0.2, "frac_reward_zero_std": 0.0, "completions/mean_length": 8}, step=1)
    view = rlvitals.open_run(tmp_path / "grpo")
    assert (view.framework, view.algorithm) == ("trl_grpo", "grpo")


def test_reading_a_live_run_sees_new_rows_each_time(tmp_path):
    with rlvitals.start(tmp_path / "run") as run:
        for step in range(600):
            run.log({"loss": step}, step=step)
            if step in (10, 300, 599):
                view = rlvitals.open_run(tmp_path / "run")
                assert view.series("loss").values.tolist() == list(range(step + 1))
                assert view.status == "running"


def test_the_newest_attempt_is_shown_and_the_abandoned_tail_is_a_ghost(tmp_path):
    path = tmp_path / "run"
    with rlvitals.start(path) as run:
        for step in range(1, 11):
            run.log({"loss": step}, step=step)
    with rlvitals.start(path, resume=5) as run:
        for step in (6, 7):
            run.log({"loss": 100 + step}, step=step)
    view = rlvitals.open_run(path)
    assert view.series("loss").values.tolist() == [1, 2, 3, 4, 5, 106, 107]
    assert view.series("loss", ghosts=True).values.tolist() == [6, 7, 8, 9, 10]
    assert (view.rows, view.ghost_rows, view.last_step) == (7, 5, 7)
    assert [row.step for row in view.iterate()] == [1, 2, 3, 4, 5, 6, 7]
    assert view.frame()["loss"].tolist() == [1, 2, 3, 4, 5, 106, 107]
    line = Headlines().of(path)
    assert (line["rows"], line["last_step"], line["verdict"], line["host"]) == (7, 7, "watch", view.info.host)


def test_a_clock_that_was_set_back_is_seen_in_the_rows(tmp_path):
    path = tmp_path / "run"
    with rlvitals.start(path) as run:
        for step in (1, 2, 3):
            run.log({"loss": 1.0}, step=step)
    again = Path(shutil.copytree(path, tmp_path / "again"))
    log = again / "logs" / "training_metrics.jsonl"
    rows = [json.loads(line) for line in log.read_text().splitlines()]
    rows[1]["timestamp"] += 3600
    log.write_text("".join(f"{json.dumps(row)}\n" for row in rows))
    assert [rlvitals.open_run(one).is_set_back for one in (path, again)] == [False, True]


def test_runs_are_found_below_a_folder(tmp_path):
    for name in ("b/run", "a", "c/d/e"):
        with rlvitals.start(tmp_path / name) as run:
            run.log({"loss": 1.0})
    (tmp_path / "a" / "checkpoint-1" / "logs").mkdir(parents=True)
    (tmp_path / "no-run").mkdir()
    found = [path.relative_to(tmp_path).as_posix() for path in rlvitals.find_runs(tmp_path)]
    assert found == ["a", "b/run", "c/d/e"]


def test_no_run_there_is_an_error_with_the_way_on(tmp_path, run_path):
    with pytest.raises(RunNotFound, match="Did you mean 'run'"):
        rlvitals.open_run(tmp_path / "rum")
    (tmp_path / "empty").mkdir()
    with pytest.raises(RunNotFound, match=r"neither run\.json nor"):
        rlvitals.open_run(tmp_path / "empty")
    with pytest.raises(RunNotFound):
        rlvitals.open_run(run_path / "run.json")
    with pytest.raises(RunNotFound):
        list(rlvitals.find_runs(tmp_path / "nowhere"))


def test_a_run_of_a_newer_format_names_the_version_needed(run_path):
    card = json.loads((run_path / "run.json").read_text())
    (run_path / "run.json").write_text(json.dumps({**card, "schema": 99, "written_by": "9.9"}))
    with pytest.raises(RunUnreadable, match=r"format 99, written by rlvitals 9.9.*pip install --upgrade"):
        rlvitals.open_run(run_path)


def test_a_damaged_card_says_that_the_rows_are_safe(run_path):
    (run_path / "run.json").write_text("{")
    with pytest.raises(RunUnreadable, match=r"rows in .* are not affected"):
        rlvitals.open_run(run_path)


def test_what_could_not_be_taken_is_reported(tmp_path, caplog):
    with rlvitals.start(tmp_path / "run") as run:
        run.log({"loss": 1.0, "grads": [1, 2]}, step=1)
        run.log({"grads": [1, 2]}, step=2)
    problems = rlvitals.open_run(tmp_path / "run").problems
    assert problems == ["'grads' was left out 2 times: " + run.left_out["grads"]["reason"]]
    assert caplog.text.count("'grads' is dropped") == 1


def test_names_that_would_take_long_to_compare_are_not_suggested():
    """The time to compare two names grows with the square of their lengths, and a log may have many long names."""
    assert near_metrics("los", ["loss", "loss" * 100]) == ["loss"]
    assert near_metrics("loss" * 50, ["loss" * 49]) == ["loss" * 49]
    assert near_metrics("loss" * 51, ["loss" * 49]) == []
    assert near_metrics("loss", [*map(str, range(2000)), "los"]) == []
