"""A training that is killed and resumed leaves the same rows as an uninterrupted one."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time

import pandas as pd
import pytest

import rlvitals

TRAINING = """
import json, os, sys, time
from pathlib import Path
import numpy as np
import rlvitals

folder, pause, plots = Path(sys.argv[1]), float(sys.argv[2]), sys.argv[3] == "plots"
checkpoint = folder / "checkpoint.npz"
weights, first = np.zeros(4), 1
if checkpoint.exists():
    saved = np.load(checkpoint)
    weights, first = saved["weights"], int(saved["epoch"]) + 1
is_resumed = (folder / "run.json").exists()
run = rlvitals.start(folder, resume=(first - 1) * 10 if is_resumed else False, total_steps=100, monitor=False)
tracker = rlvitals.MetricsTracker(
    folder / "metrics", save_every_n_epochs=2, total_epochs=10, display="none", plots=plots
)
target = np.arange(4.0)
for epoch in range(first, 11):
    draw = np.random.default_rng(epoch)
    began = time.time()
    losses = []
    for batch in range(10):
        step = (epoch - 1) * 10 + batch + 1
        inputs = draw.normal(size=(8, 4))
        error = inputs @ (weights - target)
        weights = weights - 0.05 * inputs.T @ error / 8
        losses.append(float(np.mean(error**2)))
        run.log({"loss": losses[-1]}, step=step)
        time.sleep(pause)
    tracker.log_epoch(
        epoch=epoch, loss=float(np.mean(losses)), reward=-float(np.abs(weights - target).sum()), learning_rate=0.05,
        epoch_time=time.time() - began, samples_per_second=80 / max(time.time() - began, 1e-9),
    )
    time.sleep(pause * 5)
    if epoch % 2 == 0:
        tracker.log_epoch(epoch=epoch, bertscore=1 / (1 + losses[-1]), own_score=epoch / 10)
    if epoch % 3 == 0:
        np.savez(folder / "draft.npz", weights=weights, epoch=epoch)
        os.replace(folder / "draft.npz", checkpoint)
run.finish()
tracker.close()
"""

TIMES = ["timestamp", "epoch_time", "samples_per_second"]


def train(folder, environment, *, pause=0.0, plots=False):
    words = [folder, str(pause), "plots" if plots else "rows alone"]
    return subprocess.Popen([sys.executable, "-c", TRAINING, *words], env=environment)


def lines_in(path) -> int:
    return len(path.read_bytes().splitlines()) if path.exists() else 0


@pytest.fixture(scope="module")
def whole(tmp_path_factory):
    """An uninterrupted training."""
    folder = tmp_path_factory.mktemp("whole") / "run"
    assert train(folder, {**os.environ, "PYTHONDONTWRITEBYTECODE": "1"}).wait() == 0
    return folder


@pytest.mark.slow
@pytest.mark.parametrize("words", [4, 8, 11])
def test_a_killed_and_resumed_training_leaves_the_same_rows(whole, tmp_path, child_environment, words):
    """Killed before the first checkpoint, between an epoch and its scores, and some epochs after a checkpoint. Only the
    last case draws plots, because they take most of the time.
    """
    killed, plots = tmp_path / "killed", words == 11
    child = train(killed, child_environment, pause=0.02, plots=plots)
    deadline = time.monotonic() + 120
    while lines_in(killed / "metrics" / "epochs.jsonl") < words:
        assert child.poll() is None
        assert time.monotonic() < deadline
        time.sleep(0.002)
    os.kill(child.pid, signal.SIGKILL)
    assert child.wait() == -signal.SIGKILL
    assert pd.read_csv(killed / "metrics" / "training_metrics.csv").shape[0] < 10
    assert train(killed, child_environment, plots=plots).wait() == 0

    tables = [pd.read_csv(folder / "metrics" / "training_metrics.csv") for folder in (whole, killed)]
    assert list(tables[0]["epoch"]) == list(range(1, 11))
    pd.testing.assert_frame_equal(*(table.drop(columns=TIMES) for table in tables))
    histories = [json.loads((folder / "metrics" / "training_metrics.json").read_text()) for folder in (whole, killed)]
    bare = [[{name: row[name] for name in row if name not in TIMES} for row in history] for history in histories]
    assert bare[0] == bare[1]
    drawn = killed / "metrics" / "plots" / "evaluation_metrics.png"
    assert drawn.stat().st_size > 10_000 if plots else not drawn.exists()
    steps, losses = rlvitals.open_run(killed).series("loss")
    assert list(steps) == list(range(1, 101))
    assert list(losses) == list(rlvitals.open_run(whole).series("loss")[1])
