"""MetricsTracker keeps, shows and judges the logged epochs, and never disturbs a training."""

from __future__ import annotations

import json
import logging
import math
import os
import subprocess
import sys

import numpy as np
import pandas as pd
import pytest

import rlvitals
from conftest import fill
from rlvitals.errors import ConfigError

PLOTS = ("training_progress.png", "policy_metrics.png", "evaluation_metrics.png")


@pytest.fixture
def folder(tmp_path):
    return tmp_path / "metrics"


def tracker_on(folder, **settings) -> rlvitals.MetricsTracker:
    return rlvitals.MetricsTracker(folder, **{"display": "none", "plots": False, **settings})


def table(folder) -> pd.DataFrame:
    return pd.read_csv(folder / "training_metrics.csv")


def log(tracker, rewards, losses=None):
    for epoch, reward in enumerate(rewards, 1):
        tracker.log_epoch(epoch=epoch, reward=reward, loss=losses[epoch - 1] if losses else 1.0 / epoch)


def test_everything_the_guide_names_is_on_disk_when_log_epoch_returns(folder):
    tracker = tracker_on(folder)
    tracker.log_epoch(
        epoch=1, loss=2.3, reward=0.7, kl_divergence=0.01, entropy=2.5, learning_rate=1e-5, epoch_time=332.5,
        samples_per_second=4.82,
    )  # fmt: skip
    tracker.log_epoch(epoch=1, bertscore=0.5, codebleu=0.4, bleu=0.3, rouge=0.35, ruby=0.2)
    frame = table(folder)
    assert list(frame.columns) == [
        "epoch", "timestamp", "loss", "reward", "kl_divergence", "entropy", "learning_rate", "epoch_time",
        "samples_per_second", "bertscore", "codebleu", "bleu", "rouge", "ruby",
    ]  # fmt: skip
    values = [1, 2.3, 0.7, 0.01, 2.5, 1e-5, 332.5, 4.82, 0.5, 0.4, 0.3, 0.35, 0.2]
    assert frame.drop(columns="timestamp").values.tolist() == [values]
    assert json.loads((folder / "training_metrics.json").read_text())[0]["ruby"] == 0.2


def test_a_new_tracker_goes_on_where_the_old_one_was(folder):
    first = tracker_on(folder)
    log(first, [0.1, 0.2])
    second = tracker_on(folder)
    assert [row["reward"] for row in second.history] == [0.1, 0.2]
    assert second.get_best_metrics()["best_reward"] == 0.2
    second.log_epoch(epoch=3, reward=0.3, loss=0.1)
    assert list(table(folder)["reward"]) == [0.1, 0.2, 0.3]


def test_scores_of_an_earlier_epoch_may_come_from_another_process(folder, child_environment):
    tracker = tracker_on(folder)
    log(tracker, [0.1, 0.2])
    code = (
        "import sys, rlvitals\n"
        "rlvitals.MetricsTracker(sys.argv[1], display='none', plots=False).log_epoch(epoch=1, bertscore=0.5)"
    )
    subprocess.run([sys.executable, "-c", code, folder], check=True, env=child_environment)
    tracker.log_epoch(epoch=3, loss=0.1, reward=0.3)
    frame = table(folder)
    assert frame["bertscore"][0] == 0.5
    assert list(frame["reward"]) == [0.1, 0.2, 0.3]
    assert tracker.history[0]["bertscore"] == 0.5


def test_the_best_is_the_first_of_equals_and_zeros_count(folder):
    tracker = tracker_on(folder)
    tracker.log_epoch(epoch=1, loss=0.0, reward=-1.0, bleu=0.0, rouge=0.0)
    tracker.log_epoch(epoch=2, loss=0.5, reward=0.0, rouge=0.4, ruby=0.1, eval_loss=0.9, grad_norm=3.0)
    tracker.log_epoch(epoch=3, loss=math.nan, reward=math.inf, rouge=0.4, eval_loss=1.1, epoch_time=5.0)
    assert tracker.get_best_metrics() == {
        "lowest_loss": 0.0, "lowest_loss_epoch": 1, "best_reward": 0.0, "best_reward_epoch": 2,
        "best_bleu": 0.0, "best_bleu_epoch": 1, "best_rouge": 0.4, "best_rouge_epoch": 2,
        "best_ruby": 0.1, "best_ruby_epoch": 2, "lowest_eval_loss": 0.9, "lowest_eval_loss_epoch": 2,
    }  # fmt: skip


