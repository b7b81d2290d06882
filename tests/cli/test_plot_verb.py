"""`plot`, `compare --plot` and `show --epochs` as a user runs them."""

from __future__ import annotations

import json

import pytest

import rlvitals
from judged_logs import healthy_rows
from rlvitals.cli.main import main

PNG = b"\x89PNG"


@pytest.fixture(autouse=True)
def _in_a_folder_of_its_own(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)


@pytest.fixture
def run_path(tmp_path):
    return record(tmp_path / "run", healthy_rows(40))


def record(path, rows):
    with rlvitals.start(path, algorithm="grpo", framework="trl_grpo", monitor=False) as run:
        for row in rows:
            run.log({**row, "epoch": row["step"] / 10}, step=row["step"])
    return path


def test_plot_writes_into_the_run_and_says_where(run_path, capsys):
    assert main(["plot", str(run_path)]) == 0
    written = run_path / "metrics" / "plots" / "overview.png"
    assert capsys.readouterr().out.strip() == str(written)
    assert written.read_bytes().startswith(PNG)


def test_plot_tells_its_panels_as_json(run_path, capsys):
    assert main(["plot", str(run_path), "kl", "optim.grad_norm", "--x", "epoch", "--json", "--output", "out"]) == 0
    facts = json.loads(capsys.readouterr().out)
    assert facts["path"] == "out/kl-optim.grad_norm.png"
    assert [panel["metrics"] for panel in facts["panels"]] == [["kl"], ["grad_norm"]]


def test_plot_of_a_foreign_log_lies_in_the_working_directory(tmp_path, capsys):
    (tmp_path / "logs").mkdir()
    log = tmp_path / "logs" / "train.jsonl"
    log.write_text("".join(json.dumps(row) + "\n" for row in healthy_rows(20)))
    assert main(["plot", str(log), "--smooth", "3", "--last", "10"]) == 0
    assert (tmp_path / "train-overview.png").read_bytes().startswith(PNG)
    assert [path.name for path in log.parent.iterdir()] == ["train.jsonl"]


def test_plot_to_a_file_of_another_format(run_path):
    assert main(["plot", str(run_path), "reward", "--output", "deep/down/reward.svg"]) == 0
    assert b"<svg" in (run_path.parent / "deep" / "down" / "reward.svg").read_bytes()


@pytest.mark.parametrize(
    ("words", "code", "message"),
    [
        (["rewrd"], 1, "unknown metric 'rewrd'"),
        (["--x", "tokens"], 64, "no tokens axis"),
        (["--last", "0"], 64, "at least 1"),
        (["--output", "/proc/nowhere/x.png"], 64, "cannot write"),
    ],
)
def test_what_cannot_be_drawn_is_one_line(run_path, capsys, words, code, message):
    assert main(["plot", str(run_path), *words]) == code
    assert message in capsys.readouterr().err


def test_plot_without_matplotlib_names_the_extra(run_path, capsys, monkeypatch):
    import sys

    monkeypatch.setitem(sys.modules, "matplotlib.figure", None)
    assert main(["plot", str(run_path)]) == 64
    assert "pip install 'rlvitals[plots]'" in capsys.readouterr().err


@pytest.mark.slow
def test_compare_draws_the_runs_over_each_other(run_path, tmp_path, capsys):
    other = record(tmp_path / "other", healthy_rows(30, seed=4))
    assert main(["compare", str(run_path), str(other), "--plot"]) == 0
    assert capsys.readouterr().out.rstrip().endswith("comparison.png")
    assert (tmp_path / "comparison.png").read_bytes().startswith(PNG)
    assert main(["compare", str(run_path), str(other), "--plot", "mine.pdf", "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["plot"] == "mine.pdf"
    assert main(["compare", "--plot", str(run_path), str(other)]) == 64
    assert "runs come before --plot" in capsys.readouterr().err


def test_compare_of_two_folders_of_epochs_tells_their_best_rewards(tmp_path, capsys):
    for name, rewards in (("run1", [0.2, 0.8, 0.5]), ("run2", [0.1, 0.3])):
        tracker = rlvitals.MetricsTracker(output_dir=str(tmp_path / name / "metrics"), plots=False)
        for epoch, reward in enumerate(rewards, start=1):
            tracker.log_epoch(epoch=epoch, loss=1.0, reward=reward)
        tracker.close()
    capsys.readouterr()
    assert main(["compare", "run1", "run2/metrics", "--plot"]) == 0
    shown = capsys.readouterr().out
    assert "Run 1 best reward: 0.8 at epoch 2 (run1)" in shown
    assert "Run 2 best reward: 0.3 at epoch 2 (run2)" in shown


def test_show_tells_epochs_and_the_verdict(run_path, capsys):
    assert main(["show", str(run_path), "--epochs"]) == 0
    shown = capsys.readouterr().out
    assert "31 to 40" in shown
    assert "improving: reward rose by" in shown
    assert main(["show", str(run_path), "--steps-per-epoch", "20", "--json"]) == 0
    facts = json.loads(capsys.readouterr().out)
    assert [(epoch["first_step"], epoch["last_step"]) for epoch in facts["epochs"]] == [(1, 20), (21, 40)]
    assert facts["weighted_by"] == "rows"


def test_show_epochs_of_a_run_without_any_says_what_to_give(tmp_path, capsys):
    with rlvitals.start(tmp_path / "plain", monitor=False) as run:
        run.log({"loss": 1.0}, step=1)
    assert main(["show", "plain", "--epochs"]) == 64
    assert "--steps-per-epoch" in capsys.readouterr().err
