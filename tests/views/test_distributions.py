"""Distributions: what is logged, what survives a crash and a resume, and the percentiles that are drawn."""

from __future__ import annotations

import json

import numpy as np
import pytest

import rlvitals
from rlvitals.records import Group, Rollout, Turn
from rlvitals.store.distributions import read_distributions, sketch_of
from rlvitals.views.distributions import BINS, PLACES, distributions


def start(path, **more):
    return rlvitals.start(path, display="none", hardware=False, monitor=False, **more)


def test_a_sketch_has_numpys_quantiles():
    values = np.random.default_rng(0).normal(size=1001)
    made = sketch_of(values.tolist())
    assert made.quantiles == pytest.approx(np.quantile(values, np.linspace(0, 1, 21)))
    assert (made.count, made.mean) == (1001, pytest.approx(values.mean()))
    large = np.random.default_rng(1).normal(size=200_001)
    made = sketch_of(large.tolist())
    assert made.quantiles[10] == pytest.approx(np.median(large), abs=0.02)  # of an even sample
    assert (made.count, made.quantiles[0], made.quantiles[-1]) == (200_001, large.min(), large.max())
    assert sketch_of([float("nan")]) is None


def test_logged_distributions_are_percentiles_over_the_steps(tmp_path, caplog):
    with start(tmp_path / "run") as run:
        for step in range(1, 4):
            run.log({"loss": 1.0}, step=step)
            run.log_distribution({"entropy": np.arange(101).reshape(1, 101) * step, "step": [0.0, 1.0]}, step=step)
        run.log_distribution({"nothing": [], "text": "no"}, step=3)
    assert "'nothing' is dropped: it has no finite value" in caplog.text
    assert "a distribution could not be recorded" in caplog.text
    by_name = {one["name"]: one for one in distributions(rlvitals.open_run(tmp_path / "run"))["distributions"]}
    assert by_name.keys() == {"entropy", "metric/step"}
    entropy = by_name["entropy"]
    assert (entropy["steps"], entropy["counts"], entropy["source"]) == ([1, 2, 3], [101, 101, 101], "logged")
    by_level = dict(zip(entropy["levels"], entropy["quantiles"], strict=True))
    for level in (0.0, 0.05, 0.5, 0.95, 1.0):
        assert by_level[level] == pytest.approx([level * 100 * step for step in (1, 2, 3)])
    assert len(entropy["edges"]) == BINS + 1
    assert [sum(shares) for shares in entropy["shares"]] == pytest.approx([1, 1, 1], abs=1e-3)
    assert np.count_nonzero(entropy["shares"][0]) < np.count_nonzero(entropy["shares"][2])  # a third as wide


def test_histograms_of_quantiles_have_the_shares_of_the_values_and_no_holes(tmp_path):
    drawn = np.random.default_rng(0).gamma(2.0, 1.0, size=20_000)
    with start(tmp_path / "run") as run:
        run.log({"loss": 1.0}, step=1)
        run.log_distribution({"gamma": drawn, "one": [3.0] * 50}, step=1)
    by_name = {one["name"]: one for one in distributions(rlvitals.open_run(tmp_path / "run"))["distributions"]}
    shares, edges = np.array(by_name["gamma"]["shares"][0]), np.array(by_name["gamma"]["edges"])
    assert (shares > 0).all()
    within = (drawn >= edges[0]) & (drawn <= edges[-1])
    expected = np.histogram(drawn[within], edges)[0] / len(drawn)
    assert np.cumsum(shares)[:-1] == pytest.approx(np.cumsum(expected)[:-1] + (drawn < edges[0]).mean(), abs=0.03)
    one = by_name["one"]
    (place,) = np.flatnonzero(one["shares"][0])  # all in the bin that holds it
    assert one["edges"][place] <= 3.0 <= one["edges"][place + 1]
    assert one["shares"][0][place] == 1


def test_what_a_resumed_run_overtook_and_torn_lines_are_left_out(tmp_path):
    path = tmp_path / "run"
    with start(path) as run:
        for step in range(1, 11):
            run.log({"loss": 1.0}, step=step)
            run.log_distribution({"x": [1.0, 2.0]}, step=step)
    with start(path, resume=5) as run:
        for step in range(6, 8):
            run.log({"loss": 1.0}, step=step)
            run.log_distribution({"x": [5.0, 5.0]}, step=step)
    log = path / "logs" / "distributions.jsonl"
    with log.open("ab") as file:
        file.write(b'{"step":8,"attempt":2,"x":{"count":-1,"mean":1,"quantiles":[]},"y":3}\n{"step":9,"att')
    assert len(list(read_distributions(log))) == 12
    (found,) = distributions(rlvitals.open_run(path))["distributions"]
    assert found["steps"] == [1, 2, 3, 4, 5, 6, 7]
    assert found["quantiles"][0] == [1, 1, 1, 1, 1, 5, 5]


def test_rollouts_are_distributions_without_being_logged_as_such(tmp_path):
    steps = 2 * PLACES + 10
    with start(tmp_path / "run") as run:
        for step in range(1, steps + 1):
            rollouts = [
                Rollout((Turn("a", tokens=10), Turn("b", tokens=number)), reward=float(number)) for number in range(5)
            ]
            run.log_groups([Group("p", tuple(rollouts))], step=step)
            run.log({"loss": 1.0, "note": f"step {step}"}, step=step)
    answer = distributions(rlvitals.open_run(tmp_path / "run"))
    by_name = {one["name"]: one for one in answer["distributions"]}
    assert by_name.keys() == {"reward", "tokens"}  # every rollout has two turns, so the turns have no distribution
    assert len(by_name["reward"]["steps"]) <= PLACES
    assert sum(by_name["reward"]["counts"]) == 5 * steps
    assert [level[0] for level in by_name["reward"]["quantiles"]] == pytest.approx([0, 0, 1, 2, 3, 4, 4])
    assert [level[0] for level in by_name["tokens"]["quantiles"]] == pytest.approx([10, 10, 11, 12, 13, 14, 14])
    assert answer["texts"][0] == {"name": "note", "step": steps, "text": f"step {steps}"}
    assert json.loads(json.dumps(answer)) == answer


class Hostile:
    def tolist(self):
        raise RuntimeError("gone")


def test_nothing_that_is_no_distribution_raises_into_training(tmp_path):
    with start(tmp_path / "run") as run:
        for given in (None, 3, {"a": Hostile()}, {"b": object()}, {3: [1.0]}, {"c": [float("inf")]}, {"d": "text"}):
            run.log_distribution(given, step=1)
        run.log({"loss": 1.0}, step=1)
    view = rlvitals.open_run(tmp_path / "run")
    assert [one["name"] for one in distributions(view)["distributions"]] == ["3"]
    assert view.rows == 1
