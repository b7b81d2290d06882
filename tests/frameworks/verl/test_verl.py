"""verl's own Tracking, in a process that verl starts from the environment variable a user sets."""

from __future__ import annotations

import os
import subprocess
import sys
import textwrap
from importlib.metadata import version

import pytest

import rlvitals

CALLS = """
    import numpy, sys, torch
    from verl.utils.tracking import Tracking

    first, last, code = map(int, sys.argv[1:])
    config = {
        "trainer": {"default_local_dir": "run", "resume_mode": "auto", "total_training_steps": 12,
                    "rollout_data_dir": "rollouts"},
        "algorithm": {"adv_estimator": "grpo"},
        "actor_rollout_ref": {"rollout": {"n": 8}},
    }
    tracking = Tracking("project", "experiment", ["console", "rlvitals"], config)
    for step in range(first, last + 1):
        row = {"critic/score/mean": step / 12, "actor/pg_loss": numpy.float32(0.5), "training/global_step": step,
               "actor/grad_norm": torch.tensor(1.0)}
        if step % 5 == 0:
            row["val-core/gsm8k/acc/mean@1"] = step / 10
        tracking.log(data=row, step=step)
    if code >= 0:
        tracking.finish(exit_code=code)
    del tracking
"""


@pytest.fixture
def train(tmp_path):
    """A trainer's calls, from `first` to `last`, and how it ends; -1: its Tracking is forgotten."""

    def run(first=1, last=12, code=0):
        environment = {**os.environ, "VERL_USE_EXTERNAL_MODULES": "rlvitals.adapters.verl"}
        command = [sys.executable, "-c", textwrap.dedent(CALLS), *map(str, (first, last, code))]
        subprocess.run(command, cwd=tmp_path, env=environment, check=True)
        return rlvitals.open_run(tmp_path / "run")

    return run


def test_steps_and_validations_are_recorded_and_a_second_start_goes_on(train, tmp_path, shown):
    assert train(last=7, code=1).status == "failed"
    run = train(first=6)
    steps, scores = run.series("critic/score/mean")
    assert (list(steps), list(scores)) == (list(range(1, 13)), [step / 12 for step in range(1, 13)])
    assert list(run.series("val-core/gsm8k/acc/mean@1")[0]) == [5, 10]
    assert (run.status, run.algorithm, run.framework, run.name) == ("finished", "grpo", "verl", "experiment")
    shown("verl", version("verl"), "its Tracking, 12 steps; no training", tmp_path / "run")


def test_a_tracking_that_is_forgotten_ends_its_run(train):
    assert train(last=7, code=-1).status == "interrupted"
