"""The Epoch view: where epochs end, how rows become one number, trends, and what is left out."""

from __future__ import annotations

import json
import re

import numpy as np
import pytest

import rlvitals
from rlvitals import values
from rlvitals.errors import ConfigError


def record(path, rows, **settings):
    """A run of rows at steps 1, 2, ..."""
    with rlvitals.start(path, monitor=False, **settings) as run:
        for step, row in enumerate(rows, start=1):
            run.log(row, step=step)
    return rlvitals.open_run(path)


def metric(epochs, name):
    return [epoch.metrics.get(name) for epoch in epochs]


@pytest.fixture
def batches():
    """Rewards of two epochs in batches of very different sizes."""
    rng = np.random.default_rng(3)
    sizes = [[64, 64, 1], [50, 3, 7]]
    return [[rng.normal(epoch, 1 + epoch, size) for size in per_epoch] for epoch, per_epoch in enumerate(sizes)]


def test_a_share_of_the_data_belongs_to_the_epoch_it_completes(tmp_path):
    view = record(tmp_path, [{"epoch": share, "loss": 1.0} for share in (0.02, 0.5, 1.0, 1.01, 2.0, 2.4)])
    assert [(epoch.epoch, epoch.first_step, epoch.last_step) for epoch in view.epochs()] == [
        (1, 1, 3),
        (2, 4, 5),
        (3, 6, 6),
    ]


def test_whole_numbers_are_labels_and_stay_as_they_were_logged(tmp_path):
    view = record(tmp_path, [{"epoch": epoch, "loss": 1.0} for epoch in (0, 0, 1, 1, 2)])
    assert [(epoch.epoch, epoch.rows) for epoch in view.epochs()] == [(0, 2), (1, 2), (2, 1)]


def test_a_row_without_an_epoch_is_in_that_of_the_row_before(tmp_path):
    rows = [{"loss": 1.0}, {"epoch": 1, "loss": 1.0}, {"loss": 1.0}, {"epoch": 2, "loss": 1.0}, {"loss": 1.0}]
    assert [epoch.rows for epoch in record(tmp_path, rows).epochs()] == [3, 2]


def test_an_epoch_may_be_given_in_steps(tmp_path):
    rows = [{"loss": float(step)} for step in range(1, 8)]
    view = record(tmp_path / "asked", rows)
    assert [(epoch.first_step, epoch.last_step) for epoch in view.epochs(steps_per_epoch=3)] == [(1, 3), (4, 6), (7, 7)]
    in_settings = record(tmp_path / "settings", rows, config={"data": {"steps_per_epoch": 4}})
    assert metric(in_settings.epochs(), "Epoch/AvgLoss") == [2.5, 6.0]


def test_a_row_at_step_0_that_the_training_does_not_go_on_with_stands_before_its_steps(tmp_path):
    with rlvitals.start(tmp_path, monitor=False) as run:
        run.log({"sft.loss": 0.5}, step=0)
        for step in range(1, 7):
            run.log({"loss": float(step)}, step=step)
    epochs = rlvitals.open_run(tmp_path).epochs(steps_per_epoch=3)
    assert [(epoch.first_step, epoch.last_step) for epoch in epochs] == [(0, 3), (4, 6)]
    assert metric(epochs, "Epoch/AvgLoss") == [2.0, 5.0]


def test_steps_that_count_from_nought_are_not_shifted(tmp_path):
    with rlvitals.start(tmp_path, monitor=False) as run:
        for step in range(6):
            run.log({"loss": float(step)}, step=step)
    assert metric(rlvitals.open_run(tmp_path).epochs(steps_per_epoch=3), "Epoch/AvgLoss") == [1.0, 4.0]


