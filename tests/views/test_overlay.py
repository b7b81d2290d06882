"""Overlaid runs: groups by a setting and by seed, their means and bands, and what is refused."""

from __future__ import annotations

import pytest

import rlvitals
from rlvitals.views.chart_lines import Window
from rlvitals.views.overlay import differing_settings, others, overlays, run_groups
from rlvitals.views.tree import metric_list

RUNS = {"a": (1e-6, 1, 1.0), "b": (1e-6, 2, 3.0), "c": (5e-6, 1, 10.0)}
"""Learning rate, seed, and how fast the reward rises."""


def write(path, algorithm="grpo", rise=1.0, steps=5, **settings):
    quiet = {"display": "none", "hardware": False, "monitor": False}
    with rlvitals.start(path, framework=f"trl_{algorithm}", algorithm=algorithm, config=settings, **quiet) as run:
        for step in range(1, steps + 1):
            run.log({"reward": rise * step, "kl": 0.1}, step=step)
    return rlvitals.open_run(path)


@pytest.fixture(scope="module")
def views(tmp_path_factory):
    folder = tmp_path_factory.mktemp("overlaid")
    return {
        name: write(folder / name, rise=rise, optim={"learning_rate": rate}, seed=seed, output_dir=name)
        for name, (rate, seed, rise) in RUNS.items()
    }


def test_runs_are_grouped_by_a_setting_or_by_all_but_the_seed(views):
    assert differing_settings(views) == ["seed", "optim.learning_rate"]
    by_rate = [
        {"label": "optim.learning_rate=1e-06", "runs": ["a", "b"]},
        {"label": "optim.learning_rate=5e-06", "runs": ["c"]},
    ]
    assert run_groups(views, "optim.learning_rate") == by_rate
    assert run_groups(views, "seed") == by_rate
    assert run_groups(views, "never set") == [{"label": "never set=none", "runs": ["a", "b", "c"]}]


def test_a_group_is_its_mean_and_band_and_a_run_alone_stays_a_line(views):
    drawn = overlays(views, ["reward"], "seed", Window(points=5))
    (panel,) = drawn["overlays"]
    assert [line["run"] for line in panel["lines"]] == ["c"]
    (band,) = panel["bands"]
    assert band["x"] == [1, 2, 3, 4, 5]
    assert (band["low"], band["high"], band["mean"]) == (
        [1, 2, 3, 4, 5],
        [3, 6, 9, 12, 15],
        [2, 4, 6, 8, 10],
    )


def test_what_is_no_such_quantity_is_refused_and_takes_no_part_in_a_band(views, tmp_path):
    further = {"rloo": write(tmp_path / "rloo", "rloo"), "short": write(tmp_path / "short", steps=3)}
    drawn = overlays(
        views | further, ["kl", "reward"], "", Window("step", None, None, 2), [{"run": "gone", "reason": "?"}]
    )
    kl, reward = drawn["overlays"]
    assert [refusal["run"] for refusal in kl["refused"]] == ["gone", "rloo"]
    assert "do not compare" in kl["refused"][1]["reason"]
    assert [line["run"] for line in kl["lines"]] == ["a", "b", "c", "short"]
    assert (reward["lines"][0]["shown"], reward["lines"][0]["total"]) == (2, 5)
    assert reward["lines"][0]["high"] == [3, 5]
    grouped = overlays(views | further, ["kl"], "never set", Window())["overlays"][0]
    assert grouped["bands"][0]["runs"] == ["a", "b", "c", "short"]
    assert overlays(views, ["reward"], "", Window("epoch"))["overlays"][0]["refused"][0]["reason"].startswith(
        "this run has no epoch axis"
    )


def test_what_only_the_others_log_is_reported_with_which_do(tmp_path):
    rows = {
        "first": {"reward": 1.0, "kl": 0.1},
        "same": {"reward": 1.0, "kl": 0.1},
        "more": {"reward": 1.0, "entropy": 0.5, "mine/own": 1.0},
        "most": {"mine/own": 2.0, "clip_ratio/region_mean": 0.1},
        "verl": {"critic/score/mean": 1.0, "actor/entropy": 0.5, "actor/pg_clipfrac": 0.2},
    }
    views = {}
    for name, row in rows.items():
        framework = "verl" if name == "verl" else "trl_grpo"
        quiet = {"display": "none", "hardware": False, "monitor": False}
        with rlvitals.start(tmp_path / name, framework=framework, algorithm="grpo", **quiet) as run:
            for step in range(1, 4):
                run.log(row, step=step)
        views[name] = rlvitals.open_run(tmp_path / name)
    listed = {name: metric_list(view)["metrics"] for name, view in views.items()}
    logged_by = {one["name"]: one["logged_by"] for one in others(views, listed)}
    # verl's names for the reward and the entropy are in the panels of TRL's: an overlay resolves them to one quantity.
    assert logged_by["mine/own"] == ["more", "most"]
    assert logged_by["entropy"] == ["more", "verl"]
    assert logged_by["clip_ratio/region_mean"] == ["most", "verl"]
    assert logged_by.keys() == {"mine/own", "entropy", "clip_ratio/region_mean"}
    for name, runs in logged_by.items():  # as the panel draws it
        (panel,) = overlays(views, [name], "", Window(points=5))["overlays"]
        drawn = {line["run"] for line in panel["lines"]}
        assert drawn | {one["run"] for one in panel["refused"]} == set(runs)
        assert runs[0] in drawn
    assert others({"first": views["first"], "same": views["same"]}, listed) == []