def test_the_best_of_nothing_is_none(folder):
    assert tracker_on(folder).get_best_metrics() == {
        "lowest_loss": None,
        "lowest_loss_epoch": None,
        "best_reward": None,
        "best_reward_epoch": None,
    }


def test_the_summary_has_the_guides_keys_and_the_means(folder):
    tracker = tracker_on(folder)
    tracker.log_epoch(epoch=1, loss=2.0, reward=0.1, epoch_time=10.0)
    tracker.log_epoch(epoch=2, loss=1.0, reward=0.4, epoch_time=20.0, bleu=0.5)
    summary = tracker.export_summary()
    assert summary["total_epochs"] == 2
    assert summary["total_training_time"] == 30.0
    assert summary["average_epoch_time"] == 15.0
    assert summary["average_metrics"] == {"loss": 1.5, "reward": 0.25, "epoch_time": 15.0, "bleu": 0.5}
    assert summary["best_metrics"] == tracker.get_best_metrics()
    assert {**summary["final_metrics"], "timestamp": 0} == {
        "epoch": 2, "timestamp": 0, "loss": 1.0, "reward": 0.4, "epoch_time": 20.0, "bleu": 0.5,
    }  # fmt: skip
    assert summary["metrics_file"] == str(folder / "training_metrics.csv")
    assert summary["plots_dir"] == str(folder / "plots")


def test_the_summary_of_nothing(folder):
    summary = tracker_on(folder).export_summary()
    assert (summary["total_epochs"], summary["total_training_time"], summary["final_metrics"]) == (0, 0.0, {})
    assert summary["average_epoch_time"] is None


@pytest.mark.parametrize(("logged", "left"), [([], 10), ([1, 2, 3], 7), ([0, 1, 2], 7), ([5, 6], 4), ([11], 0)])
def test_remaining_epochs_however_they_are_counted(folder, logged, left):
    tracker = tracker_on(folder)
    assert tracker.get_remaining_epochs() is None
    tracker.set_total_epochs(10)
    for epoch in logged:
        tracker.log_epoch(epoch=epoch, loss=1.0)
    assert tracker.get_remaining_epochs() == left


def test_files_are_written_every_n_epochs_and_for_the_last_one(folder):
    tracker = tracker_on(folder, save_every_n_epochs=3, total_epochs=7)
    seen = []
    for epoch in range(1, 8):
        tracker.log_epoch(epoch=epoch, loss=1.0)
        seen.append(len(table(folder)) if (folder / "training_metrics.csv").exists() else 0)
    assert seen == [0, 0, 3, 3, 3, 6, 7]
    tracker.log_epoch(epoch=2, bleu=0.5)  # this row is already in the files
    assert table(folder)["bleu"][1] == 0.5


def test_flush_writes_what_was_not_due(folder):
    with tracker_on(folder, save_every_n_epochs=10) as tracker:
        tracker.log_epoch(epoch=1, loss=1.0)
        assert not (folder / "training_metrics.csv").exists()
        tracker.flush()
        assert list(table(folder)["epoch"]) == [1]
        tracker.log_epoch(epoch=2, loss=1.0)
    assert list(table(folder)["epoch"]) == [1, 2]


def test_what_a_killed_training_had_not_saved_is_saved_by_the_next_tracker(folder):
    tracker_on(folder, save_every_n_epochs=10).log_epoch(epoch=1, loss=1.0)  # never closed
    assert not (folder / "training_metrics.csv").exists()
    tracker_on(folder)
    assert list(table(folder)["epoch"]) == [1]


