"""Rows of several ranks merge as if one process had seen all samples; checked against numpy over all of them."""

from __future__ import annotations

import math
import warnings
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import rlvitals
from rlvitals.capture.intake import Intake
from rlvitals.codec import encode
from rlvitals.store.chunks import is_present
from rlvitals.store.index import Columns, open_columns
from rlvitals.store.ranks import merge_metric
from rlvitals.values import last, mean, of
from rlvitals.views.run import RunView, open_run

KINDS = ["mean", "sum", "min", "max", "std", "sample_std", "var", "count"]

ONE_PASS = {
    "mean": np.mean,
    "sum": np.sum,
    "min": np.min,
    "max": np.max,
    "std": np.std,
    "sample_std": lambda samples: np.std(samples, ddof=1),
    "var": np.var,
    "count": np.size,
}


def write_rank(path: Path, rows: list[tuple[int, dict]], attempt: int = 1) -> None:
    """A rank's log as the recorder writes it: each row is (step, metrics)."""
    intake = Intake(warnings.warn)
    head = {"timestamp": 1763190000.0, "attempt": attempt}
    path.write_bytes(b"".join(encode({"step": step} | head | intake.take(metrics)) for step, metrics in rows))


def columns_of(place: Path, ranks: list[list[tuple[int, dict]]]) -> list[Columns]:
    found = []
    for rank, rows in enumerate(ranks):
        path = place / f"rank-{rank}.jsonl"
        write_rank(path, rows)
        found.append(open_columns(path, place / "index", write=False))
    return found


def merged(place: Path, ranks: list[list[tuple[int, dict]]], name: str = "x") -> dict[int, float]:
    found = merge_metric(columns_of(place, ranks), name)
    assert found is not None
    assert len(set(found.steps.tolist())) == len(found.steps), "one number for each step"
    return dict(zip(found.steps.tolist(), found.numbers.tolist(), strict=True))


# ---- Exactness. ----

SAMPLES = st.lists(st.floats(-1e6, 1e6).map(lambda number: round(number, 3)), max_size=6)


@pytest.mark.parametrize("kind", KINDS)
@settings(max_examples=60)
@given(table=st.lists(st.lists(SAMPLES, min_size=1, max_size=4), min_size=1, max_size=4))
def test_ranks_merge_to_one_pass_over_all_samples(tmp_path_factory, kind, table):
    """`table[rank][step]` holds that rank's samples in that step; no samples are logged as an empty value."""
    place = tmp_path_factory.getbasetemp()
    steps = max(map(len, table))
    everything = {step: [x for rows in table if step < len(rows) for x in rows[step]] for step in range(steps)}
    least = 2 if kind == "sample_std" else 1
    expected = {step: samples for step, samples in everything.items() if len(samples) >= least}
    logs = columns_of(
        place, [[(step, {"x": of(samples, kind)}) for step, samples in enumerate(rows)] for rows in table]
    )
    found = merge_metric(logs, "x")
    numbers = {} if found is None else dict(zip(found.steps.tolist(), found.numbers.tolist(), strict=True))
    if kind == "sample_std":  # one sample has no standard deviation: NaN or no value are both right
        numbers = {step: number for step, number in numbers.items() if len(everything[step]) >= 2}
    assert numbers.keys() == expected.keys()
    for step, samples in expected.items():
        scale = max(1e-3, *map(abs, samples))
        slack = scale**2 * 1e-12 if kind == "var" else scale * 1e-9
        assert numbers[step] == pytest.approx(ONE_PASS[kind](samples), rel=1e-9, abs=slack)


def test_a_mean_over_ranks_is_weighted_by_what_each_counted(tmp_path):
    found = merged(tmp_path, [[(1, {"x": mean([1.0] * 99)})], [(1, {"x": mean([101.0])})]])
    assert found == {1: 2.0}


def test_weights_are_merged_too(tmp_path):
    ranks = [[(1, {"x": of([1.0, 2.0], weights=[3, 5])})], [(1, {"x": of([10.0], weights=[2])})]]
    assert merged(tmp_path, ranks)[1] == pytest.approx(np.average([1, 2, 10], weights=[3, 5, 2]))


