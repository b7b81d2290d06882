"""Resumed runs: the newest attempt replaces the rows after its start, which become ghosts and are never mixed in."""

from __future__ import annotations

import json
from itertools import pairwise
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import rlvitals
from rlvitals.records import Attempt
from rlvitals.store.lineage import Lineage, trace
from rlvitals.views.run import RunView, open_run


def mark(attempt: int, step: int) -> float:
    """A loss that identifies its attempt and step."""
    return attempt + step / 1000


def record(path: Path, steps, *, resume=False, evals=()) -> int:
    """Run once: log these steps, then these evaluations; returns the attempt's number."""
    with rlvitals.start(path, resume=resume) as run:
        for step in steps:
            run.log({"loss": mark(run.attempt, step)}, step=step)
        for step in evals:
            run.log_eval({"accuracy": mark(run.attempt, step)}, step=step)
        return run.attempt


def story(view: RunView, name: str = "loss", **how) -> list[tuple[int, int]]:
    """The (attempt, step) pairs of a series, by step."""
    steps, values = view.series(name, **how)
    assert np.all(np.diff(steps) >= 0), "a series is sorted"
    return [(int(value), int(step)) for step, value in zip(steps, values, strict=True)]


def of(attempt: int, *steps: int) -> list[tuple[int, int]]:
    return [(attempt, step) for step in steps]


# ---- Recorded runs, read back. ----


def test_a_run_without_a_resume_has_no_ghosts(tmp_path):
    record(tmp_path, range(1, 6))
    view = open_run(tmp_path)
    assert story(view) == of(1, 1, 2, 3, 4, 5)
    assert story(view, ghosts=True) == []
    assert (view.rows, view.ghost_rows, view.last_step) == (5, 0, 5)


def test_a_resume_that_goes_on_after_the_last_row_abandons_nothing(tmp_path):
    record(tmp_path, range(1, 6))
    record(tmp_path, range(6, 9), resume=True)
    view = open_run(tmp_path)
    assert story(view) == of(1, 1, 2, 3, 4, 5) + of(2, 6, 7, 8)
    assert view.ghost_rows == 0


def test_a_resume_from_an_earlier_step_abandons_later_rows(tmp_path):
    record(tmp_path, range(1, 11))
    record(tmp_path, range(6, 9), resume=5)
    view = open_run(tmp_path)
    assert story(view) == of(1, 1, 2, 3, 4, 5) + of(2, 6, 7, 8)
    assert story(view, ghosts=True) == of(1, 6, 7, 8, 9, 10), "beyond the new attempt's end too"
    assert (view.rows, view.ghost_rows, view.last_step) == (8, 5, 8)


def test_resume_true_lets_the_first_row_decide(tmp_path):
    record(tmp_path, range(1, 11))
    record(tmp_path, range(6, 9), resume=True)
    view = open_run(tmp_path)
    assert story(view) == of(1, 1, 2, 3, 4, 5) + of(2, 6, 7, 8)
    assert story(view, ghosts=True) == of(1, 6, 7, 8, 9, 10)


def test_a_resume_from_a_checkpoint_takes_its_step(tmp_path):
    record(tmp_path, range(1, 11))
    record(tmp_path, [5, 6], resume="checkpoint-4")
    assert story(open_run(tmp_path)) == of(1, 1, 2, 3, 4) + of(2, 5, 6)


def test_a_resume_from_a_checkpoint_believes_the_trainers_state_over_its_name(tmp_path):
    record(tmp_path, range(1, 11))
    checkpoint = tmp_path / "checkpoint-last"
    checkpoint.mkdir()
    (checkpoint / "trainer_state.json").write_text(json.dumps({"global_step": 7}), encoding="utf-8")
    record(tmp_path, [8], resume="checkpoint-last")
    assert story(open_run(tmp_path)) == of(1, *range(1, 8)) + of(2, 8)


def test_rows_every_ten_steps_between_the_checkpoint_and_the_first_row_are_abandoned(tmp_path):
    """Resumed from step 45 and next logged at 60: the old row of step 50 belongs to other weights."""
    record(tmp_path, range(10, 101, 10))
    record(tmp_path, [60, 70], resume=45)
    view = open_run(tmp_path)
    assert story(view) == of(1, 10, 20, 30, 40) + of(2, 60, 70)
    assert story(view, ghosts=True) == of(1, 50, 60, 70, 80, 90, 100)


