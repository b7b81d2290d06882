"""The snippets of the RLHF tracker's guide and of our own page run unchanged on the files."""

from __future__ import annotations

import os
import re
import subprocess
import sys

import pytest

import rlvitals
from conftest import REPO


@pytest.fixture
def guide(shared) -> str:
    return (shared / "reference" / "rlhf-metrics-tracker.ru.md").read_text()


@pytest.fixture
def folder(tmp_path):
    """The guide's folders after a training with late scores, a NaN and epochs without scores."""
    for place, best in (("modern_outputs", 0.9), ("run1", 0.6), ("run2", 0.8)):
        with rlvitals.MetricsTracker(tmp_path / place / "metrics", display="none", plots=False) as tracker:
            for epoch in range(1, 13):
                tracker.log_epoch(
                    epoch=epoch, loss=2.0 / epoch, reward=best - abs(epoch - 7) / 20, entropy=2.0, epoch_time=10.0,
                    kl_divergence=float("inf") if epoch == 5 else 0.01,
                )  # fmt: skip
                if epoch % 2 == 0:
                    tracker.log_epoch(epoch=epoch, bertscore=0.5, own=float("nan"))
    return tmp_path


def snippets(page: str, language: str = "python") -> list[str]:
    return re.findall(rf"```{language}\n(.*?)```", page, re.DOTALL)


def snippet_with(page: str, words: str) -> str:
    return next(code for code in snippets(page) if words in code)


def output_of(code: str, folder) -> str:
    environment = {**os.environ, "MPLBACKEND": "Agg", "PYTHONDONTWRITEBYTECODE": "1"}
    done = subprocess.run(
        [sys.executable, "-c", code], cwd=folder, env=environment, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_the_guides_pandas_snippet_finds_the_best_epoch(guide, folder):
    assert "Best reward: 0.9 at epoch 7.0" in output_of(snippet_with(guide, "idxmax"), folder)


def test_the_guides_json_snippet_reads_the_history(guide, folder):
    printed = output_of(snippet_with(guide, "json.load"), folder)
    assert "Epoch 12: Loss=0.16666666666666666, Reward=0.65" in printed
    average = float(re.search(r"Average reward: (.*)", printed)[1])
    assert average == pytest.approx(sum(0.9 - abs(epoch - 7) / 20 for epoch in range(1, 13)) / 12)


def test_the_guides_tracker_snippet_reads_an_old_training(guide, folder):
    code = snippet_with(guide, "export_summary").replace("modern_rlhf.metrics_tracker", "rlvitals")
    printed = output_of(code, folder)
    assert "Best reward: 0.9\n" in printed
    assert "Lowest loss: 0.16666666666666666\n" in printed
    assert "Total epochs: 12\n" in printed
    assert "Total training time: 120.00s\n" in printed


@pytest.mark.slow
def test_the_guides_own_plot_can_be_drawn(guide, folder):
    output_of(snippet_with(guide, "my_custom_plot.png"), folder)
    assert (folder / "my_custom_plot.png").stat().st_size > 10_000


@pytest.mark.slow
def test_the_guides_comparison_of_two_runs(guide, folder):
    printed = output_of(snippet_with(guide, "Run 1 best reward"), folder)
    assert "Run 1 best reward: 0.6\nRun 2 best reward: 0.8" in printed
    assert (folder / "comparison.png").stat().st_size > 10_000


def test_the_last_lines_of_the_table_are_the_last_epochs(guide, folder):
    command = next(line for line in guide.splitlines() if line.startswith("tail -n 11"))
    subprocess.run(["bash", "-c", command], cwd=folder, check=True)
    assert len((folder / "temp.csv").read_text().splitlines()) == 11
    assert (folder / "temp.csv").read_text().splitlines()[-1].startswith("12,")


@pytest.mark.slow
def test_the_guides_tree_of_files_is_ours(guide, tmp_path):
    with rlvitals.MetricsTracker(tmp_path / "modern_outputs" / "metrics", display="none") as tracker:
        tracker.log_epoch(epoch=1, loss=1.0, reward=0.5, kl_divergence=0.1, entropy=2.0, bertscore=0.5)
    tree = re.search(r"```\nmodern_outputs/\n(.*?)```", guide, re.DOTALL)[1]
    named = set(re.findall(r"[\w]+\.(?:csv|json|png)\b", tree))
    assert named == {path.name for path in (tmp_path / "modern_outputs").rglob("*.*")} - {"epochs.jsonl"}


def test_the_default_folder_is_the_guides(guide, tmp_path, monkeypatch):
    assert 'output_dir: str = "./modern_outputs/metrics", save_every_n_epochs: int = 1' in guide
    monkeypatch.chdir(tmp_path)
    rlvitals.MetricsTracker(display="none", plots=False).log_epoch(epoch=1, loss=1.0)
    assert (tmp_path / "modern_outputs" / "metrics" / "training_metrics.csv").exists()


@pytest.mark.slow
def test_the_snippets_of_our_page_run_one_after_the_other(tmp_path):
    page = (REPO / "docs" / "epochs.md").read_text()
    printed = [output_of(code, tmp_path) for code in snippets(page)]
    assert len(printed) == 5
    assert printed[0] == "0.6000000000000001 3\n"
    assert printed[1] == "Best reward: 0.6000000000000001 at epoch 3.0\n"
    tree = page.split("```\nout/metrics/\n")[1].split("```")[0]
    for name in re.findall(r"^ +([\w.]+\.\w+)", tree, re.MULTILINE):
        assert list((tmp_path / "out" / "metrics").rglob(name)), name


def test_every_setting_is_on_our_page():
    import inspect

    page = (REPO / "docs" / "epochs.md").read_text()
    for name in list(inspect.signature(rlvitals.MetricsTracker).parameters):
        assert f"| `{name}` |" in page, name