def test_a_spread_far_below_the_size_of_the_numbers_survives_the_merge(tmp_path):
    """A naive sum of squares would lose it completely."""
    chance = np.random.default_rng(1)
    parts = [1e8 + chance.normal(size=200) for _ in range(4)]
    found = merged(tmp_path, [[(1, {"x": of(part, "std")})] for part in parts])
    assert found[1] == pytest.approx(np.std(np.concatenate(parts)), rel=1e-6)


def test_the_order_of_the_ranks_does_not_matter(tmp_path):
    chance = np.random.default_rng(2)
    ranks = [[(step, {"x": of(chance.normal(size=step + rank), "std")}) for step in range(1, 9)] for rank in range(3)]
    forward, backward = merged(tmp_path, ranks), merged(tmp_path, ranks[::-1])
    assert forward.keys() == backward.keys() == set(range(1, 9))
    assert list(forward.values()) == pytest.approx(list(backward.values()), rel=1e-12)


def test_the_last_value_over_ranks_is_the_newest_and_no_mean(tmp_path):
    ranks = [
        [(1, {"x": last(10.0, order=100)}), (2, {"x": last(10.0, order=300)})],
        [(1, {"x": last(20.0, order=200)}), (2, {"x": last(20.0, order=200)})],
        [(1, {"x": last(90.0, order=50)})],
    ]
    assert merged(tmp_path, ranks) == {1: 20.0, 2: 10.0}


def test_the_last_value_over_ranks_of_one_age_is_that_of_merging_the_values(tmp_path):
    one, two = last(10.0, order=5), last(20.0, order=5)
    assert merged(tmp_path, [[(1, {"x": one})], [(1, {"x": two})]]) == {1: (one + two).number}


# ---- Ranks with missing values. ----


def test_a_rank_with_fewer_rows_is_missing_from_those_steps_only(tmp_path):
    ranks = [
        [(step, {"x": mean([1.0])}) for step in range(1, 6)],
        [(step, {"x": mean([3.0])}) for step in range(1, 3)],
        [],
    ]
    assert merged(tmp_path, ranks) == {1: 2.0, 2: 2.0, 3: 1.0, 4: 1.0, 5: 1.0}


def test_a_step_only_another_rank_has_is_there(tmp_path):
    ranks = [[(1, {"x": mean([1.0])})], [(1, {"x": mean([3.0])}), (2, {"x": mean([5.0])})]]
    assert merged(tmp_path, ranks) == {1: 2.0, 2: 5.0}


def test_a_rank_that_counted_nothing_does_not_pull_towards_zero(tmp_path):
    ranks = [[(1, {"x": mean([4.0])})], [(1, {"x": mean([])})]]
    assert merged(tmp_path, ranks) == {1: 4.0}


def test_late_and_unordered_rows_of_a_rank_find_their_step(tmp_path):
    ranks = [
        [(3, {"x": mean([3.0])}), (1, {"x": mean([1.0])}), (2, {"x": mean([2.0])})],
        [(2, {"x": mean([4.0])}), (3, {"x": mean([5.0])}), (1, {"x": mean([3.0])})],
    ]
    assert merged(tmp_path, ranks) == {1: 2.0, 2: 3.0, 3: 4.0}


@pytest.mark.parametrize("kind", [kind for kind in KINDS if kind != "count"])
def test_a_nan_on_one_rank_stays_nan_and_spoils_no_other_step(tmp_path, kind):
    ranks = [
        [(step, {"x": of([1.0, 3.0], kind)}) for step in (1, 2, 3)],
        [(1, {"x": of([2.0, 7.0], kind)}), (2, {"x": of([math.nan, 7.0], kind)})],
    ]
    found = merged(tmp_path, ranks)
    assert math.isnan(found[2])
    assert found[1] == pytest.approx(ONE_PASS[kind]([1.0, 3.0, 2.0, 7.0]))
    assert found[3] == pytest.approx(ONE_PASS[kind]([1.0, 3.0]))