@pytest.mark.parametrize("resume", [True, 40])
def test_rows_every_ten_steps_go_on_from_a_checkpoint_between_them(tmp_path, resume):
    record(tmp_path, range(10, 101, 10))
    record(tmp_path, [50, 60], resume=resume)
    view = open_run(tmp_path)
    assert story(view) == of(1, 10, 20, 30, 40) + of(2, 50, 60)
    assert story(view, ghosts=True) == of(1, 50, 60, 70, 80, 90, 100)


def test_the_row_of_the_very_step_a_resume_starts_from_stays(tmp_path):
    record(tmp_path, [10, 20, 30])
    record(tmp_path, [30], resume=20)
    assert story(open_run(tmp_path)) == of(1, 10, 20) + of(2, 30)


def test_an_attempt_that_logs_an_earlier_step_than_it_recorded_is_placed_by_its_rows(tmp_path):
    record(tmp_path, range(1, 11))
    record(tmp_path, [3, 4], resume=8)
    view = open_run(tmp_path)
    assert story(view) == of(1, 1, 2) + of(2, 3, 4)
    assert story(view, ghosts=True) == of(1, *range(3, 11))


def test_an_attempt_that_died_before_its_first_row_takes_nothing_over(tmp_path):
    record(tmp_path, range(1, 11))
    assert record(tmp_path, [], resume=3) == 2
    view = open_run(tmp_path)
    assert story(view) == of(1, *range(1, 11))
    assert [(attempt.number, attempt.from_step) for attempt in view.attempts] == [(1, None), (2, 3)]
    assert record(tmp_path, [9], resume=8) == 3
    assert story(open_run(tmp_path)) == of(1, *range(1, 9)) + of(3, 9)


def test_a_resume_from_the_start_abandons_everything(tmp_path):
    record(tmp_path, range(1, 6))
    record(tmp_path, [1, 2], resume=0)
    view = open_run(tmp_path)
    assert story(view) == of(2, 1, 2)
    assert story(view, ghosts=True) == of(1, 1, 2, 3, 4, 5)


def test_a_chain_of_attempts_each_owns_its_own_stretch(tmp_path):
    record(tmp_path, range(1, 11))
    record(tmp_path, range(6, 13), resume=5)
    record(tmp_path, range(9, 12), resume=8)
    record(tmp_path, range(12, 14), resume=True)
    view = open_run(tmp_path)
    assert story(view) == of(1, 1, 2, 3, 4, 5) + of(2, 6, 7, 8) + of(3, 9, 10, 11) + of(4, 12, 13)
    assert sorted(story(view, ghosts=True)) == of(1, 6, 7, 8, 9, 10) + of(2, 9, 10, 11, 12)
    assert [row.step for row in view.iterate()] == list(range(1, 14))
    assert view.table()["attempt"].tolist() == [1] * 5 + [2] * 3 + [3] * 3 + [4] * 2


def test_a_later_attempt_that_goes_back_further_abandons_the_attempts_between(tmp_path):
    record(tmp_path, range(1, 11))
    record(tmp_path, range(8, 12), resume=7)
    record(tmp_path, range(10, 14), resume=9)
    record(tmp_path, [4, 5], resume=3)
    view = open_run(tmp_path)
    assert story(view) == of(1, 1, 2, 3) + of(4, 4, 5)
    assert view.ghost_rows == 7 + 4 + 4


def test_every_stored_row_is_either_on_the_line_or_a_ghost(tmp_path):
    for resume, steps in ((False, range(1, 11)), (4, range(5, 12)), (True, range(7, 9)), (7, range(8, 20))):
        record(tmp_path, steps, resume=resume)
    view = open_run(tmp_path)
    stored = [json.loads(line) for line in (tmp_path / "logs/training_metrics.jsonl").read_bytes().splitlines()]
    living, ghosts = story(view), story(view, ghosts=True)
    assert sorted(living + ghosts) == sorted((row["attempt"], row["step"]) for row in stored)
    assert len({step for _, step in living}) == len(living), "no step is there twice"


