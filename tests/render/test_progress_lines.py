"""Progress bars as text are identical to those in the RLHF tracker's guide."""

from __future__ import annotations

import pytest

from rlvitals.render.progress import bar_line, field_line, field_text, plain_line
from rlvitals.render.steps import cells

EPOCH = """\
Epoch 3/10 |████████████████████| 100/100 [05:32<00:00, 3.32s/batch]
  loss: 2.3456  reward: 0.7821  lr: 1.00e-05  step: 300/1000"""

EVALUATION = """\
Evaluating |████████████████| 20/20 [02:15<00:00, 6.75s/batch]
  processed: 160  avg_reward: 0.7234"""


def fields(**values):
    return {name: field_text(name, value) for name, value in values.items()}


def test_the_bars_are_the_guides(shared):
    training = fields(loss=2.34561, reward=0.78214, lr=1e-5, step="300/1000")
    assert f"{bar_line('Epoch 3/10', 100, 100, 332.0)}\n{field_line(training)}" == EPOCH
    evaluation = fields(processed=160, avg_reward=0.72344)
    assert f"{bar_line('Evaluating', 20, 20, 135.0, size=16)}\n{field_line(evaluation)}" == EVALUATION
    guide = (shared / "reference" / "rlhf-metrics-tracker.ru.md").read_text()
    assert f"```\n{EPOCH}\n```" in guide
    assert f"```\n{EVALUATION}\n```" in guide


@pytest.mark.parametrize("done", [0, 1, 37, 50, 99, 100])
@pytest.mark.parametrize("ascii", [False, True])
def test_the_bar_keeps_its_length(done, ascii):
    bar = bar_line("Epoch 1/2", done, 100, 10.0, ascii=ascii).split("|")[1]
    assert len(bar) == 20
    assert bar.isascii() == (ascii or done == 0)
    full = bar.count("#" if ascii else "█")
    assert full == done * 20 // 100


def test_a_width_is_the_columns_of_the_whole_line():
    for width in (60, 100, 140):
        assert cells(bar_line("Epoch 3/10", 7, 100, 20.0, width=width)) == width


@pytest.mark.parametrize("room", [20, 40, 47, 55, 79])
def test_a_line_never_exceeds_the_terminal(room):
    assert cells(bar_line("Epoch 3/10", 7, 100, 20.0, room=room)) <= room
    assert cells(bar_line("Epoch 3/10", 7, 100, 20.0, width=100, room=room)) <= room
    assert cells(field_line(fields(loss=1.0, reward=0.5, lr=1e-5, step="10/1000"), room=room)) <= room


def test_times_and_paces():
    assert "[1:02:05<1:02:05, 74.50s/batch]" in bar_line("Epoch 1", 50, 100, 3725.0)
    assert "[00:02<00:02, 25.00batch/s]" in bar_line("Epoch 1", 50, 100, 2.0)
    assert "[00:00<?, ?batch/s]" in bar_line("Epoch 1", 0, 100, 0.0)
    assert "0/0 [00:00<00:00" in bar_line("Epoch 1", 0, 0, 0.0)
    assert "120/100 [00:12<00:00" in bar_line("Epoch 1", 120, 100, 12.0)


def test_an_unknown_length_has_no_bar():
    assert bar_line("Evaluating", 37, None, 74.0) == "Evaluating 37 [01:14, 2.00s/batch]"


def test_a_plain_line_says_the_same_without_a_bar():
    line = plain_line("Epoch 3/10", 100, 100, 332.0, fields=fields(loss=2.34561, lr=1e-5))
    assert line == "Epoch 3/10  100/100 [05:32<00:00, 3.32s/batch]  loss: 2.3456  lr: 1.00e-05"


@pytest.mark.parametrize(
    ("name", "value", "text"),
    [("loss", 0.0, "0.0000"), ("loss", float("nan"), "nan"), ("loss", 1e-8, "1e-08"), ("tokens", 123456, "123456"),
     ("lr", 0.0, "0.00e+00"), ("phase", "judge", "judge"), ("loss", 1e30, "1e+30")],
)  # fmt: skip
def test_numbers_of_all_sizes(name, value, text):
    assert field_text(name, value) == text
