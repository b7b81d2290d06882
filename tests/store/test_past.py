"""A run's past, found by binary search in the log, compared with the past read line by line."""

from __future__ import annotations

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rlvitals.health.rows import in_order
from rlvitals.records import Attempt
from rlvitals.store import past as past_module
from rlvitals.store.cards import append_attempt
from rlvitals.store.layout import RunDir
from rlvitals.store.past import past_before


def write_log(path, rows, noise=b""):
    """Rows as (attempt, step, time), with a line of garbage after every third."""
    path.parent.mkdir(parents=True, exist_ok=True)
    lines = []
    for place, (attempt, step, when) in enumerate(rows):
        head = {} if when is None else {"timestamp": when}
        lines.append(json.dumps({"step": step, **head, "attempt": attempt, "x": 1.0}).encode())
        if noise and place % 3 == 2:
            lines.append(noise)
    path.write_bytes(b"".join(line + b"\n" for line in lines))


def write_attempts(run_dir, *from_steps):
    for number, step in enumerate(from_steps, 1):
        append_attempt(run_dir, Attempt(number, 0.0, from_step=step))


def past_rows(run_dir, attempt, step, stream="train"):
    past = past_before(run_dir, attempt, stream, step)
    return [(log, row.attempt, row.step) for log, row in in_order(past.rows("train"), past.rows("eval"))]


@pytest.fixture
def run_dir(tmp_path):
    return RunDir(tmp_path)


def test_training_and_evaluation_rows_come_in_the_order_of_their_times(run_dir):
    write_log(run_dir.log("train"), [(1, 1, 10), (1, 2, 20), (1, 3, 30), (1, 4, 40)])
    write_log(run_dir.log("eval"), [(1, 2, 25), (1, 4, 40), (1, 4, 45)])
    assert past_rows(run_dir, 2, 5) == [
        ("train", 1, 1), ("train", 1, 2), ("eval", 1, 2), ("train", 1, 3),
        ("train", 1, 4), ("eval", 1, 4), ("eval", 1, 4),
    ]  # fmt: skip


def test_rows_whose_clock_was_set_back_or_that_have_no_time_stay_where_they_were_logged(run_dir):
    write_log(run_dir.log("train"), [(1, 1, 100), (1, 2, 50), (1, 3, None), (1, 4, 110)])
    write_log(run_dir.log("eval"), [(1, 3, 105)])
    assert past_rows(run_dir, 2, 5) == [
        ("train", 1, 1), ("train", 1, 2), ("train", 1, 3), ("eval", 1, 3), ("train", 1, 4),
    ]  # fmt: skip


def test_what_the_attempt_itself_and_later_ones_logged_is_not_its_past(run_dir):
    write_log(run_dir.log("train"), [(1, 1, 1), (1, 2, 2), (2, 3, 3), (2, 4, 4), (3, 5, 5)])
    write_log(run_dir.log("eval"), [(1, 2, 2.5), (2, 4, 4.5), (3, 5, 5.5)])
    assert past_rows(run_dir, 2, 3) == [("train", 1, 1), ("train", 1, 2), ("eval", 1, 2)]
    assert len(past_rows(run_dir, 3, 5)) == 6


@pytest.mark.parametrize("from_steps", [(None, None), (None, 2)], ids=["its first row decides", "it said from where"])
def test_rows_after_the_step_the_attempt_resumes_from_are_left_out(run_dir, from_steps):
    write_attempts(run_dir, *from_steps)
    write_log(run_dir.log("train"), [*((1, step, step) for step in range(1, 6))])
    write_log(run_dir.log("eval"), [(1, 2, 2.5), (1, 4, 4.5)])
    assert past_rows(run_dir, 2, 3) == [("train", 1, 1), ("train", 1, 2), ("eval", 1, 2)]
    is_abandoned = past_before(run_dir, 2, "train", 3).lineage.is_abandoned
    assert [is_abandoned(1, step) for step in (2, 3, 4)] == [False, True, True]
    assert not is_abandoned(2, 3)


def test_an_attempt_that_begins_with_an_evaluation_keeps_the_row_it_evaluates(run_dir):
    write_log(run_dir.log("train"), [*((1, step, step) for step in range(1, 6))])
    assert [step for _, _, step in past_rows(run_dir, 2, 3, "eval")] == [1, 2, 3]


def test_of_a_chain_of_attempts_only_the_living_line_is_read(run_dir):
    write_attempts(run_dir, None, 3, 4)
    write_log(
        run_dir.log("train"),
        [*((1, step, step) for step in range(1, 8)), *((2, step, 10 + step) for step in range(4, 9))],
    )
    assert past_rows(run_dir, 3, 5) == [
        ("train", 1, 1), ("train", 1, 2), ("train", 1, 3), ("train", 2, 4),
    ]  # fmt: skip


