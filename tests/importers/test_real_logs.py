"""Real training logs of public repositories: every point is read, under the names it was logged with."""

from __future__ import annotations

import csv
import math
from functools import cache

import pytest

from conftest import SHARED
from rlvitals.importers import LogTail, importer_for, read_log

DIFFERENCES = {
    "grpo_chaos_saturated_100.log": (1, "the summary transformers prints at the end is a row too"),
    "grpo_nan_grad_46.log": (3, "two such summaries, and a row that is wrapped over two lines"),
}
"""Log -> how many more points it has than the index lists, and the reason."""

IMPORTERS = {"trainer_state": {"json"}, "verl": {"console"}, "console": {"console", "notebook log"}}
"""Format -> the importers that report it, where their name differs."""
FORMATS = {".csv": {"csv"}, ".jsonl": {"jsonl"}, ".json": {"json", "trainer_state"}, ".log": {"verl", "console"}}

EXPECTED = {
    "verl": {"actor/entropy", "critic/score/mean", "response_length/mean", "num_turns/mean", "actor/grad_norm"},
    "trainer_state": {"loss", "reward", "reward_std", "kl", "grad_norm", "learning_rate", "epoch"},
    "console": {"loss", "reward", "kl", "grad_norm", "frac_reward_zero_std", "completions/clipped_ratio"},
}
KEYS = {
    "grpo_aaipl_zerostd_500.json": {"loss", "reward", "entropy", "frac_reward_zero_std"},
    "grpo_floor_reward_200.json": {"reward", "completions/clipped_ratio", "train_runtime"},
    "grpo_verifier_healthy_200.json": {"reward", "kl", "step_time", "train_runtime"},
    "ppo_trl_v1_floor_100.json": {"objective/kl", "val/ratio", "episode", "lr"},
    "ppo_trl_v2_100.json": {"objective/kl", "val/ratio", "episode", "lr"},
    "simpleppo_overfit_100.json": {"training_dynamics/mean_logprob_ratio", "training_dynamics/rewards/mean"},
    "rl_hack_compilable_1b_easy.jsonl": {"reward/mean", "reward/correctness_f", "timestamp", "progress/step"},
    "dpo_zephyr_reference_114.csv": {"loss", "rewards/margins", "rewards/accuracies"},
    "orpo_llama3_inverted_30.csv": {"loss", "rewards/margins", "rewards/accuracies"},
}


def logs() -> list[dict[str, str]]:
    index = SHARED / "logs" / "INDEX.tsv"
    if not index.exists():
        return []
    with index.open(encoding="utf-8") as file:
        return list(csv.DictReader(file, delimiter="\t"))


LOGS = logs()


@cache
def log_of(name):
    """Read once for all tests of this file, which run in one process."""
    return read_log(SHARED / "logs" / name)


@pytest.mark.parametrize("entry", LOGS, ids=lambda entry: entry["file"])
def test_a_real_log_gives_every_point(entry):
    path = SHARED / "logs" / entry["file"]
    log = log_of(path.name)
    more, _ = DIFFERENCES.get(path.name, (0, ""))
    assert len(log.rows) == int(entry["steps"]) + more
    assert log.format in FORMATS[path.suffix]
    assert importer_for(path).name in IMPORTERS.get(log.format, {log.format})
    assert all(type(row["step"]) is int for row in log.rows)
    assert all(type(value) in (int, float) for row in log.rows for value in row.values())
    assert EXPECTED.get(log.format, set()) - {"kl"} <= names(log) or path.name in KEYS
    assert KEYS.get(path.name, set()) <= names(log)


@pytest.mark.parametrize("entry", LOGS, ids=lambda entry: entry["file"])
def test_only_the_log_that_says_nan_has_nan(entry):
    log = log_of(entry["file"])
    odd = {name for row in log.rows for name, value in row.items() if not math.isfinite(value)}
    assert odd == ({"grad_norm"} if entry["file"] == "grpo_nan_grad_46.log" else set())


