"""The example in plain numpy: it learns and is reported healthy, or it fails, is detected and stops."""

from __future__ import annotations

import subprocess
import sys

import pytest

import rlvitals
from conftest import REPO

pytestmark = pytest.mark.slow


def train(folder, *options: str) -> str:
    command = [sys.executable, REPO / "examples" / "numpy_grpo.py", folder, *options]
    return subprocess.run(command, capture_output=True, text=True, check=True).stdout


def test_the_good_run_learns_and_is_healthy(tmp_path):
    train(tmp_path / "run", "--seed", "0")
    run = rlvitals.open_run(tmp_path / "run")
    _, accuracy = run.series("accuracy", stream="eval")
    assert accuracy[-1] > accuracy[0] + 0.05
    assert rlvitals.check(tmp_path / "run").verdict == "healthy"
    assert not [finding for finding in run.findings if finding.severity != "info"]


def test_the_bad_run_is_stopped_by_the_doctor_before_its_time(tmp_path):
    said = train(tmp_path / "run", "--learning-rate", "0.1", "--seed", "1")
    run = rlvitals.open_run(tmp_path / "run")
    assert "stopping, as the doctor asks" in said
    assert run.status == "finished"
    assert run.last_step < 400
    assert rlvitals.check(tmp_path / "run").verdict == "act"
