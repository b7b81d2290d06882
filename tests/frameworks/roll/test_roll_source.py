"""ROLL's real tracker registry, DataProto and dump function, from its source."""

from __future__ import annotations

import os
import sys
import tempfile
from pathlib import Path

import numpy as np

# Append to the path: the folders here have the same names as the frameworks.
sys.path += [str(folder) for folder in Path(__file__).parents[:2]]

import checkouts

COMMIT = checkouts.use("ROLL")
os.environ.setdefault("ROLL_LOG_DIR", tempfile.mkdtemp())  # ROLL writes its log as soon as it is imported

import torch
from roll.distributed.scheduler.protocol import DataProto
from roll.pipeline.rlvr import utils as rlvr
from roll.utils.tracking import create_tracker

import rlvitals
from rlvitals.adapters import roll


class Tokenizer:
    """One letter per token; 0 is padding."""

    def batch_decode(self, rows, skip_special_tokens=True):
        return ["".join(chr(96 + int(token)) for token in row if token) for row in rows]


def batch():
    tensors = {"responses": torch.tensor([[1, 2, 0], [3, 0, 0], [1, 2, 3], [2, 0, 0]]), "scores": torch.arange(4.0)}
    texts = {
        "prompt": np.array(["one?", "one?", "two?", "two?"], dtype=object),
        "ground_truth": np.array(["ab", "ab", "abc", "abc"], dtype=object),
        "domain": np.array(["math"] * 4, dtype=object),
    }
    return DataProto.from_dict(tensors=tensors, non_tensors=texts)


def test_a_pipelines_tracker_and_its_dump_are_recorded(tmp_path, shown):
    roll.register()
    config = {"exp_name": "rlvr", "output_dir": str(tmp_path), "max_steps": 3, "adv_estimator": "grpo"}
    tracker = create_tracker("rlvitals", config, hardware=False)
    for step in range(3):
        rlvr.dump_rollout_to_specific_path("", step, batch(), Tokenizer())  # no dump folder is set
        metrics = {"actor/pg_loss@mean": 1 / (step + 1), "critic/score/mean": 1.5, "val_correct/all/mean": 0.5}
        tracker.log(values=metrics, step=step)
    messages = [{"role": "user", "content": "three?"}, {"role": "assistant", "content": "c"}]
    tracker.log_traces("rollout/rlvr", [{"messages": messages, "metadata": {"reward": 0.5, "sample_index": 0}}], step=2)
    tracker.finish()
    run = rlvitals.open_run(tmp_path / "rlvr")
    assert list(run.series("actor/pg_loss")[0]) == [0, 1, 2]
    one, two = run.rollouts(1)
    assert (one.prompt, one.answer, two.prompt) == ("one?", "ab", "two?")
    assert [(each.turns[0].text, each.reward) for each in two.rollouts] == [("abc", 2.0), ("b", 3.0)]
    assert one.rollouts[0].meta["domain"] == "math"
    traced = run.rollouts(2)[-1]
    assert (traced.prompt, traced.rollouts[0].reward, traced.rollouts[0].turns[0].text) == ("three?", 0.5, "c")
    shown("ROLL", COMMIT, "its tracker, DataProto and dump; no training", run.path)
