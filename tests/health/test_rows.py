"""Logged rows as the monitor reads them: in order, evaluations marked, the rows of one step merged."""

from __future__ import annotations

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rlvitals.health.monitor import Monitor
from rlvitals.health.rows import RowReader, in_order, is_set_back, is_training_row, rows_of_log, rows_of_run
from rlvitals.records import Row


def row(step, when=math.nan, **numbers):
    return Row(step, when, 1, numbers or {"loss": 1.0})


def places(train, evals):
    return [(log[0], found.step) for log, found in in_order(train, evals)]


# Order


def test_at_equal_times_an_evaluation_comes_after_its_step_and_before_later_ones():
    train = [row(step, 5.0) for step in (1, 2, 3)]
    assert places(train, [row(1, 5.0), row(3, 5.0)]) == [("t", 1), ("e", 1), ("t", 2), ("t", 3), ("e", 3)]


def test_without_times_steps_decide():
    assert places([row(1), row(2), row(3)], [row(2), row(9)]) == [("t", 1), ("t", 2), ("e", 2), ("t", 3), ("e", 9)]


@pytest.mark.parametrize(
    ("times", "evaluated_at"),
    [
        pytest.param([100.0, 50.0, math.nan, 110.0], 105.0, id="back and past it"),
        pytest.param([100.0, 50.0, 51.0, 52.0], 51.0, id="after the first row"),
        pytest.param([100.0, 101.0, 102.0, 52.0], 51.0, id="before the evaluation"),
    ],
)
def test_steps_decide_in_a_run_whose_clock_was_set_back(times, evaluated_at):
    train = [row(step, when) for step, when in enumerate(times, 1)]
    evals = [row(1, times[0]), row(3, evaluated_at)]
    assert is_set_back(times)
    found = [(log[0], one.step) for log, one in in_order(train, evals, is_set_back=True)]
    assert found == [("t", 1), ("e", 1), ("t", 2), ("t", 3), ("e", 3), ("t", 4)]


def test_the_rows_of_a_reader_are_those_that_were_logged():
    reader = RowReader()
    for step in range(3, 7):
        reader.take("train", step, math.nan, {"loss": 1.0})
        reader.take("train", step, math.nan, {"reward": 1.0})
    reader.take("eval", 9, math.nan, {"score": 1.0})
    assert (reader.rows, reader.first_step, reader.last_step) == (8, 3, 6)
    foreign = RowReader()
    list(rows_of_log([{"step": 2, "loss": 1.0}, {"step": 2, "reward": 1.0}, {"step": 5, "eval/loss": 1.0}], foreign))
    assert (foreign.rows, foreign.first_step, foreign.last_step) == (2, 2, 2)


@given(st.data())
def test_every_row_comes_once_and_each_log_keeps_its_order(data):
    times = st.one_of(st.just(math.nan), st.integers(0, 20).map(float))
    logs = [[row(step, data.draw(times)) for step in sorted(data.draw(st.lists(st.integers(0, 9))))] for _ in range(2)]
    merged = list(in_order(*logs))
    assert [found for log, found in merged if log == "train"] == logs[0]
    assert [found for log, found in merged if log == "eval"] == logs[1]


# Evaluations


def test_an_evaluation_is_marked_and_its_step_does_not_fall():
    reader = RowReader()
    reader.take("train", 20, math.nan, {"loss": 1.0})
    assert reader.take("eval", 10, 3.0, {"loss": 2.0, "val/f1": 0.5}) == [
        {"step": 20, "timestamp": 3.0, "eval/loss": 2.0, "val/f1": 0.5}
    ]
    assert reader.take("eval", 30, math.nan, {"f1": 1.0}) == [{"step": 30, "eval/f1": 1.0}]
    assert reader.take("eval", 5, math.nan, {"f1": 1.0, "train_runtime": 9.0}) == [{"step": 30, "eval/f1": 1.0}]
    reader.take("train", 3, math.nan, {"loss": 1.0})  # a training that counts from the start again
    assert reader.take("eval", 3, math.nan, {"f1": 1.0}) == [{"step": 3, "eval/f1": 1.0}]


@pytest.mark.parametrize(
    ("found", "expected"),
    [
        ({"step": 1, "timestamp": 2.0, "eval/loss": 1.0}, False),
        ({"step": 1, "eval/loss": 1.0, "System/GPU_Utilization": 90.0}, False),
        ({"step": 1, "eval/loss": 1.0, "loss": 1.0}, True),
    ],
)
def test_which_rows_are_training_rows(found, expected):
    assert is_training_row(found) is expected


# The rows of one step


def in_parts(steps, parts, start=1):
    """Rows of steps, with a separate row for each metric group of a step."""
    return [{"step": step, **dict.fromkeys(part, step + 0.5)} for step in range(start, start + steps)
            for part in parts]  # fmt: skip


PARTS = (("loss", "grad_norm"), ("reward",), ("kl", "entropy"))


def test_from_the_third_step_on_rows_of_one_step_are_one():
    read = list(rows_of_log(in_parts(5, PARTS)))
    assert [found["step"] for found in read] == [1, 1, 1, 2, 2, 2, 3, 4, 5]
    assert read[-1] == {"step": 5, "loss": 5.5, "grad_norm": 5.5, "reward": 5.5, "kl": 5.5, "entropy": 5.5}


def test_a_step_is_handed_on_as_soon_as_its_last_row_has_come():
    reader = RowReader()
    for found in in_parts(2, PARTS):
        reader.take_foreign(found)
    assert [len(reader.take_foreign(found)) for found in in_parts(2, PARTS, start=3)] == [0, 0, 1, 0, 0, 1]


