"""Which parts of a notebook belong to one training, the steps of its rows, and which training is the main one."""

from __future__ import annotations

import pytest

from rlvitals.importers.notebook_code import CodedTrainer
from rlvitals.importers.notebook_trainings import BarProgress, OutputPart, Training, joined_epochs, place


def rows(steps, **names):
    """Rows at these steps. The value of a metric may depend on the position."""
    return [
        {"step": step, **{name: value(at) if callable(value) else value for name, value in names.items()}}
        for at, step in enumerate(steps, 1)
    ]


def falling(at):
    return 1 / at


def part(steps, *, cell=1, is_table=False, done=None, total=None, **names):
    return OutputPart(cell, rows(steps, **names), is_table, BarProgress(done, total) if total else None, total)


def steps_of(one):
    return [row["step"] for row in one.rows]


# Steps


@pytest.mark.parametrize(
    ("printed", "shown", "expected"),
    [
        (5, [10, 20, 30, 40, 50], [10, 20, 30, 40, 50]),
        (6, [10, 20, 30, 40], [10, 20, 30, 40, 50, 60]),  # the table was saved a little earlier
        (3, [10, 20, 30, 40, 50], [10, 20, 30]),
        (8, [10, 20, 30, 40, 50], [1, 2, 3, 4, 5, 6, 7, 8]),  # too many to be the rows of the table
        (1, [10], [10]),
    ],
)
def test_printed_rows_are_at_the_steps_of_the_table_beside_them(printed, shown, expected):
    text, table = (
        part(range(1, printed + 1), loss=falling),
        part(shown, is_table=True, loss=lambda at: round(1 / at, 4)),
    )
    place(text, [table], None, None)
    assert steps_of(text) == expected


@pytest.mark.parametrize("losses", [{"loss": 0.5}, {"reward": 0.5}, {}])
def test_rows_with_other_losses_are_not_those_of_the_table(losses):
    text = part(range(1, 6), loss=falling)
    place(text, [part([10, 20, 30, 40, 50], is_table=True, **losses)], None, None)
    assert steps_of(text) == [1, 2, 3, 4, 5]


def summed_up(count=4, share=0.25):
    text = part(range(1, count + 1), loss=falling, epoch=lambda at: at * share)
    text.rows.append({"step": count, "train_runtime": 9.0, "epoch": count * share})
    return text


@pytest.mark.parametrize("how", ["ended", "table", "bar"])
def test_epochs_give_the_steps_once_the_last_step_is_known(how):
    text = summed_up()
    text.progress = BarProgress(100, 100) if how == "bar" else None
    tables = [part([1], is_table=True, done=100, total=100, reward=0.5)] if how == "table" else []
    place(text, tables, 100 if how == "ended" else None, CodedTrainer(settings={"logging_steps": 7}))
    assert steps_of(text) == [25, 50, 75, 100, 100]


@pytest.mark.parametrize("ended", [None, 3])
def test_epochs_give_no_steps_without_an_end_or_when_steps_would_coincide(ended):
    text = summed_up()
    text.progress = BarProgress(4, 100)
    place(text, [], ended, None)
    assert steps_of(text) == [1, 2, 3, 4, 4]
    assert text.notes == []


def test_the_settings_give_the_steps_unless_the_plan_contradicts_them():
    text = part(range(1, 6), loss=falling)
    text.config["max_steps"] = 100
    place(text, [], None, CodedTrainer(settings={"logging_steps": 50}))
    assert steps_of(text) == [1, 2, 3, 4, 5]
    place(text, [], None, CodedTrainer(settings={"logging_steps": 20}))
    assert steps_of(text) == [20, 40, 60, 80, 100]


@pytest.mark.parametrize(
    ("count", "done", "every"), [(50, 500, 10), (3, 31, 10), (2, 1400, 500), (6, 77, 12), (20, 20, 1)]
)
def test_the_last_bar_shows_every_how_many_steps_there_was_a_row(count, done, every):
    text = part(range(1, count + 1), loss=falling)
    text.progress = BarProgress(done, 2000)
    place(text, [], None, None)
    assert steps_of(text) == [every * n for n in range(1, count + 1)]
    assert (text.total, len(text.notes)) == ((2000, 1) if every > 1 else (None, 0))


def test_a_table_of_evaluations_shows_how_far_the_rows_beside_it_got():
    text = part(range(1, 204), loss=1.3, reward=0.5)
    table = part([675, 1350], is_table=True, done=2026, total=3610, loss=1.2, eval_loss=1.1)
    place(text, [table], None, None)
    training = Training([table])
    assert training.takes(text)
    assert ([row["step"] for row in training.rows][:3], len(training.rows)) == ([10, 20, 30], 203 + 1)
    assert training.rows[-1]["step"] == 2030
    samples = part(range(1, 204), reward=0.5)  # prints of something else
    place(samples, [table], None, None)
    assert (samples.rows[-1]["step"], samples.is_beside) == (203, False)