def test_only_the_last_epochs_are_in_the_files_and_all_in_the_record(folder):
    tracker = tracker_on(folder, keep_last_epochs=2)
    log(tracker, [0.9, 0.1, 0.2, 0.3])
    assert list(table(folder)["epoch"]) == [3, 4]
    assert tracker.get_best_metrics()["best_reward_epoch"] == 1
    assert tracker.export_summary()["total_epochs"] == 4
    assert len(tracker_on(folder, keep_last_epochs=2).history) == 4


@pytest.mark.slow
def test_numpy_and_torch_numbers_are_taken_and_others_are_left_out(folder, caplog):
    torch = pytest.importorskip("torch")
    tracker = tracker_on(folder)
    tracker.log_epoch(
        epoch=np.int64(1), loss=np.float32(0.5), reward=torch.tensor(0.25), entropy=None, ok=True, bad=[1, 2]
    )
    assert {**tracker.history[0], "timestamp": 0} == {"epoch": 1, "timestamp": 0, "loss": 0.5, "reward": 0.25, "ok": 1}
    assert "'bad' is dropped" in caplog.text


@pytest.mark.parametrize("epoch", [1.5, "one", None, math.nan, [1], 2**60])
def test_an_epoch_that_is_no_whole_number_is_reported_and_dropped(folder, caplog, epoch):
    tracker = tracker_on(folder)
    tracker.log_epoch(epoch=epoch, loss=1.0)
    tracker.log_epoch(epoch=epoch, loss=1.0)
    assert tracker.history == []
    assert caplog.text.count("epoch must be a whole number") == 1


@pytest.mark.parametrize(
    "settings",
    [{"save_every_n_epochs": 0}, {"keep_last_epochs": 0}, {"keep_last_epochs": 1.5}, {"display": "loud"},
     {"early_stopping": -1}, {"total_epochs": 0}],
)  # fmt: skip
def test_a_setting_that_cannot_be_meant_is_an_error_at_the_start(folder, settings):
    with pytest.raises(ConfigError):
        tracker_on(folder, **settings)


def test_a_file_as_output_dir_is_an_error_at_the_start(tmp_path):
    (tmp_path / "taken").write_text("")
    with pytest.raises(ConfigError, match="is a file"):
        tracker_on(tmp_path / "taken")


# What is printed.


def test_the_block_goes_to_stderr_with_the_late_scores_and_the_time_left(folder, capsys):
    tracker = tracker_on(folder, display="auto")
    tracker.set_total_epochs(4)
    tracker.log_epoch(epoch=1, loss=2.0, epoch_time=60.0)
    printed = capsys.readouterr()
    assert printed.out == ""
    assert "EPOCH 1 SUMMARY" in printed.err
    assert "  Loss:          2.000000\n" in printed.err
    assert "Estimated Time Remaining: 3.0 min (180s)" in printed.err
    assert "[Evaluation Metrics]" not in printed.err
    tracker.log_epoch(epoch=1, bertscore=0.0)
    printed = capsys.readouterr().err
    assert "[Evaluation Metrics]\n  BERTScore:  0.0000\n" in printed
    assert "  Loss:          2.000000\n" in printed


def test_display_json_is_one_strict_line_and_none_is_silent(folder, capsys):
    tracker_on(folder, display="json").log_epoch(epoch=1, loss=2.0, reward=math.nan)
    assert json.loads(capsys.readouterr().err) == {"epoch": 1, "loss": 2.0, "reward": "nan"}
    tracker_on(folder, display="none").log_epoch(epoch=2, loss=2.0)
    assert capsys.readouterr() == ("", "")


def test_a_closed_stderr_costs_nothing(folder, monkeypatch):
    stream = open(os.devnull, "w")  # noqa: SIM115
    stream.close()
    monkeypatch.setattr(sys, "stderr", stream)
    tracker = tracker_on(folder, display="auto")
    tracker.log_epoch(epoch=1, loss=2.0)
    monkeypatch.setattr(sys, "stderr", None)
    tracker.log_epoch(epoch=2, loss=2.0)
    assert list(table(folder)["epoch"]) == [1, 2]


# Early stopping.


