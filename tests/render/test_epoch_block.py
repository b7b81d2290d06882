"""The block after an epoch is identical to the one that the RLHF tracker's guide prints."""

from __future__ import annotations

import math
import re

import pytest

from rlvitals import catalog
from rlvitals.render.epoch_block import epoch_block, time_left

DOCUMENT = """\
================================================================================
EPOCH 3 SUMMARY
================================================================================

[Training Metrics]
  Loss:          2.345678
  Reward:        0.782145
  KL Divergence: 0.012345
  Entropy:       2.567890
  Learning Rate: 1.00e-05

[Evaluation Metrics]
  BERTScore:  0.5234
  CodeBLEU:   0.3891
  BLEU:       0.2678
  ROUGE:      0.3456
  RUBY:       0.2134

[Performance]
  Epoch Time:             332.50s
  Samples/sec:            4.82
  Estimated Time Remaining: 38.9 min (2334s)

================================================================================"""

METRICS = {
    "loss": 2.345678, "reward": 0.782145, "kl_divergence": 0.012345, "entropy": 2.567890, "learning_rate": 1e-5,
    "bertscore": 0.5234, "codebleu": 0.3891, "bleu": 0.2678, "rouge": 0.3456, "ruby": 0.2134,
    "epoch_time": 332.5, "samples_per_second": 4.82,
}  # fmt: skip


def test_it_is_the_guides_block():
    # An epoch takes 333.4 seconds on average (the third took 332.5), and seven are left.
    left = time_left([330.0, 337.7, 332.5], 7)
    assert epoch_block(3, METRICS, left) == DOCUMENT


def test_the_guide_itself_prints_this_block(shared):
    guide = (shared / "reference" / "rlhf-metrics-tracker.ru.md").read_text()
    assert f"```\n{DOCUMENT}\n```" in guide


def test_the_order_in_which_metrics_came_does_not_matter():
    assert epoch_block(3, dict(reversed(METRICS.items())), 2334.0) == DOCUMENT


def lines_of(block):
    return [line for line in block.splitlines() if line.startswith(("[", "  "))]


def test_sections_without_numbers_are_left_out():
    assert lines_of(epoch_block(1, {"bleu": 0.25})) == ["[Evaluation Metrics]", "  BLEU:       0.2500"]
    assert lines_of(epoch_block(1, {})) == []


def test_zeros_are_shown():
    block = epoch_block(1, {"loss": 0.0, "reward": 0, "bertscore": 0.0, "ruby": 0, "epoch_time": 0.0})
    assert lines_of(block) == [
        "[Training Metrics]",
        "  Loss:          0.000000",
        "  Reward:        0.000000",
        "[Evaluation Metrics]",
        "  BERTScore:  0.0000",
        "  RUBY:       0.0000",
        "[Performance]",
        "  Epoch Time:             0.00s",
    ]


def test_numbers_that_are_none_are_named():
    assert lines_of(epoch_block(1, {"loss": math.nan, "reward": -math.inf}))[1:] == [
        "  Loss:          nan",
        "  Reward:        -inf",
    ]


def test_further_metrics_stand_in_the_section_they_belong_to():
    block = epoch_block(1, {"grad_norm": 1.5, "eval_loss": 0.25, "time/rollout": 12.5, "my/own": 12345.0})
    assert lines_of(block) == [
        "[Training Metrics]",
        "  grad_norm:     1.5000",
        "  my/own:        12,345",
        "[Evaluation Metrics]",
        "  eval_loss:  0.2500",
        "[Performance]",
        "  time/rollout:           12.5000",
    ]


def test_a_name_or_a_text_cannot_move_the_cursor():
    block = epoch_block(1, {"evil\x1b[2J": 1.0, "note": "a\x1b[Hb"})
    assert "\x1b" not in block


@pytest.mark.parametrize(
    ("times", "remaining", "seconds"),
    [([100.0, 200.0], 4, 600.0), ([100.0, math.nan], 2, 200.0), ([], 3, None), ([5.0], 0, None), ([5.0], None, None)],
)
def test_the_time_left_is_the_mean_epoch_times_those_to_come(times, remaining, seconds):
    assert time_left(times, remaining) == seconds


def test_every_label_of_the_guide_is_a_metric_of_the_catalogue():
    for name in METRICS:
        assert catalog.reader("rlhf_tracker").matches(name), name
    assert len(re.findall(r"^  \w", DOCUMENT, re.MULTILINE)) == len(METRICS) + 1
