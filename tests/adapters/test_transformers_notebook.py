"""The importer reads the table that transformers' own callback draws in a notebook."""

from __future__ import annotations

import json
import subprocess
import sys

import pytest

from rlvitals.importers import read_log

CALLBACK = """
import json, sys, types
html = []
class Handle:
    def update(self, shown): html[-1] = shown
def display(shown, display_id=None):
    html.append(shown)
    return Handle()
sys.modules["IPython"] = types.ModuleType("IPython")
sys.modules["IPython.display"] = sys.modules["IPython"].display = types.SimpleNamespace(HTML=str, display=display)
from transformers import TrainerControl, TrainerState
from transformers.trainer_utils import IntervalStrategy
from transformers.utils.notebook import NotebookProgressCallback

def train(strategy):
    arguments, control = types.SimpleNamespace(eval_strategy=strategy), TrainerControl()
    state = TrainerState(max_steps=12, num_train_epochs=3)
    callback = NotebookProgressCallback()
    callback.on_train_begin(arguments, state, control)
    for step in range(1, 13):
        state.global_step, state.epoch = step, step / 4
        logs = {"loss": 1 / step, "reward": 0.5, "step": step}
        state.log_history.append(logs)
        callback.on_log(arguments, state, control, logs=logs)
        if strategy == IntervalStrategy.EPOCH and step % 4 == 0:
            metrics = {"eval_loss": 2 / step, "eval_rewards/margins": step / 10, "eval_runtime": 1.0, "epoch": 1}
            callback.on_evaluate(arguments, state, control, metrics=metrics)
        callback.on_step_end(arguments, state, control)
    callback.on_train_end(arguments, state, control)

train(IntervalStrategy.NO)
train(IntervalStrategy.EPOCH)
print(json.dumps(html))
"""


def read(tmp_path, html):
    output = {"output_type": "display_data", "data": {"text/html": html}}
    path = tmp_path / "train.ipynb"
    path.write_text(json.dumps({"cells": [{"cell_type": "code", "source": "", "outputs": [output]}]}))
    return read_log(path)


@pytest.mark.slow
def test_what_transformers_itself_shows_is_read(tmp_path):
    """The callback is real; the notebook that it draws in is a stand-in."""
    pytest.importorskip("transformers")
    done = subprocess.run([sys.executable, "-c", CALLBACK], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    plain, evaluated = json.loads(done.stdout)
    log = read(tmp_path, plain)
    assert log.rows == [{"step": step, "loss": float(f"{1 / step:.6f}")} for step in range(1, 13)]
    assert log.config == {"max_steps": 12}
    log = read(tmp_path, evaluated)
    assert [(row["step"], row["epoch"], row["eval_rewards/margins"]) for row in log.rows] == [
        (4, 1, 0.4), (8, 2, 0.8), (12, 3, 1.2),
    ]  # fmt: skip