def test_a_rank_that_is_nan_from_its_first_row_on_shows(tmp_path):
    ranks = [[(step, {"x": mean([1.0])}) for step in (1, 2)], [(step, {"x": mean([math.nan])}) for step in (1, 2)]]
    found = merged(tmp_path, ranks)
    assert math.isnan(found[1])
    assert math.isnan(found[2])


def test_an_infinity_on_one_rank_is_not_merged_away(tmp_path):
    ranks = [[(1, {"x": mean([1.0])})], [(1, {"x": mean([math.inf, 1.0])})]]
    assert not math.isfinite(merged(tmp_path, ranks)[1])


@pytest.mark.parametrize(
    ("kind", "here", "there"),
    [
        ("min", [5.0], [1.0, math.inf]),
        ("max", [5.0], [9.0, -math.inf]),
        ("count", [5.0], [math.nan, 1.0, 2.0]),
        ("mean", [5.0], [1e200, -3e200]),
    ],
)
def test_a_rank_whose_samples_are_not_all_finite_is_never_left_out_silently(tmp_path, kind, here, there):
    """Its final number may be finite though its moments are not. The merged value is exact, or NaN for unknown."""
    found = merged(tmp_path, [[(1, {"x": of(here, kind)})], [(1, {"x": of(there, kind)})]])
    expected = ONE_PASS[kind](np.array(here + there))
    assert math.isnan(found[1]) or found[1] == pytest.approx(expected)


def test_a_step_is_not_lost_when_only_a_rank_with_infinite_moments_has_it(tmp_path):
    ranks = [[(1, {"x": of([1.0], "min")}), (2, {"x": of([1.0, math.inf], "min")})], [(1, {"x": of([2.0], "min")})]]
    assert set(merged(tmp_path, ranks)) == {1, 2}


def test_single_samples_of_two_ranks_have_a_spread_together(tmp_path):
    """A single sample has none, but must not be dropped when it is logged."""
    ranks = [
        [(1, {"x": of([1.0, 2.0, 6.0], "sample_std")}), (2, {"x": of([1.0], "sample_std")})],
        [(1, {"x": of([9.0], "sample_std")}), (2, {"x": of([3.0], "sample_std")})],
    ]
    found = merged(tmp_path, ranks)
    assert found[1] == pytest.approx(np.std([1, 2, 6, 9], ddof=1))
    assert found[2] == pytest.approx(math.sqrt(2))


def test_plain_numbers_are_not_merged(tmp_path):
    logs = columns_of(tmp_path, [[(1, {"x": 1.0})], [(1, {"x": 3.0})]])
    assert merge_metric(logs, "x") is None
    assert merge_metric(logs, "no such metric") is None
    assert merge_metric([], "x") is None


def test_merged_numbers_lie_beside_the_rows_of_one_rank(tmp_path):
    ranks = [
        [(1, {"x": mean([1.0])}), (3, {"x": mean([1.0])}), (2, {"y": 5.0}), (4, {"y": 6.0})],
        [(1, {"x": mean([3.0])}), (2, {"x": mean([9.0])}), (7, {"x": mean([9.0])})],
    ]
    logs = columns_of(tmp_path, ranks)
    cells = merge_metric(logs, "x").at(logs[0])
    assert is_present(cells).tolist() == [True, True, True, False]
    assert cells[:3].tolist() == [2.0, 1.0, 9.0]


# ---- The whole way: recorded by several ranks, read as a run. ----


@pytest.fixture
def run_of_three(tmp_path) -> tuple[Path, dict[int, list[list[float]]]]:
    """A run of three ranks with unequal batches, of which the last stopped early; and all samples by step and rank."""
    chance = np.random.default_rng(5)
    samples = {step: [chance.normal(size=2 + 3 * rank).tolist() for rank in range(3)] for step in range(1, 7)}
    runs = [rlvitals.start(tmp_path, rank=rank) for rank in range(3)]
    for step, parts in samples.items():
        for rank, run in enumerate(runs):
            if rank == 2 and step > 4:
                continue
            run.log({"loss": mean(parts[rank]), "reward": of(parts[rank], "std"), "lr": 0.1 + rank}, step=step)
    for run in reversed(runs):
        run.finish()
    return tmp_path, {step: parts if step <= 4 else parts[:2] for step, parts in samples.items()}