def test_any_metric_may_tell_the_epoch(tmp_path):
    view = record(tmp_path, [{"epoch": 1, "my/pass": step // 2, "loss": float(step)} for step in range(4)])
    assert metric(view.epochs(by="my/pass"), "Epoch/AvgLoss") == [0.5, 2.5]


def test_a_run_without_epochs_says_what_to_give(tmp_path):
    view = record(tmp_path, [{"loss": 1.0}])
    with pytest.raises(ConfigError, match="--steps-per-epoch"):
        view.epochs()
    with pytest.raises(ConfigError, match="at least 1"):
        view.epochs(steps_per_epoch=0)


def test_values_with_counts_give_the_mean_and_variance_of_all_samples(tmp_path, batches):
    rows = [
        {"epoch": epoch, "reward": values.mean(batch), "loss": values.mean(batch * 2)}
        for epoch, per_epoch in enumerate(batches)
        for batch in per_epoch
    ]
    epochs = record(tmp_path, rows).epochs()
    everything = [np.concatenate(per_epoch) for per_epoch in batches]
    assert metric(epochs, "Epoch/AvgReward") == pytest.approx([samples.mean() for samples in everything])
    assert metric(epochs, "Epoch/RewardVariance") == pytest.approx([samples.var() for samples in everything])
    assert metric(epochs, "Epoch/AvgLoss") == pytest.approx([2 * samples.mean() for samples in everything])
    assert metric(epochs, "Epoch/NumSamples") == [129, 60]
    assert epochs.weighted_by == "counts"
    assert epochs.variance == "every sample (within rows and between them)"


@pytest.mark.parametrize("counter", ["num_samples", "episode"])
def test_plain_numbers_are_weighted_by_the_samples_of_their_rows(tmp_path, batches, counter):
    rows, total = [], 0
    for epoch, per_epoch in enumerate(batches):
        for batch in per_epoch:
            total += len(batch)
            count = len(batch) if counter == "num_samples" else total
            rows.append({"epoch": epoch, "objective/scores": batch.mean(), counter: count})
    epochs = record(tmp_path, rows, framework="trl_ppo").epochs()
    everything = [np.concatenate(per_epoch) for per_epoch in batches]
    assert metric(epochs, "Epoch/AvgReward") == pytest.approx([samples.mean() for samples in everything])
    assert metric(epochs, "Epoch/NumSamples") == [129, 60]
    assert epochs.weighted_by == "samples"


def test_a_log_that_begins_in_the_middle_of_a_run_does_not_count_what_came_before(tmp_path):
    with rlvitals.start(tmp_path, framework="trl_ppo", monitor=False) as run:
        for step in range(500, 504):
            run.log({"epoch": 7, "objective/scores": 1.0, "episode": 8 * step}, step=step)
    assert metric(rlvitals.open_run(tmp_path).epochs(), "Epoch/NumSamples") == [32]


def test_a_logged_spread_gives_the_variance_within_rows(tmp_path):
    rng = np.random.default_rng(5)
    batches = [rng.normal(place, 1, 16) for place in range(4)]
    rows = [
        {"epoch": 1, "reward": batch.mean(), "reward_std": batch.std(ddof=1), "batch_size": len(batch)}
        for batch in batches
    ]
    epochs = record(tmp_path, rows, framework="trl_grpo").epochs()
    assert metric(epochs, "Epoch/RewardVariance") == pytest.approx([np.concatenate(batches).var()])
    assert epochs.variance == "reward_std within rows and reward between them"


def test_without_samples_rows_weigh_alike_and_the_variance_is_named_for_what_it_is(tmp_path):
    epochs = record(tmp_path, [{"epoch": 1, "reward": reward} for reward in (1.0, 2.0, 6.0)]).epochs()
    assert metric(epochs, "Epoch/AvgReward") == [3.0]
    assert metric(epochs, "Epoch/RewardVariance") == pytest.approx([np.var([1, 2, 6])])
    assert epochs.weighted_by == "rows"
    assert "what varies within a row is not known" in epochs.variance
    assert "Epoch/NumSamples" not in epochs[0].metrics


@pytest.mark.parametrize("reward", [0.5, values.mean([0.5])])
def test_one_row_or_one_sample_has_no_variance(tmp_path, reward):
    epochs = record(tmp_path, [{"epoch": epoch, "reward": reward} for epoch in (1, 2)]).epochs()
    assert metric(epochs, "Epoch/RewardVariance") == [None, None]
    assert epochs.variance is None


def test_trends_are_positive_when_it_gets_better_and_absent_at_first(tmp_path):
    rows = [
        {"epoch": 1, "reward": 0.2, "loss": 2.0},
        {"epoch": 2, "reward": 0.5, "loss": 1.5},
        {"epoch": 3, "loss": 1.75},
    ]
    epochs = record(tmp_path, rows).epochs()
    assert metric(epochs, "Epoch/RewardTrend") == [None, pytest.approx(0.3), None]
    assert metric(epochs, "Epoch/LossTrend") == [None, 0.5, -0.25]


def test_each_metric_is_reduced_as_the_catalogue_says(tmp_path):
    rows = [
        {
            "epoch": 1,
            "critic/score/max": 3.0,
            "critic/score/min": -1.0,
            "Epoch/APITokens": 100,
            "actor/lr": 1e-6,
            "mine": 1.0,
        },
        {
            "epoch": 1,
            "critic/score/max": 9.0,
            "critic/score/min": -7.0,
            "Epoch/APITokens": 50,
            "actor/lr": 2e-6,
            "mine": 3.0,
        },
    ]
    epoch = record(tmp_path, rows).epochs()[0]
    assert (epoch.values["critic/score/max"], epoch.values["critic/score/min"]) == (9.0, -7.0)
    assert epoch.metrics["Epoch/APITokens"] == 150
    assert epoch.values["mine"] == 2.0


def test_rows_that_come_late_are_put_in_their_place(tmp_path):
    with rlvitals.start(tmp_path, framework="trl_ppo", monitor=False) as run:
        for step in (1, 3, 2, 4):
            run.log({"epoch": (step + 1) // 2, "objective/scores": float(step), "episode": step * step}, step=step)
    epochs = rlvitals.open_run(tmp_path).epochs()
    assert metric(epochs, "Epoch/NumSamples") == [4, 12]
    assert metric(epochs, "Epoch/AvgReward") == pytest.approx([(1 * 1 + 2 * 3) / 4, (3 * 5 + 4 * 7) / 12])


def test_abandoned_rows_take_no_part(tmp_path):
    record(tmp_path, [{"epoch": 1, "reward": 0.1}, {"epoch": 1, "reward": 0.1}, {"epoch": 2, "reward": 99.0}])
    with rlvitals.start(tmp_path, resume=2, monitor=False) as run:
        run.log({"epoch": 2, "reward": 0.3}, step=3)
    assert metric(rlvitals.open_run(tmp_path).epochs(), "Epoch/AvgReward") == pytest.approx([0.1, 0.3])


def test_other_ranks_samples_count_too(tmp_path):
    record(tmp_path, [{"epoch": epoch, "reward": values.mean([1.0, 1.0])} for epoch in (1, 2)])
    other = tmp_path / "logs" / "ranks" / "rank-1.jsonl"
    other.parent.mkdir()
    lines = [{"step": step, "attempt": 1, "reward": 4.0, "_m": {"reward": [4, 4.0, 0.0, 4.0, 4.0]}} for step in (1, 2)]
    other.write_text("".join(json.dumps(line) + "\n" for line in lines))
    epochs = rlvitals.open_run(tmp_path).epochs()
    assert metric(epochs, "Epoch/AvgReward") == pytest.approx([3.0, 3.0])
    assert metric(epochs, "Epoch/NumSamples") == [6, 6]


def test_what_is_not_finite_takes_no_part_and_is_counted(tmp_path):
    rows = [{"epoch": 1, "loss": loss} for loss in (1.0, float("nan"), 3.0, float("inf"))]
    epoch = record(tmp_path, rows).epochs()[0]
    assert epoch.metrics["Epoch/AvgLoss"] == 2.0
    assert epoch.nonfinite == {"loss": 2}


def test_the_verdict_is_about_the_reward_and_says_why(tmp_path):
    rng = np.random.default_rng(0)
    rows = [
        {"epoch": 1 + step // 20, "loss": rng.normal(), "reward": 0.1 * (step // 20) + 0.05 * rng.normal()}
        for step in range(100)
    ]
    epochs = record(tmp_path, rows).epochs()
    assert epochs.verdict == "improving"
    assert re.match(r"reward rose by 0\.19\d+ over the last 3 epochs, more than its noise \(0\.0[23]\d+\)", epochs.why)


def test_a_run_without_a_reward_is_judged_by_its_margin_or_its_loss(tmp_path):
    falling = record(tmp_path / "loss", [{"epoch": epoch, "loss": 3.0 - epoch / 2} for epoch in range(1, 6)]).epochs()
    assert (falling.verdict, "the loss" in falling.why) == ("improving", True)
    margins = [{"epoch": epoch, "loss": 0.5, "rewards/margins": epoch / 5} for epoch in range(1, 6)]
    assert record(tmp_path / "margin", margins).epochs().why.startswith("rewards/margins rose")
    nothing = record(tmp_path / "nothing", [{"epoch": 1, "mine": 1.0}]).epochs()
    assert (nothing.verdict, nothing.why) == ("cannot judge", "the run logs neither a reward nor a loss")


def test_everything_is_plain_data_too(tmp_path):
    epochs = record(tmp_path, [{"epoch": epoch, "reward": 0.5} for epoch in (1, 2, 3)]).epochs()
    facts = json.loads(json.dumps(epochs.to_dict()))
    assert [row["epoch"] for row in facts["epochs"]] == [1, 2, 3]
    assert facts["verdict"] == epochs.verdict
    assert (len(epochs), epochs[0].epoch, [epoch.epoch for epoch in epochs[1:]]) == (3, 1, [2, 3])
