"""NeMo-RL's real `Logger` and `BatchedDataDict`, from its source."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

# Append to the path: the folders here have the same names as the frameworks.
sys.path += [str(folder) for folder in Path(__file__).parents[:2]]

import checkouts

COMMIT = checkouts.use("RL")

import torch
from nemo_rl.distributed.batched_data_dict import BatchedDataDict
from nemo_rl.utils.logger import Logger, LoggerInterface

import rlvitals
from rlvitals.adapters import nemo_rl

MASTER = {
    "grpo": {"num_prompts_per_step": 2, "num_generations_per_prompt": 2, "max_num_steps": 4},
    "policy": {"optimizer": {"kwargs": {"lr": 5e-6}}, "generation": {"max_new_tokens": 16}},
    "logger": {"wandb": {"api_key": "0123456789abcdef0123456789abcdef01234567"}},
}


def configuration(folder, **more):
    return {
        "log_dir": str(folder), "wandb_enabled": False, "swanlab_enabled": False, "tensorboard_enabled": True,
        "mlflow_enabled": False, "tensorboard": {}, "monitor_gpus": False, **more,
    }  # fmt: skip


def train_data():
    """The data that `grpo_train` writes after a step: prompts of 2 tokens, answers of 2, padded to 5."""
    return {
        "content": [[f"{prompt} + 1?", f"{answer}", "wrong", "again"] for prompt in (1, 2) for answer in (2, 3)],
        "rewards": [1.0, 0.0, 0.0, 1.0],
        "input_lengths": [4, 4, 4, 3],
        "token_ids": [[1, 2, 3, 4, 0]] * 4,
        "token_loss_mask": [[0, 0, 1, 1, 0]] * 4,
        "sample_loss_mask": [1.0] * 4,
        "advantages": [[value] * 5 for value in (1.0, -1.0, -1.0, 1.0)],
        "generation_logprobs": torch.full((4, 5), -0.5).tolist(),
        "prev_logprobs": torch.full((4, 5), -0.75).tolist(),
    }


def test_the_logger_records_rows_and_samples(tmp_path, shown):
    nemo_rl.install(hardware=False)
    nemo_rl.install(hardware=False)  # a second call does nothing
    logger = Logger(configuration(tmp_path))
    assert len(logger.loggers) == 2  # TensorBoard's and ours
    logger.log_hyperparams(MASTER)
    for step in range(1, 5):
        logger.log_batched_dict_as_jsonl(train_data(), f"train_data_step{step}.jsonl")
        logger.log_metrics({"loss": torch.tensor(1 / step), "reward": 0.5, "grad_norm": 0.1}, step, prefix="train")
        logger.log_metrics({"total_step_time": 2.0}, step, prefix="timing/train", step_finished=True)
    messages = [{"role": "user", "content": "3 + 1?"}, {"role": "assistant", "content": "4"}]
    logger.log_batched_dict_as_jsonl(
        BatchedDataDict({"content": [messages, messages], "rewards": [1.0, 0.0]}), "val_data_step4.jsonl"
    )
    logger.log_metrics({"accuracy": 0.5}, 4, prefix="validation")
    logger.log_metrics({"node.0.gpu": 1.0, "ray/ray_step": 99}, 99, prefix="ray", step_metric="ray/ray_step")
    logger.log_histogram([1, 2], 4, "lengths")
    logger.finish()
    run = rlvitals.open_run(tmp_path)
    assert (run.status, run.info.framework, run.info.algorithm, run.info.total_steps) == (
        "finished", "nemo_rl", "grpo", 4,
    )  # fmt: skip
    assert list(run.series("train/loss")[1]) == pytest.approx([1, 1 / 2, 1 / 3, 1 / 4])
    assert list(run.series("validation/accuracy")[0]) == [4]
    assert run.last_step == 4
    assert "0123456789abcdef" not in (tmp_path / "config.json").read_text()
    one, two = run.rollouts(2)
    assert (one.prompt, two.prompt, one.meta["split"]) == ("1 + 1?", "2 + 1?", "train")
    right, wrong = one.rollouts
    assert [(turn.text, turn.observation) for turn in right.turns] == [("2", "wrong"), ("again", "")]
    assert (right.reward, right.advantage, wrong.advantage, right.trainable_tokens) == (1.0, 1.0, -1.0, 2)
    assert (right.trace.ids, right.trace.trained) == ((3, 4), (True, True))
    assert (right.trace.engine_logprobs, right.trace.logprobs) == ((-0.5, -0.5), (-0.75, -0.75))
    held_out = run.rollouts(4)[-1]
    assert (held_out.prompt, held_out.meta["split"], held_out.rollouts[0].turns[0].text) == ("3 + 1?", "val", "4")
    shown("NeMo-RL", COMMIT, "its Logger and BatchedDataDict; no training", run.path)


def test_the_logger_has_every_method_of_the_interface():
    assert all(callable(getattr(nemo_rl.VitalsLogger, name)) for name in LoggerInterface.__abstractmethods__)


def test_an_unchanged_script_is_recorded(tmp_path):
    script = tmp_path / "run_grpo.py"
    script.write_text(
        "import sys\nfrom nemo_rl.utils.logger import Logger\n"
        f"logger = Logger({configuration(tmp_path / 'logs')!r})\n"
        "logger.log_metrics({'loss': float(sys.argv[1])}, 1, prefix='train')\n",
        encoding="utf-8",
    )
    command = [sys.executable, "-m", "rlvitals.adapters.nemo_rl", str(script), "0.5"]
    variables = {**os.environ, "PYTHONPATH": str(checkouts.roots("RL")[0])}
    done = subprocess.run(command, env=variables, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr[-2000:]
    assert json.loads((tmp_path / "logs" / "run.json").read_text())["status"] == "finished"
    assert list(rlvitals.open_run(tmp_path / "logs").series("train/loss")[1]) == [0.5]
