"""slime's and miles' own logging functions in Ray workers, with Ray's set-up hook and the samples' own option."""

from __future__ import annotations

import argparse
import os
import sys
from pathlib import Path

import pytest

# Append to the path: the folders here have the same names as the frameworks.
sys.path += [str(folder) for folder in Path(__file__).parents[:2]]

import checkouts
from slime_workers import Manager, Trainer

COMMITS = {"slime": checkouts.use("slime"), "miles": checkouts.use("miles")}

import ray

import rlvitals
from rlvitals.adapters import slime


@pytest.fixture(scope="module", autouse=True)
def _cluster():
    paths = os.pathsep.join(str(path) for path in [Path(__file__).parent, *checkouts.roots("slime", "miles")])
    hook = "rlvitals.adapters.slime.install"
    environment = {"env_vars": {"PYTHONPATH": paths}, "worker_process_setup_hook": hook}
    ray.init(num_cpus=2, include_dashboard=False, runtime_env=environment)
    yield
    ray.shutdown()


def arguments(folder, **more):
    return argparse.Namespace(
        save=str(folder), load=None, use_wandb=False, use_tensorboard=False, advantage_estimator="grpo", lr=1e-6,
        rollout_batch_size=2, n_samples_per_prompt=2, global_batch_size=2, rollout_max_response_len=64,
        wandb_always_use_train_step=False, reward_key=None, custom_eval_rollout_log_function_path=None,
        custom_rollout_log_function_path="rlvitals.adapters.slime.log_rollouts", load_debug_rollout_data=None,
        log_passrate=False, log_reward_category=None, rollout_num_gpus=1, ci_test=False,
        sglang_speculative_algorithm=None, use_session_server=False, rollout_temperature=0.8, clip_grad=1.0,
        num_rollout=3, actor_num_nodes=1, actor_num_gpus_per_node=2,
        wandb_key="0123456789abcdef0123456789abcdef01234567", **more,
    )  # fmt: skip


@pytest.mark.parametrize("framework", ["slime", "miles"])
def test_the_processes_of_a_job_record_one_run(framework, tmp_path, shown):
    args = arguments(tmp_path / "run")
    manager, trainer = Manager.remote(), Trainer.remote()
    for rollout_id in range(3):
        ray.get(manager.log.remote(framework, rollout_id, args))
        for update in range(2):  # 4 samples, 2 per update
            ray.get(trainer.log.remote(framework, 2 * rollout_id + update, args))
    assert ray.get(trainer.flush.remote())
    ray.get(manager.dispose.remote(framework, args))
    run = rlvitals.open_run(tmp_path / "run")
    assert (run.status, run.info.framework, run.info.algorithm) == ("finished", framework, "grpo")
    assert list(run.series("train/loss")[0]) == [0, 1, 2, 3, 4, 5]
    assert list(run.series("rollout/zero_std/count_1.0")[0]) == [0, 2, 4]  # the first update that trains on them
    assert list(run.series("rollout/truncated_ratio")[1]) == [0.25] * 3
    assert list(run.series("eval/gsm8k")[1]) == [0.5] * 3
    told = ("num_generations", "temperature", "train_batch_size", "max_grad_norm", "num_gpus")
    assert [run.config[name] for name in told] == [2, 0.8, 2, 1.0, 3]
    assert run.info.total_steps == 6
    assert "0123456789abcdef" not in (tmp_path / "run" / "config.json").read_text()
    first, second = run.rollouts(4)
    assert (first.prompt, second.prompt, first.answer) == ("0 + 1?", "1 + 1?", "2")
    assert [each.reward for each in first.rollouts] == [0.0, 1.0]
    last = second.rollouts[1]
    assert (last.turns[0].text, last.stop, last.tokens, last.trainable_tokens) == ("2 .", "length", 4, 1)
    assert (last.trace.ids, last.trace.trained, last.trace.engine_logprobs) == ((7, 8), (True, False), (-0.5, -0.25))
    shown(framework, COMMITS[framework], "its logging functions in Ray workers; no training", run.path)


def test_samples_that_cannot_be_read_do_not_raise(tmp_path):
    assert slime.log_rollouts(0, arguments(tmp_path), [object()]) is False


@pytest.mark.parametrize(
    "layout",
    [
        {}, {"colocate": True}, {"colocate": True, "rollout_num_gpus": 32}, {"rollout_external": True},
        {"debug_train_only": True}, {"debug_rollout_only": True},
    ],
)  # fmt: skip
def test_the_gpus_are_those_that_slime_asks_ray_for(layout):
    from slime.ray.placement_group import _get_placement_group_layout

    given = {
        "actor_num_nodes": 2, "actor_num_gpus_per_node": 8, "rollout_num_gpus": 8, "colocate": False,
        "rollout_external": False, "debug_train_only": False, "debug_rollout_only": False, **layout,
    }  # fmt: skip
    args = argparse.Namespace(**given)
    assert slime._gpus(args) == {"num_gpus": _get_placement_group_layout(args)[0]}
