"""SkyRL's callback with the events of SkyRL 0.3.0's trainer. tests/frameworks/skyrl tests the real trainer."""

from __future__ import annotations

import json
from types import SimpleNamespace

import pytest

import rlvitals
from rlvitals.adapters import skyrl
from rlvitals.adapters.skyrl import VitalsCallback, split_options
from rlvitals.errors import ConfigError


class Words:
    """A tokenizer whose tokens are numbers."""

    def decode(self, ids, skip_special_tokens=False):
        return " ".join(map(str, ids))


def trainer(folder, **settings):
    config = SimpleNamespace(
        trainer=SimpleNamespace(
            ckpt_path=str(folder), run_name="one", resume_mode="none", max_training_steps=None,
            algorithm=SimpleNamespace(advantage_estimator="grpo"),
        ),
        generator=SimpleNamespace(n_samples_per_prompt=2),
    )  # fmt: skip
    return SimpleNamespace(cfg=config, global_step=0, trajectory_logger=None, **settings)


def event(step, **more):
    return SimpleNamespace(global_step=step, total_steps=8, **more)


def train(trainer, callback, control, steps=8):
    """Make the calls of `RayPPOTrainer.train`; returns the last step."""
    callback.on_train_start(trainer, event(0), control)
    for step in range(1, steps + 1):
        trainer.global_step = step
        callback.on_step_start(trainer, event(step), control)
        output = {
            "prompt_token_ids": [[1, 2], [1, 2]], "response_ids": [[3, 9, 4], [5]], "rewards": [[0.0, 0.0, 1.0], 0.25],
            "loss_masks": [[1, 0, 1], [1]], "stop_reasons": ["stop", "length"],
        }  # fmt: skip
        shown = {"tokenizer": Words(), "global_step": step, "prompts": [], "tracker": None, "num_samples": 0}
        trainer.trajectory_logger.log(generator_output=output, wandb_key="trajectories/train", **shown)
        trainer.trajectory_logger.log(generator_output={}, wandb_key="trajectories/eval", **shown)
        if control.should_save:
            control.should_save = False
            callback.on_save(trainer, event(step, ckpt_path=f"out/global_step_{step}"), control)
        row = {"reward/avg_raw_reward": step / 10, "policy/policy_loss": 0.1}
        callback.on_log(trainer, event(step, logs=row), control)
        if trainer.cfg.trainer.max_training_steps is not None and step + 1 > trainer.cfg.trainer.max_training_steps:
            break
    callback.on_train_end(trainer, event(step), control)
    return step


def rule(action):
    return {
        "rule": "asked_for", "kind": "instability", "when": "reward/avg_raw_reward > 0", "severity": "critical",
        "warm_up": 1, "hold": "1 of 1", "action_critical": action, "title": "on purpose", "certain": True,
    }  # fmt: skip


@pytest.fixture
def control():
    return SimpleNamespace(should_save=False, should_evaluate=False)


def test_steps_and_trajectories_are_recorded(tmp_path, control):
    train(trainer(tmp_path), VitalsCallback(hardware=False), control)
    run = rlvitals.open_run(tmp_path)
    assert list(run.series("reward/avg_raw_reward")[1]) == [step / 10 for step in range(1, 9)]
    assert (run.framework, run.algorithm, run.status, run.name) == ("skyrl", "grpo", "finished", "one")
    (group,) = run.rollouts(8)
    first, second = group.rollouts
    assert group.prompt == "1 2"
    assert [(turn.text, turn.observation) for turn in first.turns] == [("3", "9"), ("4", "")]
    assert (first.reward, first.stop, first.trainable_tokens, first.tokens) == (1.0, "stop", 2, 5)
    assert (second.reward, second.stop) == (0.25, "length")


def test_the_doctor_stops_it(tmp_path, control):
    callback = VitalsCallback(tmp_path, hardware=False, actions="act", rules=[rule("stop")])
    last = train(trainer(tmp_path / "unused"), callback, control)
    assert last < 8
    assert rlvitals.open_run(tmp_path).last_step == last


@pytest.mark.parametrize(("action", "text"), [("checkpoint", "saved global_step_"), ("reduce_lr", "SkyRL's workers")])
def test_what_it_can_do_is_done_and_the_rest_is_declined(tmp_path, control, action, text):
    callback = VitalsCallback(tmp_path, hardware=False, actions="act", rules=[rule(action)])
    train(trainer(tmp_path / "unused"), callback, control)
    lines = [json.loads(line) for line in (tmp_path / "logs" / "findings.jsonl").read_text().splitlines()]
    (answer,) = [line["text"] for line in lines if line["type"] == "answer"]
    assert text in answer


def test_a_batch_that_is_not_understood_does_not_raise(tmp_path, control, caplog):
    one, callback = trainer(tmp_path), VitalsCallback(hardware=False)
    callback.on_train_start(one, event(0), control)
    one.trajectory_logger.log(wandb_key="trajectories/train", generator_output=None, tokenizer=None, global_step=1)
    callback.finish()
    assert "trajectories of SkyRL could not be recorded" in caplog.text


def test_an_option_without_a_value_is_an_error():
    with pytest.raises(ConfigError, match="has no value"):
        split_options(["rlvitals.actions"])


def test_the_gpus_of_all_workers_and_engines_are_counted():
    """Counted by hand from `RayPPOTrainer.build_models`: policy on 8 GPUs, reference 4, critic 2, engines 6."""
    placement = SimpleNamespace(
        colocate_all=True, colocate_policy_ref=True, policy_num_nodes=2, policy_num_gpus_per_node=4, ref_num_nodes=1,
        ref_num_gpus_per_node=4, critic_num_nodes=1, critic_num_gpus_per_node=2,
    )  # fmt: skip
    engines = SimpleNamespace(
        run_engines_locally=True, num_engines=3, tensor_parallel_size=2, pipeline_parallel_size=1, data_parallel_size=1
    )
    algorithm = SimpleNamespace(use_kl_loss=True, use_kl_in_reward=False)
    critic = SimpleNamespace(model=SimpleNamespace(path=None))
    config = SimpleNamespace(
        trainer=SimpleNamespace(placement=placement, algorithm=algorithm, critic=critic),
        generator=SimpleNamespace(inference_engine=engines),
    )
    assert skyrl._gpus(config) == {"num_gpus": 8}
    placement.colocate_all = False
    assert skyrl._gpus(config) == {"num_gpus": 8 + 6}
    placement.colocate_policy_ref = False
    assert skyrl._gpus(config) == {"num_gpus": 8 + 6 + 4}
    critic.model.path = "critic"
    algorithm.use_kl_loss = False
    assert skyrl._gpus(config) == {"num_gpus": 8 + 6 + 2}
    engines.run_engines_locally = False
    assert skyrl._gpus(config) == {"num_gpus": 8 + 2}
    assert skyrl._gpus(SimpleNamespace()) == {}
