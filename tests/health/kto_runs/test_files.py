"""The recorded KTO and DPO runs are complete, and the table describes them correctly."""

from __future__ import annotations

import csv
import json
import math
from pathlib import Path
from typing import Any

import pytest
from make import RECIPES

HERE = Path(__file__).parent
COLUMNS = ["file", "algorithm", "verdict", "kind", "also", "onset", "config", "what_happened", "seed", "command"]
KINDS = {
    "class_imbalance",
    "dead_gradient",
    "entropy_collapse",
    "entropy_explosion",
    "grad_explosion",
    "instability",
    "kl_explosion",
    "likelihood_displacement",
    "logprob_crash",
    "loss_divergence",
    "lr_too_high",
    "lr_too_low",
    "margin_inversion",
    "nonfinite",
    "not_learning",
    "preference_signal_lost",
    "reward_collapse",
}
"""The kinds that a preference run can show."""

SIZE_LIMIT = 1_500_000


def table() -> list[dict[str, str]]:
    with (HERE / "runs.tsv").open(encoding="utf-8", newline="") as lines:
        return list(csv.DictReader(lines, delimiter="\t", quoting=csv.QUOTE_NONE))


def rows_of(file: str) -> list[dict[str, Any]]:
    return [json.loads(line) for line in (HERE / file).read_text(encoding="utf-8").splitlines()]


each_run = pytest.mark.parametrize("run", table(), ids=lambda run: run["file"])


def test_every_log_is_in_the_table_once_and_every_row_of_the_table_has_its_log():
    assert sorted(run["file"] for run in table()) == sorted(path.name for path in HERE.glob("*.jsonl"))


def test_the_table_has_its_columns():
    assert all(list(run) == COLUMNS for run in table())


def test_the_logs_stay_small():
    assert sum(path.stat().st_size for path in HERE.iterdir() if path.is_file()) < SIZE_LIMIT


@each_run
def test_the_steps_of_a_run_rise_without_a_gap(run):
    steps = [row["step"] for row in rows_of(run["file"])]
    assert steps == list(range(1, len(steps) + 1))
    assert len(steps) >= 120


@each_run
def test_every_value_is_a_number(run):
    assert {type(value) for row in rows_of(run["file"]) for value in row.values()} <= {int, float}


@each_run
def test_a_healthy_run_is_finite_throughout(run):
    if run["verdict"] == "healthy":
        assert all(math.isfinite(value) for row in rows_of(run["file"]) for value in row.values())


@each_run
def test_a_run_logs_what_its_trainer_logs_at_every_step(run):
    always = {"loss", "grad_norm", "learning_rate", "entropy", "num_tokens", "epoch"}
    always |= {"kl"} if run["algorithm"] == "kto" else {"rewards/accuracies", "rewards/margins"}
    rows = rows_of(run["file"])
    assert all(always <= row.keys() for row in rows)
    assert sum("rewards/margins" in row for row in rows) >= 60  # KTO logs none for a batch of one class


@each_run
def test_a_verdict_names_its_kind_and_onset(run):
    if run["verdict"] == "healthy":
        assert (run["kind"], run["also"], run["onset"]) == ("", "", "")
    else:
        assert run["verdict"] == "fail"
        assert {run["kind"], *run["also"].split()} <= KINDS
        assert 1 <= int(run["onset"]) <= len(rows_of(run["file"]))
    assert run["what_happened"]


@each_run
def test_the_table_holds_the_settings_the_run_was_made_with(run):
    name = run["file"].removesuffix(".jsonl")
    recipe = RECIPES[name]
    assert run["algorithm"] == recipe.algorithm
    assert json.loads(run["config"]) == recipe.config()
    assert int(run["seed"]) == recipe.seed
    assert run["command"] == f"python tests/health/kto_runs/make.py OUT --only {name}"


def test_every_recipe_has_been_run():
    assert {run["file"].removesuffix(".jsonl") for run in table()} == set(RECIPES)
