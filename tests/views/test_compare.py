"""Runs side by side: settings, values, first divergence, and the guard against comparing different quantities."""

from __future__ import annotations

import math
import random

import pytest

import rlvitals
from rlvitals.errors import ConfigError, NotComparable, UnknownMetric
from rlvitals.views.compare import compare_runs


def record(path, rows, *, config=None, **settings):
    with rlvitals.start(path, config=config or {}, **settings) as run:
        for step, row in rows:
            run.log(row, step=step)
    return rlvitals.open_run(path)


@pytest.fixture
def twins(tmp_path):
    """Two runs with different learning rates that diverge at step 3."""
    left = record(
        tmp_path / "a",
        [(s, {"loss": 1.0 / s, "reward": s}) for s in range(1, 6)],
        config={"optim": {"lr": 1e-6}, "seed": 1},
    )
    right = record(
        tmp_path / "b",
        [(s, {"loss": 1.0 / s + (0.1 if s >= 3 else 0), "reward": s, "extra": 1}) for s in range(1, 8)],
        config={"optim": {"lr": 2e-6}, "seed": 1},
    )
    return left, right


def test_only_settings_that_differ_are_listed(twins):
    assert compare_runs(twins).config_differences == {"optim.lr": [1e-6, 2e-6]}


def test_what_repeats_another_setting_or_says_where_a_model_was_is_folded_away(tmp_path):
    left, right = (
        record(
            tmp_path / name,
            [(1, {"loss": 1.0})],
            config={"lr": lr, "recipe": {"lr": given, "beta": 0.1}, "model": {"_name_or_path": f"/out/{name}/model"}},
        )
        for name, lr, given in (("a", 1e-6, None), ("b", 2e-6, 2e-6))
    )
    comparison = compare_runs([left, right])
    assert comparison.config_differences == {"lr": [1e-6, 2e-6]}
    assert {"recipe.lr", "model._name_or_path"} <= comparison.bookkeeping.keys()
    other = record(tmp_path / "c", [(1, {"loss": 1.0})], config={"lr": 2e-6, "recipe": {"lr": 5e-6, "beta": 0.1}})
    assert compare_runs([left, other]).config_differences["recipe.lr"] == [None, 5e-6]  # another value than `lr`


def test_the_first_divergence_is_found(twins):
    comparison = compare_runs(twins)
    assert comparison.first_divergence == 3
    rows = {row.name: row for row in comparison.metrics}
    assert (rows["loss"].first_divergence, rows["loss"].common_steps) == (3, 5)
    assert rows["reward"].first_divergence is None
    assert [best.best for best in rows["reward"].best] == [5, 7]
    assert comparison.only_in_one == {str(twins[1].path): ["extra"]}


def test_what_a_run_has_alone_is_listed_under_it_and_not_compared(tmp_path):
    left = record(tmp_path / "a", [(1, {"loss": 1.0, "mine": 1.0})])
    right = record(tmp_path / "b", [(1, {"loss": 1.0, "yours": 1.0, "theirs": 1.0})])
    comparison = compare_runs([left, right])
    assert [row.name for row in comparison.metrics] == ["loss"]
    assert comparison.only_in_one == {str(left.path): ["mine"], str(right.path): ["yours", "theirs"]}
    with pytest.raises(UnknownMetric, match="mine"):
        compare_runs([left, right], metrics=["mine"])


def test_a_tolerance_widens_what_counts_as_equal(twins):
    assert compare_runs(twins, tolerance=0.9).first_divergence is None


@pytest.mark.parametrize(
    ("left", "right", "parts_at"),
    [
        (1e-9, 2e-9, 1),  # a doubled learning rate differs, however small the difference
        (1e9, 1e9 + 1, None),  # a sum above a billion may differ by one through rounding
        (0.0, 0.0, None),
        (math.nan, math.nan, None),
        (math.inf, math.inf, None),
        (math.nan, 0.5, 1),
        (math.inf, 0.5, 1),
        (math.inf, -math.inf, 1),
    ],
)
def test_values_are_the_same_by_their_own_size(tmp_path, left, right, parts_at):
    views = [record(tmp_path / name, [(1, {"mine": value})]) for name, value in (("a", left), ("b", right))]
    assert compare_runs(views).first_divergence == parts_at
    assert compare_runs(views[::-1]).first_divergence == parts_at


def test_of_a_step_logged_twice_the_last_value_counts(tmp_path):
    left = record(tmp_path / "a", [(1, {"mine": 1.0}), (2, {"mine": 7.0}), (2, {"mine": 2.0}), (3, {"mine": 3.0})])
    right = record(tmp_path / "b", [(1, {"mine": 1.0}), (2, {"mine": 2.0}), (3, {"mine": 3.5})])
    for views in ([left, right], [right, left]):
        (row,) = compare_runs(views).metrics
        assert (row.first_divergence, row.common_steps) == (3, 3)


def test_runs_without_a_common_step_part_nowhere(tmp_path):
    left = record(tmp_path / "a", [(step, {"mine": 1.0}) for step in (1, 3)])
    right = record(tmp_path / "b", [(step, {"mine": 2.0}) for step in (2, 4)])
    (row,) = compare_runs([left, right]).metrics
    assert (row.verdict, row.first_divergence, row.common_steps) == ("same", None, 0)


def test_the_earliest_of_several_runs_and_metrics_is_where_they_part(tmp_path):
    rows = [(step, {"mine": 1.0, "yours": 1.0}) for step in range(1, 9)]
    late = [(step, row | {"mine": 2.0} if step >= 6 else row) for step, row in rows]
    early = [(step, row | {"mine": 2.0} if step >= 4 else row) for step, row in rows[:5]]
    views = [record(tmp_path / name, given) for name, given in (("a", rows), ("b", late), ("c", early))]
    comparison = compare_runs(views)
    mine, yours = comparison.metrics
    assert (mine.first_divergence, mine.common_steps, yours.first_divergence) == (4, 8, None)
    assert comparison.first_divergence == 4