def test_a_run_of_several_ranks_reads_as_one_pass_over_all_samples(run_of_three):
    path, samples = run_of_three
    view = open_run(path)
    assert view.ranks == [0, 1, 2]
    for name, finish in (("loss", np.mean), ("reward", np.std)):
        steps, values = view.series(name)
        assert steps.tolist() == list(samples)
        assert values == pytest.approx([finish(np.concatenate(parts)) for parts in samples.values()])
        assert view.table()[name] == pytest.approx(values)


def test_one_rank_of_a_run_can_be_read_alone(run_of_three):
    path, samples = run_of_three
    view = open_run(path)
    for rank in range(3):
        steps, values = view.series("loss", rank=rank)
        assert steps.tolist() == [step for step, parts in samples.items() if rank < len(parts)]
        assert values == pytest.approx([np.mean(samples[step][rank]) for step in steps.tolist()])
        assert view.series("lr", rank=rank).values.tolist() == [0.1 + rank] * len(steps)


def test_plain_numbers_of_a_run_are_those_of_rank_zero(run_of_three):
    path, _ = run_of_three
    assert open_run(path).series("lr").values.tolist() == [0.1] * 6


def test_a_torn_line_in_one_ranks_file_is_reported_and_costs_no_other_row(run_of_three):
    path, samples = run_of_three
    with open(path / "logs/ranks/rank-1.jsonl", "ab") as file:
        file.write(b'{"step":7,"loss":1,"_m":{"lo')
    view = open_run(path)
    assert view.series("loss").steps.tolist() == list(samples)
    assert any("rank-1" in sentence and "torn" in sentence for sentence in view.problems)


def test_a_metric_only_another_rank_logs_can_be_read(tmp_path):
    """The last stage of a pipeline computes the loss, and rank 0 is not in it."""
    with rlvitals.start(tmp_path) as run, rlvitals.start(tmp_path, rank=1) as other:
        run.log({"lr": 0.1}, step=1)
        other.log({"loss": mean([2.0, 4.0]), "temperature": 0.7}, step=1)
    view = open_run(tmp_path)
    assert series_or_reason(view, "loss") == ([1], [3.0])
    assert series_or_reason(view, "loss", rank=1) == ([1], [3.0])
    assert series_or_reason(view, "temperature", rank=1) == ([1], [0.7])


def series_or_reason(view: RunView, name: str, **how):
    try:
        steps, values = view.series(name, **how)
    except rlvitals.errors.RlvitalsError as error:
        return str(error)
    return steps.tolist(), values.tolist()


def test_what_a_resume_overtook_is_merged_apart_from_the_line_that_lives(tmp_path):
    def attempt(steps, number: float, resume) -> None:
        with rlvitals.start(tmp_path, resume=resume) as run, rlvitals.start(tmp_path, rank=1) as other:
            for step in steps:
                run.log({"loss": mean([number])}, step=step)
                other.log({"loss": mean([number + 2, number + 2, number + 2])}, step=step)

    attempt(range(1, 7), 10.0, False)
    attempt(range(4, 6), 20.0, 3)
    view = open_run(tmp_path)
    steps, values = view.series("loss")
    assert steps.tolist() == [1, 2, 3, 4, 5]
    assert values.tolist() == [11.5, 11.5, 11.5, 21.5, 21.5]
    steps, values = view.series("loss", ghosts=True)
    assert steps.tolist() == [4, 5, 6]
    assert values.tolist() == [11.5, 11.5, 11.5]


def test_evaluations_of_several_ranks_merge_too(tmp_path):
    with rlvitals.start(tmp_path) as run, rlvitals.start(tmp_path, rank=1) as other:
        run.log({"loss": 1.0}, step=1)
        run.log_eval({"accuracy": mean([1.0])}, step=1)
        other.log_eval({"accuracy": mean([0.0, 0.0, 0.0])}, step=1)
    assert open_run(tmp_path).series("accuracy").values.tolist() == [0.25]
