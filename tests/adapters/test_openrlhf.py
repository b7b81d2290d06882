"""Stand-ins with the interface of OpenRLHF 0.11.2's loggers, called as in `openrlhf/trainer/ppo_trainer.py`.
tests/frameworks/openrlhf tests the real classes.
"""

from __future__ import annotations

import json
import sys
import types
from types import SimpleNamespace

import numpy as np
import pytest

import rlvitals
from rlvitals.adapters import openrlhf as adapter
from rlvitals.errors import RunExists


class PublishedLogger:
    """The interface of WandbLogger and TensorboardLogger."""

    def __init__(self, args):
        self.calls = []

    def log_train(self, global_step, logs_dict):
        self.calls.append((global_step, logs_dict))

    def log_eval(self, global_step, logs_dict):
        self.calls.append((global_step, logs_dict))

    def close(self):
        self.calls.append("closed")


@pytest.fixture
def loggers(monkeypatch):
    """OpenRLHF's logger module, before the adapter is installed."""
    monkeypatch.setattr(adapter, "_followed", {})
    monkeypatch.delenv("RLVITALS_OUTPUT_DIR", raising=False)
    module = types.ModuleType("openrlhf.utils.logging_utils")
    methods = {name: vars(PublishedLogger)[name] for name in ("__init__", "log_train", "log_eval", "close")}
    module.WandbLogger, module.TensorboardLogger = (
        type("WandbLogger", (), methods),
        type("TensorboardLogger", (), methods),
    )
    utils = types.ModuleType("openrlhf.utils")
    utils.logging_utils = module
    for name, there in {
        "openrlhf": types.ModuleType("openrlhf"),
        utils.__name__: utils,
        module.__name__: module,
    }.items():
        monkeypatch.setitem(sys.modules, name, there)
    return module


def arguments(folder, **ckpt):
    """The nested arguments that `hierarchize(args)` makes from the command line."""
    wandb = SimpleNamespace(key=None, org=None, group=None, project="p", run_name="ppo_1115")
    return SimpleNamespace(
        logger=SimpleNamespace(wandb=wandb, tensorboard_dir=str(folder / "tensorboard"), logging_steps=1),
        ckpt=SimpleNamespace(output_dir=str(folder), **{"load_enable": False, **ckpt}),
        algo=SimpleNamespace(advantage=SimpleNamespace(estimator="group_norm"), kl=SimpleNamespace(init_coef=0.001)),
        rollout=SimpleNamespace(n_samples_per_prompt=8, max_new_tokens=512),
        eval=SimpleNamespace(steps=float("inf"), n_samples_per_prompt=4),
        actor=SimpleNamespace(adam=SimpleNamespace(lr=1e-6)),
    )


def train(logger, first=1, last=10):
    """Call one logger as a PPO trainer does."""
    for step in range(first, last + 1):
        status = {
            "policy_loss": 0.1,
            "reward": step / 10,
            "kl": 0.01,
            "generated_samples": ["text " * 500, 0.5],
            "lr": None,
        }
        logger.log_train(step, status)
        if step % 5 == 0:
            logger.log_eval(step, {"eval_gsm8k_pass1": step / 20, "eval_none": None})


def rows_of(folder, log="training"):
    return [json.loads(line) for line in (folder / "logs" / f"{log}_metrics.jsonl").read_text().splitlines()]


def test_a_trainers_steps_and_evaluations_are_recorded_under_the_names_of_its_dashboards(loggers, tmp_path):
    adapter.install()
    logger = loggers.TensorboardLogger(arguments(tmp_path))
    train(logger)
    logger.close()
    folder = tmp_path / "ppo_1115"
    rows = rows_of(folder)
    assert [(row["step"], row["train/reward"]) for row in rows] == [(step, step / 10) for step in range(1, 11)]
    assert set(rows[0]) == {"step", "timestamp", "attempt", "train/policy_loss", "train/reward", "train/kl"}
    evaluations = [(row["step"], row["eval/eval_gsm8k_pass1"]) for row in rows_of(folder, "eval")]
    assert evaluations == [(5, 0.25), (10, 0.5)]
    assert rlvitals.open_run(folder).status == "finished"


