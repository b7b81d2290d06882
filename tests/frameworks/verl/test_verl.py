"""verl itself, with rlvitals loaded by the environment variable that a user sets: its Tracking, and the whole loop of
its PPO trainer on a CPU (see verl_on_cpu).
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import textwrap
from importlib.metadata import version
from pathlib import Path

import pandas
import pytest

import rlvitals

CALLS = """
    import numpy, sys, torch
    from verl.utils.tracking import Tracking

    first, last, end = int(sys.argv[1]), int(sys.argv[2]), sys.argv[3]
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
    if end == "forgotten":
        del tracking
    elif end == "raises":
        raise RuntimeError("out of luck")
    elif end != "alive":
        tracking.finish(exit_code=int(end))
"""

REWARD = """
    def compute_score(data_source, solution_str, ground_truth, extra_info=None, **_):
        return {"score": solution_str.count(ground_truth) / 8, "acc": float(ground_truth in solution_str)}
"""


@pytest.fixture
def track(tmp_path):
    """Make a trainer's calls from step `first` to `last`. `end` is the exit code or the way the Tracking ends."""

    def run(first=1, last=12, end="0"):
        environment = {**os.environ, "VERL_USE_EXTERNAL_MODULES": "rlvitals.adapters.verl"}
        command = [sys.executable, "-c", textwrap.dedent(CALLS), str(first), str(last), end]
        subprocess.run(command, cwd=tmp_path, env=environment, check=end != "raises")
        return rlvitals.open_run(tmp_path / "run")

    return run


def test_steps_and_validations_are_recorded_and_a_second_start_goes_on(track):
    assert track(last=7, end="1").status == "failed"
    run = track(first=6)
    steps, scores = run.series("critic/score/mean")
    assert (list(steps), list(scores)) == (list(range(1, 13)), [step / 12 for step in range(1, 13)])
    assert list(run.series("val-core/gsm8k/acc/mean@1")[0]) == [5, 10]
    assert (run.status, run.algorithm, run.framework, run.name) == ("finished", "grpo", "verl", "experiment")


@pytest.mark.parametrize(
    ("end", "status"), [("forgotten", "interrupted"), ("alive", "interrupted"), ("raises", "failed")]
)
def test_how_a_tracking_that_nobody_finishes_ends_its_run_before_the_planned_steps(track, end, status):
    assert track(last=7, end=end).status == status


def test_a_tracking_that_is_alive_after_the_planned_steps_has_finished(track):
    assert track(last=12, end="alive").status == "finished"


@pytest.fixture
def train(tmp_path, tiny_model):
    """`python -m verl.trainer.main_ppo` as a user starts it: GRPO on four prompts, four answers each."""
    prompts = ["the cat ", "the dog ", "a bird ", "my fish "]
    rows = [
        {
            "data_source": "words", "prompt": [{"role": "user", "content": prompt}], "ability": "words",
            "reward_model": {"style": "rule", "ground_truth": "the"}, "extra_info": {"index": number},
        }
        for number, prompt in enumerate(prompts)
    ]  # fmt: skip
    pandas.DataFrame(rows).to_parquet(tmp_path / "data.parquet")
    (tmp_path / "reward.py").write_text(textwrap.dedent(REWARD))
    options = {
        "data": {
            "train_files": tmp_path / "data.parquet", "val_files": tmp_path / "data.parquet", "train_batch_size": 4,
            "max_prompt_length": 32, "max_response_length": 8, "dataloader_num_workers": 0,
        },
        "actor_rollout_ref.model": {
            "path": tiny_model, "use_remove_padding": False, "enable_gradient_checkpointing": False,
            "+override_config.attn_implementation": "eager",
        },
        "actor_rollout_ref.actor": {
            "strategy": "fsdp2", "ppo_mini_batch_size": 4, "ppo_micro_batch_size_per_gpu": 8,
            "use_torch_compile": False, "fsdp_config.use_torch_compile": False, "optim.lr": 0.01,
        },
        "actor_rollout_ref.rollout": {
            "name": "generate", "n": 4, "tensor_model_parallel_size": 1, "log_prob_micro_batch_size_per_gpu": 8,
            "agent.num_workers": 1,
        },
        "reward": {"num_workers": 1, "custom_reward_function.path": tmp_path / "reward.py"},
        "algorithm": {"adv_estimator": "grpo"},
        "transfer_queue.backend.SimpleStorage": {"num_data_storage_units": 1},
        "trainer": {
            "device": "cpu", "nnodes": 1, "n_gpus_per_node": 1, "total_training_steps": 30, "total_epochs": 100,
            "test_freq": 2, "default_local_dir": tmp_path / "run", "rollout_data_dir": tmp_path / "run" / "rollouts",
            "logger": '["console","rlvitals"]',
        },
        "ray_kwargs.ray_init": {"num_cpus": 8, "+num_gpus": 1, "+include_dashboard": False},
    }  # fmt: skip
    environment = {
        **os.environ, "VERL_USE_EXTERNAL_MODULES": "rlvitals.adapters.verl,verl_on_cpu", "VERL_ENGINE_DEVICE": "cuda",
        "PYTHONPATH": str(Path(__file__).parent),
    }  # fmt: skip

    def run(*more):
        given = [
            f"{'+' * name.startswith('+')}{section}.{name.lstrip('+')}={value}"
            for section, values in options.items()
            for name, value in values.items()
        ]
        command = [sys.executable, "-m", "verl.trainer.main_ppo", *given, *more]
        done = subprocess.run(command, cwd=tmp_path, env=environment, capture_output=True, text=True, check=False)
        assert done.returncode == 0, done.stdout[-5000:] + done.stderr[-10000:]
        return rlvitals.open_run(tmp_path / "run")

    return run


def test_grpo_on_a_cpu_is_recorded_and_the_doctor_saves_and_stops_it(train, tmp_path, ask_for, answers, shown):
    rules = tmp_path / "rules.json"
    asked = [ask_for("checkpoint", "training/global_step >= 1"), ask_for("stop", "training/global_step >= 2")]
    rules.write_text(json.dumps(asked))
    run = train("+rlvitals.actions=act", f"+rlvitals.rules={rules}")
    steps, rewards = run.series("critic/score/mean")
    assert list(steps) == list(range(1, len(steps) + 1))
    assert 2 <= len(steps) <= 4
    assert list(run.series("val-core/words/acc/mean@1")[0])[:2] == [0, 2]
    for step, mean in zip(steps, rewards, strict=True):
        groups = run.rollouts(int(step))  # from verl's own dump
        assert sorted(len(group.rollouts) for group in groups) == [4, 4, 4, 4]
        assert mean == pytest.approx(sum(each.reward for group in groups for each in group.rollouts) / 16, abs=1e-6)
    assert (run.status, run.algorithm, run.framework, run.info.total_steps) == ("finished", "grpo", "verl", 30)
    done = answers(tmp_path / "run")
    assert [(action, answer) for action, answer, _ in done] == [("checkpoint", "done"), ("stop", "done")]
    saved = tmp_path / "run" / done[0][2].removeprefix("saved ")
    assert list((saved / "actor").glob("*.pt"))
    assert (saved / "data.pt").is_file()
    ran = f"its own GRPO training on a CPU, stopped by the doctor at step {len(steps)} of 30; the engine is the test's"
    shown("verl", version("verl"), ran, tmp_path / "run", acts="stop, save")