@pytest.mark.parametrize("entry", LOGS, ids=lambda entry: entry["file"])
def test_following_a_real_log_gives_what_reading_it_gives(entry):
    path = SHARED / "logs" / entry["file"]
    tail = LogTail(path)
    rows = tail.poll().rows
    assert tail.poll().rows == []
    assert repr(rows + tail.finish().rows) == repr(log_of(path.name).rows)


def names(log):
    return {name for row in log.rows for name in row}


def series(log, name):
    return [row[name] for row in log.rows if name in row]


def test_two_runs_in_one_console_log_start_again_at_1(shared):
    log = read_log(shared / "logs" / "grpo_nan_grad_46.log")
    steps = [row["step"] for row in log.rows]
    assert steps == [*range(1, 21), 20, *range(1, 28), 27]
    assert "steps start again at row 22: a restart inside the file" in log.notes
    gradients = series(log, "grad_norm")
    assert all(map(math.isnan, gradients[:20]))
    assert all(map(math.isfinite, gradients[20:]))
    assert log.config == {
        "max_steps": 50, "num_train_epochs": 2, "num_generations": 4, "learning_rate": 5e-6,
        "max_prompt_length": 125, "max_completion_length": 1923,
    }  # fmt: skip


def test_the_row_wrapped_in_the_middle_of_a_name_is_whole(shared):
    last = read_log(shared / "logs" / "grpo_nan_grad_46.log").rows[-2]
    assert (last["completions/max_terminated_length"], last["reward"], last["epoch"]) == (578.0, -4.875, 1.52)


def test_a_notebook_services_log_has_the_steps_of_its_progress_bar(shared):
    log = read_log(shared / "logs" / "grpo_chaos_saturated_100.log")
    assert [row["step"] for row in log.rows] == [*range(5, 501, 5), 500]
    assert (log.rows[0]["loss"], log.rows[0]["num_tokens"]) == (0.005131, 14120.0)
    assert log.config == {"max_steps": 500, "num_train_epochs": 1}


def test_a_cut_line_loses_its_end_and_nothing_else(shared):
    log = read_log(shared / "logs" / "verl_agent_collapse_step30.log")
    by_step = {row["step"]: row for row in log.rows}
    assert "6 lines were cut at 4096 characters: what followed is missing" in log.notes
    assert "critic/score/mean" in by_step[9]
    assert "critic/score/mean" not in by_step[10]
    assert by_step[10]["val-aux/aime_2024/score/maj@4/std"] == 0.21278493368344495
    assert "val-aux/aime_2024/score/best@8/mean" not in by_step[10]  # its number was cut
    assert by_step[1]["num_turns/max"] == 16


def test_the_validation_before_the_first_step_is_whole_where_its_line_is_cut(shared):
    first = read_log(shared / "logs" / "verl_agent_collapse_step30.log").rows[0]
    assert first["step"] == 0
    assert first["val-aux/num_turns/mean"] == 5.527777777777778
    assert first["val-core/aime_2025/acc/mean@30"] == 0.028888888888888888


def test_restarts_inside_a_file_keep_their_rows_in_order(shared):
    log = read_log(shared / "logs" / "rl_hack_compilable_1b_easy.jsonl")
    assert [row["step"] for row in log.rows] == [0, *range(6), *range(45)]
    assert log.notes == [
        "steps start again at row 2: a restart inside the file",
        "steps start again at row 8: a restart inside the file",
    ]
    assert log.rows[0]["timestamp"] == 1764018271.0538847


def test_a_trainer_state_gives_the_settings_it_knows(shared):
    log = read_log(shared / "logs" / "grpo_text2sql_1000.json")
    assert log.config["max_steps"] == 1000
    assert log.config["num_train_epochs"] == 4


def test_nested_rows_are_flat_and_lists_are_means(shared):
    first = read_log(shared / "logs" / "simpleppo_overfit_100.json").rows[0]
    assert first["step"] == first["epoch"] == 0
    assert first["gradients/total_grad_norm"] == 14.590629990751063
    assert first["training_dynamics/rewards/mean"] == pytest.approx(0.6)
