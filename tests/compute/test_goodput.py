"""Goodput and waste are ratios of sums: steps and ranks are added before the division."""

from __future__ import annotations

import pytest

from rlvitals.compute import goodput, merge
from rlvitals.errors import ConfigError


def step(tokens, generated, seconds):
    return goodput.stats(
        trained_tokens=tokens, generated_tokens=generated, seconds=seconds, gpus=8, idle_seconds=2 * seconds,
        wasted={"filtered": generated / 4, "stale": 100.0},
    )  # fmt: skip


def test_tokens_and_gpu_seconds_of_steps_are_added_before_dividing():
    merged = merge([step(1000, 2000, 10.0), step(500, 2000, 30.0)])
    found = {name: value.number for name, value in merged.items()}
    assert found == pytest.approx(
        {
            "perf.goodput": 1500 / (40 * 8),
            "perf.waste": 2500 / 4000,
            "perf.waste.filtered": 1000 / 4000,
            "perf.waste.stale": 200 / 4000,
            "perf.idle_fraction": 80 / 320,
        }
    )


def test_a_step_that_trained_on_nothing_has_a_goodput_of_zero_and_one_of_no_time_has_none():
    assert goodput.stats(trained_tokens=0, seconds=5.0)["perf.goodput"].number == 0.0
    assert goodput.stats(trained_tokens=0, seconds=0.0)["perf.goodput"].number is None
    assert goodput.stats(trained_tokens=0, seconds=1.0, generated_tokens=0)["perf.waste"].number is None


def test_an_unknown_cause_and_waste_of_nothing_known_are_refused():
    with pytest.raises(ConfigError, match=r"unknown cause 'filterd'\. Did you mean 'filtered'"):
        goodput.stats(trained_tokens=1, seconds=1, generated_tokens=2, wasted={"filterd": 1})
    with pytest.raises(ConfigError, match="give those too"):
        goodput.stats(trained_tokens=1, seconds=1, wasted={"stale": 1})