def test_late_rows_belong_to_their_attempt(tmp_path):
    """A metric that arrives late, for an earlier step of the attempt, is not a new resume."""
    record(tmp_path, [1, 2, 3, 4, 5])
    record(tmp_path, [6, 7, 8, 6, 7], resume=5)
    view = open_run(tmp_path)
    assert story(view) == of(1, 1, 2, 3, 4, 5) + of(2, 6, 6, 7, 7, 8)
    assert view.ghost_rows == 0
    record(tmp_path, [8, 9], resume=True)
    assert story(open_run(tmp_path)) == of(1, 1, 2, 3, 4, 5) + of(2, 6, 6, 7, 7) + of(3, 8, 9)


def test_out_of_order_rows_of_one_attempt_are_sorted_and_kept(tmp_path):
    record(tmp_path, [3, 1, 5, 2, 4])
    view = open_run(tmp_path)
    assert story(view) == of(1, 1, 2, 3, 4, 5)
    assert view.last_step == 5


def test_a_late_row_for_a_step_before_the_resume_abandons_nothing_more(tmp_path):
    record(tmp_path, range(1, 11))
    record(tmp_path, [6, 7, 2, 8], resume=5)
    view = open_run(tmp_path)
    assert story(view) == of(1, 1, 2) + of(2, 2) + of(1, 3, 4, 5) + of(2, 6, 7, 8)
    assert story(view, ghosts=True) == of(1, 6, 7, 8, 9, 10)


def test_resume_true_after_a_late_row_counts_on_from_the_highest_step(tmp_path):
    """Steps that are not given continue after the highest step, not after a late row that came last."""
    record(tmp_path, [*range(1, 11), 4])
    with rlvitals.start(tmp_path, resume=True) as run:
        run.log({"loss": mark(2, 11)})
    view = open_run(tmp_path)
    assert view.ghost_rows == 0
    assert story(view)[-1] == (2, 11)


def test_resume_true_counts_on_from_the_newest_attempt_not_from_a_ghost(tmp_path):
    record(tmp_path, range(1, 101))
    record(tmp_path, [51, 52], resume=50)
    with rlvitals.start(tmp_path, resume=True) as run:
        run.log({"loss": mark(3, 53)})
    assert story(open_run(tmp_path))[-3:] == of(2, 51, 52) + of(3, 53)


def test_evaluations_follow_the_training_rows(tmp_path):
    record(tmp_path, range(1, 11), evals=[5, 10])
    record(tmp_path, range(6, 9), resume=5, evals=[8])
    view = open_run(tmp_path)
    assert story(view, "accuracy") == of(1, 5) + of(2, 8)
    assert story(view, "accuracy", ghosts=True) == of(1, 10)


def test_evaluations_follow_the_first_training_row_of_resume_true(tmp_path):
    record(tmp_path, range(1, 11), evals=[5, 10])
    record(tmp_path, [6, 7], resume=True, evals=[7])
    view = open_run(tmp_path)
    assert story(view, "accuracy") == of(1, 5) + of(2, 7)
    assert story(view, "accuracy", ghosts=True) == of(1, 10)


def test_an_attempt_that_has_only_evaluated_abandons_rows_after_its_step(tmp_path):
    record(tmp_path, range(1, 11), evals=[10])
    record(tmp_path, [], resume=5, evals=[5])
    view = open_run(tmp_path)
    assert story(view) == of(1, 1, 2, 3, 4, 5)
    assert story(view, "accuracy") == of(2, 5)
    assert story(view, "accuracy", ghosts=True) == of(1, 10)


def test_an_attempt_that_has_only_evaluated_and_recorded_no_step_is_placed_by_its_evaluation(tmp_path):
    record(tmp_path, range(1, 11), evals=[4, 10])
    record(tmp_path, [], resume=True, evals=[5])
    view = open_run(tmp_path)
    assert story(view) == of(1, 1, 2, 3, 4, 5), "an evaluation of step 5 is of the weights that row 5 led to"
    assert story(view, "accuracy") == of(1, 4) + of(2, 5)
    assert story(view, "accuracy", ghosts=True) == of(1, 10)


