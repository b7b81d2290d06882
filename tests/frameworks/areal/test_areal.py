"""AReaL's own StatsLogger, created and called as its trainers do, and the dump of its WorkflowExecutor. The trainers
themselves need engines on GPUs and are not run.
"""

from __future__ import annotations

import asyncio
from importlib.metadata import version
from types import SimpleNamespace

import pytest
import torch
import transformers
from areal.api import FinetuneSpec
from areal.api.cli_args import BaseExperimentConfig, InferenceEngineConfig, StatsLoggerConfig
from areal.infra.workflow_executor import WorkflowExecutor
from areal.utils.stats_logger import StatsLogger

import rlvitals
from rlvitals.adapters import areal


@pytest.fixture
def trainer(tmp_path):
    """The parts of a trainer that `areal.follow` and the training loop use: its configuration and its real logger."""
    place = {"experiment_name": "grpo", "trial_name": "one", "fileroot": str(tmp_path)}
    config = BaseExperimentConfig(
        experiment_name="grpo", trial_name="one", stats_logger=StatsLoggerConfig(**place), total_train_epochs=1
    )
    spec = FinetuneSpec(total_train_epochs=1, dataset_size=80, train_batch_size=8)
    return SimpleNamespace(config=config, stats_logger=StatsLogger(config, spec))


def train(trainer):
    """Run the end of each step in `PPOTrainer.train`; returns the step at which the loop ended."""
    for step in range(10):
        if trainer.config.total_train_steps is not None and step >= trainer.config.total_train_steps:
            break
        row = {"ppo_actor/task_reward/avg": step / 10, "ppo_actor/update/grad_norm": 0.5, "n__count": 4}
        trainer.stats_logger.commit(0, step, step, [row, {"timeperf/train_step": 1.5}])
    trainer.stats_logger.close()
    return step


@pytest.fixture
def dump(tmp_path, tiny_model):
    """Dump a task's samples as AReaL's executor does when `rollout.dump_to_file` is set."""
    tokenizer = transformers.AutoTokenizer.from_pretrained(tiny_model)
    place = {"experiment_name": "grpo", "trial_name": "one", "fileroot": str(tmp_path)}
    executor = WorkflowExecutor(InferenceEngineConfig(**place, tokenizer_path=str(tiny_model)), None)

    def write(task, version, rewards):
        prompt, answer = (tokenizer(text)["input_ids"] for text in ("the cat ", "sat on"))
        ids = torch.tensor([prompt + answer] * len(rewards))
        own = torch.tensor([[0] * len(prompt) + [1] * len(answer)] * len(rewards))
        samples = {
            "input_ids": ids, "loss_mask": own, "attention_mask": torch.ones_like(ids),
            "rewards": torch.tensor(rewards), "versions": torch.full_like(ids, version),
        }  # fmt: skip
        written, why = asyncio.run(executor._dump_trajectory(samples, task, is_eval=False))
        assert written, why

    return write


def test_what_its_logger_is_given_is_recorded_and_what_it_dumps_are_the_runs_rollouts(trainer, dump, shown):
    run = areal.follow(trainer).run.dir
    train(trainer)
    for step in range(10):
        dump(2 * step, step, [1.0, 0.0])
    (group,) = rlvitals.open_run(run).rollouts(3)
    assert (group.prompt, [each.reward for each in group.rollouts]) == ("the cat ", [1.0, 0.0])
    assert (group.rollouts[0].turns[0].text, group.rollouts[0].policy_version) == ("sat on", 3)
    run = rlvitals.open_run(run)
    steps, rewards = run.series("ppo_actor/task_reward/avg")
    assert (list(steps), list(rewards)) == (list(range(10)), [step / 10 for step in range(10)])
    assert "n__count" not in run.metrics
    assert "timeperf/train_step" in run.metrics
    assert (run.framework, run.status) == ("areal", "finished")
    assert trainer.stats_logger.state_dict() == {"last_commit_step": 19}  # its own counter: two parts per step
    shown("AReaL", version("areal"), "its StatsLogger and dump, 10 steps; no training", run.path, acts="stop")


def test_a_critical_finding_stops_its_loop(trainer, tmp_path, ask_for):
    rules = [ask_for("stop", "ppo_actor/task_reward/avg >= 0")]
    areal.follow(trainer, output_dir=tmp_path / "run", actions="act", rules=rules)
    assert train(trainer) < 9