def test_a_run_that_logs_a_step_in_one_row_is_never_kept_waiting():
    reader = RowReader()
    for step in range(1, 30):
        assert len(reader.take("train", step, math.nan, {"loss": 1.0, "reward": 0.5})) == 1
        if step % 10 == 0:  # an additional summary row now and then
            assert len(reader.take("train", step, math.nan, {"epoch_time": 3.0})) == 1


def test_a_step_that_repeats_a_metric_is_not_merged():
    rows = [{"step": step, "loss": 1.0 + part} for step in range(1, 6) for part in range(2)]
    assert list(rows_of_log(rows)) == rows


def test_a_metric_that_says_the_same_twice_and_the_time_of_each_row_do_not_count_as_repeated():
    rows = [
        {"step": step, "timestamp": step + 0.1 * place, "epoch": 0.5, "lr": 1e-6, "_runtime": 9.0 * place, name: 1.0}
        for step in range(1, 5)
        for place, name in enumerate(("loss", "reward"))
    ]
    assert list(rows_of_log(rows))[-1] == {
        "step": 4, "timestamp": 4.1, "epoch": 0.5, "lr": 1e-6, "_runtime": 9.0, "loss": 1.0, "reward": 1.0,
    }  # fmt: skip


def test_evaluations_stay_rows_of_their_own_and_in_their_place():
    rows = [
        found
        for step in range(1, 6)
        for found in (
            {"step": step, "loss": 1.0, "epoch": 0.1},
            {"step": step, "eval_loss": 2.0, "epoch": 0.1},
            {"step": step, "reward": 3.0},
        )
    ]
    read = list(rows_of_log(rows))
    assert [sorted(set(found) - {"step", "epoch"}) for found in read[-2:]] == [["loss", "reward"], ["eval_loss"]]
    assert sum("eval_loss" in found for found in read) == 5


def test_what_is_held_back_comes_at_the_end():
    rows = in_parts(4, PARTS)[:-1]
    assert list(rows_of_log(rows))[-1] == {"step": 4, "loss": 4.5, "grad_norm": 4.5, "reward": 4.5}
    reader = RowReader()
    taken = [found for given in rows for found in reader.take_foreign(given)]
    assert taken == list(rows_of_log(rows))[:-1]
    assert reader.flush() == list(rows_of_log(rows))[-1:]
    assert reader.flush() == []


NAMES = ("a", "b", "c", "d", "eval_x")


@given(
    st.lists(st.lists(st.sampled_from(NAMES), min_size=1, max_size=4, unique=True), max_size=40),
    st.lists(st.integers(0, 1), min_size=40, max_size=40),
)
def test_no_value_is_lost_and_steps_keep_their_order(names, moves):
    step, rows = 1, []
    for place, some in enumerate(names):
        step += moves[place]
        rows.append({"step": step, **{name: float(place) for name in some}})
    read = list(rows_of_log(rows))
    assert [found["step"] for found in read] == sorted(found["step"] for found in read)
    for name in NAMES:
        given_values = [(found["step"], found[name]) for found in rows if name in found]
        assert [(found["step"], found[name]) for found in read if name in found] == given_values


def healthy(step):
    wobble = math.sin(step * 12.9898) * 0.5
    return {
        "loss": 0.7 - 0.002 * step + 0.02 * wobble,
        "grad_norm": 0.5 + 0.05 * wobble,
        "reward": 0.3 + 0.004 * step + 0.03 * wobble,
        "kl": 0.01 + 0.0001 * step + 0.001 * wobble,
        "entropy": 1.2 - 0.001 * step + 0.02 * wobble,
    }


def judged(rows):
    monitor = Monitor(algorithm="grpo")
    for found in rows_of_log(rows):
        monitor.update(found)
    return monitor.verdict, [(finding.rule, finding.step) for finding in monitor.findings]


def test_a_step_in_two_rows_is_judged_as_the_same_step_in_one():
    whole = [{"step": step, **healthy(step)} for step in range(1, 80)]
    apart = [
        {"step": found["step"], **{name: found[name] for name in part}}
        for found in whole
        for part in (("loss", "grad_norm", "entropy"), ("reward", "kl"))
    ]
    assert judged(whole) == ("healthy", [])
    assert judged(apart) == ("healthy", [])


def test_the_failure_of_a_run_that_logs_in_parts_is_found_at_the_same_step():
    whole = [{"step": step, **healthy(step), "grad_norm": 0.0 if step > 40 else 0.5 + 0.01 * (step % 5)}
             for step in range(1, 80)]  # fmt: skip
    apart = [
        {"step": found["step"], **{name: found[name] for name in part}}
        for found in whole
        for part in (("reward", "kl", "entropy"), ("loss", "grad_norm"))
    ]
    assert ("dead_gradient", 44) in judged(whole)[1] or judged(whole)[0] == "act"
    assert judged(apart) == judged(whole)


# The machine


def test_a_sample_is_joined_to_the_next_row_that_is_not_older():
    train = [row(1, 10.0), row(2, 20.0), row(3, 30.0)]
    samples = [row(0, when, **{"System/Memory_Percent": value}) for when, value in ((5, 40.0), (19, 70.0), (20, 60.0))]
    read = list(rows_of_run(train, [], samples))
    assert [found.get("System/Memory_Percent") for found in read] == [40.0, 70.0, None]
    reader = RowReader()
    bit_by_bit = [
        *rows_of_run(train[:1], [], samples, reader=reader),
        *rows_of_run(train[1:], [], [], reader=reader),
    ]
    assert bit_by_bit == read


def test_samples_that_no_row_follows_are_held_as_one():
    reader = RowReader()
    for value in range(1000):
        reader.add_sample({"System/Memory_Percent": float(value)})
    assert not reader._later_samples
    (found,) = reader.take("train", 1, 5.0, {"loss": 1.0})
    assert found["System/Memory_Percent"] == 999.0