def test_the_sample_of_each_step_is_a_rollout(loggers, tmp_path):
    adapter.install()
    logger = loggers.TensorboardLogger(arguments(tmp_path))
    train(logger, last=2)
    logger.close()
    run = rlvitals.open_run(tmp_path / "ppo_1115")
    found = [
        (step, each.reward, each.turns[0].text)
        for step in (1, 2)
        for group in run.rollouts(step)
        for each in group.rollouts
    ]
    assert found == [(1, 0.5, "text " * 500), (2, 0.5, "text " * 500)]


def test_their_own_logging_goes_on(loggers, tmp_path):
    adapter.install()
    logger = loggers.TensorboardLogger(arguments(tmp_path))
    train(logger, last=2)
    logger.close()
    assert [call if call == "closed" else call[0] for call in logger.calls] == [1, 2, "closed"]


def test_what_the_arguments_say_is_used_and_the_wandb_key_is_not_kept(loggers, tmp_path):
    adapter.install()
    args = arguments(tmp_path)
    args.logger.wandb.key = "abcdef0123456789"
    args.data = SimpleNamespace(input_template="${prompt}", dtype=np.dtype("float32"))
    loggers.TensorboardLogger(args).close()
    folder = tmp_path / "ppo_1115"
    card = json.loads((folder / "run.json").read_text())
    assert (card["name"], card["algorithm"], card["framework"]) == ("ppo_1115", "grpo", "openrlhf")
    text = (folder / "config.json").read_text()
    assert "abcdef0123456789" not in text
    kept = json.loads(text)
    assert (kept["num_generations"], kept["max_completion_length"], kept["beta"]) == (8, 512, 0.001)
    assert (kept["data"]["input_template"], kept["data"]["dtype"]) == ("${prompt}", "float32")
    assert args.logger.wandb.key == "abcdef0123456789"  # OpenRLHF's own arguments are unchanged


@pytest.mark.parametrize(("filters", "planned"), [(False, 9), (True, None)])
def test_planned_steps_are_counted_from_the_prompts_that_its_trainer_has_loaded(loggers, tmp_path, filters, planned):
    """Like `PPOTrainer.__init__`: it loads the prompts first, one per batch, and then creates the loggers."""

    class Trainer:
        def __init__(self, args):
            self.prompts_dataloader = range(20)
            self.logger = loggers.TensorboardLogger(args)

    adapter.install()
    args = arguments(tmp_path)
    args.rollout.batch_size, args.algo.dynamic_filtering_enable = 8, filters
    args.train = SimpleNamespace(num_episodes=3)
    Trainer(args).logger.close()
    assert rlvitals.open_run(tmp_path / "ppo_1115").info.total_steps == planned


def test_with_both_loggers_a_step_is_recorded_once(loggers, tmp_path):
    adapter.install()
    adapter.install()
    args = arguments(tmp_path)
    both = [loggers.WandbLogger(args), loggers.TensorboardLogger(args)]
    for step in (1, 2):
        for logger in both:
            logger.log_train(step, {"reward": 0.5})
    for logger in both:
        logger.close()
    assert [row["step"] for row in rows_of(tmp_path / "ppo_1115")] == [1, 2]


def test_a_training_that_loads_its_checkpoint_goes_on_in_its_run(loggers, tmp_path):
    adapter.install()
    first = loggers.TensorboardLogger(arguments(tmp_path))
    train(first, last=8)
    first.close()
    with pytest.raises(RunExists, match="resume"):
        loggers.TensorboardLogger(arguments(tmp_path))
    second = loggers.TensorboardLogger(arguments(tmp_path, load_enable=True))
    train(second, first=6, last=12)
    second.close()
    steps, _ = rlvitals.open_run(tmp_path / "ppo_1115").series("train/reward")
    assert list(steps) == list(range(1, 13))


def test_the_folder_can_be_named_in_the_environment_or_by_the_hook(loggers, tmp_path, monkeypatch):
    monkeypatch.setenv("RLVITALS_OUTPUT_DIR", str(tmp_path / "named"))
    logger = adapter.VitalsLogger(arguments(tmp_path))
    logger.close()
    adapter.install(output_dir=tmp_path / "hooked", name="mine")
    loggers.TensorboardLogger(arguments(tmp_path)).close()
    assert rlvitals.open_run(tmp_path / "named").name == "ppo_1115"
    assert rlvitals.open_run(tmp_path / "hooked").name == "mine"


