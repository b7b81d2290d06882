"""The list of a run's metrics."""

from __future__ import annotations

import json

import pytest

import rlvitals
from rlvitals.catalog import explain, families
from rlvitals.views import tree


def write_rows(path, rows):
    log = path / "logs" / "training_metrics.jsonl"
    log.parent.mkdir(parents=True)
    log.write_text("".join(json.dumps({"step": step, "attempt": 1} | row) + "\n" for step, row in enumerate(rows, 1)))
    return rlvitals.open_run(path)


def test_a_known_metric_carries_what_the_catalogue_says(tmp_path):
    view = write_rows(
        tmp_path, [{"rewards/margins": 0.1, "rewards/chosen": 0.2, "rewards/rejected": 0.1, "kl": 0.1}] * 3
    )
    listed = {line["name"]: line for line in tree.metric_list(view)["metrics"]}
    entry = explain("rewards/margins")
    line = listed["rewards/margins"]
    assert (line["concept"], line["title"], line["unit"], line["direction"]) == (
        entry.id,
        entry.title,
        entry.unit,
        entry.direction,
    )
    assert line["group"] == "Preference optimisation"


def test_a_name_nobody_knows_is_grouped_by_its_first_part(tmp_path):
    view = write_rows(tmp_path, [{"zq1/a": 1.0, "zq1/b": 2.0, "zq2": 3.0}])
    groups = {line["name"]: line["group"] for line in tree.metric_list(view)["metrics"]}
    assert groups == {"zq1/a": "zq1", "zq1/b": "zq1", "zq2": "Other metrics"}


def test_points_and_last_count_what_was_logged_alone(tmp_path):
    view = write_rows(tmp_path, [{"zq": 1.0}, {"other": 1.0}, {"zq": 5.0}, {"other": 2.0, "note": "hi"}])
    answer = tree.metric_list(view)
    listed = {line["name"]: line for line in answer["metrics"]}
    assert (listed["zq"]["points"], listed["zq"]["last"]) == (2, 5.0)
    assert answer["texts"] == ["note"]


def test_an_infinite_last_value_is_none(tmp_path):
    view = write_rows(tmp_path, [{"zq": 1.0}, {"_nonfinite": "zq=inf"}])
    line = tree.metric_list(view)["metrics"][0]
    assert (line["points"], line["last"]) == (2, None)


def test_more_names_than_anybody_reads_are_counted(tmp_path, monkeypatch):
    monkeypatch.setattr(tree, "MOST_LISTED", 3)
    view = write_rows(tmp_path, [{f"zq{place}": 1.0 for place in range(10)}])
    answer = tree.metric_list(view)
    assert len(answer["metrics"]) == 3
    assert answer["left_out"] == 7


def test_a_very_large_run_is_listed_from_its_newest_rows(tmp_path, monkeypatch):
    monkeypatch.setattr(tree, "MOST_COUNTED", 3)
    view = write_rows(tmp_path, [{"zq": float(step)} for step in range(10)])
    line = tree.metric_list(view)["metrics"][0]
    assert (line["points"], line["last"]) == (None, 9.0)


def test_rewards_stand_first_what_nobody_knows_in_the_middle_and_the_machine_last(tmp_path):
    row = {"memory/cpu/generate/start/rss": 1.0, "zq1/a": 1.0, "critic/score/mean": 0.5, "actor/pg_loss": 0.1}
    listed = tree.metric_list(write_rows(tmp_path, [row]))["metrics"]
    assert [line["name"] for line in listed] == [
        "critic/score/mean",
        "actor/pg_loss",
        "zq1/a",
        "memory/cpu/generate/start/rss",
    ]


def test_what_is_asked_for_stands_first_in_its_chapter_and_no_further(tmp_path):
    view = write_rows(tmp_path, [{"critic/score/max": 1.0, "critic/score/mean": 0.5, "actor/lr": 0.1}])
    listed = tree.metric_list(view, ["critic/score/mean", "actor/lr"])["metrics"]
    assert [line["name"] for line in listed] == ["critic/score/mean", "critic/score/max", "actor/lr"]


@pytest.mark.usefixtures("shipped_catalogue")
def test_every_chapter_of_the_catalogue_has_its_place():
    assert sorted((*tree.READ_FIRST, *tree.READ_LAST)) == sorted(family.id for family in families())


def test_what_never_changes_and_what_evaluations_log_of_the_same_is_reported(tmp_path):
    rows = [{"loss": 1.0 / step, "eval_loss": 2.0, "train/kl": 0.1, "val/kl": step, "beta": 0.1} for step in (1, 2)]
    view = write_rows(tmp_path, [*rows, {"once": 1.0}])
    answer = tree.metric_list(view, ["loss"])
    listed = {line["name"]: line for line in answer["metrics"]}
    assert {name for name, line in listed.items() if line["is_constant"]} == {"eval_loss", "train/kl", "beta"}
    pairs = {name: line["held_out_of"] for name, line in listed.items() if line["held_out_of"]}
    assert pairs == {"eval_loss": "loss", "val/kl": "train/kl"}
    assert answer["essentials"] == ["loss"]
