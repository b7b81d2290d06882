"""A run's past as an attempt that goes on with it sees it: every row that counts, once, in the order it was logged."""

from __future__ import annotations

import json

import pytest

from rlvitals.store.layout import RunDir
from rlvitals.store.story import story_before

LOGS = {"train": "training_metrics.jsonl", "eval": "eval_metrics.jsonl"}


@pytest.fixture
def run_dir(tmp_path):
    (tmp_path / "logs").mkdir()
    return RunDir(tmp_path)


def write(run_dir, stream, *rows):
    """Rows given as (attempt, step, time)."""
    with (run_dir.logs / LOGS[stream]).open("a") as file:
        for attempt, step, at in rows:
            head = {"step": step, "attempt": attempt, "x": 1.0}
            file.write(json.dumps(head if at is None else head | {"timestamp": at}) + "\n")


def write_attempts(run_dir, *from_steps):
    lines = [
        json.dumps({"number": number, "started": 0.0, "from_step": step}) for number, step in enumerate(from_steps, 1)
    ]
    (run_dir.root / "attempts.jsonl").write_text("\n".join(lines) + "\n")


def told(story):
    return [(one.stream, one.row.attempt, one.row.step) for one in story.rows()]


def test_training_and_evaluation_rows_come_in_the_order_of_their_times(run_dir):
    write(run_dir, "train", (1, 1, 10), (1, 2, 20), (1, 3, 30), (1, 4, 40))
    write(run_dir, "eval", (1, 2, 25), (1, 4, 40), (1, 4, 45))
    story = story_before(run_dir, 2, "train", 5)
    assert told(story) == [
        ("train", 1, 1), ("train", 1, 2), ("eval", 1, 2), ("train", 1, 3),
        ("train", 1, 4), ("eval", 1, 4), ("eval", 1, 4),
    ]  # fmt: skip
    assert (story.length, story.left_out) == (7, 0)


def test_rows_whose_clock_was_set_back_or_that_have_no_time_stay_where_they_were_logged(run_dir):
    write(run_dir, "train", (1, 1, 100), (1, 2, 50), (1, 3, None), (1, 4, 110))
    write(run_dir, "eval", (1, 3, 105))
    assert told(story_before(run_dir, 2, "train", 5)) == [
        ("train", 1, 1), ("train", 1, 2), ("train", 1, 3), ("eval", 1, 3), ("train", 1, 4),
    ]  # fmt: skip


def test_what_the_attempt_itself_and_later_ones_logged_is_not_its_past(run_dir):
    write(run_dir, "train", (1, 1, 1), (1, 2, 2), (2, 3, 3), (2, 4, 4), (3, 5, 5))
    write(run_dir, "eval", (1, 2, 2.5), (2, 4, 4.5), (3, 5, 5.5))
    assert told(story_before(run_dir, 2, "train", 3)) == [("train", 1, 1), ("train", 1, 2), ("eval", 1, 2)]
    assert story_before(run_dir, 2, "train", 3).length == 3
    assert len(told(story_before(run_dir, 3, "train", 5))) == 6


@pytest.mark.parametrize("from_steps", [(None, None), (None, 2)], ids=["its first row decides", "it said from where"])
def test_what_the_attempt_goes_back_behind_is_not_told(run_dir, from_steps):
    write_attempts(run_dir, *from_steps)
    write(run_dir, "train", *((1, step, step) for step in range(1, 6)))
    write(run_dir, "eval", (1, 2, 2.5), (1, 4, 4.5))
    story = story_before(run_dir, 2, "train", 3)
    assert told(story) == [("train", 1, 1), ("train", 1, 2), ("eval", 1, 2)]
    assert story.length == 3
    assert [story.is_ghost(1, step) for step in (2, 3, 4)] == [False, True, True]
    assert not story.is_ghost(2, 3)


def test_an_attempt_that_begins_with_an_evaluation_keeps_the_row_it_evaluates(run_dir):
    write(run_dir, "train", *((1, step, step) for step in range(1, 6)))
    assert [step for _, _, step in told(story_before(run_dir, 2, "eval", 3))] == [1, 2, 3]


def test_of_a_chain_of_attempts_only_the_line_that_lives_is_told(run_dir):
    write_attempts(run_dir, None, 3, 4)
    write(run_dir, "train", *((1, step, step) for step in range(1, 8)), *((2, step, 10 + step) for step in range(4, 9)))
    assert told(story_before(run_dir, 3, "train", 5)) == [
        ("train", 1, 1), ("train", 1, 2), ("train", 1, 3), ("train", 2, 4),
    ]  # fmt: skip


def test_of_a_long_past_the_middle_is_left_out_whatever_it_consists_of(run_dir, monkeypatch):
    monkeypatch.setattr("rlvitals.store.story.FIRST_ROWS", 3)
    monkeypatch.setattr("rlvitals.store.story.LAST_ROWS", 4)
    write(run_dir, "train", *((1, step, step) for step in range(1, 9)))
    for extra, expected in (
        ((1, 7, 7.5), ["1", "2", "3", "6", "7", "e7", "8"]),
        ((1, 2, 2.5), ["1", "2", "e2", "5", "6", "7", "8"]),
    ):
        (run_dir.logs / LOGS["eval"]).unlink(missing_ok=True)
        write(run_dir, "eval", extra)
        story = story_before(run_dir, 2, "train", 9)
        assert (story.length, story.left_out) == (9, 2)
        assert [f"{'e' * (stream == 'eval')}{step}" for stream, _, step in told(story)] == expected
