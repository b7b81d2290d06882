"""Runs side by side: settings, values, first divergence, and the guard against comparing different quantities."""

from __future__ import annotations

import pytest

import rlvitals
from rlvitals.errors import ConfigError, NotComparable
from rlvitals.views.compare import compare_runs


def record(path, rows, *, config=None, **settings):
    with rlvitals.start(path, config=config or {}, **settings) as run:
        for step, row in rows:
            run.log(row, step=step)
    return rlvitals.open_run(path)


@pytest.fixture
def twins(tmp_path):
    """Two runs that part at step 3, with another learning rate."""
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


def test_the_first_divergence_is_found(twins):
    comparison = compare_runs(twins)
    assert comparison.first_divergence == 3
    rows = {row.name: row for row in comparison.metrics}
    assert (rows["loss"].first_divergence, rows["loss"].common_steps) == (3, 5)
    assert rows["reward"].first_divergence is None
    assert [best.best for best in rows["reward"].best] == [5, 7]
    assert comparison.only_in_one == {str(twins[1].path): ["extra"]}


def test_a_tolerance_widens_what_counts_as_equal(twins):
    assert compare_runs(twins, tolerance=0.9).first_divergence is None


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


def test_one_run_alone_cannot_be_compared(twins):
    with pytest.raises(ConfigError, match="at least two"):
        compare_runs(twins[:1])