def test_evaluations_keep_the_step_of_the_row_before_them():
    text = OutputPart(1, [*rows([1, 2], loss=falling), {"step": 2, "eval_loss": 0.4}, *rows([3], loss=0.1)])
    assert text.is_counted
    place(text, [], None, CodedTrainer(settings={"logging_steps": 10}))
    assert steps_of(text) == [10, 20, 20, 30]


# One training or several


def epochs(*begins, names=("loss",)):
    return [rows(range(5), **{name: lambda at, begin=begin: begin - 0.1 * at for name in names}) for begin in begins]


def test_epochs_go_on_where_the_one_before_ended():
    joined = joined_epochs(epochs(4.0, 3.5, 3.0))
    assert [row["step"] for row in joined] == list(range(15))
    assert joined[5]["loss"] == 3.4


@pytest.mark.parametrize(
    "runs",
    [
        epochs(4.0, 4.0, 4.0),  # each starts again
        [*epochs(4.0), *epochs(3.5, names=("loss", "kl"))],
        [*epochs(4.0), [*epochs(3.5)[0], {"step": 5, "train_runtime": 1.0}]],
    ],
)
def test_trainings_that_restart_are_not_joined(runs):
    assert joined_epochs(runs) == []


def test_many_short_runs_are_epochs_whatever_their_numbers():
    assert len(joined_epochs(epochs(*[4.0] * 9))) == 45


def test_the_loss_shows_epochs_before_other_names():
    runs = epochs(4.0, 3.5)
    for run in runs:
        for at, row in enumerate(run):
            row["a_reward"] = at / 5  # starts again in each epoch
    assert joined_epochs(runs)


@pytest.mark.parametrize(
    ("other", "is_same"),
    [
        (part([1, 2, 3], reward=falling), True),  # printed with the table, under other names
        (part([1, 2, 3], cell=2, reward=falling), False),
        (part([1, 2, 3], is_table=True, reward=falling), False),
        (part([1, 2, 3], cell=9, loss=lambda at: round(1 / at, 4), reward=0.5), True),
        (part([1, 2, 3], cell=9, loss=lambda at: 1.01 / at), False),
        (part([1, 20, 30, 40], loss=falling), False),  # one common step of three
    ],
)
def test_parts_that_show_the_same_steps_are_one_training(other, is_same):
    training = Training([part([1, 2, 3], is_table=True, loss=falling)])
    assert training.takes(other) is is_same
    assert len(training.parts) == 1 + is_same


def test_a_part_without_steps_of_its_own_never_goes_on():
    training = Training([part([-2, -1, 0], loss=falling)])
    assert not training.takes(part([1, 2, 3], loss=0.1))
    assert training.takes(part([1, 2, 3], is_table=True, loss=0.1))


def main_of(*trainings):
    return max(range(len(trainings)), key=lambda place: trainings[place].likelihood)


SFT = Training([part(range(1, 61), is_table=True, loss=falling)], CodedTrainer("sft"))


@pytest.mark.parametrize(
    ("other", "is_main"),
    [
        (Training([part(range(1, 21), is_table=True, loss=0.0, reward=falling)]), True),
        (Training([part(range(1, 21), is_table=True, loss=0.0)], CodedTrainer("grpo")), True),  # known from the code
        (Training([part(range(1, 21), is_table=True, loss=0.0)], CodedTrainer("reward_model")), False),
        (Training([part(range(1, 21), loss=0.1, reward=falling)]), True),  # printed by a user's loop
        (Training([part(range(1, 21), reward=falling)]), False),  # rewards of samples, most likely
        (Training([part(range(1, 6), loss=0.1, reward=falling)]), False),
        (Training([part(range(1, 6), loss=0.1, epoch=0.1, reward=falling)]), True),  # as a trainer prints it
    ],
)
def test_a_training_of_rl_comes_before_a_longer_supervised_one(other, is_main):
    assert main_of(SFT, other) == int(is_main)


def test_of_trainings_of_rl_the_one_that_can_be_judged_comes_first_then_what_shows_more_then_the_longest():
    short = Training([part(range(1, 8), is_table=True, loss=0.0, reward=falling)])
    silent = Training([part(range(1, 99), is_table=True, loss=0.0)], CodedTrainer("grpo"))
    telling = Training([part(range(1, 9), is_table=True, loss=0.0, kl=falling)])
    longer = Training([part(range(1, 10), is_table=True, loss=0.0, kl=falling)])
    assert main_of(short, silent) == 1
    assert main_of(silent, telling) == 1
    assert main_of(telling, longer, short) == 1
