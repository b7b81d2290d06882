"""prime-rl's real monitors, from its source, and verifiers' real episodes."""

from __future__ import annotations

import asyncio
import sys
from importlib.metadata import version
from pathlib import Path

import pytest

# Append to the path: the folders here have the same names as the frameworks.
sys.path += [str(folder) for folder in Path(__file__).parents[:2]]

import checkouts

COMMIT = checkouts.use("prime-rl", "src", "packages/prime-rl-configs/src")

import verifiers.v1 as vf
from prime_rl import monitors
from prime_rl.configs.monitors import FileMonitorConfig
from prime_rl.utils.config import BaseConfig

import rlvitals
from rlvitals.adapters import prime_rl


class OrchestratorConfig(BaseConfig):
    """The part of the orchestrator's configuration that the adapter reads; the full class needs vLLM."""

    max_steps: int = 3


@pytest.fixture
def _fresh():
    yield
    monitors.MONITORS.clear()


def episode(group, reward, *, ok=True):
    record = {
        "task": {"type": "sums", "data": {"idx": 0, "prompt": "1 + 1?"}, "key": "one"},
        "env": {"id": "sums", "name": "sums"},
        "group": {"id": group},
        "ok": ok,
        "errors": [] if ok else [{"type": "SandboxError", "message": "gone"}],
        "traces": [trace(reward)] if ok else [],
    }
    return vf.WireEpisode.model_validate(record)


def trace(reward):
    return {
        "task": {"type": "sums", "data": {"idx": 0, "prompt": "1 + 1?"}},
        "agent": {"config": {}, "name": "solver"},
        "nodes": [
            {"message": {"role": "user", "content": "1 + 1?"}, "token_ids": [1, 2], "mask": [False, False]},
            {
                "message": {"role": "assistant", "content": "2"}, "parent": 0, "sampled": True, "token_ids": [3, 4],
                "mask": [True, True], "logprobs": [-0.5, -0.25], "advantages": [1.0, 1.0],
            },
        ],
        "rewards": {"correct": {"score": reward, "weight": 1.0}},
        "metrics": {"words": 1.0},
        "stop_condition": "answered",
        "ok": True,
    }  # fmt: skip


@pytest.mark.usefixtures("_fresh")
def test_the_monitors_of_a_process_record_rows_and_episodes(tmp_path, shown):
    prime_rl.install(hardware=False)

    async def orchestrate():
        await monitors.setup(file=FileMonitorConfig(), output_dir=tmp_path, run_config=OrchestratorConfig())
        for step in range(3):
            for index in range(4):
                await monitors.log([episode(f"{step}-{index // 2}", index % 2)], step, "train", "all")
            await monitors.log([episode(f"{step}-9", 0, ok=False)], step, "train", "all")
            cohort = [episode(f"{step}-{index // 2}", index % 2) for index in range(4)]
            await monitors.log(cohort, step, "train", "effective")
            await monitors.log(
                {"train/sums/effective/solver/reward/mean": 0.5, "off_policy/mean": 1.0, "step": step}, step=step
            )
        await monitors.log({"eval/sums/effective/solver/reward/mean": 0.25, "step": 2}, step=2)
        await monitors.finalize()

    asyncio.run(orchestrate())
    assert (tmp_path / "metrics.jsonl").is_file()  # prime-rl's own monitor still works
    run = rlvitals.open_run(tmp_path / "rlvitals" / "orchestrator")
    assert (run.status, run.info.framework, run.info.total_steps) == ("finished", "prime_rl", 3)
    assert list(run.series("train/sums/effective/solver/reward/mean")[1]) == [0.5] * 3
    assert list(run.series("eval/sums/effective/solver/reward/mean")[0]) == [2]
    failed, one, two = run.rollouts(1)
    assert "SandboxError: gone" in failed.rollouts[0].error
    assert [each.reward for each in one.rollouts] == [0.0, 1.0]
    assert (one.id, one.prompt, two.meta["env"], two.meta["split"]) == ("one", "1 + 1?", "sums", "train")
    right = one.rollouts[1]
    assert (right.turns[0].text, right.stop, right.reward_parts, right.meta["agent"]) == (
        "2", "answered", {"correct": 1.0}, "solver",
    )  # fmt: skip
    assert (right.trace.ids, right.trace.engine_logprobs, right.trace.advantages) == (
        (3, 4), (-0.5, -0.25), (1.0, 1.0),
    )  # fmt: skip
    ran = f"its monitors, episodes of verifiers {version('verifiers')}; no training"
    shown("prime-rl", COMMIT, ran, run.path)


@pytest.mark.usefixtures("_fresh")
def test_other_ranks_record_nothing(tmp_path, monkeypatch):
    prime_rl.install(hardware=False)
    monkeypatch.setenv("RANK", "1")
    asyncio.run(monitors.setup(file=FileMonitorConfig(), output_dir=tmp_path, run_config=OrchestratorConfig()))
    assert monitors.MONITORS == []
    assert not (tmp_path / "rlvitals").exists()