def test_a_resume_only_to_evaluate_the_last_step_abandons_no_training_row(tmp_path):
    """The evaluation belongs to the weights after that row."""
    record(tmp_path, range(1, 11))
    record(tmp_path, [], resume=True, evals=[10])
    view = open_run(tmp_path)
    assert story(view) == of(1, *range(1, 11))
    assert story(view, "accuracy") == of(2, 10)


def test_ghosts_of_an_overtaken_attempt_have_their_own_values(tmp_path):
    record(tmp_path, [1, 2, 3])
    record(tmp_path, [2, 3], resume=1)
    view = open_run(tmp_path)
    assert view.series("loss").values.tolist() == [mark(1, 1), mark(2, 2), mark(2, 3)]
    assert view.series("loss", ghosts=True).values.tolist() == [mark(1, 2), mark(1, 3)]
    assert view.table(ghosts=True)["loss"].tolist() == [mark(1, 2), mark(1, 3)]
    assert [row.numbers["loss"] for row in view.last_rows(2)] == [mark(2, 2), mark(2, 3)]


def test_the_lineage_survives_the_loss_of_the_list_of_attempts(tmp_path):
    """It is then inferred from the rows."""
    record(tmp_path, range(1, 11))
    record(tmp_path, range(6, 9), resume=5)
    (tmp_path / "attempts.jsonl").write_bytes(b'\xff\n{"number":2\n[]\n')
    assert story(open_run(tmp_path)) == of(1, 1, 2, 3, 4, 5) + of(2, 6, 7, 8)


# ---- The rule itself. ----


def arrays(*rows: tuple[int, int]):
    return np.array([row[0] for row in rows], dtype=np.int64), np.array([row[1] for row in rows], dtype=np.int64)


NOTHING = arrays()


def test_nothing_logged_has_no_lineage():
    assert trace([], NOTHING, NOTHING) == Lineage({})
    assert trace([Attempt(1, 0.0), Attempt(2, 0.0, from_step=5)], NOTHING, NOTHING) == Lineage({})
    assert Lineage({}).is_ghost(*NOTHING).tolist() == []


def test_a_first_attempt_takes_nothing_over_wherever_it_begins():
    assert trace([Attempt(1, 0.0)], arrays((1, 7), (1, 8)), arrays((1, 7))) == Lineage({})


def test_the_first_row_of_an_attempt_is_the_first_in_the_file():
    rows = arrays((1, 1), (1, 2), (1, 3), (2, 3), (2, 1))
    assert trace([], rows, NOTHING).is_ghost(*rows).tolist() == [False, False, True, False, False]


@st.composite
def histories(draw):
    """Attempts that each resume at some earlier step and log at a fixed interval from there."""
    every = draw(st.sampled_from([1, 1, 3, 10]))
    plan = []
    end = 0
    for number in range(1, draw(st.integers(1, 6)) + 1):
        origin = 0 if number == 1 else draw(st.integers(0, end))
        logged = [step for step in range(origin + 1, origin + draw(st.integers(0, 40)) + 1) if step % every == 0]
        is_recorded = number > 1 and draw(st.booleans())
        plan.append((number, origin if is_recorded else None, origin, logged))
        end = logged[-1] if logged else end
    return plan


@given(histories())
def test_the_living_line_matches_a_step_by_step_model(plan):
    """The model: each attempt deletes the rows from its first step on and appends its own."""
    line: list[tuple[int, int]] = []
    for number, from_step, _, logged in plan:
        if not logged:
            continue  # without a row it replaces nothing
        first = logged[0] if from_step is None else min(logged[0], from_step + 1)
        line = [(attempt, step) for attempt, step in line if step < first]
        line += [(number, step) for step in logged]
    rows = arrays(*((number, step) for number, _, _, logged in plan for step in logged))
    known = [Attempt(number, 0.0, from_step=from_step) for number, from_step, _, _ in plan]
    lineage = trace(known, rows, NOTHING)
    ghosts = lineage.is_ghost(*rows)
    living = [(int(a), int(s)) for a, s, ghost in zip(*rows, ghosts, strict=True) if not ghost]
    assert living == line
    assert [lineage.is_abandoned(int(a), int(s)) for a, s in zip(*rows, strict=True)] == ghosts.tolist()
    assert all(before < after for (_, before), (_, after) in pairwise(living)), "steps go up along the line"