@st.composite
def pasts(draw):
    """The training rows and evaluations of several attempts, each resumed at some earlier step."""
    train, evals, known, when, end = [], [], [], 0.0, 0
    count = draw(st.integers(1, 5))
    for number in range(1, count + 1):
        origin = 0 if number == 1 else draw(st.integers(0, end))
        is_recorded = number > 1 and draw(st.booleans())
        known.append(Attempt(number, when, from_step=origin if is_recorded else None))
        for step in range(origin + 1, origin + 1 + draw(st.integers(0, 60))):
            when += 1.0
            train.append((number, step, when))
            end = step
            if draw(st.integers(0, 9)) == 0:
                when += 1.0
                evals.append((number, step, when))
    return train, evals, known, draw(st.integers(0, end)) + 1, count + 1


def read_plainly(train, evals, known, step, attempt):
    """Each attempt, the new one included, deletes the earlier attempts' rows from its first step on."""
    from_steps = {item.number: item.from_step for item in known}
    cuts = {}
    for number in {row[0] for row in [*train, *evals]} - {1}:
        trained = [row[1] for row in train if row[0] == number][:1]
        promised = [] if from_steps[number] is None else [from_steps[number] + 1]
        evaluated = [row[1] + 1 for row in evals if row[0] == number][:1]
        cuts[number] = min(trained + promised or evaluated)
    cuts[attempt] = step
    rows = [(when, order, stream, number, at)
            for order, (stream, some) in enumerate((("train", train), ("eval", evals))) for number, at, when in some
            if not any(number < later and at >= cut for later, cut in cuts.items())]  # fmt: skip
    return [(stream, number, at) for _, _, stream, number, at in sorted(rows)]


@given(past=pasts(), noise=st.sampled_from([b"", b"garbage", b'{"step":1e999}']))
def test_the_past_is_the_one_read_line_by_line(tmp_path_factory, past, noise):
    train, evals, known, step, attempt = past
    run_dir = RunDir(tmp_path_factory.mktemp("run"))
    write_log(run_dir.train_log, train, noise)
    write_log(run_dir.eval_log, evals)
    for item in known:
        append_attempt(run_dir, item)
    with pytest.MonkeyPatch.context() as small:
        small.setattr(past_module, "SCAN_BYTES", 100)  # so that these short logs are searched in the same way
        small.setattr(past_module, "LATE_BYTES", 200)
        small.setattr(past_module, "_BLOCK_BYTES", 300)
        assert past_rows(run_dir, attempt, step) == read_plainly(train, evals, known, step, attempt)


@given(
    length=st.integers(0, 60), first=st.integers(0, 9), last=st.integers(1, 30), block=st.sampled_from([50, 99, 10**6])
)
def test_of_a_long_past_the_first_and_the_last_rows_are_read(tmp_path_factory, length, first, last, block):
    run_dir = RunDir(tmp_path_factory.mktemp("run"))
    write_log(run_dir.train_log, [(1 + step // 25, step, float(step)) for step in range(length)])
    with pytest.MonkeyPatch.context() as small:
        small.setattr(past_module, "FIRST_ROWS", first)
        small.setattr(past_module, "LAST_ROWS", last)
        small.setattr(past_module, "_BLOCK_BYTES", block)
        past = past_before(run_dir, 9, "train", length)
        steps = [row.step for _, row in in_order(past.rows("train"), past.rows("eval"))]
    middle = range(first, max(first, length - last))
    assert steps == [step for step in range(length) if step not in middle]
    assert past.has_gap is bool(middle)


def test_late_rows_of_earlier_steps_are_read_although_a_ghost_comes_before_them(tmp_path):
    run_dir = RunDir(tmp_path)
    write_log(run_dir.train_log, [(1, step, 1.0 * place) for place, step in enumerate([1, 2, 3, 4, 5, 2, 3])])
    assert [step for _, _, step in past_rows(run_dir, 2, 4)] == [1, 2, 3, 2, 3]


def test_how_much_is_read_does_not_grow_with_the_log(tmp_path, monkeypatch):
    run_dir = RunDir(tmp_path)
    run_dir.logs.mkdir()
    decoded = []
    decode = past_module.decode
    monkeypatch.setattr(past_module, "decode", lambda line: (decoded.append(1), decode(line))[1])
    monkeypatch.setattr(past_module, "FIRST_ROWS", 20)
    monkeypatch.setattr(past_module, "LAST_ROWS", 80)
    monkeypatch.setattr(past_module, "SCAN_BYTES", 1000)
    monkeypatch.setattr(past_module, "LATE_BYTES", 1000)
    counts = []
    for length in (5_000, 80_000):
        # Two attempts; the second resumes after a tenth of the run, so most of the first is abandoned.
        rows = [(1, step, 1.0 * step) for step in range(length)]
        rows += [(2, step, 1.0 * length + step) for step in range(length // 10, length)]
        write_log(run_dir.train_log, rows)
        del decoded[:]
        steps = [step for _, _, step in past_rows(run_dir, 3, length)]
        assert steps == [*range(20), *range(length - 80, length)]
        counts.append(len(decoded))
    assert counts[1] < counts[0] + 30, "sixteen times as long: four more halvings for each place"
