"""A stand-in with the interface of AReaL 1.0.4's StatsLogger. tests/frameworks/areal tests the real class."""

from __future__ import annotations

from types import SimpleNamespace

import pytest

import rlvitals
from rlvitals.adapters import areal


class PublishedLogger:
    """The object that AReaL's trainers keep in `stats_logger`."""

    def __init__(self, config, folder):
        self.exp_config, self.config, self.folder = config, config, folder
        self.ft_spec = SimpleNamespace(total_train_steps=10)
        self.calls = []

    def get_log_path(self, config):
        return str(self.folder)

    def commit(self, epoch, step, global_step, data):
        self.calls.append(global_step)

    def state_dict(self):
        return {"last_commit_step": self.calls[-1]}

    def close(self):
        self.calls.append("closed")


class PPOTrainer:
    """The end of every step of AReaL's trainer."""

    def __init__(self, folder):
        names = {"experiment_name": "grpo", "trial_name": "one"}
        self.config = SimpleNamespace(**names, total_train_steps=None, gconfig=SimpleNamespace(n_samples=8))
        self.stats_logger = self.theirs = PublishedLogger(self.config, folder)

    def train(self):
        for step in range(10):
            if self.config.total_train_steps is not None and step >= self.config.total_train_steps:
                break
            row = {"ppo_actor/task_reward/avg": step / 10, "n__count": 4}
            self.stats_logger.commit(0, step, step, [row, {"timeperf/train_step": 1.5}])
        self.stats_logger.close()


@pytest.fixture
def trainer(tmp_path):
    return PPOTrainer(tmp_path)


def test_what_its_logger_is_given_is_recorded(trainer, tmp_path):
    areal.follow(trainer, hardware=False)
    trainer.train()
    run = rlvitals.open_run(tmp_path)
    assert list(run.series("ppo_actor/task_reward/avg")[1]) == [step / 10 for step in range(10)]
    assert run.last_step == 9  # the parts of a step are merged into one row
    assert "n__count" not in run.metrics
    assert (run.framework, run.algorithm, run.status, run.name) == ("areal", "ppo", "finished", "grpo_one")
    assert trainer.theirs.calls == [*range(10), "closed"]
    assert trainer.stats_logger.state_dict() == {"last_commit_step": "closed"}


def test_the_doctor_stops_its_loop(trainer, tmp_path):
    rule = {
        "rule": "asked_for", "kind": "instability", "when": "ppo_actor/task_reward/avg >= 0", "severity": "critical",
        "warm_up": 1, "hold": "1 of 1", "action_critical": "stop", "title": "on purpose", "certain": True,
    }  # fmt: skip
    areal.follow(trainer, hardware=False, actions="act", rules=[rule])
    trainer.train()
    assert len(trainer.theirs.calls) < 10