def test_values_of_every_kind_are_taken_or_left_out_and_none_raises(tmp_path):
    logger = adapter.VitalsLogger(output_dir=tmp_path / "run")
    values = {
        "reward": np.float32(0.5),
        "nested": {"kl": 0.1},
        "none": None,
        "text": "x",
        "image": np.zeros((2, 2)),
        "table": {1},
    }
    for step in (3, 3, None, np.int64(9)):
        logger.log_train(step, values)
        logger.log_eval(step, values)
    for nothing in ({}, None, "x"):
        logger.log_train(10, nothing)
        logger.log_eval(10, nothing)
    assert {"train/image", "train/table"} <= set(logger.run.left_out)
    logger.close()
    taken = [row for row in rows_of(tmp_path / "run") if "train/reward" in row]
    assert [(row["step"], row["train/nested/kl"]) for row in taken] == [(3, 0.1), (3, 0.1), (4, 0.1), (9, 0.1)]
    assert [row["step"] for row in rows_of(tmp_path / "run", "eval")] == [3, 3, 4, 9]


def test_a_worker_without_openrlhf_is_left_alone(monkeypatch, caplog):
    for name in ("openrlhf", "openrlhf.utils", "openrlhf.utils.logging_utils"):
        monkeypatch.setitem(sys.modules, name, None)  # importing it raises
    adapter.install()
    assert "not here" in caplog.text


def placed(**train):
    """A training with an actor on 8 GPUs, a reference on 4, a critic on 2, a reward model on 1 and engines on 16."""
    sizes = {"actor": (2, 4), "ref": (1, 4), "critic": (1, 2), "reward": (1, 1)}
    args = {
        name: SimpleNamespace(num_nodes=nodes, num_gpus_per_node=gpus, model_name_or_path=None, remote_url=None)
        for name, (nodes, gpus) in sizes.items()
    }
    return SimpleNamespace(
        **args,
        vllm=SimpleNamespace(num_engines=4, tensor_parallel_size=4),
        algo=SimpleNamespace(kl=SimpleNamespace(init_coef=0.0)),
        train=SimpleNamespace(**train),
    )


def test_the_gpus_of_all_models_and_engines_are_counted():
    """The expected numbers were counted by hand from the placement groups of `openrlhf/cli/train_ppo_ray.py`."""
    args = placed()
    assert adapter._gpus(args) == {"num_gpus": 8 + 16 + 1}
    args.algo.kl.init_coef = 0.01
    assert adapter._gpus(args) == {"num_gpus": 8 + 16 + 1 + 4}
    args.train.colocate_actor_ref = True
    args.reward.remote_url = ["http://rm"]
    args.critic.model_name_or_path = "critic"
    assert adapter._gpus(args) == {"num_gpus": 8 + 16 + 2}
    args.reward.remote_url = None
    args.train.colocate_critic_reward = True
    assert adapter._gpus(args) == {"num_gpus": 8 + 16 + 2}
    assert adapter._gpus(placed(colocate_all=True)) == {"num_gpus": 8}
    assert adapter._gpus(placed(colocate_all=True, async_enable=True)) == {"num_gpus": 8 + 16}
    args = placed(colocate_all=True, colocate_critic_reward=True)
    args.critic.model_name_or_path = "critic"
    assert adapter._gpus(args) == {"num_gpus": 8 + 2}  # critic and reward model share a separate placement group
    assert adapter._gpus(SimpleNamespace()) == {}


def test_settings_that_advice_is_about_are_kept_under_its_names(loggers, tmp_path):
    adapter.install()
    args = arguments(tmp_path)
    args.rollout.temperature, args.rollout.batch_size = 0.7, 64
    args.eval.temperature = 0.6  # a different setting with the same name
    args.train = SimpleNamespace(batch_size=32, micro_batch_size=2, max_epochs=3)
    args.actor = SimpleNamespace(
        adam=SimpleNamespace(lr=1e-6), max_norm=0.5, eps_clip=0.2, eps_clip_low_high=[0.2, 0.28],
        num_nodes=1, num_gpus_per_node=8,
    )  # fmt: skip
    loggers.TensorboardLogger(args).close()
    config = rlvitals.open_run(tmp_path / "ppo_1115").config
    found = {name: config[name] for name in ("temperature", "max_grad_norm", "epsilon_high", "num_iterations")}
    assert found == {"temperature": 0.7, "max_grad_norm": 0.5, "epsilon_high": 0.28, "num_iterations": 3}
    found = {name: config[name] for name in ("train_batch_size", "rollout_batch_size", "per_device_train_batch_size")}
    assert found == {"train_batch_size": 32, "rollout_batch_size": 64, "per_device_train_batch_size": 2}