def test_a_metric_the_catalogue_does_not_know_is_the_same_under_one_name(tmp_path):
    left = record(tmp_path / "a", [(1, {"mine": 1.0})])
    right = record(tmp_path / "b", [(1, {"mine": 1.0})])
    assert [row.verdict for row in compare_runs([left, right]).metrics] == ["same"]
    assert [row.verdict for row in compare_runs([left, right], metrics=["mine"]).metrics] == ["same"]


def test_metrics_of_two_frameworks_are_paired_by_concept_and_converted(tmp_path):
    verl = record(
        tmp_path / "verl", [(s, {"actor/ppo_kl": 0.01 * s, "actor/pg_loss": 0.1}) for s in (1, 2)], framework="verl"
    )
    roll = record(
        tmp_path / "roll", [(s, {"actor/policykl": -0.01 * s, "actor/pg_loss": 0.1}) for s in (1, 2)], framework="roll"
    )
    row = next(row for row in compare_runs([verl, roll]).metrics if row.concept == "policy.kl_old.k1")
    assert row.names == ["actor/ppo_kl", "actor/policykl"]
    assert row.verdict == "convert"
    assert [best.last for best in row.best] == [0.02, 0.02]
    assert row.first_divergence is None
    # The same beside a run that does not log it. Two runs that log it in the same way are shown unchanged.
    bare = record(tmp_path / "bare", [(1, {"actor/pg_loss": 0.1})], framework="verl")
    row = next(row for row in compare_runs([verl, bare, roll]).metrics if row.concept == "policy.kl_old.k1")
    assert [best and best.last for best in row.best] == [0.02, None, 0.02]
    row = next(row for row in compare_runs([roll, roll]).metrics if row.concept == "policy.kl_old.k1")
    assert (row.verdict, [best.last for best in row.best]) == ("same", [-0.02, -0.02])


def test_one_name_with_two_meanings_is_marked_and_refused_when_asked_for(tmp_path):
    grpo = record(tmp_path / "grpo", [(1, {"kl": 0.01, "reward": 1.0})], framework="trl_grpo")
    kto = record(tmp_path / "kto", [(1, {"kl": 12.0, "rewards/margins": 1.0})], framework="trl_kto")
    row = next(row for row in compare_runs([grpo, kto]).metrics if row.name == "kl")
    assert (row.verdict, row.first_divergence) == ("different", None)
    with pytest.raises(NotComparable, match="not the same quantity"):
        compare_runs([grpo, kto], metrics=["kl"])


def test_a_per_token_k3_is_refused_against_a_per_sequence_k1(tmp_path):
    grpo = record(tmp_path / "grpo", [(1, {"kl": 0.01})], framework="trl_grpo")
    ppo = record(tmp_path / "ppo", [(1, {"objective/kl": 12.0})], framework="trl_ppo")
    with pytest.raises(NotComparable, match=r"k3.*k1"):
        compare_runs([grpo, ppo], metrics=["kl"])


def test_a_concept_counted_differently_is_compared_with_a_warning(tmp_path):
    trl = record(tmp_path / "trl", [(1, {"completions/clipped_ratio": 0.1})], framework="trl_grpo")
    verl = record(tmp_path / "verl", [(1, {"response_length/clip_ratio": 0.2})], framework="verl")
    row = compare_runs([trl, verl]).metrics[0]
    assert row.verdict == "caution"
    assert "tensor width" in row.note
    assert row.first_divergence is None  # values with different definitions differ from the start


def test_one_run_alone_cannot_be_compared(twins):
    with pytest.raises(ConfigError, match="at least two"):
        compare_runs(twins[:1])


def test_the_seeds_of_one_setting_are_compared_with_those_of_another(tmp_path):
    """The runs come mixed: the second and the fourth have another learning rate, with which the reward rises later."""

    def run(place, lr, bend):
        dice = random.Random(place)
        rows = [(step, {"reward": max(0.0, bend * (step - 60)) + dice.gauss(0, 0.1)}) for step in range(1, 121)]
        return record(tmp_path / str(place), rows, config={"lr": lr, "seed": place}, monitor=False, display="none")

    runs = [run(0, 1e-6, 0.0), run(1, 2e-6, 0.1), run(2, 1e-6, 0.0), run(3, 2e-6, 0.1), run(4, 3e-6, 0.1)]
    (row,) = compare_runs(runs, ["reward"]).metrics
    assert (row.bands[0], row.bands[2], row.bands[4]) == (None, None, None)  # its own family, and a single run
    assert row.bands[1] == row.bands[3]
    assert 60 < row.bands[1] < 90
    (alone,) = compare_runs([runs[0], runs[1], runs[3]], ["reward"]).metrics
    assert alone.bands == [None] * 3


def test_a_speed_is_no_difference_of_runs_unless_only_speeds_are_compared(tmp_path):
    views = [
        record(
            tmp_path / name, [(step, {"loss": loss if step > 2 else 1.0, "step_time": speed}) for step in (1, 2, 3, 4)]
        )
        for name, loss, speed in (("a", 0.5, 1.0), ("b", 0.9, 2.0))
    ]
    comparison = compare_runs(views)
    assert comparison.first_divergence == 3
    assert {row.name: row.first_divergence for row in comparison.metrics} == {"loss": 3, "step_time": 1}
    assert compare_runs(views, metrics=["step_time"]).first_divergence == 1