def test_five_epochs_without_a_better_reward_advise_to_stop(folder, capsys):
    tracker = tracker_on(folder, display="auto")
    stops = []
    for epoch, reward in enumerate([0.1, 0.2, 0.4, 0.3, 0.4, 0.39, 0.2, 0.4, 0.5], 1):
        tracker.log_epoch(epoch=epoch, loss=1.0 / epoch, reward=reward)
        stops.append(tracker.should_stop)
    assert stops == [False] * 7 + [True, False]  # the last epoch is better
    assert [(found.rule, found.step, found.action) for found in tracker.findings] == [("early_stop_reward", 8, "stop")]
    assert capsys.readouterr().err.count("the reward no longer rises") == 1


def test_a_second_plateau_stops_too(folder):
    tracker = tracker_on(folder)
    log(tracker, [0.1, 0.2, *[0.2] * 5])
    assert tracker.should_stop
    for epoch in range(8, 13):
        tracker.log_epoch(epoch=epoch, loss=0.1 / epoch, reward=0.3)
    assert not tracker.should_stop  # epoch 8 was better; only four epochs follow
    tracker.log_epoch(epoch=13, loss=0.001, reward=0.3)
    assert tracker.should_stop


def test_the_patience_is_a_setting_and_false_is_silence(folder, tmp_path):
    patient = tracker_on(folder, early_stopping=8)
    log(patient, [0.4] * 8)
    assert not patient.should_stop
    patient.log_epoch(epoch=9, reward=0.4, loss=0.01)
    assert patient.should_stop
    silent = tracker_on(tmp_path / "other", early_stopping=False)
    log(silent, [0.4] * 20)
    assert (silent.should_stop, silent.findings) == (False, [])


def test_a_loss_that_no_longer_falls_points_at_the_learning_rate(folder):
    tracker = tracker_on(folder)
    log(tracker, [0.1 * epoch for epoch in range(10)], [1.0, 0.9, 0.8, *[0.81] * 7])
    assert [(found.rule, found.kind) for found in tracker.findings] == [("early_stop_loss", "lr_too_low")]
    assert not tracker.should_stop


def test_a_loss_that_is_no_number_is_critical(folder):
    tracker = tracker_on(folder)
    log(tracker, [0.1, 0.2, 0.3], [1.0, 0.9, math.nan])
    assert [(found.kind, found.severity) for found in tracker.findings] == [("nonfinite", "critical")]


def test_findings_before_a_restart_are_known_and_not_reported_again(folder, capsys):
    log(tracker_on(folder, display="auto"), [0.4] * 6)
    assert "no longer rises" in capsys.readouterr().err
    again = tracker_on(folder, display="auto")
    assert again.should_stop
    again.log_epoch(epoch=7, loss=0.1, reward=0.4)
    assert "no longer rises" not in capsys.readouterr().err
    assert len(again.findings) == 1


# Together with a run.


def test_in_a_runs_metrics_folder_the_run_has_the_findings_in_its_own_steps(tmp_path):
    with rlvitals.start(tmp_path / "run", actions="act") as run:
        tracker = tracker_on(tmp_path / "run" / "metrics")
        requests = []
        for epoch in range(1, 8):
            run.log({"my_loss": 1.0 / epoch}, step=epoch * 100)
            tracker.log_epoch(epoch=epoch, loss=1.0 / epoch, reward=0.4)
            requests.append(run.request())
        (finding,) = [found for found in run.findings if found.rule == "early_stop_reward"]
        assert (finding.step, finding.onset_step, finding.evidence["epoch"]) == (600, 200, 6.0)
        assert [request is not None for request in requests] == [False] * 5 + [True, False]
        assert "no longer rises" in requests[5].reason
    lines = [json.loads(line) for line in (tmp_path / "run" / "metrics" / "epochs.jsonl").read_text().splitlines()]
    assert [line["step"] for line in lines] == [100 * epoch for epoch in range(1, 8)]
    assert [found.rule for found in rlvitals.open_run(tmp_path / "run").findings] == ["early_stop_reward"]
    assert len(rlvitals.open_run(tmp_path / "run").series("my_loss")[0]) == 7


