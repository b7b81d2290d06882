"""AReaL's own StatsLogger, as its trainers make and call it. The trainers need engines on GPUs and were not run."""

from __future__ import annotations

from importlib.metadata import version
from types import SimpleNamespace

import pytest
from areal.api import FinetuneSpec
from areal.api.cli_args import BaseExperimentConfig, StatsLoggerConfig
from areal.utils.stats_logger import StatsLogger

import rlvitals
from rlvitals.adapters import areal


@pytest.fixture
def trainer(tmp_path):
    """What `areal.follow` and the training loop use of a trainer: its configuration and its real logger."""
    place = {"experiment_name": "grpo", "trial_name": "one", "fileroot": str(tmp_path)}
    config = BaseExperimentConfig(
        experiment_name="grpo", trial_name="one", stats_logger=StatsLoggerConfig(**place), total_train_epochs=1
    )
    spec = FinetuneSpec(total_train_epochs=1, dataset_size=80, train_batch_size=8)
    return SimpleNamespace(config=config, stats_logger=StatsLogger(config, spec))


def train(trainer):
    """The end of each step in `PPOTrainer.train`; returns how many there were."""
    for step in range(10):
        if trainer.config.total_train_steps is not None and step >= trainer.config.total_train_steps:
            break
        row = {"ppo_actor/task_reward/avg": step / 10, "ppo_actor/update/grad_norm": 0.5, "n__count": 4}
        trainer.stats_logger.commit(0, step, step, [row, {"timeperf/train_step": 1.5}])
    trainer.stats_logger.close()
    return step


def test_what_its_logger_is_given_is_recorded(trainer, tmp_path, shown):
    areal.follow(trainer, output_dir=tmp_path / "run")
    train(trainer)
    run = rlvitals.open_run(tmp_path / "run")
    steps, rewards = run.series("ppo_actor/task_reward/avg")
    assert (list(steps), list(rewards)) == (list(range(10)), [step / 10 for step in range(10)])
    assert "n__count" not in run.metrics
    assert "timeperf/train_step" in run.metrics
    assert (run.framework, run.status) == ("areal", "finished")
    assert trainer.stats_logger.state_dict() == {"last_commit_step": 19}  # its own goes on, and counts two parts a step
    shown("AReaL", version("areal"), "its StatsLogger, 10 steps; no training", tmp_path / "run", acts="stop")


def test_a_critical_finding_stops_its_loop(trainer, tmp_path, ask_for):
    rules = [ask_for("stop", "ppo_actor/task_reward/avg >= 0")]
    areal.follow(trainer, output_dir=tmp_path / "run", actions="act", rules=rules)
    assert train(trainer) < 9
