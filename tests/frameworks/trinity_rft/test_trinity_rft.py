"""Trinity-RFT's real registry and configuration, with the monitors of both roles in Ray workers."""

from __future__ import annotations

import sys
from importlib.metadata import version
from pathlib import Path

import pytest
import ray

# Append to the path: the folders here have the same names as the frameworks.
sys.path += [str(folder) for folder in Path(__file__).parents[:2]]

from trinity_roles import role

import rlvitals


@pytest.fixture(scope="module", autouse=True)
def _cluster():
    paths = {"env_vars": {"PYTHONPATH": str(Path(__file__).parent)}}
    ray.init(num_cpus=2, include_dashboard=False, runtime_env=paths)
    yield
    ray.shutdown()


def test_both_roles_record_one_run(tmp_path, shown):
    ray.get(role.remote("explorer", str(tmp_path), 4))
    ray.get(role.remote("trainer", str(tmp_path), 4))
    run = rlvitals.open_run(tmp_path / "rlvitals")
    assert (run.status, run.info.framework, run.info.name) == ("finished", "trinity_rft", "tiny")
    assert list(run.series("actor/pg_loss")[1]) == [1, 1 / 2, 1 / 3, 1 / 4]
    assert list(run.series("rollout/reward/mean")[0]) == [1, 2, 3, 4]
    assert list(run.series("eval/sums/reward/mean@4")[1]) == [step / 10 for step in range(1, 5)]
    assert run.labels("eval/sums/reward/mean@4") == {"source": "sums"}
    best, worst = run.rollouts(2)
    assert (best.prompt, best.rollouts[0].turns[0].text, best.rollouts[0].reward) == ("1 + 1?", "2", 1.0)
    assert worst.rollouts[0].reward == 0.0
    shown("Trinity-RFT", version("trinity-rft"), "its registry and monitors in Ray workers; no training", run.path)