def test_a_run_without_a_monitor_leaves_the_telling_to_the_tracker(tmp_path, capsys):
    with rlvitals.start(tmp_path / "run", monitor=False, display="plain") as run:
        tracker = tracker_on(tmp_path / "run" / "metrics", display="auto")
        log(tracker, [0.4] * 7)
        assert run.findings == []
    assert capsys.readouterr().err.count("no longer rises") == 1


def test_a_run_that_shows_its_findings_shows_them_once(tmp_path, capsys):
    with rlvitals.start(tmp_path / "run", display="plain") as run:
        run.log({"my_loss": 1.0}, step=1)
        tracker = tracker_on(tmp_path / "run" / "metrics", display="auto")
        log(tracker, [0.4] * 7)
    assert capsys.readouterr().err.count("⚠ the reward no longer rises") == 1


def test_a_folder_elsewhere_is_no_business_of_the_run(tmp_path):
    with rlvitals.start(tmp_path / "run") as run:
        run.log({"loss": 1.0}, step=1)
        tracker = tracker_on(tmp_path / "elsewhere" / "metrics")
        log(tracker, [0.4] * 7)
        assert run.findings == []


def test_overwriting_a_run_removes_its_epochs(tmp_path):
    with rlvitals.start(tmp_path / "run"):
        tracker_on(tmp_path / "run" / "metrics").log_epoch(epoch=1, loss=1.0)
    (tmp_path / "run" / "metrics" / "mine.txt").write_text("mine")
    with rlvitals.start(tmp_path / "run", overwrite=True):
        assert tracker_on(tmp_path / "run" / "metrics").history == []
    assert [path.name for path in (tmp_path / "run" / "metrics").iterdir()] == ["mine.txt"]


# Ranks and forks.


def test_a_rank_other_than_0_knows_its_epochs_and_writes_nothing(folder, monkeypatch):
    monkeypatch.setenv("WORLD_SIZE", "2")
    monkeypatch.setenv("RANK", "1")
    tracker = tracker_on(folder, plots=True)
    log(tracker, [0.4] * 6)
    tracker.close()
    assert tracker.should_stop
    assert tracker.get_best_metrics()["best_reward"] == 0.4
    assert not folder.exists()


@pytest.mark.skipif(not hasattr(os, "fork"), reason="needs fork")
def test_a_forked_process_leaves_the_files_to_its_parent(folder):
    code = (
        "import os, sys, rlvitals\n"
        "tracker = rlvitals.MetricsTracker(sys.argv[1], display='none', plots=False)\n"
        "tracker.log_epoch(epoch=1, loss=1.0)\n"
        "if os.fork() == 0:\n"
        "    tracker.log_epoch(epoch=2, loss=1.0); tracker.flush(); sys.exit()\n"
        "os.wait(); tracker.log_epoch(epoch=3, loss=1.0)\n"
    )
    subprocess.run([sys.executable, "-c", code, folder], check=True, capture_output=True)
    assert list(table(folder)["epoch"]) == [1, 3]


# Disks.


def test_a_full_disk_is_reported_once_and_loses_no_epoch(small_disk, caplog):
    folder = small_disk / "metrics"
    tracker = tracker_on(folder)
    tracker.log_epoch(epoch=1, loss=1.0)
    filler = fill(small_disk)
    for epoch in range(2, 40):
        tracker.log_epoch(epoch=epoch, loss=1.0 / epoch, reward=0.1 * epoch)
    assert caplog.text.count("cannot write") == 1
    assert len(tracker.history) == 39
    assert list(table(folder)["epoch"]) == [1]
    filler.unlink()
    tracker.log_epoch(epoch=40, loss=0.01, reward=4.0)
    assert list(table(folder)["epoch"]) == list(range(1, 41))
    assert len(tracker_on(folder).history) == 40
    assert "can be written again" in caplog.text


