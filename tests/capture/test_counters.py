"""Counts and rates: ratios of sums, both tails, and the counts that a resumed run starts from."""

from __future__ import annotations

import json
import logging

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import rlvitals
from rlvitals.capture import counters
from rlvitals.capture.counters import Rates, Throughput
from rlvitals.errors import BadValue, ConfigError
from rlvitals.values import quantile

SPEEDS = st.floats(1e-3, 1e9)


@given(st.lists(SPEEDS, min_size=1, max_size=200), st.sampled_from([0, 1, 50, 99, 100]))
def test_percentiles_are_numpys(speeds, percent):
    assert quantile(sorted(speeds), percent / 100) == pytest.approx(np.percentile(speeds, percent), rel=1e-12)


@given(st.lists(st.tuples(st.integers(1, 10**6), st.floats(0.01, 1e4)), min_size=1, max_size=20))
def test_tokens_per_second_are_the_windows_tokens_over_its_seconds(steps):
    loop, now, seen = Throughput(since=0.0), 0.0, []
    for tokens, seconds in steps:
        loop.count(tokens=tokens)
        now += seconds
        seen.append(loop.take(now)["system/tps"])
    last = steps[-5:]
    assert seen[-1] == pytest.approx(sum(tokens for tokens, _ in last) / sum(seconds for _, seconds in last), rel=1e-6)


def test_the_mean_is_not_a_mean_of_rates():
    loop = Throughput(since=0.0)
    loop.count(tokens=100)
    loop.take(1.0)
    loop.count(tokens=100)
    assert loop.take(11.0)["system/tps"] == pytest.approx(200 / 11)  # the mean of 100 and 10 would be 55


def test_the_first_row_has_a_rate_and_it_is_its_own():
    loop = Throughput(since=50.0)
    loop.count(tokens=30)
    assert loop.take(60.0)["system/tps"] == 3.0


def test_a_row_without_new_tokens_has_no_rate_and_its_seconds_count_later():
    loop = Throughput(since=0.0)
    loop.count(tokens=10)
    loop.take(1.0)
    assert loop.take(2.0) == {}
    loop.count(tokens=10)
    assert loop.take(4.0)["system/tps"] == pytest.approx(20 / 4)


def test_samples_add_up_whatever_the_batch_size():
    loop = Throughput(since=0.0, samples=100)
    for batch in (8, 5, 8):
        loop.count(samples=batch)
        row = loop.take(1.0)
    assert row == {"system/samples": 121}
    assert type(row["system/samples"]) is int


@given(st.lists(st.tuples(st.integers(1, 10**6), st.floats(0.01, 1e4)), min_size=1, max_size=50))
def test_a_phases_rates_are_those_of_numpy(runs):
    rates = Rates()
    for tokens, seconds in runs:
        rates.add("generate", tokens, seconds)
    row = rates.take()
    tokens, seconds = np.array(runs).T
    name = "perf.generation_tokens_per_s"
    assert row[name] == row[f"{name}.mean"] == pytest.approx(tokens.sum() / seconds.sum(), rel=1e-9)
    assert row[f"{name}.p1"] == pytest.approx(np.percentile(tokens / seconds, 1), rel=1e-9)
    assert row[f"{name}.p99"] == pytest.approx(np.percentile(tokens / seconds, 99), rel=1e-9)


def test_a_rows_rate_is_since_the_last_row_and_the_mean_since_the_start():
    rates = Rates()
    rates.add("backward", 100, 1.0)
    rates.take()
    rates.add("backward", 100, 9.0)
    row = rates.take()
    assert row["perf.backward_tokens_per_s"] == pytest.approx(100 / 9)
    assert row["perf.backward_tokens_per_s.mean"] == 20.0
    assert rates.take() == {}


def test_old_rates_leave_the_percentiles(monkeypatch):
    monkeypatch.setattr(counters, "KEPT_RATES", 3)
    rates = Rates()
    for speed in (1, 10, 20, 30):
        rates.add("generate", speed, 1.0)
    assert rates.take()["perf.generation_tokens_per_s.p1"] == pytest.approx(np.percentile([10, 20, 30], 1))


def test_a_phase_too_quick_for_the_clock_has_no_rate():
    rates = Rates()
    rates.add("generate", 100, 0.0)
    assert rates.take() == {}


@pytest.mark.parametrize("names", ["canonical", "rlaif"])
def test_the_names_are_the_catalogues_and_the_documents(names):
    rates = Rates(names)
    for phase in ("generate", "backward"):
        rates.add(phase, 100, 2.0)
    concepts = {rlvitals.explain(name).id for name in rates.take() if "P1" not in name and not name.endswith("_Time")}
    stems = ("perf.generation_tokens_per_s", "perf.backward_tokens_per_s")
    tails = ("", ".mean", ".p1", ".p99") if names == "canonical" else ("", ".mean", ".p99")
    assert concepts == {f"{stem}{tail}" for stem in stems for tail in tails}


def test_the_documents_names_are_all_there():
    rates = Rates("rlaif")
    rates.add("generate", 100, 2.0)
    rates.add("backprop", 100, 4.0)
    row = rates.take()
    assert row["Performance/Generation_TokensPerSec"] == 50.0
    assert row["Performance/Generation_Time"] == 2.0
    for kind in ("TokensPerSec", "AvgTokensPerSec", "P99TokensPerSec"):
        assert row[f"Performance/Backprop_{kind}"] == 25.0


def rows_of(run):
    with open(f"{run.dir}/logs/training_metrics.jsonl") as file:
        return [json.loads(line) for line in file]


def test_counts_and_rates_are_in_the_next_row(tmp_path):
    with rlvitals.start(tmp_path / "run", names="rlaif") as run:
        with run.phase("generate") as phase:
            phase.tokens(300)
            phase.tokens(100)
        run.count(tokens=4096, samples=8)
        run.log({"loss": 0.5})
    (row,) = rows_of(run)
    assert row["system/samples"] == 8
    assert row["system/tps"] > 0
    assert row["Performance/Generation_TokensPerSec"] == pytest.approx(400 / row["time/generate/execute"])


def test_a_resumed_run_goes_on_counting_from_the_step_it_came_from(tmp_path):
    with rlvitals.start(tmp_path / "run") as run:
        for step in range(4):
            run.count(samples=10)
            run.log({"loss": 0.5}, step=step)
    with rlvitals.start(tmp_path / "run", resume=1) as run:
        run.count(samples=7)
        run.log({"loss": 0.5}, step=2)
    assert rows_of(run)[-1]["system/samples"] == 27


def test_a_count_that_is_none_is_left_out_with_a_warning(tmp_path, caplog):
    with caplog.at_level(logging.WARNING, "rlvitals"), rlvitals.start(tmp_path / "run") as run:
        for wrong in ("many", -1, float("nan"), None):
            run.count(tokens=wrong, samples=2)
        with run.phase("generate") as phase:
            phase.tokens(float("inf"))
        run.log({"loss": 0.5})
    (row,) = rows_of(run)
    assert row["system/samples"] == 8
    assert "system/tps" not in row
    assert "a count cannot be -1; it is dropped" in caplog.text


def test_a_strict_run_raises_on_such_a_count(tmp_path):
    with rlvitals.start(tmp_path / "run", strict=True) as run, pytest.raises(BadValue, match="cannot be -1"):
        run.count(tokens=-1)


def test_unknown_names_are_refused_with_a_suggestion(tmp_path):
    with pytest.raises(ConfigError, match="Did you mean 'rlaif'"):
        rlvitals.start(tmp_path / "run", names="rlaf")