def test_a_read_only_folder_can_be_read_and_hurts_no_training(small_disk, caplog):
    folder = small_disk / "metrics"
    log(tracker_on(folder), [0.1, 0.2])
    subprocess.run(["mount", "-o", "remount,ro", small_disk], check=True)
    tracker = tracker_on(folder)
    assert tracker.get_best_metrics()["best_reward"] == 0.2
    tracker.log_epoch(epoch=3, loss=0.1, reward=0.3)
    tracker.close()
    assert len(tracker.history) == 3
    assert caplog.text.count("cannot write") == 1
    subprocess.run(["mount", "-o", "remount,rw", small_disk], check=True)
    tracker.flush()
    assert list(table(folder)["epoch"]) == [1, 2, 3]


# Plots.


def is_whole_png(path) -> bool:
    data = path.read_bytes()
    return data.startswith(b"\x89PNG\r\n\x1a\n") and data.endswith(b"IEND\xaeB`\x82")


def test_the_plots_are_there_after_flush(folder):
    tracker = tracker_on(folder, plots=True)
    log(tracker, [0.1, 0.2])
    tracker.flush()
    assert [path.name for path in (folder / "plots").iterdir()] == ["training_progress.png"]
    tracker.log_epoch(epoch=2, entropy=2.0, bleu=0.5)
    before = (folder / "plots" / "training_progress.png").stat().st_ino
    tracker.flush()
    assert all(is_whole_png(folder / "plots" / name) for name in PLOTS)
    assert (folder / "plots" / "training_progress.png").stat().st_ino != before  # replaced by a new file


@pytest.mark.slow
def test_a_training_that_just_ends_leaves_its_last_epoch_and_its_plots(folder, child_environment):
    code = (
        "import sys, rlvitals\n"
        "tracker = rlvitals.MetricsTracker(sys.argv[1], save_every_n_epochs=4, display='none')\n"
        "for epoch in range(1, 7): tracker.log_epoch(epoch=epoch, loss=1.0, entropy=2.0, bleu=0.1)\n"
        "raise SystemExit(3)\n"
    )
    done = subprocess.run([sys.executable, "-c", code, folder], check=False, env=child_environment)
    assert done.returncode == 3
    assert list(table(folder)["epoch"]) == [1, 2, 3, 4, 5, 6]
    assert all(is_whole_png(folder / "plots" / name) for name in PLOTS)


def test_missing_matplotlib_is_reported_once_and_everything_else_is_there(folder, child_environment):
    code = (
        "import sys, logging, rlvitals; logging.basicConfig()\n"
        "sys.modules['matplotlib'] = None\n"
        "tracker = rlvitals.MetricsTracker(sys.argv[1], display='none')\n"
        "for epoch in range(1, 4): tracker.log_epoch(epoch=epoch, loss=1.0); tracker.flush()\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", code, folder], check=True, env=child_environment, capture_output=True, text=True
    )
    assert done.stderr.count("rlvitals[plots]") == 1
    assert list(table(folder)["epoch"]) == [1, 2, 3]
    assert not (folder / "plots").exists()


def test_a_picture_that_cannot_be_drawn_hurts_no_training(folder, caplog, monkeypatch):
    from rlvitals.render import epoch_plots

    monkeypatch.setattr(epoch_plots, "_figure", lambda size: 1 / 0)
    tracker = tracker_on(folder, plots=True)
    with caplog.at_level(logging.WARNING):
        log(tracker, [0.1, 0.2])
        tracker.flush()
    assert caplog.text.count("the plots cannot be drawn") == 1
    assert list(table(folder)["epoch"]) == [1, 2]


@pytest.mark.slow
def test_many_quick_epochs_are_drawn_once_at_the_end_at_the_latest(folder):
    tracker = tracker_on(folder, plots=True)
    drawn = []
    save = tracker._store.save_plot
    tracker._plotter._save = lambda name, picture: (drawn.append(name), save(name, picture))
    log(tracker, [0.01 * epoch for epoch in range(40)])
    tracker.flush()
    assert 1 <= len(drawn) < 20
    assert is_whole_png(folder / "plots" / "training_progress.png")
